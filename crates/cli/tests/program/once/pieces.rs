//! `--commit-every`: whatever ends the load, the same command continues it, and each row comes once.

use super::{counts, lines, start, thrice, world};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{each_major, signal, wait_until, Signal, World};
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const ROWS: usize = 300_000;

/// A number of a simple sequence of random ones.
fn next(random: &mut u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// The ledger agrees with the table, which has each row of the files once.
fn exact(world: &mut World, what: &str) {
    let sums = "SELECT coalesce(sum(read), 0) || '=' || coalesce(sum(loaded), 0) || '=' || \
        (SELECT coalesce(sum(records), 0) FROM pgsluice_loads.pieces) FROM pgsluice_loads.commits";
    let n = world.sql("SELECT count(*) FROM t");
    assert_eq!(world.sql(sums), format!("{n}={n}={n}"), "{what}");
    let twice = "SELECT count(*) FROM pgsluice_loads.pieces a JOIN pgsluice_loads.pieces b \
        ON a.source = b.source AND a.start_byte < b.start_byte AND b.start_byte < a.end_byte";
    assert_eq!(world.sql(twice), "0", "{what}");
}

/// The loader or the server is killed at random moments, with other lanes and sizes each time.
#[test]
fn killed_at_any_moment_it_continues() {
    let rounds = if std::env::var_os("PGSLUICE_SOAK").is_some() { 30 } else { 3 };
    let mut world = World::new(&each_major().pop().unwrap());
    world.sql("CREATE TABLE t (a int, b text, c serial); CREATE TABLE stock (a int, b text)");
    let files: Vec<Vec<u8>> = (0..3).map(|i| lines(i * ROWS / 3, ROWS / 3)).collect();
    for bytes in &files {
        world.stock("COPY stock FROM STDIN (FORMAT csv)", bytes).unwrap();
    }
    let paths: Vec<String> =
        files.iter().enumerate().map(|(i, f)| world.file(&format!("{i}.csv"), f)).collect();
    let gzip = Command::new("gzip").arg(&paths[1]).status().unwrap();
    assert!(gzip.success());
    let paths = [paths[0].clone(), format!("{}.gz", paths[1]), paths[2].clone()];
    let mut random = 18;
    let (mut kills, mut continued) = (0, 0);
    for round in 0..rounds {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        loop {
            let (lanes, size) = (next(&mut random) % 3, 64 << (next(&mut random) % 5));
            let (lanes, size) = (format!("{}", lanes + 1), format!("{size}kB"));
            let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
            all.extend(["--columns", "a,b", "--commit-every", &size]);
            if lanes != "1" {
                all.extend(["--method", "lanes", "--lanes", &lanes]);
            }
            let mut child = start(&world, &all);
            sleep(Duration::from_millis(50 + next(&mut random) % 500));
            if let Some(status) = child.try_wait().unwrap() {
                let output = child.wait_with_output().unwrap();
                assert!(status.success(), "{output:?}");
                break;
            }
            kills += 1;
            if kills % 4 == 0 {
                world.server.kill9().unwrap();
                world.restart_with(&[]);
                let _ = child.wait_with_output();
            } else {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let begun = "SELECT to_regclass('pgsluice_loads.pieces') IS NOT NULL";
            if world.sql(begun) == "t" {
                // What the killed one has committed may still come in.
                let busy = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
                    AND backend_type = 'client backend'";
                wait_until(|| "a session stays".into(), || world.sql(busy) == "0");
                exact(&mut world, &format!("round {round}, kill {kills}"));
                let rows: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
                continued += usize::from(rows > 0 && rows < ROWS);
            }
        }
        exact(&mut world, &format!("round {round}"));
        let columns = "(SELECT a, b FROM t)";
        assert_eq!(world.difference(columns, "stock"), "", "round {round}");
        let state = "SELECT string_agg(DISTINCT state, ',') FROM pgsluice_loads.sources";
        assert_eq!(world.sql(state), "complete", "round {round}");
        let left = "SELECT count(*) FROM pg_prepared_xacts";
        assert_eq!(world.sql(left), "0", "round {round}");
    }
    eprintln!("{kills} kills, {continued} loads continued");
    assert!(continued > 0, "no kill came in the middle");
}

/// The first bad record stops the load; it is mended in its place, and the next one is named by
/// its line.
#[test]
fn a_bad_record_is_mended_and_the_load_continues() {
    let mut world = world();
    let mut bytes = lines(0, 200_000);
    let (first, second) = (120_000, 180_000);
    let begin = |line: usize, bytes: &[u8]| {
        let text = format!("\n{line},");
        bytes.windows(text.len()).position(|w| w == text.as_bytes()).unwrap() + 1
    };
    let marks = [first, second].map(|line| begin(line, &bytes));
    for mark in marks {
        bytes[mark] = b'x';
    }
    let path = world.file("a.csv", &bytes);
    let all = [&path, "--table", "t", "--once", "--commit-every", "256kB"];
    for (bad, mark) in [(first, marks[0]), (second, marks[1])] {
        let said = world.load(&all).unwrap_err();
        assert!(said.contains(&format!("line {}, record {}", bad + 1, bad + 1)), "{said}");
        assert!(said.contains("rows are committed and recorded as load"), "{said}");
        exact(&mut world, "after a bad record");
        bytes[mark] = b'1';
        fs::write(&path, &bytes).unwrap();
    }
    let before: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(before > first, "{before}");
    let summary = world.load(&all).unwrap();
    assert_eq!(summary["loaded"], 200_000 - before);
    assert_eq!(summary["records_known"], before);
    assert_eq!(counts(&mut world), thrice(200_000));
    // One transaction continues pieces as well as more pieces do.
    assert_eq!(world.load(&all[..4]).unwrap()["files_known"], 1);
}

/// A file that is changed where it is loaded is refused, and one that is moved is continued.
#[test]
fn a_broken_load_is_continued_by_content() {
    let mut world = world();
    let mut bytes = lines(0, 200_000);
    let text = "\n150000,";
    let at = bytes.windows(text.len()).position(|w| w == text.as_bytes()).unwrap() + 1;
    bytes[at] = b'x';
    let path = world.file("a.csv", &bytes);
    let load = |world: &World, path: &str| {
        world.load(&[path, "--table", "t", "--once", "--commit-every", "512kB"])
    };
    load(&world, &path).unwrap_err();
    let loaded: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(loaded > 0 && loaded < 150_000, "{loaded}");
    let mut other = bytes.clone();
    other[20] = b'X';
    fs::write(&path, &other).unwrap();
    let said = load(&world, &path).unwrap_err();
    assert!(said.contains("bytes 0 to "), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), loaded.to_string());
    fs::write(&path, &bytes).unwrap();
    let moved = world.path("moved.csv");
    fs::rename(&path, &moved).unwrap();
    let said = load(&world, &moved).unwrap_err();
    assert!(said.contains("line 150001"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.sources"), "1");
    bytes[at] = b'1';
    fs::write(&moved, &bytes).unwrap();
    load(&world, &moved).unwrap();
    assert_eq!(counts(&mut world), thrice(200_000));
}

/// The connection is cut around a COMMIT: the load goes on if it is committed, and the next one
/// continues if it is not.
#[test]
fn a_lost_commit_is_neither_lost_nor_repeated() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 100_000));
    for fate in [Fate::CutBefore, Fate::CutAfter] {
        for pass in [2, 5, 7] {
            world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
            let proxy = Proxy::start(&world, "COMMIT", pass, fate, false);
            let target = proxy.target();
            let all = [
                "load",
                &path,
                "--table",
                "t",
                "--once",
                "--commit-every",
                "512kB",
                "--to",
                &target,
            ];
            let output = Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(all).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let what = format!("{fate:?} {pass}: {:?} {said}", output.status.code());
            assert!(proxy.sprung(), "{what}");
            eprintln!("{what}");
            let summary = world.load(&[&path, "--table", "t", "--once"]).unwrap();
            exact(&mut world, &what);
            assert_eq!(counts(&mut world), thrice(100_000), "{what} {summary}");
        }
    }
}

