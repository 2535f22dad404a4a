//! Fields that are left out, or go to columns with other names, by every method. The reference is
//! stock COPY into a table with all fields, and INSERT … SELECT from it.

use crate::common::{each_major, on_first_and_last_major, World};
use std::fs;

pub const METHODS: [&str; 11] = [
    "auto",
    "copy-csv",
    "copy-text",
    "copy-binary",
    "copy-fresh",
    "unlogged",
    "unlogged-logged",
    "lanes",
    "staged",
    "insert-batch",
    "insert",
];

/// A text for a field that is left out or kept. Together these texts use all that CSV allows.
fn text(i: usize) -> String {
    match i % 7 {
        0 => "\"a, \"\"b\"\"\nand c\"".into(),
        1 => String::new(),
        2 => "\"\"".into(),
        3 => format!("plain {i}"),
        4 => "\\.".into(),
        5 => "\"x\r\ny\"".into(),
        _ => "é\\\\n".into(),
    }
}

fn csv(records: usize) -> String {
    let record = |i: usize| {
        format!("{},{i},{},2024-02-{:02},{}\n", text(i), text(i + 3), i % 28 + 1, text(i / 2))
    };
    (1..=records).map(record).collect()
}

/// The same records in COPY's text format.
fn as_text(records: usize) -> String {
    let field = |i: usize| match i % 5 {
        0 => "a\\\tb\\\\".to_owned(),
        1 => "\\N".into(),
        2 => String::new(),
        3 => "\\x41\\102\\n".into(),
        _ => format!("plain {i}"),
    };
    let record = |i: usize| {
        format!(
            "{}\t{i}\t{}\t2024-02-{:02}\t{}\n",
            field(i),
            field(i + 3),
            i % 28 + 1,
            field(i / 2)
        )
    };
    (1..=records).map(record).collect()
}

pub fn remove(path: &str) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(format!("{path}.jsonl"));
}

const TABLES: &str = "
    DROP TABLE IF EXISTS raw, s, t;
    CREATE TABLE raw (x text, id int, y text, d date, z text);
    CREATE TABLE s (id int PRIMARY KEY, y text, d date);
    CREATE TABLE t (LIKE s INCLUDING ALL)";

/// Leaving out some fields does not change the others: by every method, in CSV and in text, with
/// and without rejects, over several chunks.
#[test]
fn fields_that_are_left_out_change_nothing_else() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let rejects = world.path("rejects");
        for (form, bytes, few) in
            [("csv", csv(20_000), csv(60)), ("text", as_text(20_000), as_text(60))]
        {
            world.sql(TABLES);
            let copy = format!("COPY raw FROM STDIN (FORMAT {form})");
            // Up to PostgreSQL 17, stock COPY of CSV ends at a line with `\.` alone. The input has
            // none.
            world.stock(&copy, bytes.as_bytes()).unwrap();
            let (large, few) =
                (world.file("large", bytes.as_bytes()), world.file("few", few.as_bytes()));
            for method in METHODS {
                for kept in ["-,id,y,d,-", "-,-,-,-,y"] {
                    for policy in ["stop", "reject"] {
                        let one = kept == "-,-,-,-,y";
                        let (file, rows) = match method {
                            "insert" => (&few, 60),
                            _ => (&large, 20_000),
                        };
                        world.sql("DROP TABLE s, t");
                        let into = if one { "y" } else { "id, y, d" };
                        let from = if one { "z AS y" } else { "id, y, d" };
                        world.sql(&format!(
                            "CREATE TABLE s AS SELECT {from} FROM raw WHERE id <= {rows};
                             CREATE TABLE t AS SELECT {into} FROM s LIMIT 0"
                        ));
                        remove(&rejects);
                        let mut arguments = vec![
                            file.as_str(),
                            "--table",
                            "t",
                            "--columns",
                            kept,
                            "--method",
                            method,
                            "--format",
                            form,
                            "--on-error",
                            policy,
                        ];
                        if policy == "reject" {
                            arguments.extend(["--reject-file", &rejects]);
                        }
                        let label = format!("{form}, {method}, {kept}, {policy}");
                        let summary =
                            world.load(&arguments).unwrap_or_else(|e| panic!("{label}: {e}"));
                        assert_eq!(summary["loaded"], rows, "{label}");
                        assert_eq!(world.difference("s", "t"), "", "{label}");
                    }
                }
            }
        }
    });
}

