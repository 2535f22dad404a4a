//! Files of `--format binary`: the loader splits them into tuples, which it counts, skips, locates
//! and rejects one by one. Stock COPY of the same bytes is the reference.

use crate::common::{each_major, World};
use pgsluice_core::sink::{HEADER, TRAILER};
use serde_json::Value;
use std::fs;

type Field<'a> = Option<&'a [u8]>;

fn tuple(fields: &[Field]) -> Vec<u8> {
    let mut out = (fields.len() as i16).to_be_bytes().to_vec();
    for field in fields {
        out.extend_from_slice(&field.map_or(-1, |f| f.len() as i32).to_be_bytes());
        out.extend_from_slice(field.unwrap_or_default());
    }
    out
}

fn row(id: i32, n: Option<i16>, v: &[u8], k: i32) -> Vec<u8> {
    let n = n.map(i16::to_be_bytes);
    let n = n.as_ref().map(|n| n.as_slice());
    tuple(&[Some(&id.to_be_bytes()), n, Some(v), Some(&k.to_be_bytes()), None])
}

fn stream(tuples: &[Vec<u8>]) -> Vec<u8> {
    [HEADER.as_slice(), &tuples.concat(), TRAILER].concat()
}

/// Good rows with the ids `from..to`.
fn good(from: i32, to: i32) -> Vec<Vec<u8>> {
    (from..to).map(|id| row(id, Some(1), b"abc", 1)).collect()
}

const TABLE: &str = "
    DROP TABLE IF EXISTS t, p;
    CREATE TABLE p (k int PRIMARY KEY);
    INSERT INTO p VALUES (1);
    CREATE TABLE t (
        id int UNIQUE,
        n smallint NOT NULL CHECK (n < 100),
        v varchar(3),
        k int REFERENCES p DEFERRABLE INITIALLY DEFERRED,
        j jsonb
    );";

/// A bad tuple of every class, its SQLSTATE and the column that the server names.
fn bad() -> Vec<(Vec<u8>, &'static str, Option<&'static str>)> {
    let int = |n: i32| n.to_be_bytes();
    let (one, small) = (1_i32.to_be_bytes(), 1_i16.to_be_bytes());
    vec![
        (tuple(&[Some(b"\0\0"), Some(&small), None, Some(&one), None]), "08P01", Some("id")),
        (tuple(&[Some(b"\0\0\0\0\0"), Some(&small), None, Some(&one), None]), "22P03", Some("id")),
        (row(-2, None, b"a", 1), "23502", Some("n")),
        (row(-3, Some(100), b"a", 1), "23514", None),
        (row(-4, Some(1), b"abcd", 1), "22001", Some("v")),
        (row(-5, Some(1), b"a\xff", 1), "22021", Some("v")),
        (row(-6, Some(1), b"a\0", 1), "22021", Some("v")),
        (row(1, Some(1), b"a", 1), "23505", None),
        (row(-7, Some(1), b"a", 9), "23503", None),
        (
            tuple(&[Some(&int(-8)), Some(&small), None, Some(&one), Some(b"\x07{}")]),
            "XX000",
            Some("j"),
        ),
        (
            tuple(&[Some(&int(-9)), Some(&small), None, Some(&one), Some(b"\x01{")]),
            "22P02",
            Some("j"),
        ),
    ]
}

