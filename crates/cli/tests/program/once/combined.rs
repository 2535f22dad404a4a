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

/// If a load of an appended part is forgotten, the other names of the file stay: what they have is
/// loaded.
#[test]
fn names_without_a_forgotten_part_stay() {
    let world = world();
    let bytes = lines(0, 60_000);
    let (a, b) = (world.file("a.csv", &bytes), world.file("b.csv", &bytes));
    assert_eq!(loaded(&world, &[&a, &b]), 60_000);
    fs::write(&a, [&bytes[..], &lines(60_000, 9)].concat()).unwrap();
    assert_eq!(loaded(&world, &[&a, "--on-change", "append"]), 9);
    assert_eq!(world.run(&["loads", "forget", "2"]).status.code(), Some(0));
    assert_eq!(loaded(&world, &[&b]), 0);
    assert_eq!(loaded(&world, &[&a]), 9);
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
