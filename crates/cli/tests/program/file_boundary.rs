//! How files begin and end, and what happens where one follows another in one COPY or one reject
//! file.

use crate::common::{each_major, on_first_and_last_major, World};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

const FIRES: &str = "
    CREATE TABLE fired (n serial);
    CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO fired DEFAULT VALUES; RETURN NULL; END$$;
    CREATE TABLE t (a text, d date);
    CREATE TRIGGER fires AFTER INSERT ON t EXECUTE FUNCTION fires();";

/// Loads `files`; returns the rows of `t` and how often the trigger has fired. A load that fails
/// must leave nothing; its message is returned.
fn joined(world: &mut World, files: &[&[u8]], more: &[&str]) -> Result<String, String> {
    world.sql("TRUNCATE t, fired");
    let name = |(i, bytes): (usize, &&[u8])| world.file(&format!("joint-{i}"), bytes);
    let paths: Vec<String> = files.iter().enumerate().map(name).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let loaded = world.load(&[&paths[..], &["--table", "t"], more].concat());
    let rows = "SELECT coalesce(string_agg(a, ' ' ORDER BY a COLLATE \"C\"), '') || ': ' ||
        (SELECT count(*) FROM fired) FROM t";
    let rows = world.sql(rows);
    match loaded {
        Ok(_) => Ok(rows),
        Err(said) => {
            assert_eq!(rows, ": 0", "{said}");
            Err(said)
        }
    }
}

/// If no statement trigger counts the COPYs, the lines of several files are sent by one COPY,
/// provided that they end alike.
#[test]
fn lines_of_several_files_are_one_copy() {
    let mut world = World::new(&each_major().remove(0));
    world.sql("CREATE TABLE t (a text, b int, c text)");
    let mut load = |files: &[&str], more: &[&str]| {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let name = |(i, text): (usize, &&str)| world.file(&format!("{i}.csv"), text.as_bytes());
        let paths: Vec<String> = files.iter().enumerate().map(name).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let all = [&paths[..], &["--table", "t", "--method", "copy-text"], more].concat();
        let summary = world.load(&all)?;
        let rows = "SELECT string_agg(a || b || coalesce(c, '-'), ' ' ORDER BY b) FROM t";
        Ok::<_, String>(format!("{}: {}", world.sql(rows), summary["statements"]))
    };
    let rows = |statements: usize| Ok(format!("p1x q2y r3- s4z: {statements}"));
    for more in [&[][..], &["--once"]] {
        assert_eq!(load(&["p,1,x\nq,2,y\n", "r,3,\n", "s,4,z\n"], more), rows(1));
        // A last line without a line end ends the COPY, and so does a different line end.
        assert_eq!(load(&["p,1,x\nq,2,y", "r,3,\n", "s,4,z"], more), rows(3), "{more:?}");
        assert_eq!(load(&["p,1,x\r\nq,2,y\r\n", "r,3,\n", "s,4,z\n"], more), rows(2));
        // Lines with quotes are rewritten, here between lines that are not.
        assert_eq!(load(&["p,1,x\n", "\"q\",2,y\nr,3,\n", "s,4,z\n"], more), rows(3));
    }
    // An error of the server is reported by file and line.
    let said = load(&["p,1,x\nq,2,y\n", "r,3,\nr,bad,\n", "s,4,z\n"], &[]).unwrap_err();
    assert!(said.contains("1.csv, line 2, record 2"), "{said}");
}

