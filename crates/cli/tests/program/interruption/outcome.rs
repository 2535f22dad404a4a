//! The connection is lost at COMMIT, and the server cannot be reached for a while, or for good.

use super::commit::{command, left, world};
use super::{ended, ROWS};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{signal, wait_until, Signal, World};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the server cannot be reached.
const GONE: Duration = Duration::from_secs(2);

/// What becomes of the transaction, and its rows.
const OUTCOMES: [(Fate, &str, usize); 2] =
    [(Fate::CutAfter, "committed", ROWS), (Fate::CutBefore, "aborted", 0)];

/// Starts a load into the empty table. It loses its connection at its COMMIT, and cannot open another
/// one before the proxy is opened again.
fn lost(world: &mut World, file: &str, fate: Fate) -> (Proxy, Child) {
    world.sql("TRUNCATE t");
    let proxy = Proxy::start(world, "COMMIT", 0, fate, true);
    let mut load = command(file, &proxy, &["--method", "copy-csv"]);
    let child = load.stderr(Stdio::piped()).spawn().unwrap();
    proxy.wait();
    (proxy, child)
}

/// The query in the message gives the answer.
fn can_be_found_out(world: &mut World, said: &str, status: &str, rows: usize) {
    let question = said.split_once("ask the server: ").unwrap().1.lines().next().unwrap();
    // The server may not have noticed yet that its client is gone.
    let over = || world.sql(question) != "in progress";
    wait_until(|| format!("{question}: in progress"), over);
    assert_eq!(world.sql(question), status, "{question}");
    assert_eq!(left(world).0, rows);
}

/// If the connection is lost at COMMIT and the server cannot be reached for a while, whether it
/// restarts or not, the loader asks it when it is back. The exit code says whether the rows are loaded.
#[test]
fn a_server_that_is_back_after_a_while_is_asked() {
    let (mut world, file) = world();
    // The server was started, and has made its latest checkpoint, clearly before the load.
    sleep(GONE);
    for (fate, status, rows) in OUTCOMES {
        for restarts in [false, true] {
            let (proxy, child) = lost(&mut world, &file, fate);
            sleep(GONE);
            if restarts {
                world.server.kill9().unwrap();
                world.restart_with(&[]);
            }
            proxy.reopen();
            let (code, said) = ended(child);
            let what = format!("{status}, restarts: {restarts}: {said}");
            assert_eq!(code, Some(if rows > 0 { 0 } else { 5 }), "{what}");
            assert!(!said.contains("changed:"), "{what}");
            assert_eq!(left(&mut world).0, rows, "{what}");
        }
    }
}

/// If the connection is lost at COMMIT and no new one is possible, since the role may not log in any
/// more, the message says that the outcome is unknown. It has a query that shows the outcome later.
#[test]
fn where_nobody_can_be_asked_the_outcome_is_called_unknown() {
    let (mut world, file) = world();
    for (fate, status, rows) in OUTCOMES {
        let (proxy, child) = lost(&mut world, &file, fate);
        world.sql("ALTER ROLE postgres NOLOGIN");
        proxy.reopen();
        let (code, said) = ended(child);
        world.sql("ALTER ROLE postgres LOGIN");
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("the outcome is unknown"), "{said}");
        can_be_found_out(&mut world, &said, status, rows);
    }
}

/// If the user stops a load that waits for a server to ask, it ends at once. The message has the query
/// that shows the outcome later.
#[test]
fn a_wait_for_a_server_to_ask_can_be_stopped() {
    let (mut world, file) = world();
    for (fate, status, rows) in OUTCOMES {
        let (_proxy, child) = lost(&mut world, &file, fate);
        sleep(GONE);
        let stopped = Instant::now();
        assert!(signal(child.id(), Signal::SIGINT));
        let (code, said) = ended(child);
        assert!(stopped.elapsed() < Duration::from_secs(40), "{said}");
        assert_eq!(code, Some(7), "{said}");
        assert!(said.contains("changed: perhaps: the rows of this transaction"), "{said}");
        can_be_found_out(&mut world, &said, status, rows);
    }
}

/// If the server is not back after a minute, the message says that the outcome is unknown.
#[test]
#[ignore = "a minute"]
fn the_wait_for_a_server_to_ask_has_an_end() {
    let (mut world, file) = world();
    let (_proxy, child) = lost(&mut world, &file, Fate::CutAfter);
    let (code, said) = ended(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the outcome is unknown"), "{said}");
    can_be_found_out(&mut world, &said, "committed", ROWS);
}
