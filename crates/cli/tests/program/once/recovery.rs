//! The server goes back in time, by failover to a standby that lags or by recovery to an earlier
//! point. Rows and ledger go back together, and the next load loads what is missing.

use super::{exact, lines, thrice};
use crate::common::proxy::Proxy;
use crate::common::{each_major, signal, wait_until, Signal, World};
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::{Server, ServerOptions};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The settings of a server and of those that start on its backup.
const SETTINGS: [(&str, &str); 3] =
    [("fsync", "off"), ("max_prepared_transactions", "4"), ("wal_keep_size", "1GB")];

/// Takes a base backup of the server; returns a folder on which another server can start.
fn base_backup(world: &mut World) -> PathBuf {
    let dir = world.server.dir().join("backup");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o711)).unwrap();
    // This file marks the folder as that of a server.
    File::create(dir.join("lock")).unwrap();
    let data = dir.join("data");
    world.sql("SELECT pg_backup_start('test', true)");
    let copied = Command::new("cp").arg("-a").args([&world.server.data(), &data]).status();
    assert!(copied.unwrap().success());
    let label = world.sql("SELECT labelfile FROM pg_backup_stop()");
    fs::remove_file(data.join("postmaster.pid")).unwrap();
    server_file(&data, "backup_label", &label);
    dir
}

/// Writes or extends a file in a data folder, which belongs to the server's user.
fn server_file(data: &Path, name: &str, text: &str) {
    let path = data.join(name);
    let mut file = File::options().append(true).create(true).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let owner = Command::new("chown").arg("--reference").arg(data).arg(&path).status();
    assert!(owner.unwrap().success());
}

/// Starts a server on a folder, with the settings of [`SETTINGS`].
fn start_on(world: &World, dir: &Path) -> Server {
    let settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Server::start(ServerOptions {
        pg_bin: Some(world.server.installation().bin.clone()),
        dir: Some(dir.to_owned()),
        settings: settings.to_vec(),
        ..ServerOptions::default()
    })
    .expect("the server starts on its backup")
}

/// Continues the world with another server. Returns the previous one, whose folder has the files.
fn go_on_with(world: &mut World, server: Server) -> Server {
    let before = std::mem::replace(&mut world.server, server);
    world.conn = Conn::open(&world.server.url("postgres")).unwrap();
    before
}

/// Opens a connection and runs a query on it; returns the value.
fn ask(server: &Server, sql: &str) -> String {
    let mut conn = Conn::open(&server.url("postgres")).unwrap();
    let rows = conn.exec(sql).unwrap();
    rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default()
}

/// From some commit on, the standby receives nothing, but the load goes on and completes. Then the
/// primary is lost. On the promoted standby, the same load loads exactly what is missing.
#[test]
fn failover_to_a_standby_that_lags() {
    // Dropped after the world: its folder holds the files.
    let _primary;
    let mut world = World::with(&each_major().pop().unwrap(), None, &SETTINGS[2..]);
    world.sql("CREATE TABLE t (a int, b text)");
    let backup = base_backup(&mut world);
    let host = world.server.socket_dir().to_str().unwrap().to_owned();
    let primary = format!("primary_conninfo = 'host=''{host}'' user=postgres'\n");
    server_file(&backup.join("data"), "postgresql.auto.conf", &primary);
    server_file(&backup.join("data"), "standby.signal", "");
    let standby = start_on(&world, &backup);
    let (a, b) = (world.file("a.csv", &lines(0, 1000)), world.file("b.csv", &lines(1000, 300_000)));
    world.load(&[&a, "--table", "t", "--once"]).unwrap();

    let all = [&a, &b, "--commit-every", "64kB"];
    world.shut_gate();
    let load = super::start(&world, &all);
    let commits = "SELECT count(*) FROM pgsluice_loads.commits WHERE load = 2";
    wait_until(|| "nothing is committed".into(), || world.sql(commits) > "1".into());
    world.suspend_at_gate(&load);
    let at = world.sql("SELECT pg_current_wal_flush_lsn()");
    let there = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'");
    wait_until(|| "the standby stays behind".into(), || ask(&standby, &there) == "t");
    ask(&standby, "ALTER SYSTEM SET primary_conninfo = ''");
    ask(&standby, "SELECT pg_reload_conf()");
    let receivers = "SELECT count(*) FROM pg_stat_replication";
    wait_until(|| "the standby still receives".into(), || world.sql(receivers) == "0");
    assert!(signal(load.id(), Signal::SIGCONT));
    assert!(load.wait_with_output().unwrap().status.success());
    assert_eq!(world.sql("SELECT count(*) FROM t"), "301000");

    world.server.kill9().unwrap();
    assert_eq!(ask(&standby, "SELECT pg_promote()"), "t");
    _primary = go_on_with(&mut world, standby);
    exact(&mut world, "on the standby");
    let rows: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(rows > 1000 && rows < 301_000, "{rows}");
    let state = "SELECT string_agg(state, ' ' ORDER BY number) FROM pgsluice_loads.loads";
    assert_eq!(world.sql(state), "complete running");
    let summary = world.load(&[&all[..], &["--table", "t", "--once"]].concat()).unwrap();
    assert_eq!(summary["loaded"], 301_000 - rows, "{summary}");
    assert_eq!(super::counts(&mut world), thrice(301_000));
    assert_eq!(world.sql(state), "complete stopped complete");
}

