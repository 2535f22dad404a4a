//! Promises of `load` that belong in none of the other files.

use crate::common::{each_major, World};
use std::process::{Command, Output, Stdio};

fn world() -> World {
    World::new(each_major().last().unwrap())
}

fn program(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_pgsluice");
    Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Counts the tests and suite methods that a page names. Each must exist.
fn named_tests(page: &str) -> usize {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let table = std::fs::read_to_string(format!("{root}/docs/{page}")).unwrap();
    let mut named = 0;
    for item in table.split('`').skip(1).step_by(2) {
        let Some((path, names)) = item.split_once(": ") else { continue };
        let source = std::fs::read_to_string(format!("{root}/{path}"))
            .unwrap_or_else(|e| panic!("{path}: {e}"));
        for name in names.split(", ") {
            let known = match path.rsplit('.').next() {
                Some("py") => format!("def {name}("),
                Some("toml") => format!("\nname = \"{name}\"\n"),
                _ => format!("fn {name}("),
            };
            assert!(source.contains(&known), "{path} has no {name}");
            named += 1;
        }
    }
    named
}

/// Every test that docs/reviews.md names exists.
#[test]
fn the_tests_that_answer_reviews_exist() {
    let named = named_tests("reviews.md");
    assert!(named > 80, "{named} tests are named");
}

/// The benchmark suite of the article, votes.toml, measures every method of the loader.
#[test]
fn every_method_is_measured() {
    let suite = include_str!("../../../../bench/suites/votes.toml");
    for (_, name, ..) in pgsluice_engine::options::Method::ALL {
        assert!(suite.contains(&format!("\"--method\", \"{name}\"")), "{name}");
    }
}

#[test]
fn a_bare_header_takes_no_value() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"b,a\nx,1\n");
    let summary = world.load(&["--header", &file, "--table", "t"]).unwrap();
    assert_eq!((&summary["read"], &summary["loaded"]), (&1.into(), &1.into()));
    assert_eq!(world.sql("SELECT a || b FROM t"), "1x");
}

#[test]
fn without_a_header_the_first_line_is_data() {
    let mut world = world();
    world.sql("CREATE TABLE t (a text, b text)");
    let file = world.file("t.csv", b"b,a\nx,1\n");
    for more in [&[][..], &["--no-header"], &["--header", "--no-header"]] {
        world.sql("TRUNCATE t");
        world.load(&[&[file.as_str(), "--table", "t"], more].concat()).unwrap();
        assert_eq!(world.sql("SELECT string_agg(a || b, ' ' ORDER BY a) FROM t"), "ba x1");
    }
}

/// `--delimiter` accepts `\t` and `\x1f`; the list of `--columns` may have spaces.
#[test]
fn delimiters_take_escapes_and_columns_are_listed_with_commas() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text, c text)");
    let tabs = world.file("tabs.csv", b"x\t1\ty\n");
    world.load(&[&tabs, "--table", "t", "--delimiter", "\\t", "--columns", "b,a,c"]).unwrap();
    let units = world.file("units.csv", b"z\x1f2\x1fw\n");
    world.load(&[&units, "--table", "t", "--delimiter", "\\x1f", "--columns", "b,a,c"]).unwrap();
    assert_eq!(world.sql("SELECT string_agg(a || b || c, ' ' ORDER BY a) FROM t"), "1xy 2zw");
    let spaced = world.file("spaced.csv", b"v,3,u\n-,-4,-\n");
    world.load(&[&spaced, "--table", "t", "--columns", "b, a ,c", "--where", "-a < 0"]).unwrap();
    assert_eq!(
        world.sql("SELECT string_agg(a || b || c, ' ') FROM t WHERE a NOT IN (1, 2)"),
        "3vu"
    );
}

