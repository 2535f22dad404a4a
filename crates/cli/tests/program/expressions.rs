//! `--expr`: the server computes values from the text of fields.

use crate::common::{each_major, on_first_and_last_major, World};
use crate::fields::remove;
use std::fs;

const MESSY: &str = "
    DROP TABLE IF EXISTS raw, s, t;
    CREATE TABLE raw (id text, name text, born text, price text);
    CREATE TABLE s (id int PRIMARY KEY, name varchar(12) NOT NULL, born date, price numeric(10,2));
    CREATE TABLE t (LIKE s INCLUDING ALL)";

const EXPRESSIONS: [&str; 6] = [
    "--expr",
    "name=trim(?)",
    "--expr",
    "born=to_date(nullif(?, ''), 'DD.MM.YYYY')",
    "--expr",
    "price=replace(replace(?, '.', ''), ',', '.')",
];

fn messy(i: usize) -> String {
    format!(
        "{i},\"  name {} \",{:02}.{:02}.{},\"{}.{:03},{:02}\"\n",
        i % 90,
        i % 28 + 1,
        i % 12 + 1,
        1950 + i % 70,
        i % 9 + 1,
        i % 1000,
        i % 100
    )
}

/// `--expr` gives the same values as the same SQL over text columns that stock COPY loaded.
#[test]
fn expressions_are_run_by_the_server() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let bytes: String = (1..=30_000).map(messy).collect();
        let file = world.file("messy.csv", bytes.as_bytes());
        let rejects = world.path("rejects");
        world.sql(MESSY);
        world.stock("COPY raw FROM STDIN CSV", bytes.as_bytes()).unwrap();
        world.sql(
            "INSERT INTO s SELECT id::int, trim(name), to_date(born, 'DD.MM.YYYY'),
                   replace(replace(price, '.', ''), ',', '.')::numeric FROM raw",
        );
        for policy in ["stop", "reject"] {
            for method in ["auto", "staged"] {
                world.sql("TRUNCATE t");
                let arguments = [&file, "--table", "t", "--method", method, "--on-error", policy];
                let kept: &[&str] =
                    if policy == "reject" { &["--reject-file", &rejects] } else { &[] };
                let summary = world.load(&[&arguments[..], &EXPRESSIONS, kept].concat()).unwrap();
                assert_eq!(
                    (&summary["loaded"], &summary["method"]),
                    (&30_000.into(), &"staged".into())
                );
                assert_eq!(world.difference("s", "t"), "", "{method}, {policy}");
            }
        }
        let plan = world.run(&[&["plan", &file, "--table", "t"], &EXPRESSIONS[..]].concat());
        let plan = String::from_utf8(plan.stdout).unwrap();
        assert!(plan.contains("staged: the server runs the expressions of --expr"), "{plan}");
        assert!(plan.contains("gives up  speed"), "{plan}");
        let checked = world.run(&[&["check", &file, "--table", "t"], &EXPRESSIONS[..]].concat());
        assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    });
}

/// If an expression or a type refuses a value, the message names its record, and the record is
/// rejected unchanged.
#[test]
fn what_expressions_refuse_is_named_and_rejected() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let mut lines: Vec<String> = (1..=12_000).map(messy).collect();
        lines[7] = "8,x,32.01.2000,\"1,5\"\n".into();
        lines[6_000] = "6001,x,01.01.2000,\"1,5,5\"\n".into();
        lines[9_000] = "9001,a name that is too long,01.01.2000,\"1,5\"\n".into();
        lines[11_000] = "11001,,01.01.2000,1\n".into();
        let bytes = lines.concat();
        let bad: Vec<&str> = [7, 6_000, 9_000, 11_000].map(|i| lines[i].as_str()).into();
        let rejects = world.path("rejects");
        world.sql(MESSY);
        let told = [
            (8, "born", "date/time field value out of range: \"32.01.2000\""),
            (6_001, "price", "invalid input syntax for type numeric: \"1.5.5\""),
            (9_001, "", "value too long for type character varying(12)"),
            (11_001, "name", "null value in column \"name\""),
        ];
        let load = |world: &World, file: &str| {
            let arguments =
                [file, "--table", "t", "--on-error", "reject", "--reject-file", &rejects];
            world.load(&[&arguments[..], &EXPRESSIONS].concat()).unwrap()
        };
        let file = world.file("messy.csv", bytes.as_bytes());
        remove(&rejects);
        assert_eq!(load(&world, &file)["rejected"], 4);
        assert_eq!(fs::read_to_string(&rejects).unwrap(), bad.concat());
        let side = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
        for (line, (record, column, says)) in side.lines().zip(told) {
            let told: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(told["record"], record, "{told}");
            assert!(told["message"].as_str().unwrap().contains(says), "{told}");
            if !column.is_empty() {
                assert_eq!(told["column"], column, "{told}");
            }
        }
        for (i, (record, column, says)) in told.into_iter().enumerate() {
            let good: Vec<&str> = lines
                .iter()
                .map(String::as_str)
                .filter(|line| !bad.contains(line) || *line == bad[i])
                .collect();
            let at = good.iter().position(|line| *line == bad[i]).unwrap() + 1;
            let file = world.file("one.csv", good.concat().as_bytes());
            world.sql("TRUNCATE t");
            let said = world
                .load(&[&[file.as_str(), "--table", "t"], &EXPRESSIONS[..]].concat())
                .unwrap_err();
            assert!(said.contains(says), "{record}: {said}");
            assert!(said.contains(&format!("line {at}, record {at},")), "{said}");
            if !column.is_empty() {
                assert!(said.contains(&format!(", column {column}: ")), "{said}");
            }
        }
        let checked = world.run(&[&["check", &file, "--table", "t"], &EXPRESSIONS[..]].concat());
        let listed = String::from_utf8(checked.stdout).unwrap();
        assert_eq!((checked.status.code(), listed.lines().count()), (Some(4), 4), "{listed}");
    });
}