/// A statement trigger fires once for each file. No record runs into the next file, and no file is
/// dropped after a `\.`. The test uses `--where`, which would hide such losses from the loader's
/// own count.
#[test]
fn each_file_is_one_copy() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(FIRES);
        let one = ["--columns", "a", "--where", "true"];
        let plain: [&[u8]; 4] = [b"1\n2", b"3", b"4\n", b"5\n6"];
        let lanes = [&one[..], &["--method", "lanes", "--lanes", "2"]].concat();
        let all = joined(&mut world, &plain, &lanes).unwrap();
        assert!(all.starts_with("1 2 3 4 5 6: "), "{all}");
        for method in ["auto", "copy-csv", "copy-text", "copy-binary", "staged"] {
            let by = [&one[..], &["--method", method]].concat();
            let mut files = |files: &[&[u8]], more: &[&str]| {
                joined(&mut world, files, &[&by[..], more].concat())
            };
            // `staged` moves all rows by one INSERT.
            let fired = |files: usize| if method == "staged" { 1 } else { files };
            let expected = |rows: &str, files: usize| Ok(format!("{rows}: {}", fired(files)));
            assert_eq!(files(&plain, &[]), expected("1 2 3 4 5 6", 4), "{method}");
            let returns: [&[u8]; 2] = [b"1\r\n2", b"3\r\n"];
            assert_eq!(files(&returns, &[]), expected("1 2 3", 2), "{method}");
            let ends: [&[u8]; 2] = [b"1\n", b"2\r\n"];
            assert_eq!(files(&ends, &[]), expected("1 2", 2), "{method}");
            let headed: [&[u8]; 2] = [b"a\n1", b"a\n2"];
            assert_eq!(files(&headed, &["--header=ignore"]), expected("1 2", 2), "{method}");
            // An open quote is reported for the file that has it.
            let open: [&[u8]; 2] = [b"1\n\"2", b"3\"\n"];
            let said = files(&open, &[]).unwrap_err();
            assert!(said.contains("joint-0, ") && said.contains("is not closed"), "{said}");
            let said = files(&open, &["--stray-quotes", "copy"]).unwrap_err();
            assert!(said.contains("joint-0, ") && said.contains("unterminated"), "{said}");
            let text = ["--format", "text"];
            let hidden: [&[u8]; 2] = [b"1\\\n", b"2\n"];
            assert_eq!(files(&hidden, &text), expected("1\n 2", 2), "{method}");
            let marked: [&[u8]; 2] = [b"1\n\\.\n", b"2\n"];
            assert_eq!(files(&marked, &text), expected("1 2", 2), "{method}");
        }
        let plan = world.run(&["plan", "/dev/null", "/dev/null", "--table", "t"]);
        let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
        assert!(plan.contains("the statement triggers fire once for each file"), "{plan}");
    });
}

/// A record that is too long to be held in memory and ends its file does not run into the next one,
/// with or without a line end.
#[test]
fn a_long_record_before_the_next_file() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(FIRES);
    world.sql(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN NEW.a := left(NEW.a, 1) || length(NEW.a); RETURN NEW; END$$;
         CREATE TRIGGER cut BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION cut()",
    );
    let long = vec![b'x'; 5 << 20];
    let all = format!("11 2{} 31: 2", long.len() + 1);
    let file = |before: &[u8], end: &[u8]| [before, &long[..], end].concat();
    let text = ["--format", "text"];
    type Case<'a> = (Vec<u8>, &'a [u8], &'a [&'a str], bool);
    let cases: [Case; 6] = [
        (file(b"1\n2", b"\n"), b"3\n", &[], true),
        (file(b"1\n2", b""), b"3\n", &[], true),
        (file(b"1\r\n\"2", b"\""), b"3\r\n", &[], true),
        (file(b"1\n2", b"\n"), b"3", &text, true),
        (file(b"1\n2", b""), b"3", &text, true),
        (file(b"1\n\"2", b"\n"), b"3\"\n", &[], false),
    ];
    for (first, last, more, whole) in cases {
        for method in ["auto", if more.is_empty() { "copy-csv" } else { "copy-text" }] {
            let by = [&["--columns", "a", "--method", method][..], more].concat();
            let found = joined(&mut world, &[&first[..], last], &by);
            let end = first[first.len() - 3..].escape_ascii();
            match whole {
                true => assert_eq!(found.as_deref(), Ok(all.as_str()), "{method} {end}"),
                false => assert!(found.is_err(), "{method} {end}: {found:?}"),
            }
        }
    }
}

