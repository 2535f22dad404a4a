//! Lanes that wait for one another: in a deadlock, and for a moment. What they do once for all of
//! them.

use crate::common::proxy::{Fate, Proxy};
use crate::common::{each_major, signal, wait_until, Signal, World};
use pgsluice_engine::internals::Conn;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// The SQL that creates table t, and a trigger that changes one row for all lanes if `when` holds for
/// a row. So a lane waits until the other one commits.
fn counted(time: &str, when: &str) -> String {
    format!(
        "CREATE TABLE t (a int, b text); CREATE TABLE totals (n int); INSERT INTO totals VALUES (0); \
         CREATE OR REPLACE FUNCTION count_up() RETURNS trigger LANGUAGE plpgsql AS \
           'BEGIN UPDATE totals SET n = n + 1; RETURN NEW; END'; \
         CREATE TRIGGER count_up {time} INSERT ON t FOR EACH ROW WHEN ({when}) \
           EXECUTE FUNCTION count_up()"
    )
}

/// If two lanes have the same key, the server makes one wait for the other's commit, which comes
/// only when all lanes are done. The load detects this and fails.
#[test]
fn lanes_that_wait_for_one_another_end_with_an_error() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    // Since the table has a row, the key is not rebuilt after the load.
    world.sql("CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (-1, '')");
    let mut bytes = Vec::new();
    for i in 0..300_000 {
        bytes.extend_from_slice(format!("{i},some words to fill the row with\n").as_bytes());
    }
    // The same keys again, in chunks of the other lane.
    let again = bytes.clone();
    bytes.extend_from_slice(&again);
    let path = world.file("twice.csv", &bytes);
    let said = world.load(&[&path, "--table", "t", "--method", "lanes"]).unwrap_err();
    assert!(said.contains("another lane") || said.contains("duplicate key"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
}

/// Two lanes wait for each other, and no request to cancel arrives, as behind several poolers that do
/// not know each other's sessions. The load detects this and fails nevertheless.
#[test]
fn lanes_that_wait_for_one_another_end_where_no_request_to_cancel_arrives() {
    let mut world = World::new(&each_major().remove(0));
    world.sql(&counted("BEFORE", "NEW.a % 1000 = 0"));
    let row = |i: usize| format!("{i:07},{}\n", "x".repeat(92));
    let path = world.file("rows.csv", (0..80_000).map(row).collect::<String>().as_bytes());
    let proxy =
        Proxy::start(&world, "no statement begins so", 0, Fate::Note, false).without_cancels();
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", &path, "--quiet", "--table", "t", "--method", "lanes", "--lanes", "2"])
        .args(["--lock-timeout", "2min", "--to", &proxy.target()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("record of another lane"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// How long a lane is stopped: long enough for the loader to check three times.
const STOPPED: Duration = Duration::from_secs(2);

/// Stops the backend that holds the lock for extending a table, and lets it go on after a while, or
/// at once if it does not hold the lock any more. Returns whether it held the lock while it was
/// stopped.
fn stop_one_that_grows_the_table(watcher: &mut Conn) -> bool {
    let holder = "SELECT pid FROM pg_locks WHERE locktype = 'extend' AND granted LIMIT 1";
    let mut holder = || {
        let rows = watcher.exec(holder).unwrap();
        rows.first().map(|row| row[0].as_ref().unwrap().parse::<u32>().unwrap())
    };
    let Some(pid) = holder() else { return false };
    let started = Instant::now();
    if !signal(pid, Signal::SIGSTOP) {
        return false;
    }
    let (released, wait) = channel();
    // In another thread: the stopped backend may hold a lock that the query of its locks needs.
    let resumed = thread::spawn(move || {
        let _ = wait.recv_timeout(STOPPED);
        signal(pid, Signal::SIGCONT)
    });
    let held = holder() == Some(pid) && started.elapsed() < STOPPED;
    if !held {
        let _ = released.send(());
    }
    resumed.join().unwrap() && held
}

/// Stops a lane while the others wait for it. Returns false if the load ended before one was caught.
fn hold_one_up(mut watcher: Conn, over: &AtomicBool) -> bool {
    while !over.load(Ordering::SeqCst) {
        if stop_one_that_grows_the_table(&mut watcher) {
            return true;
        }
    }
    false
}

/// Lanes wait for one another whenever the table is extended. Even if this takes long, it is not
/// taken for a deadlock.
#[test]
fn lanes_that_wait_for_the_table_to_grow_go_on() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    let row = |i: usize| format!("{i},{}\n", "x".repeat(500));
    let path = world.file("rows.csv", (0..100_000).map(row).collect::<String>().as_bytes());
    let arguments = [&path, "--table", "t", "--method", "lanes", "--lanes", "4"];
    // A load may end before one of its lanes is caught at this moment.
    for _ in 0..20 {
        world.sql("DROP TABLE IF EXISTS t; CREATE UNLOGGED TABLE t (a int, b text)");
        let watcher = Conn::open(&world.server.url("postgres")).unwrap();
        let over = AtomicBool::new(false);
        let (summary, caught) = thread::scope(|scope| {
            let catcher = scope.spawn(|| hold_one_up(watcher, &over));
            let summary = world.load(&arguments);
            over.store(true, Ordering::SeqCst);
            (summary, catcher.join().unwrap())
        });
        let summary = summary.unwrap_or_else(|said| panic!("{said}"));
        assert_eq!(summary["loaded"], 100_000);
        if caught {
            return;
        }
    }
    panic!("no lane was ever seen to hold the lock by which a table grows");
}

/// Lanes move a sequence once for all of them, before the first of them is prepared for the commit.
/// The summary has it as a step.
#[test]
fn lanes_move_a_sequence_once_before_they_commit() {
    let mut world = World::new(&each_major().remove(0));
    world.sql("CREATE TABLE t (a serial PRIMARY KEY, b text)");
    let row = |i: usize| format!("{i},{}\n", "x".repeat(90));
    let path = world.file("rows.csv", (1..=30_000).map(row).collect::<String>().as_bytes());
    let mut log = 0;
    world.log(&mut log);
    let lanes = ["--method", "lanes", "--lanes", "3"];
    let summary = world.load(&[&[&path, "--table", "t"], &lanes[..]].concat()).unwrap();
    let said = world.log(&mut log);
    let before = said.split("PREPARE TRANSACTION").next().unwrap();
    assert_eq!(before.matches("pg_catalog.setval('public.t_a_seq'").count(), 1, "{said}");
    let steps = summary["steps"].to_string();
    assert_eq!(steps.matches("sequence public.t_a_seq moved past 30000").count(), 1, "{steps}");
    assert_eq!(world.sql("SELECT nextval('t_a_seq')"), "30001");
}

/// A trigger changes the same row for two lanes that commit several times. The second lane waits for
/// the first one, which commits when there is more input, and the load goes on.
#[test]
fn a_lane_that_waits_for_the_next_commit_of_another_goes_on() {
    let mut world = World::new(&each_major().remove(0));
    world.sql(&counted("BEFORE", "NEW.a IN (100, 6000)"));
    let row = |i: usize| format!("{i:07},{}\n", "x".repeat(92));
    let lanes = ["load", "-", "--quiet", "--table", "t", "--method", "lanes", "--lanes", "2"];
    let once = ["--once", "--source-name", "rows", "--commit-every", "768kB"];
    let mut child = world.start(&[&lanes[..], &once].concat());
    let mut input = child.stdin.take().unwrap();
    // A chunk of 512 kB for each lane, and the beginning of a third one.
    input.write_all((0..12_000).map(row).collect::<String>().as_bytes()).unwrap();
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until(|| "no lane waits".into(), || world.sql(waits) == "1");
    thread::sleep(STOPPED);
    assert!(child.try_wait().unwrap().is_none(), "{:?}", child.wait_with_output());
    input.write_all((12_000..80_000).map(row).collect::<String>().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) || ' ' || (SELECT n FROM totals) FROM t"), "80000 2");
}

/// A trigger changes the same row for two lanes, and neither commits before the end of the input. Then
/// the first one commits, so that the second one goes on.
#[test]
fn a_lane_that_waits_at_the_end_of_the_input_goes_on() {
    let mut world = World::new(&each_major().remove(0));
    let row = |i: usize| format!("{i:07},{}\n", "x".repeat(92));
    let path = world.file("rows.csv", (0..40_000).map(row).collect::<String>().as_bytes());
    for time in ["BEFORE", "AFTER"] {
        world.sql("DROP SCHEMA IF EXISTS pgsluice_loads CASCADE; DROP TABLE IF EXISTS t, totals");
        world.sql(&counted(time, "NEW.a % 1000 = 0"));
        let lanes = ["--method", "lanes", "--lanes", "2", "--once", "--commit-every", "1GB"];
        let summary = world.load(&[&[&path, "--table", "t"], &lanes[..]].concat());
        let summary = summary.unwrap_or_else(|said| panic!("{time}: {said}"));
        assert_eq!(summary["lanes"], 2, "{time}");
        let counts = "SELECT count(*) || ' ' || (SELECT n FROM totals) FROM t";
        assert_eq!(world.sql(counts), "40000 40", "{time}");
    }
}