/// `--date-style` and `--time-zone` decide what dates and times mean, on every route. If neither an
/// option nor a value shows the order of day and month, a note says so.
#[test]
fn date_style_and_time_zone_set_the_sessions() {
    let mut world = world();
    world.sql("CREATE TABLE t (d date, z timestamptz)");
    let file = world.file("t.csv", b"03/02/2024,2024-07-01 12:00:00\n");
    let url = world.server.url("postgres");
    for method in ["copy-csv", "copy-binary", "insert", "insert-batch", "staged", "lanes", "auto"] {
        world.sql("TRUNCATE t");
        let zones = ["--date-style", "ISO, DMY", "--time-zone", "Asia/Tokyo"];
        world
            .load(&[&[file.as_str(), "--table", "t", "--method", method], &zones[..]].concat())
            .unwrap();
        let row =
            world.sql("SELECT to_char(d, 'YYYY-MM-DD ') || (z AT TIME ZONE 'UTC')::text FROM t");
        assert_eq!(row, "2024-02-03 2024-07-01 03:00:00", "{method}");
    }
    // If neither an option nor a date shows the order, a note names the one that the server uses.
    let note = "column d has dates such as 03/02/2024, and none of the first records shows whether";
    for (bytes, more, noted) in [
        ("03/02/2024,2024-07-01\n", &[][..], true),
        ("03/02/2024,2024-07-01\n", &["--date-style", "ISO, DMY"], false),
        ("03/02/2024,2024-07-01\n", &["--expr", "d=to_date(?, 'DD/MM/YYYY')"], false),
        ("03/02/2024,2024-07-01\n02/13/2024,2024-07-01\n", &[], false),
        ("2024-02-03,2024-07-01\n", &[], false),
    ] {
        let file = world.file("dates.csv", bytes.as_bytes());
        let summary = world.load(&[&[file.as_str(), "--table", "t"], more].concat()).unwrap();
        assert_eq!(summary["notes"].to_string().contains(note), noted, "{more:?}: {summary}");
    }
    let wrong =
        program(&["load", &file, "--table", "t", "--to", &url, "--time-zone", "Nowhere/None"]);
    assert_eq!(wrong.status.code(), Some(1), "{}", said(&wrong));
}

/// A time zone given as a rule, such as `UTC+5`, defines its own abbreviations, and PostgreSQL 18
/// prefers them to UTC's. Binary loads in such a zone give the same results as stock COPY.
#[test]
fn a_zone_that_is_a_rule_leaves_dates_to_the_server() {
    let mut world = world();
    world.sql("CREATE TABLE s (a int, z timestamptz); CREATE TABLE t (a int, z timestamptz)");
    let records = [
        "1,2024-07-01 12:00:00 UTC\n",
        "2,2024-07-01T12:00:00Z\n",
        "3,2024-07-01T12:00:00+00\n",
        "4,0044-03-15 12:00:00 BC\n",
    ];
    for zone in ["UTC+5", "X1UTC", "T5"] {
        world.sql(&format!("SET timezone = '{zone}'"));
        for record in records {
            world.sql("TRUNCATE s, t");
            let stock = world.stock("COPY s FROM STDIN (FORMAT csv)", record.as_bytes());
            let file = world.file("t.csv", record.as_bytes());
            let way = ["--table", "t", "--time-zone", zone, "--method", "copy-binary"];
            let loaded = world.load(&[&[file.as_str()], &way[..]].concat());
            assert_eq!(loaded.is_ok(), stock.is_ok(), "{zone}: {record} {loaded:?} {stock:?}");
            assert_eq!(world.difference("s", "t"), "", "{zone}: {record}");
        }
    }
}

/// Without `--lanes`, there is one lane per core, but at most half of max_connections.
#[test]
fn lanes_default_to_the_number_of_cores() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"1,x\n");
    let summary = world.load(&[&file, "--table", "t", "--method", "lanes"]).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let half = world.sql("SELECT current_setting('max_connections')::int / 2");
    assert_eq!(summary["lanes"], cores.min(half.parse().unwrap()));
}

/// The landing table of `staged` is unlogged, unless `--landing logged` is given.
#[test]
fn the_landing_is_unlogged_unless_told_otherwise() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"1,x\n");
    let mut log = 0;
    for (more, kind) in [(&[][..], "CREATE UNLOGGED"), (&["--landing", "logged"], "CREATE")] {
        world.log(&mut log);
        let all = [&[&file, "--table", "t", "--method", "staged"], more].concat();
        assert_eq!(world.load(&all).unwrap()["loaded"], 1);
        let seen = world.log(&mut log);
        assert!(
            seen.contains(&format!("statement: {kind} TABLE \"public\".\"pgsluice_landing_")),
            "{seen}"
        );
    }
}

