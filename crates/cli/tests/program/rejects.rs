//! `--on-error reject`: every bad record goes to the reject file unchanged, all other records are
//! loaded, and the reject limit holds.

use crate::common::{each_major, on_each_major, World};
use serde_json::Value;
use std::fs;

const METHODS: [&str; 8] = [
    "copy-csv",
    "copy-text",
    "copy-binary",
    "insert",
    "insert-batch",
    "copy-fresh",
    "staged",
    "lanes",
];

/// A table with every kind of constraint, a parent for its foreign key, and a
/// deferred constraint, which must not wait for the commit.
const TABLE: &str = "
    DROP TABLE IF EXISTS t, p;
    CREATE TABLE p (k int PRIMARY KEY);
    INSERT INTO p VALUES (1), (2);
    CREATE TABLE t (
        id int UNIQUE,
        n smallint NOT NULL CHECK (n < 100),
        v varchar(3),
        k int REFERENCES p DEFERRABLE INITIALLY DEFERRED,
        r int4range,
        EXCLUDE USING gist (r WITH &&)
    );";

/// A bad record, its first line, the SQLSTATE and the column.
const BAD: [(&[u8], u64, &str, Option<&str>); 12] = [
    (b"x,1,a,1,\n", 3, "22P02", Some("id")),
    (b"2,40000,a,1,\n", 4, "22003", Some("n")),
    (b"3,1\n", 5, "22P04", Some("v")),
    (b"4,1,a,1,,\n", 6, "22P04", None),
    (b"5,1,abcd,1,\n", 7, "22001", Some("v")),
    (b"6,,a,1,\n", 8, "23502", Some("n")),
    (b"7,100,a,1,\n", 9, "23514", None),
    (b"1,1,a,1,\n", 10, "23505", None),
    (b"8,1,a,9,\n", 11, "23503", None),
    (b"9,1,a,1,\"[5,7)\"\n", 12, "23P01", None),
    (b"10,1,\"\xff\",1,\n", 13, "22021", None),
    (b"\"1\n1\",1,a,1,\n", 14, "22P02", Some("id")),
];

fn file() -> Vec<u8> {
    let mut bytes = b"id,n,v,k,r\n1,1,a,1,\"[1,6)\"\n".to_vec();
    for (record, ..) in BAD {
        bytes.extend_from_slice(record);
    }
    bytes.extend_from_slice(b"90,1,\"b\nb\",2,\n91,1,,,");
    bytes
}

fn side(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(format!("{path}.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn remove(path: &str) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(format!("{path}.jsonl"));
}

/// By every method, each kind of bad record is rejected unchanged, with its position, SQLSTATE and
/// column. All other records are loaded.
#[test]
fn every_class_by_every_method() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        let source = file();
        let path = world.file("bad.csv", &source);
        let rejects = world.path("rejects.csv");
        for method in METHODS {
            remove(&rejects);
            world.sql(TABLE);
            let arguments = [
                &path,
                "--table",
                "t",
                "--header",
                "--method",
                method,
                "--on-error",
                "reject",
                "--reject-file",
                &rejects,
            ];
            let summary = world.load(&arguments).unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!(summary["read"], 15, "{method}");
            assert_eq!(summary["rejected"], BAD.len(), "{method}");
            assert_eq!(world.sql("SELECT string_agg(id::text, ',' ORDER BY id) FROM t"), "1,90,91");

            let mut expected = b"id,n,v,k,r\n".to_vec();
            BAD.iter().for_each(|(record, ..)| expected.extend_from_slice(record));
            assert_eq!(fs::read(&rejects).unwrap(), expected, "{method}");
            let side = side(&rejects);
            assert_eq!(side.len(), BAD.len());
            for (said, (index, (record, line, sqlstate, column))) in
                side.iter().zip(BAD.iter().enumerate())
            {
                let (offset, length) = (said["offset"].as_u64().unwrap() as usize, record.len());
                assert_eq!(&source[offset..offset + length], *record, "{method}: {said}");
                assert_eq!(said["length"], length, "{method}: {said}");
                assert_eq!(said["record"], index + 2, "{method}: {said}");
                assert_eq!(said["line"], *line, "{method}: {said}");
                assert_eq!(said["sqlstate"], *sqlstate, "{method}: {said}");
                assert_eq!(said["column"].as_str(), *column, "{method}: {said}");
            }
            mend_and_load_again(&mut world, &rejects, method);
        }
    });
}

