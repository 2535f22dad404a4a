//! Folders and lists of files as input.

use crate::common::{each_major, World};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Output;

fn world() -> World {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    world
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder(world: &World, name: &str, files: &[(&[u8], &[u8])]) -> PathBuf {
    let folder = PathBuf::from(world.path(name));
    fs::create_dir(&folder).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(OsStr::from_bytes(name)), bytes).unwrap();
    }
    folder
}

fn rows(world: &mut World) -> String {
    world.sql("SELECT coalesce(string_agg(a || b, ',' ORDER BY a), '') FROM t")
}

/// A folder stands for its files in the order of their names. Hidden files, inner folders and files
/// of other formats are left out, and a note names them.
#[test]
fn a_folder_is_its_files_by_name() {
    let mut world = world();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"2,y\n").unwrap();
    let mixed = folder(
        &world,
        "mixed",
        &[
            (b"c-\xff.csv", b"3,z\n"),
            (b"a.csv", b"1,x\n"),
            (b"b.csv.gz", &gzip.finish().unwrap()),
            (b"_SUCCESS", b""),
            (b".a.csv.crc", b"9,hidden\n"),
            (b"d.parquet", b"PAR1\x15\x04\x15\x10"),
            (b"e.json", b"{\"a\": 9}\n"),
        ],
    );
    fs::create_dir(mixed.join("inner")).unwrap();
    fs::write(mixed.join("inner/f.csv"), b"9,inner\n").unwrap();
    let mixed = mixed.to_str().unwrap().to_owned();
    let extra = world.file("extra.csv", b"4,w\n");
    let summary = world.load(&[&mixed, &extra, "--table", "t"]).unwrap();
    assert_eq!(rows(&mut world), "1x,2y,3z,4w");
    let files: Vec<&str> =
        summary["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let names: Vec<&str> = files.iter().map(|f| f.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["_SUCCESS", "a.csv", "b.csv.gz", "c-\u{fffd}.csv", "extra.csv"]);
    let note = format!(
        "not loaded from the folder {mixed}: .a.csv.crc is hidden, d.parquet is Parquet, e.json is \
         JSON, inner is a folder"
    );
    assert!(summary["notes"].to_string().contains(&note), "{summary}");
    // The plan has the files and the note.
    let planned = world.run(&["plan", &mixed, "--table", "t"]);
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(text.contains(&format!("file      {mixed}/a.csv\n")) && text.contains(&note), "{text}");
    let planned = world.run(&["plan", &mixed, "--table", "t", "--json"]);
    let json: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!(json["files"].as_array().unwrap().len(), 4);
    // An output file must not be one of the files that are read.
    let inside = format!("{mixed}/a.csv");
    let output = world.run(&["load", &mixed, "--table", "t", "--summary", &inside]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // A symbolic link to nowhere is an error; it is not left out silently.
    std::os::unix::fs::symlink("/nowhere/at/all", format!("{mixed}/z.csv")).unwrap();
    let output = world.run(&["load", &mixed, "--table", "t"]);
    assert!(!output.status.success() && said(&output).contains("z.csv"), "{output:?}");

    fs::remove_file(format!("{mixed}/z.csv")).unwrap();

    let empty = folder(&world, "empty", &[]);
    let hidden = folder(&world, "hidden", &[(b".a", b"1,x\n"), (b"b", b"PAR1\x15\x04\x15\x10")]);
    for (folder, hint) in [(&empty, ""), (&hidden, "left out: .a is hidden, b is Parquet")] {
        let output = world.run(&["load", folder.to_str().unwrap(), "--table", "t", "--truncate"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = said(&output);
        assert!(said.contains("has no file to load") && said.contains(hint), "{said}");
    }
    assert_eq!(rows(&mut world), "1x,2y,3z,4w");
    let output = world.run(&["load", &mixed, "--table", "t", "--format", "binary"]);
    assert!(said(&output).contains("a.csv is not in COPY's binary format"), "{output:?}");
}

/// `--files-from` reads names of files and folders from a file or standard input, separated by
/// newlines, or by NUL bytes with `--from0`.
#[test]
fn a_list_names_files() {
    let mut world = world();
    let a = world.file("a *.csv", b"1,x\n");
    let b = world.file("b\nb.csv", b"2,y\n");
    let c = world.file("c.csv", b"3,z\n");
    let inner = folder(&world, "inner", &[(b"d.csv", b"4,w\n")]);
    let inner = inner.to_str().unwrap();
    let load = |world: &World, more: &[&str], list: &str| {
        let base = ["load", "--table", "t", "--truncate", "-q"];
        world.run_with(&[&base[..], more].concat(), list.as_bytes())
    };
    let list = world.file("list", format!("{a}\r\n\n{c}\n{inner}").as_bytes());
    for (more, names, expected) in [
        (&["--files-from", "-"][..], format!("{c}\n{a}\n"), "1x,3z"),
        (&["--files-from", "-", "--from0"], format!("{b}\0{a}\0"), "1x,2y"),
        (&["--files-from", &list], String::new(), "1x,3z,4w"),
        (&["--files-from", "-", &c], format!("{a}\n"), "1x,3z"),
        (&["--files-from", &list, "-"], "5,stdin\n".into(), "1x,3z,4w,5stdin"),
    ] {
        let output = load(&world, more, &names);
        assert!(output.status.success(), "{more:?}: {output:?}");
        assert_eq!(rows(&mut world), expected, "{more:?}");
    }
    for (more, names, code, message) in [
        (&["--files-from", "-"][..], "", 1, "names no file"),
        (&["--files-from", "-"], "missing.csv\n", 1, "cannot open missing.csv"),
        (&["--files-from", "-"], "a\0b\0", 2, "--from0"),
        (&["--files-from", "-", "-"], "x\n", 2, "standard input can be given only once"),
        (&["--files-from", "missing.list"], "", 1, "cannot read missing.list"),
        (&["--from0", "x.csv"], "", 2, "--files-from"),
        (&[], "", 2, "required arguments"),
    ] {
        let output = load(&world, more, names);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {output:?}");
        assert!(said(&output).contains(message), "{more:?}: {output:?}");
    }
    assert_eq!(rows(&mut world), "1x,3z,4w,5stdin");
}

/// Wrong usage is reported before a file is looked for.
#[test]
fn wrong_options_come_before_a_pattern_without_files() {
    let world = world();
    let none = world.path("none-*.csv");
    let load = ["load", &none, "--table", "t"];
    let convert = ["convert", &none];
    for (base, more, code, message) in [
        (&load[..], &["--map", "a=b"][..], 2, "--map needs --header"),
        (&load, &["--once", "--truncate"], 2, "--truncate cannot be used with --once"),
        (&load, &["--expr", "a"], 2, "--expr"),
        (&load, &["--on-error", "reject"], 1, "no file matches"),
        (&load, &[], 1, "no file matches"),
        (&convert, &["--types", "nonsense"], 2, "nonsense"),
        (&convert, &["--types", "int"], 1, "no file matches"),
    ] {
        let output = world.run(&[base, more].concat());
        assert_eq!(output.status.code(), Some(code), "{more:?}: {output:?}");
        assert!(said(&output).contains(message), "{more:?}: {output:?}");
    }
}

/// A file that is named twice, by any of its names, is loaded twice, and a note says so. With
/// `--once` it is loaded once.
#[test]
fn a_file_that_is_named_twice_has_a_note() {
    let mut world = world();
    let files: [(&[u8], &[u8]); 3] =
        [(b"a.csv", b"1,x\n"), (b"b.csv", b"2,y\n"), (b"empty.csv", b"")];
    let inner = folder(&world, "inner", &files);
    let inner = inner.to_str().unwrap();
    let (all, other) = (format!("{inner}/*.csv"), format!("{inner}/../inner/b.csv"));
    let empty = format!("{inner}/empty.csv");
    let note = "b.csv is named twice and is loaded twice";
    for (named, rows_are, noted) in [
        ([&*all, &*other], "1x,2y,2y", note),
        ([inner, &*all], "1x,1x,2y,2y", "2 files are named twice and are loaded twice, such as"),
        // An empty file has no rows.
        ([&*all, &*empty], "1x,2y", ""),
    ] {
        let load = [&named[..], &["--table", "t", "--truncate"]].concat();
        let notes = world.load(&load).unwrap()["notes"].to_string();
        assert_eq!(rows(&mut world), rows_are, "{named:?}");
        assert_eq!(notes.contains("named twice"), !noted.is_empty(), "{notes}");
        assert!(notes.contains(noted), "{notes}");
    }
    let plan = world.run(&["plan", inner, &other, "--table", "t"]);
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains(note), "{plan}");
    world.sql("TRUNCATE t");
    let summary = world.load(&[&all, &other, "--table", "t", "--once"]).unwrap();
    assert_eq!(rows(&mut world), "1x,2y");
    let notes = summary["notes"].to_string();
    assert!(notes.contains("loaded once") && !notes.contains("loaded twice"), "{notes}");
}