fn side(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(format!("{path}.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const METHODS: &[&str] = &["auto", "copy-binary", "copy-fresh", "unlogged-logged", "lanes"];

/// By every method that takes binary files, a bad tuple of each class is rejected alone. The reject
/// file is a binary file with exactly these tuples, and can be loaded as it is.
#[test]
fn refused_tuples_are_rejected_as_they_were() {
    for (major, installation) in each_major().iter().enumerate() {
        let mut world = World::new(installation);
        let methods = if major == 0 { METHODS } else { &METHODS[..1] };
        let mut tuples = good(0, 8_000);
        bad().iter().for_each(|(tuple, ..)| tuples.push(tuple.clone()));
        tuples.extend(good(8_000, 16_000));
        let bytes = stream(&tuples);
        let file = world.file("rows.bin", &bytes);
        let kept = stream(&bad().into_iter().map(|(tuple, ..)| tuple).collect::<Vec<_>>());
        for (i, method) in methods.iter().enumerate() {
            world.sql(TABLE);
            let rejects = world.path(&format!("rejects-{i}.bin"));
            let again = world.path(&format!("again-{i}.bin"));
            let load = |file: &str, rejects: &str, method: &str| {
                let arguments = [file, "--table", "t", "--format", "binary", "--method", method];
                let reject = ["--on-error", "reject", "--reject-file", rejects];
                world.load(&[&arguments[..], &reject[..]].concat()).unwrap()
            };
            let summary = load(&file, &rejects, method);
            assert_eq!((&summary["read"], &summary["loaded"]), (&16_011.into(), &16_000.into()));
            assert_eq!(summary["chunks_encoded"], 0, "{method}: {summary}");
            assert!(fs::read(&rejects).unwrap() == kept, "{method}");
            let side = side(&rejects);
            assert_eq!(side.len(), bad().len(), "{method}");
            for (said, (i, (tuple, sqlstate, column))) in side.iter().zip(bad().iter().enumerate())
            {
                let offset = said["offset"].as_u64().unwrap() as usize;
                assert_eq!(&bytes[offset..offset + tuple.len()], tuple, "{method}: {said}");
                assert_eq!(said["length"], tuple.len(), "{method}: {said}");
                assert_eq!(said["record"], 8_001 + i, "{method}: {said}");
                assert_eq!(said["sqlstate"], *sqlstate, "{method}: {said}");
                assert_eq!(said["column"].as_str(), *column, "{method}: {said}");
            }
            // The reject file can be loaded as it is: the same tuples are refused again.
            let summary = load(&rejects, &again, "auto");
            assert_eq!((&summary["read"], &summary["rejected"]), (&11.into(), &11.into()));
            assert!(fs::read(&again).unwrap() == kept, "{method}");
        }
    }
}

/// The first bad tuple stops the load with stock COPY's message and line, and nothing is loaded.
#[test]
fn an_error_names_the_tuple() {
    for installation in each_major() {
        let mut world = World::new(&installation);
        for (tuple, sqlstate, column) in bad() {
            world.sql(TABLE);
            // For this class, several chunks come before the bad tuple.
            let before = if sqlstate == "22021" { 30_000 } else { 300 };
            let bytes =
                stream(&[good(0, before), vec![tuple], good(before, before + 100)].concat());
            let stock = world.stock("COPY t FROM STDIN (FORMAT binary)", &bytes).unwrap_err();
            world.sql(TABLE);
            let file = world.file("rows.bin", &bytes);
            let said = world.load(&[&file, "--table", "t", "--format", "binary"]).unwrap_err();
            assert!(said.contains(&stock.0), "{sqlstate}: {said}\nstock: {stock:?}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
            // A deferred foreign key is checked after all rows, so its error names no line.
            if sqlstate != "23503" {
                let line = before + 1;
                assert!(stock.1.contains(&format!("line {line}")), "{stock:?}");
                let offset = HEADER.len() + good(0, before).concat().len();
                let place = format!("rows.bin, line {line}, record {line}, byte offset {offset}");
                assert!(said.contains(&place), "{sqlstate}: {said}");
                let column = column.map_or(String::new(), |c| format!(", column {c}"));
                assert!(said.contains(&column), "{sqlstate}: {said}");
            }
        }
        world.sql("DROP TABLE t; CREATE TABLE t (a int)");
        let file = world.file("short.bin", &stream(&[tuple(&[Some(b"\x01\x02")])]));
        let said = world.load(&[&file, "--table", "t", "--format", "binary"]).unwrap_err();
        assert!(said.contains("column a: ") && said.contains("(value \"\\\\x0102\")"), "{said}");
    }
}

/// Which of the two columns a message names.
fn columns(said: &str) -> [bool; 2] {
    ["column a", "column b"].map(|column| said.contains(column))
}

/// A file that is not PGCOPY is refused with the server's message. Tuples before the fault are
/// checked first, and the first fault of a file is reported.
#[test]
fn damaged_files() {
    for installation in each_major() {
        let mut world = World::new(&installation);
        world.sql("CREATE TABLE t (a int, b text)");
        let row = |a: i32| tuple(&[Some(&a.to_be_bytes()), Some(b"some words")]);
        let many: Vec<Vec<u8>> = (0..25_000).map(row).collect();
        let whole = stream(&many);
        let at = |n: usize| HEADER.len() + many[..n].concat().len();
        let with = |at: usize, bytes: &[u8]| {
            let mut damaged = whole.clone();
            damaged[at..at + bytes.len()].copy_from_slice(bytes);
            damaged
        };
        let extended =
            |length: i32| [&HEADER[..15], &length.to_be_bytes(), &[7; 300], &whole[19..]].concat();
        let cases: Vec<(&str, Vec<u8>, Option<usize>)> = vec![
            ("empty", Vec::new(), None),
            ("signature", b"1,x\n2,y\n".to_vec(), None),
            ("flags", HEADER[..13].to_vec(), None),
            ("length", HEADER[..17].to_vec(), None),
            ("critical", with(11, b"\0\x02\0\0"), None),
            ("oids", with(11, b"\0\x01\0\0"), None),
            ("extension cut off", [&HEADER[..15], b"\0\x10\0\0", &[7; 300]].concat(), None),
            ("field count", with(at(20_000), b"\0\x03"), Some(20_001)),
            ("field size", with(at(20_000) + 2, b"\xff\xff\xff\xfe"), Some(20_001)),
            ("cut off in a value", whole[..at(24_999) + 17].to_vec(), Some(25_000)),
            // If the loader added a trailer here, its two bytes would complete the value.
            ("cut off before the last two bytes", whole[..whole.len() - 4].to_vec(), Some(25_000)),
            ("behind the trailer", [&whole[..], b"x"].concat(), Some(25_001)),
            (
                "a bad value first",
                {
                    let mut bytes =
                        with(at(15_000), &tuple(&[Some(b"\0\0\0\x01"), Some(b"some\xffword")]));
                    bytes.truncate(bytes.len() - 4);
                    bytes
                },
                Some(15_001),
            ),
        ];
        for (name, bytes, line) in cases {
            world.sql("TRUNCATE t");
            let stock = world.stock("COPY t FROM STDIN (FORMAT binary)", &bytes).unwrap_err();
            let file = world.file("rows.bin", &bytes);
            let said = world.load(&[&file, "--table", "t", "--format", "binary"]).unwrap_err();
            assert!(said.contains(&stock.0), "{name}: {said}\nstock: {stock:?}");
            if let Some(line) = line {
                assert!(stock.1.contains(&format!("line {line}")), "{name}: {stock:?}");
                let place = format!("rows.bin, line {line}, record {line}, byte offset ");
                assert!(said.contains(&place), "{name}: {said}");
                assert_eq!(columns(&stock.1), columns(&said), "{name}: {said}");
            }
            assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{name}");
        }
        let sound = [
            ("without a trailer", whole[..whole.len() - 2].to_vec()),
            ("half a trailer", whole[..whole.len() - 1].to_vec()),
            ("an extension", extended(300)),
            ("nothing", stream(&[])),
        ];
        for (name, bytes) in sound {
            world.sql("DROP TABLE IF EXISTS s; CREATE TABLE s (LIKE t); TRUNCATE t");
            let rows = world.stock("COPY s FROM STDIN (FORMAT binary)", &bytes).unwrap();
            let file = world.file("rows.bin", &bytes);
            let summary = world.load(&[&file, "--table", "t", "--format", "binary"]).unwrap();
            assert_eq!((&summary["loaded"], &summary["read"]), (&rows.into(), &rows.into()));
            assert_eq!(world.difference("s", "t"), "", "{name}");
        }
    }
}

/// Tuples of several files, of compressed files and of a pipe are counted, also with `--skip`,
/// `--limit` and `--where`. If the table has a statement trigger, each file is one COPY. Methods
/// that cannot load binary files refuse them.
#[test]
fn tuples_are_counted() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int)");
    let number = |i: i32| tuple(&[Some(&i.to_be_bytes())]);
    let numbers = |from, to| stream(&(from..to).map(number).collect::<Vec<_>>());
    world.file("part-1.bin", &numbers(0, 100_000));
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut zipped, &numbers(100_000, 200_000)).unwrap();
    world.file("part-2.bin.gz", &zipped.finish().unwrap());
    let parts = world.path("part-*");
    let sum = "SELECT count(*) || ' ' || min(a) || ' ' || max(a) FROM t";
    let base = ["--table", "t", "--format", "binary"];
    for (more, read, skipped, left) in [
        (&[][..], 200_000, 0, "200000 0 199999"),
        (&["--method", "lanes", "--lanes", "2"], 200_000, 0, "200000 0 199999"),
        (&["--skip", "99999", "--limit", "2"], 100_001, 99_999, "2 99999 100000"),
        (&["--skip", "150000"], 200_000, 150_000, "50000 150000 199999"),
        (&["--limit", "1"], 1, 0, "1 0 0"),
        (&["--where", "a % 2 = 0", "--skip", "10"], 200_000, 100_005, "99995 10 199998"),
    ] {
        world.sql("TRUNCATE t");
        let summary = world.load(&[&[parts.as_str()], &base[..], more].concat()).unwrap();
        assert_eq!((&summary["read"], &summary["skipped"]), (&read.into(), &skipped.into()));
        assert_eq!(world.sql(sum), left, "{more:?}");
        assert_eq!(summary["lanes"], if more.contains(&"lanes") { 2 } else { 1 });
    }
    let output = world.run_with(
        &[&["load", "-", "--quiet", "--truncate", "--limit", "7"], &base[..]].concat(),
        &numbers(5, 90_000),
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.sql(sum), "7 5 11");

    world.sql(
        "TRUNCATE t; CREATE TABLE fired (n serial);
         CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO fired DEFAULT VALUES; RETURN NULL; END $$;
         CREATE TRIGGER f AFTER INSERT ON t EXECUTE FUNCTION f()",
    );
    let summary = world.load(&[&[parts.as_str()], &base[..]].concat()).unwrap();
    assert_eq!((&summary["loaded"], &summary["statements"]), (&200_000.into(), &2.into()));
    assert_eq!(world.sql("SELECT count(*) FROM fired"), "2");

    for method in ["insert", "insert-batch", "copy-csv", "copy-text", "staged"] {
        let all = [&[parts.as_str()], &base[..], &["--method", method]].concat();
        let said = world.load(&all).unwrap_err();
        assert!(said.contains("a binary file cannot be loaded by"), "{said}");
    }
}

/// A tuple that is too long to be held in memory is streamed. If the server refuses it, it is
/// rejected unchanged.
#[test]
fn long_tuples() {
    let mut world = World::new(each_major().last().unwrap());
    let long = vec![b'x'; 20 << 20];
    let one = 1_i32.to_be_bytes();
    let tuples = [
        tuple(&[Some(b"a"), Some(&one)]),
        tuple(&[Some(&long), Some(&one)]),
        tuple(&[Some(b"b"), Some(&one)]),
    ];
    let bytes = stream(&tuples);
    let file = world.file("long.bin", &bytes);
    let base = [&file, "--table", "t", "--format", "binary"];
    world.sql("CREATE TABLE t (a text, b int)");
    let summary = world.load(&base).unwrap();
    assert_eq!((&summary["loaded"], &summary["read"]), (&3.into(), &3.into()));
    assert_eq!(world.sql("SELECT max(length(a)) FROM t"), long.len().to_string());
    let summary = world.load(&[&base[..], &["--skip", "2", "--truncate"]].concat()).unwrap();
    assert_eq!((&summary["loaded"], &summary["skipped"]), (&1.into(), &2.into()));

    world.sql("DROP TABLE t; CREATE TABLE t (a varchar(1000000), b int)");
    let rejects = world.path("rejects.bin");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    let summary = world.load(&[&base[..], &reject[..]].concat()).unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &1.into()));
    assert!(fs::read(&rejects).unwrap() == stream(&tuples[1..2]));
    let said = side(&rejects).remove(0);
    assert_eq!((&said["record"], &said["sqlstate"]), (&2.into(), &"22001".into()));

    // The file ends within the long tuple.
    let file = world.file("cut.bin", &bytes[..10 << 20]);
    let said = world.load(&[&file, "--table", "t", "--format", "binary"]).unwrap_err();
    let offset = HEADER.len() + tuples[0].len();
    let place =
        format!("cut.bin, line 2, record 2, byte offset {offset}, column a: unexpected EOF");
    assert!(said.contains(&place), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
}

/// `check` reports every bad tuple, except violations that depend on other rows; `plan` explains
/// how the file would be loaded.
#[test]
fn check_and_plan_read_tuples() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(TABLE);
    let mut tuples = good(0, 1_000);
    bad().iter().for_each(|(tuple, ..)| tuples.push(tuple.clone()));
    let file = world.file("rows.bin", &stream(&tuples));
    let base = [&file, "--table", "t", "--format", "binary"];
    let output = world.run(&[&["check", "--json"], &base[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let told: Vec<Value> = told.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // Only a load can check constraints that depend on other rows.
    let expected: Vec<_> =
        bad().into_iter().filter(|b| !["23505", "23503"].contains(&b.1)).collect();
    let states: Vec<&str> = told.iter().map(|r| r["sqlstate"].as_str().unwrap()).collect();
    assert_eq!(states, expected.iter().map(|b| b.1).collect::<Vec<_>>());
    assert!(String::from_utf8_lossy(&output.stderr).contains("read 1011 = good 1002 + bad 9"));
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    let output = world.run(&[&["plan"], &base[..]].concat());
    let plan = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(plan.contains("holds binary rows already"), "{plan}");
}
