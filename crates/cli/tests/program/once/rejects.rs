//! Rejects with `--once`: for what is committed, the reject file has each rejected record exactly
//! once, whatever has ended a load.

use super::{start, world};
use crate::common::disk::SmallDisk;
use crate::common::{each_major, wait_until, World};
use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// The next number of a simple random sequence.
fn next(random: &mut u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Lines, and those of them that are bad: one in 700.
pub fn mixed(from: usize, count: usize) -> (Vec<u8>, Vec<String>) {
    let (mut bytes, mut bad) = (Vec::new(), Vec::new());
    for i in from..from + count {
        let line = match i % 700 {
            77 => format!("x{i},\"bad\nof two lines\"\n"),
            _ => format!("{i},\"some text, of line {i}\"\n"),
        };
        if line.starts_with('x') {
            bad.push(line.clone());
        }
        bytes.extend_from_slice(line.as_bytes());
    }
    (bytes, bad)
}

/// Loads a file with `--on-error reject` and this limit.
pub fn load(
    world: &World,
    path: &str,
    rejects: &str,
    limit: &str,
    more: &[&str],
) -> Result<serde_json::Value, String> {
    let all = [path, "--table", "t", "--once", "--on-error", "reject", "--reject-file", rejects];
    world.load(&[&all[..], &["--reject-limit", limit], more].concat())
}

/// The records of a reject file with such lines, and the positions in its reasons. With `limits`,
/// both files are first cut to these lengths.
fn kept(path: &str, limits: Option<(usize, usize)>) -> (Vec<String>, BTreeSet<(String, u64)>) {
    let read = |path: &str| String::from_utf8(fs::read(path).unwrap_or_default()).unwrap();
    let (mut records, mut reasons) = (read(path), read(&format!("{path}.jsonl")));
    if let Some((bytes, more)) = limits {
        assert!(records.len() >= bytes && reasons.len() >= more, "{bytes} {more}");
        records.truncate(bytes);
        reasons.truncate(more);
    }
    let end = if records.contains("lines\"\n") { "lines\"\n" } else { "\n" };
    let mut records: Vec<String> = records.split_inclusive(end).map(str::to_owned).collect();
    records.sort();
    let mut places = BTreeSet::new();
    for line in reasons.lines() {
        let reason: serde_json::Value = serde_json::from_str(line).unwrap();
        let place = (reason["file"].to_string(), reason["offset"].as_u64().unwrap());
        assert!(places.insert(place), "{line}");
    }
    (records, places)
}

/// Checks that the reject file has exactly these records, and that the ledger counts as many.
fn exact(world: &mut World, path: &str, bad: &[String], what: &str) {
    let (records, places) = kept(path, None);
    let mut bad = bad.to_vec();
    bad.sort();
    assert!(records == bad, "{what}: {} of {} rejects", records.len(), bad.len());
    assert_eq!(places.len(), bad.len(), "{what}");
    let sums = "SELECT sum(rejected) || ' ' || sum(loaded) FROM pgsluice_loads.commits";
    let rows = world.sql("SELECT count(*) FROM t");
    assert_eq!(world.sql(sums), format!("{} {rows}", bad.len()), "{what}");
    assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.reject_files"), "0", "{what}");
}

/// After a crash, checks that the reject file has all rejects that the ledger says are committed.
fn agrees(world: &mut World, what: &str) {
    let rows = world.sql(
        "SELECT coalesce(max(file || ' ' || bytes || ' ' || reasons_bytes), '- 0 0') \
         FROM pgsluice_loads.reject_files WHERE records > 0",
    );
    let [path, bytes, reasons] = rows.split(' ').collect::<Vec<_>>()[..] else { panic!("{rows}") };
    let (records, places) = kept(path, Some((bytes.parse().unwrap(), reasons.parse().unwrap())));
    let counted = world.sql("SELECT coalesce(sum(rejected), 0) FROM pgsluice_loads.commits");
    assert_eq!(counted, places.len().to_string(), "{what}");
    assert_eq!(counted, records.len().to_string(), "{what}");
}

/// The loader or the server is killed at random moments, with another number of lanes and another
/// size of pieces each time; the first time in the middle, however fast the machine is. The reject
/// file has all rejects that are committed, and at the end each bad record exactly once.
#[test]
fn killed_at_any_moment_the_reject_file_is_exact() {
    let rounds = if std::env::var_os("PGSLUICE_SOAK").is_some() { 30 } else { 4 };
    let mut world = World::new(&each_major().pop().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let files = [mixed(0, 120_000), mixed(120_000, 120_000)];
    let paths: Vec<String> = files
        .iter()
        .enumerate()
        .map(|(i, (bytes, _))| world.file(&format!("{i}.csv"), bytes))
        .collect();
    let bad: Vec<String> = files.iter().flat_map(|(_, bad)| bad.clone()).collect();
    // Milliseconds within which a load is killed: more if it has committed nothing by then.
    let (mut within, mut before) = (900, "0".to_owned());
    let (mut random, mut kills, mut continued) = (19, 0, 0);
    world.shut_gate();
    for round in 0..rounds {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let rejects = world.path(&format!("bad-{round}"));
        loop {
            let (lanes, size) = (next(&mut random) % 3 + 1, 64 << (next(&mut random) % 5));
            let (lanes, size) = (lanes.to_string(), format!("{size}kB"));
            let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
            all.extend(["--on-error", "reject", "--reject-limit", "none"]);
            all.extend(["--reject-file", &rejects]);
            if !next(&mut random).is_multiple_of(8) {
                all.extend(["--commit-every", &size]);
            }
            if lanes != "1" {
                all.extend(["--method", "lanes", "--lanes", &lanes]);
            }
            let mut child = start(&world, &all);
            match kills {
                0 => world.suspend_at_gate(&child),
                _ => sleep(Duration::from_millis(50 + next(&mut random) % within)),
            }
            if let Some(status) = child.try_wait().unwrap() {
                let output = child.wait_with_output().unwrap();
                assert!([Some(3), Some(0)].contains(&status.code()), "{output:?}");
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
            if world.sql("SELECT to_regclass('pgsluice_loads.reject_files') IS NOT NULL") == "t" {
                world.wait_until_alone();
                let complete = "SELECT count(*) > 0 AND bool_and(state = 'complete') \
                    FROM pgsluice_loads.sources";
                if world.sql(complete) == "t" {
                    // The load was killed after its last commit.
                    break;
                }
                agrees(&mut world, &format!("round {round}, kill {kills}"));
                let counted = "SELECT coalesce(sum(rejected), 0) > 0 FROM pgsluice_loads.commits";
                continued += usize::from(world.sql(counted) == "t");
            }
            let rows = world.sql("SELECT count(*) FROM t");
            within += if rows == before { within / 10 } else { 0 };
            before = rows;
        }
        exact(&mut world, &rejects, &bad, &format!("round {round}"));
    }
    eprintln!("{kills} kills, {continued} loads continued");
    assert!(continued > 0, "no kill came in the middle");
}

/// A load that exceeded its reject limit is continued with a higher one; the limit includes what
/// earlier loads have rejected. A reject file that was lost or changed in between is an error.
#[test]
fn a_lost_or_changed_reject_file_is_an_error() {
    let mut world = world();
    let (bytes, bad) = mixed(0, 100_000);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let side = format!("{rejects}.jsonl");
    let size = ["--commit-every", "256kB"];
    let load = |world: &World, limit: &str| load(world, &path, &rejects, limit, &size);
    for _ in 0..2 {
        let said = load(&world, "100").unwrap_err();
        assert!(said.contains("more than the limit of 100"), "{said}");
        agrees(&mut world, "beyond the limit");
    }
    let committed = world.sql("SELECT records FROM pgsluice_loads.reject_files");
    assert!(committed != "0", "{committed}");
    // The file also shows rejects that are not committed.
    let whole = [fs::read(&rejects).unwrap(), fs::read(&side).unwrap()];
    assert!(kept(&rejects, None).1.len() > committed.parse().unwrap());
    let put = |name: &str, bytes: &[u8]| fs::write(name, bytes).unwrap();
    for name in [&rejects, &side] {
        fs::remove_file(name).unwrap();
        let said = load(&world, "none").unwrap_err();
        assert!(said.contains("is missing") && said.contains("loads forget"), "{said}");
        put(&rejects, &whole[0]);
        put(&side, &whole[1]);
        let mut other = fs::read(name).unwrap();
        other[9] ^= 1;
        put(name, &other);
        let said = load(&world, "none").unwrap_err();
        assert!(said.contains("was changed"), "{said}");
        put(&rejects, &whole[0]);
        put(&side, &whole[1]);
    }
    // Another program has written to the file.
    put(&side, &[&whole[1][..], b"{\"file\":\"other.csv\"}\n"].concat());
    let said = load(&world, "none").unwrap_err();
    assert!(said.contains("has more than this load has written"), "{said}");
    put(&side, &whole[1]);
    // Another load cannot use the file.
    let other = world.file("other.csv", &mixed(500_000, 1000).0);
    let with = ["--on-error", "reject", "--reject-file", &rejects, "--reject-existing", "append"];
    let said =
        world.load(&[&[other.as_str(), "--table", "t", "--once"], &with[..]].concat()).unwrap_err();
    assert!(said.contains("belongs to load"), "{said}");
    let summary = load(&world, "none").unwrap();
    assert_eq!(summary["rejected_before"], committed.parse::<u64>().unwrap(), "{summary}");
    exact(&mut world, &rejects, &bad, "at last");
    // Now another load can use it.
    let all = [&[other.as_str(), "--table", "t", "--once"], &with[..]].concat();
    assert!(world.load(&all).unwrap()["rejected"].as_u64().unwrap() > 0);
    assert!(kept(&rejects, None).1.len() > bad.len());
}

/// A load of two files stops in the middle. One of the files alone is refused, since the reject file
/// has rejects of both. The same command completes the load.
#[test]
fn a_reject_file_stays_with_all_files_of_its_load() {
    let mut world = world();
    let (first, second) = (mixed(0, 100_000), mixed(100_000, 100_000));
    let (a, b) = (world.file("a.csv", &first.0), world.file("b.csv", &second.0));
    let bad = [first.1, second.1].concat();
    let (rejects, other) = (world.path("bad"), world.path("other"));
    let load = |world: &World, files: &[&str], rejects: &str, limit: &str| {
        let more = [&files[1..], &["--commit-every", "256kB"]].concat();
        load(world, files[0], rejects, limit, &more)
    };
    // The limit counts lines, and each reject has two: it is exceeded in the second file.
    load(&world, &[&a, &b], &rejects, "400").unwrap_err();
    assert_eq!(world.sql("SELECT count(DISTINCT source) FROM pgsluice_loads.pieces"), "2");
    let committed: usize =
        world.sql("SELECT sum(rejected) FROM pgsluice_loads.commits").parse().unwrap();
    for (alone, left_out) in [(&a, "/b.csv"), (&b, "/a.csv")] {
        let said = load(&world, &[alone], &rejects, "none").unwrap_err();
        assert!(said.contains("has also begun") && said.contains(left_out), "{said}");
        assert!(said.contains("loads show 1") && said.contains("loads forget"), "{said}");
        agrees(&mut world, "one file alone");
    }
    let summary = load(&world, &[&a, &b], &rejects, "none").unwrap();
    assert_eq!(summary["rejected_before"], committed, "{summary}");
    assert_eq!(summary["rejected"], bad.len() - committed, "{summary}");
    exact(&mut world, &rejects, &bad, "at last");

    // As the hint says, one file alone is loaded if the reject file is forgotten.
    world.sql("TRUNCATE t; DROP SCHEMA pgsluice_loads CASCADE");
    load(&world, &[&a, &b], &other, "400").unwrap_err();
    load(&world, &[&b], &other, "none").unwrap_err();
    let forget = world.run(&["loads", "forget", &other, "--table", "t"]);
    assert_eq!(forget.status.code(), Some(0), "{forget:?}");
    for (file, rejects) in [(&b, "of-b"), (&a, "of-a")] {
        load(&world, &[file], &world.path(rejects), "none").unwrap();
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), (200_000 - bad.len()).to_string());
    assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.reject_files"), "0");
}

/// If a load exceeds its reject limit, the reject file shows the rejects of all lanes.
#[test]
fn beyond_the_limit_the_rejects_of_all_lanes_are_shown() {
    let mut world = world();
    let (bytes, bad) = mixed(0, 240_000);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let lanes = ["--method", "lanes", "--lanes", "3"];
    let load = |world: &World, limit: &str| load(world, &path, &rejects, limit, &lanes);
    let said = load(&world, "300").unwrap_err();
    assert!(said.contains("more than the limit of 300"), "{said}");
    let (records, places) = kept(&rejects, None);
    // The limit counts lines, too, and each of these rejects has two.
    assert!(places.len() > 150, "{} of more than 150", places.len());
    assert_eq!(records.len(), places.len());
    load(&world, "none").unwrap();
    exact(&mut world, &rejects, &bad, "at last");
}

/// After a reject that leaves a quote open, the next one goes to a new file. Files of a transaction
/// that was not committed are removed, however many there are. A file that another program has
/// written is kept.
#[test]
fn files_that_were_begun_and_not_committed_are_removed() {
    let mut world = world();
    let open = |i: usize| format!("{i},\"no end of {i}\n");
    let paths: Vec<String> = (0..4)
        .map(|i| world.file(&format!("{i}.csv"), format!("1{i},x\n{}", open(i)).as_bytes()))
        .collect();
    let rejects = world.path("bad");
    let load = |world: &World, limit: &str| {
        let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
        all.extend(["--table", "t", "--once", "--on-error", "reject", "--reject-file", &rejects]);
        world.load(&[&all[..], &["--stray-quotes", "copy", "--reject-limit", limit]].concat())
    };
    let said = load(&world, "3").unwrap_err();
    assert!(said.contains("more than the limit of 3"), "{said}");
    assert!(fs::exists(world.path("bad.4")).unwrap());
    fs::write(world.path("bad.5"), b"of somebody else").unwrap();
    assert_eq!(load(&world, "none").unwrap()["rejected"], 4);
    for (i, name) in ["bad", "bad.2", "bad.3", "bad.4"].iter().enumerate() {
        assert_eq!(fs::read_to_string(world.path(name)).unwrap(), open(i), "{name}");
    }
    assert_eq!(fs::read_to_string(world.path("bad.5")).unwrap(), "of somebody else");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "4");
}

/// If the disk of the reject file is full in the middle of a load, what is committed stays. The
/// same command continues when there is space.
#[test]
fn the_disk_is_full_in_the_middle() {
    let mut world = world();
    let Some(disk) = SmallDisk::new(&world, "240k") else { return };
    let (mut bytes, mut bad) = (Vec::new(), Vec::new());
    let text = "some text ".repeat(14);
    for i in 0..10_000 {
        let line = if i % 10 == 7 { format!("x{i},bad\n") } else { format!("{i},{text}\n") };
        bytes.extend_from_slice(line.as_bytes());
        if i % 10 == 7 {
            bad.push(line);
        }
    }
    let path = world.file("a.csv", &bytes);
    let rejects = disk.file("bad");
    let all = [&path, "--table", "t", "--once", "--commit-every", "64kB", "--on-error", "reject"];
    let all = [&all[..], &["--reject-limit", "none", "--reject-file", &rejects]].concat();
    let said = world.load(&all).unwrap_err();
    assert!(said.contains("No space left on device"), "{said}");
    agrees(&mut world, "on a full disk");
    assert_ne!(world.sql("SELECT count(*) FROM t"), "0");
    disk.resize("64m");
    let summary = world.load(&all).unwrap();
    assert!(summary["rejected_before"].as_u64().unwrap() > 0, "{summary}");
    let found = fs::read_to_string(&rejects).unwrap();
    assert!(found == bad.concat(), "{} of {}", found.lines().count(), bad.len());
    let reasons = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
    assert_eq!(reasons.lines().count(), bad.len());
    assert_eq!(world.sql("SELECT count(*) FROM t"), "9000");
}

/// After `loads forget` of a reject file that was lost, the load continues with a new one.
#[test]
fn a_lost_reject_file_can_be_forgotten() {
    let mut world = world();
    let (bytes, bad) = mixed(0, 100_000);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let size = ["--commit-every", "256kB"];
    let load = |world: &World, limit: &str| load(world, &path, &rejects, limit, &size);
    load(&world, "100").unwrap_err();
    let committed: usize =
        world.sql("SELECT records FROM pgsluice_loads.reject_files").parse().unwrap();
    for name in [&rejects, &format!("{rejects}.jsonl")] {
        fs::remove_file(name).unwrap();
    }
    load(&world, "none").unwrap_err();
    let forget = ["loads", "forget", &rejects, "--table", "t"];
    assert_eq!(world.run(&forget).status.code(), Some(0));
    assert_eq!(world.run(&forget).status.code(), Some(1));
    let summary = load(&world, "none").unwrap();
    assert_eq!(summary["rejected"], bad.len() - committed, "{summary}");
    let (records, _) = kept(&rejects, None);
    assert_eq!(records.len(), bad.len() - committed);
    assert_eq!(world.sql("SELECT count(*) FROM t"), (100_000 - bad.len()).to_string());
}

/// While a load is suspended, its reject file is in use, and no other load writes to it.
#[test]
fn a_load_that_is_held_up_keeps_its_reject_file() {
    let mut world = world();
    let (bytes, bad) = mixed(0, 150_000);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let all = [&path, "--commit-every", "64kB", "--on-error", "reject", "--reject-limit", "none"];
    let all = [&all[..], &["--reject-file", &rejects]].concat();
    world.load(&[&world.file("b.csv", b"1000000,x\n"), "--table", "t", "--once"]).unwrap();
    world.sql("DELETE FROM t");
    world.shut_gate();
    let mut first = start(&world, &all);
    let commits = "SELECT count(*) FROM pgsluice_loads.commits WHERE rejected > 0";
    wait_until(|| "nothing is committed".into(), || world.sql(commits) != "0");
    world.suspend_at_gate(&first);
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    world.sql(end);
    let with = [&["--table", "t", "--once"], &all[..]].concat();
    let said = world.load(&with).unwrap_err();
    assert!(said.contains("is in use by another load"), "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
    world.load(&with).unwrap();
    world.sql("DELETE FROM pgsluice_loads.commits WHERE load = 1 AND number NOT IN (SELECT commit FROM pgsluice_loads.pieces); \
        UPDATE pgsluice_loads.commits SET loaded = 0, read = 0 WHERE load = 1");
    exact(&mut world, &rejects, &bad, "after the first was killed");
}

/// The reject file of binary input is a binary file that can be loaded, even if it was written by
/// several loads.
#[test]
fn binary_rejects_in_pieces_are_loaded_again() {
    let mut world = world();
    let bytes = super::lines(0, 60_000);
    let plain = world.file("plain.csv", &bytes);
    let binary = world.path("rows.bin");
    let out = world.run(&["convert", &plain, "--table", "t", "--out", &binary]);
    assert!(out.status.success(), "{out:?}");
    world.sql("ALTER TABLE t ADD CHECK (a % 1000 <> 7)");
    let rejects = world.path("bad.bin");
    let size = ["--format", "binary", "--commit-every", "256kB"];
    let load = |world: &World, limit: &str| load(world, &binary, &rejects, limit, &size);
    let said = load(&world, "40").unwrap_err();
    assert!(said.contains("limit of 40"), "{said}");
    load(&world, "none").unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM t"), "59940");
    world.sql("CREATE TABLE u (a int, b text)");
    let summary = world.load(&[&rejects, "--format", "binary", "--table", "u"]).unwrap();
    assert_eq!(summary["loaded"], 60);
    assert_eq!(world.sql("SELECT count(DISTINCT a) || ' ' || sum(a % 1000) FROM u"), "60 420");
}

/// If a load has committed nothing, its reject file is empty, missing or replaced by the next load
/// of the same files. Another load does not overwrite a reject file.
#[test]
fn a_load_that_has_committed_nothing_leaves_nothing_in_the_way() {
    let mut world = world();
    let (bytes, bad) = mixed(0, 10_000);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let load = |world: &World, more: &[&str]| {
        let all = [&path, "--table", "t", "--once", "--on-error", "reject"];
        world.load(&[&all[..], &["--reject-file", &rejects], more].concat())
    };
    world.sql(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN RAISE insufficient_privilege; END'; \
        CREATE TRIGGER f AFTER INSERT ON t EXECUTE FUNCTION f()",
    );
    load(&world, &[]).unwrap_err();
    assert!(!std::path::Path::new(&rejects).exists());
    world.sql("DROP TRIGGER f ON t");
    // If the limit is exceeded, the file shows rejects that are not committed.
    load(&world, &["--reject-limit", "3"]).unwrap_err();
    assert_eq!(kept(&rejects, None).1.len(), 2);
    fs::write(world.path("bad.2"), b"x").unwrap();
    load(&world, &[]).unwrap();
    exact(&mut world, &rejects, &bad, "at last");
    let said = world
        .load(&[
            &world.file("b.csv", b"1,x\n"),
            "--table",
            "t",
            "--once",
            "--on-error",
            "reject",
            "--reject-file",
            &rejects,
        ])
        .unwrap_err();
    assert!(said.contains("reject-existing"), "{said}");
}

/// If a file has grown, the limit is about the records that were added, and not about those of the
/// loads that are complete.
#[test]
fn the_limit_is_about_what_was_added() {
    let mut world = world();
    let path = world.file("a.csv", &super::lines(0, 60_000));
    let rejects = world.path("rejects");
    // The first load stops, and the second one completes the file.
    world.sql("ALTER TABLE t ADD CONSTRAINT few CHECK (a < 59000)");
    let pieces = ["--table", "t", "--once", "--commit-every", "256kB", "--lanes", "1"];
    world.load(&[&[path.as_str()][..], &pieces].concat()).unwrap_err();
    world.sql("ALTER TABLE t DROP CONSTRAINT few");
    assert_ne!(world.sql("SELECT count(*) FROM t"), "0");
    load(&world, &path, &rejects, "10%", &[]).unwrap();
    let added = [b"x,y\n".repeat(500), super::lines(60_000, 500)].concat();
    fs::write(&path, [super::lines(0, 60_000), added].concat()).unwrap();
    let append = ["--on-change", "append"];
    let said = load(&world, &path, &rejects, "10%", &append).unwrap_err();
    assert!(said.contains("500 records were rejected") && said.contains("limit of 10%"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "60000");
    let summary = load(&world, &path, &rejects, "60%", &append).unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&500.into(), &500.into()));
}