/// If a file would need a second COPY, the load fails rather than fire a statement trigger twice.
#[test]
fn a_trigger_never_fires_twice_for_a_file() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(FIRES);
    // A date that only the server can read, far after other rows. In a separate file it causes no
    // error.
    let row = |i: usize| format!("{i},2024-01-01\n").into_bytes();
    let many: Vec<u8> = (0..60_000).flat_map(row).collect();
    let odd = [&many[..], b"x,Jan 2 2024\n"].concat();
    let said = joined(&mut world, &[&odd], &["--method", "copy-binary"]).unwrap_err();
    assert!(said.contains("would fire more than once") && said.contains("hint:"), "{said}");
    assert!(joined(&mut world, &[&odd], &[]).unwrap().ends_with(" x: 1"));
    let dates: [&[u8]; 2] = [b"1,2024-01-01\n", b"2,Jan 2 2024\n"];
    let all = joined(&mut world, &dates, &["--method", "copy-binary"]);
    assert_eq!(all.as_deref(), Ok("1 2: 2"));
    // With `--triggers off`, no trigger counts the COPYs.
    let off = ["--triggers", "off", "--method", "copy-binary"];
    assert!(joined(&mut world, &[&odd], &off).unwrap().ends_with(" x: 0"));
    // A bad value after others is still reported as such.
    let dates: [&[u8]; 2] = [b"1,2024-01-01\n", b"2,never\n"];
    let said = joined(&mut world, &dates, &["--method", "copy-binary"]).unwrap_err();
    assert!(said.contains("joint-1, line 1, record 1") && said.contains("\"never\""), "{said}");
}

/// A byte order mark is skipped in UTF-8 only. In another encoding, the same bytes are characters.
#[test]
fn a_byte_order_mark_is_one_of_utf8() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE s (a text, b text); CREATE TABLE t (LIKE s)");
    let marks: [(&[u8], &str); 3] = [
        (b"\xef\xbb\xbf1,x\n", "LATIN1"),
        (b"\xff\xfe1,x\n", "WIN1252"),
        (b"\xef\xbb\xbf1,x\n", "UTF8"),
    ];
    for (bytes, encoding) in marks {
        world.sql("TRUNCATE s, t");
        let data = if encoding == "UTF8" { &bytes[3..] } else { bytes };
        let copy = format!("COPY s FROM STDIN (FORMAT csv, ENCODING '{encoding}')");
        world.stock(&copy, data).unwrap();
        let file = world.file("marked.csv", bytes);
        let loaded = world.load(&[&file, &file, "--table", "t", "--encoding", encoding]);
        assert_eq!(loaded.unwrap()["loaded"], 2);
        assert_eq!(world.difference("s", "(SELECT DISTINCT * FROM t)"), "", "{encoding}");
    }
}

/// In the text format, a file may end in a backslash and a newline, which is part of the value
/// then, or in a backslash alone, which COPY drops. The reject file keeps these meanings.
#[test]
fn rejects_that_end_in_a_backslash() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let last = world.file("last.txt", b"q\tx\n4\tz\n");
    let (rejects, again) = (world.path("rejects.txt"), world.path("again.txt"));
    let long = vec![b'x'; 6 << 20];
    let cases: [(Vec<u8>, Vec<u8>); 5] = [
        (b"1\tx\nq\ty\\\n".to_vec(), b"q\ty\\\n\n".to_vec()),
        (b"1\tx\nq\ty\\".to_vec(), b"q\ty\n".to_vec()),
        (b"1\tx\nq\ty\\\\\n".to_vec(), b"q\ty\\\\\n".to_vec()),
        (b"1\tx\nq\ty\\\\".to_vec(), b"q\ty\\\\\n".to_vec()),
        ([b"1\tx\nq\t", &long[..], b"\\\n"].concat(), [b"q\t", &long[..], b"\\\n\n"].concat()),
    ];
    let load = |world: &World, files: &[&str], rejects: &str| {
        let reject = ["--table", "t", "--on-error", "reject", "--reject-file", rejects];
        world.load(&[files, &["--format", "text"], &reject[..]].concat()).unwrap()
    };
    for (bytes, kept) in cases {
        let first = world.file("first.txt", &bytes);
        let summary = load(&world, &[&first, &last], &rejects);
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &2.into()));
        let kept = [&kept[..], b"q\tx\n"].concat();
        assert!(fs::read(&rejects).unwrap() == kept, "{:.40}", bytes.escape_ascii());
        // The same two records are refused again.
        let summary = load(&world, &[&rejects], &again);
        assert_eq!(summary["rejected"], 2, "{:.40}", bytes.escape_ascii());
        assert!(fs::read(&again).unwrap() == kept, "{:.40}", bytes.escape_ascii());
        for path in [&rejects, &again] {
            fs::remove_file(path).unwrap();
            fs::remove_file(format!("{path}.jsonl")).unwrap();
        }
    }
    // A good record that is checked together with a bad one gets the value that COPY would give it.
    for (end, value) in [("\\", "y"), ("\\\n", "y\n"), ("\\\\", "y\\")] {
        world.sql("TRUNCATE t");
        let file = world.file("first.txt", format!("q\tx\n1\ty{end}").as_bytes());
        load(&world, &[&file], &rejects);
        assert_eq!(world.sql("SELECT b FROM t"), value, "{}", end.escape_debug());
        fs::remove_file(&rejects).unwrap();
        fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    }
}

