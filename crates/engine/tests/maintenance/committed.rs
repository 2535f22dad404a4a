//! Objects are taken down in a committed transaction, as lanes need it, and are put back from the
//! ledger, as `repair` does it.

use crate::cluster::*;
use crate::support::wait_until;
use pgsluice_engine::internals::ledger;
use pgsluice_engine::internals::maintenance::{put_back_committed, take_down};
use pgsluice_engine::internals::maintenance::{Course, Outcome, Request};
use pgsluice_engine::internals::Conn;
use pgsluice_engine::{Error, Kind};
use pgsluice_pgserver::Server;
use std::sync::atomic::{AtomicU32, Ordering};
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
    entries.iter().flat_map(|e| put_back_committed(&open, 2, e, None, &|| false).unwrap()).collect()
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
    let error = put_back_committed(&open, 2, &entries[0], None, &|| false).unwrap_err();
    assert_eq!(
        error.message(),
        "the table \"Odd Schema\".\"My Table\" is now called \"Odd Schema\".other, \
         so that the recorded statements do not fit it"
    );
    conn.exec("DROP TABLE \"Odd Schema\".other").unwrap();
    assert!(put_all_back(&url).iter().all(|(_, r)| r.as_ref().is_ok_and(|r| r.was_back)));
    assert_eq!(still_down(&mut conn), 0);
}

/// A table of the same name that is another one, as after a restore from a dump, is not taken for a
/// dropped one: the record of its objects is kept.
#[test]
fn a_table_of_a_restored_dump_is_refused() {
    let servers = servers();
    let (url, mut conn) = zoo(servers.last().unwrap());
    let oid = oid(&mut conn, TABLE);
    take_down_and_vanish(&mut conn, oid, &everything());
    let before = still_down(&mut conn);
    conn.exec("UPDATE pgsluice_loads.taken_down SET relation = 4000000000").unwrap();
    let (entries, _) = ledger::still_down(&mut conn).unwrap();
    let error =
        put_back_committed(&|| Conn::open(&url), 2, &entries[0], None, &|| false).unwrap_err();
    assert!(error.message().contains("restored from a dump"), "{error}");
    assert_eq!(still_down(&mut conn), before);
}

/// A trigger that was dropped while it was disabled, or whose partition was dropped, is settled. The
/// trigger of a partition that was detached is enabled. That of a renamed partition is an error until
/// the partition has its name back.
#[test]
fn triggers_of_dropped_and_detached_partitions_are_settled() {
    let servers = servers();
    let url = database(servers.last().unwrap());
    let mut conn = Conn::open(&url).unwrap();
    conn.exec(
        "CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
         CREATE TABLE p (a int, b int) PARTITION BY LIST (a); \
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); \
         CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2); \
         CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3); \
         CREATE TRIGGER g AFTER INSERT ON p FOR EACH ROW EXECUTE FUNCTION fire(); \
         CREATE TRIGGER h AFTER INSERT ON p FOR EACH ROW EXECUTE FUNCTION fire(); \
         CREATE TRIGGER own AFTER INSERT ON p2 FOR EACH ROW EXECUTE FUNCTION fire()",
    )
    .unwrap();
    let oid = oid(&mut conn, "p");
    assert_eq!(take_down_and_vanish(&mut conn, oid, &everything()), 9);
    conn.exec(
        "DROP TABLE p1; ALTER TABLE p DETACH PARTITION p2; DROP TRIGGER h ON p; \
         ALTER TABLE p3 RENAME TO p4",
    )
    .unwrap();
    let outcomes = put_all_back(&url);
    let failed: Vec<_> = outcomes.iter().filter(|(_, r)| r.is_err()).map(|(o, _)| o).collect();
    assert_eq!(failed, ["trigger g on public.p3"], "{outcomes:?}");
    let of_p1 = outcomes.iter().find(|(object, _)| object == "trigger g on public.p1").unwrap();
    assert_eq!(of_p1.1.as_ref().unwrap().object, "trigger g on public.p1 (was dropped)");
    assert_eq!(still_down(&mut conn), 1);
    conn.exec("ALTER TABLE p4 RENAME TO p3").unwrap();
    assert!(put_all_back(&url).iter().all(|(_, r)| r.is_ok()));
    assert_eq!(still_down(&mut conn), 0);
    let states =
        "SELECT string_agg(format('%s %s %s', tgrelid::regclass, tgname, tgenabled), ', ' \
        ORDER BY tgrelid::regclass::text, tgname) FROM pg_trigger WHERE NOT tgisinternal";
    assert_eq!(one(&mut conn, states), "p g O, p2 own O, p3 g O");
}

