//! Stray quotes: by default, an error of the line that has one and of no other record, by every
//! method, with every line end, wherever chunks end. `--stray-quotes` gives them other meanings.

use crate::common::{each_major, on_first_and_last_major, World};
use pgsluice_fuzz::damaged::Damaged;
use pgsluice_fuzz::rng::Random;
use std::fs;
use std::io::Write;

const METHODS: [&str; 9] = [
    "auto",
    "copy-csv",
    "copy-text",
    "copy-binary",
    "lanes",
    "staged",
    "copy-fresh",
    "insert-batch",
    "insert",
];

fn remove(path: &str) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(format!("{path}.jsonl"));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// The file of a bug report: 40,000 records, two of them damaged. Every 500th has two lines.
fn report(eol: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 1..=40_000 {
        let record = match i {
            5 => "5,x\"x,y,z".into(),
            20_000 => "20000,\"abc\"def,y,z".into(),
            _ if i % 500 == 0 => format!("{i},x,\"two\nlines\",{i}"),
            _ => format!("{i},x,y,a longer value of no meaning to fill a chunk or two"),
        };
        bytes.extend_from_slice(record.as_bytes());
        bytes.extend_from_slice(eol.as_bytes());
    }
    bytes
}

/// Of a file with two damaged lines, exactly these are rejected, by every method, with every line
/// end, compressed or not.
#[test]
fn a_refused_line_costs_no_other_record() {
    let mut world = World::new(each_major().last().unwrap());
    let rejects = world.path("rejects.csv");
    world.sql("CREATE TABLE t (id int, a text, b text, c text)");
    for (turn, eol) in ["\n", "\r\n", "\r"].into_iter().enumerate() {
        let bytes = report(eol);
        let plain = world.file("plain.csv", &bytes);
        let packed = world.file("packed.csv.gz", &gzip(&bytes));
        for (i, method) in METHODS.iter().filter(|m| **m != "insert").enumerate() {
            remove(&rejects);
            world.sql("TRUNCATE t");
            let path = if (i + turn) % 2 == 0 { &plain } else { &packed };
            let summary = world.load(&[
                path,
                "--table",
                "t",
                "--method",
                method,
                "--on-error",
                "reject",
                "--reject-file",
                &rejects,
            ]);
            let summary = summary.unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!(
                (&summary["read"], &summary["loaded"], &summary["rejected"]),
                (&40_000.into(), &39_998.into(), &2.into()),
                "{method}, {eol:?}"
            );
            assert_eq!(summary["stray_quotes"], 2, "{method}");
            let whole = "SELECT count(DISTINCT id) || ' ' || \
                         count(*) FILTER (WHERE b = E'two\\nlines') || ' ' || \
                         count(*) FILTER (WHERE b = 'y') FROM t";
            assert_eq!(world.sql(whole), "39998 79 39919", "{method}, {eol:?}");
            let expected = format!("5,x\"x,y,z{eol}20000,\"abc\"def,y,z{eol}");
            assert_eq!(fs::read_to_string(&rejects).unwrap(), expected, "{method}");
        }
    }
}

/// Generated files have damaged lines anywhere between good records; some files are larger than a
/// chunk. Exactly the damaged lines are rejected, and again when the reject file is loaded.
#[test]
fn exactly_the_damaged_lines_are_rejected() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let rejects = world.path("rejects.csv");
        world.sql("CREATE TABLE s (a text, b text, c text); CREATE TABLE t (LIKE s)");
        for seed in 0..27 {
            let mut rng = Random::new(seed);
            let method = METHODS[seed as usize % METHODS.len()];
            let large = seed % 5 == 0 && method != "insert";
            let (records, every) = if large { (40_000, 400) } else { (60, rng.pick(&[2, 5, 20])) };
            let file = Damaged::new(&mut rng, records, every);
            let label = format!("seed {seed}, {method}");
            remove(&rejects);
            world.sql("TRUNCATE s, t");
            world.stock("COPY s FROM STDIN CSV", &file.good).unwrap();
            let path = world.file("damaged.csv", &file.data);
            let arguments = ["--table", "t", "--method", method, "--on-error", "reject"];
            let keep = ["--reject-file", &rejects, &path];
            let summary = world.load(&[&arguments[..], &keep[..]].concat());
            let summary = summary.unwrap_or_else(|e| panic!("{label}: {e}"));
            assert_eq!(summary["rejected"], file.places.len(), "{label}");
            assert_eq!(world.difference("s", "t"), "", "{label}");
            let kept = fs::read(&rejects).unwrap_or_default();
            assert!(kept == file.bad, "{label}: {}", String::from_utf8_lossy(&kept));
            // The reject file is read by the same rules: each record is refused again.
            if !kept.is_empty() {
                let again = world.path("again.csv");
                remove(&again);
                world.sql("TRUNCATE t");
                let keep = ["--reject-file", &again, &rejects];
                let summary = world.load(&[&arguments[..], &keep[..]].concat()).unwrap();
                assert_eq!(summary["rejected"], file.places.len(), "{label}");
                assert!(fs::read(&again).unwrap() == kept, "{label}");
            }
        }
    });
}

