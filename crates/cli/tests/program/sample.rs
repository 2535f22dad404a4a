//! `pgsluice sample`, as a user runs it.

use crate::common::{each_major, psql, World};
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

fn pgsluice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `--out` writes the same bytes to a file as standard output shows without it.
#[test]
fn a_file_holds_what_standard_output_shows() {
    let file = std::env::temp_dir().join(format!("pgsluice-sample-{}", std::process::id()));
    let to_file =
        pgsluice(&["sample", "votes", "--rows", "70000", "--out", file.to_str().unwrap()]);
    assert!(to_file.status.success(), "{}", stderr(&to_file));
    assert!(to_file.stdout.is_empty() && to_file.stderr.is_empty());
    let shown = pgsluice(&["sample", "votes", "--rows", "70000"]).stdout;
    assert!(shown == fs::read(&file).unwrap());
    assert_eq!(shown.iter().filter(|b| **b == b'\n').count(), 70_000);
    fs::remove_file(file).unwrap();
}

/// `--ddl` prints a CREATE TABLE statement for each kind of data.
#[test]
fn every_kind_tells_its_table() {
    for kind in ["votes", "events", "lineitem", "wide"] {
        let ddl = String::from_utf8(pgsluice(&["sample", kind, "--ddl"]).stdout).unwrap();
        assert!(ddl.starts_with(&format!("CREATE TABLE {kind} (\n")), "{ddl}");
        assert!(ddl.ends_with(");\n"), "{ddl}");
    }
}

/// If the reader of standard output stops early, `sample` ends without an error.
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["sample", "votes", "--rows", "100000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 1000];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

/// A file that cannot be written is named in the error, a full disk is an error, and an unknown
/// kind of data is wrong usage.
#[test]
fn what_cannot_be_written_is_named() {
    let output = pgsluice(&["sample", "votes", "--out", "/no-such-folder/votes.csv"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "error: cannot write /no-such-folder/votes.csv: no such file";
    assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
    for full in [vec!["sample", "votes", "--out", "/dev/full"], vec!["sample", "nothing"]] {
        let output = pgsluice(&full);
        let code = if full.len() == 2 { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

/// Runs a statement with data on standard input.
fn run(url: &str, sql: &str, data: &[u8]) {
    let mut child = Command::new(psql())
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(data).unwrap();
    assert!(child.wait().unwrap().success(), "{sql}");
}

/// Each kind of data gives the same rows in both formats when COPY loads it. There are more rows
/// than a block of `wide` has, and fewer than one of the others.
#[test]
fn every_kind_loads_in_both_formats_to_the_same_rows() {
    let mut world = World::new(each_major().first().unwrap());
    let url = world.server.url("postgres");
    let names =
        [("votes", "username, link, score"), ("events", "*"), ("lineitem", "*"), ("wide", "*")];
    for (name, columns) in names {
        let list = if columns == "*" { String::new() } else { format!("({columns})") };
        world.sql(&String::from_utf8(pgsluice(&["sample", name, "--ddl"]).stdout).unwrap());
        for format in ["csv", "text"] {
            let data = pgsluice(&["sample", name, "--rows", "3000", "--format", format]).stdout;
            run(&url, &format!("COPY {name}{list} FROM STDIN (FORMAT {format})"), &data);
            world.sql(&format!("CREATE TABLE {name}_{format} AS SELECT {columns} FROM {name}"));
            world.sql(&format!("TRUNCATE {name}"));
        }
        let (csv, text) = (format!("TABLE {name}_csv"), format!("TABLE {name}_text"));
        assert_eq!(world.sql(&format!("SELECT count(*) FROM {name}_csv")), "3000", "{name}");
        for (one, other) in [(&csv, &text), (&text, &csv)] {
            let more = world.sql(&format!("SELECT count(*) FROM ({one} EXCEPT ALL {other}) d"));
            assert_eq!(more, "0", "{name}: {one} against {other}");
        }
    }
    let sql = "SELECT count(*) > 50 FROM events_csv WHERE payload ? 'commits'";
    assert_eq!(world.sql(sql), "t", "payloads are JSON that can be asked");
}