/// A partition that is attached while a trigger of its parent is disabled gets the trigger disabled. It
/// is enabled there as on the parent, also on the partitions of the new one. Where it was disabled
/// before, it stays so.
#[test]
fn triggers_of_attached_partitions_are_enabled() {
    for server in servers().iter() {
        let url = database(server);
        let mut conn = Conn::open(&url).unwrap();
        conn.exec(
            "CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
             CREATE TABLE p (a int, b int) PARTITION BY LIST (a); \
             CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); \
             CREATE TABLE p2 (LIKE p); CREATE TABLE p3 (LIKE p) PARTITION BY LIST (b); \
             CREATE TABLE p3_1 PARTITION OF p3 FOR VALUES IN (1); \
             CREATE TRIGGER g AFTER INSERT ON p FOR EACH ROW EXECUTE FUNCTION fire(); \
             CREATE TRIGGER h AFTER INSERT ON p FOR EACH ROW EXECUTE FUNCTION fire(); \
             ALTER TABLE p ENABLE ALWAYS TRIGGER g; ALTER TABLE p1 DISABLE TRIGGER g; \
             ALTER TABLE p DISABLE TRIGGER h",
        )
        .unwrap();
        let oid = oid(&mut conn, "p");
        assert_eq!(take_down_and_vanish(&mut conn, oid, &everything()), 1);
        conn.exec(
            "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2); \
             ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)",
        )
        .unwrap();
        let states = "SELECT string_agg(format('%s %s', tgrelid::regclass, tgenabled), ', ' \
            ORDER BY tgrelid::regclass::text) FROM pg_trigger WHERE tgname = ";
        let of = |conn: &mut Conn, name: &str| one(conn, &format!("{states}'{name}'"));
        assert_eq!(of(&mut conn, "g"), "p D, p1 D, p2 D, p3 D, p3_1 D");
        let outcomes = put_all_back(&url);
        assert!(outcomes.iter().all(|(_, r)| r.is_ok()), "{outcomes:?}");
        assert_eq!(still_down(&mut conn), 0);
        assert_eq!(of(&mut conn, "g"), "p A, p1 D, p2 A, p3 A, p3_1 A");
        assert_eq!(of(&mut conn, "h"), "p D, p1 D, p2 D, p3 D, p3_1 D");
    }
}

/// An index whose column was dropped while it was missing is settled, and does not keep the others
/// down. If the column was renamed, that is an error.
#[test]
fn an_index_of_a_dropped_column_is_settled() {
    let servers = servers();
    let url = database(servers.last().unwrap());
    let mut conn = Conn::open(&url).unwrap();
    conn.exec(
        "CREATE TABLE t (a int, b int, c int); \
         CREATE INDEX t_a ON t (c, a); CREATE INDEX t_b ON t (b); CREATE INDEX t_c ON t (c)",
    )
    .unwrap();
    let oid = oid(&mut conn, "t");
    assert_eq!(take_down_and_vanish(&mut conn, oid, &everything()), 3);
    conn.exec("ALTER TABLE t DROP COLUMN a; ALTER TABLE t RENAME COLUMN b TO d").unwrap();
    let outcomes = put_all_back(&url);
    let failed: Vec<_> = outcomes.iter().filter(|(_, r)| r.is_err()).map(|(o, _)| o).collect();
    assert_eq!(failed, ["index public.t_b"], "{outcomes:?}");
    conn.exec("ALTER TABLE t RENAME COLUMN d TO b").unwrap();
    assert!(put_all_back(&url).iter().all(|(_, r)| r.is_ok()));
    assert_eq!(still_down(&mut conn), 0);
    let indexes = "SELECT string_agg(indexname, ' ' ORDER BY indexname) FROM pg_indexes \
        WHERE tablename = 't'";
    assert_eq!(one(&mut conn, indexes), "t_b t_c");
}

