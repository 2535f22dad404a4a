//! Spellings of NULL for single columns, values that are not in the file, and the recipes of the
//! guide.

use crate::common::{each_major, on_first_and_last_major, World};
use crate::fields::{remove, METHODS};
use std::fs;

/// `--null` gives columns their own spellings of NULL, by every method. The reject file keeps the
/// field unchanged.
#[test]
fn null_has_spellings_by_column() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let mut lines = String::new();
        for i in 0..30_000 {
            let spelled = ["-", "n/a", "", "\"-\"", "7"][i % 5];
            lines.push_str(&format!("{i},{spelled},{},\"x\n{i}\"\n", ["-", "0", "NULL"][i % 3]));
        }
        let (large, few) = (world.file("large.csv", lines.as_bytes()), world.path("few.csv"));
        let head: Vec<&str> = lines.split_inclusive('\n').take(2 * 40).collect();
        fs::write(&few, head.concat()).unwrap();
        world.sql("CREATE TABLE raw (id int, a text, b text, c text)");
        // Stock COPY takes quotes into account only for its own marker.
        world.stock("COPY raw FROM STDIN (FORMAT csv, NULL '-')", lines.as_bytes()).unwrap();
        for method in METHODS {
            let (file, rows) = if method == "insert" { (&few, 40) } else { (&large, 30_000) };
            world.sql("DROP TABLE IF EXISTS s, t");
            world.sql(&format!(
                "CREATE TABLE s AS SELECT id, CASE WHEN a IN ('n/a', '') THEN NULL ELSE a END AS a,
                   nullif(b, 'NULL')::int AS b, c FROM raw WHERE id < {rows};
                 CREATE TABLE t (LIKE s)"
            ));
            let arguments = [
                file.as_str(),
                "--table",
                "t",
                "--method",
                method,
                "--null",
                "-",
                "--null",
                "a=n/a",
                "--null",
                "a=",
                "--null",
                "b=NULL",
                "--null",
                "*=never",
            ];
            let summary = world.load(&arguments).unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!(summary["loaded"], rows, "{method}");
            assert_eq!(world.difference("s", "t"), "", "{method}");
        }
        // The reject file keeps the field unchanged.
        world.sql("TRUNCATE t; ALTER TABLE t ALTER b SET NOT NULL");
        let rejects = world.path("rejects");
        let summary = world.load(&[
            &few,
            "--table",
            "t",
            "--null",
            "b=-",
            "--null",
            "b=NULL",
            "--on-error",
            "reject",
            "--reject-file",
            &rejects,
            "--reject-limit",
            "none",
        ]);
        assert_eq!(summary.unwrap()["rejected"], 27);
        assert!(fs::read_to_string(&rejects)
            .unwrap()
            .starts_with("0,-,-,\"x\n0\"\n2,,NULL,\"x\n2\"\n"));
    });
}

/// `--null` is refused for a column that is not in the file, as a second general marker, and
/// together with options that contradict it. `--create` infers types without these spellings.
#[test]
fn spellings_of_null_are_held_to_rules() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, \"b=c\" text)");
    let file = world.file("h.csv", b"-,n/a=\n");
    let run = |arguments: &[&str]| {
        let output = world.run(&[&["load", &file, "--table", "t", "--quiet"], arguments].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["--null", "x=-"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--null names column \"x\", which is not in the file"), "{said}");
    assert!(said.contains("'*=x=-'"), "{said}");
    let (code, said) = run(&["--null", "-", "--null", "NA"]);
    assert_eq!((code, said.contains("two markers")), (2, true), "{said}");
    let (code, said) = run(&["--null", "a=-", "--force-not-null", "a"]);
    assert_eq!((code, said.contains("--force-not-null")), (2, true), "{said}");
    for null in [&["--null", "a=é"][..], &["--null", "é", "--null", "a=-"]] {
        let (code, said) = run(&[null, &["--encoding", "LATIN1"]].concat());
        assert_eq!((code, said.contains("beyond ASCII")), (2, true), "{said}");
    }
    let (code, said) = run(&["--null", "a=-", "--null", "\"b=c\"=n/a="]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t WHERE a IS NULL AND \"b=c\" IS NULL"), "1");
    let output = world.run(&["convert", &file, "--table", "t", "--null", "a=-"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // A text that begins with `=` is a marker for all columns.
    let file = world.file("e.csv", b"=x,=\n1,=x\n");
    let load = [file.as_str(), "--table", "t", "--null", "=x"];
    assert_eq!(world.load(&load).unwrap()["loaded"], 2);
    assert_eq!(world.sql("SELECT count(*) FROM t WHERE a IS NULL AND \"b=c\" = '='"), "1");
    // `--create` infers types without these spellings.
    let file = world.file("c.csv", b"id,n\n1,-\n2,3\n");
    world.load(&[&file, "--table", "u", "--create", "--header", "--null", "n=-"]).unwrap();
    assert_eq!(world.sql("SELECT min(pg_typeof(n)::text) || ' ' || sum(n) FROM u"), "integer 3");
}

/// In a column of `--force-not-null`, a text of `--null '*=TEXT'` is a value, by every method and
/// for the types of `--create`.
#[test]
fn a_null_for_all_columns_leaves_values_where_null_is_forbidden() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let file = world.file("na.csv", b"1,NA,NA\n2,,\n3,\"NA\",x\nNA,y,NA\n");
        world.sql("CREATE TABLE t (a int, b text, c text)");
        let null = ["--null", "*=NA", "--force-not-null"];
        for method in METHODS {
            world.sql("TRUNCATE t");
            let load = [file.as_str(), "--table", "t", "--method", method];
            world.load(&[&load[..], &null, &["b"]].concat()).unwrap();
            let rows =
                "SELECT string_agg(concat_ws('|', coalesce(a::text, '-'), coalesce(b, '-'), \
                coalesce(c, '-')), ' ' ORDER BY a) FROM t";
            assert_eq!(world.sql(rows), "1|NA|- 2||- 3|NA|x -|y|-", "{method}");
        }
        let file = world.file("new.csv", b"id,n,m\n1,NA,NA\n2,3,4\n");
        let create = [file.as_str(), "--table", "u", "--create", "--header"];
        world.load(&[&create[..], &null, &["n"]].concat()).unwrap();
        let types = "SELECT min(pg_typeof(n)::text) || ' ' || min(pg_typeof(m)::text) FROM u";
        assert_eq!(world.sql(types), "text integer");
        assert_eq!(world.sql("SELECT string_agg(n, ' ' ORDER BY id) || sum(m) FROM u"), "NA 34");
    });
}

