//! `--commit-every`: whatever ends a load, the same command continues it, and each row is loaded
//! once.

use super::{counts, exact, lines, start, thrice, world};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{signal, wait_until, Signal, World};
use std::fs;
use std::process::Command;

/// A bad record stops the load. After it is corrected in its place, the same command continues, and
/// the next bad record is reported with its line.
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
    // A load without `--commit-every` can continue one that had it.
    assert_eq!(world.load(&all[..4]).unwrap()["files_known"], 1);
}

/// A file of which a part is loaded is refused if that part has changed, and is continued if the
/// file was renamed.
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
    let names = "SELECT count(*) || ' ' || count(same_as) FROM pgsluice_loads.sources";
    assert_eq!(world.sql(names), "2 1");
    bytes[at] = b'1';
    fs::write(&moved, &bytes).unwrap();
    load(&world, &moved).unwrap();
    assert_eq!(counts(&mut world), thrice(200_000));
}

/// The connection is lost around a COMMIT. If the server has committed, the load goes on; if not,
/// the next load continues.
#[test]
fn a_lost_commit_is_neither_lost_nor_repeated() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 100_000));
    for fate in [Fate::CutBefore, Fate::CutDuring, Fate::CutAfter] {
        for (pass, shut) in [(2, false), (4, false), (6, true)] {
            world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
            let proxy = Proxy::start(&world, "COMMIT", pass, fate, shut);
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
            let code = if fate == Fate::CutBefore || shut { 5 } else { 0 };
            if pass > 2 {
                assert_eq!(output.status.code(), Some(code), "{what}");
            }
            assert_eq!(shut, said.contains("the outcome is unknown"), "{what}");
            assert_eq!(
                code == 5 && pass > 2,
                said.contains("the same command continues"),
                "{what}"
            );
            let summary = world.load(&[&path, "--table", "t", "--once"]).unwrap();
            exact(&mut world, &what);
            assert_eq!(counts(&mut world), thrice(100_000), "{what} {summary}");
        }
    }
}

/// A load is suspended and loses the connection that holds its claims. The next load takes over,
/// and the first one fails and commits nothing from then on.
#[test]
fn a_load_that_lost_its_claims_is_stopped_by_the_next() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 300_000));
    world.load(&[&world.file("b.csv", b"1000000,x\n"), "--table", "t", "--once"]).unwrap();
    world.shut_gate();
    let first = start(&world, &[&path, "--commit-every", "64kB"]);
    let commits = "SELECT count(*) FROM pgsluice_loads.commits WHERE load = 2";
    wait_until(|| "nothing is committed".into(), || world.sql(commits) != "0");
    world.suspend_at_gate(&first);
    let end = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM pg_locks \
        WHERE locktype = 'advisory' AND granted) l";
    assert_eq!(world.sql(end), "1");
    let all = [&path, "--table", "t", "--once", "--lock-timeout", "1min"];
    let summary = world.load(&all).unwrap();
    assert_ne!((&summary["loaded"], &summary["records_known"]), (&0.into(), &0.into()));
    assert!(signal(first.id(), Signal::SIGCONT));
    let output = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("load 2 was stopped"), "{said}");
    exact(&mut world, "after the first load");
    assert_eq!(counts(&mut world), thrice(300_001));
    let states =
        "SELECT string_agg(number || ' ' || state, ', ' ORDER BY number) FROM pgsluice_loads.loads";
    assert_eq!(world.sql(states), "1 complete, 2 stopped, 3 complete");
}

/// A load waits for a transaction of an earlier one that is about to commit, at most until
/// `--lock-timeout`.
#[test]
fn waiting_for_a_commit_is_limited() {
    let mut world = world();
    let bytes = lines(0, 200_000);
    let path = world.file("a.csv", &[&bytes[..], b"x,y\n"].concat());
    let all = [&path, "--table", "t", "--once", "--commit-every", "512kB"];
    world.load(&all).unwrap_err();
    fs::write(&path, &bytes).unwrap();
    // As if the first load were running, and one of its lanes were suspended before its COMMIT.
    world.sql("UPDATE pgsluice_loads.loads SET state = 'running'");
    world.sql("BEGIN; SELECT FROM pgsluice_loads.loads FOR SHARE");
    let limited = [&["load"], &all[..], &["--lock-timeout", "300ms"]].concat();
    let output = world.run(&limited);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    world.sql("COMMIT");
    world.load(&all).unwrap();
    assert_eq!(counts(&mut world), thrice(200_000));
}

