//! DDL of another session that alters or replaces the table while a load waits for a lock, or
//! between two of its transactions.

use crate::common::{each_major, wait_until, World};
use pgsluice_engine::internals::Conn;
use pgsluice_engine::Error;
use std::io::Write;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A world whose new sessions have a time zone other than UTC.
fn world() -> World {
    let mut world = World::new(&each_major().remove(0));
    world.sql("ALTER DATABASE postgres SET TimeZone = 'Europe/Berlin'");
    world
}

fn session(world: &World) -> Conn {
    Conn::open(&world.server.url("postgres")).unwrap()
}

/// Waits until this number of locks are waited for.
fn wait_for_waits(world: &mut World, count: &str) {
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until(|| format!("{count} locks are not waited for"), || world.sql(waits) == count);
}

/// The times in a table, as they are in the files.
fn times(world: &mut World, table: &str) -> String {
    world.sql(&format!(
        "SELECT string_agg(DISTINCT (at AT TIME ZONE 'Europe/Berlin')::text, ' ') FROM {table}"
    ))
}

/// Rows of a block of the input.
const ROWS: usize = 5_000;

fn block() -> Vec<u8> {
    let words = "words to fill the row ".repeat(20);
    (0..ROWS).flat_map(|i| format!("2020-07-01 12:00:00,{words}{i}\n").into_bytes()).collect()
}

const LOAD: [&str; 11] = [
    "load",
    "-",
    "--quiet",
    "--table",
    "t",
    "--method",
    "copy-binary",
    "--once",
    "--source-name=rows",
    "--commit-every",
    "1MB",
];

/// Loads blocks in pieces while another session runs DDL, which waits for a commit of the load.
/// Checks that the load fails. Then runs the same command again, with all blocks; returns the
/// number of rows of these.
fn altered_between_pieces(world: &mut World, ddl: &'static str) -> usize {
    let block = block();
    let mut child = world.start(&LOAD);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&block).unwrap();
    wait_until(|| "nothing is committed".into(), || world.sql("SELECT count(*) FROM t") != "0");
    let mut other = session(world);
    let ddl = thread::spawn(move || other.exec(ddl).map(drop));
    let mut blocks = 1;
    // The load may end while blocks are written.
    while !ddl.is_finished() && input.write_all(&block).is_ok() {
        blocks += 1;
    }
    ddl.join().unwrap().unwrap();
    for _ in 0..3 {
        let _ = input.write_all(&block);
        blocks += 1;
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("table \"public\".\"t\" was changed during the load"), "{said}");
    assert!(said.contains("the same command continues"), "{said}");
    let output = world.run_with(&LOAD, &block.repeat(blocks));
    assert!(output.status.success(), "{output:?}");
    blocks * ROWS
}

/// A column gets another type between two commits of a load. The load does not send the other rows
/// in the form of the old type, which would alter them; the same command loads them.
#[test]
fn a_column_that_is_altered_between_two_commits_gets_no_other_values() {
    let mut world = world();
    world.sql("CREATE TABLE t (at timestamp, b text)");
    let rows = altered_between_pieces(&mut world, "ALTER TABLE t ALTER at TYPE timestamptz");
    assert_eq!(times(&mut world, "t"), "2020-07-01 12:00:00");
    assert_eq!(world.sql("SELECT count(*) FROM t"), rows.to_string());
}

/// Another table takes the name between two commits of a load. The load fails at once, and the same
/// command loads the whole file into the new table.
#[test]
fn a_table_that_is_replaced_between_two_commits_gets_the_whole_file() {
    let mut world = world();
    world.sql("CREATE TABLE t (at timestamptz, b text); CREATE TABLE new (LIKE t)");
    let swap = "ALTER TABLE t RENAME TO old; ALTER TABLE new RENAME TO t";
    let rows = altered_between_pieces(&mut world, swap);
    assert_eq!(world.sql("SELECT count(*) FROM t"), rows.to_string());
    assert_eq!(times(&mut world, "old"), "2020-07-01 12:00:00");
}

/// DDL on a partitioned table is executed between two commits of a load, and the load goes on: the
/// connection with the claims holds no lock of a partition.
#[test]
fn ddl_on_partitions_does_not_wait_for_the_whole_load() {
    let mut world = world();
    // If the database has no such table, the server need not look at the partitions.
    world.sql("CREATE UNLOGGED TABLE other ()");
    world.sql(
        "CREATE TABLE t (at timestamp, b text) PARTITION BY RANGE (at); \
         CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM ('2020-01-01') TO ('2021-01-01'); \
         CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')",
    );
    let block = block();
    let mut child = world.start(&LOAD);
    let mut input = child.stdin.take().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let until = over.clone();
    let feeding = thread::spawn(move || {
        let mut blocks = 0;
        while !until.load(Ordering::SeqCst) && input.write_all(&block).is_ok() {
            blocks += 1;
        }
        blocks
    });
    wait_until(|| "nothing is committed".into(), || world.sql("SELECT count(*) FROM t") != "0");
    let mut other = session(&world);
    other.exec("SET lock_timeout = '60s'").unwrap();
    for ddl in ["ALTER TABLE t ADD c int", "ALTER TABLE t DETACH PARTITION t_1"] {
        other.exec(ddl).unwrap_or_else(|waits| panic!("{ddl}: {waits}"));
    }
    over.store(true, Ordering::SeqCst);
    let blocks: usize = feeding.join().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), (blocks * ROWS).to_string());
}

