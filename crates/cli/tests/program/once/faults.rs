//! Faults around a load: full disks, files that change, wrong clocks, prepared transactions that
//! are left. Afterwards, the same command loads each record exactly once.

use super::{counts, exact, lines, start, thrice, world};
use crate::common::disk::SmallDisk;
use crate::common::proxy::{Fate, Proxy};
use crate::common::{signal, wait_until, Signal, World};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

fn load(world: &World, more: &[&str]) -> Result<Value, String> {
    world.load(&[more, &["--table", "t", "--once"]].concat())
}

fn rows(world: &mut World) -> usize {
    world.sql("SELECT count(*) FROM t").parse().unwrap()
}

/// Starts a load with `--commit-every`, and suspends its process at row 100,000.
fn held_up(world: &mut World, path: &str) -> Child {
    world.sql("DROP SCHEMA IF EXISTS pgsluice_loads CASCADE; TRUNCATE t");
    let small = world.file("small.csv", b"-1,x\n");
    load(world, &[&small]).unwrap();
    world.shut_gate();
    let child = start(world, &[path, "--commit-every", "64kB"]);
    let commits = "SELECT count(*) > 1 FROM pgsluice_loads.commits";
    wait_until(|| "nothing is committed".into(), || world.sql(commits) == "t");
    world.suspend_at_gate(&child);
    child
}

/// Lets such a load continue; returns its exit code and standard error.
fn end(child: Child) -> (Option<i32>, String) {
    assert!(signal(child.id(), Signal::SIGCONT));
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The tablespace of the table is full in the middle of a load. What is committed stays, and the
/// same command loads the rest.
#[test]
fn the_disk_of_the_data_is_full() {
    let mut world = world();
    let Some(disk) = SmallDisk::new(&world, "4m") else { return };
    world.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.path()));
    world.sql("ALTER TABLE t SET TABLESPACE small");
    let path = world.file("a.csv", &lines(0, 200_000));
    let all = [path.as_str(), "--commit-every", "256kB"];
    let whole = load(&world, &all[..1]).unwrap_err();
    assert!(whole.contains("No space left on device"), "{whole}");
    assert_eq!(rows(&mut world), 0);
    // Rows that were rolled back still take space.
    world.sql("TRUNCATE t");
    let said = load(&world, &all).unwrap_err();
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("rows are committed and recorded as load 2"), "{said}");
    exact(&mut world, "on a full disk");
    let before = rows(&mut world);
    assert!(before > 0 && before < 200_000, "{before}");
    disk.resize("64m");
    let summary = load(&world, &all).unwrap();
    assert_eq!(summary["loaded"], 200_000 - before);
    assert_eq!(counts(&mut world), thrice(200_000));
}

/// The disk of the WAL is full, so the server crashes. What is committed stays, and the same
/// command loads the rest.
#[test]
fn the_disk_of_the_wal_is_full() {
    let mut world = world();
    let Some(disk) = SmallDisk::new(&world, "36m") else { return };
    let wal = world.server.data().join("pg_wal");
    world.server.stop(pgsluice_pgserver::StopMode::Fast).unwrap();
    let moved = Command::new("sh")
        .args(["-ec", "cp -a \"$0\"/. \"$1\"; rm -r \"$0\"; ln -s \"$1\" \"$0\""])
        .args([wal.as_path(), disk.path().as_ref()])
        .status();
    assert!(moved.unwrap().success());
    world.restart_with(&[]);
    let path = world.file("a.csv", &lines(0, 900_000));
    let all = [path.as_str(), "--commit-every", "512kB"];
    let said = load(&world, &all).unwrap_err();
    assert!(said.contains("connection lost") && said.contains("rows are committed"), "{said}");
    disk.resize("400m");
    world.server.kill9().unwrap();
    world.restart_with(&[]);
    let mut from = 0;
    assert!(world.log(&mut from).contains("No space left on device"));
    exact(&mut world, "after the crash");
    let before = rows(&mut world);
    assert!(before > 0 && before < 900_000, "{before}");
    let summary = load(&world, &all).unwrap();
    assert_eq!(summary["loaded"], 900_000 - before);
    assert_eq!(counts(&mut world), thrice(900_000));
}