/// A load loses the connection that holds its claims, and is held up. The next one stops it, and
/// it commits nothing from then on.
#[test]
fn a_load_that_lost_its_claims_is_stopped_by_the_next() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 900_000));
    world.load(&[&world.file("b.csv", b"1000000,x\n"), "--table", "t", "--once"]).unwrap();
    let first = start(&world, &[&path, "--commit-every", "64kB"]);
    let commits = "SELECT count(*) FROM pgsluice_loads.commits WHERE load = 2";
    wait_until(|| "nothing is committed".into(), || world.sql(commits) != "0");
    assert!(signal(first.id(), Signal::SIGSTOP));
    let end = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM pg_locks \
        WHERE locktype = 'advisory' AND granted) l";
    assert_eq!(world.sql(end), "1");
    let summary = world.load(&[&path, "--table", "t", "--once"]).unwrap();
    assert_ne!((&summary["loaded"], &summary["records_known"]), (&0.into(), &0.into()));
    assert!(signal(first.id(), Signal::SIGCONT));
    let output = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("load 2 was stopped"), "{said}");
    exact(&mut world, "after the first load");
    assert_eq!(counts(&mut world), thrice(900_001));
    let states =
        "SELECT string_agg(number || ' ' || state, ', ' ORDER BY number) FROM pgsluice_loads.loads";
    assert_eq!(world.sql(states), "1 complete, 2 stopped, 3 complete");
}

/// A record that is longer than what is held comes in pieces, which no commit parts.
#[test]
fn long_records_stay_whole() {
    let mut world = world();
    let mut bytes = lines(0, 20_000);
    for i in 0..4 {
        bytes.extend_from_slice(format!("{},\"", 20_000 + i).as_bytes());
        bytes.extend(b"long, \n".iter().cycle().take(7 * 900_000));
        bytes.extend_from_slice(b"\"\n");
        bytes.extend(lines(30_000 + i * 10_000, 10_000));
    }
    let bad = bytes.len();
    bytes.extend_from_slice(b"x0,end\n");
    let path = world.file("a.csv", &bytes);
    let all = [&path, "--table", "t", "--once", "--commit-every", "1MB"];
    let said = world.load(&all).unwrap_err();
    assert!(said.contains("record 60005"), "{said}");
    exact(&mut world, "long records");
    bytes[bad] = b'1';
    fs::write(&path, &bytes).unwrap();
    let summary = world.load(&all).unwrap();
    assert!(summary["records_known"].as_u64().unwrap() > 20_000, "{summary}");
    exact(&mut world, "long records, continued");
    let long = "SELECT count(*) || ' ' || sum(length(b)) FROM t WHERE length(b) > 1000";
    assert_eq!(world.sql(long), format!("4 {}", 4 * 7 * 900_000));
    assert_eq!(world.sql("SELECT count(*) FROM t"), "60005");
}
