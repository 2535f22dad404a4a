//! The server dies, the connection is cut, the user stops: all or nothing each time.

use crate::common::{each_major, on_each_major, signal, wait_until, Signal, World};
use std::io::{self, BufWriter, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The loader's own sessions: `staged` is in a COPY for moments only.
const SESSIONS: &str =
    "pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// A load that reads standard input, which stays open: it is under way until
/// the test ends it.
struct Underway(Child);

impl Underway {
    fn start(world: &World, method: &str) -> Underway {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["load", "-", "--table", "t", "--method", method, "--lanes", "2"])
            .args(["--to", &world.server.url("postgres")])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        send(child.stdin.as_mut().unwrap(), 300_000).unwrap();
        Underway(child)
    }

    /// The program hears of what has happened when it sends on.
    fn go_on(&mut self) {
        let _ = send(self.0.stdin.as_mut().unwrap(), 2_000_000);
    }

    /// Waits until the server has rows of the load in hand.
    fn wait(&self, world: &mut World) {
        let writing = format!("SELECT count(*) > 0 FROM {SESSIONS} AND backend_xid IS NOT NULL");
        wait_until(|| "the load does not come under way".into(), || world.sql(&writing) == "t");
    }

    /// The exit code and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        // Standard input stays open: the program must end without its end.
        let input = self.0.stdin.take();
        let output = self.0.wait_with_output().unwrap();
        drop(input);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Sends so many rows, or as many as are taken.
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
        let lost = "connection lost: the server said: terminating connection due to administrator";
        assert!(said.contains(lost) && said.contains("nothing was loaded"), "{method}: {said}");
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
    // The server's process may still say what it has noticed.
    let lost = said.contains("connection lost") || said.contains("unexpected postmaster exit");
    assert!(lost, "{said}");
    world.server.restart().unwrap();
    world.conn = pgsluice_engine::session::conn::Conn::open(&world.server.url("postgres")).unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// Neither a refused connection nor a summary tells the password.
fn secrets(world: &mut World) {
    let file = world.file("one.csv", b"1,x\n");
    let url = "postgresql://nobody:s3cr3t@127.0.0.1:1/none";
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", &file, "--table", "t", "--to", url])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(!said.contains("s3cr3t") && said.contains("hint:"), "{said}");
    empty(world);
    let url = format!("{}&password=s3cr3t", world.server.url("postgres"));
    let held = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "-", "--table", "t", "--to", &url])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let shown = || std::fs::read_to_string(format!("/proc/{}/cmdline", held.id())).unwrap();
    wait_until(shown, || shown().contains("--to") && !shown().contains("s3cr3t"));
    assert!(held.wait_with_output().unwrap().status.success());
    let summary = world.path("secret.json");
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", &file, "--table", "t", "--to", &url, "--summary", &summary])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8_lossy(&output.stderr).contains("s3cr3t"));
    assert!(!std::fs::read_to_string(summary).unwrap().contains("s3cr3t"));
}

/// A table with statement triggers gets one COPY; an error ends it at once all the same,
/// and notices, however many, are none.
#[test]
fn one_copy_for_statement_triggers_stops_at_the_first_error() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(
        "CREATE TABLE t (a int, b text); CREATE TABLE fired (n int);
         CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN RAISE NOTICE 'row % %', NEW.a, repeat('x', 300); RETURN NEW; END$$;
         CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN INSERT INTO fired VALUES (1); RETURN NULL; END$$;
         CREATE TRIGGER says BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION say();
         CREATE TRIGGER counts AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION counted()",
    );
    let row = |i| format!("{i},some words to fill the row with and more of them\n").into_bytes();
    let file = world.file("rows.csv", &(0..60_000).flat_map(row).collect::<Vec<u8>>());
    let summary = world.load(&[&file, "--table", "t"]).unwrap();
    assert_eq!((&summary["loaded"], &summary["statements"]), (&60_000.into(), &1.into()));
    assert_eq!(world.sql("SELECT count(*) FROM fired"), "1");

    world.sql("DROP TRIGGER says ON t; TRUNCATE t, fired");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "-", "--table", "t", "--to", &world.server.url("postgres")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.as_mut().unwrap();
    input.write_all(b"1,x\nbad,y\n").unwrap();
    let block: Vec<u8> = (0..10_000).flat_map(row).collect();
    let written = (0..4_000).take_while(|_| input.write_all(&block).is_ok()).count();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("record 2") && said.contains("\"bad\""), "{said}");
    assert!(
        written < 200,
        "{} MB were read before the error was told",
        written * block.len() / 1_000_000
    );
    assert_eq!(world.sql("SELECT count(*) FROM fired"), "0");
}

#[test]
fn faults() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        secrets(&mut world);
        cut(&mut world);
        interrupted(&mut world);
        killed(&mut world);
    });
}
