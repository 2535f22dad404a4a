//! `--once` recognizes files by their content.

use super::{counts, lines, rejects, thrice, world};
use crate::common::{each_major, World};
use std::fs;
use std::io::Write;

fn load(world: &World, more: &[&str]) -> Result<serde_json::Value, String> {
    world.load(&[more, &["--table", "t", "--once"]].concat())
}

/// A file is not loaded again if it has another name or modification time, or is named by a
/// symbolic link.
#[test]
fn a_file_with_another_name_or_time_is_the_same() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let path = world.file("a.csv", &bytes);
    load(&world, &[&path]).unwrap();
    // The modification time differs.
    fs::write(&path, &bytes).unwrap();
    assert_eq!(load(&world, &[&path]).unwrap()["loaded"], 0);
    let moved = world.path("moved.csv");
    fs::rename(&path, &moved).unwrap();
    let summary = load(&world, &[&moved]).unwrap();
    assert_eq!(summary["loaded"], 0);
    assert!(summary["notes"][1].as_str().unwrap().contains("same bytes"), "{summary}");
    // The file is now known by its new name, too.
    fs::write(&moved, b"").unwrap();
    let said = load(&world, &[&moved]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    // Named by a symbolic link, it is the same file.
    fs::write(&moved, &bytes).unwrap();
    let link = world.path("link.csv");
    std::os::unix::fs::symlink(&moved, &link).unwrap();
    assert_eq!(load(&world, &[&link, &moved]).unwrap()["loaded"], 0);
    assert_eq!(counts(&mut world), thrice(60_000));
}

/// Where a backslash is an escape in every literal, as some old applications need it, a load that
/// has failed is continued with its rejects, `loads verify` finds no difference, and the file is the
/// same under another name.
#[test]
fn a_file_is_the_same_where_backslashes_are_escapes() {
    let mut world = world();
    world.sql("ALTER DATABASE postgres SET standard_conforming_strings = off");
    let (records, bad) = rejects::mixed(0, 100_000);
    let path = world.file("a.csv", &[&b"a,b\n"[..], &records, b"# end\n"].concat());
    let more = ["--header", "--comment", "#", "--commit-every", "256kB"];
    let kept = world.path("bad");
    let said = rejects::load(&world, &path, &kept, "100", &more).unwrap_err();
    assert!(said.contains("more than the limit of 100"), "{said}");
    let summary = rejects::load(&world, &path, &kept, "none", &more).unwrap();
    assert_ne!(summary["rejected_before"], 0, "{summary}");
    let verify = world.run(&["loads", "verify", &summary["load"].to_string()]);
    assert_eq!(verify.status.code(), Some(0), "{verify:?}");
    let moved = world.path("moved.csv");
    fs::rename(&path, &moved).unwrap();
    assert_eq!(load(&world, &[&[moved.as_str()], &more[..]].concat()).unwrap()["loaded"], 0);
    let loaded = (100_000 - bad.len()).to_string();
    assert_eq!(world.sql("SELECT count(*) FROM t"), loaded);
    let sums = "SELECT sum(loaded) || ' ' || sum(rejected) FROM pgsluice_loads.commits";
    assert_eq!(world.sql(sums), format!("{loaded} {}", bad.len()));
}

/// If a column gets the file's name, two files with the same bytes have different rows, and both are
/// loaded, once.
#[test]
fn files_with_their_names_in_the_rows_are_no_copies() {
    let mut world = world();
    let paths = ["a.csv", "b.csv", "c.csv"].map(|name| world.file(name, b"1\n2\n"));
    let named = ["--columns", "a", "--set", "b={file}"];
    assert_eq!(load(&world, &[&[paths[0].as_str()], &named[..]].concat()).unwrap()["loaded"], 2);
    // The first one is loaded, and is named again. So the others are not that one under a new name.
    let all = [&[paths[0].as_str(), &paths[1], &paths[2]], &named[..]].concat();
    assert_eq!(load(&world, &all).unwrap()["loaded"], 4);
    let rows = "SELECT string_agg(a || right(b, 5), ' ' ORDER BY b, a) FROM t";
    assert_eq!(world.sql(rows), "1a.csv 2a.csv 1b.csv 2b.csv 1c.csv 2c.csv");
    assert_eq!(load(&world, &all).unwrap()["loaded"], 0);
    let moved = world.path("d.csv");
    fs::rename(&paths[1], &moved).unwrap();
    let moved = [&[moved.as_str()], &named[..]].concat();
    assert_eq!(load(&world, &moved).unwrap()["loaded"], 0);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "6");
}