/// Each kind of failure has its exit code. Usage errors exit with 2 before the program connects;
/// these cases name a server that cannot be reached.
#[test]
fn exit_codes() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let url = world.server.url("postgres");
    let good = world.file("good.csv", b"1,x\n");
    let bad = world.file("bad.csv", b"1,x\nq,y\n");
    let nowhere = "postgresql://nobody@127.0.0.1:1/none";
    let usage: [&[&str]; 10] = [
        // The summary would overwrite the input.
        &["--summary", &good],
        &["--reject-limit", "5"],
        &["--on-error", "reject", "--reject-file", "-"],
        &["--format", "binary", "--header"],
        &["--delimiter", "ab"],
        &["--delimiter", "\\x00"],
        &["--method", "fastest"],
        &["--lanes", "0"],
        &["--landing", "logged"],
        &["--no-such-option"],
    ];
    for more in usage {
        let output = program(&[&["load", &good, "--table", "t", "--to", nowhere], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", said(&output));
    }
    let rejects = world.path("rejects");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    let cases: [(&str, &str, &[&str], i32); 6] = [
        (&good, nowhere, &[], 5),
        ("missing.csv", nowhere, &[], 1),
        (&bad, &url, &[], 4),
        (&good, &url, &["--columns", "a,nope"], 1),
        (&bad, &url, &reject, 3),
        (&good, &url, &[], 0),
    ];
    for (file, to, more, code) in cases {
        let output = program(&[&["load", file, "--table", "t", "--to", to], more].concat());
        assert_eq!(output.status.code(), Some(code), "{file} {more:?}: {}", said(&output));
    }
    let header = world.file("header.csv", b"id,v\n1,2\n3,4\n");
    let output = program(&["load", &header, "--table", "n", "--create", "--to", &url]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    // A header that does not match the table is an error in the data, too.
    let both: &[&str] = &["--header", "--missing-columns", "error"];
    for (names, more) in [
        ("a,c", &["--header"][..]),
        ("a,", &["--header"]),
        ("a", both),
        ("b,a", &["--header=match"]),
        ("b,a", &["--header", "--columns", "a,b"]),
        ("a,b", &["--header", "--map", "c=b"]),
    ] {
        let header = world.file("header.csv", format!("{names}\n1,x\n").as_bytes());
        let output = program(&[&["load", &header, "--table", "t", "--to", &url], more].concat());
        assert_eq!(output.status.code(), Some(4), "{names} {more:?}: {}", said(&output));
    }
    for target in ["host=1 foo=2", "user=u password='x", "host=h port=x"] {
        let output = program(&["load", &good, "--table", "t", "--to", target]);
        assert_eq!(output.status.code(), Some(2), "{target}: {}", said(&output));
    }
    // Within the reject limit, the exit code is 3 only if something was rejected.
    let none = world.path("none");
    let reject = ["--on-error", "reject", "--reject-file", &none];
    let output = program(&[&["load", &good, "--table", "t", "--to", &url], &reject[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// A percentage for `--reject-limit` refers to all records read, for `load` and for `check`.
#[test]
fn a_percentage_is_of_the_records_read() {
    let mut world = world();
    let path = world.file("t.csv", b"1\n2\n3\n4\n5\n6\n7\n8\n9\nx\n");
    let rejects = world.path("rejects.csv");
    world.sql("CREATE TABLE t (a int)");
    let all = [&path, "--table", "t", "--skip", "5", "--where", "a <> 6", "--on-error", "reject"];
    for (limit, code) in [("10%", 3), ("9%", 4)] {
        for command in [&["load", "--reject-file", &rejects][..], &["check"]] {
            let output = world.run(&[command, &all[..], &["--reject-limit", limit]].concat());
            assert_eq!(output.status.code(), Some(code), "{limit} of {command:?}: {output:?}");
        }
        std::fs::remove_file(&rejects).unwrap();
        std::fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    }
    assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "7 8 9");
}

/// A load neither inspects nor truncates tables that inherit from its table.
#[test]
fn children_are_left_alone() {
    let mut world = world();
    let path = world.file("t.csv", b"1\n2\n");
    for (method, more) in [
        ("copy-fresh", &[][..]),
        ("unlogged", &[]),
        ("copy-fresh", &["--truncate"]),
        ("auto", &["--truncate"]),
        ("lanes", &["--truncate"]),
    ] {
        world.sql(
            "DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (a int);
             CREATE TABLE child (b int) INHERITS (t); INSERT INTO child VALUES (7, 8)",
        );
        if !more.is_empty() {
            world.sql("INSERT INTO t VALUES (9)");
        }
        let arguments = [&path, "--table", "t", "--method", method];
        assert_eq!(world.load(&[&arguments[..], more].concat()).unwrap()["loaded"], 2, "{method}");
        assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "1 2 7");
    }
}

/// `plan` and `check` accept the arguments of `load`. `check` counts the same records as `load`,
/// and writes neither rows nor rejects.
#[test]
fn plan_and_check_take_the_arguments_of_load() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int)");
    let path = world.file("t.csv", b"a\n1\nx\n3\n");
    let (rejects, summary) = (world.path("rejects.csv"), world.path("sums.json"));
    let all = [
        &path,
        "--table",
        "t",
        "--header",
        "--skip",
        "1",
        "--quiet",
        "--summary",
        &summary,
        "--on-error",
        "reject",
        "--reject-file",
        &rejects,
    ];
    let output = world.run(&[&["plan"], &all[..]].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(!std::fs::exists(&summary).unwrap() && !output.stdout.is_empty());
    let sums = || -> serde_json::Value {
        let written: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&summary).unwrap()).unwrap();
        let keys = ["read", "loaded", "rejected", "skipped"];
        keys.iter().map(|key| (key.to_string(), written[key].clone())).collect()
    };
    let output = world.run(&[&["check"], &all[..]].concat());
    assert!(output.status.code() == Some(3) && output.stderr.is_empty(), "{output:?}");
    let checked = sums();
    assert!(!std::fs::exists(&rejects).unwrap());
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    let output = world.run(&[&["load"], &all[..]].concat());
    assert!(output.status.code() == Some(3) && output.stderr.is_empty(), "{output:?}");
    assert_eq!(checked, sums());
    assert_eq!(checked["loaded"], 1);
}

/// `check` accepts the marker of `--default` and checks the default value, but advances no
/// sequence.
#[test]
fn check_takes_markers_of_defaults() {
    let newest = each_major().into_iter().max_by_key(|i| i.version.major);
    let mut world = World::new(&newest.unwrap());
    world.sql(
        "CREATE SEQUENCE numbers; CREATE TABLE t (a int GENERATED BY DEFAULT AS IDENTITY, b serial, \
         c text NOT NULL DEFAULT 'N' || nextval('numbers'), d int DEFAULT -1 CHECK (d < 5), \
         e uuid DEFAULT gen_random_uuid() NOT NULL, f int)",
    );
    let file = world.file("marks.csv", b"D,D,D,D,D,1\nD,D,D,9,D,1\nD,D,D,D,D,D\n");
    let arguments = ["check", &file, "--table", "t", "--default", "D"];
    let output = world.run(&arguments);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(4) && told.lines().count() == 2, "{output:?}");
    assert!(told.contains("record 2") && told.contains("violates check constraint"), "{told}");
    assert!(told.contains("record 3") && told.contains("unexpected default marker"), "{told}");
    for sequence in ["numbers", "t_a_seq", "t_b_seq"] {
        assert_eq!(world.sql(&format!("SELECT is_called FROM {sequence}")), "f", "{sequence}");
    }
}

