//! Indexes and triggers that a load took down and could not put back. The same command puts them
//! back or fails; it never succeeds while one of them is down.

use super::{counts, lines, thrice, world};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{wait_until, World};
use pgsluice_engine::internals::{ledger, Conn};
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};

const ROWS: usize = 40_000;

const LANES: [&str; 6] = ["--method", "lanes", "--lanes", "2", "--triggers", "off"];

const UP: &str = "SELECT (to_regclass('t_a') IS NOT NULL)::int + \
    (SELECT count(*) FROM pg_trigger WHERE tgname = 'fires' AND tgenabled = 'O')";

/// Creates a table with an index and a trigger, and a file for it.
fn with_objects() -> (World, String) {
    let mut world = world();
    world.sql(
        "CREATE INDEX t_a ON t (a);
         CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER fires BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fire()",
    );
    let path = world.file("a.csv", &lines(0, ROWS));
    (world, path)
}

/// Starts a load that stops at this statement.
fn held_at(world: &World, path: &str, statement: &'static str) -> Child {
    let proxy = Proxy::start(world, statement, 0, Fate::Hold, false);
    let child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", path, "--table", "t", "--once", "--quiet", "--to", &proxy.target()])
        .args(LANES)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    proxy.wait();
    child
}

/// Starts a load and kills it at this statement.
fn killed_at(world: &mut World, path: &str, statement: &'static str) {
    let mut child = held_at(world, path, statement);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(world.sql(UP), "0");
}

fn load(world: &World, path: &str, more: &[&str]) -> Result<Value, String> {
    world.load(&[&[path, "--table", "t", "--once"], more].concat())
}

fn run(world: &World, path: &str, more: &[&str]) -> (Option<i32>, String) {
    let all = [&["load", path, "--table", "t", "--once", "--quiet"], more].concat();
    let Output { status, stderr, .. } = world.run(&all);
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Returns what a plan says after the server has noticed that the load is gone.
fn planned(world: &World, path: &str) -> String {
    let mut said = String::new();
    wait_until(
        || "the plan does not say what is down".into(),
        || {
            let output = world.run(&["plan", path, "--table", "t", "--once"]);
            said = String::from_utf8_lossy(&output.stdout).into_owned();
            said.contains("an earlier load dropped")
        },
    );
    said
}

/// A load is killed before its first commit of rows, or after all rows are committed and recorded.
/// The same command puts back what is down and loads what is missing.
#[test]
fn the_same_command_puts_back_what_a_killed_load_left_down() {
    let (mut world, path) = with_objects();
    for (statement, loaded) in [("COPY ", ROWS), ("CREATE INDEX", 0)] {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        killed_at(&mut world, &path, statement);
        let said = planned(&world, &path);
        assert!(
            said.contains("index public.t_a") && said.contains("this load recreates it first"),
            "{said}"
        );
        assert!(said.contains("on \"public\".\"t\" from the beginning"), "{said}");
        let summary = load(&world, &path, &LANES).unwrap();
        assert_eq!(summary["loaded"], loaded, "{statement}: {summary}");
        assert_eq!(world.sql(UP), "2", "{statement}: {summary}");
        let notes = summary["notes"].to_string();
        assert!(
            notes.contains("index public.t_a, which an earlier load dropped or disabled"),
            "{notes}"
        );
        assert_eq!(counts(&mut world), thrice(ROWS), "{statement}");
        assert!(!load(&world, &path, &LANES).unwrap().to_string().contains("earlier load dropped"));
    }
    // Machines that share a load do so, too.
    world.sql("TRUNCATE t; DROP SCHEMA pgsluice_loads CASCADE");
    killed_at(&mut world, &path, "CREATE INDEX");
    planned(&world, &path);
    let summary = load(&world, &path, &["--share"]).unwrap();
    assert_eq!((&summary["loaded"], world.sql(UP).as_str()), (&0.into(), "2"), "{summary}");
}

/// The server restarts after all rows are committed and before all objects are back. The load exits
/// with 5, and the same command puts them back.
#[test]
fn the_same_command_puts_back_what_a_restart_left_down() {
    let (mut world, path) = with_objects();
    let child = held_at(&world, &path, "CREATE INDEX");
    world.server.kill9().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("still missing: "), "{said}");
    world.restart_with(&[]);
    assert_eq!(world.sql(UP), "0");
    let (code, said) = run(&world, &path, &LANES);
    assert_eq!((code, world.sql(UP).as_str()), (Some(0), "2"), "{said}");
    assert_eq!(counts(&mut world), thrice(ROWS));
}