/// If files in one load have the same bytes, or a file is named twice, it is loaded once. Files
/// that differ only in the middle are different files.
#[test]
fn copies_in_one_load_are_loaded_once() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    // The same size, beginning and end, but another byte in the middle.
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
    // The content of c.csv under another name.
    let d = world.file("d.csv", &other);
    assert_eq!(load(&world, &[&d]).unwrap()["loaded"], 0);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "120000");
}

/// A file whose bytes have changed since it was loaded is an error, which names the range. Nothing
/// is loaded again.
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

/// If a file was loaded with other options that matter, the load fails and names the option. After
/// a failed load, the options may change.
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
    // A file whose load failed can be loaded with other options.
    let other = world.file("other.csv", b"3;z\n");
    load(&world, &[&other]).unwrap_err();
    assert_eq!(load(&world, &[&other, "--delimiter", ";"]).unwrap()["loaded"], 1);
    load(&world, &[&other]).unwrap_err();
    world.sql("DELETE FROM t WHERE a = 3");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
}

/// A failed load under one name does not hide that the same content was loaded under another.
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
    // The same for a file that was loaded in part and then renamed.
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

/// After a failed load, a file is overwritten with a copy of another one. From then on, another
/// header is a change.
#[test]
fn a_failed_attempt_does_not_hide_another_header() {
    let mut world = world();
    for (names, from, together) in [(["a", "b"], 0, false), (["c", "d"], 10, true)] {
        let of_header = |header: &[u8]| [header, &lines(from, 10)].concat();
        let copy = world.file(names[0], b"b,a\nx,y\n");
        load(&world, &[&copy, "--header"]).unwrap_err();
        let file = world.file(names[1], &of_header(b"a,b\n"));
        fs::write(&copy, of_header(b"a,b\n")).unwrap();
        if !together {
            load(&world, &[&file, "--header"]).unwrap();
        }
        load(&world, &[&file, &copy, "--header"]).unwrap();
        fs::write(&copy, of_header(b"b,a\n")).unwrap();
        let said = load(&world, &[&copy, "--header"]).unwrap_err();
        assert!(said.contains("has changed since it was loaded"), "{names:?}: {said}");
    }
    assert_eq!(counts(&mut world), thrice(20));
}

/// The ledger belongs to the table, not to its name. A table that is created again has no loads,
/// and a renamed one keeps its own.
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

/// With `--on-change append`, only the new part of a file that has grown is loaded. Its beginning
/// must be unchanged.
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
    // A bad record in the new part is reported with its position in the whole file.
    fs::write(&path, [&head[..], &lines(0, 100_000), b"x,y\n"].concat()).unwrap();
    let said = load(&world, &all).unwrap_err();
    assert!(said.contains("line 100002, record 100001"), "{said}");
    let pieces = [&all[..], &["--commit-every", "256kB"]].concat();
    let said = load(&world, &pieces).unwrap_err();
    assert!(said.contains("line 100002, record 100001"), "{said}");
    // The corrected record may have another length.
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

/// If bytes are added to a last line without a line end, its record has changed, and the load
/// fails. Adding only the line end is not a change.
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
    // A line end alone changes no record.
    fs::write(&path, b"1,x\n2,y\n3,z\n").unwrap();
    assert_eq!(load(&world, &[&path, "--on-change", "append"]).unwrap()["loaded"], 1);
    let all = "SELECT string_agg(a || b, ' ' ORDER BY a) FROM t";
    assert_eq!(world.sql(all), "1x 2y 3z");
    let first = "SELECT string_agg(first_line || '/' || first_record, ' ' ORDER BY start_byte) \
        FROM pgsluice_loads.pieces";
    assert_eq!(world.sql(first), "1/1 3/3");
}