/// Without `--reject-file`, the reject file is in the current folder and is named after the first
/// file.
#[test]
fn rejects_are_named_after_the_first_file() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int)");
    world.file("part-1.csv", b"1\nx\n");
    let (pattern, url) = (world.path("part-*.csv"), world.server.url("postgres"));
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", &pattern, "--table", "t", "--on-error", "reject", "--to", &url])
        .current_dir(world.path("."))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(std::fs::read(world.path("part-1.csv.rejects")).unwrap(), b"x\n");
    assert!(std::fs::exists(world.path("part-1.csv.rejects.jsonl")).unwrap());
}

/// A record that `--where` leaves out counts as skipped, and the header is not counted.
#[test]
fn the_summary_has_its_four_integers_and_counts_no_header() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"a,b\n1,x\nq,y\n3,z\n4,w\n5,v\n");
    let rejects = world.path("rejects");
    let summary = world
        .load(&[
            &file,
            "--table",
            "t",
            "--header",
            "--skip",
            "1",
            "--limit",
            "3",
            "--where",
            "a <> 3",
            "--on-error",
            "reject",
            "--reject-file",
            &rejects,
        ])
        .unwrap();
    let n = |key: &str| summary[key].as_u64().unwrap();
    // Skipped: the first record, and the record that `--where` leaves out.
    assert_eq!((n("read"), n("loaded"), n("rejected"), n("skipped")), (4, 1, 1, 2));
}