/// Rejected records keep all of their fields. Their line, record number and offset are those in the
/// file.
#[test]
fn rejects_are_the_files_own_records() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let rejects = world.path("rejects");
        let mut lines: Vec<String> =
            (1..=20_000).map(|i| format!("{},{i},y{i},2024-01-01,z\n", text(i))).collect();
        lines[9] = "\"j\nunk\",ten,y,2024-01-01,\"z,\"\n".into();
        lines[4_999] = "x,5000,y,2024-02-30,z\n".into();
        lines[14_999] = "x,15000,y\n".into();
        lines[15_999] = "x,16000,y,2024-01-01,z,more\n".into();
        lines[19_998] = "x,1,y,2024-01-01,z\n".into();
        let bytes = lines.concat();
        let bad: String = [9, 4_999, 14_999, 15_999, 19_998].map(|i| lines[i].as_str()).concat();
        let before = |record: usize| lines[..record].concat();
        let line_of = |record: usize| before(record).matches('\n').count() + 1;
        let file = world.file("rows.csv", bytes.as_bytes());
        world.sql(TABLES);
        for method in METHODS.iter().filter(|m| **m != "insert") {
            world.sql("TRUNCATE t");
            remove(&rejects);
            let arguments = [
                file.as_str(),
                "--table",
                "t",
                "--columns",
                "-,id,y,d,-",
                "--method",
                method,
                "--on-error",
                "reject",
                "--reject-file",
                &rejects,
            ];
            let summary = world.load(&arguments).unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!((&summary["loaded"], &summary["rejected"]), (&19_995.into(), &5.into()));
            assert_eq!(fs::read_to_string(&rejects).unwrap(), bad, "{method}");
            let side = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
            let told: Vec<serde_json::Value> =
                side.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
            for (told, (record, column, says)) in told.iter().zip([
                (10, "id", "invalid input syntax for type integer: \"ten\""),
                (5_000, "d", "date/time field value out of range: \"2024-02-30\""),
                (15_000, "d", "missing data for column \"d\""),
                (16_000, "", "extra data after last expected column"),
                (19_999, "", "duplicate key value violates unique constraint \"t_pkey\""),
            ]) {
                let label = format!("{method}: {told}");
                assert_eq!(told["message"], says, "{label}");
                assert_eq!(told["record"], record, "{label}");
                assert_eq!(told["line"], line_of(record - 1), "{label}");
                assert_eq!(told["offset"], before(record - 1).len(), "{label}");
                assert_eq!(told["column"].as_str().unwrap_or_default(), column, "{label}");
            }
        }
    });
}

/// The first bad record stops the load with COPY's message. The position is that in the file: line,
/// record, byte offset and column.
#[test]
fn errors_name_the_files_line_and_field() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(TABLES);
        // COPY miscounts lines if the first record has several.
        let start = "x,1,y,2024-01-01,z\n";
        let record = |i| format!("\"long and longer \n{i}\",{i},y{i},2024-01-01,z\n");
        let fill: String = (2..=12_000).map(record).collect();
        let rest: String = (12_001..=24_000).map(record).collect();
        for (bad, says, column) in [
            ("\"x\n\",bad,y,2024-01-01,z\n", "integer: \"bad\"", ", column id"),
            ("\"x\n\",0,y\n", "missing data for column \"d\"", ", column d"),
            ("\"x\n\",0,y,2024-01-01\n", "missing data for field 5, which is left out", ""),
            ("\"x\n\",0,y,2024-01-01,z,1\n", "extra data after last expected column", ""),
            ("\"x\n\",0,y,2024-01-01,z\"\n", "stray quote", ""),
        ] {
            for (label, bytes) in
                [("few", format!("{start}{bad}")), ("many", format!("{start}{fill}{bad}{rest}"))]
            {
                let records = if label == "few" { 2 } else { 12_001 };
                let lines = 1 + 2 * (records - 2) + 2;
                let offset = bytes.find(bad).unwrap();
                let file = world.file("bad.csv", bytes.as_bytes());
                for method in METHODS {
                    if label == "many" && method == "insert" {
                        continue;
                    }
                    let arguments = [
                        file.as_str(),
                        "--table",
                        "t",
                        "--columns",
                        "-,id,y,d,-",
                        "--method",
                        method,
                    ];
                    let said = world.load(&arguments).unwrap_err();
                    let label = format!("{method}, {label}: {said}");
                    assert!(said.contains(says), "{label}");
                    let place =
                        format!("line {lines}, record {records}, byte offset {offset}{column}");
                    assert!(said.contains(&place), "{place}, {label}");
                    world.sql("TRUNCATE t");
                }
            }
        }
    });
}

