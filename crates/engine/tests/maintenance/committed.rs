//! Objects are taken down in a committed transaction, as lanes need it, and are put back from the
//! ledger, as `repair` does it.

use crate::cluster::*;
use pgsluice_engine::internals::ledger;
use pgsluice_engine::internals::maintenance::{put_back_committed, take_down, Outcome};
use pgsluice_engine::internals::maintenance::{Course, Request};
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::Server;
use std::thread::sleep;
use std::time::Duration;

/// Takes everything down and commits, as if the loader had died right after.
fn take_down_and_vanish(conn: &mut Conn, oid: u32, request: &Request) -> usize {
    let ledger = ledger::ensure(conn).unwrap();
    conn.exec("BEGIN").unwrap();
    let taken = take_down(conn, oid, request, &ledger).unwrap();
    conn.exec("COMMIT").unwrap();
    taken.entry.choices.len()
}

fn put_all_back(url: &str) -> Vec<Outcome> {
    let mut conn = Conn::open(url).unwrap();
    let (entries, _) = ledger::still_down(&mut conn).unwrap();
    let open = || Conn::open(url);
    entries.iter().flat_map(|e| put_back_committed(&open, 2, e, None).unwrap()).collect()
}

/// Everything that was taken down is put back from the ledger, under any search_path, and the
/// catalogs are as before. A second run has nothing to do.
#[test]
fn the_ledger_brings_everything_back() {
    for server in servers().iter() {
        let (url, mut conn) = zoo(server);
        let oid = oid(&mut conn, TABLE);
        let before = snapshot(&mut conn, oid);
        // Another search path must not change what the recorded names mean.
        conn.exec("SET search_path = \"Odd Schema\"").unwrap();
        assert_eq!(take_down_and_vanish(&mut conn, oid, &everything()), 18);
        conn.exec("RESET search_path").unwrap();
        assert_eq!(still_down(&mut conn), 18);
        let outcomes = put_all_back(&url);
        assert!(
            outcomes.iter().all(|(_, r)| r.as_ref().is_ok_and(|r| !r.was_back)),
            "{outcomes:?}"
        );
        assert_same(&before, &snapshot(&mut conn, oid));
        assert_eq!(still_down(&mut conn), 0);
        assert!(put_all_back(&url).is_empty(), "a second time there is nothing to do");
    }
}

/// Objects that a user or an interrupted run has put back are left alone. An object that cannot be
/// put back is reported, and does not keep the others down.
#[test]
fn what_is_back_is_left_alone_and_what_fails_is_said() {
    let servers = servers();
    let server = servers.last().unwrap();
    let (url, mut conn) = zoo(server);
    let oid = oid(&mut conn, TABLE);
    let before = snapshot(&mut conn, oid);
    take_down_and_vanish(&mut conn, oid, &everything());
    conn.exec(
        "SET search_path = \"Odd Schema\"; CREATE INDEX plain_ts ON \"My Table\" (at DESC, p); \
         CREATE INDEX plain_c ON \"My Table\" (c); CREATE INDEX by_hash ON \"My Table\" (d); \
         RESET search_path",
    )
    .unwrap();
    let outcomes = put_all_back(&url);
    let of = |name: &str| &outcomes.iter().find(|(object, _)| object.ends_with(name)).unwrap().1;
    let failed: Vec<_> = outcomes.iter().filter(|(_, r)| r.is_err()).map(|(o, _)| o).collect();
    assert_eq!(failed, ["index \"Odd Schema\".by_hash"]);
    assert_eq!(of("by_hash").as_ref().unwrap_err().sqlstate(), "42P07");
    assert!(!of("plain_c").as_ref().unwrap().was_back, "its comment was missing");
    assert_eq!(still_down(&mut conn), 1);
    conn.exec("DROP INDEX \"Odd Schema\".by_hash").unwrap();
    assert!(put_all_back(&url).iter().all(|(_, r)| r.is_ok()));
    // The column was renamed after the index had been created, so the user's index has the new
    // name.
    let fixed = "ALTER TABLE \"Odd Schema\".plain_ts RENAME COLUMN at TO ts";
    let _ = conn.exec(fixed);
    assert_same(&before, &snapshot(&mut conn, oid));
}

