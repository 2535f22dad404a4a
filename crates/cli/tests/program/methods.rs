//! What each method does to the table apart from loading rows, and what it refuses.

use crate::common::{each_major, left_out, on_each_major, World};
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::{Installation, Origin};
use std::path::Path;

const TABLE: &str = "DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (
    id serial PRIMARY KEY, name varchar(20) NOT NULL, at timestamptz, n numeric(10,2))";

fn records(n: usize) -> Vec<u8> {
    let record = |i| format!("name {i},2024-02-03 04:05:06+00,{i}.25\n");
    (1..=n).flat_map(|i| record(i).into_bytes()).collect()
}

fn load(world: &World, file: &str, more: &[&str]) -> Result<serde_json::Value, String> {
    let mut all = vec![file, "--table", "t", "--columns", "name,at,n"];
    all.extend_from_slice(more);
    world.load(&all)
}

/// On an empty, logged table, every method loads the same rows, each by its own statements.
fn each_method(world: &mut World) {
    let file = world.file("rows.csv", &records(30_000));
    let few = world.file("few.csv", &records(40));
    world.sql(&format!(
        "{TABLE}; DROP TABLE IF EXISTS s; CREATE TABLE s (LIKE t INCLUDING DEFAULTS)"
    ));
    world.stock("COPY s (name, at, n) FROM STDIN CSV", &records(30_000)).unwrap();
    let methods: [(&str, &str, u64, char); 10] = [
        ("insert", "INSERT INTO \"public\".\"t\"", 40, 'p'),
        ("insert-batch", "), ('name 2'", 1, 'p'),
        ("copy-csv", "WITH (FORMAT csv)", 1, 'p'),
        ("copy-text", "WITH (FORMAT text", 1, 'p'),
        ("copy-binary", "WITH (FORMAT binary)", 1, 'p'),
        ("copy-fresh", "FREEZE)", 1, 'p'),
        ("unlogged", "SET UNLOGGED", 1, 'u'),
        ("unlogged-logged", "SET LOGGED", 1, 'p'),
        ("lanes", "COMMIT PREPARED", 2, 'p'),
        ("staged", "CREATE UNLOGGED TABLE", 1, 'p'),
    ];
    let mut log = 0;
    for (method, seen, transactions, persistence) in methods {
        world.sql(TABLE);
        world.log(&mut log);
        let (file, rows) = if method == "insert" { (&few, 40) } else { (&file, 30_000) };
        let lanes: &[&str] = if method == "lanes" { &["--lanes", "2"] } else { &[] };
        let mut more = vec!["--method", method];
        more.extend_from_slice(lanes);
        let summary = load(world, file, &more).unwrap();
        assert_eq!(summary["loaded"], rows, "{method}");
        assert_eq!(summary["method"], method);
        assert_eq!(summary["transactions"], transactions, "{method}");
        let said = world.log(&mut log);
        assert!(said.contains(seen), "{method}: the server saw\n{said}");
        let kept = world.sql("SELECT relpersistence FROM pg_class WHERE oid = 't'::regclass");
        assert_eq!(kept, persistence.to_string(), "{method}");
        let left = world.sql("SELECT count(*) FROM pg_class WHERE relname LIKE 'pgsluice%'");
        assert_eq!(left, "0", "{method} leaves a table behind");
        let same = format!("(SELECT name, at, n FROM s ORDER BY id LIMIT {rows})");
        assert_eq!(world.difference(&same, "(SELECT name, at, n FROM t)"), "", "{method}");
    }
}

