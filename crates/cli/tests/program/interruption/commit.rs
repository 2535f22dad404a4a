//! Failures around the commit: the connection is cut before the server has received COMMIT or after
//! it has answered, or the loader dies between the commits of lanes. The message must say what has
//! happened in the database.

use crate::common::proxy::{Fate, Proxy};
use crate::common::{each_major, left_out, signal, wait_until, Signal, World};
use crate::methods::with_extension;
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::Installation;
use std::io::Write;
use std::ops::Range;
use std::process::{Command, Stdio};

const ROWS: usize = 60_000;

pub(super) fn world() -> (World, String) {
    world_of(each_major().last().unwrap())
}

fn world_of(installation: &Installation) -> (World, String) {
    let mut world = World::new(installation);
    world.sql("CREATE TABLE t (a int, b text)");
    let row = |i| format!("{i},some words to fill the row with\n").into_bytes();
    let file = world.file("rows.csv", &(0..ROWS).flat_map(row).collect::<Vec<u8>>());
    (world, file)
}

pub(super) fn command(file: &str, proxy: &Proxy, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    command.args(["load", file, "--table", "t", "--quiet", "--to", &proxy.target()]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Runs a load through the proxy; returns the exit code and standard error.
fn load(file: &str, proxy: &Proxy, more: &[&str]) -> (Option<i32>, String) {
    let output = command(file, proxy, more).output().unwrap();
    assert!(proxy.sprung(), "the statement never came: {output:?}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The number of rows in the table, and of transactions that are still prepared.
pub(super) fn left(world: &mut World) -> (usize, String) {
    let rows = world.sql("SELECT count(*) FROM t").parse().unwrap();
    (rows, world.sql("SELECT count(*) FROM pg_prepared_xacts"))
}

/// If the connection is lost before the server has received COMMIT, nothing is loaded, and exit
/// code 5 says that the load may be run again.
#[test]
fn a_cut_before_the_commit_leaves_nothing() {
    let (mut world, file) = world();
    let proxy = Proxy::start(&world, "COMMIT", 0, Fate::CutBefore, false);
    let (code, said) = load(&file, &proxy, &["--method", "copy-csv"]);
    // Exit code 5: the same load may be run again.
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("connection lost") && !said.contains("unknown"), "{said}");
    assert_eq!(left(&mut world).0, 0);
}

/// If the connection is lost after COMMIT, the loader asks the server over a new connection and
/// reports success.
#[test]
fn a_cut_after_the_commit_is_found_to_be_a_success() {
    let (mut world, file) = world();
    let proxy = Proxy::start(&world, "COMMIT", 0, Fate::CutAfter, false);
    let (code, said) = load(&file, &proxy, &["--method", "copy-csv"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(left(&mut world).0, ROWS);
}

/// Without two-phase commit, the lanes commit one after another. If the connection is lost in
/// between, the message says how many rows have been committed.
#[test]
fn lanes_cut_between_their_commits_name_what_stayed() {
    let (mut world, file) = world();
    // More lanes than the server's max_prepared_transactions.
    let lanes = ["--method", "lanes", "--lanes", "5"];
    let proxy = Proxy::start(&world, "COMMIT\0", 2, Fate::CutBefore, false);
    let (code, said) = load(&file, &proxy, &lanes);
    assert_eq!(code, Some(1), "{said}");
    let named = said.split_once("changed: ").unwrap().1;
    assert!(named.contains("rows, which 2 lanes had committed before"), "{said}");
    let rows: usize = named.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(left(&mut world).0, rows);
    assert!(rows < ROWS);
}

/// The same with `--truncate`: the message also says that the table was emptied. It names a sequence
/// that may be behind the keys; if an index finds them, the sequence has passed them before.
#[test]
fn lanes_cut_between_their_commits_name_all_that_is_changed() {
    let (mut world, file) = world();
    let truncate = ["--truncate", "--indexes", "keep"];
    let lanes = [&["--method", "lanes", "--lanes", "5"][..], &truncate].concat();
    for indexed in [true, false] {
        let index = if indexed { "CREATE INDEX ON t (a)" } else { "" };
        world.sql(&format!(
            "DROP TABLE t; CREATE TABLE t (a serial, b text); INSERT INTO t VALUES (-1, ''); {index}"
        ));
        let proxy = Proxy::start(&world, "COMMIT\0", 1, Fate::CutBefore, false);
        let (code, said) = load(&file, &proxy, &lanes);
        assert_eq!(code, Some(1), "{said}");
        let named = said.split_once("changed: the table was emptied; ").unwrap().1;
        assert!(named.contains(" rows, which 1 lane had committed before"), "{said}");
        let rows: usize = named.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(left(&mut world).0, rows, "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t WHERE a < 0"), "0");
        let behind = "; not moved past the keys: sequence public.t_a_seq";
        assert_eq!(said.contains(behind), !indexed, "{said}");
        let passed = world.sql("SELECT nextval('t_a_seq') > max(a) FROM t");
        assert_eq!(passed == "t", indexed, "{said}");
    }
}

/// With two-phase commit, a connection may be lost at any step. Over another one, the loader
/// commits or rolls back all lanes and leaves nothing prepared.
#[test]
fn two_phase_commit_survives_a_cut_at_every_step() {
    let (mut world, file) = world();
    let lanes = ["--method", "lanes", "--lanes", "3"];
    for fate in [Fate::CutBefore, Fate::CutAfter] {
        for (statement, pass, rows) in [
            ("PREPARE TRANSACTION", 0, 0),
            ("PREPARE TRANSACTION", 2, 0),
            ("COMMIT PREPARED", 0, ROWS),
            ("COMMIT PREPARED", 2, ROWS),
        ] {
            world.sql("TRUNCATE t");
            let proxy = Proxy::start(&world, statement, pass, fate, false);
            let (code, said) = load(&file, &proxy, &lanes);
            let label = format!("{statement} {pass} {fate:?}: {said}");
            assert_eq!(code, Some(if rows > 0 { 0 } else { 5 }), "{label}");
            assert!(!said.contains("changed:"), "{label}");
            assert_eq!(left(&mut world), (rows, "0".to_string()), "{label}");
        }
    }
}

/// The connection is lost at COMMIT PREPARED, and the server that answers afterwards does not have
/// the transaction, as a standby that lagged. The load fails, and says which rows may be there. If
/// another transaction has the same number there and is committed, the outcome is unknown.
#[test]
fn a_prepared_transaction_that_the_server_lacks_is_not_committed() {
    let (mut world, file) = world();
    let mut other = World::new(each_major().last().unwrap());
    let lanes = ["--method", "lanes", "--lanes", "2"];
    let (lacks, unknown) = ("is it a standby that lagged?", "the outcome is unknown");
    for (pass, expected, why, what) in [
        (0, 5, lacks, "nothing was loaded"),
        (1, 1, lacks, "changed: perhaps: "),
        (0, 1, unknown, "changed: perhaps: the rows of all lanes"),
        (1, 1, unknown, "changed: perhaps: the rows of all lanes"),
    ] {
        world.sql("TRUNCATE t");
        if why == unknown {
            other.sql("DO $$ BEGIN FOR i IN 1..500 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$");
        }
        let proxy = Proxy::start(&world, "COMMIT PREPARED", pass, Fate::CutBefore, false);
        proxy.fail_over_to(&other.server);
        let (code, said) = load(&file, &proxy, &lanes);
        assert_eq!(code, Some(expected), "{said}");
        assert!(said.contains(why) && said.contains(what), "{said}");
        world.repair();
        assert_eq!(left(&mut world), (pass * ROWS, "0".to_string()), "{said}");
    }
}

/// Another session rolls back the first lane while it is prepared, and the load's session is
/// terminated. The load fails and reports that the other lane is left. It does not wait for the
/// locks of that lane to drop a table that it has made.
#[test]
fn a_prepared_transaction_that_was_rolled_back_leaves_the_other_lanes() {
    let (mut world, file) = world();
    world.sql("DROP TABLE t");
    let lanes = ["--method", "lanes", "--lanes", "2", "--create", "--columns", "a,b"];
    for more in [&lanes[..], &lanes[..4]] {
        let proxy = Proxy::start(&world, "COMMIT PREPARED", 0, Fate::Hold, false);
        let mut child = command(&file, &proxy, more).stderr(Stdio::piped()).spawn().unwrap();
        proxy.wait();
        let first = world.sql("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE '%\\_0'");
        world.sql(&format!("ROLLBACK PREPARED '{first}'"));
        world.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE query LIKE 'PREPARE TRANSACTION%' AND pid <> pg_backend_pid()",
        );
        wait_until(|| "the load does not end".into(), || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{more:?}: {said}");
        let left_prepared = "changed: prepared transactions of the other lanes are left";
        assert!(said.contains(left_prepared) && said.contains("hint: pgsluice repair"), "{said}");
        assert_eq!(left(&mut world).1, "1", "{said}");
        world.repair();
        assert_eq!(left(&mut world), (0, "0".to_string()), "{said}");
    }
}

/// If no other connection is possible, the message says what is left prepared, and `repair` ends
/// all lanes in the way in which the first one ended.
#[test]
fn repair_ends_what_a_half_failed_two_phase_commit_left() {
    let (mut world, file) = world();
    let lanes = ["--method", "lanes", "--lanes", "3", "--truncate"];
    for (statement, pass, fate, rows) in [
        ("COMMIT PREPARED", 0, Fate::CutBefore, 0),
        ("COMMIT PREPARED", 0, Fate::CutAfter, ROWS),
        ("COMMIT PREPARED", 1, Fate::CutBefore, ROWS),
        ("PREPARE TRANSACTION", 1, Fate::CutAfter, 0),
    ] {
        world.sql("TRUNCATE t");
        let proxy = Proxy::start(&world, statement, pass, fate, true);
        let (code, said) = load(&file, &proxy, &lanes);
        let label = format!("{statement} {pass} {fate:?}: {said}");
        assert_eq!(code, Some(1), "{label}");
        assert!(said.contains("left: ") && said.contains("hint: pgsluice repair"), "{label}");
        let emptied = said.contains("changed: the table was emptied; 1 lane is committed; left: ");
        assert_eq!(emptied, statement == "COMMIT PREPARED" && pass == 1, "{label}");
        assert_ne!(left(&mut world).1, "0", "{label}");
        world.repair();
        assert_eq!(left(&mut world), (rows, "0".to_string()), "{label}");
    }
}

/// With `--truncate`, lanes load a table with a key if it is empty. If it has rows, there is one
/// lane: another would wait for keys that are not free before the commit.
#[test]
fn lanes_empty_a_table_with_keys() {
    let (mut world, file) = world();
    world.sql("ALTER TABLE t ADD PRIMARY KEY (a)");
    let arguments = [&file, "--table", "t", "--method", "lanes", "--lanes", "2", "--truncate"];
    for lanes in [2, 1] {
        let summary = world.load(&arguments).unwrap();
        assert_eq!((&summary["loaded"], &summary["lanes"]), (&ROWS.into(), &lanes.into()));
    }
    assert_eq!(left(&mut world).0, ROWS);
}

/// If the lanes cannot be committed, the table that `--create` made is dropped, too.
#[test]
fn a_refused_commit_takes_back_the_table() {
    let (mut world, file) = world();
    world.sql("DROP TABLE t");
    // Other sessions have all but one of the prepared transactions that the server allows.
    for i in 0..3 {
        world.sql(&format!("BEGIN; CREATE TABLE other{i} (); PREPARE TRANSACTION 'other{i}'"));
    }
    let arguments = [&file, "--table", "t", "--create", "--method", "lanes", "--lanes", "2"];
    let said = world.load(&arguments).unwrap_err();
    assert!(said.contains("maximum number of prepared transactions"), "{said}");
    assert!(!said.contains("changed:"), "{said}");
    assert_eq!(world.sql("SELECT to_regclass('t')"), "");
    let others = "SELECT count(*) FROM pg_prepared_xacts WHERE gid NOT LIKE 'other%'";
    assert_eq!(world.sql(others), "0");
}

/// A transaction that used NOTIFY cannot be prepared. Lanes fail, nothing is left, and the hint
/// names a method that works.
#[test]
fn what_cannot_be_prepared_goes_by_one_connection() {
    let (mut world, file) = world();
    world.sql(
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY t; RETURN NULL; END';
         CREATE TRIGGER tell AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION tell()",
    );
    let arguments = [&file, "--table", "t", "--method", "lanes", "--lanes", "2"];
    let said = world.load(&arguments).unwrap_err();
    assert!(said.contains("cannot PREPARE") && said.contains("hint: --method auto"), "{said}");
    assert!(!said.contains("changed:"), "{said}");
    assert_eq!(left(&mut world), (0, "0".to_string()));
}

/// If the loader is killed while lanes are prepared, `plan` says what is left, and `repair` ends
/// all lanes in the way in which the first one ended. `repair` leaves a running load alone.
#[test]
fn repair_ends_what_a_killed_loader_left_prepared() {
    let (mut world, file) = world();
    // As some old applications need it: a backslash is an escape in every literal.
    world.sql("ALTER DATABASE postgres SET standard_conforming_strings = off");
    let lanes = ["--method", "lanes", "--lanes", "3"];
    for (pass, rows) in [(0, 0), (1, ROWS)] {
        world.sql("TRUNCATE t");
        let proxy = Proxy::start(&world, "COMMIT PREPARED", pass, Fate::Hold, false);
        let mut child = command(&file, &proxy, &lanes).stderr(Stdio::null()).spawn().unwrap();
        proxy.wait();
        // `repair` leaves a running load alone.
        let output = world.run(&["repair"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("a load is running"), "{said}");
        assert_eq!(left(&mut world).1, (3 - pass).to_string());
        let plan = |world: &World| {
            let output = world.run(&["plan", &file, "--table", "t"]);
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(!plan(&world).contains("left prepared"), "a load at work has left nothing");
        child.kill().unwrap();
        child.wait().unwrap();
        // The plan of the next load says what is left.
        let note = "note      an earlier load left prepared transactions, which hold their locks: ";
        wait_until(|| "nothing is said to be left".into(), || plan(&world).contains(note));
        let gids =
            world.sql("SELECT string_agg(gid, ', ' ORDER BY prepared) FROM pg_prepared_xacts");
        assert!(plan(&world).contains(&format!("{note}{gids}; pgsluice repair ends them")));
        world.repair();
        assert!(!plan(&world).contains("left prepared"));
        assert_eq!(left(&mut world), (rows, "0".to_string()), "after {pass} commits");
    }
}

/// The loader is killed between the commits of lanes, and `repair` commits the rest. If an index
/// finds the keys, the sequence has passed them before. Otherwise, `repair` names the sequence.
#[test]
fn no_sequence_is_left_behind_unsaid_by_a_killed_loader() {
    let (mut world, file) = world();
    let lanes = ["--method", "lanes", "--lanes", "3"];
    for (key, indexed) in [("PRIMARY KEY", true), ("", false)] {
        world.sql(&format!("DROP TABLE t; CREATE TABLE t (a serial {key}, b text)"));
        let proxy = Proxy::start(&world, "COMMIT PREPARED", 1, Fate::Hold, false);
        let mut child = command(&file, &proxy, &lanes).stderr(Stdio::null()).spawn().unwrap();
        proxy.wait();
        child.kill().unwrap();
        child.wait().unwrap();
        let said = world.repair();
        assert_eq!(left(&mut world), (ROWS, "0".to_string()), "{said}");
        let told = format!("sequence public.t_a_seq not moved past {}: move it", ROWS - 1);
        assert_eq!(said.contains(&told), !indexed, "{said}");
        let next: usize = world.sql("SELECT nextval('t_a_seq')").parse().unwrap();
        assert_eq!(next >= ROWS, indexed, "{next}: {said}");
    }
}

/// If a load by `insert` fails, the sequence passes the keys of the rows that stay. If it cannot, the
/// message names it.
#[test]
fn a_sequence_passes_the_keys_of_rows_that_stay() {
    let (mut world, _) = world();
    let file = world.file("bad.csv", b"5,x\n7,y\nbad,z\n");
    let behind = "; sequence public.t_a_seq not moved past 7: it ends before that key";
    for (sequence, more, next) in [("MAXVALUE 100", "", "8"), ("MAXVALUE 2", behind, "1")] {
        world.sql(&format!(
            "DROP TABLE t; CREATE TABLE t (a serial, b text); ALTER SEQUENCE t_a_seq {sequence}"
        ));
        let said = world.load(&[&file, "--table", "t", "--method", "insert"]).unwrap_err();
        assert!(said.contains(&format!("changed: 2 rows stayed{more}\n")), "{said}");
        assert_eq!(world.sql("SELECT nextval('t_a_seq')"), next, "{said}");
    }
}

/// If the loader is killed during a load by `insert`, the sequence has passed the keys of all rows
/// that stay. The key of a record that is refused moves it nowhere, even if only a foreign key refuses
/// the record.
#[test]
fn a_sequence_passes_the_key_of_each_row_that_is_committed() {
    let (mut world, file) = world();
    let rows = 300;
    for table in ["t (a serial, b text)", "t (a int GENERATED ALWAYS AS IDENTITY, b text)"] {
        world.sql(&format!("DROP TABLE t; CREATE TABLE {table}"));
        let statement = "SET LOCAL synchronous_commit";
        let proxy = Proxy::start(&world, statement, rows, Fate::Hold, false);
        let mut load = command(&file, &proxy, &["--method", "insert"]);
        let mut child = load.stderr(Stdio::null()).spawn().unwrap();
        proxy.wait();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(left(&mut world).0, rows, "{table}");
        assert_eq!(world.sql("SELECT nextval('t_a_seq')"), rows.to_string(), "{table}");
    }
    world.sql("CREATE TABLE p (b text PRIMARY KEY); INSERT INTO p VALUES ('x')");
    world.sql("DROP TABLE t; CREATE TABLE t (a serial, b text REFERENCES p)");
    let file = world.file("refused.csv", b"5,x\n2000000,y\n");
    let said = world.load(&[&file, "--table", "t", "--method", "insert"]).unwrap_err();
    assert!(said.contains("violates foreign key constraint"), "{said}");
    assert_eq!(left(&mut world).0, 1, "{said}");
    assert_eq!(world.sql("SELECT nextval('t_a_seq')"), "6", "{said}");
}

/// With CACHE, a session has numbers left from an earlier row when it moves the sequence, which
/// passes the keys of all rows.
#[test]
fn a_sequence_with_cache_passes_the_key_of_each_row() {
    let (mut world, _) = world();
    world.sql("DROP TABLE t; CREATE TABLE t (a serial, b text); ALTER SEQUENCE t_a_seq CACHE 50");
    let rows = (1..=105).map(|key| format!("{key},x\n")).collect::<String>();
    let file = world.file("keys.csv", rows.as_bytes());
    world.load(&[&file, "--table", "t", "--method", "insert"]).unwrap();
    let next: usize = world.sql("SELECT nextval('t_a_seq')").parse().unwrap();
    assert!(next > 105, "{next}");
}

/// With CACHE, the sequence of a key is moved at the end if rows draw from another one, by a default or
/// a trigger: a move with each row would drop what the session has reserved of that one.
#[test]
fn no_row_drops_the_numbers_of_another_sequence() {
    let (mut world, _) = world();
    world.sql(
        "CREATE SEQUENCE other CACHE 1000;
         CREATE FUNCTION draw() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN PERFORM nextval('other'); RETURN NULL; END$$",
    );
    let rows = (1..=105).map(|key| format!("{key},x\n")).collect::<String>();
    let file = world.file("keys.csv", rows.as_bytes());
    for (column, trigger) in [
        ("bigint DEFAULT nextval('other')", ""),
        ("int", "CREATE TRIGGER draws AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION draw()"),
    ] {
        world.sql(&format!(
            "DROP TABLE t; CREATE TABLE t (a serial, b text, c {column});
             ALTER SEQUENCE t_a_seq CACHE 20; ALTER SEQUENCE other RESTART; {trigger}"
        ));
        let load = [&file, "--table", "t", "--columns", "a,b", "--method", "insert"];
        world.load(&load).unwrap();
        assert_eq!(world.sql("SELECT last_value FROM other"), "1000", "{column}");
        let next: usize = world.sql("SELECT nextval('t_a_seq')").parse().unwrap();
        assert!(next > 105, "{column}: {next}");
    }
}

/// If the connection is lost while `insert` commits a row, that row may or may not have been
/// committed, and the message says so.
#[test]
fn the_row_under_way_may_have_stayed() {
    let (mut world, file) = world();
    for (pass, said_rows) in [(2, "2 rows were committed, perhaps one more"), (0, "0 rows were")] {
        for (fate, more) in [(Fate::CutBefore, 0), (Fate::CutAfter, 1)] {
            world.sql("TRUNCATE t");
            let proxy = Proxy::start(&world, "SET LOCAL synchronous_commit", pass, fate, false);
            let (code, said) = load(&file, &proxy, &["--method", "insert"]);
            assert!(code == Some(1) && said.contains(said_rows), "{fate:?}: {said}");
            assert_eq!(left(&mut world).0, pass + more, "{fate:?}");
        }
    }
}

/// The connection is lost after a COMMIT. The session that takes its place has not loaded the library
/// of the extension yet, and the load by the extension goes on there.
#[test]
fn a_load_by_the_extension_goes_on_in_another_session() {
    let Some(installation) = each_major().iter().find_map(with_extension) else {
        return left_out("a load by the extension in two sessions: it has not been built");
    };
    let (mut world, file) = world_of(&installation);
    world.sql("CREATE EXTENSION pgsluice");
    let proxy = Proxy::start(&world, "COMMIT", 0, Fate::CutAfter, false).after_rows();
    let more = ["--method", "extension", "--once", "--commit-every", "256kB"];
    let (code, said) = load(&file, &proxy, &more);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(left(&mut world).0, ROWS);
}

/// The connection is lost after a COMMIT, and the load goes on over another one. Ctrl-C ends what
/// that one waits for.
#[test]
fn a_load_can_be_stopped_after_its_connection_was_replaced() {
    let (mut world, _) = world();
    world.sql("ALTER TABLE t ADD PRIMARY KEY (a)");
    let rows = |keys: Range<usize>| {
        keys.map(|key| format!("{key},{}\n", "x".repeat(90))).collect::<String>()
    };
    let proxy = Proxy::start(&world, "COMMIT", 0, Fate::CutAfter, false).after_rows();
    let more = ["--once", "--source-name", "rows", "--commit-every", "256kB"];
    let mut load = command("-", &proxy, &more);
    let mut child = load.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(rows(0..20_000).as_bytes()).unwrap();
    proxy.wait();
    wait_until(|| "nothing is committed".into(), || left(&mut world).0 > 0);
    // The load waits for a session that has one of its next keys.
    let mut other = Conn::open(&world.server.url("postgres")).unwrap();
    other.exec("BEGIN; INSERT INTO t VALUES (30000, '')").unwrap();
    input.write_all(rows(20_000..40_000).as_bytes()).unwrap();
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until(|| "the load does not wait".into(), || world.sql(waits) == "1");
    assert!(signal(child.id(), Signal::SIGINT));
    wait_until(|| "the load does not end".into(), || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}