/// If an object cannot be put back, the load fails and says so, until the cause is removed.
/// `repair` names the objects, the reason and what to do.
#[test]
fn what_cannot_be_put_back_is_an_error() {
    let (mut world, path) = with_objects();
    killed_at(&mut world, &path, "CREATE INDEX");
    planned(&world, &path);
    let repair = |world: &World| {
        let Output { status, stderr, .. } = world.run(&["repair"]);
        let said = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(status.code(), Some(1), "{said}");
        said
    };
    world.sql("ALTER TABLE t RENAME TO u");
    let said = repair(&world);
    assert!(said.contains("error: still missing: "), "{said}");
    assert!(said.contains("index public.t_a") && said.contains("trigger fires"), "{said}");
    assert!(said.contains(": the table public.t is now called public.u"), "{said}");
    assert!(said.contains("hint: give it its old name back and run repair again"), "{said}");
    world.sql("ALTER TABLE u RENAME TO t; ALTER TABLE t RENAME a TO other");
    for _ in 0..2 {
        let (code, said) = run(&world, &path, &LANES);
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("index public.t_a, which an earlier load dropped or disabled"),
            "{said}"
        );
        assert!(said.contains("hint: ") && said.contains("pgsluice repair"), "{said}");
        assert!(!said.contains("nothing new"), "{said}");
    }
    // The load that could have left the index in place is gone.
    let said = repair(&world);
    assert!(said.contains("error: still missing: index public.t_a: "), "{said}");
    assert!(!said.contains("--indexes keep"), "{said}");
    world.sql("ALTER TABLE t RENAME other TO a");
    // A lane of a load that was killed between PREPARE TRANSACTION and COMMIT PREPARED.
    world.sql("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'pgsluice_3_1'");
    let (code, said) = run(&world, &path, &LANES);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("prepared transaction pgsluice_3_1 holds a lock"), "{said}");
    world.sql("ROLLBACK PREPARED 'pgsluice_3_1'");
    world.sql("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE");
    let (code, said) = run(&world, &path, &["--lock-timeout", "300ms"]);
    assert_eq!(code, Some(6), "{said}");
    world.sql("COMMIT");
    // Putting the index back would make writers wait.
    for command in ["load", "plan"] {
        let output = world.run(&[command, &path, "--table", "t", "--once", "--no-lock-out"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--no-lock-out forbids this load: SHARE on"), "{said}");
    }
    let (code, said) = run(&world, &path, &LANES);
    assert_eq!((code, world.sql(UP).as_str()), (Some(0), "2"), "{said}");
}

/// Of the prepared transactions that lock the table, the load looks for lanes of any role whose load
/// is gone. It waits for lanes of a load that is about to commit, and other transactions are no
/// lanes.
#[test]
fn a_prepared_lane_is_found_among_other_transactions() {
    let (mut world, path) = with_objects();
    killed_at(&mut world, &path, "CREATE INDEX");
    planned(&world, &path);
    let mut prepare = |gid: &str, mode: &str| {
        let locked = format!("BEGIN; LOCK TABLE t IN {mode} MODE");
        world.sql(&format!("{locked}; PREPARE TRANSACTION '{gid}'"));
    };
    prepare("pgsluice_nodes_2b_0", "ACCESS SHARE");
    prepare("pgsluice_3_0", "ROW EXCLUSIVE");
    world.sql("CREATE ROLE clerk; GRANT ALL ON t TO clerk; SET ROLE clerk");
    world.sql("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'pgsluice_5_0'");
    world.sql("RESET ROLE");
    let mut committing = Conn::open(&world.server.url("postgres")).unwrap();
    committing.exec("BEGIN").unwrap();
    assert!(ledger::lock(&mut committing, "3").unwrap());
    let (code, said) = run(&world, &path, &LANES);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the prepared transaction pgsluice_5_0 holds a lock"), "{said}");
    assert!(said.contains("hint: run pgsluice repair as the role clerk"), "{said}");
    world.sql("ROLLBACK PREPARED 'pgsluice_5_0'");
    let (code, said) = run(&world, &path, &["--lock-timeout", "300ms"]);
    assert_eq!(code, Some(6), "{said}");
    world.sql("ROLLBACK PREPARED 'pgsluice_3_0'");
    let (code, said) = run(&world, &path, &LANES);
    assert_eq!((code, world.sql(UP).as_str()), (Some(0), "2"), "{said}");
}

/// Objects that a running load has down are left to it. A load with nothing else to do waits for
/// it.
#[test]
fn what_a_running_load_has_down_is_waited_for() {
    let (mut world, path) = with_objects();
    let mut child = held_at(&world, &path, "CREATE INDEX");
    let (code, said) = run(&world, &path, &["--lock-timeout", "300ms"]);
    assert_eq!(code, Some(6), "{said}");
    // A load that has rows to load goes on.
    let other = world.file("b.csv", &lines(ROWS, 10));
    assert_eq!(load(&world, &other, &[]).unwrap()["loaded"], 10);
    assert_eq!(world.sql(UP), "0");
    child.kill().unwrap();
    child.wait().unwrap();
    let (code, said) = run(&world, &path, &["--lock-timeout", "1min"]);
    assert_eq!((code, world.sql(UP).as_str()), (Some(0), "2"), "{said}");
    assert_eq!(counts(&mut world), thrice(ROWS + 10));
}