/// `docs/summary.md` lists every key of the summary with its type, and no other key.
#[test]
fn the_summary_is_as_documented() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"1,x\n");
    let summary = world.load(&[&file, "--table", "t"]).unwrap();
    let schema = include_str!("../../../../docs/summary.md");
    let (top, seconds) = schema.split_once("## `seconds`").unwrap();
    for (part, written) in [(top, &summary), (seconds, &summary["seconds"])] {
        let rows = part.lines().filter_map(|l| l.strip_prefix("| `")?.split_once("` | "));
        let rows: Vec<(&str, &str)> =
            rows.map(|(key, rest)| (key, rest.split(" |").next().unwrap())).collect();
        let object = written.as_object().unwrap();
        let (mut told, mut keys): (Vec<&str>, Vec<&str>) =
            (rows.iter().map(|r| r.0).collect(), object.keys().map(String::as_str).collect());
        told.sort_unstable();
        keys.sort_unstable();
        assert_eq!(told, keys);
        for (key, kind) in rows {
            let value = &object[key];
            let fits = match kind {
                "integer" => value.is_u64(),
                "integer or null" => value.is_u64() || value.is_null(),
                "number" => value.is_number(),
                "string" => value.is_string(),
                "string or null" => value.is_string() || value.is_null(),
                "object or null, see below" => value.is_object() || value.is_null(),
                "array of strings" => value.as_array().unwrap().iter().all(|v| v.is_string()),
                "object, see below" => value.is_object(),
                kind => panic!("{key} is said to be {kind}"),
            };
            assert!(fits, "{key} is no {kind}: {value}");
        }
    }
}

#[test]
fn the_same_file_again_is_loaded_again() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"1,x\n2,y\n");
    for rows in ["2", "4"] {
        world.load(&[&file, "--table", "t"]).unwrap();
        assert_eq!(world.sql("SELECT count(*) FROM t"), rows);
    }
    assert_eq!(world.sql("SELECT to_regnamespace('pgsluice_loads')"), "", "nothing is remembered");
}

/// A role that may not create the schema of the ledger can load: a load in one transaction records
/// nothing there.
#[test]
fn without_the_right_to_make_the_ledger_the_load_works() {
    let mut world = world();
    world.sql(
        "CREATE ROLE loader LOGIN; CREATE SCHEMA s AUTHORIZATION loader;
         CREATE TABLE s.t (a int PRIMARY KEY, b text); ALTER TABLE s.t OWNER TO loader",
    );
    let url = world.server.url("postgres").replace("postgres@", "loader@");
    let file = world.file("t.csv", b"1,x\n2,y\n");
    let plan = program(&["plan", &file, "--table", "s.t", "--to", &url]);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains("rebuild primary key") && !plan.contains("pgsluice_loads"), "{plan}");
    let output = program(&["load", &file, "--table", "s.t", "--to", &url]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(world.sql("SELECT count(*) FROM s.t"), "2");
    assert_eq!(world.sql("SELECT to_regnamespace('pgsluice_loads')"), "");
}

/// If the table's lock is not available within `--lock-timeout`, the load exits with 6 and loads
/// nothing.
#[test]
fn a_lock_that_is_not_to_be_had_in_time_fails_the_load() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"1,x\n");
    world.sql("BEGIN");
    world.sql("LOCK TABLE t");
    let output = world.run(&["load", &file, "--table", "t", "--lock-timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(said(&output).contains("lock timeout; nothing was loaded"), "{output:?}");
    world.sql("ROLLBACK");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}