/// The first stray quote stops the load. The message gives its position and kind, the detail says
/// what COPY would do, and the hint names a remedy.
#[test]
fn the_first_stray_quote_stops_the_load_and_is_explained() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text, b text)");
    let cases = [
        ("5,pipe 5\" wide,z", "column a: stray quote within an unquoted field", "is written \"\""),
        ("5, \"USA\",z", "column a: stray quote within an unquoted field", "a space stands before"),
        ("5,y,\"abc\"def", "column b: text after the closing quote", "is written \"\""),
        ("5,\"H. \\\"Barney\\\" E\",z", "text after the closing quote", "--escape '\\'"),
        ("5,\"abc,z", "column a: quoted field is not closed", "is the quote at its end missing?"),
    ];
    for (line, message, hint) in cases {
        let bytes = format!("2,b,c\n1,a,\"two\nlines\"\n{line}\n3,a,\"q\"\n");
        let path = world.file("stray.csv", bytes.as_bytes());
        for method in METHODS {
            world.sql("TRUNCATE t");
            let said = world.load(&[&path, "--table", "t", "--method", method]).unwrap_err();
            assert!(said.contains("line 4, record 3, byte offset 22"), "{method}: {said}");
            assert!(said.contains(message) && said.contains(hint), "{method}: {said}");
            assert!(said.contains("detail: COPY would"), "{method}: {said}");
            assert!(said.contains("--stray-quotes"), "{method}: {said}");
            let stayed = if method == "insert" { "2" } else { "0" };
            assert_eq!(world.sql("SELECT count(*) FROM t"), stayed, "{method}");
        }
        // An error of the server about an earlier record comes first.
        let bytes = format!("1,a,b\nx,b,c\n{line}\n");
        let path = world.file("earlier.csv", bytes.as_bytes());
        // `staged` reads values after all records have landed.
        for method in METHODS.into_iter().filter(|method| *method != "staged") {
            world.sql("TRUNCATE t");
            let said = world.load(&[&path, "--table", "t", "--method", method]).unwrap_err();
            assert!(said.contains("invalid input syntax for type integer"), "{method}: {said}");
        }
    }
    let path = world.file("stray.csv", b"1,a,b\n5,x\"x,z\n6,\"c\",d\n");
    let check = world.run(&["check", &path, "--table", "t"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned()
        + &String::from_utf8_lossy(&check.stderr);
    assert!(said.contains(":2: record 2, byte offset 6, column a: stray quote within"), "{said}");
    assert!(said.contains("good 2 + bad 1"), "{said}");
    let convert = world.run(&["convert", &path, "--table", "t", "--out", &world.path("out.bin")]);
    let said = String::from_utf8_lossy(&convert.stderr).into_owned();
    assert!(said.contains("line 2") && said.contains("--stray-quotes"), "{said}");
    let header = world.file("header.csv", b"id,a\"a,b\n1,a,b\n");
    let said = world.load(&[&header, "--table", "t", "--header"]).unwrap_err();
    assert!(said.contains("line 1: stray quote") && said.contains("--stray-quotes"), "{said}");
}

/// With `--stray-quotes literal`, stray quotes are characters of the value; with `copy`, they mean
/// what they mean to COPY. The summary counts the fields that have them.
#[test]
fn stray_quotes_are_characters_or_what_they_are_to_copy() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE t (id int, a text, b text); CREATE TABLE s (LIKE t)");
        let bytes = b"1,5\" pipe,5\"x\"\n2,\"a\"b,\"two\nlines\"\n3,\"abc,z\n4, \"USA\",\"d\"\n";
        let path = world.file("stray.csv", bytes);
        let read = "SELECT string_agg(concat_ws('|', id, a, b), '/' ORDER BY id) FROM t";
        for method in METHODS {
            world.sql("TRUNCATE t");
            let base = [path.as_str(), "--table", "t", "--method", method];
            let literal = [&base[..], &["--stray-quotes", "literal"]].concat();
            let summary = world.load(&literal).unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!(
                world.sql(read),
                "1|5\" pipe|5\"x\"/2|\"a\"b|two\nlines/3|\"abc|z/4| \"USA\"|d",
                "{method}"
            );
            assert_eq!((&summary["loaded"], &summary["stray_quotes"]), (&4.into(), &5.into()));
            assert!(summary["notes"].to_string().contains("5 fields have stray quotes"));
        }
        let stray = b"1,5\" pipe,z\n2,b\"c,x\n3,\"a\"b,\"d\"\n";
        let path = world.file("stray.csv", stray);
        let rows = world.stock("COPY s FROM STDIN CSV", stray).unwrap();
        for method in METHODS {
            world.sql("TRUNCATE t");
            let base = [path.as_str(), "--table", "t", "--method", method];
            let copy = [&base[..], &["--stray-quotes", "copy"]].concat();
            let summary = world.load(&copy).unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!(summary["loaded"], rows, "{method}");
            assert_eq!(summary["stray_quotes"], 2, "{method}");
            assert_eq!(world.difference("s", "t"), "", "{method}");
        }
        let text = world.file("t.txt", b"1\ta\tb\n");
        let given = ["load", "--table", "t", "--format", "text", "--stray-quotes", "copy", &text];
        let said = String::from_utf8_lossy(&world.run(&given).stderr).into_owned();
        assert!(said.contains("options of the csv format alone"), "{said}");
    });
}