/// `--set` fills columns with a constant, the name of the file or the line number, by every method
/// and in both formats.
#[test]
fn values_that_are_not_in_the_file() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        let mut csv = String::from("junk,id\n");
        let mut text = String::new();
        for i in 0..30_000 {
            csv.push_str(&format!("\"{}\",{i}\n", ["a", "a\nb", "a\n\nb"][i % 3]));
            text.push_str(&format!("{}\t{i}\n", ["a", "a\\\nb", "\\N"][i % 3]));
        }
        let (first, second) = (world.file("a'b.csv", csv.as_bytes()), world.path("two.csv"));
        fs::write(&second, "junk,id\nx,-1\n").unwrap();
        let text = world.file("text", text.as_bytes());
        let table = "CREATE TABLE t (id int, file text, line bigint, made json, note text)";
        for method in METHODS.iter().filter(|m| **m != "insert") {
            for form in ["csv", "text"] {
                world.sql(&format!("DROP TABLE IF EXISTS t; {table}"));
                let mut arguments = vec![
                    "--table",
                    "t",
                    "--format",
                    form,
                    "--method",
                    method,
                    "--columns",
                    "-,id",
                    "--set",
                    "file={file}",
                    "--set",
                    "line={line}",
                    "--set",
                    "made={\"a\": \"\\t\"}",
                    "--set",
                    "note=a,\"b\"\t{x}",
                ];
                let (files, rows) = match form {
                    "csv" => (vec![first.as_str(), second.as_str(), "--header=ignore"], 30_001),
                    _ => (vec![text.as_str()], 30_000),
                };
                arguments.extend(files);
                let summary = world.load(&arguments).unwrap_or_else(|e| panic!("{method}: {e}"));
                assert_eq!(summary["loaded"], rows, "{method}, {form}");
                let line = match form {
                    "csv" => {
                        "2 + (id / 3) * 6 + CASE id % 3 WHEN 0 THEN 0 WHEN 1 THEN 1 ELSE 3 END"
                    }
                    // As COPY counts lines: an escaped line end is none.
                    _ => "1 + id",
                };
                let file = if form == "csv" { &first } else { &text };
                let wrong = world.sql(&format!(
                    "SELECT count(*) FROM t WHERE id >= 0 AND (line, file, made->>'a', note) IS DISTINCT FROM
                       ({line}, '{}', E'\\t', E'a,\"b\"\\t{{x}}')", file.replace('\'', "''")
                ));
                assert_eq!(wrong, "0", "{method}, {form}");
                if form == "csv" {
                    let last = world.sql("SELECT line || file FROM t WHERE id = -1");
                    assert_eq!(last, format!("2{second}"), "{method}");
                }
            }
        }
    });
}

