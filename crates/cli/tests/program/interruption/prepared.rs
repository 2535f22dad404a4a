//! Lanes that are prepared to commit together, and one of which loses its session or is ended by
//! another session. A standby that does not exist makes the last PREPARE wait.

use super::commit::{self, command};
use super::ended;
use super::file;
use crate::common::proxy::{Fate, Proxy};
use crate::common::{each_major, signal, wait_until, Signal, World};
use pgsluice_engine::internals::Conn;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};

/// The sessions that wait for the standby.
const WAITS: &str = "pg_stat_activity WHERE wait_event = 'SyncRep'";

const ROWS: &str = "60000";

/// Starts a load by two lanes, of which the second one waits for the standby in its PREPARE.
fn prepared() -> (World, Child) {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("ALTER SYSTEM SET synchronous_standby_names = 'nowhere'");
    // Only the transactions of the second lane wait, which has the later session.
    world.restart_with(&[("synchronous_commit", "local")]);
    world.sql("SET application_name = 'test'");
    world.sql(
        "CREATE TABLE t (id int, k int, b text); CREATE INDEX t_k ON t (k);
         CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF EXISTS (SELECT FROM pg_stat_activity a JOIN pg_stat_activity b
             ON a.backend_start < b.backend_start
             WHERE a.application_name = 'pgsluice' AND b.pid = pg_backend_pid())
           THEN PERFORM set_config('synchronous_commit', 'on', true); END IF; RETURN NULL; END $$;
         CREATE TRIGGER waits BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION waits()",
    );
    let file = file(&world);
    let all = ["load", &file, "--table", "t", "--quiet", "--method", "lanes", "--lanes", "2"];
    let child = world.start(&all);
    wait_for_waits(&mut world, "1");
    assert_eq!(world.sql("SELECT count(*) FROM pg_prepared_xacts"), "2");
    (world, child)
}

fn wait_for_waits(world: &mut World, count: &str) {
    let waits = format!("SELECT count(*) FROM {WAITS}");
    wait_until(|| format!("{count} sessions do not wait"), || world.sql(&waits) == count);
}

/// The number of rows, of prepared transactions and of indexes.
fn left(world: &mut World) -> String {
    world.sql(
        "SELECT concat_ws(' ', (SELECT count(*) FROM t), (SELECT count(*) FROM pg_prepared_xacts), \
         (SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass))",
    )
}

/// Terminates the session of the first lane, which is prepared and idle.
fn terminate_first(world: &mut World) {
    let idle = "pg_stat_activity WHERE application_name = 'pgsluice' AND state = 'idle'";
    assert_eq!(world.sql(&format!("SELECT count(pg_terminate_backend(pid)) FROM {idle}")), "1");
    let idle = format!("SELECT count(*) FROM {idle}");
    wait_until(|| "the session stays".into(), || world.sql(&idle) == "0");
}

/// The session of a prepared lane is terminated before its COMMIT PREPARED. The loader commits the
/// lane over another connection.
#[test]
fn a_prepared_lane_whose_session_is_terminated_is_committed() {
    let (mut world, child) = prepared();
    terminate_first(&mut world);
    world.sql(&format!("SELECT pg_cancel_backend(pid) FROM {WAITS}"));
    let (code, said) = ended(child);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(left(&mut world), format!("{ROWS} 0 1"));
}