/// If the disk of the reject file is full, nothing is loaded or recorded. Later, the same command
/// loads all.
#[test]
fn the_disk_of_the_rejects_is_full() {
    let mut world = world();
    let Some(disk) = SmallDisk::new(&world, "64k") else { return };
    let bad = "x,bad\n".repeat(900);
    let path = world.file("a.csv", &[&lines(0, 10_000), bad.as_bytes()].concat());
    let rejects = disk.file("rejects");
    let all = [&path, "--on-error", "reject", "--reject-file", &rejects];
    let said = load(&world, &all).unwrap_err();
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(counts(&mut world), thrice(0));
    assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.pieces"), "0");
    disk.empty();
    disk.resize("4m");
    let summary = load(&world, &all).unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&10_000.into(), &900.into()));
    assert_eq!(fs::read_to_string(&rejects).unwrap(), bad);
    assert_eq!(load(&world, &all).unwrap()["read"], 0);
    assert_eq!(counts(&mut world), thrice(10_000));
}

/// If lines are added to a file while it is loaded, the load fails, and the next one loads the
/// rest.
#[test]
fn a_file_grows_while_it_is_loaded() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 500_000));
    let child = held_up(&mut world, &path);
    File::options().append(true).open(&path).unwrap().write_all(&lines(500_000, 9)).unwrap();
    let (code, said) = end(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("changed while it was read") && said.contains("hint:"), "{said}");
    exact(&mut world, "a file that grows");
    let before = rows(&mut world);
    assert!(before > 1 && before < 500_000, "{before}");
    let summary = load(&world, &[&path]).unwrap();
    assert_eq!(summary["loaded"], 500_010 - before, "{summary}");
    assert_eq!(counts(&mut world), thrice(500_010));
}

/// If another file replaces the one that is being loaded, the load fails. The new file is not taken
/// for the rest of the old one.
#[test]
fn a_file_is_replaced_while_it_is_loaded() {
    let mut world = world();
    let bytes = lines(0, 300_000);
    let (path, other) = (world.path("a.csv"), world.path("other.csv"));
    let (old, new) = (bytes.clone(), lines(1_000_000, 300_000));
    fs::write(&path, &old).unwrap();
    let child = held_up(&mut world, &path);
    fs::write(&other, &new).unwrap();
    fs::rename(&other, &path).unwrap();
    let (code, said) = end(child);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("a.csv changed while it was loaded"), "{said}");
    exact(&mut world, "a file that is replaced");
    // The new one is not taken for the rest of the old one.
    let before = rows(&mut world);
    let said = load(&world, &[&path]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    assert_eq!(rows(&mut world), before);
    // Under another name, the new file can be loaded, and the old one is completed when it is back.
    fs::rename(&path, &other).unwrap();
    fs::write(&path, &old).unwrap();
    load(&world, &[&path, &other]).unwrap();
    assert_eq!(counts(&mut world), thrice(600_001));

    // If the load is one transaction, no row of the old file stays.
    world.sql("DROP TABLE t; CREATE TABLE t (a int, b text)");
    world.sql("BEGIN; LOCK TABLE t");
    let child = start(&world, &[&path]);
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until(|| "the load does not come to the table".into(), || world.sql(waiting) != "0");
    fs::rename(&other, &path).unwrap();
    world.sql("COMMIT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(rows(&mut world), 0);
    load(&world, &[&path]).unwrap();
    assert_eq!(world.sql("SELECT count(*) || ' ' || min(a) FROM t"), "300000 1000000");
}

/// Neither the times of files nor those in the ledger decide what is loaded.
#[test]
fn clocks_may_be_wrong() {
    let mut world = world();
    let now = SystemTime::now();
    let days = |n: u64| Duration::from_secs(n * 86_400);
    let times = [now + days(40_000), now - days(400), SystemTime::UNIX_EPOCH - days(3_000)];
    let mut paths = Vec::new();
    for (i, time) in times.into_iter().enumerate() {
        let path = world.file(&format!("{i}.csv"), &lines(i * 50_000, 50_000));
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        paths.push(path);
    }
    let mut bytes = fs::read(&paths[0]).unwrap();
    bytes[1_000_000] = b'"';
    fs::write(&paths[0], &bytes).unwrap();
    let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
    all.extend(["--commit-every", "256kB"]);
    load(&world, &all).unwrap_err();
    assert!(rows(&mut world) > 0);
    // As if the server's clock had been a century ahead during that load.
    world.sql(
        "UPDATE pgsluice_loads.loads SET started = started + interval '100 years', \
           ended = ended + interval '100 years'; \
         UPDATE pgsluice_loads.commits SET at = at + interval '100 years'; \
         UPDATE pgsluice_loads.sources SET completed = completed + interval '100 years'",
    );
    fs::write(&paths[0], lines(0, 50_000)).unwrap();
    load(&world, &all).unwrap();
    assert_eq!(counts(&mut world), thrice(150_000));
    world.sql("UPDATE pgsluice_loads.sources SET completed = '-infinity'");
    assert_eq!(load(&world, &all).unwrap()["read"], 0);
    // The same bytes with an earlier time are the same file. Other bytes are a change, whatever the
    // time.
    for (path, time) in [(&paths[1], now - days(900)), (&paths[2], times[2] - days(1))] {
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        assert_eq!(load(&world, &all).unwrap()["read"], 0);
        let bytes = fs::read(path).unwrap();
        fs::write(
            path,
            bytes.iter().map(|b| if *b == b't' { b'T' } else { *b }).collect::<Vec<u8>>(),
        )
        .unwrap();
        let earlier = time - days(1);
        File::options().write(true).open(path).unwrap().set_modified(earlier).unwrap();
        let said = load(&world, &all).unwrap_err();
        assert!(said.contains("has changed since it was loaded"), "{said}");
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(counts(&mut world), thrice(150_000));
}

/// A load without `--once` is killed during its two-phase commit. Its prepared transactions do not
/// block loads with `--once`, and are not in their ledger.
#[test]
fn a_prepared_transaction_is_left() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 100_000));
    let proxy = Proxy::start(&world, "COMMIT PREPARED", 0, Fate::Hold, false);
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", &path, "--table", "t", "--quiet", "--method", "lanes", "--lanes", "2"])
        .args(["--to", &proxy.target()])
        .spawn()
        .unwrap();
    proxy.wait();
    child.kill().unwrap();
    child.wait().unwrap();
    let prepared = "SELECT count(*) FROM pg_prepared_xacts";
    assert_eq!(world.sql(prepared), "2");
    let lanes = [path.as_str(), "--method", "lanes", "--lanes", "2", "--lock-timeout", "2min"];
    for loaded in [100_000, 0] {
        assert_eq!(load(&world, &lanes).unwrap()["loaded"], loaded);
    }
    assert_eq!(counts(&mut world), thrice(100_000));
    assert_eq!(world.sql(prepared), "2");
    world.repair();
    assert_eq!(world.sql(prepared), "0");
    assert_eq!(counts(&mut world), thrice(100_000));
}

