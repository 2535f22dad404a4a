//! Each file is loaded by several methods and by stock COPY. Either the tables are equal or the
//! errors are, and the rows take the requested route.

use crate::common::{each_major, on_each_major, World};

/// A table, a file, and options of COPY and of the program that mean the same.
struct Case {
    name: &'static str,
    columns: &'static str,
    bytes: Vec<u8>,
    copy: &'static str,
    arguments: &'static [&'static str],
    /// every chunk can be encoded
    encodable: bool,
}

fn case(name: &'static str, columns: &'static str, bytes: &[u8]) -> Case {
    let copy = "FORMAT csv";
    let arguments = &["--stray-quotes", "copy"];
    Case { name, columns, bytes: bytes.to_vec(), copy, arguments, encodable: true }
}

/// Records for several chunks, with line ends in quotes.
fn many() -> Vec<u8> {
    let record = |i| format!("{i},\"line {i}\nof \"\"it\"\"\",2024-01-01 00:00:00+00,{i}.25,t\n");
    (0..60_000).flat_map(|i| record(i).into_bytes()).collect()
}

fn cases() -> Vec<Case> {
    let typed = "a int, b text, c timestamptz, d numeric(10,2), e bool";
    let many = many();
    let mut exotic = many.clone();
    exotic.extend_from_slice(b"1,x,yesterday,1,t\n2,y,2024-01-01 00:00:00+00,1,t\n");
    let mut late_fault = many.clone();
    late_fault.extend_from_slice(b"1,x\n2,y,2024-01-01 00:00:00+00,1,t\n");
    let mut late_type = many.clone();
    late_type
        .extend_from_slice(b"1,x,2024-01-01 00:00:00+00,1,t\nabc,y,2024-01-01 00:00:00+00,1,t\n");
    let mut late_cr = many.clone();
    late_cr.extend_from_slice(b"1,x,2024-01-01 00:00:00+00,1,t\r\n2,,,,\r\n");
    vec![
        case("empty file", "a int, b text", b""),
        case("null and empty", "a int, b text, c text", b"1,,\"\"\n,x,\n3,\"\",y"),
        case("quoted line ends", "a text, b text", b"\"x\ny\",\"a\r\nb\"\n\"\"\"\",a\"b,c\"d\n"),
        case("crlf", "a int, b text", b"1,x\r\n2,\"y\nz\"\r\n"),
        case("cr", "a int, b text", b"1,x\r2,y\r"),
        case("dot line", "a text", b"x\n\\.\ny\n"),
        Case {
            copy: "FORMAT text",
            arguments: &["--format", "text"],
            ..case("dot alone", "a text", b"x\ny\n\\.\nz\n")
        },
        Case {
            copy: "FORMAT text",
            arguments: &["--format", "text"],
            ..case("dot behind a record", "a text", b"x\ny\\.\nz\n")
        },
        case("dot in quotes", "a text", b"\"\\.\"\n\\.x\n\"a\n\\.\nb\"\n"),
        case("many", typed, &many),
        Case { encodable: false, ..case("exotic date", typed, &exotic) },
        Case { encodable: false, ..case("ragged", "a int, b text", b"1,x\n2\n3,z\n") },
        Case { encodable: false, ..case("extra", "a int, b text", b"1,x\n2,y,z\n") },
        Case { encodable: false, ..case("bad int", "a int, b text", b"1,x\nq,y\n3,z\n") },
        Case { encodable: false, ..case("open quote", "a int, b text", b"1,x\n2,\"y\n3,z\n") },
        Case { encodable: false, ..case("mixed ends", "a int, b text", b"1,x\n2,y\r\n3,z\n") },
        Case { encodable: false, ..case("bad utf8", "a int, b text", b"1,x\n2,\xff\n") },
        Case { encodable: false, ..case("nul byte", "a int, b text", b"1,x\n2,a\0b\n") },
        Case { encodable: false, ..case("not null", "a int NOT NULL, b text", b"1,x\n,y\n") },
        Case { encodable: false, ..case("late ragged", typed, &late_fault) },
        Case { encodable: false, ..case("late bad value", typed, &late_type) },
        Case { encodable: false, ..case("late line end", typed, &late_cr) },
        case("check", "a int CHECK (a < 3), b text", b"1,x\n2,y\n3,z\n"),
        case("unique", "a int UNIQUE, b text", b"1,x\n2,y\n1,z\n"),
    ]
}

