//! `--once`: each file is in the table exactly once, however often it is loaded and by however many
//! loads.

mod claims;
mod combined;
mod content;
mod corrections;
mod faults;
mod kills;
mod listing;
mod objects;
mod pieces;
mod read_in_parts;
mod recovery;
mod reject_files;
mod rejects;
mod rights;
mod share;
mod stopped;
mod streams;

use crate::common::{each_major, wait_until, World};
use std::fs;
use std::process::{Child, Command, Stdio};

/// A world of the first major version with a table `t (a int, b text)`.
fn world() -> World {
    let mut world = World::new(&each_major().remove(0));
    world.sql("CREATE TABLE t (a int, b text)");
    world
}

/// Lines of a file: the numbers from `from` on, each with some text.
fn lines(from: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in from..from + count {
        bytes.extend_from_slice(format!("{i},\"some text, of line {i}\"\n").as_bytes());
    }
    bytes
}

/// Starts a load and does not wait for it.
fn start(world: &World, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "--quiet", "--table", "t", "--once"])
        .args(arguments)
        .args(["--to", &world.server.url("postgres")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a load that has claimed its file and waits for the table until COMMIT. Another file is loaded
/// already. Returns the name of the file.
fn held_back(world: &mut World) -> (String, Child) {
    let path = world.file("a.csv", &lines(0, 100));
    world.load(&[&world.file("b.csv", b"100,x\n"), "--table", "t", "--once"]).unwrap();
    world.sql("BEGIN; LOCK TABLE t");
    let first = start(world, &[&path]);
    let held = "SELECT count(*) FROM pgsluice_loads.loads WHERE state = 'running'";
    wait_until(|| "nothing is claimed".into(), || world.sql(held) == "1");
    (path, first)
}

/// The number of rows, of distinct rows, and of rows that the ledger says are loaded.
fn counts(world: &mut World) -> [String; 3] {
    [
        world.sql("SELECT count(*) FROM t"),
        world.sql("SELECT count(DISTINCT a) FROM t"),
        world.sql("SELECT coalesce(sum(loaded), 0) FROM pgsluice_loads.commits"),
    ]
}

/// Checks that the numbers in the ledger are those of the table, and that no ranges of a file
/// overlap.
pub fn exact(world: &mut World, what: &str) {
    let sums = "SELECT coalesce(sum(read), 0) || '=' || coalesce(sum(loaded), 0) || '=' || \
        (SELECT coalesce(sum(records), 0) FROM pgsluice_loads.pieces) FROM pgsluice_loads.commits";
    let n = world.sql("SELECT count(*) FROM t");
    assert_eq!(world.sql(sums), format!("{n}={n}={n}"), "{what}");
    let twice = "SELECT count(*) FROM pgsluice_loads.pieces a JOIN pgsluice_loads.pieces b \
        ON a.source = b.source AND a.start_byte < b.start_byte AND b.start_byte < a.end_byte";
    assert_eq!(world.sql(twice), "0", "{what}");
}

fn thrice(n: usize) -> [String; 3] {
    [n.to_string(), n.to_string(), n.to_string()]
}

/// A second load with `--once` loads only files that are new. The ledger is separate for each
/// table, and is not used without `--once`.
#[test]
fn a_second_load_loads_only_what_is_new() {
    let mut world = world();
    let a = world.file("a.csv", &lines(0, 1000));
    let b = world.file("b.csv", &lines(1000, 1000));
    let first = world.load(&[&a, &b, "--table", "t", "--once"]).unwrap();
    assert_eq!((&first["loaded"], &first["files_known"]), (&2000.into(), &0.into()), "{first}");
    assert_eq!(first["load"], 1);
    let second = world.load(&[&a, &b, "--table", "t", "--once"]).unwrap();
    assert_eq!((&second["read"], &second["files_known"]), (&0.into(), &2.into()), "{second}");
    assert!(
        second["load"].is_null() && second["notes"][0].as_str().unwrap().contains("nothing new")
    );
    let said = world.run(&["load", &a, &b, "--table", "t", "--once"]);
    let said = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said, "\"public\".\"t\": nothing new: all files (2) were loaded before\n");
    let c = world.file("c.csv", &lines(2000, 1000));
    let third = world.load(&[&a, &c, &b, "--table", "t", "--once"]).unwrap();
    assert_eq!((&third["loaded"], &third["files_known"]), (&1000.into(), &2.into()), "{third}");
    assert_eq!(counts(&mut world), thrice(3000));
    // A file that is in one table can be loaded into another.
    world.sql("CREATE TABLE u (LIKE t)");
    world.load(&[&a, "--table", "u", "--once"]).unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM u"), "1000");
    // Without `--once`, the ledger is not used.
    world.load(&[&a, "--table", "t"]).unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM t"), "4000");
}

/// Compressed files, files with a header and comments, and binary files are loaded once, by COPY
/// and by INSERT.
#[test]
fn every_form_of_file_is_loaded_once() {
    let mut world = world();
    world.file("plain.csv", &lines(0, 100_000));
    let made = Command::new("sh")
        .args([
            "-c",
            "gzip <plain.csv >rows.csv.gz; (echo a,b; cat plain.csv; echo '# end') >head.csv",
        ])
        .current_dir(world.path(""))
        .status();
    assert!(made.unwrap().success());
    let binary = world.path("rows.bin");
    let out = world.run(&["convert", &world.path("plain.csv"), "--table", "t", "--out", &binary]);
    assert!(out.status.success(), "{out:?}");
    let (gz, head) = (world.path("rows.csv.gz"), world.path("head.csv"));
    let forms: [&[&str]; 4] = [
        &[&gz],
        &[&head, "--header", "--comment", "#"],
        &[&binary, "--format", "binary"],
        &[&gz, "--method", "insert-batch"],
    ];
    for form in forms {
        world.sql("DROP TABLE t; CREATE TABLE t (a int, b text)");
        for loaded in [100_000, 0] {
            let all = [form, &["--table", "t", "--once"]].concat();
            let summary = world.load(&all).unwrap();
            assert_eq!(summary["loaded"], loaded, "{form:?}");
        }
        let pieces = "SELECT count(*) > 3 AND sum(records) = 100000 FROM pgsluice_loads.pieces p \
            JOIN pgsluice_loads.sources s ON s.number = p.source WHERE s.target = 't'::regclass";
        assert_eq!(world.sql(pieces), "t", "{form:?}");
        assert_eq!(world.sql("SELECT count(DISTINCT a) FROM t"), "100000", "{form:?}");
    }
}

/// A load that fails leaves no row, and the ledger has its error. The same command loads the file
/// after it is corrected.
#[test]
fn a_load_that_fails_leaves_nothing_and_can_be_mended() {
    let mut world = world();
    let mut bytes = lines(0, 1000);
    bytes.extend_from_slice(b"no number,x\n");
    let path = world.file("a.csv", &bytes);
    let said = world.load(&[&path, "--table", "t", "--once"]).unwrap_err();
    assert!(said.contains("line 1001"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.pieces"), "0");
    let state = "SELECT state || ' ' || (error LIKE '%line 1001%') FROM pgsluice_loads.loads";
    assert_eq!(world.sql(state), "stopped true");
    fs::write(&path, lines(0, 1001)).unwrap();
    let summary = world.load(&[&path, "--table", "t", "--once"]).unwrap();
    assert_eq!((&summary["loaded"], &summary["load"]), (&1001.into(), &2.into()));
    assert_eq!(counts(&mut world), thrice(1001));
    // If a rebuilt index finds a duplicate, the load is run twice, but fails once.
    world.sql("CREATE TABLE k (a int PRIMARY KEY)");
    let twice = world.file("twice.csv", b"1\n2\n1\n");
    let said = world.load(&[&twice, "--table", "k", "--once"]).unwrap_err();
    assert!(said.contains("line 3"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM k"), "0");
}

/// The ledger counts records that were rejected or skipped by `--where`. The same command then
/// loads and rejects nothing.
#[test]
fn rejects_and_conditions_are_counted() {
    let mut world = world();
    let mut bytes = lines(0, 10);
    bytes.extend_from_slice(b"no number,x\n");
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("rejects");
    let all = [&path, "--table", "t", "--once", "--where", "a >= 2", "--on-error", "reject"];
    let with = [&all[..], &["--reject-file", &rejects]].concat();
    let summary = world.load(&with).unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&8.into(), &1.into()), "{summary}");
    let row = "SELECT read || '=' || loaded || '+' || rejected || '+' || skipped \
        FROM pgsluice_loads.commits";
    assert_eq!(world.sql(row), "11=8+1+2");
    // The reject file exists, and nothing is written to it.
    assert_eq!(world.load(&with).unwrap()["read"], 0);
}

/// Options, methods and tables that do not work with `--once` are refused, such as `--truncate`,
/// `--limit`, standard input without a name, UNLOGGED tables and views.
#[test]
fn what_does_not_go_with_it_is_refused() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 10));
    let wrong: [&[&str]; 6] = [
        &["--once", "--truncate"],
        &["--once", "--limit", "3"],
        &["--once", "--ledger", "none"],
        &["--commit-every", "1MB"],
        &["--once", "--commit-every", "1"],
        &["--once", "--commit-every", "1MB", "--triggers", "off"],
    ];
    for wrong in wrong {
        let output = world.run(&[&["load", &path, "--table", "t"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?} {output:?}");
    }
    let output = world.run_with(&["load", "-", "--table", "t", "--once"], b"1,x\n");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    world.sql("CREATE UNLOGGED TABLE u (LIKE t); CREATE VIEW v AS SELECT * FROM t");
    world.sql(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER f INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION f()",
    );
    let refused: [(&[&str], &str); 5] = [
        (&["--table", "u"], "UNLOGGED"),
        (&["--table", "t", "--method", "unlogged"], "UNLOGGED"),
        (&["--table", "v"], "its rows are elsewhere"),
        (&["--table", "t", "--method", "insert"], "commits each row"),
        (&["--table", "t", "--method", "staged", "--commit-every", "1MB"], "one transaction"),
    ];
    for (arguments, why) in refused {
        let said = world.load(&[&[path.as_str(), "--once"], arguments].concat()).unwrap_err();
        assert!(said.contains(why), "{arguments:?} {said}");
        let plan = world.run(&[&["plan", &path, "--once"], arguments].concat());
        assert!(String::from_utf8_lossy(&plan.stderr).contains(why), "{plan:?}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    world.sql(
        "CREATE TABLE p (a int, b text) PARTITION BY RANGE (a);
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (5);
         CREATE UNLOGGED TABLE p2 PARTITION OF p FOR VALUES FROM (5) TO (99)",
    );
    let said = world.load(&[&path, "--table", "p", "--once"]).unwrap_err();
    assert!(said.contains("the partition p2 is UNLOGGED"), "{said}");
    world.sql("ALTER TABLE p2 SET LOGGED");
    for loaded in [10, 0] {
        let summary = world.load(&[&path, "--table", "p", "--once"]).unwrap();
        assert_eq!(summary["loaded"], loaded);
    }
    world.load(&[&path, "--table", "u", "--once", "--force-unlogged"]).unwrap();
    assert_eq!(world.sql("SELECT count(*) FROM u"), "10");
}

/// A load that waits for another load of the same files says so. `--lock-timeout` limits how long
/// it waits.
#[test]
fn a_load_waits_for_another_one() {
    let mut world = world();
    let (path, first) = held_back(&mut world);
    let limited = ["load", &path, "--table", "t", "--once", "--lock-timeout", "200ms"];
    let output = world.run(&limited);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.starts_with("waiting for another load of the same files\n"), "{said}");
    world.sql("COMMIT");
    assert!(first.wait_with_output().unwrap().status.success());
    assert_eq!(counts(&mut world), thrice(101));
}

/// Several loads of the same files run at the same time. Each row is loaded once, and all loads
/// succeed.
#[test]
fn loads_at_once_load_once() {
    let mut world = world();
    let paths: Vec<String> =
        (0..6).map(|i| world.file(&format!("{i}.csv"), &lines(i * 20_000, 20_000))).collect();
    let mut forwards: Vec<&str> = paths.iter().map(String::as_str).collect();
    for round in 0..6 {
        world.sql("DROP TABLE t; CREATE TABLE t (a int, b text); DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let mut others = forwards.clone();
        others.reverse();
        if round % 2 == 1 {
            forwards.extend(["--commit-every", "64kB"]);
            others.extend(["--commit-every", "200kB", "--method", "lanes", "--lanes", "2"]);
        }
        let children = [&forwards, &others, &forwards, &others].map(|all| start(&world, all));
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        }
        forwards.truncate(6);
        assert_eq!(counts(&mut world), thrice(120_000), "round {round}");
    }
}