/// The sessions of both lanes are terminated while the second one is being prepared. The loader rolls
/// both lanes back over other connections. If there are none, the message names both.
#[test]
fn lanes_whose_sessions_are_terminated_are_rolled_back_or_named() {
    for reachable in [true, false] {
        let (mut world, child) = prepared();
        let mut other = Conn::open(&world.server.url("template1")).unwrap();
        other.exec("SET application_name = 'test'").unwrap();
        let allow = format!("ALTER DATABASE postgres ALLOW_CONNECTIONS {reachable}");
        other.exec(&allow).unwrap();
        terminate_first(&mut world);
        world.sql(&format!("SELECT pg_terminate_backend(pid) FROM {WAITS}"));
        let (code, said) = ended(child);
        if reachable {
            assert!(code == Some(5) && !said.contains("changed:"), "{said}");
        } else {
            let named = world.sql(
                "SELECT string_agg(format('ROLLBACK PREPARED %L', gid), '; ' ORDER BY gid) \
                 FROM pg_prepared_xacts",
            );
            assert_eq!(named.matches("ROLLBACK").count(), 2, "{named}");
            let left = format!("changed: perhaps left: {named}");
            assert!(code == Some(1) && said.contains(&left), "{said}");
            other.exec("ALTER DATABASE postgres ALLOW_CONNECTIONS true").unwrap();
            world.repair();
        }
        assert_eq!(left(&mut world), "0 0 1", "{said}");
    }
}

/// Commits the first lane in another session, which waits for the standby.
fn commit_first(world: &mut World) -> JoinHandle<()> {
    let first = world.sql("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE '%\\_0'");
    let mut other = Conn::open(&world.server.url("postgres")).unwrap();
    let committing = thread::spawn(move || {
        other.exec("SET synchronous_commit = on").unwrap();
        other.exec(&format!("COMMIT PREPARED '{first}'")).unwrap();
    });
    wait_for_waits(world, "2");
    committing
}

/// If the loader cannot commit a prepared lane, it reports that at once. It does not recreate an
/// index, because that would wait for the prepared lanes. `repair` commits them and recreates it.
/// While the server is still committing the first one, it does not wait either.
#[test]
fn an_index_is_left_to_repair_if_lanes_stay_prepared() {
    let (mut world, child) = prepared();
    let last = world.sql(&format!("SELECT pid FROM {WAITS}"));
    let first = commit_first(&mut world);
    world.sql(&format!("SELECT pg_cancel_backend({last})"));
    let (code, said) = ended(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("0 lanes are committed; left: COMMIT PREPARED"), "{said}");
    assert!(said.contains("still missing: index public.t_k: prepared transactions"), "{said}");
    assert!(said.contains("hint: pgsluice repair ends the prepared transactions"), "{said}");
    let mut told = String::new();
    wait_until(
        || "repair does not say what is missing".into(),
        || {
            let (code, said) = ended(world.start(&["repair"]));
            told = said;
            // The server may not have noticed yet that the loader is gone.
            code == Some(1) && told.contains("error: still missing: ")
        },
    );
    assert!(told.contains("_0 may still be there: "), "{told}");
    let why = "index public.t_k: an earlier load has not ended: the prepared transaction pgsluice_";
    assert!(told.contains(why), "{told}");
    assert!(told.contains("hint: when that transaction has ended, run pgsluice repair"), "{told}");
    world.sql(&format!("SELECT pg_cancel_backend(pid) FROM {WAITS}"));
    first.join().unwrap();
    assert!(left(&mut world).ends_with(" 1 0"));
    world.repair();
    assert_eq!(left(&mut world), format!("{ROWS} 0 1"));
}