fn dialects() -> Vec<Case> {
    vec![
        Case {
            copy: "FORMAT csv, DELIMITER ';', QUOTE '''', ESCAPE '\\', NULL 'nil'",
            arguments: &["--delimiter", ";", "--quote", "'", "--escape", "\\", "--null", "nil"],
            ..case("dialect", "a int, b text, c text", b"1;'a\\'b;\\\\';nil\n2;nil;'nil'\n")
        },
        Case {
            copy: "FORMAT csv, FORCE_NULL (b), FORCE_NOT_NULL (c)",
            arguments: &["--force-null", "b", "--force-not-null", "c"],
            ..case("forced", "a int, b text, c text", b"1,\"\",\n2,,\"\"\n")
        },
        Case {
            copy: "FORMAT text",
            arguments: &["--format", "text"],
            ..case("text", "a int, b text", b"1\ta\\tb\\\\\\x41\\101\n\\N\t\\N\n3\t\n4\tx\\\ny\n")
        },
        Case {
            copy: "FORMAT text",
            arguments: &["--format", "text"],
            ..case("text end", "a int, b text", b"1\ta\n\\.\nnot read\n")
        },
    ]
}

/// Loads the case by stock COPY and by the program; they must agree.
fn agree(world: &mut World, case: &Case, method: &str) {
    let label = format!("{} by {method} on {}", case.name, world.major());
    world.sql(&format!(
        "DROP SCHEMA IF EXISTS s CASCADE; DROP SCHEMA IF EXISTS p CASCADE; CREATE SCHEMA s; CREATE SCHEMA p; CREATE TABLE s.t ({0}); CREATE TABLE p.t ({0})",
        case.columns
    ));
    let mut expected =
        world.stock(&format!("COPY s.t FROM STDIN WITH ({})", case.copy), &case.bytes);
    if case.name == "dot line" && world.major() < 18 {
        // Up to PostgreSQL 17, stock COPY drops what follows; the loader takes it as data.
        world.sql("TRUNCATE s.t; INSERT INTO s.t VALUES ('x'), (E'\\\\.'), ('y')");
        expected = Ok(3);
    }
    let file = world.file("data", &case.bytes);
    let mut log = 0;
    world.log(&mut log);
    let mut arguments = vec![file.as_str(), "--table", "p.t", "--method", method];
    arguments.extend_from_slice(case.arguments);
    match (expected, world.load(&arguments)) {
        (Ok(rows), Ok(summary)) => {
            assert_eq!(world.difference("s.t", "p.t"), "", "{label}");
            assert_eq!(summary["loaded"], rows, "{label}");
            route(case, method, &summary, &world.log(&mut log), &label);
        }
        (Err((message, context)), Err(said)) => {
            assert!(said.contains(&message), "{label}: {message}\n{said}");
            let line = context.split("line ").nth(1).map(|rest| {
                rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("").to_owned()
            });
            // INSERT checks the values of a whole batch before any constraint.
            if let (Some(line), false) = (line, method == "insert-batch" && case.name == "unique") {
                assert!(said.contains(&format!(", line {line}, ")), "{label}: {context}\n{said}");
            }
            assert_eq!(world.sql("SELECT count(*) FROM p.t"), "0", "{label}");
        }
        (expected, got) => panic!("{label}: stock says {expected:?}, the program {got:?}"),
    }
}