/// A table with rows is emptied only with `--truncate`.
fn rows_are_safe(world: &mut World) {
    let file = world.file("rows.csv", &records(10));
    for method in ["copy-fresh", "unlogged", "unlogged-logged"] {
        world.sql(&format!("{TABLE}; INSERT INTO t VALUES (0, 'kept')"));
        let said = load(world, &file, &["--method", method]).unwrap_err();
        assert!(said.contains("has rows"), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
        load(world, &file, &["--method", method, "--truncate"]).unwrap();
        assert_eq!(world.sql("SELECT count(*) FROM t"), "10");
    }
    // `insert` commits each row and what precedes it, so a failure says what stayed.
    let bad = world.file("bad.csv", b",,\na,,\n");
    world.sql(&format!("{TABLE}; INSERT INTO t VALUES (0, 'kept')"));
    let said = load(world, &bad, &["--method", "insert", "--truncate"]).unwrap_err();
    assert!(said.contains("changed: the table was emptied; 0 rows stayed"), "{said}");
    for method in ["lanes", "staged", "auto"] {
        world.sql(&format!("{TABLE}; INSERT INTO t VALUES (0, 'kept')"));
        load(world, &file, &["--method", method, "--truncate"]).unwrap();
        assert_eq!(world.sql("SELECT count(*) FROM t"), "10");
    }
}

/// If a record late in the file is bad, nothing is loaded, and the message gives its number. By
/// `insert`, the rows before it stay.
fn all_or_nothing(world: &mut World) {
    let mut bytes = records(30_000);
    bytes.extend_from_slice(b"a name that is much too long,2024-01-01 00:00:00+00,1\n");
    bytes.extend_from_slice(&records(20_000));
    let file = world.file("bad.csv", &bytes);
    for method in [
        "insert-batch",
        "copy-csv",
        "copy-binary",
        "copy-fresh",
        "unlogged-logged",
        "lanes",
        "staged",
    ] {
        world.sql(TABLE);
        let said = load(world, &file, &["--method", method]).unwrap_err();
        assert!(said.contains("value too long for type character varying(20)"), "{said}");
        assert!(said.contains("record 30001"), "{method}: {said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{method}");
        assert_eq!(world.sql("SELECT relpersistence FROM pg_class WHERE oid = 't'::regclass"), "p");
    }
    world.sql(TABLE);
    let short = world.file("short.csv", b"a,,\nb,,\n,,\nc,,\n");
    let said = load(world, &short, &["--method", "insert"]).unwrap_err();
    assert!(said.contains("2 rows stayed") && said.contains("record 3"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
}

/// With `staged`, the server checks rows only after all have landed. For every kind of refusal, the
/// message still has the position, column and value that COPY's has.
#[test]
fn staged_errors_name_what_copys_name() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(
        "CREATE TABLE p (k int PRIMARY KEY); INSERT INTO p VALUES (1);
         CREATE TABLE t (id int UNIQUE, name varchar(5) NOT NULL CHECK (name <> 'no'), n smallint, k int REFERENCES p)",
    );
    let good = |from: usize, to: usize| {
        let record = |i| format!("{i},\"a\nb\",1,1\n").into_bytes();
        (from..to).flat_map(record).collect::<Vec<u8>>()
    };
    world.file("part-1.csv", &[b"id,name,n,k\n", &good(1, 20_000)[..]].concat());
    for (bad, message) in [
        ("x,a,1,1\n", "invalid input syntax for type integer"),
        ("-1,a,70000,1\n", "out of range"),
        ("-1,\"too\nlong\",1,1\n", "value too long"),
        ("-1,,1,1\n", "not-null constraint"),
        ("-1,no,1,1\n", "check constraint"),
        ("19999,a,1,1\n", "duplicate key"),
        ("-1,a,1,9\n", "foreign key constraint"),
        ("-1,a,1\n", "missing data for column"),
        ("-1,a,1,1,1\n", "extra data"),
    ] {
        let second = [
            b"id,name,n,k\n",
            &good(20_000, 40_000)[..],
            bad.as_bytes(),
            &good(40_000, 41_000)[..],
        ]
        .concat();
        world.file("part-2.csv", &second);
        let pattern = world.path("part-*.csv");
        let by = |method: &str| {
            let all =
                [&pattern, "--table", "t", "--header", "--method", method, "--indexes", "keep"];
            world.load(&all).unwrap_err()
        };
        let (copy, staged) = (by("copy-csv"), by("staged"));
        assert!(copy.contains(message), "{copy}");
        if message == "foreign key constraint" {
            // COPY checks a foreign key after all rows, and cannot say which row violates it.
            assert!(
                staged.contains("part-2.csv, line 40002, record 20001, byte offset"),
                "{staged}"
            );
        } else {
            assert_eq!(staged, copy);
        }
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    }
}

/// Standard input cannot be read again, so `staged` moves each chunk on when it has landed. The
/// message has the same position as COPY's.
#[test]
fn staged_errors_of_standard_input_name_what_copys_name() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int UNIQUE, name varchar(5) CHECK (name <> 'no'), n smallint)");
    let record = |i| format!("{i},\"a\nb\",1\n").into_bytes();
    let good: Vec<u8> = (0..60_000).flat_map(record).collect();
    let giant = format!("-1,\"{}\nx\",1\n", "x".repeat(5 << 20));
    for (bad, message) in [
        ("-1,a,x\n", "invalid input syntax for type smallint"),
        ("-1,no,1\n", "check constraint"),
        ("59999,a,1\n", "duplicate key"),
        ("-1,a\n", "missing data for column"),
        (giant.as_str(), "value too long"),
    ] {
        let input = [&good[..], bad.as_bytes(), &good[..100]].concat();
        let by = |method: &str| {
            let all = ["load", "-", "--table", "t", "--quiet", "--method", method];
            let output = world.run_with(&[&all[..], &["--indexes", "keep"]].concat(), &input);
            assert_eq!(output.status.code(), Some(4));
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let (copy, staged) = (by("copy-csv"), by("staged"));
        let place = format!("record 60001, byte offset {}", good.len());
        if bad != giant {
            assert!(copy.contains(message) && copy.contains(&place), "{copy}");
            // With COPY, only the message names the column of a missing field.
            assert_eq!(staged.replace(", column n: missing", ": missing"), copy);
        } else {
            assert!(staged.contains(message) && staged.contains(&place), "{staged}");
            assert!(staged.contains("line 120001, "), "{staged}");
        }
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    }
    let mut log = 0;
    world.log(&mut log);
    let arguments = ["load", "-", "--table", "t", "--quiet", "--method", "staged"];
    assert!(world.run_with(&arguments, &good).status.success());
    assert_eq!(world.sql("SELECT count(*) FROM t"), "60000");
    let said = world.log(&mut log);
    assert!(
        said.contains("CREATE UNLOGGED TABLE") && said.contains("INSERT INTO \"public\".\"t\"")
    );

    // A statement trigger must fire once, so the error has the record's number and no line.
    world.sql(
        "CREATE TABLE fired (n serial);
         CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO fired DEFAULT VALUES; RETURN NULL; END $$;
         CREATE TRIGGER f AFTER INSERT ON t EXECUTE FUNCTION f(); TRUNCATE t",
    );
    assert!(world.run_with(&arguments, &good).status.success());
    assert_eq!(world.sql("SELECT count(*) FROM fired"), "1");
    let output = world.run_with(&arguments, b"-1,a,1\n-2,b,c\n");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("standard input, record 2, column n: ") && said.contains("\"c\""),
        "{said}"
    );
}