/// Another load has died meanwhile, and has left a prepared lane on the table. The rows are
/// committed, and the index is left to `repair`, because the load would wait for that lane.
#[test]
fn an_index_is_left_to_repair_if_a_lane_of_another_load_stays_prepared() {
    let (mut world, child) = prepared();
    world.sql("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'pgsluice_3_1'");
    world.sql(&format!("SELECT pg_cancel_backend(pid) FROM {WAITS}"));
    let (code, said) = ended(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the rows are committed, but not everything was recreated"), "{said}");
    let why = "still missing: index public.t_k: an earlier load has not ended: \
        the prepared transaction pgsluice_3_1 holds a lock of public.t";
    assert!(said.contains(why), "{said}");
    world.sql("ROLLBACK PREPARED 'pgsluice_3_1'");
    world.repair();
    assert_eq!(left(&mut world), format!("{ROWS} 0 1"));
}

/// The loader is killed while lanes are prepared. A load that needs a lock against readers or
/// writers, of its table or of one that a dropped foreign key refers to, does not wait for them,
/// and lock others out meanwhile: it fails and names `repair`.
#[test]
fn no_load_waits_for_prepared_lanes_of_a_killed_one() {
    let (mut world, mut child) = prepared();
    child.kill().unwrap();
    child.wait().unwrap();
    world.sql(&format!("SELECT pg_terminate_backend(pid) FROM {WAITS}"));
    world.wait_until_alone();
    let path = file(&world);
    let refused = |world: &World, more: &[&str]| {
        let all = [&["load", &path, "--quiet", "--lock-timeout", "10s"], more].concat();
        let output = world.run(&all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{more:?}: {said}");
        assert!(said.contains("_0 holds a lock of "), "{more:?}: {said}");
        assert!(said.contains("hint: run pgsluice repair: it ends"), "{more:?}: {said}");
    };
    refused(&world, &["--table", "t", "--truncate"]);
    refused(&world, &["--table", "t", "--method", "lanes", "--lanes", "2", "--triggers", "off"]);
    world.repair();
    assert_eq!(left(&mut world), "0 0 1");
    world.sql(
        "CREATE TABLE p (id int, k int, b text) PARTITION BY RANGE (id);
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    );
    world.sql("BEGIN; LOCK TABLE p1 IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'pgsluice_3_0'");
    refused(&world, &["--table", "p", "--truncate"]);
    world.sql(
        "CREATE TABLE parent (id int PRIMARY KEY);
         CREATE TABLE child (id int, k int REFERENCES parent, b text)",
    );
    world.sql("BEGIN; LOCK TABLE parent IN ROW EXCLUSIVE MODE");
    world.sql("PREPARE TRANSACTION 'pgsluice_5_0'");
    refused(&world, &["--table", "child", "--foreign-keys", "revalidate"]);
}

/// Prepared lanes end just after another load has found them. That load goes on if none is left,
/// and otherwise names one that is.
#[test]
fn lanes_that_end_just_then_do_not_fail_a_load() {
    let (mut world, file) = commit::world();
    for lane in 0..2 {
        world.sql(&format!(
            "BEGIN; INSERT INTO t VALUES ({lane}, 'x'); PREPARE TRANSACTION 'pgsluice_3_{lane}'"
        ));
    }
    for (lane, expected, words) in [(0, 1, "pgsluice_3_1 holds a lock of"), (1, 0, "")] {
        let statement = "SELECT pg_catalog.pg_try_advisory_xact_lock(";
        let proxy = Proxy::start(&world, statement, 0, Fate::Pause, false);
        let mut load = command(&file, &proxy, &["--truncate"]);
        let child = load.stderr(Stdio::piped()).spawn().unwrap();
        proxy.wait();
        world.sql(&format!("COMMIT PREPARED 'pgsluice_3_{lane}'"));
        proxy.let_through();
        let (code, said) = ended(child);
        assert!(code == Some(expected) && said.contains(words), "{lane}: {code:?} {said}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), ROWS);
}

/// If Ctrl-C comes while lanes are committed together, the message says which stay prepared and which
/// index is missing, and that `repair` ends this.
#[test]
fn what_stays_prepared_is_said_after_ctrl_c() {
    let (mut world, child) = prepared();
    let first = commit_first(&mut world);
    assert!(signal(child.id(), Signal::SIGINT));
    let (code, said) = ended(child);
    assert_eq!(code, Some(7), "{said}");
    assert!(
        said.contains("error: stopped\nchanged: 0 lanes are committed; left: COMMIT"),
        "{said}"
    );
    assert!(said.contains("still missing: index public.t_k"), "{said}");
    assert!(said.contains("hint: pgsluice repair ends the prepared transactions"), "{said}");
    world.sql(&format!("SELECT pg_cancel_backend(pid) FROM {WAITS}"));
    first.join().unwrap();
    world.repair();
    assert_eq!(left(&mut world), format!("{ROWS} 0 1"));
}