/// The reject file can be loaded as it is: the same records are refused again.
fn mend_and_load_again(world: &mut World, rejects: &str, method: &str) {
    let again = world.path("again.csv");
    remove(&again);
    let summary = world
        .load(&[
            rejects,
            "--table",
            "t",
            "--header",
            "--on-error",
            "reject",
            "--reject-file",
            &again,
        ])
        .unwrap();
    // The overlapping range and the key are still there, and the parent is still missing.
    assert_eq!(summary["rejected"], BAD.len(), "{method}");
    assert_eq!(fs::read(&again).unwrap(), fs::read(rejects).unwrap());
}

/// `--reject-limit` allows this number or percentage of rejects; with one more, the load fails.
#[test]
fn the_limit_lets_n_pass_and_fails_on_the_next() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    let mut bytes = Vec::new();
    for i in 0..50_000 {
        bytes.extend_from_slice(if i % 1_000 == 7 { b"x\n" } else { b"1\n" });
    }
    let path = world.file("t.csv", &bytes);
    let rejects = world.path("rejects.csv");
    for (limit, passes) in [("50", true), ("49", false), ("0.1%", true), ("0.099%", false)] {
        remove(&rejects);
        world.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int)");
        let outcome = world.load(&[
            &path,
            "--table",
            "t",
            "--on-error",
            "reject",
            "--reject-file",
            &rejects,
            "--reject-limit",
            limit,
        ]);
        let loaded = world.sql("SELECT count(*) FROM t");
        match outcome {
            Ok(summary) => {
                assert!(passes, "{limit}");
                assert_eq!((&summary["rejected"], loaded.as_str()), (&Value::from(50), "49950"));
            }
            Err(said) => {
                assert!(!passes, "{limit}: {said}");
                assert!(said.contains("more than the limit of"), "{said}");
                assert_eq!(loaded, "0", "{limit}");
            }
        }
        assert_eq!(side(&rejects)[1]["record"], 1_008);
    }
}

/// An input function may report a syntax error or too much nesting. Such a value is rejected like
/// any other bad one.
#[test]
fn values_that_are_refused_by_the_codes_of_statements() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    let deep = "[".repeat(100_000);
    let bad = [
        ("1,a &,,,\n".to_owned(), "42601", "q"),
        ("2,,$..,,\n".to_owned(), "42601", "p"),
        (format!("3,,,{deep},\n"), "54001", "j"),
        ("4,,,,nothing\n".to_owned(), "42P01", "r"),
    ];
    let rejects = world.path("rejects.csv");
    for method in METHODS {
        // The name of a table is looked up: with INSERT, the missing one could be the loader's own.
        let by_insert = method.starts_with("insert") || method == "staged";
        let bad = &bad[..if by_insert { 3 } else { 4 }];
        let lines: Vec<&str> = bad.iter().map(|(line, ..)| line.as_str()).collect();
        let bytes = format!("0,a & b,$.x,[],pg_class\n{}9,,,,\n", lines.concat());
        let path = world.file("bad.csv", bytes.as_bytes());
        world.sql(
            "DROP TABLE IF EXISTS t;
             CREATE TABLE t (a int, q tsquery, p jsonpath, j json, r regclass)",
        );
        let base = [path.as_str(), "--table", "t", "--method", method];
        let said = world.load(&base).unwrap_err();
        assert!(said.contains("record 2") && said.contains("column q"), "{method}: {said}");
        remove(&rejects);
        if method == "insert" {
            world.sql("TRUNCATE t");
        }
        let reject = ["--on-error", "reject", "--reject-file", &rejects];
        world.load(&[&base[..], &reject[..]].concat()).unwrap_or_else(|e| panic!("{method}: {e}"));
        assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "0 9");
        assert_eq!(fs::read_to_string(&rejects).unwrap(), lines.concat(), "{method}");
        for (said, (_, sqlstate, column)) in side(&rejects).iter().zip(bad) {
            assert_eq!(
                (&said["sqlstate"], &said["column"]),
                (&(*sqlstate).into(), &(*column).into())
            );
        }
    }
    // An invalid condition is not the fault of a record.
    let path = world.file("good.csv", b"1,,,,\n");
    for method in ["copy-csv", "staged"] {
        remove(&rejects);
        let base = [path.as_str(), "--table", "t", "--method", method, "--where", "a = = 1"];
        let reject = ["--on-error", "reject", "--reject-file", &rejects];
        let said = world.load(&[&base[..], &reject[..]].concat()).unwrap_err();
        assert!(said.contains("syntax error") && !fs::exists(&rejects).unwrap(), "{said}");
    }
}