/// `--create` infers types, and drops the table if the load is refused.
fn create(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS made");
    let mut bytes = b"name,flag,big,day\n".to_vec();
    for i in 0..100_000 {
        bytes.extend_from_slice(format!("n{i},true,{i},2024-01-01\n").as_bytes());
    }
    let good = world.file("good.csv", &bytes);
    let load = |world: &World, file: &str, more: &[&str]| {
        let mut all = vec![file, "--table", "made", "--header"];
        all.extend_from_slice(more);
        world.load(&all)
    };
    let shape = "SELECT string_agg(attname || ' ' || atttypid::regtype, ', ' ORDER BY attnum)
        FROM pg_attribute WHERE attrelid = 'made'::regclass AND attnum > 0";
    let summary = load(world, &good, &["--create", "--pack-columns"]).unwrap();
    assert_eq!(summary["method"], "copy-fresh");
    assert_eq!(world.sql(shape), "big bigint, day date, flag boolean, name text");
    assert_eq!(world.sql("SELECT sum(big)::text || max(name) FROM made"), "4999950000n99999");
    assert!(load(world, &good, &["--create"]).unwrap_err().contains("exists already"));

    // A later value that the inferred type would accept and alter stops the load.
    let odd = [&bytes[..], b"x,true,00123,2024-01-01\n"].concat();
    let odd = world.file("odd.csv", &odd);
    let rejects = world.path("odd.rejects");
    let ways: [&[&str]; 2] = [&[], &["--on-error", "reject", "--reject-file", &rejects]];
    for way in ways {
        world.sql("DROP TABLE IF EXISTS made");
        let said = load(world, &odd, &[&["--create"], way].concat()).unwrap_err();
        assert!(said.contains("00123") && said.contains("record 100001"), "{way:?}: {said}");
        assert_eq!(world.sql("SELECT to_regclass('made')"), "", "{way:?} leaves the table");
    }
    load(world, &odd, &["--create=text-on-doubt"]).unwrap();
    assert_eq!(world.sql("SELECT big FROM made WHERE name = 'x'"), "00123");
    world.sql("DROP TABLE made");

    bytes.extend_from_slice(b"x,maybe,1,2024-01-01\n");
    let doubt = world.file("doubt.csv", &bytes);
    for method in ["auto", "lanes", "insert-batch", "staged"] {
        world.sql("DROP TABLE IF EXISTS made");
        let said = load(world, &doubt, &["--create", "--method", method]).unwrap_err();
        assert!(said.contains("\"maybe\""), "{method}: {said}");
        assert_eq!(world.sql("SELECT to_regclass('made')"), "", "{method} leaves the table");
    }
    load(world, &doubt, &["--create=text-on-doubt"]).unwrap();
    assert_eq!(world.sql(shape), "name text, flag text, big integer, day date");
}