/// Before their rows, lanes commit that an index is dropped. If another session alters a column at
/// that moment, the load fails, no row is loaded, and the index is back.
#[test]
fn a_column_that_is_altered_before_the_rows_of_lanes_gets_none() {
    let mut world = world();
    world.sql("CREATE TABLE t (at timestamp, n int); CREATE INDEX t_n ON t (n)");
    let file = world.file("rows.csv", &b"2020-07-01 12:00:00,1\n".repeat(1_000));
    let all = ["--table", "t", "--method", "lanes", "--lanes", "2", "--indexes", "rebuild"];
    let load = [&["load", &file, "--quiet"], &all[..]].concat();
    // The load waits for this lock, and the ALTER TABLE waits for the load.
    let mut reader = session(&world);
    reader.exec("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE").unwrap();
    let child = world.start(&load);
    wait_for_waits(&mut world, "1");
    let mut other = session(&world);
    let ddl = "ALTER TABLE t ALTER at TYPE timestamptz";
    let ddl = thread::spawn(move || other.exec(ddl).map(drop));
    wait_for_waits(&mut world, "2");
    reader.exec("COMMIT").unwrap();
    let output = child.wait_with_output().unwrap();
    ddl.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("was changed during the load; nothing was loaded"), "{said}");
    let left = "SELECT count(*) || ' ' || (to_regclass('t_n') IS NOT NULL) FROM t";
    assert_eq!(world.sql(left), "0 true", "{said}");
    assert!(world.run(&load).status.success());
    assert_eq!(times(&mut world, "t"), "2020-07-01 12:00:00");
}

/// Another table takes the name while a load waits for its lock. The load fails, and does not send
/// rows in the form of the first table.
#[test]
fn a_table_that_is_replaced_before_it_is_locked_gets_no_rows_of_the_first() {
    let mut world = world();
    world.sql("CREATE TABLE t (at timestamp); CREATE TABLE new (at timestamptz)");
    let file = world.file("rows.csv", b"2020-07-01 12:00:00\n");
    let load = ["load", &file, "--quiet", "--table", "t", "--method", "copy-binary"];
    let mut other = session(&world);
    other.exec("BEGIN; ALTER TABLE t RENAME TO old; ALTER TABLE new RENAME TO t").unwrap();
    let child = world.start(&load);
    wait_for_waits(&mut world, "1");
    other.exec("COMMIT").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("was changed during the load; nothing was loaded"), "{said}");
    assert!(world.run(&load).status.success());
    assert_eq!(times(&mut world, "t"), "2020-07-01 12:00:00");
}

const LANES: [&str; 6] = ["--quiet", "--table", "t", "--method", "lanes", "--lanes=2"];

/// Starts a load, and DDL that waits for its first lane from before the first row on.
fn started_before_ddl(
    world: &mut World,
    start: impl FnOnce(&World) -> Child,
    ddl: &'static str,
) -> (Child, JoinHandle<Result<(), Error>>) {
    world.sql("CREATE TABLE t (at timestamp, b text)");
    // The load waits for this lock, and the DDL waits for the load.
    let mut first = session(world);
    first.exec("BEGIN; LOCK TABLE t IN SHARE MODE").unwrap();
    let child = start(world);
    wait_for_waits(world, "1");
    let mut other = session(world);
    let ddl = thread::spawn(move || other.exec(ddl).map(drop));
    wait_for_waits(world, "2");
    first.exec("COMMIT").unwrap();
    (child, ddl)
}