/// `--map`, `--unknown-columns` and `--missing-columns` adapt a header whose names are not the
/// columns'. Names that do not fit are errors.
#[test]
fn a_header_is_mapped() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, name text, note text DEFAULT 'none', made int GENERATED ALWAYS AS IDENTITY)");
    let file = world.file("h.csv", b"File Name,ID,junk,\n\"a,b\",1,x,y\nc,2,,\n");
    let mut load = |more: &[&str]| {
        world.sql("TRUNCATE t");
        world.load(&[&[file.as_str(), "--table", "t", "--header"], more].concat()).map(|summary| {
            let rows = world
                .sql("SELECT string_agg(concat_ws('|', id, name, note), ';' ORDER BY id) FROM t");
            (rows, summary["notes"].to_string())
        })
    };
    let said = load(&[]).unwrap_err();
    assert!(said.contains("field 4 of the header has no name"), "{said}");
    let said = load(&["--unknown-columns", "ignore"]).unwrap_err();
    assert!(said.contains("every field of the file is left out"), "{said}");
    let said = load(&["--map", "File name=name", "--unknown-columns", "ignore"]).unwrap_err();
    assert!(said.contains("--map names \"File name\", which the header does not have"), "{said}");
    assert!(said.contains("did you mean \"File Name\"?"), "{said}");
    let said = load(&["--map", "File Name=nmae,ID=id", "--unknown-columns", "ignore"]).unwrap_err();
    assert!(said.contains("has no column \"nmae\""), "{said}");
    let said = load(&["--map", "File Name=id,ID=id", "--unknown-columns", "ignore"]).unwrap_err();
    assert!(said.contains("column \"id\" is named twice"), "{said}");
    let all = ["--map", "File Name=name,ID=id", "--map", "junk=-"];
    let said = load(&all).unwrap_err();
    assert!(said.contains("field 4 of the header has no name"), "{said}");
    let ignoring = [&all[..], &["--unknown-columns", "ignore"]].concat();
    let (rows, notes) = load(&ignoring).unwrap();
    assert_eq!(rows, "1|a,b|none;2|c|none");
    assert!(notes.contains("left out: 2 of 4 fields: junk, "), "{notes}");
    let said = load(&[&ignoring[..], &["--missing-columns", "error"]].concat()).unwrap_err();
    assert!(said.contains("column \"note\" of \"public\".\"t\" is not in the file"), "{said}");
    world.sql("ALTER TABLE t DROP COLUMN note");
    assert!(world
        .load(
            &[
                &[file.as_str(), "--table", "t", "--header"],
                &ignoring[..],
                &["--missing-columns", "error"]
            ]
            .concat()
        )
        .is_ok());
}

/// `--columns` leaves fields out with every kind of `--header`. With `--header=match`, only the
/// remaining fields must match.
#[test]
fn fields_are_left_out_whatever_the_header_is_for() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, c text)");
    let file = world.file("h.csv", b"a,b,c\n1,x,y\n\n");
    for header in ["--header", "--header=ignore", "--header=match"] {
        let arguments = [file.as_str(), "--table", "t", header, "--columns", "a,-,c"];
        assert_eq!(world.load(&arguments).unwrap()["loaded"], 1, "{header}");
        let checked = world.run(&[&["check"], &arguments[..]].concat());
        assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t WHERE a = 1 AND c = 'y'"), "3");
    let said =
        world.load(&[&file, "--table", "t", "--header=match", "--columns", "c,-,a"]).unwrap_err();
    assert!(said.contains("column name mismatch in header line field 1"), "{said}");
    let bad = world.file("bad.csv", b"1,x,y\nq,x,y\n2,y\n");
    let checked = world.run(&["check", &bad, "--table", "t", "--columns", "a,-,c"]);
    let listed = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(4));
    assert!(listed.contains(":2: record 2, byte offset 6, column a: invalid input"), "{listed}");
    assert!(listed.contains(":3: record 3, byte offset 12, column c: missing data"), "{listed}");
}

