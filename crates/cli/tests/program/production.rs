//! How a load affects other sessions that use the table: the claims of `docs/guide/production.md`.

use crate::common::{each_major, wait_until, World};
use pgsluice_engine::internals::Conn;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::thread;

fn world() -> World {
    World::new(each_major().last().unwrap())
}

/// Starts a load that waits for more input.
fn load(world: &World, arguments: &[&str]) -> Child {
    world.start(&[&["load", "-", "--quiet"], arguments].concat())
}

/// Sends enough records that some of them reach the server.
fn some_rows(child: &mut Child, row: &str) {
    let rows = format!("{row}\n").repeat((4 << 20) / row.len());
    child.stdin.as_mut().unwrap().write_all(rows.as_bytes()).unwrap();
}

/// The locks of the program's sessions on a table, without the one that extends its file: it is
/// held only for an instant.
fn locks(world: &mut World, table: &str) -> String {
    world.sql(&format!(
        "SELECT coalesce(string_agg(DISTINCT mode, ' '), '') FROM pg_locks l \
         JOIN pg_stat_activity a USING (pid) \
         WHERE a.application_name = 'pgsluice' AND granted AND locktype = 'relation' \
         AND relation = '{table}'::regclass"
    ))
}

fn wait_for_rows(world: &mut World, table: &str) {
    let sql = format!("SELECT coalesce(max(bytes_processed), 0) > 0 FROM pg_stat_progress_copy WHERE relid = '{table}'::regclass");
    wait_until(|| "no row has come".into(), || world.sql(&sql) == "t");
}

/// Runs SQL in another session. It may wait for a lock, but not for the end of the load.
fn goes(world: &World, sql: &str) {
    let mut conn = Conn::open(&world.server.url("postgres")).unwrap();
    conn.exec("SET lock_timeout = '2min'").unwrap();
    conn.exec(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
}

/// Runs SQL in another session. It must wait for a lock, and is given up.
fn waits(world: &World, sql: &str) {
    let mut conn = Conn::open(&world.server.url("postgres")).unwrap();
    conn.exec("SET lock_timeout = '200ms'").unwrap();
    let error = conn.exec(sql).map(drop).expect_err(sql);
    assert!(error.message().contains("lock timeout"), "{sql}: {error}");
}

/// During a load, other sessions can read, write, vacuum and analyze the table, but cannot alter it
/// or create an index. They see no row before the commit.
#[test]
fn others_read_and_write_while_rows_come() {
    let mut world = world();
    world.sql(
        "CREATE TABLE r (k int PRIMARY KEY, note text); INSERT INTO r VALUES (1), (2);
         CREATE TABLE t (a serial PRIMARY KEY, k int REFERENCES r, b text);
         CREATE INDEX ON t (b); INSERT INTO t (k, b) VALUES (1, 'old'), (2, 'old'); ANALYZE t",
    );
    let mut child = load(&world, &["--table", "t", "--columns", "k,b"]);
    some_rows(&mut child, "1,text of the row");
    wait_for_rows(&mut world, "t");
    // AccessShareLock comes from the loader's look at the table.
    assert_eq!(locks(&mut world, "t"), "AccessShareLock RowExclusiveLock");
    for sql in [
        "SELECT count(*) FROM t",
        "INSERT INTO t (k, b) VALUES (2, 'new')",
        "UPDATE t SET b = 'newer' WHERE b = 'old'",
        "DELETE FROM t WHERE b = 'new'",
        "VACUUM t",
        "ANALYZE t",
        "UPDATE r SET note = 'x'",
    ] {
        goes(&world, sql);
    }
    for sql in ["ALTER TABLE t ADD c int", "CREATE INDEX ON t (k)"] {
        waits(&world, sql);
    }
    assert_eq!(world.sql("SELECT count(*) FROM t WHERE b = 'text of the row'"), "0");
    // One transaction, which holds back VACUUM.
    let ids = "SELECT count(backend_xid) FROM pg_stat_activity WHERE application_name = 'pgsluice'";
    assert_eq!(world.sql(ids), "1");
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_ne!(world.sql("SELECT count(*) FROM t WHERE b = 'text of the row'"), "0");
}

/// Foreign keys are checked after all rows. If a referenced row is deleted before that, the load
/// fails.
#[test]
fn a_referenced_row_that_goes_fails_the_load() {
    let mut world = world();
    world.sql(
        "CREATE TABLE r (k int PRIMARY KEY); INSERT INTO r VALUES (1), (2);
         CREATE TABLE t (a int, k int REFERENCES r); INSERT INTO t VALUES (0, 1)",
    );
    let mut child = load(&world, &["--table", "t"]);
    some_rows(&mut child, "123456,2");
    wait_for_rows(&mut world, "t");
    goes(&world, "DELETE FROM r WHERE k = 2");
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("foreign key"), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
}

/// While a load waits for its ACCESS EXCLUSIVE lock, readers queue after it, until `--lock-timeout`
/// ends the load.
#[test]
fn a_load_that_waits_makes_readers_wait_until_its_time_is_up() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (1)");
    let file = world.file("t.csv", b"2\n");
    world.sql("BEGIN; SELECT * FROM t");
    let url = world.server.url("postgres");
    let reader = || {
        let url = url.clone();
        thread::spawn(move || Conn::open(&url).unwrap().exec("SELECT a FROM t").unwrap())
    };
    let mut watch = Conn::open(&url).unwrap();
    let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass";
    // On a busy computer, the load may end before the reader queues.
    let queued = ["3s", "30s", "3min"].into_iter().any(|limit| {
        let mut load = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["load", &file, "--to", &url, "--table", "t", "--truncate"])
            .args(["--lock-timeout", limit])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut waiting = |n: &str| {
            let mut are = false;
            wait_until(
                || format!("not {n} are waiting"),
                || {
                    are = watch.exec(sql).unwrap()[0][0].as_deref() == Some(n);
                    are || load.try_wait().unwrap().is_some()
                },
            );
            are
        };
        waiting("1");
        let read = reader();
        let queued = waiting("2");
        assert_eq!(load.wait().unwrap().code(), Some(6));
        assert_eq!(read.join().unwrap(), [[Some("1".to_owned())]]);
        queued
    });
    assert!(queued, "no reader queued after the load");
    world.sql("COMMIT");
    assert_eq!(world.sql("SELECT string_agg(a::text, ' ') FROM t"), "1");
}