/// Sequences are moved past keys that the file supplied.
fn sequences(world: &mut World) {
    world.sql(TABLE);
    let file = world.file("keys.csv", b"7,x\n9,y\n8,z\n");
    world.load(&[&file, "--table", "t", "--columns", "id,name"]).unwrap();
    assert_eq!(world.sql("INSERT INTO t (name) VALUES ('next') RETURNING id"), "10");
    world
        .sql("DROP TABLE IF EXISTS d; DROP DOMAIN IF EXISTS number; DROP SEQUENCE IF EXISTS drawn");
    world.sql("CREATE DOMAIN number AS int; CREATE SEQUENCE drawn");
    world.sql("CREATE TABLE d (id number DEFAULT nextval('drawn'), name text)");
    world.load(&[&file, "--table", "d"]).unwrap();
    assert_eq!(world.sql("INSERT INTO d (name) VALUES ('next') RETURNING id"), "10");
}

/// The server with this clone's extension. The extension's tests install it in the clone's own
/// servers and in copies of the system's. An extension of the system itself may be of any version.
pub fn with_extension(installation: &Installation) -> Option<Installation> {
    let mut found = installation.clone();
    if installation.origin != Origin::Embedded {
        let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/servers");
        let copies = servers.canonicalize().ok()?.with_file_name("ext");
        let copy = copies.join(&installation.version.text);
        found.bin = copy.join(installation.bin.strip_prefix("/").unwrap());
    }
    found.has_extension().then_some(found)
}

/// If the server has the extension, `auto` uses it.
fn extension(installation: &Installation) {
    let found = with_extension(installation);
    let world = &mut World::new(found.as_ref().unwrap_or(installation));
    world.sql(&format!("{TABLE}; CREATE TABLE s (LIKE t INCLUDING DEFAULTS)"));
    let file = world.file("rows.csv", &records(30_000));
    let said = load(world, &file, &["--method", "extension"]).unwrap_err();
    assert!(said.contains("is not in this database"), "{said}");
    if found.is_none() {
        return left_out(&format!(
            "the loader through the extension on PostgreSQL {}, for which it has not been built",
            world.major()
        ));
    }
    world.sql("CREATE EXTENSION pgsluice");
    world.stock("COPY s (name, at, n) FROM STDIN CSV", &records(30_000)).unwrap();
    for (method, option) in [("extension", "pgsluice 'require'"), ("auto", "pgsluice 'on'")] {
        world.sql("TRUNCATE t");
        let mut log = 0;
        world.log(&mut log);
        let summary = load(world, &file, &["--method", method]).unwrap();
        assert_eq!(summary["method"], "extension");
        assert_eq!(summary["notes"], serde_json::json!([]), "{method}");
        assert!(world.log(&mut log).contains(option), "{method}");
        let (s, t) = ("(SELECT name, at, n FROM s)", "(SELECT name, at, n FROM t)");
        assert_eq!(world.difference(s, t), "", "{method}");
    }
    let binary = world.path("rows.bin");
    let types = ["--types", "varchar(20), timestamptz, numeric(10,2)", "--out", &binary];
    assert!(world.run(&[&["convert", &file], &types[..]].concat()).status.success());
    let mut log = 0;
    world.log(&mut log);
    let by = ["--format", "binary", "--method", "extension", "--truncate"];
    assert_eq!(load(world, &binary, &by).unwrap()["method"], "extension");
    assert!(world.log(&mut log).contains("FORMAT binary, pgsluice 'require'"));
    let (s, t) = ("(SELECT name, at, n FROM s)", "(SELECT name, at, n FROM t)");
    assert_eq!(world.difference(s, t), "", "binary");
    world.sql("TRUNCATE t");
    private(world);
    let bad = world.file("bad.csv", b"x,2024-01-01,1\ny,never,1\n");
    let said = load(world, &bad, &["--method", "extension"]).unwrap_err();
    assert!(said.contains("line 2, record 2") && said.contains("\"never\""), "{said}");
}