/// A trigger may raise any SQLSTATE. Its record is rejected, unless the code concerns the server or
/// the transaction.
#[test]
fn exceptions_of_triggers_are_rejected_whatever_their_code() {
    let mut world = World::new(each_major().last().unwrap());
    let path = world.file("codes.csv", b"1,ZZ123\n2,\n3,45000\n4,P0002\n");
    let rejects = world.path("rejects.csv");
    world.sql(
        "CREATE TABLE t (a int, code text);
         CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
           IF new.code <> '' THEN RAISE EXCEPTION 'no' USING ERRCODE = new.code; END IF;
           RETURN new; END$$;
         CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
    );
    let reject = ["--table", "t", "--truncate", "--on-error", "reject", "--reject-file", &rejects];
    for method in METHODS {
        remove(&rejects);
        let arguments = [&reject[..], &["--method", method, &path]].concat();
        world.load(&arguments).unwrap_or_else(|e| panic!("{method}: {e}"));
        assert_eq!(world.sql("SELECT string_agg(a::text, ' ') FROM t"), "2", "{method}");
        let side = side(&rejects);
        let codes: Vec<&str> = side.iter().map(|s| s["sqlstate"].as_str().unwrap()).collect();
        assert_eq!(codes, ["ZZ123", "45000", "P0002"], "{method}");
    }
    // Codes that concern the server or the transaction still fail the load.
    remove(&rejects);
    let path = world.file("cancelled.csv", b"1,57014\n");
    world.load(&[&reject[..], &[path.as_str()]].concat()).unwrap_err();
}

/// An existing reject file is an error and is kept. If nothing is rejected, no reject file is left.
#[test]
fn reject_files_are_never_overwritten_and_empty_ones_not_left() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    world.sql("CREATE TABLE t (a int)");
    let path = world.file("t.csv", b"1\n2\n");
    let rejects = world.file("rejects.csv", b"kept");
    let arguments = [&path, "--table", "t", "--on-error", "reject", "--reject-file", &rejects];
    let said = world.load(&arguments).unwrap_err();
    assert!(said.contains("rejects.csv") && said.contains("hint:"), "{said}");
    assert_eq!(fs::read(&rejects).unwrap(), b"kept");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");

    fs::remove_file(&rejects).unwrap();
    let summary = world.load(&arguments).unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&Value::from(2), &Value::from(0)));
    assert!(!fs::exists(&rejects).unwrap());

    let output = world.run(&["load", &path, "--table", "t", "--reject-limit", "5"]);
    assert_eq!(output.status.code(), Some(2));
}

/// A record of 70 MB, too long to be held in memory, is rejected unchanged.
#[test]
fn a_record_too_long_to_be_held_is_rejected_as_it_was() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    world.sql("CREATE TABLE t (a varchar(1000000), b int)");
    let long = vec![b'x'; 70 << 20];
    let bytes = [b"a,1\n", &long[..], b",2\nb,3\n"].concat();
    let path = world.file("long.csv", &bytes);
    let rejects = world.path("rejects.csv");
    let summary = world
        .load(&[&path, "--table", "t", "--on-error", "reject", "--reject-file", &rejects])
        .unwrap();
    assert_eq!((&summary["loaded"], &summary["rejected"]), (&Value::from(2), &Value::from(1)));
    let kept = fs::read(&rejects).unwrap();
    assert_eq!(kept.len(), long.len() + 3);
    assert!(kept == [&long[..], b",2\n"].concat());
    let said = side(&rejects).remove(0);
    assert_eq!((&said["record"], &said["sqlstate"]), (&Value::from(2), &Value::from("22001")));
    assert_eq!((&said["offset"], &said["length"]), (&Value::from(4), &Value::from(kept.len())));
}