/// With `--commit-every`, indexes stay in place, and the plan says so.
#[test]
fn indexes_are_kept() {
    let mut world = world();
    world.sql("CREATE INDEX i ON t (a)");
    let path = world.file("a.csv", &lines(0, 100_000));
    let files = "SELECT indexrelid || ' ' || pg_relation_filenode(indexrelid) FROM pg_index \
        WHERE indrelid = 't'::regclass";
    let before = world.sql(files);
    let plan = |more: &[&str]| {
        let all = ["plan", &path, "--table", "t", "--once"];
        let output = world.run(&[&all[..], more].concat());
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let said = plan(&["--commit-every", "512kB"]);
    assert!(said.contains("keep index public.i: with --commit-every, no transaction"), "{said}");
    assert!(!said.contains("rebuild index"), "{said}");
    let said = plan(&[]);
    assert!(!said.contains("no transaction has all rows"), "{said}");
    world.load(&[&path, "--table", "t", "--once", "--commit-every", "512kB"]).unwrap();
    assert_eq!(world.sql(files), before);
    assert_eq!(counts(&mut world), thrice(100_000));
}

/// Sequences pass the keys of each commit. So other sessions insert rows without a duplicate while
/// the load runs, and after it has failed.
#[test]
fn sequences_pass_the_keys_of_each_commit() {
    let mut world = world();
    let path = world.file("a.csv", &[&lines(1, 200_000)[..], b"x,y\n"].concat());
    for more in [&[][..], &["--method", "lanes", "--lanes", "2"]] {
        world.sql(
            "DROP SCHEMA IF EXISTS pgsluice_loads CASCADE; DROP TABLE IF EXISTS k; \
             CREATE TABLE k (id serial PRIMARY KEY, b text)",
        );
        let all = [&path, "--table", "k", "--once", "--commit-every", "512kB"];
        world.load(&[&all[..], more].concat()).unwrap_err();
        let last: usize = world.sql("SELECT max(id) FROM k").parse().unwrap();
        assert!(last > 10_000, "{last}");
        let next: usize = world.sql("SELECT nextval('k_id_seq')").parse().unwrap();
        assert!(next > last && next < 200_002, "{next} after {last}, {more:?}");
    }
}

/// Statement triggers fire once for each file in each transaction, and one note of the plan says so.
/// With rejects, they fire once for each chunk.
#[test]
fn statement_triggers_fire_in_each_transaction() {
    let mut world = world();
    world.sql(
        "CREATE TABLE fired (xid xid8); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS \
           'BEGIN INSERT INTO fired VALUES (pg_current_xact_id()); RETURN NULL; END'; \
         CREATE TRIGGER f AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION f()",
    );
    let files = [lines(0, 50_000), lines(50_000, 50_000)];
    let [a, b] = [("a.csv", &files[0]), ("b.csv", &files[1])].map(|(name, f)| world.file(name, f));
    let all = [&a, &b, "--table", "t", "--once", "--commit-every", "1MB"];
    let rejects = world.path("bad");
    let rejects = ["--on-error", "reject", "--reject-file", &rejects];
    let lanes = ["--method", "lanes", "--lanes", "2"];
    for (more, each) in [
        (&[][..], "file in each transaction\n"),
        (&lanes, "file in each transaction\n"),
        (&rejects, "chunk\n"),
    ] {
        world.sql("TRUNCATE t, fired; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let plan = world.run(&[&["plan"], &all[..], more].concat());
        let plan = String::from_utf8(plan.stdout).unwrap();
        let notes: Vec<&str> = plan.split("statement triggers fire once for each ").collect();
        assert!(notes.len() == 2 && notes[1].starts_with(each), "{more:?} {plan}");
        world.load(&[&all[..], more].concat()).unwrap();
        let counted = if each == "chunk\n" { "*" } else { "DISTINCT p.source" };
        let differ = format!(
            "SELECT count(*) FROM (SELECT xid, count(*) AS n FROM fired GROUP BY xid) f FULL JOIN \
               (SELECT c.xid, count({counted}) AS n FROM pgsluice_loads.commits c \
                  JOIN pgsluice_loads.pieces p ON p.commit = c.number GROUP BY c.xid) p \
               USING (xid) WHERE f.n IS DISTINCT FROM p.n"
        );
        assert_eq!(world.sql(&differ), "0", "{more:?}");
        assert!(world.sql("SELECT count(*) FROM fired").parse::<u32>().unwrap() > 3, "{more:?}");
    }
}

/// A record that is too long to be held in memory is read in pieces, and no commit comes between
/// them.
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