/// A compressed file may have more records and the same size as before. It has grown, and with
/// `--on-change append` the rest is loaded.
#[test]
fn a_compressed_file_grows_and_its_size_stays() {
    let mut world = world();
    let gzip = |records: usize| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&b"1,x\n".repeat(records)).unwrap();
        gzip.finish().unwrap()
    };
    let n = (2..1000).find(|n| gzip(*n).len() == gzip(n + 1).len()).unwrap();
    let path = world.file("a.csv.gz", &gzip(n));
    load(&world, &[&path]).unwrap();
    fs::write(&path, gzip(n + 1)).unwrap();
    let said = load(&world, &[&path]).unwrap_err();
    assert!(
        said.contains(&format!("has grown since it was loaded: 4 bytes follow byte {}", 4 * n)),
        "{said}"
    );
    let append = [path.as_str(), "--on-change", "append"];
    for loaded in [1, 0] {
        assert_eq!(load(&world, &append).unwrap()["loaded"], loaded);
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), (n + 1).to_string());
}

/// A compressed file that was loaded is cut off. That is reported as for a new file: exit code 4, and
/// the file may not be whole.
#[test]
fn a_known_file_that_is_cut_off_is_damaged() {
    let world = world();
    let plain = world.file("a.csv", &lines(0, 60_000));
    assert!(std::process::Command::new("gzip").arg(&plain).status().unwrap().success());
    let packed = format!("{plain}.gz");
    let all = ["load", &packed, "--table", "t", "--once"];
    assert!(world.run(&all).status.success());
    let bytes = fs::read(&packed).unwrap();
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let output = world.run(&all);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("a.csv.gz") && said.contains("the file is gzip; is it whole?"), "{said}");
    fs::write(&packed, &bytes).unwrap();
    assert_eq!(load(&world, &[&packed]).unwrap()["loaded"], 0);
}

/// What was not a record when a file was loaded (a comment, the footer) may be one later, while the
/// size stays the same. Such a file has changed. Another comment is no change.
#[test]
fn records_take_the_place_of_comments() {
    let world = world();
    let (first, last) = (lines(0, 30_000), lines(30_000, 30_000));
    for (name, before, after, comment, record, error) in [
        ("end", &b"1,x\n"[..], &b""[..], &b"# end\n"[..], &b"2,bbb\n"[..], "6 bytes follow byte 4"),
        ("start", b"", b"1,x\n", b"# one\n", b"2,bbb\n", "bytes 0 to 6 are not the same"),
        ("middle", &first, &last, b"# middle\n", b"7,middle\n", "are not the same"),
    ] {
        let file = |line: &[u8]| [before, line, after].concat();
        let path = world.file(name, &file(comment));
        let all = [path.as_str(), "--comment", "#"];
        let records = load(&world, &all).unwrap()["loaded"].as_u64().unwrap();
        fs::write(&path, file(&comment.to_ascii_uppercase())).unwrap();
        assert_eq!(load(&world, &all).unwrap()["loaded"], 0, "{name}");
        fs::write(&path, file(record)).unwrap();
        let said = load(&world, &all).unwrap_err();
        assert!(said.contains(error), "{name}: {said}");
        // Under another name, it is another file.
        let copy = world.file(&format!("{name}-copy"), &file(record));
        let summary = load(&world, &[&copy, "--comment", "#"]).unwrap();
        assert_eq!(summary["loaded"], records + 1, "{name}");
    }
}

