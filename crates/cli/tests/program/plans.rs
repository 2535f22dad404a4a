//! What a plan says: the locks for which other sessions wait, what the server will refuse, what an
//! earlier load left down.

use crate::common::{each_major, wait_until, World};
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

fn world() -> World {
    World::new(each_major().last().unwrap())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn plan(world: &World, arguments: &[&str]) -> String {
    let output = world.run(&[&["plan"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// If a load commits more than once, the plan and the summary say what it gives up.
#[test]
fn several_commits_are_given_up() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let file = world.file("t.csv", b"1,x\n2,y\n");
    let once = ["--table", "t", "--once"];
    let pieces = "all or nothing: each connection commits after 3 MB of input";
    let shared = "all or nothing: each machine commits after 64 MB of input";
    let lanes = "a single commit: the lanes commit one after another; the order of the rows";
    let cases: [(&[&str], String); 6] = [
        (&["--commit-every", "3MB"], pieces.into()),
        (
            &["--commit-every", "3MB", "--method", "lanes", "--lanes", "2"],
            format!("{pieces}; the order of the rows"),
        ),
        (&["--share"], shared.into()),
        (&["--method", "lanes", "--lanes", "2"], lanes.into()),
        (&["--method", "lanes", "--lanes", "1"], "nothing".into()),
        (&[], "nothing".into()),
    ];
    for (more, given_up) in cases {
        let all = [&[file.as_str()][..], &once, more].concat();
        let planned = plan(&world, &all);
        assert!(planned.contains(&format!("gives up  {given_up}\n")), "{more:?}: {planned}");
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let summary = world.load(&all).unwrap();
        assert_eq!(summary["gives_up"], given_up, "{more:?}");
    }
}

/// The plan says how many connections a load has while it sends rows, and what each is for. A load
/// has no other ones.
#[test]
fn a_load_has_the_connections_of_its_plan() {
    let mut world = world();
    let rows = format!("1,{}\n", "x".repeat(90)).repeat(8_000);
    let lanes = ["--method", "lanes", "--lanes", "2"];
    let once = |name: &'static str| ["--once", "--source-name", name];
    let detect = "2 for rows; 1 to detect lanes that wait for each other";
    let record = format!("{detect}; 1 to lock the record of what is dropped or disabled");
    let claims = "1 to claim the files, in a transaction until the end";
    let cases: [(&str, Vec<&str>, u32, String); 5] = [
        ("", vec![], 1, "1 for rows".into()),
        ("", lanes.into(), 3, detect.into()),
        ("CREATE INDEX ON t (a)", lanes.into(), 4, record),
        ("", once("a").into(), 2, format!("1 for rows; {claims}")),
        ("", [&lanes[..], &once("b")].concat(), 4, format!("{detect}; {claims}")),
    ];
    for (index, more, count, words) in cases {
        world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text); {index}"));
        let arguments = [&["-", "--table", "t"], &more[..]].concat();
        let planned = world.run_with(&[&["plan"], &arguments[..]].concat(), rows.as_bytes());
        let planned = String::from_utf8(planned.stdout).unwrap();
        assert!(planned.contains(&format!("sessions  {count}: {words}\n")), "{planned}");
        let mut child = world.start(&[&["load", "--quiet"], &arguments[..]].concat());
        let mut input = child.stdin.take().unwrap();
        // The load then waits for more.
        input.write_all(rows.as_bytes()).unwrap();
        let sessions = "SELECT count(*) FROM pg_stat_activity \
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let has_all = || world.sql(sessions) == count.to_string();
        wait_until(|| format!("{more:?}: there are not {count} sessions"), has_all);
        thread::sleep(Duration::from_secs(1));
        assert_eq!(world.sql(sessions), count.to_string(), "{more:?}");
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let file = world.file("rows.csv", rows.as_bytes());
    let planned = plan(&world, &[&file, "--table", "t", "--once", "--share"]);
    let alive =
        format!("sessions  3: 1 for rows; {claims}; 1 to show that this machine is alive\n");
    assert!(planned.contains(&alive), "{planned}");
    let json = world.run(&["plan", &file, "--table", "t", "--once", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap()["sessions"], 2);
}

/// By default, a load never locks others out of a table with rows, however many rows it loads. With
/// `--indexes rebuild`, the plan names the lock and estimates how long others wait.
#[test]
fn a_table_with_rows_keeps_its_indexes_and_its_readers() {
    let mut world = world();
    world.sql(
        "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE INDEX ON t (b);
         INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i; ANALYZE t",
    );
    let rows: String = (1_000..21_000).map(|i| format!("{i},text of the row\n")).collect();
    let file = world.file("many.csv", rows.as_bytes());
    let planned = plan(&world, &[&file, "--table", "t"]);
    assert!(planned.contains("gives up  nothing\n") && !planned.contains("\nlock "), "{planned}");
    assert!(
        planned.contains("keep primary key") && planned.contains("--indexes rebuild"),
        "{planned}"
    );
    let mut log = 0;
    world.log(&mut log);
    let summary = world.load(&[&file, "--table", "t", "--no-lock-out"]).unwrap();
    assert_eq!(summary["locks"], Value::Array(vec![]));
    assert!(!world.log(&mut log).contains("ACCESS EXCLUSIVE"));

    let rebuild = ["--indexes", "rebuild"];
    let planned = plan(&world, &[&[file.as_str(), "--table", "t"], &rebuild[..]].concat());
    let lock =
        "lock      ACCESS EXCLUSIVE on \"public\".\"t\" from before the first row until the \
                commit: all other sessions, readers too, wait";
    assert!(planned.contains(lock) && planned.contains("gives up  concurrent access"), "{planned}");
    // Two indexes of 20,100 rows.
    assert!(planned.contains("wait, about 1 s for the rows and 1 s to build indexes"), "{planned}");
    world.sql(
        "CREATE TABLE n (a int, b text); CREATE INDEX ON n (a); \
               ALTER TABLE n SET (autovacuum_enabled = false); \
               INSERT INTO n SELECT i, repeat('x', 15) FROM generate_series(1, 600000) i",
    );
    // The rows of a table that was never analyzed are estimated, too.
    let planned = plan(&world, &[&[file.as_str(), "--table", "n"], &rebuild[..]].concat());
    assert!(planned.contains("wait, about 1 s for the rows and 3 s to build indexes"), "{planned}");
    let long = world.file("long.csv", &b"1000000,text of the row\n".repeat(400_000));
    let planned = plan(&world, &[&[long.as_str(), "--table", "t"], &rebuild[..]].concat());
    assert!(planned.contains("wait, about 1 s for the rows and 4 s to build indexes"), "{planned}");
    world.sql("CREATE TABLE l (a int, b text); CREATE INDEX ON l (a)");
    let lanes = ["--table", "l", "--method", "lanes", "--lanes", "2"];
    let planned = plan(&world, &[&[long.as_str()], &lanes[..]].concat());
    assert!(planned.contains("all writers wait, about 2 s to build indexes"), "{planned}");
    let json = [&["plan", &long, "--table", "t", "--json"], &rebuild[..]].concat();
    let json: Value = serde_json::from_slice(&world.run(&json).stdout).unwrap();
    assert_eq!(json["locks"][0]["build_seconds"], 4);
    world.sql("TRUNCATE t");
    let base = ["load", &file, "--table", "t"];
    let output = world.run(&[&base[..], &rebuild[..], &["-v"]].concat());
    assert_eq!(said(&output).matches("lock: ACCESS EXCLUSIVE on").count(), 2, "{output:?}");
}

/// If an option makes the load lock the table against others, the plan and the summary name the
/// lock, even if the table has nothing to drop or disable. There is no such lock on a table that
/// another role owns.
#[test]
fn a_lock_for_nothing_is_named() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int); CREATE ROLE loader LOGIN; GRANT ALL ON t TO loader");
    let file = world.file("t.csv", b"1\n");
    let theirs = world.server.url("postgres").replace("postgres@", "loader@");
    let lock = "ACCESS EXCLUSIVE on \"public\".\"t\" from before the first row until the commit";
    for option in
        [["--indexes", "rebuild"], ["--triggers", "off"], ["--foreign-keys", "revalidate"]]
    {
        let all = [&[file.as_str(), "--table", "t"][..], &option].concat();
        let planned = plan(&world, &all);
        assert!(planned.contains(&format!("\nlock      {lock}")), "{option:?}: {planned}");
        let mut log = 0;
        world.log(&mut log);
        let summary = world.load(&all).unwrap();
        assert!(summary["locks"].to_string().contains("ACCESS EXCLUSIVE on"), "{summary}");
        assert_eq!(summary["gives_up"], "concurrent access to what is locked", "{summary}");
        assert!(world.log(&mut log).contains("ACCESS EXCLUSIVE MODE"));
        let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["plan", "--to", &theirs])
            .args(&all)
            .output()
            .unwrap();
        let planned = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !planned.contains("\nlock "), "{output:?}");
        let lanes = [&all[..], &["--method", "lanes", "--lanes", "2"]].concat();
        assert!(!plan(&world, &lanes).contains("\nlock "), "{option:?}");
    }
}

/// Locks that a load has only for a moment are named, too: to drop indexes for lanes, to turn
/// triggers off and on again, and to truncate for `insert`.
#[test]
fn short_locks_are_named() {
    let mut world = world();
    world.sql(
        "CREATE TABLE t (a int); CREATE INDEX ON t (a); INSERT INTO t VALUES (0); \
         CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
         CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
    );
    let file = world.file("t.csv", b"1\n");
    let lanes = ["--method", "lanes", "--lanes", "2"];
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &["--indexes", "rebuild"],
            &[
                "ACCESS EXCLUSIVE on \"public\".\"t\" from before the first row until the indexes are dropped",
                "SHARE on \"public\".\"t\" from the last row until the indexes are built",
            ],
        ),
        (
            &["--triggers", "off"],
            &["until the triggers are disabled", "from the last row until the triggers are enabled"],
        ),
        (
            &["--method", "insert", "--truncate"],
            &["from before the first row until the TRUNCATE is committed"],
        ),
    ];
    for (more, locks) in cases {
        let lanes = if more.contains(&"--method") { &[][..] } else { &lanes };
        let planned = plan(&world, &[&[file.as_str(), "--table", "t"][..], more, lanes].concat());
        for lock in locks {
            assert!(planned.contains(lock), "{more:?}: {lock}: {planned}");
        }
    }
}