/// A database with a table `t` whose index was dropped, and an empty table `new` with the same
/// columns.
fn without_an_index(server: &Server) -> (String, Conn) {
    let url = database(server);
    let mut conn = Conn::open(&url).unwrap();
    conn.exec("CREATE TABLE t (a int); CREATE INDEX t_a ON t (a); CREATE TABLE new (a int)")
        .unwrap();
    let oid = oid(&mut conn, "t");
    assert_eq!(take_down_and_vanish(&mut conn, oid, &everything()), 1);
    (url, conn)
}

/// Puts everything back while `conn` holds the locks of these statements, which it commits when they
/// have been waited for.
fn put_back_behind(
    conn: &mut Conn,
    held: &str,
    open: &(dyn Fn() -> Result<Conn, Error> + Sync),
) -> Result<Vec<Outcome>, Error> {
    let (entries, _) = ledger::still_down(conn).unwrap();
    conn.exec(&format!("BEGIN; {held}")).unwrap();
    std::thread::scope(|s| {
        let work = s.spawn(|| put_back_committed(open, 2, &entries[0], None, &|| false));
        let waits = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database \
            WHERE NOT granted AND datname = current_database()";
        wait_until(|| "no lock is waited for".into(), || one(conn, waits) != "0");
        sleep(Duration::from_millis(500));
        conn.exec("COMMIT").unwrap();
        work.join().unwrap()
    })
}

/// Another table gets the name while its lock is waited for. No index is built on that table. The
/// index stays recorded, and is put back when its own table has the name again.
#[test]
fn no_index_is_built_on_another_table_that_has_got_the_name() {
    let servers = servers();
    let (url, mut conn) = without_an_index(servers.last().unwrap());
    let swap = "ALTER TABLE t RENAME TO old; ALTER TABLE new RENAME TO t";
    let outcomes = put_back_behind(&mut conn, swap, &|| Conn::open(&url)).unwrap();
    let error = outcomes[0].1.as_ref().unwrap_err();
    assert!(error.message().contains("was renamed or replaced meanwhile"), "{error}");
    assert_eq!(one(&mut conn, "SELECT to_regclass('t_a') IS NULL"), "t");
    assert_eq!(still_down(&mut conn), 1);
    conn.exec("ALTER TABLE t RENAME TO new; ALTER TABLE old RENAME TO t").unwrap();
    assert!(put_all_back(&url).iter().all(|(_, r)| r.is_ok()));
    let table = "SELECT tablename FROM pg_indexes WHERE indexname = 't_a'";
    assert_eq!(one(&mut conn, table), "t");
}

/// A timeout of the role does not end the wait for a session that has locked the table.
#[test]
fn a_timeout_of_the_role_leaves_nothing_missing() {
    let servers = servers();
    let (url, mut conn) = without_an_index(servers.last().unwrap());
    let open = || -> Result<Conn, Error> {
        let mut conn = Conn::open(&url)?;
        conn.exec("SET lock_timeout = '200ms'")?;
        Ok(conn)
    };
    let outcomes = put_back_behind(&mut conn, "LOCK TABLE t", &open).unwrap();
    assert!(outcomes.iter().all(|(_, r)| r.is_ok()), "{outcomes:?}");
    assert_eq!(still_down(&mut conn), 0);
}

/// If only one connection is to be had, it builds everything.
#[test]
fn one_connection_builds_everything() {
    let servers = servers();
    let (url, mut conn) = zoo(servers.last().unwrap());
    let oid = oid(&mut conn, TABLE);
    let before = snapshot(&mut conn, oid);
    take_down_and_vanish(&mut conn, oid, &everything());
    let (entries, _) = ledger::still_down(&mut conn).unwrap();
    let opened = AtomicU32::new(0);
    let open = || match opened.fetch_add(1, Ordering::Relaxed) {
        0 => Conn::open(&url),
        _ => Err(pgsluice_engine::Error::new("no connection is left")),
    };
    let outcomes = put_back_committed(&open, 3, &entries[0], None, &|| false).unwrap();
    assert!(outcomes.iter().all(|(_, r)| r.is_ok()), "{outcomes:?}");
    assert!(opened.load(Ordering::Relaxed) > 1, "it tried to open others");
    assert_same(&before, &snapshot(&mut conn, oid));
}