/// If the table was renamed, nothing is put back, and the message says why. If it was dropped,
/// nothing stays down in the ledger.
#[test]
fn a_renamed_table_is_refused_and_a_dropped_one_settled() {
    let servers = servers();
    let server = servers.last().unwrap();
    let (url, mut conn) = zoo(server);
    let oid = oid(&mut conn, TABLE);
    take_down_and_vanish(&mut conn, oid, &everything());
    conn.exec(&format!("ALTER TABLE {TABLE} RENAME TO other")).unwrap();
    let (entries, _) = ledger::still_down(&mut conn).unwrap();
    let open = || Conn::open(&url);
    let error = put_back_committed(&open, 2, &entries[0], None).unwrap_err();
    assert_eq!(
        error.message(),
        "the table \"Odd Schema\".\"My Table\" is now called \"Odd Schema\".other, \
         so that the recorded statements do not fit it"
    );
    conn.exec("DROP TABLE \"Odd Schema\".other").unwrap();
    assert!(put_all_back(&url).iter().all(|(_, r)| r.as_ref().is_ok_and(|r| r.was_back)));
    assert_eq!(still_down(&mut conn), 0);
}

/// For lanes, the only indexes that are taken down are those that cannot refuse a row. If nothing
/// can be recorded, nothing is taken down.
#[test]
fn lanes_take_down_only_what_cannot_refuse_a_row() {
    let servers = servers();
    let server = servers.last().unwrap();
    let (_, mut conn) = zoo(server);
    let oid = oid(&mut conn, TABLE);
    let request = Request { course: Course::Lanes { recorded: true }, ..everything() };
    conn.exec("BEGIN").unwrap();
    let ledger = ledger::State::Unusable("for this test".into());
    let taken = take_down(&mut conn, oid, &request, &ledger).unwrap();
    conn.exec("ROLLBACK").unwrap();
    let mut down: Vec<&str> = taken.entry.choices.iter().map(|c| c.object.as_str()).collect();
    down.retain(|o| !o.starts_with("trigger"));
    let expected = ["by_brin", "plain_c", "plain_ts"];
    assert_eq!(down, expected.map(|n| format!("index \"Odd Schema\".{n}")));
    let unrecorded = Request { course: Course::Lanes { recorded: false }, ..everything() };
    conn.exec("BEGIN").unwrap();
    let taken = take_down(&mut conn, oid, &unrecorded, &ledger).unwrap();
    conn.exec("ROLLBACK").unwrap();
    assert!(taken.entry.choices.is_empty());
}

/// The server is killed at some moment of taking down and putting back. After its restart, the
/// ledger says what is down, and all of it is put back.
#[test]
fn a_server_killed_at_any_moment_loses_nothing() {
    let installation = each_major().pop().unwrap();
    let mut server = start(&installation, &[]);
    let (url, mut conn) = zoo(&server);
    let oid = oid(&mut conn, TABLE);
    conn.exec(
        "INSERT INTO \"Odd Schema\".\"My Table\" (\"Id\", b, c, p) \
        SELECT i, 'k' || i % 1000, i, i % 1000 FROM generate_series(1, 20000) AS i",
    )
    .unwrap();
    ledger::ensure(&mut conn).unwrap();
    let before = snapshot(&mut conn, oid);
    let mut seen_down = 0;
    for round in 0..8_u64 {
        // In one round, it is killed between the two, however slow or fast the machine is.
        let sure = round == 0;
        let work = std::thread::spawn({
            let url = url.clone();
            move || -> Result<(), pgsluice_engine::Error> {
                let mut conn = Conn::open(&url)?;
                let ledger = ledger::ensure(&mut conn)?;
                conn.exec("BEGIN")?;
                let taken = take_down(&mut conn, oid, &everything(), &ledger)?;
                conn.exec("COMMIT")?;
                if sure {
                    return Ok(());
                }
                let open = || Conn::open(&url);
                put_back_committed(&open, 2, &taken.entry, None).map(drop)
            }
        });
        sleep(Duration::from_millis(10 + 45 * round));
        while sure && !work.is_finished() {
            sleep(Duration::from_millis(1));
        }
        kill_and_restart(&mut server);
        let _ = work.join().unwrap();
        let mut conn = Conn::open(&url).unwrap();
        seen_down += still_down(&mut conn);
        let outcomes = put_all_back(&url);
        assert!(outcomes.iter().all(|(_, r)| r.is_ok()), "{outcomes:?}");
        assert_same(&before, &snapshot(&mut conn, oid));
    }
    assert!(seen_down > 0, "no kill hit the time between: the test proves nothing");
}

fn kill_and_restart(server: &mut Server) {
    server.kill9().unwrap();
    server.restart().unwrap();
}
