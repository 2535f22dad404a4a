//! Files are recognised by what they hold.

use super::{counts, lines, thrice, world};
use crate::common::World;
use std::fs;

fn load(world: &World, more: &[&str]) -> Result<serde_json::Value, String> {
    world.load(&[more, &["--table", "t", "--once"]].concat())
}

#[test]
fn a_file_with_another_name_or_time_is_the_same() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let path = world.file("a.csv", &bytes);
    load(&world, &[&path]).unwrap();
    // Another time.
    fs::write(&path, &bytes).unwrap();
    assert_eq!(load(&world, &[&path]).unwrap()["loaded"], 0);
    let moved = world.path("moved.csv");
    fs::rename(&path, &moved).unwrap();
    let summary = load(&world, &[&moved]).unwrap();
    assert_eq!(summary["loaded"], 0);
    assert!(summary["notes"][1].as_str().unwrap().contains("same bytes"), "{summary}");
    // Now it is known by that name, and at once.
    fs::write(&moved, b"").unwrap();
    let said = load(&world, &[&moved]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    // By a link it is the same file.
    fs::write(&moved, &bytes).unwrap();
    let link = world.path("link.csv");
    std::os::unix::fs::symlink(&moved, &link).unwrap();
    assert_eq!(load(&world, &[&link, &moved]).unwrap()["loaded"], 0);
    assert_eq!(counts(&mut world), thrice(60_000));
}

#[test]
fn copies_in_one_load_are_loaded_once() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    // The same ends and the same size, and other bytes in the middle.
    let mut other = bytes.clone();
    let middle = other.len() / 2;
    let digit = middle + other[middle..].windows(2).position(|w| w == b"\n3").unwrap() + 1;
    other[digit] = b'9';
    let paths = [("a", &bytes), ("b", &bytes), ("c", &other)]
        .map(|(name, bytes)| world.file(&format!("{name}.csv"), bytes));
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let summary = load(&world, &[paths.as_slice(), &paths[..1]].concat()).unwrap();
    assert_eq!(summary["loaded"], 120_000, "{summary}");
    let notes = summary["notes"].to_string();
    assert!(notes.contains("a.csv, and they are loaded once"), "{notes}");
    assert!(notes.contains("named twice"), "{notes}");
    assert_eq!(load(&world, &paths).unwrap()["loaded"], 0);
    // The other content under another name.
    let d = world.file("d.csv", &other);
    assert_eq!(load(&world, &[&d]).unwrap()["loaded"], 0);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "120000");
}

#[test]
fn a_file_with_the_same_name_and_other_bytes_is_an_error() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let path = world.file("a.csv", &bytes);
    load(&world, &[&path]).unwrap();
    let mut other = bytes.clone();
    let at = other.len() * 2 / 3;
    let digit = at + other[at..].windows(2).position(|w| w == b"\n4").unwrap() + 1;
    other[digit] = b'5';
    fs::write(&path, &other).unwrap();
    let said = load(&world, &[&path]).unwrap_err();
    let range = "SELECT 'bytes ' || start_byte || ' to ' || end_byte FROM pgsluice_loads.pieces \
        WHERE start_byte <= ";
    let range = world.sql(&format!("{range} {digit} AND end_byte > {digit}"));
    assert!(said.contains(&range), "{range}: {said}");
    // Longer and shorter.
    fs::write(&path, [bytes.as_slice(), b"60000,x\n"].concat()).unwrap();
    let said = load(&world, &[&path]).unwrap_err();
    assert!(said.contains(&format!("8 bytes follow byte {}", bytes.len())), "{said}");
    fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let said = load(&world, &[&path]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(load(&world, &[&path]).unwrap()["loaded"], 0);
    assert_eq!(counts(&mut world), thrice(60_000));
}

#[test]
fn other_options_are_an_error() {
    let mut world = world();
    let path = world.file("a.csv", b"1,x\n2,y\n");
    load(&world, &[&path]).unwrap();
    let copy = world.file("copy.csv", b"1,x\n2,y\n");
    for (options, said) in [
        (&["--where", "a > 1"], "--where was not given and is \"a > 1\""),
        (&["--delimiter", ";"], "--delimiter was \",\" and is \";\""),
        (&["--columns", "b,a"], "--columns was not given and is \"b,a\""),
        (&["--null", "x"], "--null was \"\" and is \"x\""),
    ] {
        for path in [&path, &copy] {
            let error = load(&world, &[&[path.as_str()], &options[..]].concat()).unwrap_err();
            assert!(error.contains(said), "{options:?} {error}");
        }
    }
    assert_eq!(load(&world, &[&path, "--method", "copy-text"]).unwrap()["loaded"], 0);
    // What has failed can be tried with others.
    let other = world.file("other.csv", b"3;z\n");
    load(&world, &[&other]).unwrap_err();
    assert_eq!(load(&world, &[&other, "--delimiter", ";"]).unwrap()["loaded"], 1);
    load(&world, &[&other]).unwrap_err();
    world.sql("DELETE FROM t WHERE a = 3");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
}

