//! With `--once`, standard input and pipes are recognized by a name, and compared while they are
//! read.

use super::{counts, exact, lines, thrice, world};
use crate::common::World;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread::{self, sleep};
use std::time::Duration;

fn load(world: &World, bytes: &[u8], more: &[&str]) -> Output {
    let all = ["load", "-", "--table", "t", "--once", "--source-name", "events", "--summary", "-"];
    world.run_with(&[&all[..], &["--quiet"], more].concat(), bytes)
}

fn summary(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sends these bytes through a program; returns its output.
fn through(program: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program[0]);
    let command = command.args(&program[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut input, bytes) = (child.stdin.take().unwrap(), bytes.to_vec());
    let writer = thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.stdout
}

/// A stream with the same name and bytes is loaded once, compressed or not. Changed bytes or
/// options are an error, `--on-change append` loads what was added, and another name is another
/// stream.
#[test]
fn a_stream_with_the_same_bytes_is_loaded_once() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    assert_eq!(summary(&load(&world, &bytes, &[]))["loaded"], 60_000);
    // Compressed or not, it is the same stream.
    for same in [bytes.clone(), through(&["gzip"], &bytes), through(&["zstd", "-q"], &bytes)] {
        let again = summary(&load(&world, &same, &["--commit-every", "256kB"]));
        assert_eq!((&again["loaded"], &again["records_known"]), (&0.into(), &60_000.into()));
    }
    let mut other = bytes.clone();
    let at = bytes.len() / 2;
    other[at] = b'~';
    let range = format!(
        "SELECT 'bytes ' || start_byte || ' to ' || end_byte FROM pgsluice_loads.pieces \
         WHERE {at} >= start_byte AND {at} < end_byte"
    );
    let range = world.sql(&range);
    let said = error(&load(&world, &other, &[]));
    assert!(said.contains("has changed") && said.contains(&range), "{range} {said}");
    let said = error(&load(&world, &bytes[..bytes.len() - 40], &[]));
    assert!(said.contains("has changed since it was loaded"), "{said}");
    let longer = lines(0, 60_010);
    for _ in 0..2 {
        let said = error(&load(&world, &longer, &[]));
        assert!(said.contains(&format!("follow byte {}", bytes.len())), "{said}");
        assert_eq!(world.sql("SELECT state FROM pgsluice_loads.sources"), "complete");
    }
    let said = error(&load(&world, &bytes, &["--where", "a > 1"]));
    assert!(said.contains("other options"), "{said}");
    let more = summary(&load(&world, &longer, &["--on-change", "append"]));
    assert_eq!((&more["loaded"], &more["records_known"]), (&10.into(), &60_000.into()));
    // Another name is another stream.
    let all = ["load", "-", "--table", "t", "--once", "--source-name", "other"];
    assert!(world.run_with(&all, b"60010,x\n").status.success());
    assert_eq!(counts(&mut world), thrice(60_011));
    let forget = world.run(&["loads", "forget", "other", "--table", "t"]);
    assert_eq!(forget.status.code(), Some(0), "{forget:?}");
    world.sql("DELETE FROM t WHERE a = 60010");
    assert!(world.run_with(&all, b"60010,x\n").status.success());
    assert_eq!(world.sql("SELECT count(*) FROM t"), "60011");
    let said = world.run(&["loads", "verify", "1"]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("it is a stream"), "{said:?}");
}

/// With `--once`, standard input needs `--source-name`, and a file must not have it.
#[test]
fn a_stream_needs_a_name_and_a_file_has_one() {
    let world = world();
    let path = world.file("a.csv", &lines(0, 10));
    let wrong: [&[&str]; 5] = [
        &["-"],
        &["-", "--source-name", ""],
        &["-", "--source-name", "/a.csv"],
        &["-", &path, "--source-name", "a"],
        &[&path, "--source-name", "a"],
    ];
    for wrong in wrong {
        let all = [&["load", "--table", "t", "--once"], wrong].concat();
        let output = world.run_with(&all, b"1,x\n");
        assert_eq!(output.status.code(), Some(2), "{wrong:?} {output:?}");
    }
}