/// `auto` makes an empty table private if the load is large and no other session uses the table.
fn private(world: &mut World) {
    let file = world.file("many.csv", &records(120_000));
    let filenode = "SELECT pg_relation_filepath('t')";
    world.sql(
        "DROP TABLE IF EXISTS s; TRUNCATE t; CREATE INDEX t_name ON t (name); \
         CREATE INDEX t_upper ON t (upper(name))",
    );
    let arguments = [&file, "--table", "t", "--columns", "name,at,n"];
    let plan = world.run(&[&["plan"], &arguments[..]].concat()).stdout;
    let plan = String::from_utf8_lossy(&plan).into_owned();
    for line in ["rebuild index public.t_upper", "fill t_name by build\n", "fill t_pkey by build\n"]
    {
        assert!(plan.contains(line), "{plan}");
    }
    assert!(!plan.contains("fill t_upper"), "{plan}");
    let said = world.load(&arguments).unwrap();
    let built = ["t_name: 120000 rows by build", "t_pkey: 120000 rows by build"];
    assert_eq!(said["indexes"], serde_json::json!(built));
    let steps = said["steps"].to_string();
    assert!(steps.contains("t_upper recreated") && !steps.contains("t_name"), "{steps}");
    let indexes = "SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass AND indisvalid";
    assert_eq!(world.sql(indexes), "3");
    assert_eq!(
        world.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE id > 0"),
        "120000"
    );

    // A table with rows is not made private.
    let before = world.sql(filenode);
    let plan = world.run(&[&["plan"], &arguments[..]].concat()).stdout;
    let plan = String::from_utf8_lossy(&plan).into_owned();
    let said = world.load(&arguments).unwrap();
    let indexes = said["indexes"].as_array().unwrap();
    let sorted = " by sorted: whole leaves are only added after its last key";
    let name = indexes[0].as_str().unwrap();
    assert!(name.starts_with("t_name: ") && name.ends_with(&format!(" rows{sorted}")), "{name}");
    assert!(plan.contains(&format!("fill t_name{sorted}")), "{plan}");
    assert!(plan.contains("fill t_pkey by leaves\n"), "{plan}");
    assert!(indexes[1].as_str().unwrap().contains(" rows by leaves"), "{said}");
    assert_eq!(indexes[2], "t_upper: 120000 rows by row: it has expressions");
    assert_eq!(world.sql(filenode), before);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "240000");

    // Nor is a table if another table or a trigger would notice its TRUNCATE.
    for (kept, gone) in [
        ("CREATE TABLE other (t int REFERENCES t)", "DROP TABLE other"),
        (
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'emptied'; END $$; \
             CREATE TRIGGER no BEFORE TRUNCATE ON t EXECUTE FUNCTION no()",
            "DROP FUNCTION no CASCADE",
        ),
    ] {
        world.sql("TRUNCATE t CASCADE");
        world.sql(kept);
        let before = world.sql(filenode);
        world.load(&[&file, "--table", "t", "--columns", "name,at,n"]).unwrap();
        assert_eq!(world.sql(filenode), before, "{kept}");
        world.sql(gone);
    }
    world.sql("TRUNCATE t");
}