/// A base backup is restored to a moment at which a file was loaded in part. The same load then
/// loads exactly what is missing.
#[test]
fn recovery_to_an_earlier_point() {
    // Dropped after the world: its folder holds the files.
    let _before;
    let mut world = World::with(&each_major().remove(0), None, &SETTINGS[2..]);
    let archive = world.path("archive");
    fs::create_dir(&archive).unwrap();
    fs::set_permissions(&archive, Permissions::from_mode(0o777)).unwrap();
    let archiving = format!("cp \"%p\" \"{archive}/%f\"");
    world.restart_with(&[("archive_mode", "on"), ("archive_command", &archiving)]);
    world.sql("CREATE TABLE t (a int, b text)");
    let backup = base_backup(&mut world);
    let bytes = lines(1000, 100_000);
    let paths = [
        world.file("a.csv", &lines(0, 1000)),
        world.file("b.csv", &[&bytes[..], b"x,bad\n"].concat()),
        world.file("c.csv", &lines(200_000, 1000)),
    ];
    let [a, b, c] = [0, 1, 2].map(|i| paths[i].as_str());
    let load = |world: &World, files: &[&str]| {
        world.load(&[files, &["--table", "t", "--once", "--commit-every", "256kB"]].concat())
    };
    load(&world, &[a]).unwrap();
    load(&world, &[b]).unwrap_err();
    let then: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(then > 1000 && then < 101_000, "{then}");
    world.sql("SELECT pg_create_restore_point('then')");
    fs::write(b, &bytes).unwrap();
    load(&world, &[a, b, c]).unwrap();
    assert_eq!(super::counts(&mut world), thrice(102_000));
    let file = world.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
    world.sql("SELECT pg_switch_wal()");
    let archived = Path::new(&archive).join(file);
    wait_until(|| "no WAL is archived".into(), || archived.exists());

    let data = backup.join("data");
    let settings = format!(
        "restore_command = 'cp \"{archive}/%f\" \"%p\"'\nrecovery_target_name = 'then'\n\
         recovery_target_action = promote\n"
    );
    server_file(&data, "postgresql.auto.conf", &settings);
    server_file(&data, "recovery.signal", "");
    let restored = start_on(&world, &backup);
    wait_until(|| "recovery stays".into(), || ask(&restored, "SELECT pg_is_in_recovery()") == "f");
    _before = go_on_with(&mut world, restored);
    exact(&mut world, "restored");
    assert_eq!(world.sql("SELECT count(*) FROM t"), then.to_string());
    let summary = load(&world, &[a, b, c]).unwrap();
    assert_eq!(summary["loaded"], 102_000 - then, "{summary}");
    assert_eq!(super::counts(&mut world), thrice(102_000));
}

