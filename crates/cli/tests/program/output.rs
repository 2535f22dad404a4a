//! Standard output and standard error that nobody reads, or that cannot be written to.

use crate::common::{each_major, left_out, World};
use pgsluice_pgserver::scratch;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// A stream whose reader is gone.
fn closed() -> Stdio {
    let (ours, _) = UnixStream::pair().unwrap();
    OwnedFd::from(ours).into()
}

/// A stream whose disk is full.
fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// If the reader of standard output is gone, that is no failure. If a full disk loses output, it
/// is.
#[test]
fn a_closed_stdout_is_no_failure_and_a_full_one_is() {
    let mut world = World::new(&each_major()[0]);
    world.sql("CREATE TABLE t (a int, b text)");
    let url = world.server.url("postgres");
    let file = world.file("bad.csv", b"1,x\nq,y\n");
    let cases: [(&[&str], i32); 5] = [
        (&["methods"], 0),
        (&["completions", "bash"], 0),
        (&["plan", &file, "--table", "t", "--to", &url], 0),
        (&["repair", "--to", &url], 0),
        // One bad record: the exit code of a check that has found something.
        (&["check", &file, "--table", "t", "--to", &url], 4),
    ];
    for (arguments, code) in cases {
        let output = program(arguments).stdout(closed()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("error:"), "{arguments:?}: {said}");

        let output = program(arguments).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("cannot write to standard output"), "{arguments:?}: {said}");
    }
}

/// If the reader of standard error is gone, neither the load nor its exit code changes.
#[test]
fn a_closed_stderr_changes_nothing() {
    let mut world = World::new(&each_major()[0]);
    world.sql("CREATE TABLE t (a int, b text)");
    let url = world.server.url("postgres");
    let good = world.file("good.csv", b"1,x\n2,y\n");
    let bad = world.file("bad.csv", b"3,x\nq,y\n");
    for (file, code) in [(&good, 0), (&bad, 4)] {
        let status = program(&["load", file, "--table", "t", "--to", &url])
            .stderr(closed())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(code), "{file}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "2", "{file}");
    }
}

/// `--summary -` writes the summary to standard output, where nothing else is written.
#[test]
fn a_summary_goes_to_stdout_by_a_hyphen() {
    let mut world = World::new(&each_major()[0]);
    world.sql("CREATE TABLE t (\"a,1\" int, b text)");
    let url = world.server.url("postgres");
    let file = world.file("good.csv", b"x,1\ny,2\n");
    let columns = ["--columns", "b,\"a,1\""];
    let load = ["load", &file, "--table", "t", "--to", &url, "--summary", "-"];
    let dir = world.path(".");
    let run = program(&[&load[..], &columns[..]].concat()).current_dir(&dir).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((&summary["read"], &summary["loaded"]), (&2.into(), &2.into()));
    assert!(!std::path::Path::new(&world.path("-")).exists(), "no file of that name");
    assert_eq!(world.sql("SELECT sum(\"a,1\") FROM t WHERE b IN ('x', 'y')"), "3");
}

