//! Lanes that hold one another up: for good, and for a moment.

use crate::common::{each_major, signal, Signal, World};
use pgsluice_engine::internals::Conn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A key in two lanes: the server lets one lane wait for the other's commit,
/// which comes only when all lanes are done.
#[test]
fn lanes_that_wait_for_one_another_are_told_apart() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    // A row that is there keeps the key from being rebuilt after the rows.
    world.sql("CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (-1, '')");
    let mut bytes = Vec::new();
    for i in 0..300_000 {
        bytes.extend_from_slice(format!("{i},some words to fill the row with\n").as_bytes());
    }
    // The same keys again, in chunks that the other lane has.
    let again = bytes.clone();
    bytes.extend_from_slice(&again);
    let path = world.file("twice.csv", &bytes);
    let said = world.load(&[&path, "--table", "t", "--method", "lanes"]).unwrap_err();
    assert!(said.contains("another lane") || said.contains("duplicate key"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
}

/// The backend that holds the lock of a table that grows, stopped while it does, if one is caught.
fn stop_one_that_grows_the_table(watcher: &mut Conn) -> Option<u32> {
    let holder = "SELECT pid FROM pg_locks WHERE locktype = 'extend' AND granted LIMIT 1";
    let mut holder = || {
        let rows = watcher.exec(holder).unwrap();
        rows.first().map(|row| row[0].as_ref().unwrap().parse::<u32>().unwrap())
    };
    let pid = holder()?;
    if !signal(pid, Signal::SIGSTOP) {
        return None;
    }
    // It may have let go before it was stopped.
    if holder() == Some(pid) {
        return Some(pid);
    }
    signal(pid, Signal::SIGCONT);
    None
}

/// Stops one of the lanes in the moment in which the others wait for it, for long enough that the
/// loader looks three times. False if the load was over before one was caught.
fn hold_one_up(mut watcher: Conn, over: &AtomicBool) -> bool {
    while !over.load(Ordering::SeqCst) {
        if let Some(pid) = stop_one_that_grows_the_table(&mut watcher) {
            thread::sleep(Duration::from_secs(2));
            return signal(pid, Signal::SIGCONT);
        }
    }
    false
}

/// Lanes wait for one another whenever the table grows; where that takes long it is no knot.
#[test]
fn lanes_that_wait_for_the_table_to_grow_go_on() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    let row = |i: usize| format!("{i},{}\n", "x".repeat(500));
    let path = world.file("rows.csv", (0..100_000).map(row).collect::<String>().as_bytes());
    let arguments = [&path, "--table", "t", "--method", "lanes", "--lanes", "4"];
    // A load may end before one of its lanes is caught in the moment.
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