/// Runs a load of a table that has rows. Its connection is lost before the COMMIT, and the new one is
/// to a standby that lagged. There, `others` transactions are committed; if there are many, one has
/// the same number. Returns the standby, and the exit code and standard error of the load.
fn run_across_failover(
    world: &mut World,
    load: &[&str],
    others: u32,
) -> (Server, Option<i32>, String) {
    world.sql("BEGIN; LOCK TABLE t");
    let proxy = Proxy::failover(world);
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(load)
        .args(["--to", &proxy.target()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until(|| "the load does not come to its rows".into(), || world.sql(waiting) == "1");
    let backup = base_backup(world);
    // The end of the backup is in WAL that was written after the copy.
    let from = world.server.data().join("pg_wal/.");
    let copied = Command::new("cp").arg("-a").arg(from).arg(backup.join("data/pg_wal")).status();
    assert!(copied.unwrap().success());
    let standby = start_on(world, &backup);
    let commit = "PERFORM pg_current_xact_id(); COMMIT";
    ask(&standby, &format!("DO $$ BEGIN FOR i IN 1..{others} LOOP {commit}; END LOOP; END $$"));
    proxy.fail_over_to(&standby);
    world.sql("COMMIT");
    wait_until(
        || format!("{load:?}: the load does not end"),
        || child.try_wait().unwrap().is_some(),
    );
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(proxy.sprung(), "{said}");
    (standby, output.status.code(), said)
}

/// The connection is lost before the COMMIT, and the new one is to a standby that lagged. There,
/// another transaction has the same number and is committed. The load does not take it for its own,
/// and the next load loads the rows.
#[test]
fn a_transaction_of_the_same_number_is_not_the_loads() {
    for more in [&[][..], &["--share", "--lease", "5s"]] {
        // Dropped after the world: its folder holds the files.
        let _primary;
        let mut world = World::with(&each_major().remove(0), None, &SETTINGS[2..]);
        world.sql("CREATE TABLE t (a int, b text)");
        let (a, b) = (world.file("a.csv", &lines(0, 100)), world.file("b.csv", &lines(100, 1000)));
        world.load(&[&a, "--table", "t", "--once"]).unwrap();
        let all = [&["load", &b, "--table", "t", "--once", "--quiet"], more].concat();
        let (standby, code, said) = run_across_failover(&mut world, &all, 500);
        assert_eq!(code, Some(5), "{more:?}: {said}");
        assert!(said.contains("is it a standby that lagged?"), "{more:?}: {said}");

        world.server.kill9().unwrap();
        _primary = go_on_with(&mut world, standby);
        let rows = world.sql("SELECT count(*) FROM t");
        assert_eq!(rows, "100", "{more:?}");
        let summary = world.load(&[&[&b, "--table", "t", "--once"], more].concat()).unwrap();
        assert_eq!(summary["loaded"], 1000, "{more:?}: {summary}");
        exact(&mut world, "on the standby");
        assert_eq!(super::counts(&mut world), thrice(1100), "{more:?}");
    }
}

/// The same without `--once`: no row is recorded, so the outcome is unknown. The hint does not name
/// the number, also if no transaction has it yet: one will.
#[test]
fn nor_is_it_where_nothing_is_recorded() {
    for others in [500, 0] {
        let mut world = World::with(&each_major().remove(0), None, &SETTINGS[2..]);
        world.sql("CREATE TABLE t (a int, b text); INSERT INTO t VALUES (0, 'old')");
        let file = world.file("a.csv", &lines(1, 1000));
        let load = ["load", &file, "--table", "t", "--quiet"];
        // Dropped before the world, whose folder has its files.
        let (standby, code, said) = run_across_failover(&mut world, &load, others);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("the outcome is unknown"), "{said}");
        assert!(said.contains("hint: look which rows the table has"), "{said}");
        assert_eq!(ask(&standby, "SELECT count(*) FROM t"), "1");
    }
}