/// Two files are cut off within quotes, as `--stray-quotes copy` allows. In one reject file the
/// second quote would close the first, so a second reject file takes the rest.
#[test]
fn rejects_that_leave_a_quote_open() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let files: [&[u8]; 3] =
        [b"a,b\n1,x\nbad,1\n6,\"q", b"a,b\nbad,2\n8,\"r\nbad,3\n", b"a,b\nbad,4\n"];
    let name = |(i, bytes): (usize, &&[u8])| world.file(&format!("cut-{i}.csv"), bytes);
    let paths: Vec<String> = files.iter().enumerate().map(name).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let rejects = world.path("rejects.csv");
    let load = |world: &World, files: &[&str], rejects: &str, method: &str| {
        let reject = ["--table", "t", "--header", "--on-error", "reject", "--reject-file", rejects];
        let by = ["--method", method, "--stray-quotes", "copy"];
        world.load(&[files, &reject[..], &by].concat()).unwrap()
    };
    for method in ["auto", "copy-csv", "insert-batch", "staged", "lanes"] {
        world.sql("TRUNCATE t");
        let summary = load(&world, &paths, &rejects, method);
        assert_eq!((&summary["read"], &summary["rejected"]), (&7.into(), &6.into()), "{method}");
        let second = format!("{rejects}.2");
        assert!(summary["notes"].to_string().contains(&second), "{method}: {summary}");
        if method != "lanes" {
            let kept = b"a,b\nbad,1\n6,\"q\nbad,2\n";
            assert_eq!(fs::read(&rejects).unwrap(), kept, "{method}");
            assert_eq!(fs::read(&second).unwrap(), b"a,b\n8,\"r\nbad,3\nbad,4\n", "{method}");
        }
        // All six records are refused again.
        let again = world.path("again.csv");
        let summary = load(&world, &[&rejects, &second], &again, method);
        assert_eq!((&summary["read"], &summary["rejected"]), (&6.into(), &6.into()), "{method}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "1", "{method}");
        for path in [&rejects, &second, &again, &format!("{again}.2")] {
            fs::remove_file(path).unwrap();
            fs::remove_file(format!("{path}.jsonl")).unwrap();
        }
    }
    // An existing file is not overwritten, and nothing is loaded.
    world.sql("TRUNCATE t");
    let second = world.file("rejects.csv.2", b"kept");
    let reject = ["--table", "t", "--header", "--on-error", "reject", "--reject-file", &rejects];
    let copy = ["--stray-quotes", "copy"];
    let said = world.load(&[&paths[..], &reject, &copy].concat()).unwrap_err();
    assert!(said.contains("rejects.csv.2: File exists"), "{said}");
    assert_eq!(fs::read(second).unwrap(), b"kept");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// A line end of another kind than the file's makes one record bad; the others are loaded. The
/// record goes on to the next line end of the right kind, but in a file with CR LF a newline ends
/// it.
#[test]
fn a_line_end_of_another_kind_is_one_reject() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let rejects = world.path("rejects.csv");
    let cases: [[&str; 3]; 4] = [
        ["a,b\r\n1,x\r\n", "2,y\n", "4,z\r\n"],
        ["a,b\r\n1,x\r\n", "2,y\r3,z\r\n", "4,w\r\n"],
        ["a,b\n1,x\n", "2,y\r3,z\n", "4,w\n"],
        ["a,b\r1,x\r", "2,y\n3,z\r", "4,w\r"],
    ];
    for [before, bad, behind] in cases {
        let file = world.file("ends.csv", [before, bad, behind].concat().as_bytes());
        let header = &before[..before.find('1').unwrap()];
        for method in ["auto", "copy-csv", "insert-batch", "staged"] {
            let load = [&file, "--table", "t", "--header", "--truncate", "--method", method];
            let reject = ["--on-error", "reject", "--reject-file", &rejects];
            let summary = world.load(&[&load[..], &reject[..]].concat());
            let summary =
                summary.unwrap_or_else(|e| panic!("{method} {}: {e}", bad.escape_debug()));
            assert_eq!((&summary["read"], &summary["loaded"]), (&3.into(), &2.into()), "{method}");
            assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "1 4");
            assert_eq!(fs::read_to_string(&rejects).unwrap(), [header, bad].concat(), "{method}");
            fs::remove_file(&rejects).unwrap();
            fs::remove_file(format!("{rejects}.jsonl")).unwrap();
        }
    }
}