/// If the library of the extension cannot be loaded, `auto` uses another method and says why;
/// `--method extension` is refused.
#[test]
fn auto_does_without_an_extension_that_cannot_be_loaded() {
    let mut world = World::new(&each_major()[0]);
    world.sql(
        "CREATE SCHEMA pgsluice;
         CREATE FUNCTION pgsluice.route() RETURNS text LANGUAGE c AS '$libdir/plpgsql', 'plpgsql_call_handler';
         UPDATE pg_proc SET probin = '$libdir/pgsluice_gone' WHERE proname = 'route';
         CREATE VIEW pgsluice.last_copy AS SELECT pgsluice.route(), NULL::jsonb AS indexes;
         INSERT INTO pg_extension VALUES (99999, 'pgsluice', 10, 'pgsluice'::regnamespace, false, '1.0');
         INSERT INTO pg_depend VALUES ('pg_class'::regclass, 'pgsluice.last_copy'::regclass, 0,
                                       'pg_extension'::regclass, 99999, 0, 'e')",
    );
    world.sql(TABLE);
    let file = world.file("rows.csv", &records(100));
    let output = world.run(&["plan", &file, "--table", "t", "--columns", "name,at,n"]);
    let plan = String::from_utf8_lossy(&output.stdout).into_owned();
    let method = plan.lines().find(|l| l.starts_with("method")).unwrap();
    assert!(method.contains("copy-binary") && method.contains("pgsluice_gone"), "{plan}");
    let summary = load(&world, &file, &[]).unwrap();
    assert_eq!((&summary["method"], &summary["loaded"]), (&"copy-binary".into(), &100.into()));
    assert!(summary["reason"].as_str().unwrap().contains("cannot be used"), "{summary}");
    let said = load(&world, &file, &["--method", "extension"]).unwrap_err();
    assert!(said.contains("pgsluice_gone") && said.contains("hint:"), "{said}");
}

/// `insert` commits each row without waiting for the disk, reports this setting, and waits once at
/// its end, even after an error. All rows that it has reported survive a crash.
#[test]
fn insert_waits_for_the_disk_once() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        world.sql("ALTER SYSTEM SET wal_writer_delay = '10s'");
        world.sql("SELECT pg_reload_conf()");
        world.sql("CREATE TABLE t (a int, b text)");
        let row = |i| format!("{i},x\n").into_bytes();
        let rows = |n: usize| (0..n).flat_map(row).collect::<Vec<u8>>();
        let file = world.file("rows.csv", &rows(50));
        let arguments = [&file, "--table", "t", "--method", "insert"];
        let output = world.run(&[&["plan"], &arguments[..]].concat());
        let plan = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(plan.contains("setting   synchronous_commit = off, except"), "{plan}");
        let mut log = 0;
        world.log(&mut log);
        let summary = world.load(&arguments).unwrap();
        assert!(summary["settings"].to_string().contains("synchronous_commit"), "{summary}");
        let said = world.log(&mut log);
        let each = "statement: SET LOCAL synchronous_commit = off; INSERT INTO";
        assert_eq!(said.matches(each).count(), 50);
        assert_eq!(said.matches("pg_logical_emit_message").count(), 1);

        let mut bytes = rows(30);
        bytes.extend_from_slice(b"bad,x\n1,y\n");
        let file = world.file("bad.csv", &bytes);
        let said = world.load(&[&file, "--table", "t", "--method", "insert"]).unwrap_err();
        assert!(said.contains("30 rows stayed") && said.contains("record 31"), "{said}");
        world.server.kill9().unwrap();
        world.server.restart().unwrap();
        world.conn = Conn::open(&world.server.url("postgres")).unwrap();
        assert_eq!(world.sql("SELECT count(*) FROM t"), "80");

        // Reaching the reject limit is an error, too, and the message says what stays.
        let rejects = world.path("rejects");
        let reject = ["--on-error", "reject", "--reject-file", &rejects, "--reject-limit", "0"];
        let said = world
            .load(&[&[&file, "--table", "t", "--method", "insert"], &reject[..]].concat())
            .unwrap_err();
        assert!(said.contains("the limit of 0") && said.contains("31 rows stayed"), "{said}");
    });
}

/// Each method loads the same rows, and empties a table only with `--truncate`. If a record is bad,
/// `insert` keeps the rows before it, and the others load nothing.
#[test]
fn methods() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        each_method(&mut world);
        rows_are_safe(&mut world);
        all_or_nothing(&mut world);
        create(&mut world);
        sequences(&mut world);
        extension(installation);
    });
}