/// The marker of NULL or of a default may be `\.` itself, which servers before 18 take as the end
/// of the data. The loader reads the file by the rules of 18 on every major version.
#[test]
fn a_dot_line_may_be_a_marker() {
    let bytes = b"x\n\\.\n\"\\.\"\n\n\"q\nr\"\n\\.";
    let null = ["x", "NULL", "'\\.'", "''", "E'q\\nr'", "NULL"];
    let default = ["x", "'d'", "'\\.'", "NULL", "E'q\\nr'", "'d'"];
    for installation in each_major() {
        let mut world = World::new(&installation);
        let file = world.file("dots.csv", bytes);
        for (option, marker, rows) in [("--null", "NULL", null), ("--default", "DEFAULT", default)]
        {
            if marker == "DEFAULT" && world.major() < 16 {
                continue;
            }
            let rows = rows.map(|r| if r == "x" { "'x'" } else { r });
            let values = rows.map(|r| format!("({r})")).join(", ");
            world.sql(&format!(
                "DROP TABLE IF EXISTS s, t; CREATE TABLE s (a text DEFAULT 'd'); CREATE TABLE t (LIKE s INCLUDING ALL); INSERT INTO s VALUES {values}"
            ));
            if world.major() >= 18 {
                let copy = format!("COPY t FROM STDIN (FORMAT csv, {marker} '\\.')");
                world.stock(&copy, bytes).unwrap();
                assert_eq!(world.difference("s", "t"), "", "what stock COPY of 18 makes of it");
            }
            for method in
                ["copy-csv", "copy-text", "copy-binary", "insert-batch", "lanes", "staged"]
            {
                world.sql("TRUNCATE t");
                let loaded =
                    world.load(&[&file, "--table", "t", option, "\\.", "--method", method]);
                match loaded {
                    Ok(summary) => assert_eq!(summary["loaded"], 6, "{method}"),
                    Err(said) => {
                        assert!(method == "staged" && marker == "DEFAULT", "{method}: {said}");
                        continue;
                    }
                }
                assert_eq!(world.difference("s", "t"), "", "{option} by {method}");
            }
        }
        // If a record is rejected, the rest of its chunk keeps its meaning.
        world.sql("DROP TABLE IF EXISTS n; CREATE TABLE n (a int)");
        let mixed = world.file("mixed.csv", b"1\n\\.\nz\n\\.\n3\n\"\\.\"\n");
        let rejects = world.path("dots.rejects");
        let reject = ["--on-error", "reject", "--reject-file", &rejects, "--null", "\\."];
        world.load(&[&[mixed.as_str(), "--table", "n"], &reject[..]].concat()).unwrap();
        let rows = world.sql("SELECT string_agg(coalesce(a::text, 'null'), ' ' ORDER BY a) FROM n");
        assert_eq!(rows, "1 3 null null");
        assert_eq!(std::fs::read(&rejects).unwrap(), b"z\n\"\\.\"\n");
    }
}

/// A record that is rewritten may have more lines than in the file. An error still gives the file's
/// line.
#[test]
fn an_error_in_rewritten_records_names_the_files_line() {
    let mut world = World::new(&each_major()[0]);
    world.sql("CREATE TABLE t (a text, b int)");
    for many in [1, 40_000] {
        let mut bytes = Vec::new();
        for i in 0..many {
            bytes.extend_from_slice(format!("line\\none\\r\\ntwo {i}\t1\n").as_bytes());
        }
        bytes.extend_from_slice(b"next\\nto it\tnone\n");
        let file = world.file("lines.txt", &bytes);
        for method in ["copy-csv", "copy-text", "copy-binary", "insert-batch"] {
            let said = world
                .load(&[&file, "--table", "t", "--format", "text", "--method", method])
                .unwrap_err();
            let line = many + 1;
            assert!(said.contains(&format!("line {line}, record {line}, ")), "{method}: {said}");
            assert!(said.contains("column b") && said.contains("\"none\""), "{method}: {said}");
        }
    }
}

/// If a quote is never closed, COPY reports the last line of the file. With `--stray-quotes copy`,
/// the loader reports that line, too, but with the record and the byte offset at which the record
/// begins.
#[test]
fn an_open_quote_is_named_where_it_opens() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let bytes = b"1,x\n2,\"y\ny\"\n3,\"a\nb\nc\nd\n";
    let (message, context) = world.stock("COPY t FROM STDIN CSV", bytes).unwrap_err();
    assert!(context.starts_with("COPY t, line 8: "), "{context}");
    let file = world.file("open.csv", bytes);
    for method in ["copy-csv", "copy-text", "copy-binary", "staged", "insert-batch", "lanes"] {
        let copy = [&file, "--table", "t", "--method", method, "--stray-quotes", "copy"];
        let said = world.load(&copy).unwrap_err();
        let place = format!("line 8, record 3, byte offset 12: {message}");
        assert!(said.contains(&place), "{method}: {said}");
    }
}

