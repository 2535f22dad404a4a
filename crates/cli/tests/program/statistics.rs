//! ANALYZE runs in the load's transaction if possible, after it if another session is in the way,
//! and never makes a load fail.

use crate::common::{each_major, signal, wait_until, Signal, World};
use pgsluice_engine::internals::Conn;
use std::io::Write;
use std::process::Child;
use std::thread;

const ROWS: usize = 300;

/// The numbers of rows and columns for which the planner has statistics.
const KNOWN: &str =
    "SELECT reltuples || ' ' || (SELECT count(*) FROM pg_stats WHERE tablename = 't') \
    FROM pg_class WHERE oid = 't'::regclass";

fn rows(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| format!("{i},some text\n").into_bytes()).collect()
}

fn program(world: &World, arguments: &[&str]) -> Child {
    world.start(&[&["load", "-", "--table", "t"], arguments].concat())
}

/// A table whose index runs `plpgsql` when it is analyzed.
fn table_with(world: &mut World, plpgsql: &str) {
    world.sql(&format!(
        "DROP TABLE IF EXISTS t; DROP FUNCTION IF EXISTS f;
         CREATE FUNCTION f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN
           IF current_query() LIKE '%ANALYZE%' THEN {plpgsql}; END IF; RETURN $1; END$$;
         CREATE TABLE t (a int, b text); CREATE INDEX i ON t (f(a))"
    ));
}

/// ANALYZE runs once, in the load's transaction, so that rows and statistics appear together. With
/// lanes, `insert` and partitioned tables, it runs after the commit.
#[test]
fn rows_and_statistics_appear_together() {
    for installation in each_major() {
        let mut world = World::new(&installation);
        let (file, rejects) = (world.file("rows.csv", &rows(ROWS)), world.path("rejects"));
        let plain = "CREATE TABLE t (a int, b text)";
        let parted = "CREATE TABLE t (a int, b text) PARTITION BY RANGE (a); \
            CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (1000)";
        let cases: [(&str, &[&str], bool); 9] = [
            (plain, &["--method", "copy-binary"], true),
            (plain, &["--method", "copy-fresh"], true),
            (plain, &["--method", "insert-batch"], true),
            (plain, &["--method", "staged"], true),
            (plain, &["--method", "unlogged-logged"], true),
            (plain, &["--on-error", "reject", "--reject-file", &rejects], true),
            (plain, &["--method", "lanes", "--lanes", "2"], false),
            (plain, &["--method", "insert"], false),
            (parted, &["--method", "copy-csv"], false),
        ];
        let mut log = 0;
        for (table, more, together) in cases {
            world.sql(&format!("DROP TABLE IF EXISTS t; {table}"));
            world.log(&mut log);
            let summary = world.load(&[&[&file, "--table", "t"], more].concat()).unwrap();
            let seen = world.log(&mut log);
            let analyzed = seen.rfind("ANALYZE \"public\".\"t\"").expect("ANALYZE");
            let committed = seen.rfind("statement: COMMIT").unwrap_or(0);
            assert_eq!(analyzed < committed, together, "{more:?}: {seen}");
            assert_eq!(seen.matches("ANALYZE").count(), 1, "{more:?}: {seen}");
            let steps = summary["steps"].as_array().unwrap();
            assert!(steps.iter().any(|s| s == "ANALYZE \"public\".\"t\""), "{more:?}: {steps:?}");
            assert!(summary["seconds"]["analyze"].as_f64().unwrap() > 0.0, "{more:?}: {summary}");
            assert_eq!(world.sql(KNOWN), format!("{ROWS} 2"), "{more:?}");
            // The counters that autovacuum uses are right as well, after the server has updated
            // them.
            let live = "SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = 't'";
            let so = |world: &mut World| !together || world.sql(live) == ROWS.to_string();
            wait_until(|| format!("{more:?}: wrong number of live rows"), || so(&mut world));
        }
    }
}

/// CREATE INDEX CONCURRENTLY holds the lock that ANALYZE needs. It waits for the load to end, and
/// then for every session that waits and holds a snapshot. Both finish, even if the index takes
/// longer than deadlock_timeout.
#[test]
fn who_waits_for_the_load_is_not_waited_for() {
    for installation in each_major() {
        let mut world = World::new(&installation);
        world.sql(
            "CREATE TABLE t (a int, b text);
             CREATE FUNCTION f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
               $$BEGIN IF $1 = 0 THEN PERFORM pg_sleep(2); END IF; RETURN $1; END$$",
        );
        let summary = world.path("summary.json");
        let mut load = program(&world, &["--summary", &summary]);
        load.stdin.as_mut().unwrap().write_all(&rows(300_000)).unwrap();
        let under_way = "SELECT count(*) FROM pg_stat_activity \
            WHERE backend_type = 'client backend' AND backend_xid IS NOT NULL";
        wait_until(|| "no row comes".into(), || world.sql(under_way) != "0");
        let url = world.server.url("postgres");
        let index = thread::spawn(move || {
            Conn::open(&url).unwrap().exec("CREATE INDEX CONCURRENTLY i ON t (f(a))").map(drop)
        });
        let waits = "SELECT count(*) FROM pg_stat_activity \
            WHERE query LIKE 'CREATE INDEX%' AND wait_event_type = 'Lock'";
        wait_until(|| "nobody waits for the load".into(), || world.sql(waits) == "1");
        let output = load.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        index.join().unwrap().expect("the index is built");
        assert_eq!(
            world.sql("SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass"),
            "t"
        );
        assert_eq!(world.sql(KNOWN), "300000 2");
        let summary = std::fs::read_to_string(summary).unwrap();
        assert!(summary.contains("\"ANALYZE "), "{summary}");
    }
}

/// If ANALYZE fails, the rows are loaded, and the summary has the reason.
#[test]
fn an_analyze_that_fails_costs_the_load_nothing() {
    let mut world = World::new(each_major().last().unwrap());
    table_with(&mut world, "RAISE 'no statistics here'");
    let file = world.file("rows.csv", &rows(ROWS));
    let summary = world.load(&[&file, "--table", "t"]).unwrap();
    assert_eq!(summary["loaded"], ROWS);
    let steps = summary["steps"].to_string();
    assert!(steps.contains("no ANALYZE: no statistics here"), "{steps}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), ROWS.to_string());
}

/// If Ctrl-C stops ANALYZE before the commit, the rows are rolled back. After the commit, only
/// ANALYZE is given up.
#[test]
fn analyze_is_stopped() {
    let mut world = World::new(each_major().last().unwrap());
    let all = ROWS.to_string();
    for (method, code, left) in [("copy-binary", 7, "0"), ("lanes", 0, all.as_str())] {
        table_with(&mut world, "PERFORM pg_sleep(1000)");
        let arguments = ["--method", method, "--lanes", "2", "--indexes", "keep"];
        let mut load = program(&world, &arguments);
        load.stdin.take().unwrap().write_all(&rows(ROWS)).unwrap();
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        wait_until(|| format!("{method}: no ANALYZE"), || world.sql(asleep) == "1");
        assert!(signal(load.id(), Signal::SIGINT));
        let output = load.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{method}: {said}");
        assert_eq!(said.contains("rolled everything back"), code == 7, "{method}: {said}");
        wait_until(|| format!("{method}: it sleeps on"), || world.sql(asleep) == "0");
        assert_eq!(world.sql("SELECT count(*) FROM t"), left, "{method}");
    }
}