/// If a file grows and the rest is loaded, its other names are still what they were: they are not
/// loaded again, wherever they are moved, and `loads verify` finds no difference.
#[test]
fn other_names_of_a_file_that_has_grown_stay_loaded() {
    let gzip = |bytes: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    };
    for form in ["csv", "csv.gz"] {
        let stored = |bytes: &[u8]| if form == "csv" { bytes.to_vec() } else { gzip(bytes) };
        let mut world = world();
        let (old, added) = (stored(&lines(0, 60_000)), stored(&lines(60_000, 9)));
        let file =
            |world: &World, name: &str, bytes: &[u8]| world.file(&format!("{name}.{form}"), bytes);
        let (a, b) = (file(&world, "a", &old), file(&world, "b", &old));
        assert_eq!(load(&world, &[&a, &b]).unwrap()["loaded"], 60_000);
        fs::write(&a, [old.clone(), added.clone()].concat()).unwrap();
        assert_eq!(load(&world, &[&a, "--on-change", "append"]).unwrap()["loaded"], 9);
        // Another time, another name, a new copy of what it was.
        fs::write(&b, &old).unwrap();
        assert_eq!(load(&world, &[&b]).unwrap()["loaded"], 0, "{form}");
        let moved = world.path(&format!("moved.{form}"));
        fs::rename(&b, &moved).unwrap();
        assert_eq!(load(&world, &[&moved]).unwrap()["loaded"], 0, "{form}");
        let copy = file(&world, "copy", &old);
        assert_eq!(load(&world, &[&copy, &a, &moved]).unwrap()["loaded"], 0, "{form}");
        fs::write(&b, &old).unwrap();
        let verify = world.run(&["loads", "verify", "1"]);
        assert_eq!(verify.status.code(), Some(0), "{verify:?}");
        // A name that grows is not the file that may grow; a name that shrinks has changed.
        fs::write(&copy, [old.clone(), stored(&lines(70_000, 9))].concat()).unwrap();
        let said = load(&world, &[&copy, "--on-change", "append"]).unwrap_err();
        let change = ["another name of", "has changed"];
        assert!(change.iter().any(|words| said.contains(words)), "{said}");
        fs::write(&copy, stored(&lines(0, 50_000))).unwrap();
        let said = load(&world, &[&copy]).unwrap_err();
        assert!(said.contains("has changed since it was loaded"), "{said}");
        assert_eq!(counts(&mut world), thrice(60_009));
    }
}

/// A file may grow under any of its names, and the other names stay loaded. If two of them grow by
/// other records, it is an error.
#[test]
fn a_file_grows_under_any_of_its_names() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let (a, b) = (world.file("a.csv", &bytes), world.file("b.csv", &bytes));
    load(&world, &[&a, &b]).unwrap();
    let grown = [bytes.clone(), lines(60_000, 9)].concat();
    fs::write(&b, &grown).unwrap();
    let said = load(&world, &[&b]).unwrap_err();
    assert!(said.contains("has grown since"), "{said}");
    assert_eq!(load(&world, &[&b, "--on-change", "append"]).unwrap()["loaded"], 9);
    // The first name is what it was, then the same as the second one.
    for bytes in [&bytes, &grown] {
        fs::write(&a, bytes).unwrap();
        assert_eq!(load(&world, &[&a, &b]).unwrap()["loaded"], 0);
    }
    fs::write(&a, [&grown[..], &lines(60_009, 1)].concat()).unwrap();
    fs::write(&b, [&grown[..], &lines(60_010, 1)].concat()).unwrap();
    let said = load(&world, &[&a, &b, "--on-change", "append"]).unwrap_err();
    assert!(said.contains("has grown since") && said.contains("another name of"), "{said}");
    assert_eq!(load(&world, &[&a, "--on-change", "append"]).unwrap()["loaded"], 1);
    let said = load(&world, &[&b, "--on-change", "append"]).unwrap_err();
    assert!(said.contains("has changed since it was loaded"), "{said}");
    assert_eq!(counts(&mut world), thrice(60_010));
}

/// Which files are read together depends on what is loaded already. So with `--once` a first line
/// such as `sep=;` does not decide how other files are read: `--delimiter` must name it.
#[test]
fn no_file_names_the_delimiter_of_others() {
    let mut world = World::new(&each_major().remove(0));
    world.sql("CREATE TABLE t (a text, b text)");
    let excel = world.file("a.csv", b"sep=;\n1;2,5\n");
    let plain = world.file("b.csv", b"3;4,5\n");
    let once = ["--table", "t", "--once"];
    for files in [&[excel.as_str()][..], &[&excel, &plain], &[&plain, &excel]] {
        let said = world.load(&[files, &once].concat()).unwrap_err();
        assert!(said.contains("the delimiter ';'") && said.contains("--delimiter"), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    }
    let named = [&once[..], &["--delimiter", ";"]].concat();
    world.load(&[&[excel.as_str()], &named[..]].concat()).unwrap();
    world.load(&[&[excel.as_str(), &plain], &named[..]].concat()).unwrap();
    assert_eq!(
        world.sql("SELECT string_agg(t::text, ' ' ORDER BY a) FROM t"),
        "(1,\"2,5\") (3,\"4,5\")"
    );
}