/// With `--stray-quotes literal`, stray quotes of records that are longer than a chunk are
/// characters of the value, too.
#[test]
fn stray_quotes_of_long_records_are_characters() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text, b text)");
    let long = "x".repeat(600 << 10);
    let mut bytes = format!("1,5\" pipe,{long}\n2,6\",{long}\n").into_bytes();
    for i in 3..200_000 {
        bytes.extend_from_slice(format!("{i},a,b\n").as_bytes());
    }
    let path = world.file("long.csv", &bytes);
    for method in ["copy-csv", "copy-text", "copy-binary"] {
        world.sql("TRUNCATE t");
        let literal = [&path, "--table", "t", "--method", method, "--stray-quotes", "literal"];
        let summary = world.load(&literal).unwrap_or_else(|e| panic!("{method}: {e}"));
        let counts = (&summary["loaded"], &summary["stray_quotes"]);
        assert_eq!(counts, (&199_999.into(), &2.into()), "{method}");
        let values = "SELECT string_agg(a || length(b), '/' ORDER BY id) FROM t WHERE id < 3";
        assert_eq!(world.sql(values), "5\" pipe614400/6\"614400", "{method}");
    }
}

/// If stray quotes are literal and a record is rejected, the records before and after it keep the
/// meaning that they have in the file.
#[test]
fn a_rejected_record_leaves_the_quotes_of_its_neighbours_as_they_are() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a text, b text, c text)");
    let path = world.file("literal.csv", b"1,z,\"abc\n9,\"def\"\n1,z,\"\nx,y,q\"\n");
    let rejects = world.path("literal.rejects");
    let literal = ["--stray-quotes", "literal", "--on-error", "reject", "--reject-file", &rejects];
    for method in METHODS.iter().filter(|method| **method != "insert") {
        remove(&rejects);
        world.sql("TRUNCATE t");
        let base = [path.as_str(), "--table", "t", "--method", method];
        let summary = world.load(&[&base[..], &literal].concat()).unwrap();
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &1.into()), "{method}");
        let rows =
            world.sql("SELECT string_agg(concat_ws('|', a, b, c), '/' ORDER BY c DESC) FROM t");
        let mut rows: Vec<&str> = rows.split('/').collect();
        rows.sort_unstable();
        assert_eq!(rows, ["1|z|\nx,y,q", "1|z|\"abc"], "{method}");
        assert_eq!(fs::read_to_string(&rejects).unwrap(), "9,\"def\"\n", "{method}");
    }
}

