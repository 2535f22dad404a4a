//! What may happen during a load whose rows go straight to partitions.

use super::{difference, twins};
use crate::common::{on_first_and_last_major, on_last_major, wait_until, World};
use std::io::Write;
use std::process::{Child, Output};

const TABLE: &str = "CREATE TABLE @ (a int, b text) PARTITION BY LIST (a);
    CREATE TABLE @_1 PARTITION OF @ FOR VALUES IN (1);
    CREATE TABLE @_2 PARTITION OF @ FOR VALUES IN (2);
    CREATE TABLE @_rest PARTITION OF @ DEFAULT";

/// The loader's session.
const LOADER: &str =
    "pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'";

/// A load that reads standard input, which stays open.
struct Underway(Child);

impl Underway {
    fn start(world: &World) -> Underway {
        let to_leaves = ["--route", "leaf", "--method", "copy-binary"];
        Underway(world.start(&[&["load", "-", "--table", "t"], &to_leaves[..]].concat()))
    }

    fn send(&mut self, rows: &str) {
        self.0.stdin.as_mut().unwrap().write_all(rows.as_bytes()).unwrap();
    }

    fn end(self) -> Output {
        self.0.wait_with_output().unwrap()
    }
}

fn rows(from: usize, to: usize) -> String {
    let words = "words to fill the row ".repeat(20);
    (from..to).map(|i| format!("{},{words}{i}\n", 1 + i % 3)).collect()
}

/// Waits until a partition has rows of the load that are not committed.
fn wait_for_rows(world: &mut World) {
    let held = format!(
        "SELECT count(*) FROM {LOADER} AND EXISTS (SELECT 1 FROM pg_locks l \
         WHERE l.pid = a.pid AND l.relation = 't_1'::regclass AND l.mode = 'RowExclusiveLock')"
    );
    wait_until(|| "no rows are sent".into(), || world.sql(&held) == "1");
}

/// Enough rows for more than one window.
const MANY: usize = 100_000;

fn detached(world: &mut World) {
    twins(world, TABLE);
    let all = rows(0, MANY);
    let mut load = Underway::start(world);
    load.send(&all);
    wait_for_rows(world);
    let detach = "SET lock_timeout = '100ms'; ALTER TABLE t DETACH PARTITION t_2";
    let waits = world.conn.exec(detach).unwrap_err();
    assert_eq!(waits.sqlstate(), "55P03", "{waits}");
    let output = load.end();
    assert!(output.status.success(), "{output:?}");
    world.stock("COPY s FROM STDIN CSV", all.as_bytes()).unwrap();
    assert_eq!(difference(world), "");
    world.sql("ALTER TABLE t DETACH PARTITION t_2; RESET lock_timeout");
}

/// DETACH PARTITION waits until the load has ended, and all rows are where stock COPY puts them.
#[test]
fn a_detach_waits_for_the_load() {
    on_first_and_last_major(|installation| detached(&mut World::new(installation)));
}

fn killed(world: &mut World) {
    twins(world, TABLE);
    let mut load = Underway::start(world);
    load.send(&rows(0, MANY));
    wait_for_rows(world);
    load.0.kill().unwrap();
    load.end();
    let left = format!("SELECT count(*) FROM {LOADER}");
    wait_until(|| "the session stays".into(), || world.sql(&left) == "0");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// If the loader is killed, no row stays in any partition.
#[test]
fn a_load_that_is_killed_leaves_no_row() {
    on_last_major(|installation| killed(&mut World::new(installation)));
}

/// A partition is attached after the loader has read the bounds; its rows get there through the
/// root. (With a DEFAULT partition, ATTACH waits for the load.)
fn attached(world: &mut World) {
    twins(world, &TABLE.replace("CREATE TABLE @_rest PARTITION OF @ DEFAULT", ""));
    let all = rows(0, 6_000);
    let mut log = 0;
    world.log(&mut log);
    let mut load = Underway::start(world);
    load.send(&all);
    let mut said = String::new();
    wait_until(
        || "the bounds are not read".into(),
        || {
            said += &world.log(&mut log);
            said.contains("inhdetachpending")
        },
    );
    // That statement has ended, and no row is sent before there is more input.
    let idle = format!("SELECT count(*) FROM {LOADER} AND a.state = 'idle in transaction'");
    wait_until(|| "the loader does not wait".into(), || world.sql(&idle) == "1");
    for name in ["t", "s"] {
        world.sql(&format!("CREATE TABLE {name}_3 (a int, b text)"));
        world.sql(&format!("ALTER TABLE {name} ATTACH PARTITION {name}_3 FOR VALUES IN (3)"));
    }
    let output = load.end();
    assert!(output.status.success(), "{output:?}");
    world.stock("COPY s FROM STDIN CSV", all.as_bytes()).unwrap();
    assert_eq!(difference(world), "");
    assert_eq!(world.sql("SELECT count(*) FROM t_3"), "2000");
}

/// If a partition is attached after the loader has read the bounds, its rows get there through the
/// root.
#[test]
fn a_partition_attached_meanwhile_gets_its_rows() {
    on_first_and_last_major(|installation| attached(&mut World::new(installation)));
}