/// A notice that arrives in many parts does not end the COPY if a trigger needs the whole file in one,
/// and never ends the load.
#[test]
fn a_notice_in_parts_does_not_end_the_copy() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(FIRES);
    // It is longer than all buffers on its way, so the first read gets only its beginning.
    world.sql(
        "CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN RAISE NOTICE '%', repeat('x', 3000000); RETURN NEW; END$$;
         CREATE TRIGGER says BEFORE INSERT ON t FOR EACH ROW
           WHEN (NEW.a IN ('10', '40000')) EXECUTE FUNCTION say()",
    );
    let row = |i: usize| format!("{i},2024-01-01\n").into_bytes();
    let many: Vec<u8> = (0..60_000).flat_map(row).collect();
    for method in ["auto", "copy-csv"] {
        let all = joined(&mut world, &[&many], &["--method", method]).unwrap();
        assert!(all.ends_with(": 1"), "{method}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "60000", "{method}");
    }
    world.sql(
        "DROP TRIGGER fires ON t; CREATE TRIGGER fires AFTER INSERT ON t FOR EACH ROW
           WHEN (NEW.a = '10') EXECUTE FUNCTION fires()",
    );
    let file = world.file("many.csv", &many);
    for method in ["auto", "copy-csv"] {
        let summary = world.load(&[&file, "--table", "t", "--method", method]).unwrap();
        assert_eq!(summary["statements"], 1, "{method}");
    }
    world.sql("DROP TRIGGER fires ON t");
    let summary = world.load(&[&file, "--table", "t"]).unwrap();
    assert_eq!(summary["loaded"], 60_000);
}

/// A table with a statement trigger gets one COPY. An error still stops the load at once, and no
/// number of notices counts as an error.
#[test]
fn one_copy_for_statement_triggers_stops_at_the_first_error() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(
        "CREATE TABLE t (a int, b text); CREATE TABLE fired (n int);
         CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN RAISE NOTICE 'row % %', NEW.a, repeat('x', 300); RETURN NEW; END$$;
         CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN INSERT INTO fired VALUES (1); RETURN NULL; END$$;
         CREATE TRIGGER says BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION say();
         CREATE TRIGGER counts AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION counted()",
    );
    let row = |i| format!("{i},some words to fill the row with and more of them\n").into_bytes();
    let file = world.file("rows.csv", &(0..60_000).flat_map(row).collect::<Vec<u8>>());
    let summary = world.load(&[&file, "--table", "t"]).unwrap();
    assert_eq!((&summary["loaded"], &summary["statements"]), (&60_000.into(), &1.into()));
    assert_eq!(world.sql("SELECT count(*) FROM fired"), "1");

    world.sql("DROP TRIGGER says ON t; TRUNCATE t, fired");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "-", "--table", "t", "--to", &world.server.url("postgres")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.as_mut().unwrap();
    input.write_all(b"1,x\nbad,y\n").unwrap();
    let block: Vec<u8> = (0..10_000).flat_map(row).collect();
    let written = (0..4_000).take_while(|_| input.write_all(&block).is_ok()).count();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("record 2") && said.contains("\"bad\""), "{said}");
    assert!(
        written < 200,
        "{} MB were read before the error was reported",
        written * block.len() / 1_000_000
    );
    assert_eq!(world.sql("SELECT count(*) FROM fired"), "0");
}