/// Runs a load while DDL waits for its first lane. Returns the exit code and what it said.
fn loaded_before_ddl(world: &mut World, load: &[&str]) -> (Option<i32>, String) {
    let ddl = "ALTER TABLE t ALTER at TYPE timestamptz";
    let (child, ddl) = started_before_ddl(world, |world| world.start(load), ddl);
    let output = child.wait_with_output().unwrap();
    ddl.join().unwrap().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// DDL waits for the first lane, and the second lane waits for the DDL before it sends its first
/// rows. The first lane commits only with the second one: the load fails, and the DDL is executed.
#[test]
fn a_lane_does_not_wait_forever_for_ddl_that_waits_for_another_lane() {
    let mut world = world();
    let file = world.file("rows.csv", &block());
    let load = [&["load", &file], &LANES[..]].concat();
    let (code, said) = loaded_before_ddl(&mut world, &load);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("another session waits for the load to lock the table"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    assert!(world.run(&load).status.success());
}

/// The same, if the load has set another role than the one that has logged in. That role may not see
/// what the sessions wait for.
#[test]
fn a_role_that_is_set_hides_no_deadlock() {
    let mut world = world();
    world.sql(
        "CREATE ROLE keeper; GRANT CREATE ON SCHEMA public TO keeper; \
         ALTER ROLE postgres SET role = keeper; SET ROLE keeper",
    );
    let file = world.file("rows.csv", &block());
    let limit = ["--lock-timeout", "2min"];
    let load = [&["load", &file], &LANES[..], &limit].concat();
    let (code, said) = loaded_before_ddl(&mut world, &load);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("another session waits for the load to lock the table"), "{said}");
    assert!(world.run(&load).status.success());
}

/// A column gets another type before the second lane sends its first rows. The lane does not send
/// them in the form of the old type, and the same command loads everything.
#[test]
fn a_column_that_is_altered_before_the_first_rows_of_a_lane_gets_no_other_values() {
    let mut world = world();
    let file = world.file("rows.csv", &block().repeat(8));
    let once = ["--once", "--commit-every", "1MB"];
    let load = [&["load", &file], &LANES[..], &once].concat();
    let (code, said) = loaded_before_ddl(&mut world, &load);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("was changed during the load"), "{said}");
    assert!(world.run(&load).status.success());
    assert_eq!(times(&mut world, "t"), "2020-07-01 12:00:00");
    assert_eq!(world.sql("SELECT count(*) FROM t"), (8 * ROWS).to_string());
}

/// The sessions of two lanes have different search paths, as they may behind a pooler, and a column
/// has a type of the schema public. No lane takes the table for a changed one.
#[test]
fn a_table_is_the_same_for_lanes_with_different_search_paths() {
    let mut world = world();
    world.sql("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TABLE t (m mood, b varchar(9))");
    let file = world.file("rows.csv", &b"good,words\n".repeat(200_000));
    // The first lane waits for this lock, and the second one opens its session after that.
    let mut first = session(&world);
    first.exec("BEGIN; LOCK TABLE t IN SHARE MODE").unwrap();
    let child = world.start(&[&["load", &file], &LANES[..]].concat());
    wait_for_waits(&mut world, "1");
    world.sql("ALTER DATABASE postgres SET search_path = pg_catalog");
    first.exec("COMMIT").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "200000");
}

/// DDL waits for the first lane, the second lane waits for the DDL, and the input is slow. The load
/// is not taken for one that stands still: when there is more input, the first lane commits, the DDL
/// is executed, and the second lane goes on.
#[test]
fn a_slow_input_is_no_deadlock_of_lanes() {
    let mut world = world();
    let all = ["load", "-", "--once", "--source-name=rows", "--commit-every", "2MB"];
    let load = [&all[..], &LANES].concat();
    let block = block();
    // Two chunks, one for each lane, and the beginning of a third one.
    let (first, mut feeding) = (block[..1_200_000].to_vec(), None);
    let start = |world: &World| {
        let mut child = world.start(&load);
        let mut input = child.stdin.take().unwrap();
        feeding = Some(thread::spawn(move || input.write_all(&first).map(|()| input)));
        child
    };
    let (mut child, ddl) = started_before_ddl(&mut world, start, "ALTER TABLE t ADD c int");
    let mut input = feeding.unwrap().join().unwrap().unwrap();
    wait_for_waits(&mut world, "2");
    // Longer than lanes may stand still.
    for piece in block[1_200_000..1_350_000].chunks(10_000) {
        thread::sleep(Duration::from_secs(1));
        assert!(child.try_wait().unwrap().is_none(), "{:?}", child.wait_with_output());
        input.write_all(piece).unwrap();
    }
    input.write_all(&block[1_350_000..]).unwrap();
    for _ in 0..8 {
        input.write_all(&block).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    ddl.join().unwrap().unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM t"), (9 * ROWS).to_string());
}

/// A load by lanes fails, and drops the table that `--create` has made, but not another one that has
/// got the name meanwhile.
#[test]
fn a_failed_load_keeps_another_table_that_has_got_the_name() {
    let mut world = world();
    let mut child = world.start(&[&["load", "-", "--create"], &LANES[..]].concat());
    let mut input = child.stdin.take().unwrap();
    input.write_all(&b"1\n".repeat(1 << 20)).unwrap();
    let made = "SELECT to_regclass('t') IS NOT NULL";
    wait_until(|| "no table is made".into(), || world.sql(made) == "t");
    let mut other = session(&world);
    let swap = "BEGIN; DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY); COMMIT";
    let swap = thread::spawn(move || other.exec(swap).map(drop));
    // It waits for the lanes, or was executed before the first of them had locked the table.
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    let comes = || swap.is_finished() || world.sql(waits) != "0";
    wait_until(|| "the table is not exchanged".into(), comes);
    // The load may have ended.
    let _ = input.write_all(b"x\n");
    drop(input);
    let output = child.wait_with_output().unwrap();
    swap.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !said.contains("changed:"), "{said}");
    let column =
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('t') AND attnum = 1";
    assert_eq!(world.sql(column), "id", "{said}");
}