/// A load with `--once` that is stopped while it recreates objects begins no other one. What is
/// missing stays recorded.
#[test]
fn nothing_is_begun_after_a_stop() {
    let servers = servers();
    let (url, mut conn) = zoo(servers.last().unwrap());
    let oid = oid(&mut conn, TABLE);
    let before = snapshot(&mut conn, oid);
    let down = take_down_and_vanish(&mut conn, oid, &everything());
    let count = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'Odd Schema'";
    let kept: u32 = one(&mut conn, count).parse().unwrap();
    let (entries, _) = ledger::still_down(&mut conn).unwrap();
    // The user stops it during the first build.
    let begun = AtomicU32::new(0);
    let stopped = || begun.fetch_add(1, Ordering::Relaxed) > 0;
    let open = || Conn::open(&url);
    let outcomes = put_back_committed(&open, 1, &entries[0], None, &stopped).unwrap();
    let stopped = |r: &Result<_, Error>| r.as_ref().is_err_and(|e| e.kind() == Kind::Cancelled);
    assert!(outcomes.iter().all(|(_, r)| stopped(r)), "{outcomes:?}");
    assert_eq!((outcomes.len(), still_down(&mut conn)), (down, down));
    assert_eq!(one(&mut conn, count), (kept + 1).to_string());
    assert!(put_all_back(&url).iter().all(|(_, r)| r.is_ok()));
    assert_same(&before, &snapshot(&mut conn, oid));
}

/// If a connection is lost during a build, only the index that it was building stays missing.
#[test]
fn a_lost_connection_costs_only_its_own_build() {
    let servers = servers();
    // The first connection, which is needed until the end, and another one.
    for doomed in [0, 1] {
        let url = database(servers.last().unwrap());
        let mut conn = Conn::open(&url).unwrap();
        conn.exec(
            "CREATE TABLE t (a int, b int, c int, d int, e int); CREATE INDEX ON t (a); \
             CREATE INDEX ON t (b); CREATE INDEX ON t (c); CREATE INDEX ON t (d); \
             CREATE INDEX ON t (e); CREATE SEQUENCE deaths; \
             CREATE FUNCTION die() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN \
               IF current_setting('application_name') = 'doomed' THEN \
                 PERFORM nextval('public.deaths'), pg_terminate_backend(pg_backend_pid()); \
               END IF; \
               LOOP PERFORM pg_sleep(0.01); \
                 EXIT WHEN (SELECT is_called FROM public.deaths); END LOOP; END $$",
        )
        .unwrap();
        let oid = oid(&mut conn, "t");
        assert_eq!(take_down_and_vanish(&mut conn, oid, &everything()), 5);
        // No build goes on before that of the other connection has begun and failed.
        conn.exec(
            "CREATE EVENT TRIGGER die ON ddl_command_start WHEN TAG IN ('CREATE INDEX') \
             EXECUTE FUNCTION die()",
        )
        .unwrap();
        let (entries, _) = ledger::still_down(&mut conn).unwrap();
        let opened = AtomicU32::new(0);
        let open = || -> Result<Conn, pgsluice_engine::Error> {
            let mut conn = Conn::open(&url)?;
            if opened.fetch_add(1, Ordering::Relaxed) == doomed {
                conn.exec("SET application_name = 'doomed'")?;
            }
            Ok(conn)
        };
        let outcomes = put_back_committed(&open, 2, &entries[0], None, &|| false).unwrap();
        let failed = outcomes.iter().filter(|(_, r)| r.is_err()).count();
        assert_eq!((outcomes.len(), failed), (5, 1), "{outcomes:?}");
        conn.exec("DROP EVENT TRIGGER die").unwrap();
        assert!(put_all_back(&url).iter().all(|(_, r)| r.is_ok()));
        assert_eq!(still_down(&mut conn), 0);
    }
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
                put_back_committed(&open, 2, &taken.entry, None, &|| false).map(drop)
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