/// Invalid expressions are refused before the first row, with a message that names the option.
#[test]
fn expressions_are_read_before_the_first_row() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(
        "CREATE TABLE t (a int, b text); CREATE TABLE lookup (b text, a int);
               INSERT INTO lookup VALUES ('one', 1), ('two', 2)",
    );
    let file = world.file("h.csv", b"one,x ? y\ntwo,z\n");
    for (expression, code, says) in [
        ("a=no_such(?)", 1, "--expr a: function no_such(text) does not exist"),
        ("a=?::date", 1, "--expr a: cannot cast type date to integer"),
        ("a=sum(?::int)", 1, "--expr a: aggregate functions are not allowed"),
        ("a=generate_series(1, ?::int)", 1, "--expr a: set-returning functions are not allowed"),
        ("a=row_number() OVER (ORDER BY ?)", 1, "--expr a: window functions are not allowed"),
        ("a=b || ?", 1, "--expr a: column \"b\" does not exist"),
        ("a=1), (?", 2, "--expr a: a parenthesis is closed"),
        ("a=?, 1", 2, "--expr a: it is more than one expression"),
        ("a=now()", 2, "--expr a: it has no ?"),
        ("c=?", 1, "has no column \"c\""),
        ("a", 2, "--expr takes COLUMN=TEXT"),
    ] {
        for command in ["load", "plan", "check"] {
            let output = world.run(&[command, &file, "--table", "t", "--expr", expression]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{command} {expression}: {said}");
            assert!(said.contains(says), "{command} {expression}: {said}");
        }
    }
    for more in
        [&["--method", "copy-csv"][..], &["--format", "binary"], &["--create"], &["--expr", "a=?"]]
    {
        let output = world.run(&[&["load", &file, "--table", "t", "--expr", "a=?"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {output:?}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    // A name in a subquery does not mean the field. A `?` in quotes is text, and `??` is the
    // operator `?`.
    let summary = world.load(&[
        &file,
        "--table",
        "t",
        "--expr",
        "a=(SELECT a FROM lookup WHERE lookup.b = ?)",
        "--expr",
        "b=replace(?, '?', '!') || ('{\"k\": 1}'::jsonb ?? 'k')::text",
    ]);
    assert_eq!(summary.unwrap()["loaded"], 2);
    assert_eq!(world.sql("SELECT string_agg(a || b, ' ' ORDER BY a) FROM t"), "1x ! ytrue 2ztrue");
    // `--expr` also applies to the values of `--set`, and `--where` sees its results.
    world.sql("TRUNCATE t");
    let summary = world.load(&[
        &file,
        "--table",
        "t",
        "--columns",
        "a,-",
        "--set",
        "b={file}",
        "--expr",
        "b=regexp_replace(?, '.*/', '')",
        "--expr",
        "a=length(?)",
        "--where",
        "a = 3",
    ]);
    assert_eq!(summary.unwrap()["loaded"], 2);
    assert_eq!(world.sql("SELECT DISTINCT b FROM t"), "h.csv");
}

/// A condition is about the values that the columns will have, as with COPY: rounded by their types.
#[test]
fn conditions_see_rounded_values() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let bytes = "2024-12-31 23:59:59.7,9.999, x\n2024-12-31 23:59:59.2,9.991, y\n";
        let file = world.file("rounded.csv", bytes.as_bytes());
        world.sql(
            "CREATE TABLE t (ts timestamp(0), price numeric(6,2), note text); CREATE TABLE s (LIKE t)",
        );
        for filter in ["ts >= '2025-01-01'", "price < 10", "price >= 10"] {
            world.sql("TRUNCATE s, t");
            let where_ = ["--where", filter];
            let rows = [&[file.as_str()][..], &where_].concat();
            world.load(&[&rows[..], &["--table", "s", "--method", "copy-csv"]].concat()).unwrap();
            let trim = ["--table", "t", "--expr", "note=trim(?)"];
            let summary = world.load(&[&rows[..], &trim].concat()).unwrap();
            assert_eq!(
                (&summary["loaded"], &summary["skipped"]),
                (&1.into(), &1.into()),
                "{filter}"
            );
            let same = "SELECT count(*) FROM s JOIN t ON (s.ts, s.price, trim(s.note)) = (t.ts, t.price, t.note)";
            assert_eq!(world.sql(same), "1", "{filter}");
        }
    });
}

/// A condition of a load with expressions sees what it sees with COPY: values of the length of their
/// type, of domains and in arrays, and the defaults of columns that are not in the file. A value that
/// COPY refuses is refused, whatever the condition says.
#[test]
fn conditions_see_the_values_of_the_columns() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE DOMAIN price AS numeric(6,1) CHECK (VALUE < 99); \
             CREATE TABLE t (v varchar(3), c char(3), p price, n numeric(4,1)[], w varchar(3)[], x text, \
               kind text DEFAULT 'new'); CREATE TABLE s (LIKE t INCLUDING DEFAULTS)",
        );
        let file = world.file("rows.csv", b"abc  ,A,10.04,{10.04},{abc  },y\n");
        let load = |world: &World, table: &str, file: &str, filter: &str, more: &[&str]| {
            let of = ["--table", table, "--columns", "v,c,p,n,w,x", "--where", filter];
            world.load(&[&[file][..], &of, more].concat())
        };
        let trim = ["--expr", "x=trim(?)"];
        for (filter, loaded) in [
            ("v = 'abc'", 1),
            ("c LIKE 'A  '", 1),
            ("c ~ '^A$'", 0),
            ("p > 10", 0),
            ("n[1] > 10", 0),
            ("w[1] = 'abc'", 1),
            ("kind = 'new'", 1),
            ("kind IS NULL", 0),
        ] {
            world.sql("TRUNCATE s, t");
            for (table, more) in [("s", &["--method", "copy-csv"][..]), ("t", &trim)] {
                let summary = load(&world, table, &file, filter, more).unwrap();
                assert_eq!(summary["loaded"], loaded, "{table} {filter}");
            }
            assert_eq!(world.difference("s", "t"), "", "{filter}");
        }
        for (bad, why) in [("abcd,A,1,{1},{a},y", "too long"), ("a,A,99,{1},{a},y", "price")] {
            let file = world.file("bad.csv", format!("{bad}\n").as_bytes());
            for (table, more) in [("s", &["--method", "copy-csv"][..]), ("t", &trim)] {
                let said = load(&world, table, &file, "x = 'none'", more).unwrap_err();
                assert!(said.contains(why), "{table} {bad}: {said}");
            }
        }
        // A mistake is found before a row is sent.
        let said = load(&world, "t", &file, "kinds = 'new'", &trim).unwrap_err();
        assert!(said.contains("kinds") && !said.contains("line"), "{said}");
    });
}

