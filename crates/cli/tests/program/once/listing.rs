//! `pgsluice loads`: the ledger as a user sees it.

use super::{lines, world};
use crate::common::World;
use serde_json::Value;
use std::fs;
use std::process::Output;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// The objects that a command prints, and its exit code.
fn objects(world: &World, arguments: &[&str]) -> (Vec<Value>, Option<i32>) {
    let output = world.run(&[&["loads"], arguments, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    (text.lines().map(|l| serde_json::from_str(l).unwrap()).collect(), output.status.code())
}

/// `loads list` and `loads show` give state, counts and error of each load. `loads verify` finds
/// files that have changed or are missing, and after `loads forget` a file is loaded again.
#[test]
fn loads_are_listed_verified_and_forgotten() {
    let mut world = world();
    assert_eq!(said(&world.run(&["loads", "list"])), "no load is recorded\n");
    let bytes = lines(0, 60_000);
    let (a, b) = (
        world.file("a.csv", &bytes),
        world.file("b.csv", &[lines(60_000, 9), b"x,y\n".to_vec()].concat()),
    );
    world.load(&[&a, "--table", "t", "--once"]).unwrap();
    world.load(&[&a, &b, "--table", "t", "--once"]).unwrap_err();
    let (all, code) = objects(&world, &["list"]);
    assert_eq!((all.len(), code), (2, Some(0)));
    assert_eq!((&all[0]["state"], &all[0]["loaded"]), (&"complete".into(), &60_000.into()));
    assert_eq!((&all[0]["files"], &all[0]["table"]), (&1.into(), &"\"public\".\"t\"".into()));
    assert_eq!((&all[1]["state"], &all[1]["loaded"]), (&"stopped".into(), &0.into()));
    assert!(all[1]["error"].as_str().unwrap().contains("line 10"), "{all:?}");
    let (shown, _) = objects(&world, &["show", "1"]);
    assert_eq!((shown.len(), &shown[1]["records"]), (2, &60_000.into()), "{shown:?}");
    assert_eq!(shown[1]["bytes"], bytes.len());
    let text = said(&world.run(&["loads", "show", "2"]));
    assert!(text.contains("b.csv: loading, 0 records"), "{text}");
    assert!(text.contains("it goes on at record 1\n"), "{text}");
    assert_eq!(world.run(&["loads", "show", "3"]).status.code(), Some(1));
    let (verified, code) = objects(&world, &["verify", "1"]);
    assert_eq!((verified[0]["difference"].is_null(), code), (true, Some(0)), "{verified:?}");
    world.sql("UPDATE t SET b = 'other' WHERE a < 100");
    assert_eq!(world.sql(query_of_the_reference().trim_end_matches(';')), "59900");
    let mut other = bytes.clone();
    *other.last_mut().unwrap() = b' ';
    fs::write(&a, other).unwrap();
    let (verified, code) = objects(&world, &["verify", "1"]);
    assert!(verified[0]["difference"].as_str().unwrap().contains("not the same"), "{verified:?}");
    assert_eq!(code, Some(1));
    fs::remove_file(&a).unwrap();
    let (verified, _) = objects(&world, &["verify", "1"]);
    assert!(verified[0]["difference"].as_str().unwrap().contains("no such file"), "{verified:?}");
    fs::write(&a, &bytes).unwrap();
    let forget = world.run(&["loads", "forget", &a, "nowhere.csv", "--table", "t"]);
    assert_eq!(forget.status.code(), Some(1));
    assert!(
        said(&forget).contains("a.csv is forgotten") && said(&forget).contains("1 of the files")
    );
    assert_eq!(world.run(&["loads", "forget", &a, "--table", "u"]).status.code(), Some(1));
    assert_eq!(world.load(&[&a, "--table", "t", "--once"]).unwrap()["loaded"], 60_000);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "120000");
}

/// The statement of the reference that counts the rows of load 1.
fn query_of_the_reference() -> String {
    let reference = include_str!("../../../../../docs/load-once-tables.md");
    let (_, query) = reference.split_once("How many rows of load 1").unwrap();
    let lines = query.lines().filter_map(|line| line.strip_prefix("    "));
    lines.collect::<Vec<_>>().join(" ").replace("FROM votes", "FROM t")
}

/// `loads show` says where a load that has stopped goes on.
#[test]
fn a_stopped_load_shows_where_it_goes_on() {
    let world = world();
    let bytes = lines(0, 200_000);
    let a = world.file("a.csv", &[&bytes[..], b"x,y\n"].concat());
    let load = |world: &World| {
        world.load(&[&a, "--table", "t", "--once", "--commit-every", "1MB", "--lanes", "1"])
    };
    load(&world).unwrap_err();
    let (shown, _) = objects(&world, &["show", "1"]);
    let next = |field: &str| usize::try_from(shown[1][field].as_u64().unwrap()).unwrap();
    let (record, byte) = (next("next_record"), next("next_byte"));
    assert!(record > 1 && bytes[byte..].starts_with(format!("{},", record - 1).as_bytes()));
    assert_eq!((next("next_line"), shown[1]["records"].clone()), (record, (record - 1).into()));
    let text = said(&world.run(&["loads", "show", "1"]));
    let place = format!("at record {record}, after line {} and byte {byte}\n", record - 1);
    assert!(text.contains(&place), "{text}");
    fs::write(&a, &bytes).unwrap();
    load(&world).unwrap();
    let (shown, _) = objects(&world, &["show", "2"]);
    assert!(shown[1]["next_record"].is_null() && shown[1]["records"] == 200_000, "{shown:?}");
}

/// `loads forget NUMBER` forgets what that load has loaded: its ranges of files are loaded again,
/// and no others.
#[test]
fn a_load_is_forgotten_by_its_number() {
    let mut world = world();
    let bytes = lines(0, 200_000);
    let bad = [&bytes[..], b"x,y\n"].concat();
    let (a, b) = (world.file("a.csv", &bad), world.file("b.csv", &lines(500_000, 10)));
    let load = |world: &World, file: &str| {
        world.load(&[file, "--table", "t", "--once", "--commit-every", "1MB"])
    };
    load(&world, &b).unwrap();
    load(&world, &a).unwrap_err();
    fs::write(&a, &bytes).unwrap();
    let third = load(&world, &a).unwrap();
    let of_second = third["records_known"].as_u64().unwrap();
    assert!(of_second > 0 && of_second < 200_000, "{third}");
    let copy = world.file("copy.csv", &bytes);
    assert_eq!(load(&world, &copy).unwrap()["loaded"], 0);
    let forget = world.run(&["loads", "forget", "2"]);
    assert_eq!(forget.status.code(), Some(0), "{forget:?}");
    assert!(said(&forget).contains("a.csv is not complete any more"), "{forget:?}");
    let (all, _) = objects(&world, &["show", "2"]);
    assert_eq!((&all[0]["error"], &all[0]["loaded"]), (&"forgotten".into(), &0.into()));
    // A copy of the file is not complete either.
    assert_eq!(load(&world, &copy).unwrap()["loaded"], of_second);
    assert_eq!(load(&world, &a).unwrap()["loaded"], 0);
    assert_eq!(load(&world, &b).unwrap()["loaded"], 0);
    assert_eq!(world.sql("SELECT count(*) FROM t"), (200_010 + of_second).to_string());
    // A file that one load has loaded completely is forgotten completely.
    let (forgotten, code) = objects(&world, &["forget", "1"]);
    assert_eq!((&forgotten[0]["load"], code), (&1.into(), Some(0)));
    assert!(forgotten[0]["files"][0].as_str().unwrap().ends_with("/b.csv"), "{forgotten:?}");
    assert_eq!(load(&world, &b).unwrap()["loaded"], 10);
    assert_eq!(world.run(&["loads", "forget", "1", "99"]).status.code(), Some(1));
    assert_eq!(world.run(&["loads", "forget", "b.csv"]).status.code(), Some(2));
}

/// A file is forgotten by any of its names, with all of them. The next load of one of these names
/// loads it.
#[test]
fn a_file_is_forgotten_by_any_of_its_names() {
    let mut world = world();
    let bytes = lines(0, 1000);
    let (a, copy) = (world.file("a.csv", &bytes), world.file("copy.csv", &bytes));
    let load = |world: &World, file: &str| {
        world.load(&[file, "--table", "t", "--once"]).unwrap()["loaded"].as_u64().unwrap()
    };
    assert_eq!((load(&world, &a), load(&world, &copy)), (1000, 0));
    let forget = world.run(&["loads", "forget", &copy, "nowhere.csv", "--table", "t"]);
    assert_eq!(forget.status.code(), Some(1));
    let text = said(&forget);
    assert!(text.contains("/a.csv is forgotten") && text.contains("/copy.csv is"), "{text}");
    assert!(text.contains("1 of the files"), "{text}");
    assert_eq!((load(&world, &copy), load(&world, &a)), (1000, 0));
    // Both names are given, and the first one is enough.
    let forget = world.run(&["loads", "forget", &a, &copy, "--table", "t"]);
    assert_eq!(forget.status.code(), Some(0), "{forget:?}");
    assert_eq!((load(&world, &a), load(&world, &copy)), (1000, 0));
    assert_eq!(world.sql("SELECT count(*) FROM t"), "3000");
}

/// `loads verify` reports files that have grown or are not complete, and loads that are not
/// recorded. Bytes that are in no piece, such as a footer, are no growth. A stream is no failure.
#[test]
fn files_that_are_not_as_they_were_loaded_differ() {
    let world = world();
    let all = ["--table", "t", "--once"];
    let bytes = lines(0, 100_000);
    let path = world.file("a.csv", &[&bytes[..], b"x,100000 lines\n"].concat());
    world.load(&[&[path.as_str(), "--skip-footer", "1"], &all[..]].concat()).unwrap();
    let (verified, code) = objects(&world, &["verify", "1"]);
    assert_eq!((&verified[0]["difference"], code), (&Value::Null, Some(0)), "{verified:?}");
    fs::write(&path, [&bytes[..], b"x,100000 lines\n100000,x\n"].concat()).unwrap();
    let (verified, code) = objects(&world, &["verify", "1"]);
    let grown = format!("bytes after byte {} are new", bytes.len());
    assert!(verified[0]["difference"].as_str().unwrap().contains(&grown), "{verified:?}");
    assert_eq!(code, Some(1));

    let b = world.file("b.csv", &[&lines(200_000, 100_000)[..], b"x,y\n"].concat());
    world.load(&[&[b.as_str(), "--commit-every", "256kB"], &all[..]].concat()).unwrap_err();
    let (verified, code) = objects(&world, &["verify", "2"]);
    assert_eq!((&verified[0]["difference"], code), (&"it is not complete".into(), Some(1)));

    let stream = [&["load", "-", "--source-name", "s.csv", "--quiet"], &all[..]].concat();
    let output = world.run_with(&stream, b"1,x\n");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (verified, code) = objects(&world, &["verify", "3"]);
    assert_eq!((&verified[0]["difference"], code), (&Value::Null, Some(0)), "{verified:?}");
    assert!(verified[0]["not_compared"].as_str().unwrap().contains("it is a stream"));
    let text = said(&world.run(&["loads", "verify", "3"]));
    assert_eq!(text, "s.csv: it is a stream: load it again, and it is compared\n");

    let output = world.run(&["loads", "verify", "9"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("no load 9 is recorded"), "{output:?}");
}

/// The files of a load are compared for longer than a transaction of the role may be idle.
#[test]
fn files_are_verified_for_longer_than_a_transaction_may_be_idle() {
    let mut world = world();
    let a = world.file("a.csv", &lines(0, 100_000));
    let b = world.file("b.csv", &lines(100_000, 100_000));
    world.load(&[&a, &b, "--table", "t", "--once"]).unwrap();
    world.sql("ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '1ms'");
    let (verified, code) = objects(&world, &["verify", "1"]);
    assert_eq!((verified.len(), code), (2, Some(0)), "{verified:?}");
}

/// docs/load-once-tables.md lists every column of every table of the ledger, and no other.
#[test]
fn the_reference_names_every_column() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 10));
    world.load(&[&path, "--table", "t", "--once"]).unwrap();
    let reference = include_str!("../../../../../docs/load-once-tables.md");
    let mut tables = Vec::new();
    for section in reference.split("\n## `").skip(1) {
        let (table, text) = section.split_once('`').unwrap();
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(", "));
        let mut names: Vec<&str> = names.map(|name| name.trim().trim_matches('`')).collect();
        names.sort_unstable();
        let columns = format!(
            "SELECT string_agg(attname, ' ' ORDER BY attname COLLATE \"C\") FROM pg_attribute \
             WHERE attrelid = 'pgsluice_loads.{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        );
        assert_eq!(names.join(" "), world.sql(&columns), "{table}");
        tables.push(table);
    }
    let all = "version loads sources headers commits pieces reject_files node_commits slices leases parts";
    assert_eq!(tables.join(" "), all);
}