/// The header of a stream belongs to no recorded piece, but it must still be unchanged.
#[test]
fn the_header_of_a_stream_must_be_the_same() {
    let mut world = world();
    let with = |header: &[u8], to: usize| [header, &lines(0, to)[..]].concat();
    let append = ["--header", "--on-change", "append"];
    assert_eq!(summary(&load(&world, &with(b"a,b\n", 10), &append))["loaded"], 10);
    world.sql("ALTER TABLE t ADD c text");
    let said = error(&load(&world, &with(b"a,c\n", 20), &append));
    assert!(said.contains("bytes 0 to 4 are not the same"), "{said}");
    assert_eq!(summary(&load(&world, &with(b"a,b\n", 20), &append))["loaded"], 10);
    assert_eq!(counts(&mut world), thrice(20));
}

/// Rows in a gap between known ranges are committed only after all known ranges have been found
/// unchanged.
#[test]
fn nothing_of_another_stream_is_committed() {
    let mut world = world();
    let bytes = lines(0, 200_000);
    summary(&load(&world, &bytes, &["--commit-every", "512kB"]));
    // As if a lane had been killed that had the third piece.
    let gap = "(SELECT start_byte FROM pgsluice_loads.pieces ORDER BY start_byte OFFSET 2 LIMIT 1)";
    world.sql(&format!(
        "DELETE FROM t USING pgsluice_loads.pieces p WHERE p.start_byte = {gap} \
           AND a >= first_record - 1 AND a < first_record + records - 1; \
         DELETE FROM pgsluice_loads.pieces WHERE start_byte = {gap}; \
         UPDATE pgsluice_loads.sources SET state = 'loading'"
    ));
    let before = world.sql("SELECT count(*) FROM t");
    assert_ne!(before, "200000");
    let mut other = bytes.clone();
    let last = other.len() - 5;
    other[last] = b'~';
    let said = error(&load(&world, &other, &["--commit-every", "64kB"]));
    assert!(said.contains("has changed"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), before);
    summary(&load(&world, &bytes, &["--commit-every", "64kB"]));
    let rows = "SELECT count(*) || ' ' || count(DISTINCT a) FROM t";
    assert_eq!(world.sql(rows), "200000 200000");
}

/// Loads of a stream, compressed or not, are killed at random moments. The same command continues,
/// and each row is loaded once, also from a named pipe.
#[test]
fn a_killed_load_of_a_stream_continues() {
    let mut world = world();
    let bytes = lines(0, 300_000);
    let path = world.file("a.csv", &bytes);
    let zipped = world.file("a.csv.gz", &through(&["gzip", "-1"], &bytes));
    let mut random: u64 = 7;
    let (mut kills, mut continued) = (0, 0);
    world.shut_gate();
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let lanes = (1 + (random >> 40) % 3).to_string();
        let input = if (random >> 50).is_multiple_of(2) { &path } else { &zipped };
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        command.args(["load", "-", "--quiet", "--table", "t", "--once", "--source-name", "s"]);
        command.args(["--commit-every", "256kB", "--to", &world.server.url("postgres")]);
        if lanes != "1" {
            command.args(["--method", "lanes", "--lanes", &lanes]);
        }
        let input = File::open(input).unwrap();
        let mut child = command.stdin(input).stderr(Stdio::piped()).spawn().unwrap();
        if kills == 0 {
            // The first kill comes in the middle, however fast the machine is.
            world.wait_for_a_row();
        } else {
            sleep(Duration::from_millis((random >> 33) % 400 + 20 * kills));
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{:?}", child.wait_with_output());
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if kills == 0 {
            world.open_gate();
        }
        kills += 1;
        let begun = "SELECT to_regclass('pgsluice_loads.pieces') IS NOT NULL";
        continued +=
            usize::from(world.sql(begun) == "t" && world.sql("SELECT count(*) FROM t") != "0");
    }
    assert!(continued > 0, "no kill came in the middle of {kills}");
    exact(&mut world, "a stream");
    assert_eq!(counts(&mut world), thrice(300_000));
    fs::remove_file(&path).unwrap();
    let fifo = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(fifo.success());
    let (to, all) = (path.clone(), bytes);
    let writer = thread::spawn(move || fs::write(to, all));
    let known = world.load(&[&path, "--table", "t", "--once", "--source-name", "s"]).unwrap();
    assert_eq!(known["records_known"], 300_000);
    writer.join().unwrap().unwrap();
}