/// A key that the load has inserted makes an INSERT of the same key wait.
#[test]
fn the_same_key_waits_for_the_load() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (0, 'x')");
    let mut child = load(&world, &["--table", "t"]);
    let rows: String = (1..100_000).map(|a| format!("{a},{}\n", "x".repeat(40))).collect();
    child.stdin.as_mut().unwrap().write_all(rows.as_bytes()).unwrap();
    wait_for_rows(&mut world, "t");
    let seen = "SELECT count(*) FROM pg_stat_progress_copy WHERE tuples_processed > 1000";
    wait_until(|| "few rows have come".into(), || world.sql(seen) == "1");
    waits(&world, "INSERT INTO t VALUES (1, 'mine')");
    goes(&world, "INSERT INTO t VALUES (-1, 'mine')");
    drop(child.stdin.take());
    assert!(child.wait_with_output().unwrap().status.success());
}

/// Partitions get the same lock as their parent. Methods that rewrite a table are refused for a
/// partitioned one.
#[test]
fn partitions_are_locked_as_their_parent_and_never_rewritten() {
    let mut world = world();
    world.sql(
        "CREATE TABLE t (a int, b text) PARTITION BY RANGE (a);
         CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10); CREATE INDEX ON t (a)",
    );
    let file = world.file("t.csv", b"1,x\n");
    for method in ["copy-fresh", "unlogged", "unlogged-logged"] {
        let output = world.run(&["plan", &file, "--table", "t", "--method", method]);
        assert_eq!(output.status.code(), Some(1), "{method}: {output:?}");
    }
    let mut child = load(&world, &["--table", "t"]);
    some_rows(&mut child, "1,text of the row");
    wait_for_rows(&mut world, "t");
    assert_eq!(locks(&mut world, "t"), "RowExclusiveLock");
    // AccessShareLock comes from the loader's look at the table.
    let both = "AccessShareLock RowExclusiveLock";
    wait_until(|| "no row is in t1".into(), || locks(&mut world, "t1") == both);
    drop(child.stdin.take());
    assert!(child.wait_with_output().unwrap().status.success());
}
