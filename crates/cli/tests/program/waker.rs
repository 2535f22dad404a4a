//! The server's WAL writer is woken while rows are sent that go through the WAL; where that cannot
//! be, the load goes on without.

use crate::common::{on_first_and_last_major, wait_until, World};
use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

/// Rows, of more bytes than are worth a commit.
const ROWS: usize = 300_000;

fn rows() -> Vec<u8> {
    (0..ROWS).flat_map(|i| format!("{i},text of the row\n").into_bytes()).collect()
}

/// A commit that waits for nothing, and leaves no setting to a session.
const COMMIT: &str = "BEGIN READ WRITE; SET LOCAL synchronous_commit = off; \
    SELECT pg_catalog.pg_current_xact_id(); COMMIT";

/// Begins a load into `t` that stays open until its standard input is closed.
fn begin(role: &str, world: &World, more: &[&str]) -> Child {
    let url = world.server.url("postgres").replace("postgres@", &format!("{role}@"));
    let mut load = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "-", "--table", "t", "--quiet", "--to", &url])
        .args(more)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    load.stdin.as_mut().unwrap().write_all(&rows()).unwrap();
    load
}

fn end(load: Child, world: &mut World) {
    let Output { status, stderr, .. } = load.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert_eq!(world.sql("SELECT count(*) FROM t"), ROWS.to_string());
}

/// Waits until the server has logged it.
fn await_log(world: &World, from: usize, text: &str) {
    let seen = || world.log(&mut from.clone()).contains(text);
    wait_until(|| format!("{text} is not logged: {}", world.log(&mut from.clone())), seen);
}

const TABLE: &str = "DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text)";

#[test]
fn commits_that_wait_for_nothing() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let mut log = 0;
        for more in [["--method=auto"], ["--method=copy-binary"], ["--method=copy-csv"]] {
            world.sql(TABLE);
            world.log(&mut log);
            let load = begin("postgres", &world, &more);
            await_log(&world, log, COMMIT);
            end(load, &mut world);
            let seen = world.log(&mut log);
            let commits = seen.matches(COMMIT).count();
            // No more than one for each megabyte that was sent; binary rows are half as long again.
            assert!(commits <= rows().len() >> 19, "{more:?}: {seen}");
        }
    });
}

#[test]
fn only_where_the_wal_writer_has_something_to_do() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let file = world.file("rows.csv", &rows());
        let few = world.file("few.csv", b"1,x\n");
        let mut log = 0;
        let cases: [(&str, &[&str]); 4] = [
            ("CREATE UNLOGGED TABLE t (a int, b text)", &[&file]),
            ("CREATE TABLE t (a int, b text)", &[&file, "--method=unlogged"]),
            ("CREATE TABLE t (a int, b text)", &[&file, "--method=lanes"]),
            ("CREATE TABLE t (a int, b text)", &[&few]),
        ];
        for (table, load) in cases {
            world.sql(&format!("DROP TABLE IF EXISTS t; {table}"));
            world.log(&mut log);
            world.load(&[load, &["--table=t"]].concat()).unwrap();
            let seen = world.log(&mut log);
            assert!(seen.contains("COPY"), "{table} {load:?}: {seen}");
            assert!(!seen.contains(COMMIT), "{table} {load:?}: {seen}");
        }
    });
}

#[test]
fn without_a_second_connection_the_load_goes_on() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(&format!("{TABLE}; CREATE ROLE alone LOGIN CONNECTION LIMIT 1"));
        world.sql("ALTER TABLE t OWNER TO alone");
        let mut log = 0;
        world.log(&mut log);
        let load = begin("alone", &world, &[]);
        await_log(&world, log, "too many connections for role \"alone\"");
        end(load, &mut world);
        assert!(!world.log(&mut log).contains(COMMIT));
    });
}