/// Checks by the summary and the server's log that the rows took the requested route.
fn route(case: &Case, method: &str, summary: &serde_json::Value, log: &str, label: &str) {
    let encoded = summary["chunks_encoded"].as_u64().unwrap();
    let as_is = summary["chunks_as_is"].as_u64().unwrap();
    let csv = !case.arguments.contains(&"text");
    let saw = |what: &str| log.contains(what);
    match method {
        "insert-batch" => {
            assert!(saw("INSERT INTO \"p\".\"t\"") || case.bytes.is_empty(), "{label}")
        }
        _ => assert!(!saw("INSERT INTO \"p\""), "{label}"),
    }
    if case.bytes.is_empty() || method.starts_with("insert") {
        return;
    }
    let encodes = match method {
        "copy-binary" => "FORMAT binary",
        "copy-text" if csv => "FORMAT text",
        "copy-csv" if !csv => "FORMAT csv",
        _ => "",
    };
    if encodes.is_empty() {
        assert!(as_is > 0 && encoded == 0 && !saw("FORMAT binary"), "{label}: {summary}");
    } else if case.encodable {
        assert!(encoded > 0 && as_is == 0 && saw(encodes), "{label}: {summary}");
    } else if method == "copy-binary" && case.name == "exotic date" {
        assert!(
            encoded > 0 && as_is == 1 && saw(encodes) && saw("FORMAT csv"),
            "{label}: {summary}"
        );
    }
}

/// For each file and dialect, each method gives the rows of stock COPY, or fails with its message
/// and line.
#[test]
fn every_method_equals_stock_copy() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        for method in ["copy-csv", "copy-text", "copy-binary", "insert-batch"] {
            for case in cases().into_iter().chain(dialects()) {
                agree(&mut world, &case, method);
            }
        }
    });
}

/// If most columns are text, lines of CSV that mean the same in COPY's text format are sent
/// unchanged in that format, and others are rewritten. An error of the server gives the line of the
/// file.
#[test]
fn plain_lines_of_csv_go_as_text() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        let table = "(a text, b text, n int)";
        world.sql(&format!("CREATE TABLE s {table}; CREATE TABLE t {table}"));
        let plain =
            |from: usize| (from..from + 40_000).flat_map(|i| format!("é {i},,{i}\n").into_bytes());
        let mut bytes: Vec<u8> = plain(1).collect();
        bytes.extend((0..40_000).flat_map(|i| format!("\"\",\"a\\b\n{i}\",\n").into_bytes()));
        bytes.extend(plain(50_000));
        world.stock("COPY s FROM STDIN CSV", &bytes).unwrap();
        let mut log = 0;
        let file = world.file("mixed.csv", &bytes);
        world.log(&mut log);
        let summary = world.load(&[&file, "--table", "t"]).unwrap();
        assert_eq!(world.difference("s", "t"), "");
        assert_eq!(
            (&summary["method"], &summary["chunks_as_is"]),
            (&"copy-text".into(), &0.into())
        );
        assert!(summary["statements"].as_u64().unwrap() >= 3, "{summary}");
        let log = world.log(&mut log);
        assert!(log.contains("WITH (FORMAT text, DELIMITER ',', NULL '')"), "{log}");
        assert!(log.contains("WITH (FORMAT text)"), "{log}");

        bytes.extend_from_slice(b"x,y,1\nx,y,none\n");
        let file = world.file("bad.csv", &bytes);
        let said = world.load(&[&file, "--table", "t"]).unwrap_err();
        let (record, line) = (120_002, 160_002);
        assert!(said.contains(&format!("line {line}, record {record}, ")), "{said}");
        assert!(said.contains("column n") && said.contains("\"none\""), "{said}");
    });
}
