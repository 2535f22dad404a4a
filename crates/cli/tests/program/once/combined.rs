//! Names and contents together: copies, second names, files that grow, and loads that stop.

use super::{counts, lines, thrice, world};
use crate::common::World;
use std::fs;

fn load(world: &World, more: &[&str]) -> Result<serde_json::Value, String> {
    world.load(&[more, &["--table", "t", "--once"]].concat())
}

fn loaded(world: &World, more: &[&str]) -> u64 {
    load(world, more).unwrap()["loaded"].as_u64().unwrap()
}

/// Loads a part of a file of 200,000 records, whose last one is bad, and returns how many.
fn partly(world: &mut World, path: &str) -> u64 {
    let bytes = lines(0, 200_000);
    fs::write(path, [&bytes[..], b"x,y\n"].concat()).unwrap();
    load(world, &[path, "--commit-every", "1MB", "--lanes", "1"]).unwrap_err();
    fs::write(path, &bytes).unwrap();
    let count = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(count > 0 && count < 200_000, "{count}");
    count
}

/// A copy is recognised wherever it is named: before the file that is partly loaded, and before or
/// after the file that has grown.
#[test]
fn copies_are_recognised_in_any_order() {
    let mut world = world();
    let (copy, a) = (world.path("a-copy.csv"), world.path("a.csv"));
    let first = partly(&mut world, &a);
    fs::copy(&a, &copy).unwrap();
    assert_eq!(loaded(&world, &[&copy, &a]), 200_000 - first);
    assert_eq!(loaded(&world, &[&copy, &a]), 0);
    // A copy of what it was, and a copy of what it is.
    let bytes = fs::read(&a).unwrap();
    let old = world.file("old.csv", &bytes);
    let new = world.file("new.csv", &[bytes, lines(200_000, 9)].concat());
    fs::copy(&new, &a).unwrap();
    let names = [&*new, &a, &old];
    assert_eq!(loaded(&world, &[&names[..], &["--on-change", "append"]].concat()), 9);
    assert_eq!(loaded(&world, &names), 0);
    // A second name that grows by the same bytes.
    let grown = [fs::read(&a).unwrap(), lines(200_009, 5)].concat();
    fs::write(&a, &grown).unwrap();
    fs::write(&new, &grown).unwrap();
    assert_eq!(loaded(&world, &[&new, &a, "--on-change", "append"]), 5);
    assert_eq!(loaded(&world, &[&new, &a, &old, &copy]), 0);
    assert_eq!(counts(&mut world), thrice(200_014));
}

/// Loads a part of a file: the table refuses its later records until the load has failed.
fn begun(world: &mut World, path: &str) -> u64 {
    world.sql("ALTER TABLE t ADD CONSTRAINT few CHECK (a < 150000)");
    let before: u64 = world.sql("SELECT count(*) FROM t").parse().unwrap();
    load(world, &[path, "--commit-every", "1MB", "--lanes", "1"]).unwrap_err();
    world.sql("ALTER TABLE t DROP CONSTRAINT few");
    let count = world.sql("SELECT count(*) FROM t").parse::<u64>().unwrap() - before;
    assert!(count > 0 && count < 200_000, "{count}");
    count
}