/// On a terminal, one line shows the progress. It is removed when the load ends.
#[test]
fn a_terminal_shows_progress_and_is_left_clean() {
    let made = Command::new("script").args(["-qec", "true", "/dev/null"]).output();
    if !made.is_ok_and(|made| made.status.success()) {
        left_out("progress on a terminal: none can be made here by script");
        return;
    }
    let mut world = World::new(&each_major()[0]);
    world.sql("CREATE TABLE t (a int, b text)");
    let pipe = world.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (program, url) = (env!("CARGO_BIN_EXE_pgsluice"), world.server.url("postgres"));
    let load = format!("cat '{pipe}' | '{program}' load - --table t --to '{url}'");
    let mut child = Command::new("script")
        .args(["-qec", &load, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rows = OpenOptions::new().write(true).open(&pipe).unwrap();
    let mut shown = child.stdout.take().unwrap();
    let mut seen = String::new();
    let told = |seen: &str| seen.contains("\r\u{1b}[K") && seen.contains(" since the start");
    let mut buffer = [0; 4096];
    while !told(&seen) {
        let n = shown.read(&mut buffer).unwrap();
        assert!(n > 0, "{seen}");
        seen += &String::from_utf8_lossy(&buffer[..n]);
    }
    rows.write_all(b"1,x\n").unwrap();
    drop(rows);
    shown.read_to_string(&mut seen).unwrap();
    assert!(child.wait().unwrap().success(), "{seen}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
    let last = seen.rsplit("\r\u{1b}[K").next().unwrap();
    assert!(last.starts_with("\"public\".\"t\": 1 row loaded by "), "{last}");
}

/// The summary replaces the file to which a link leads only if the user could open it for writing
/// through the link. So the kernel decides whether the link is followed.
#[test]
fn a_summary_follows_only_a_link_that_could_be_opened() {
    let folder = scratch().unwrap().join("linked");
    let (program, link) = (folder.join("pgsluice"), folder.join("link.json"));
    let theirs = folder.join("theirs");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    // By another process: what other tests start meanwhile must not hold the program open for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pgsluice")).arg(&program).status();
    assert!(copied.unwrap().success());
    fs::write(&theirs, "kept").unwrap();
    symlink(&theirs, &link).unwrap();
    for (mode, follows) in [(0o444, false), (0o666, true)] {
        fs::set_permissions(&theirs, Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.args(["load", "-", "--table", "t", "--to", "host=/nowhere", "--summary"]);
        command.arg(&link).stdin(Stdio::null());
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            // Root could open any file.
            command.uid(65_534).gid(65_534);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.contains("cannot write"), !follows, "{said}");
        assert_eq!(fs::read_to_string(&theirs).unwrap() == "kept", !follows, "{said}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// Messages name settings as options, such as `--truncate`. A table, column, file or value that
/// looks like a setting stays as it is.
#[test]
fn values_stay_as_they_are_where_settings_become_options() {
    let mut world = World::new(&each_major()[0]);
    world.sql("CREATE TABLE \"`truncate`\" (\"`set`\" int)");
    world.sql("CREATE TABLE n (\"`set`\" int NOT NULL, b int); INSERT INTO n VALUES (1, 2)");
    let (bad, good) = (world.file("`header`.csv", b"`truncate`\n"), world.file("1.csv", b"1\n"));
    let summary = world.path("summary.json");
    let both = |output: &std::process::Output, path: &str| {
        let json = std::fs::read_to_string(path).unwrap();
        [String::from_utf8_lossy(&output.stderr).into_owned(), json]
    };

    let table = ["--table", "\"`truncate`\""];
    let load =
        |file: &str| world.run(&[&["load", file, "--summary", &summary], &table[..]].concat());
    for said in both(&load(&bad), &summary) {
        let value = "invalid input syntax for type integer: ";
        for kept in [value, "`truncate`", "`header`.csv", "`set`"] {
            assert!(said.contains(kept), "{kept}: {said}");
        }
    }
    for said in both(&load(&good), &summary) {
        assert!(said.contains("`truncate`"), "{said}");
    }
    for more in [&[][..], &["--json"]] {
        let output = world.run(&[&["plan", &bad], &table[..], more].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        for kept in ["`truncate`", "`header`.csv", "`set`"] {
            assert!(said.contains(kept), "{kept}: {said}");
        }
    }

    // In one message: its hint has a setting, and its text a column with that name.
    let output =
        world.run(&["load", &good, "--table", "n", "--columns", "b", "--summary", &summary]);
    for said in both(&output, &summary) {
        assert!(said.contains("`set`") && said.contains("--columns and --header say"), "{said}");
    }
    let output = world.run(&[
        "load",
        &good,
        "--table",
        "n",
        "--columns",
        "b",
        "--set",
        "`set`=1",
        "--null",
        "`map`=x",
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--null names column \"`map`\", which is not in the file"), "{said}");
    assert!(said.contains("--null '*=`map`=x' is a spelling"), "{said}");
}