/// An attempt that has failed does not hide that the content is loaded under another name.
#[test]
fn a_failed_attempt_hides_nothing() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let a = world.file("a.csv", b"x,y\n");
    load(&world, &[&a]).unwrap_err();
    let b = world.file("b.csv", &bytes);
    load(&world, &[&b]).unwrap();
    fs::write(&a, &bytes).unwrap();
    for _ in 0..2 {
        assert_eq!(load(&world, &[&a, &b]).unwrap()["loaded"], 0);
    }
    // The same for one that is loaded in part, and was moved to the name.
    let bad = [&lines(60_000, 60_000)[..], b"x,y\n"].concat();
    let (c, d) = (world.file("c.csv", &bad), world.file("d.csv", b"x,y\n"));
    load(&world, &[&d]).unwrap_err();
    load(&world, &[&c, "--commit-every", "256kB"]).unwrap_err();
    let before: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(before > 60_000, "{before}");
    fs::rename(&c, &d).unwrap();
    load(&world, &[&d, "--commit-every", "256kB"]).unwrap_err();
    fs::write(&d, &bad[..bad.len() - 4]).unwrap();
    load(&world, &[&d]).unwrap();
    assert_eq!(counts(&mut world), thrice(120_000));
}

/// The table's history is that of the table, not of its name.
#[test]
fn a_table_that_is_created_again_is_empty() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 10));
    load(&world, &[&path]).unwrap();
    world.sql("DROP TABLE t; CREATE TABLE t (a int, b text)");
    assert_eq!(load(&world, &[&path]).unwrap()["loaded"], 10);
    world.sql("ALTER TABLE t RENAME TO other; ALTER TABLE other RENAME TO t");
    assert_eq!(load(&world, &[&path]).unwrap()["loaded"], 0);
}

/// Of a file that has grown, the rest is loaded; the beginning must be as it was.
#[test]
fn a_file_that_grows_is_appended() {
    let mut world = world();
    let head = b"a,b\n".to_vec();
    let path = world.file("a.csv", &[&head[..], &lines(0, 100)].concat());
    let all = [&path, "--header", "--on-change", "append"];
    assert_eq!(load(&world, &all).unwrap()["loaded"], 100);
    fs::write(&path, [&head[..], &lines(0, 60_000)].concat()).unwrap();
    let summary = load(&world, &all).unwrap();
    assert_eq!((&summary["loaded"], &summary["records_known"]), (&59_900.into(), &100.into()));
    // A bad record of the rest is named by its place in the file.
    fs::write(&path, [&head[..], &lines(0, 100_000), b"x,y\n"].concat()).unwrap();
    let said = load(&world, &all).unwrap_err();
    assert!(said.contains("line 100002, record 100001"), "{said}");
    let pieces = [&all[..], &["--commit-every", "256kB"]].concat();
    let said = load(&world, &pieces).unwrap_err();
    assert!(said.contains("line 100002, record 100001"), "{said}");
    // The correction may have another length.
    fs::write(&path, [&head[..], &lines(0, 100_000), b"100000,corrected\n"].concat()).unwrap();
    load(&world, &all).unwrap();
    assert_eq!(counts(&mut world), thrice(100_001));
    let mut other = [&head[..], &lines(0, 110_000)].concat();
    other[30] = b'Z';
    fs::write(&path, &other).unwrap();
    let said = load(&world, &all).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    let swapped = [b"b,a\n", &lines(0, 110_000)[..]].concat();
    fs::write(&path, &swapped).unwrap();
    let said = load(&world, &all).unwrap_err();
    assert!(said.contains("bytes 0 to 4 are not the same"), "{said}");
    assert_eq!(counts(&mut world), thrice(100_001));
}

/// A last line without an end is another record when bytes follow it.
#[test]
fn a_last_line_that_grows_is_an_error() {
    let mut world = world();
    let path = world.file("a.csv", b"1,x\n2,y");
    load(&world, &[&path]).unwrap();
    fs::write(&path, b"1,x\n2,yz\n3,z\n").unwrap();
    let said = load(&world, &[&path, "--on-change", "append"]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
    fs::write(&path, b"1,x\n2,y\r3,z\n").unwrap();
    load(&world, &[&path, "--on-change", "append"]).unwrap_err();
    // An end for the line changes no record.
    fs::write(&path, b"1,x\n2,y\n3,z\n").unwrap();
    assert_eq!(load(&world, &[&path, "--on-change", "append"]).unwrap()["loaded"], 1);
    let all = "SELECT string_agg(a || b, ' ' ORDER BY a) FROM t";
    assert_eq!(world.sql(all), "1x 2y 3z");
    let first = "SELECT string_agg(first_line || '/' || first_record, ' ' ORDER BY start_byte) \
        FROM pgsluice_loads.pieces";
    assert_eq!(world.sql(first), "1/1 3/3");
}