/// `--no-lock-out` refuses options and methods that would lock other sessions out, and keeps
/// indexes.
#[test]
fn what_would_lock_others_out_can_be_forbidden() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let file = world.file("t.csv", b"1,x\n");
    for (more, code) in [
        (&["--truncate"][..], 2),
        (&["--indexes", "rebuild"], 2),
        (&["--triggers", "off"], 2),
        (&["--method", "copy-fresh"], 2),
        (&["--truncate", "--method", "lanes"], 0),
        (&[], 0),
    ] {
        world.sql("TRUNCATE t");
        let base = ["load", &file, "--table", "t", "--no-lock-out", "--quiet"];
        let output = world.run(&[&base[..], more].concat());
        assert_eq!(output.status.code(), Some(code), "{more:?}: {output:?}");
        assert_eq!(said(&output).contains("--no-lock-out forbids"), code == 2, "{output:?}");
    }
    // With `--no-lock-out`, indexes of an empty table are kept, too.
    world.sql("TRUNCATE t");
    let planned = plan(&world, &[&file, "--table", "t", "--no-lock-out"]);
    assert!(planned.contains("keep primary key public.t_pkey: --no-lock-out"), "{planned}");
}

/// `plan` fails with the reason if the server would refuse the load: TRUNCATE of a referenced
/// table, missing privileges, COPY under row-level security, values for generated columns.
#[test]
fn a_plan_finds_what_the_server_would_refuse() {
    let mut world = world();
    world.sql(
        "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE TABLE u (a int REFERENCES t);
         INSERT INTO t VALUES (7, 'y'); CREATE ROLE loader LOGIN; CREATE TABLE v (a int, b text);
         GRANT INSERT (a) ON v TO loader; GRANT SELECT ON v TO loader;
         CREATE TABLE w (a int, b text); GRANT INSERT ON w TO loader;
         CREATE TABLE g (a int, b text GENERATED ALWAYS AS ('x') STORED);
         CREATE TABLE p (a int, b text); GRANT ALL ON g, p TO loader;
         ALTER TABLE p ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON p USING (true)",
    );
    let file = world.file("t.csv", b"1,x\n");
    for command in ["plan", "load"] {
        let output = world.run(&[command, &file, "--table", "t", "--truncate"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("cannot be truncated: foreign keys"), "{command}: {said}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
    let url = world.server.url("postgres").replace("postgres@", "loader@");
    for (more, why) in [
        (&["--table", "v"][..], "the role may not insert into the columns b of"),
        (&["--table", "w", "--truncate", "--method", "copy-csv"], "the role may not truncate"),
        (&["--table", "p", "--method", "copy-csv"], "row-level security"),
        (&["--table", "g", "--columns", "a,b"], "is generated and takes no values"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["plan", &file, "--to", &url])
            .args(more)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains(why), "{output:?}");
    }
}

/// `plan --json` prints an object. Rows of a compressed file are estimated from its decompressed
/// content, not from its size on disk.
#[test]
fn a_plan_is_json_and_estimates_rows_of_compressed_files() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let rows: String = (0..200_000).map(|i| format!("{i},text of the row number {i}\n")).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(rows.as_bytes()).unwrap();
    let file = world.file("t.csv.gz", &gzip.finish().unwrap());
    let planned: Value =
        serde_json::from_str(&plan(&world, &[&file, "--table", "t", "--json"])).unwrap();
    let records = planned["records"].as_u64().unwrap();
    assert!((100_000..400_000).contains(&records), "{records}");
    assert_eq!(planned["table"], "\"public\".\"t\"");
    assert_eq!(planned["locks"], Value::Array(vec![]));
}

/// `load --dry-run` prints the plan and changes nothing.
#[test]
fn a_dry_run_is_the_plan() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int)");
    let file = world.file("t.csv", b"1\n");
    let arguments = [file.as_str(), "--table", "t", "--truncate"];
    let dry = world.run(&[&["load"][..], &arguments, &["--dry-run"]].concat());
    assert!(dry.status.success(), "{dry:?}");
    assert_eq!(String::from_utf8(dry.stdout).unwrap(), plan(&world, &arguments));
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// If a load over several connections is killed, an index may stay down, and later loads say so.
/// The plan says that a schema is created to record this, and `--ledger none` forbids it.
#[test]
fn what_a_crash_left_down_is_said_by_later_loads() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text); CREATE INDEX t_a ON t (a)");
    let file = world.file("t.csv", b"1,x\n2,y\n");
    let lanes = ["--table", "t", "--method", "lanes", "--lanes", "2"];
    let base = [&[file.as_str()], &lanes[..]].concat();
    let planned = plan(&world, &base);
    assert!(planned.contains("the schema pgsluice_loads is created"), "{planned}");
    let none = [&base[..], &["--ledger", "none"]].concat();
    assert!(!plan(&world, &none).contains("pgsluice_loads is created"));
    world.load(&none).unwrap();
    // A load in one transaction has nothing to record.
    world.load(&[&file, "--table", "t", "--indexes", "rebuild"]).unwrap();
    assert_eq!(world.sql("SELECT to_regnamespace('pgsluice_loads')"), "");

    world.sql("TRUNCATE t");
    let mut load = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "-", "--to", &world.server.url("postgres"), "--quiet"])
        .args(lanes)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = load.stdin.take().unwrap();
    stdin.write_all(&b"1,text of the row\n".repeat(100_000)).unwrap();
    let gone = "SELECT to_regclass('t_a') IS NULL";
    wait_until(|| "the index is not down".into(), || world.sql(gone) == "t");
    load.kill().unwrap();
    load.wait().unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
        AND pid <> pg_backend_pid()";
    wait_until(|| "sessions stay".into(), || world.sql(sessions) == "0");
    let note =
        "an earlier load dropped or disabled: index public.t_a; pgsluice repair recreates it";
    assert!(plan(&world, &[&file, "--table", "t"]).contains(note));
    let output = world.run(&["load", &file, "--table", "t"]);
    assert!(output.status.success() && said(&output).contains(note), "{output:?}");
    world.repair();
    assert!(!plan(&world, &[&file, "--table", "t"]).contains("earlier load dropped"));
    assert_eq!(world.sql(gone), "f");
}