/// The loader is killed while a commit waits for a synchronous standby. The next load waits for
/// that commit, and does not load its rows again.
#[test]
fn the_loader_is_killed_during_a_commit() {
    let mut world = world();
    world.sql("ALTER SYSTEM SET synchronous_standby_names = 'nowhere'");
    // Only the transaction with row 50,000 waits.
    world.restart_with(&[("synchronous_commit", "local")]);
    world.sql(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           PERFORM set_config('synchronous_commit', 'on', true); RETURN new; END $$; \
         CREATE TRIGGER waits BEFORE INSERT ON t FOR EACH ROW WHEN (new.a = 50000) \
           EXECUTE FUNCTION waits()",
    );
    let path = world.file("a.csv", &lines(0, 150_000));
    let mut child = start(&world, &[&path, "--commit-every", "64kB"]);
    let commits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_until(|| "no commit waits".into(), || world.sql(commits) == "1");
    let before = rows(&mut world);
    child.kill().unwrap();
    child.wait().unwrap();
    let next = start(&world, &[&path]);
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted";
    wait_until(|| "the next load does not wait".into(), || world.sql(waiting) == "1");
    assert_eq!(rows(&mut world), before);
    world.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
    let output = next.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(counts(&mut world), thrice(150_000));
    exact(&mut world, "after the commit");
}

/// A commit of one lane is missing, as if another lane had connected again to a standby that lacks
/// it. The load fails, and the next one loads the lost rows.
#[test]
fn commits_are_lost_behind_a_load() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 300_000));
    let child = held_up(&mut world, &path);
    let lost = "(SELECT xid FROM pgsluice_loads.commits WHERE load = 2 ORDER BY number LIMIT 1)";
    world.sql(&format!("DELETE FROM t WHERE xmin::text = {lost}::text"));
    world.sql(&format!(
        "WITH c AS (SELECT number FROM pgsluice_loads.commits WHERE xid = {lost}), \
           p AS (DELETE FROM pgsluice_loads.pieces WHERE commit IN (SELECT number FROM c)) SELECT"
    ));
    world.sql(&format!("DELETE FROM pgsluice_loads.commits WHERE xid = {lost}"));
    let (code, said) = end(child);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("commits of load 2: is it a standby that lagged?"), "{said}");
    exact(&mut world, "after lost commits");
    assert!(rows(&mut world) < 300_001);
    load(&world, &[&path]).unwrap();
    assert_eq!(counts(&mut world), thrice(300_001));
}