/// If a file that is partly loaded is continued under another name, its first name is still known:
/// with other bytes, it is not a new file.
#[test]
fn the_first_name_of_a_continued_file_is_kept() {
    let mut world = world();
    let bytes = lines(0, 200_000);
    let (a, b) = (world.file("a.csv", &bytes), world.file("b.csv", &bytes));
    let first = begun(&mut world, &a);
    assert_eq!(loaded(&world, &[&b]), 200_000 - first);
    let mut corrected = bytes.clone();
    let at =
        bytes.len() / 2 + bytes[bytes.len() / 2..].windows(4).position(|w| w == b"text").unwrap();
    corrected[at] = b'T';
    fs::write(&a, &corrected).unwrap();
    let said = load(&world, &[&a]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    // It grows, then it is the file that was loaded.
    fs::write(&a, [&bytes[..], &lines(200_000, 9)].concat()).unwrap();
    let said = load(&world, &[&a]).unwrap_err();
    assert!(said.contains("has grown since it was loaded"), "{said}");
    assert_eq!(loaded(&world, &[&a, "--on-change", "append"]), 9);
    assert_eq!(loaded(&world, &[&b, &a]), 0);
    assert_eq!(counts(&mut world), thrice(200_009));
    for load in ["1", "2", "3"] {
        let verify = world.run(&["loads", "verify", load]);
        assert_eq!(verify.status.code(), Some(0), "{verify:?}");
    }
}

/// A file that is partly loaded may be continued under any of its names, in turn. Together they must
/// be the same.
#[test]
fn a_partly_loaded_file_is_continued_under_any_of_its_names() {
    let mut world = world();
    let bytes = lines(0, 200_000);
    let bad = [&bytes[..], b"x,y\n"].concat();
    let (a, b) = (world.file("a.csv", &bad), world.file("b.csv", &bad));
    let pieces = ["--commit-every", "1MB", "--lanes", "1"];
    begun(&mut world, &a);
    load(&world, &[&[&*b][..], &pieces].concat()).unwrap_err();
    load(&world, &[&[&*a][..], &pieces].concat()).unwrap_err();
    fs::write(&a, &bytes).unwrap();
    let said = load(&world, &[&a, &b]).unwrap_err();
    assert!(said.contains("now they differ"), "{said}");
    fs::write(&b, &bytes).unwrap();
    let loading = "SELECT count(*) || ' ' || count(same_as) FROM pgsluice_loads.sources \
        WHERE state = 'loading'";
    assert_eq!(world.sql(loading), "2 1");
    let c = world.file("c.csv", &bytes);
    let left = 200_000 - world.sql("SELECT count(*) FROM t").parse::<u64>().unwrap();
    assert!(left < 100_000, "{left}");
    assert_eq!(loaded(&world, &[&c, &b, &a]), left);
    assert_eq!(loaded(&world, &[&a, &b, &c]), 0);
    let complete = "SELECT count(*) || ' ' || count(completed) FROM pgsluice_loads.sources \
        WHERE state = 'complete'";
    assert_eq!(world.sql(complete), "3 3");
    assert_eq!(counts(&mut world), thrice(200_000));
}

/// If a load of an appended part is forgotten, the other names of the file stay: what they have is
/// loaded. This is so whether they were recorded before or after that load.
#[test]
fn names_without_a_forgotten_part_stay() {
    let world = world();
    let bytes = lines(0, 60_000);
    let (a, b) = (world.file("a.csv", &bytes), world.file("b.csv", &bytes));
    assert_eq!(loaded(&world, &[&a, &b]), 60_000);
    fs::write(&a, [&bytes[..], &lines(60_000, 9)].concat()).unwrap();
    assert_eq!(loaded(&world, &[&a, "--on-change", "append"]), 9);
    // The time has changed, and the name.
    fs::write(&b, &bytes).unwrap();
    let c = world.file("c.csv", &bytes);
    assert_eq!(loaded(&world, &[&b, &c]), 0);
    assert_eq!(world.run(&["loads", "forget", "2"]).status.code(), Some(0));
    assert_eq!(loaded(&world, &[&b, &c]), 0);
    assert_eq!(loaded(&world, &[&a]), 9);
}

/// If the first load of a file is forgotten, a name that it had then is known as long as something of
/// the file is loaded.
#[test]
fn names_stay_while_a_part_of_the_file_is_loaded() {
    let mut world = world();
    let bytes = lines(0, 200_000);
    let (a, b) = (world.file("a.csv", &bytes), world.file("b.csv", &bytes));
    let first = begun(&mut world, &a);
    assert_eq!(loaded(&world, &[&b]), 200_000 - first);
    // The names are compared, and are complete.
    assert_eq!(loaded(&world, &[&a, &b]), 0);
    world.sql(&format!("DELETE FROM t WHERE a >= {first}"));
    assert_eq!(world.run(&["loads", "forget", "2"]).status.code(), Some(0));
    fs::write(&a, [&b"0,other\n"[..], &bytes].concat()).unwrap();
    let said = load(&world, &[&a]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    assert_eq!(loaded(&world, &[&b]), 200_000 - first);
    assert_eq!(counts(&mut world), thrice(200_000));
    let forget = world.run(&["loads", "forget", &b, "--table", "t"]);
    let said = String::from_utf8_lossy(&[forget.stdout, forget.stderr].concat()).into_owned();
    assert!(said.contains("a.csv") && said.contains("b.csv"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.sources"), "0");
}

/// A name of a file that was loaded again after `loads forget` is compared with it. A name that was
/// only begun does not hide another name, which is what the file was before it grew.
#[test]
fn names_are_compared_after_a_load_was_forgotten() {
    let mut world = world();
    let bytes = lines(0, 200_000);
    let (a, b) = (world.file("a.csv", &bytes), world.file("b.csv", &bytes));
    let first = begun(&mut world, &a);
    assert_eq!(loaded(&world, &[&b]), 200_000 - first);
    let c = world.file("c.csv", &bytes);
    assert_eq!(loaded(&world, &[&c]), 0);
    fs::write(&b, [&bytes[..], &lines(200_000, 9)].concat()).unwrap();
    assert_eq!(loaded(&world, &[&b, "--on-change", "append"]), 9);
    let d = world.path("d.csv");
    fs::rename(&c, &d).unwrap();
    assert_eq!(loaded(&world, &[&d]), 0);
    assert_eq!(counts(&mut world), thrice(200_009));
    // The rows of load 2 are forgotten, and the file is corrected there.
    world.sql(&format!("DELETE FROM t WHERE a >= {first} AND a < 200000"));
    assert_eq!(world.run(&["loads", "forget", "2"]).status.code(), Some(0));
    let mut corrected = fs::read(&b).unwrap();
    let at = corrected.windows(15).position(|w| w == b"of line 190000\"").unwrap();
    corrected[at] = b'O';
    fs::write(&b, &corrected).unwrap();
    assert_eq!(loaded(&world, &[&b]), 200_000 - first);
    let said = load(&world, &[&d]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    assert_eq!(counts(&mut world), thrice(200_009));
}

/// If a load that has committed nothing is forgotten, no name is.
#[test]
fn names_stay_if_a_load_without_rows_is_forgotten() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let (a, b) = (world.file("a.csv", &bytes), world.file("b.csv", &bytes));
    assert_eq!(loaded(&world, &[&a, &b]), 60_000);
    let grown = [&bytes[..], &lines(60_000, 9)].concat();
    fs::write(&a, [&grown[..], b"x,y\n"].concat()).unwrap();
    load(&world, &[&a, "--on-change", "append"]).unwrap_err();
    fs::write(&b, &bytes).unwrap();
    assert_eq!(loaded(&world, &[&b]), 0);
    assert_eq!(world.run(&["loads", "forget", "2"]).status.code(), Some(0));
    assert_eq!(loaded(&world, &[&b]), 0);
    fs::write(&a, &grown).unwrap();
    assert_eq!(loaded(&world, &[&a, "--on-change", "append"]), 9);
    assert_eq!(counts(&mut world), thrice(60_009));
}

/// A range in the middle of a file is forgotten. The file is loaded again under any of its names, and
/// together with them; a name that is what the file was before is complete.
#[test]
fn a_gap_is_loaded_under_any_name() {
    for again in [&["a"][..], &["b"], &["a", "b"], &["b", "a"]] {
        let mut world = world();
        let bytes = lines(0, 60_000);
        let (a, b) = (world.file("a", &bytes), world.file("b", &bytes));
        let c = world.file("c", &bytes);
        assert_eq!(loaded(&world, &[&a, &b, &c]), 60_000);
        for (records, added) in [(60_009, 9), (60_014, 5)] {
            fs::write(&a, lines(0, records)).unwrap();
            assert_eq!(loaded(&world, &[&a, "--on-change", "append"]), added);
        }
        world.sql("DELETE FROM t WHERE a BETWEEN 60000 AND 60008");
        assert_eq!(world.run(&["loads", "forget", "2"]).status.code(), Some(0));
        fs::write(&b, lines(0, 60_014)).unwrap();
        fs::write(&c, &bytes).unwrap();
        let names: Vec<String> = again.iter().map(|name| world.path(name)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let append = [&names[..], &["--on-change", "append"]].concat();
        assert_eq!(loaded(&world, &append), 9, "{again:?}");
        assert_eq!(loaded(&world, &[&c, &a, &b, "--on-change", "append"]), 0, "{again:?}");
        assert_eq!(counts(&mut world), thrice(60_014), "{again:?}");
    }
}

/// Two files that have only a header are recorded as the same file. When they get different records,
/// they are separate files.
#[test]
fn files_that_begin_with_a_header_alone() {
    let mut world = world();
    let file =
        |from: usize, count: usize, end: &[u8]| [b"a,b\n", &lines(from, count)[..], end].concat();
    let (a, b) = (world.file("a.csv", b"a,b\n"), world.file("b.csv", b"a,b\n"));
    let append = ["--header", "--on-change", "append"];
    let loaded = |names: &[&str]| loaded(&world, &[names, &append].concat());
    assert_eq!(loaded(&[&a, &b]), 0);
    for (path, from) in [(&a, 0), (&b, 1000)] {
        fs::write(path, file(from, 100, b"x,y\n")).unwrap();
        load(&world, &[&[path.as_str()][..], &append].concat()).unwrap_err();
    }
    fs::write(&a, file(0, 100, b"")).unwrap();
    assert_eq!(loaded(&[&a]), 100);
    fs::write(&b, file(1000, 100, b"")).unwrap();
    assert_eq!(loaded(&[&b]), 100);
    fs::write(&a, file(0, 101, b"")).unwrap();
    assert_eq!(loaded(&[&a]), 1);
    assert_eq!(loaded(&[&a, &b]), 0);
    // One after the other, on different days.
    let (c, d) = (world.file("c.csv", b"a,b\n"), world.file("d.csv", b"a,b\n"));
    assert_eq!(loaded(&[&c, &d]), 0);
    for (path, from) in [(&c, 2000), (&d, 3000)] {
        fs::write(path, file(from, 10, b"")).unwrap();
        assert_eq!(loaded(&[&a, &b, path]), 10);
    }
    assert_eq!(loaded(&[&c, &d]), 0);
    assert_eq!(counts(&mut world), thrice(221));
}

/// A comment at the end of a file, which is in no piece, is longer than the records that took its
/// place under another name. The file is still what it was; with another record in it, it is not.
#[test]
fn a_long_comment_at_the_end_of_another_name() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let comment = format!("# {}\n", "end ".repeat(50));
    let old = [&bytes[..], comment.as_bytes()].concat();
    let (a, b) = (world.file("a.csv", &old), world.file("b.csv", &old));
    let comments = ["--comment", "#", "--on-change", "append"];
    let load = |names: &[&str]| load(&world, &[names, &comments].concat());
    assert_eq!(load(&[&a, &b]).unwrap()["loaded"], 60_000);
    fs::write(&a, [&bytes[..], &lines(60_000, 1)].concat()).unwrap();
    assert_eq!(load(&[&a]).unwrap()["loaded"], 1);
    fs::write(&b, &old).unwrap();
    assert_eq!(load(&[&b]).unwrap()["loaded"], 0);
    let verify = world.run(&["loads", "verify", "1"]);
    assert_eq!(verify.status.code(), Some(0), "{verify:?}");
    let moved = world.path("moved.csv");
    fs::rename(&b, &moved).unwrap();
    assert_eq!(load(&[&moved]).unwrap()["loaded"], 0);
    let mut other = old.clone();
    let at = old.windows(14).position(|w| w == b"of line 30000\"").unwrap();
    other[at] = b'O';
    fs::write(&moved, &other).unwrap();
    let said = load(&[&moved]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    assert_eq!(counts(&mut world), thrice(60_001));
}

/// Files of a load that has rejects and is not complete cannot be forgotten without the reject
/// file: the next load would reject the same records again.
#[test]
fn rejects_of_a_forgotten_file_are_not_added_twice() {
    let mut world = world();
    let bad = |from: usize| [&lines(from, 9_000)[..], b"x,y\n"].concat();
    let (a, b) = (world.file("a.csv", &bad(0)), world.file("b.csv", &bad(10_000)));
    let (c, rejects) = (world.file("c.csv", b"1\n2\n3\n4\n5\n"), world.path("bad.csv"));
    let to = ["--on-error", "reject", "--reject-file", &rejects, "--reject-limit", "3"];
    let pieces = ["--commit-every", "128kB", "--lanes", "1"];
    load(&world, &[&[&*a, &b, &c][..], &to, &pieces].concat()).unwrap_err();
    let held = "SELECT count(*) FROM pgsluice_loads.reject_files WHERE records > 0";
    assert_eq!(world.sql(held), "1");
    let forget = world.run(&["loads", "forget", &a, "--table", "t"]);
    let said = String::from_utf8_lossy(&forget.stderr).into_owned();
    assert!(!forget.status.success() && said.contains("would add them again"), "{said}");
    let forget = world.run(&["loads", "forget", &a, &rejects, "--table", "t"]);
    assert_eq!((forget.status.code(), world.sql(held).as_str()), (Some(0), "0"));
}