/// `check` reports every bad record, except those that only other rows make bad. It fires no
/// trigger, advances no sequence and leaves nothing.
#[test]
fn check_tells_every_bad_record_and_changes_nothing() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    world.sql(TABLE);
    world.sql(
        "ALTER TABLE t ADD g serial NOT NULL;
         CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'fired'; END$$;
         CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()",
    );
    let path = world.file("bad.csv", &file());
    let run = |more: &[&str]| {
        world.run(&[&["check", &path, "--table", "t", "--header", "--json"], more].concat())
    };
    let output = run(&[]);
    let told = String::from_utf8(output.stdout).unwrap();
    let told: Vec<Value> = told.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // Only a load can check constraints that depend on other rows.
    let elsewhere = ["23505", "23503", "23P01"];
    let expected: Vec<_> = BAD.iter().filter(|b| !elsewhere.contains(&b.2)).collect();
    assert_eq!(told.len(), expected.len());
    for (said, (_, line, sqlstate, column)) in told.iter().zip(expected) {
        assert_eq!(
            (&said["line"], &said["sqlstate"]),
            (&Value::from(*line), &Value::from(*sqlstate))
        );
        assert_eq!(said["column"].as_str(), *column);
        // Messages name the user's table.
        assert!(!said["message"].as_str().unwrap().contains("pgsluice"), "{said}");
    }
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(run(&["--on-error", "reject"]).status.code(), Some(3));
    assert_eq!(run(&["--on-error", "reject", "--reject-limit", "1"]).status.code(), Some(4));
    let left = "SELECT (SELECT count(*) FROM t) || ' ' || (SELECT is_called FROM t_g_seq) || ' ' ||
        (SELECT count(*) FROM pg_class WHERE relname = 'pgsluice_check')";
    assert_eq!(world.sql(left), "0 false 0");
}

/// Many keys occur twice, and two lanes would each have one. With rejects, one connection loads the
/// file, and exactly the second of each pair is rejected.
#[test]
fn keys_that_cross_lanes_are_rejected_by_record() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    let row = |i: usize| format!("{i},some words to fill the row with\n").into_bytes();
    let once: Vec<u8> = (0..8_000).flat_map(row).collect();
    let path = world.file("twice.csv", &[&once[..], &once[..]].concat());
    let rejects = world.path("rejects.csv");
    let arguments = ["--table", "t", "--method", "lanes", "--lanes", "2", "--reject-limit", "none"];
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    let all = [&[path.as_str()], &arguments[..], &reject[..]].concat();
    for table in [
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        // Only the partition has a unique index.
        "CREATE TABLE t (a int, b text) PARTITION BY RANGE (a);
         CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100000);
         CREATE UNIQUE INDEX ON t1 (a)",
    ] {
        remove(&rejects);
        world.sql(&format!("DROP TABLE IF EXISTS t; {table}"));
        let summary = world.load(&all).unwrap();
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&8_000.into(), &8_000.into()));
        assert_eq!(world.sql("SELECT count(DISTINCT a) || ' ' || count(*) FROM t"), "8000 8000");
        assert!(fs::read(&rejects).unwrap() == once);
        assert!(side(&rejects).iter().all(|r| r["sqlstate"] == "23505"));
        assert_eq!(summary["lanes"], 1);
        assert!(summary["notes"].to_string().contains("one connection instead of several"));
    }
}

/// If no row depends on another one, several lanes reject at the same time.
#[test]
fn lanes_reject_side_by_side() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    let row = |i: usize| format!("{i},some words to fill the row with\n").into_bytes();
    let bytes: Vec<u8> = (0..60_000).flat_map(row).collect();
    let path = world.file("rows.csv", &bytes);
    let rejects = world.path("rejects.csv");
    world.sql("CREATE TABLE t (a int CHECK (a % 1000 <> 7), b text)");
    let arguments = ["--table", "t", "--method", "lanes", "--lanes", "2", "--reject-limit", "none"];
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    let summary = world.load(&[&[path.as_str()], &arguments[..], &reject[..]].concat()).unwrap();
    assert_eq!((&summary["lanes"], &summary["rejected"]), (&2.into(), &60.into()));
    assert_eq!(world.sql("SELECT count(*) || ' ' || sum(a) FROM t"), "59940 1798199580");
    let mut records: Vec<u64> =
        side(&rejects).iter().map(|r| r["record"].as_u64().unwrap()).collect();
    records.sort_unstable();
    assert_eq!(records, (0..60).map(|i| i * 1000 + 8).collect::<Vec<_>>());
}