/// `--create` makes no column for a field that is left out.
#[test]
fn created_tables_lack_what_is_left_out() {
    let mut world = World::new(each_major().last().unwrap());
    let file = world.file("h.csv", b"id,junk,name\n1,x,a\n2,y,b\n");
    let columns = "SELECT string_agg(attname || ' ' || atttypid::regtype, ', ' ORDER BY attnum)
                   FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0";
    for more in [
        &["--header", "--map", "junk=-,name=\"the name\""][..],
        &["--header=ignore", "--columns", "id,-,the name"],
    ] {
        for method in ["auto", "staged", "lanes"] {
            world.sql("DROP TABLE IF EXISTS t");
            let arguments =
                [&[file.as_str(), "--table", "t", "--create", "--method", method], more];
            assert_eq!(world.load(&arguments.concat()).unwrap()["loaded"], 2, "{method}");
            assert_eq!(world.sql(columns), "id integer, the name text", "{method}");
        }
    }
    // A later record that contradicts an inferred type is reported by the columns that remain.
    let mut late: String = (0..60_000).map(|i| format!("x{i},{i},{i}\n")).collect();
    late.push_str("x,y,007\n");
    let file = world.file("late.csv", late.as_bytes());
    world.sql("DROP TABLE t");
    let said = world.load(&[&file, "--table", "t", "--create", "--columns", "-,-,n"]).unwrap_err();
    assert!(said.contains("line 60001, record 60001"), "{said}");
    assert!(said.contains("column n: ") && said.contains("(value \"007\")"), "{said}");
}

/// Options on fields that contradict each other are usage errors of `load`, `plan` and `check`.
#[test]
fn options_on_fields_that_contradict_each_other() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("h.csv", b"a,b\n1,x\n");
    let refused = |more: &[&str], says: &str| {
        for command in ["load", "plan", "check"] {
            let output = world.run(&[&[command, &file, "--table", "t"], more].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{more:?}: {said}");
            assert!(said.contains(says), "{more:?}: {said}");
        }
    };
    refused(&["--columns", "-,-"], "leaves every field out");
    refused(&["--map", "a=b"], "--map needs --header");
    refused(&["--header=ignore", "--map", "a=b"], "--map needs --header");
    refused(&["--header", "--columns", "a,b", "--map", "a=b"], "and --columns positions");
    refused(&["--header", "--map", "a=b,a=-"], "--map names \"a\" twice");
    refused(&["--unknown-columns", "ignore"], "--unknown-columns needs --header");
    refused(&["--missing-columns", "error"], "--missing-columns needs --header");
    refused(&["--format", "binary", "--columns", "a,-"], "fields of a binary file");
    refused(
        &["--header", "--create", "--unknown-columns", "ignore"],
        "cannot be used with --create",
    );
    let output = world.run(&["convert", &file, "--table", "t", "--columns", "a,-"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A record that is too long to be held in memory is streamed, so no field can be left out of it.
/// The load stops and says so.
#[test]
fn a_record_that_is_too_long_stops_the_load() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let long = format!("1,x,y\n2,{},y\n", "z".repeat(9 << 20));
    let file = world.file("long.csv", long.as_bytes());
    for method in ["auto", "staged", "insert-batch"] {
        let arguments = [&file, "--table", "t", "--columns", "a,-,b", "--method", method];
        let said = world.load(&arguments).unwrap_err();
        assert!(said.contains("too long to be held in memory"), "{method}: {said}");
        assert!(said.contains("line 2, record 2, byte offset 6"), "{method}: {said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    }
}
