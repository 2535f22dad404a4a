//! While a load waits for its input, the server dies, the connection is cut, or the user stops the
//! load. Nothing is loaded in each case.

use crate::common::{each_major, on_each_major, signal, wait_until, Signal, World};
use crate::scheduler::has;
use std::io::{self, BufWriter, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The loader's sessions. Their state does not identify them, as `staged` is in a COPY only for
/// moments.
const SESSIONS: &str =
    "pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// A load that reads standard input. The input stays open, so the load runs until the test ends it.
struct Underway(Child);

impl Underway {
    fn start(world: &World, method: &str) -> Underway {
        let all = ["load", "-", "--table", "t", "--method", method, "--lanes", "2"];
        let mut child = world.start(&all);
        send(child.stdin.as_mut().unwrap(), 300_000).unwrap();
        Underway(child)
    }

    /// Sends more rows, so that the program notices what has happened.
    fn go_on(&mut self) {
        let _ = send(self.0.stdin.as_mut().unwrap(), 2_000_000);
    }

    /// Waits until the server has received rows of the load.
    fn wait(&self, world: &mut World) {
        let writing = format!("SELECT count(*) > 0 FROM {SESSIONS} AND backend_xid IS NOT NULL");
        wait_until(|| "the load does not come under way".into(), || world.sql(&writing) == "t");
    }

    /// Returns the exit code and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        // Standard input stays open: the program must end without waiting for its end.
        let input = self.0.stdin.take();
        let output = self.0.wait_with_output().unwrap();
        drop(input);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Sends this many rows, or as many as the program reads.
fn send(input: &mut ChildStdin, rows: u32) -> io::Result<()> {
    let mut input = BufWriter::new(input);
    for i in 0..rows {
        writeln!(input, "{i},some text")?;
    }
    input.flush()
}

fn empty(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text)");
}

fn cut(world: &mut World) {
    for method in ["copy-binary", "copy-csv", "lanes", "staged", "copy-fresh"] {
        empty(world);
        let mut underway = Underway::start(world, method);
        underway.wait(world);
        world.sql(&format!("SELECT pg_terminate_backend(pid) FROM {SESSIONS}"));
        underway.go_on();
        let (code, said) = underway.end();
        assert_eq!(code, Some(5), "{method}: {said}");
        // The server's last message may be lost with the connection.
        let lost =
            ["the server said: terminating connection due to administrator", "server closed"];
        let lost = lost.iter().any(|why| said.contains(&format!("connection lost: {why}")));
        assert!(lost && said.contains("nothing was loaded"), "{method}: {said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{method}");
    }
}

fn interrupted(world: &mut World) {
    for method in ["copy-binary", "lanes", "staged"] {
        empty(world);
        let underway = Underway::start(world, method);
        underway.wait(world);
        assert!(signal(underway.0.id(), Signal::SIGINT));
        let (code, said) = underway.end();
        assert_eq!(code, Some(7), "{method}: {said}");
        assert!(said.contains("rolled everything back"), "{method}: {said}");
        let sessions = format!("SELECT count(*) FROM {SESSIONS}");
        wait_until(|| format!("the server goes on with {method}"), || world.sql(&sessions) == "0");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{method}");
    }
}

fn killed(world: &mut World) {
    empty(world);
    let mut underway = Underway::start(world, "copy-binary");
    underway.wait(world);
    world.server.kill9().unwrap();
    underway.go_on();
    let (code, said) = underway.end();
    assert_eq!(code, Some(5), "{said}");
    // Accept the server's final message after a kill.
    let lost = said.contains("connection lost") || said.contains("unexpected postmaster exit");
    assert!(lost, "{said}");
    world.server.restart().unwrap();
    world.conn = pgsluice_engine::internals::Conn::open(&world.server.url("postgres")).unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// A load waits for its input while its connection is terminated, it gets Ctrl-C, or the server is
/// killed. Nothing is loaded, and the exit code says what happened.
#[test]
fn lost_stopped_and_killed() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        cut(&mut world);
        interrupted(&mut world);
        killed(&mut world);
    });
}

/// A signal that is ignored when the program starts, as SIGHUP under `nohup`, does not stop the
/// load.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let mut world = World::new(each_major().last().unwrap());
    empty(&mut world);
    let script = "trap '' HUP INT; exec \"$0\" load - --quiet --table t --to \"$1\"";
    let mut load = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_pgsluice"), &world.server.url("postgres")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    send(load.stdin.as_mut().unwrap(), 300_000).unwrap();
    let mut underway = Underway(load);
    underway.wait(&mut world);
    for ignored in [Signal::SIGHUP, Signal::SIGINT] {
        assert!(!has("SigCgt:", underway.0.id(), ignored), "{ignored:?}");
        assert!(signal(underway.0.id(), ignored));
    }
    send(underway.0.stdin.as_mut().unwrap(), 300_000).unwrap();
    drop(underway.0.stdin.take());
    let (code, said) = underway.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "600000");
}

/// Waits for the end of a process for a limited time. Returns whether it has ended.
fn ends_within(child: &mut Child, seconds: u64) -> bool {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(seconds) {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
    true
}

/// The server executes a long statement and accepts no request to cancel it, since the postmaster is
/// stopped. After the first Ctrl-C, the load waits for the server; after the second one, it ends.
#[test]
fn a_second_signal_does_not_wait_for_the_server() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(
        "CREATE TABLE t (a int, b text);
         CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_sleep(3600); RETURN new; END';
         CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
    );
    let file = world.file("row.csv", b"1,some text\n");
    let mut load = world.start(&["load", &file, "--table", "t"]);
    let sleeping = format!("SELECT count(*) FROM {SESSIONS} AND wait_event = 'PgSleep'");
    wait_until(|| "the trigger does not run".into(), || world.sql(&sleeping) == "1");
    let postmaster = u32::try_from(world.server.pid().unwrap()).unwrap();
    assert!(signal(postmaster, Signal::SIGSTOP));
    signal(load.id(), Signal::SIGINT);
    // A second signal that is sent before the first one is delivered would be lost.
    let delivered = || !has("ShdPnd:", load.id(), Signal::SIGINT);
    wait_until(|| "the signal is not delivered".into(), delivered);
    let early = ends_within(&mut load, 2);
    signal(load.id(), Signal::SIGINT);
    let ended = ends_within(&mut load, 60);
    signal(postmaster, Signal::SIGCONT);
    let _ = load.kill();
    let output = load.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!early && ended, "{early} {ended}: {said}");
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("stopped without waiting for the server"), "{said}");
    world.sql(&format!("SELECT pg_terminate_backend(pid) FROM {SESSIONS}"));
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}