/// If the table refers to itself, a row may refer to one that another lane would have. One
/// connection loads such a table.
#[test]
fn a_table_that_refers_to_itself_is_loaded_by_one_connection() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    world.sql("CREATE TABLE t (a int PRIMARY KEY, p int REFERENCES t)");
    let row = |i: usize| format!("{i},{}\n", if i < 10 { 199_999 } else { i - 10 }).into_bytes();
    let path = world.file("tree.csv", &(0..200_000).flat_map(row).collect::<Vec<u8>>());
    let arguments = [&path, "--table", "t", "--method", "lanes", "--lanes", "2"];
    let summary = world.load(&arguments).unwrap();
    assert_eq!((&summary["loaded"], &summary["lanes"]), (&200_000.into(), &1.into()));

    // With rejects each chunk is checked separately: a row that refers to one further down may be
    // rejected, as the plan says, and is accepted when it is loaded again.
    world.sql("TRUNCATE t");
    let path = world.file("early.csv", b"1,\n2,3\n3,1\n4,9\n");
    let (first, again) = (world.path("first"), world.path("again"));
    let reject = ["--table", "t", "--on-error", "reject", "--reject-file"];
    let plan = world.run(&[&["plan", &path], &reject[..], &[&first]].concat());
    let said = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(said.contains("\"public\".\"t\" refers to itself: "), "{said}");
    world.load(&[&[path.as_str()], &reject[..], &[&first]].concat()).unwrap();
    world.load(&[&[first.as_str()], &reject[..], &[&again]].concat()).unwrap();
    assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "1 2 3");
    assert_eq!(std::fs::read(&again).unwrap(), b"4,9\n");
}

/// With several files, some by a pattern and one compressed, each reject names its file and its
/// position there. If a file is missing or damaged, or its header differs, nothing is loaded.
#[test]
fn rejects_of_several_files() {
    let installation = each_major().remove(0);
    let mut world = World::new(&installation);
    world.sql("CREATE TABLE t (a int, b text)");
    let first = world.file("part-1.csv", b"a,b\n1,x\nbad,1\n2,y");
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut zipped, b"a,b\r\nbad,2\r\n3,\"z\r\nz\"\r\nbad,3").unwrap();
    let zipped = zipped.finish().unwrap();
    let second = world.file("part-2.csv.gz", &zipped);
    let last = world.file("last.csv", b"a,b\n4,x\n5,y,bad\n");
    let (pattern, rejects) = (world.path("part-*"), world.path("rejects.csv"));
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    for method in ["auto", "copy-csv", "copy-binary", "insert-batch", "lanes", "staged"] {
        remove(&rejects);
        world.sql("TRUNCATE t");
        let arguments = [&pattern, &last, "--table", "t", "--header", "--method", method];
        let summary = world.load(&[&arguments[..], &reject[..]].concat()).unwrap();
        assert_eq!((&summary["read"], &summary["rejected"]), (&8.into(), &4.into()), "{method}");
        assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "1 2 3 4");
        let mut told: Vec<_> = side(&rejects)
            .iter()
            .map(|r| {
                let n = |key: &str| r[key].as_u64().unwrap();
                let place = (n("record"), n("line"), n("offset"), n("length"));
                (r["file"].as_str().unwrap().to_owned(), place)
            })
            .collect();
        told.sort();
        let mut expected = vec![
            (first.clone(), (2, 3, 8, 6)),
            (second.clone(), (1, 2, 5, 7)),
            (second.clone(), (3, 5, 22, 5)),
            (last.clone(), (2, 3, 8, 8)),
        ];
        expected.sort();
        assert_eq!(told, expected, "{method}");
        // The reject file can be loaded as it is, though the files have different line ends.
        let kept = fs::read(&rejects).unwrap();
        if method != "lanes" {
            assert_eq!(kept, b"a,b\nbad,1\nbad,2\nbad,3\n5,y,bad\n", "{method}");
        }
        let again = world.path("again.csv");
        remove(&again);
        let arguments = [&rejects, "--table", "t", "--header", "--on-error", "reject"];
        let summary = world.load(&[&arguments[..], &["--reject-file", &again]].concat()).unwrap();
        assert_eq!(summary["rejected"], 4, "{method}");
        let ragged = side(&again).iter().filter(|r| r["sqlstate"] == "22P04").count();
        assert_eq!(ragged, 1, "{method}: lines that end alike");
        assert_eq!(fs::read(&again).unwrap(), kept);
    }
    world.sql("TRUNCATE t");
    for (name, bytes, message) in [
        ("part-3.csv.gz", &zipped[..zipped.len() - 12], "is it whole?"),
        ("part-3.csv.gz", &b"b,a\n1,2\n"[..], "the header differs"),
    ] {
        remove(&rejects);
        world.file(name, bytes);
        let arguments = [&pattern, "--table", "t", "--header", "--method", "auto"];
        let said = world.load(&[&arguments[..], &reject[..]].concat()).unwrap_err();
        assert!(said.contains(name) && said.contains(message), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    }
    remove(&rejects);
    let arguments = [&first, "no-such.csv", "--table", "t"];
    let said = world.load(&[&arguments[..], &reject[..]].concat()).unwrap_err();
    assert!(said.contains("no-such.csv") && !fs::exists(&rejects).unwrap(), "{said}");
}