/// A record may be too long for a row of the landing table, where its values are text, but not for
/// the table itself. The load fails, and no record is rejected for that.
#[test]
fn a_record_that_only_the_landing_table_cannot_hold() {
    let mut world = World::new(each_major().last().unwrap());
    let columns: Vec<String> = (0..450).map(|i| format!("c{i} bigint")).collect();
    world.sql(&format!("CREATE TABLE t ({})", columns.join(", ")));
    let row = |value: &str| [value; 450].join(",") + "\n";
    let bytes = [row("1"), row("123456789012345678"), row("2")].concat();
    let file = world.file("wide.csv", bytes.as_bytes());
    let rejects = world.path("wide.rejects");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    for (command, hint) in [
        (&["load", "--expr", "c0=trim(?)"][..], "load without --expr"),
        (&["check", "--expr", "c0=trim(?)"], "load without --expr"),
        (&["load", "--method", "staged"], "--method insert-batch"),
    ] {
        for more in [&[][..], &reject] {
            let output = world.run(&[command, &[file.as_str(), "--table", "t"], more].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command:?} {more:?}: {said}");
            assert!(said.contains("row is too big") && said.contains(hint), "{said}");
            assert!(!said.contains("record 2") && !fs::exists(&rejects).unwrap(), "{said}");
        }
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    let loaded = world.load(&[&file, "--table", "t", "--method", "insert-batch"]);
    assert_eq!(loaded.unwrap()["loaded"], 3);
}

/// An aggregate would change the number of rows, also in a subquery whose argument is the field. A
/// subquery with two rows for a record is that record's error.
#[test]
fn expressions_with_subqueries() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE TABLE t (c text); CREATE TABLE lookup (k text, id text); \
             INSERT INTO lookup VALUES ('a', '1'), ('b', '2'), ('b', '3')",
        );
        let file = world.file("rows.csv", b"a\nb\nc\n");
        for aggregate in ["max(?)", "(SELECT max(?))", "(SELECT string_agg(?, ','))"] {
            let expression = format!("c={aggregate}");
            let said = world.load(&[&file, "--table", "t", "--expr", &expression]).unwrap_err();
            assert!(said.contains("aggregate"), "{aggregate}: {said}");
        }
        let all = [&file, "--table", "t", "--expr", "c=(SELECT id FROM lookup WHERE k = ?)"];
        let rejects = world.path("rejects.csv");
        let reject = ["--on-error", "reject", "--reject-file", &rejects];
        let summary = world.load(&[&all[..], &reject].concat()).unwrap();
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &1.into()));
        assert_eq!(fs::read(&rejects).unwrap(), b"b\n");
    });
}