/// `{line}` is the line number in the file, even if lines before it are skipped or rejected.
#[test]
fn lines_are_those_of_the_file() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, line int)");
    let lines: String = (1..=120_000)
        .map(|i| format!("{}\n", if i % 1000 == 7 { "x".into() } else { i.to_string() }))
        .collect();
    let file = world.file("lines.csv", format!("id\n{lines}").as_bytes());
    let rejects = world.path("rejects");
    for method in ["auto", "lanes", "staged", "insert-batch", "copy-text"] {
        remove(&rejects);
        world.sql("TRUNCATE t");
        let summary = world.load(&[
            &file,
            "--table",
            "t",
            "--header",
            "--set",
            "line={line}",
            "--skip",
            "50",
            "--method",
            method,
            "--on-error",
            "reject",
            "--reject-file",
            &rejects,
        ]);
        assert_eq!(summary.unwrap()["loaded"], 119_831, "{method}");
        assert_eq!(world.sql("SELECT count(*) FROM t WHERE line <> id + 1"), "0", "{method}");
    }
    let file = world.file("first.csv", b"1,\"a\n\nb\"\n2,c\n");
    let set = ["--columns", "id,-", "--set", "line={line}"];
    world.load(&[&[file.as_str(), "--table", "t", "--truncate"], &set[..]].concat()).unwrap();
    assert_eq!(world.sql("SELECT string_agg(line::text, ' ' ORDER BY id) FROM t"), "1 4");
}

/// `--set` is refused for columns that are in the file, unknown, generated or set twice. It works
/// with `--create`, and for an empty text.
#[test]
fn values_that_cannot_be_set() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text NOT NULL, g int GENERATED ALWAYS AS (a) STORED)");
    let file = world.file("h.csv", b"a\n1\n");
    let refused = |more: &[&str], code, says: &str| {
        let output = world.run(&[&["load", &file, "--table", "t", "--header"], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        assert!(said.contains(says), "{more:?}: {said}");
    };
    refused(&[], 4, "column \"b\"");
    refused(&["--set", "a=1", "--set", "b=x"], 1, "--set names column \"a\", which is in the file");
    refused(&["--set", "b=x", "--set", "b=y"], 2, "twice");
    refused(&["--set", "b=x", "--set", "c=y"], 1, "has no column \"c\"");
    refused(&["--set", "b=x", "--set", "g=1"], 1, "is generated");
    refused(&["--set", "b"], 2, "--set takes COLUMN=TEXT");
    refused(&["--set", "b=é", "--encoding", "LATIN1"], 2, "beyond ASCII");
    assert_eq!(
        world.load(&[&file, "--table", "t", "--header", "--set", "b="]).unwrap()["loaded"],
        1
    );
    assert_eq!(world.sql("SELECT b = '' FROM t"), "t");
    let create =
        [&file, "--table", "u", "--create", "--header", "--set", "f={file}", "--set", "l={line}"];
    world.load(&create).unwrap();
    assert_eq!(world.sql("SELECT a || f || l + 1 FROM u"), format!("1{file}3"));
}

/// Each recipe of docs/guide/fields.md runs in a shell as it is, and gives the rows that it shows.
#[test]
fn the_recipes_of_the_guide() {
    let mut world = World::new(each_major().last().unwrap());
    let guide =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/fields.md"));
    let guide = guide.unwrap();
    let mut blocks = guide.split("```").skip(1).step_by(2).map(|b| b.split_once('\n').unwrap());
    let mut recipes = 0;
    while let Some((kind, csv)) = blocks.next() {
        assert_eq!(kind, "csv");
        let mut next = |wanted: &str| {
            let (kind, text) = blocks.next().unwrap();
            assert_eq!(kind, wanted, "{text}");
            text
        };
        let (sql, command, rows) = (next("sql"), next("sh"), next("text"));
        let name = |text: &str, word: usize| text.split_whitespace().nth(word).unwrap().to_owned();
        let table = name(sql, 2);
        world.sql(&format!("DROP TABLE IF EXISTS {table}; {sql}"));
        let path = world.file(&name(command, 2), csv.as_bytes());
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_pgsluice")).parent().unwrap();
        let path_variable = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let output = std::process::Command::new("sh")
            .args(["-c", command])
            .env("URL", world.server.url("postgres"))
            .env("PATH", path_variable)
            .current_dir(std::path::Path::new(&path).parent().unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}{output:?}");
        let found = world.conn.exec(&format!("SELECT * FROM {table} ORDER BY 1")).unwrap();
        let line = |row: &Vec<Option<String>>| {
            let values = row.iter().map(|v| v.clone().unwrap_or("NULL".into()));
            values.collect::<Vec<_>>().join(" | ") + "\n"
        };
        assert_eq!(found.iter().map(line).collect::<String>(), rows, "{command}");
        recipes += 1;
    }
    assert_eq!(recipes, 7);
}