/// A quote that is never closed makes only its own line bad, however much follows. A value that is
/// too long to be held in memory is still loaded.
#[test]
fn an_open_quote_costs_its_line_and_long_values_stay_whole() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text)");
    let rejects = world.path("rejects.csv");
    let long = "long \"\"value\"\" of\nlines, ".repeat(400_000);
    let mut bytes = format!("1,\"{long}\"\n2,x\n3,\"open,y\n").into_bytes();
    for i in 4..700_000 {
        bytes.extend_from_slice(format!("{i},xxxxxxx\n").as_bytes());
    }
    bytes.extend_from_slice(
        format!("700000,\"{long}\"\n700001,\"open again\n700002,z\n").as_bytes(),
    );
    let path = world.file("open.csv", &bytes);
    for (method, stdin) in [("copy-csv", false), ("copy-binary", true), ("lanes", false)] {
        remove(&rejects);
        world.sql("TRUNCATE t");
        let source = if stdin { "-" } else { path.as_str() };
        let arguments = ["load", source, "--table", "t", "--method", method, "--quiet"];
        let keep = ["--on-error", "reject", "--reject-file", &rejects];
        let given = if stdin { bytes.as_slice() } else { b"" };
        let output = world.run_with(&[&arguments[..], &keep[..]].concat(), given);
        assert_eq!(output.status.code(), Some(3), "{method}: {output:?}");
        let counts = world.sql("SELECT count(*) || ' ' || max(length(a)) FROM t");
        let length = long.replace("\"\"", "\"").len();
        assert_eq!(counts, format!("700000 {length}"), "{method}");
        assert_eq!(
            fs::read_to_string(&rejects).unwrap(),
            "3,\"open,y\n700001,\"open again\n",
            "{method}"
        );
    }
}

/// A stray quote after a value that is too long to be held in memory makes its record bad, and no
/// other one.
#[test]
fn a_stray_quote_after_a_long_value_is_one_reject() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text, b text, c text)");
    let rejects = world.path("rejects.csv");
    let long = "long \"\"value\"\" of\nlines, ".repeat(250_000);
    let plain = "x".repeat(6 << 20);
    let damaged = [
        format!("2,\"{long}\",5\" pipe,z\n"),
        format!("2,\"{long}\",\"5\" pipe\",\"two\nlines\"\n"),
        format!("2,\"{long}\",y,\"open\n"),
        format!("2,{plain}\"{},y,z\n", "x".repeat(1 << 20)),
        format!("2,\"{long}\",\"{long}\",z\"\n"),
        format!("2,\"{long}\",{plain},\"open, {}\n", "y".repeat(1 << 20)),
    ];
    for (i, damaged) in damaged.iter().enumerate() {
        let bytes = format!("1,\"{long}\",y,z\n{damaged}3,x,y,\"two\nlines\"\n4,\"{long}\",y,z\n");
        let path = world.file("damaged.csv", bytes.as_bytes());
        let method = ["copy-csv", "lanes", "copy-binary", "staged"][i % 4];
        remove(&rejects);
        world.sql("TRUNCATE t");
        let base = [&path, "--table", "t", "--method", method];
        // The record has more lines than the default reject limit.
        let reject = ["--on-error", "reject", "--reject-limit", "none", "--reject-file", &rejects];
        let summary = world.load(&[&base[..], &reject].concat());
        let summary = summary.unwrap_or_else(|e| panic!("{i}: {e}"));
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&3.into(), &1.into()), "{i}");
        assert_eq!(world.sql("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t"), "1 3 4");
        assert!(fs::read_to_string(&rejects).unwrap() == *damaged, "{i}");
        let side = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
        assert!(side.contains("\"record\":2,") && side.contains("quote"), "{i}: {side}");
        let before = bytes.find("\n2,").unwrap() + 1;
        let line = 1 + bytes[..before].matches('\n').count();
        assert!(side.contains(&format!("\"line\":{line},\"offset\":{before},")), "{i}: {side}");
        let said = world.load(&base).unwrap_err();
        assert!(said.contains(&format!("byte offset {before}")), "{i}: {said:.300}");
    }
}
