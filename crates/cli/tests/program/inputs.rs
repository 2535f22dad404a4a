//! Kinds of input: several files, compressed files, other encodings, files with and without
//! headers, records that are too long to be held in memory.

use crate::common::{on_first_and_last_major, on_last_major, World};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

fn count(world: &mut World, table: &str) -> String {
    world.sql(&format!("SELECT count(*) FROM {table}"))
}

fn headers(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS h; CREATE TABLE h (a int, b text DEFAULT 'd', \"C c\" int)");
    let named = world.file("named.csv", b"C c,a\r\n1,2\r\n3,4\r\n");
    let load = |world: &World, file: &str, more: &[&str]| {
        let mut all = vec![file, "--table", "h"];
        all.extend_from_slice(more);
        world.load(&all)
    };
    let summary = load(world, &named, &["--header"]).unwrap();
    assert_eq!((summary["read"].as_u64(), summary["skipped"].as_u64()), (Some(2), Some(0)));
    assert_eq!(world.sql("SELECT string_agg(h::text, ' ' ORDER BY a) FROM h"), "(2,d,1) (4,d,3)");
    world.sql("TRUNCATE h");
    load(world, &named, &["--header=ignore", "--columns", "a,C c"]).unwrap();
    assert_eq!(world.sql("SELECT string_agg(h::text, ' ' ORDER BY a) FROM h"), "(1,d,2) (3,d,4)");
    // The message is that of stock COPY.
    let stock =
        world.stock("COPY h FROM STDIN (FORMAT csv, HEADER match)", b"C c,a\n1,2\n").unwrap_err().0;
    let said = load(world, &named, &["--header=match"]).unwrap_err();
    assert!(said.contains(&stock) && said.contains("line 1"), "{stock}\n{said}");
    let unnamed = b"a,NUL,C c\n1,2,3\n";
    let stock = world.stock("COPY h FROM STDIN (FORMAT csv, HEADER match, NULL 'NUL')", unnamed);
    let file = world.file("unnamed.csv", unnamed);
    let said = load(world, &file, &["--header=match", "--null", "NUL"]).unwrap_err();
    assert!(said.contains(&stock.unwrap_err().0), "{said}");
    load(world, &named, &["--header=match", "--columns", "C c,a"]).unwrap();
    for (bytes, what) in [
        (&b"a,x\n1,2\n"[..], "has no column \"x\""),
        (b"a,a\n1,2\n", "named twice"),
        (b"a,\n1,2\n", "has no name"),
    ] {
        let file = world.file("wrong.csv", bytes);
        let said = load(world, &file, &["--header"]).unwrap_err();
        assert!(said.contains(what) && said.contains("line 1"), "{said}");
    }
    // `--columns` renames a header's names, but if they are the table's own, another order is an
    // error.
    let other = world.file("other.csv", b"x,y\n1,2\n");
    load(world, &other, &["--header", "--columns", "a,C c"]).unwrap();
    load(world, &named, &["--header", "--columns", "C c,a"]).unwrap();
    let said = load(world, &named, &["--header", "--columns", "a,C c"]).unwrap_err();
    assert!(said.contains("named.csv, line 1: ") && said.contains("another order"), "{said}");
    // Even a header that is ignored can show that the order of columns is wrong.
    for (columns, noted) in [("a,C c", true), ("C c,a", false)] {
        let summary = load(world, &named, &["--header=ignore", "--columns", columns]).unwrap();
        assert_eq!(summary["notes"].to_string().contains("in another order"), noted, "{summary}");
    }
    let said = load(world, &named, &["--header", "--force-null", "a,nope"]).unwrap_err();
    assert!(said.contains("--force-null names column \"nope\""), "{said}");
    let text = ["load", &named, "--table", "h", "--format", "text", "--force-not-null", "a"];
    assert_eq!(world.run(&text).status.code(), Some(2), "an option of CSV alone");
    headers_behind_empty_files(world);
    world.sql("DROP TABLE IF EXISTS g; CREATE TABLE g (a int NOT NULL, b int GENERATED ALWAYS AS (a + 1) STORED)");
    let file = world.file("generated.csv", b"a,b\n1,2\n");
    let said = world.load(&[&file, "--table", "g", "--header"]).unwrap_err();
    assert!(said.contains("generated"), "{said}");
    let file = world.file("one.csv", b"1\n");
    world.load(&[&file, "--table", "g"]).unwrap();
    let said = world.load(&[&file, "--table", "g", "--columns", "b"]).unwrap_err();
    assert!(said.contains("generated"), "{said}");
    let said = world.load(&[&file, "--table", "h", "--header"]).unwrap_err();
    assert!(said.contains("has no column \"1\""), "{said}");
    world.sql("DROP DOMAIN IF EXISTS five CASCADE; CREATE DOMAIN five AS int NOT NULL DEFAULT 5");
    world.sql("DROP TABLE IF EXISTS d; CREATE TABLE d (a int, b five)");
    world.load(&[&file, "--table", "d", "--columns", "a"]).unwrap();
    assert_eq!(world.sql("SELECT d::text FROM d"), "(1,5)", "the domain has the default");
}

/// An empty file has no header; the columns of the next file come from its own header.
fn headers_behind_empty_files(world: &mut World) {
    let empty = world.file("empty.csv", b"");
    let swapped = world.file("swapped.csv", b"C c,a\n1,2\n");
    world.sql("TRUNCATE h");
    let summary = world.load(&[&empty, &swapped, &empty, "--table", "h", "--header"]).unwrap();
    assert_eq!(summary["loaded"], 1);
    assert_eq!(world.sql("SELECT string_agg(h::text, ' ') FROM h"), "(2,d,1)");
    let wrong = world.file("wrong.csv", b"C c,x\n1,2\n");
    for how in ["--header", "--header=match"] {
        let said = world.load(&[&empty, &wrong, "--table", "h", how]).unwrap_err();
        assert!(said.contains("wrong.csv, line 1: "), "{said}");
    }
    assert_eq!(world.load(&[&empty, "--table", "h", "--header"]).unwrap()["read"], 0);
    let stock = world.stock("COPY h FROM STDIN (FORMAT csv, HEADER match)", b"").unwrap_err().0;
    let said = world.load(&[&empty, "--table", "h", "--header=match"]).unwrap_err();
    assert!(said.contains(&stock), "{stock}\n{said}");
}

fn files(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS f; CREATE TABLE f (a int, b text)");
    world.file("part-1.csv", b"1,x\n2,y");
    world.file("part-2.csv", b"3,z\r\n4,w\r\n");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"5,\"q\nr\"\n6,s\n").unwrap();
    world.file("part-3.csv", &gzip.finish().unwrap());
    let pattern = world.path("part-*.csv");
    for method in ["copy-csv", "copy-binary", "lanes", "insert-batch"] {
        world.sql("TRUNCATE f");
        let summary = world.load(&[&pattern, "--table", "f", "--method", method]).unwrap();
        assert_eq!(summary["loaded"], 6, "{method}");
        assert_eq!(summary["files"].as_array().unwrap().len(), 3);
        assert_eq!(
            world.sql("SELECT string_agg(a || b, ',' ORDER BY a) FROM f"),
            "1x,2y,3z,4w,5q\nr,6s"
        );
    }
    let bad = world.file("part-4.csv", b"7,x\n8\n");
    let said = world.load(&[&pattern, "--table", "f"]).unwrap_err();
    assert!(said.contains(&format!("{bad}, line 2, record 2, byte offset 4")), "{said}");
    assert_eq!(count(world, "f"), "6");
    std::fs::remove_file(bad).unwrap();
    // As in a shell, a pattern finds no hidden files. A file that it finds must be readable.
    world.file(".hidden-1.csv", b"of,an,editor\n");
    let summary = world.load(&[&world.path("*-1.csv"), "--table", "f", "--truncate"]).unwrap();
    assert_eq!(summary["loaded"], 2);
    std::os::unix::fs::symlink("/nowhere/at/all", world.path("part-4.csv")).unwrap();
    let said = world.load(&[&pattern, "--table", "f"]).unwrap_err();
    assert!(said.contains("cannot open") && said.contains("part-4.csv"), "{said}");
    assert_eq!(count(world, "f"), "2");
    let output = world.run_with(&["load", "-", "--table", "f"], b"\xef\xbb\xbf9,bom\n");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.sql("SELECT b FROM f WHERE a = 9"), "bom");
    let said = world.load(&["missing.csv", "--table", "f"]).unwrap_err();
    assert!(said.contains("cannot open missing.csv"), "{said}");
    assert!(!said.contains("postgres"), "nothing was connected: {said}");
}

/// A pattern finds the same files as in a shell, whatever bytes are in their names.
fn patterns(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS f; CREATE TABLE f (a int)");
    let folder = PathBuf::from(world.path("patterns"));
    fs::create_dir_all(folder.join("in/.no")).unwrap();
    fs::create_dir_all(folder.join(OsStr::from_bytes(b"in-\xff"))).unwrap();
    let files: [(&[u8], &str); 5] = [
        (b"one-\xff.csv", "1\n"),
        (b".two.csv", "2\n"),
        (b"in/three.csv", "3\n"),
        (b"in/.no/four.csv", "4\n"),
        (b"in-\xff/five.csv", "5\n"),
    ];
    for (name, record) in files {
        fs::write(folder.join(OsStr::from_bytes(name)), record).unwrap();
    }
    for (pattern, rows) in [
        ("*.csv", "1"),
        ("one-?.csv", "1"),
        (".t*.csv", "2"),
        ("i*/*.csv", "3,5"),
        ("./*/thr[e]e.csv", "3"),
        ("in/*", "3"),
        ("*/.n*/*.csv", "4"),
        ("**/*.csv", "1,3,5"),
        ("**/**/f*.csv", "5"),
    ] {
        let pattern = format!("{}/{pattern}", folder.display());
        world.load(&[&pattern, "--table", "f", "--truncate"]).unwrap();
        let loaded = world.sql("SELECT string_agg(a::text, ',' ORDER BY a) FROM f");
        assert_eq!(loaded, rows, "{pattern}");
    }
    for none in ["*.txt", "in/three.csv/*", "nowhere/*.csv"] {
        let none = format!("{}/{none}", folder.display());
        let said = world.load(&[&none, "--table", "f"]).unwrap_err();
        assert!(said.contains("no file matches"), "{said}");
    }
}

fn parts(world: &mut World) {
    let rows: Vec<u8> = (1..=100_000).flat_map(|i| format!("{i},t\n").into_bytes()).collect();
    let file = world.file("many.csv", &rows);
    for method in ["copy-binary", "copy-csv", "staged"] {
        world.sql("DROP TABLE IF EXISTS p; CREATE TABLE p (a int, b text)");
        let more =
            ["--method", method, "--skip", "70000", "--limit", "20000", "--where", "a % 2 = 0"];
        let mut all = vec![file.as_str(), "--table", "p"];
        all.extend_from_slice(&more);
        let summary = world.load(&all).unwrap();
        let n = |key: &str| summary[key].as_u64().unwrap();
        assert_eq!((n("read"), n("loaded"), n("skipped")), (90_000, 10_000, 80_000), "{method}");
        assert_eq!(world.sql("SELECT min(a) || '-' || max(a) FROM p"), "70002-90000");
    }
    let said =
        world.load(&[&file, "--table", "p", "--method", "insert", "--where", "a=1"]).unwrap_err();
    assert!(said.contains("--where"), "{said}");
    conditions(world);
}

/// `--where` may name columns that are not in the file. `check` leaves out the same records as a
/// load.
fn conditions(world: &mut World) {
    world.sql(
        "DROP TABLE IF EXISTS w; CREATE TABLE w (a int CHECK (a > 0), s serial,
             kind text COLLATE \"C\" NOT NULL DEFAULT 'x', b int CHECK (b > a), c int NOT NULL DEFAULT 7)",
    );
    let file = world.file("w.csv", b"1\n2\n0\n3\n");
    let both = [
        "--table",
        "w",
        "--columns",
        "a",
        "--where",
        "kind > 'X' AND c = 7 AND b IS NULL AND a <> 3",
    ];
    let reject = ["--on-error", "reject", "--reject-file", &world.path("w.rejects")];
    let summary = world.load(&[&[file.as_str()], &both[..], &reject].concat()).unwrap();
    let checked = world.path("checked.json");
    let output = world.run(&[&["check", &file, "--summary", &checked], &both[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let checked: serde_json::Value =
        serde_json::from_slice(&std::fs::read(checked).unwrap()).unwrap();
    for (key, n) in [("read", 4), ("loaded", 2), ("rejected", 1), ("skipped", 1)] {
        assert_eq!((&summary[key], &checked[key]), (&n.into(), &n.into()), "{key}");
    }
    // `check` takes no number from the sequence.
    let output = world.run(&["check", &file, "--table", "w", "--columns", "a", "--where", "s > 0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("column \"s\" does not exist"), "{said}");
    assert!(said.contains("hint: the condition of --where is: s > 0"), "{said}");
    for method in ["copy-csv", "staged"] {
        let odd = ["--table", "w", "--columns", "a", "--where", "a >", "--method", method];
        let said = world.load(&[&[file.as_str()], &odd[..]].concat()).unwrap_err();
        assert!(said.contains("syntax error") && said.contains("is: a >"), "{method}: {said}");
    }
    // A condition must not contain other statements.
    for condition in ["true; DROP TABLE w", "true); DROP TABLE w; SELECT (1", "true; COMMIT"] {
        let odd = [&file, "--table", "w", "--columns", "a", "--where", condition];
        for command in ["plan", "check", "load"] {
            let output = world.run(&[&[command], &odd[..]].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command} {condition}: {said}");
            assert!(said.contains(&format!("--where is: {condition}")), "{said}");
        }
        let staged = world.load(&[&odd[..], &["--method", "staged"]].concat()).unwrap_err();
        assert!(staged.contains("--where is: "), "{staged}");
        assert_eq!(count(world, "w"), "2", "{condition}");
    }
    std::fs::remove_file(world.path("w.rejects")).unwrap();
    std::fs::remove_file(world.path("w.rejects.jsonl")).unwrap();
}

fn encodings(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS e; CREATE TABLE e (a int, b text)");
    let latin = world.file("latin.csv", b"1,caf\xe9\n2,plain\n");
    for method in ["auto", "copy-binary", "copy-text", "staged", "lanes"] {
        world.sql("TRUNCATE e");
        world.load(&[&latin, "--table", "e", "--encoding", "LATIN1", "--method", method]).unwrap();
        assert_eq!(world.sql("SELECT b FROM e WHERE a = 1"), "café", "{method}");
    }
    // The second byte of this character is 0x5c, which is a backslash in ASCII.
    let sjis = world.file("sjis.csv", b"1,\x83\x5c\n2,\"\x83\x5c\"\n");
    world.sql("TRUNCATE e");
    world.load(&[&sjis, "--table", "e", "--encoding", "SJIS"]).unwrap();
    assert_eq!(world.sql("SELECT string_agg(b, '') FROM e"), "ソソ");
    // The header's names are in the file's encoding too.
    let named = world.file("named.csv", b"a,pr\xe9nom\n1,Ren\xe9\n");
    for table in ["CREATE TABLE n (\"prénom\" text, a int)", ""] {
        world.sql(&format!("DROP TABLE IF EXISTS n; {table}"));
        let create = if table.is_empty() { "--create" } else { "--truncate" };
        let more = ["--table", "n", "--header", "--encoding", "LATIN1", create];
        world.load(&[&[named.as_str()], &more[..]].concat()).unwrap();
        assert_eq!(world.sql("SELECT \"prénom\" || a FROM n"), "René1", "{create}");
    }
    let said = world.load(&[&named, "--table", "n", "--header"]).unwrap_err();
    assert!(said.contains("line 1: field 2 of the header is not UTF-8"), "{said}");
    let said = world.load(&[&latin, "--table", "e"]).unwrap_err();
    assert!(said.contains("invalid byte sequence for encoding \"UTF8\": 0xe9"), "{said}");
    let said = world.load(&[&latin, "--table", "e", "--encoding", "klingon"]).unwrap_err();
    assert!(said.contains("does not support the encoding \"klingon\""), "{said}");
    let wide = world.file("wide.csv", b"\xff\xfe1\0,\0x\0\n\0");
    let said = world.load(&[&wide, "--table", "e"]).unwrap_err();
    assert!(said.contains("UTF-16"), "{said}");
}

/// A record larger than every buffer is loaded; a record that never ends is an error.
fn giants(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS e; CREATE TABLE e (a int, b text)");
    let mut bytes = b"1,small\n2,\"".to_vec();
    bytes.resize(bytes.len() + (20 << 20), b'x');
    bytes.extend_from_slice(b"\n,\"\n3,small\n");
    let giant = world.file("giant.csv", &bytes);
    for method in ["copy-binary", "copy-csv", "lanes", "staged"] {
        world.sql("TRUNCATE e");
        world.load(&[&giant, "--table", "e", "--method", method]).unwrap();
        assert_eq!(
            world.sql("SELECT string_agg(a || ':' || length(b), ' ' ORDER BY a) FROM e"),
            format!("1:5 2:{} 3:5", (20 << 20) + 2),
            "{method}"
        );
    }
    // `--skip` skips the whole record, even if it is read in pieces.
    for (skip, left) in [("1", "2 3"), ("2", "3")] {
        let passed = world.load(&[&giant, "--table", "e", "--truncate", "--skip", skip]).unwrap();
        assert_eq!(passed["skipped"].to_string(), skip);
        assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM e"), left);
    }
    bytes.extend_from_slice(b"4,\"open");
    bytes.resize(bytes.len() + (9 << 20), b'\n');
    let open = world.file("open.csv", &bytes);
    for (are, message) in
        [("copy", "unterminated CSV quoted field"), ("error", "quoted field is not closed")]
    {
        let said = world.load(&[&open, "--table", "e", "--stray-quotes", are]).unwrap_err();
        assert!(said.contains(message) && said.contains("record 4"), "{said}");
    }
    bytes.truncate(8);
    bytes.extend_from_slice("x".repeat(6 << 20).as_bytes());
    bytes.extend_from_slice(b",more\n");
    let early = world.file("early.csv", &bytes);
    let said = world.load(&[&early, "--table", "e"]).unwrap_err();
    assert!(
        said.contains("invalid input syntax for type integer") && said.contains("record 2"),
        "{:.300}",
        said
    );
    assert!(said.len() < 2500, "values are cut: {} bytes", said.len());
}

fn types(world: &mut World) {
    world.sql(
        "DROP TABLE IF EXISTS ty; DROP DOMAIN IF EXISTS pos CASCADE; DROP DOMAIN IF EXISTS short CASCADE;
         DROP TYPE IF EXISTS mood CASCADE; DROP TYPE IF EXISTS pair CASCADE;
         CREATE DOMAIN pos AS int CHECK (VALUE > 0) NOT NULL; CREATE DOMAIN short AS varchar(3);
         CREATE TYPE mood AS ENUM ('sad', 'a,b', 'ok'); CREATE TYPE pair AS (x int, y text);
         CREATE TABLE ty (a pos, b short[], c mood, d mood[], e pair, f int[][], g bit(3), h tsvector, i short)
         PARTITION BY RANGE (a);
         CREATE TABLE ty1 PARTITION OF ty FOR VALUES FROM (1) TO (10);
         CREATE TABLE ty2 PARTITION OF ty FOR VALUES FROM (10) TO (20)",
    );
    let good = b"1,\"{abc,d}\",ok,\"{sad,\"\"a,b\"\"}\",\"(1,x)\",\"{{1,2},{3,4}}\",101,b a,abc\n\
                 11,{},\"a,b\",,,\"[0:1]={1,2}\",000,,\n";
    let cases: [(&[u8], &str); 5] = [
        (b"0,,,,,,,,\n", "pos"),
        (b"1,,gone,,,,,,\n", "mood"),
        (b"1,\"{abcd}\",,,,,,,\n", "varying(3)"),
        (b"30,,,,,,,,\n", "no partition"),
        (b"1,,,,,,1011,,\n", "bit string"),
    ];
    for method in ["auto", "copy-binary", "staged", "copy-text", "insert-batch", "lanes"] {
        world.sql("TRUNCATE ty");
        let file = world.file("types.csv", good);
        world.load(&[&file, "--table", "ty", "--method", method]).unwrap();
        world.sql("DROP TABLE IF EXISTS stock; CREATE TABLE stock (LIKE ty)");
        world.stock("COPY stock FROM STDIN CSV", good).unwrap();
        assert_eq!(world.difference("stock", "ty"), "", "{method}");
        for (bytes, what) in cases {
            let file = world.file("bad.csv", bytes);
            let said = world.load(&[&file, "--table", "ty", "--method", method]).unwrap_err();
            assert!(said.contains(what), "{method}: {said}");
        }
        assert_eq!(count(world, "ty"), "2");
    }
    // Methods that need a plain table refuse a partitioned one and change nothing.
    world.sql("TRUNCATE ty");
    let file = world.file("types.csv", good);
    for method in ["copy-fresh", "unlogged", "unlogged-logged"] {
        let said = world.load(&[&file, "--table", "ty", "--method", method]).unwrap_err();
        assert!(said.contains(&format!("{method} does not work on \"public\".\"ty\"")), "{said}");
    }
    assert_eq!(count(world, "ty"), "0");
    let kinds = "SELECT string_agg(DISTINCT relpersistence::text, '') FROM pg_class WHERE relname ~ '^ty[12]?$'";
    assert_eq!(world.sql(kinds), "p");
}

fn binary(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS b; CREATE TABLE b (a int, b text); INSERT INTO b SELECT i, 'x' || i FROM generate_series(1, 50000) i");
    let path = world.path("rows.bin");
    // The server writes this file, and it runs as another user.
    let dir = std::path::Path::new(&path).parent().unwrap().to_owned();
    let mut open = std::fs::metadata(&dir).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o777);
    std::fs::set_permissions(&dir, open).unwrap();
    world.sql(&format!("COPY b TO '{path}' (FORMAT binary)"));
    world.sql("DROP TABLE IF EXISTS b2; CREATE TABLE b2 (LIKE b)");
    let summary = world.load(&[&path, "--table", "b2", "--format", "binary"]).unwrap();
    assert_eq!(summary["read"], 50_000);
    assert_eq!(world.difference("b", "b2"), "");
    let output = world.run(&["load", &path, "--table", "b2", "--format", "binary", "--header"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// `convert` writes the same bytes as the server's COPY TO of the table.
fn convert(world: &mut World) {
    world.sql("DROP TABLE IF EXISTS c; CREATE TABLE c (a int, b varchar(9), c numeric(8,3), d timestamptz, e int[], f jsonb)");
    let csv = b"1,x,1.5,2024-02-03 04:05:06.7+02,\"{1,NULL}\",\"{\"\"k\"\": 1}\"\n,,-7,,,\n3,\"\",0,infinity,{},[]\n";
    world.stock("COPY c FROM STDIN CSV", csv).unwrap();
    let file = world.file("convert.csv", csv);
    let (own, table) = (world.path("own.bin"), world.path("table.bin"));
    let types = "int, varchar(9), numeric(8,3), timestamptz, int[], jsonb";
    let program = env!("CARGO_BIN_EXE_pgsluice");
    let without = std::process::Command::new(program)
        .args(["convert", &file, "--types", types, "--out", &own])
        .env_remove("PGHOST")
        .output()
        .unwrap();
    assert!(without.status.success(), "{without:?}");
    assert!(world.run(&["convert", &file, "--table", "c", "--out", &table]).status.success());
    let server = world.path("server.bin");
    world.sql(&format!("COPY c TO '{server}' (FORMAT binary)"));
    let expected = std::fs::read(server).unwrap();
    assert!(std::fs::read(own).unwrap() == expected && std::fs::read(table).unwrap() == expected);
    // A pipe can be read only once. The file has no names, so the columns are in the table's order.
    let piped = world.path("piped.bin");
    let output = world.run_with(&["convert", "-", "--table", "c", "--out", &piped], csv);
    assert!(output.status.success(), "{output:?}");
    assert!(std::fs::read(&piped).unwrap() == expected);
    let named = world.file(
        "named.csv",
        b"b,a,c,d,e,f\nx,1,1.5,2024-02-03 04:05:06.7+02,\"{1,NULL}\",\"{\"\"k\"\": 1}\"\n\
          ,,-7,,,\n\"\",3,0,infinity,{},[]\n",
    );
    let output = world.run(&["convert", &named, "--header", "--table", "c", "--out", &piped]);
    assert!(output.status.success(), "{output:?}");
    assert!(std::fs::read(&piped).unwrap() == expected);
    let bad = world.file("bad.csv", b"1,x\n2,yy\n");
    let output =
        world.run(&["convert", &bad, "--types", "int, varchar(1)", "--out", &world.path("no.bin")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("line 2, record 2, byte offset 4, column 2: the value is too long"),
        "{said}"
    );
    assert!(!std::path::Path::new(&world.path("no.bin")).exists());
    // Types have no names that a header could match.
    let matched = ["convert", &named, "--header=match", "--types", types];
    let output = std::process::Command::new(program).args(matched).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    convert_spares(world, &bad);
    convert_money(world);
}

/// `convert` does not overwrite its input, nor any file while there is nothing to write. If it
/// fails, it does not remove an output that is not a regular file.
fn convert_spares(world: &World, bad: &str) {
    let types = ["--types", "int, varchar(1)", "--out"];
    let convert = |file: &str, out: &str| {
        world.run(&[&["convert", file], &types[..], &[out]].concat()).status.code()
    };
    assert_eq!(convert(bad, bad), Some(2));
    assert_eq!(std::fs::read(bad).unwrap(), b"1,x\n2,yy\n");
    let kept = world.file("kept.bin", b"kept");
    assert_eq!(convert("missing.csv", &kept), Some(1));
    assert_eq!(std::fs::read(kept).unwrap(), b"kept");
    let device = world.path("device");
    std::os::unix::fs::symlink("/dev/null", &device).unwrap();
    assert_eq!(convert(bad, &device), Some(4));
    std::fs::remove_file(device).unwrap();
}

/// `convert` encodes `money` and `interval(3)` as the server does.
fn convert_money(world: &mut World) {
    world.sql(
        "SET lc_monetary = 'C'; DROP TABLE IF EXISTS m; CREATE TABLE m (a money, b interval(3))",
    );
    let csv = b"\"$1,234.565\",1 day 00:00:01.23456\n-0.5,\n";
    world.stock("COPY m FROM STDIN CSV", csv).unwrap();
    let file = world.file("money.csv", csv);
    let (own, server) = (world.path("money.bin"), world.path("server-money.bin"));
    let output = world.run(&["convert", &file, "--types", "money, interval(3)", "--out", &own]);
    assert!(output.status.success(), "{output:?}");
    world.sql(&format!("COPY m TO '{server}' (FORMAT binary)"));
    assert!(std::fs::read(own).unwrap() == std::fs::read(server).unwrap());
    // In a session with C.UTF-8, values of `money` are the same, and the loader encodes them.
    world.sql("DROP TABLE IF EXISTS m2; CREATE TABLE m2 (LIKE m)");
    let summary = world.load(&[&file, "--table", "m2", "--method", "copy-binary"]).unwrap();
    assert_eq!((&summary["chunks_encoded"], &summary["loaded"]), (&1.into(), &2.into()));
    assert_eq!(world.difference("m", "m2"), "");
}

/// Each kind of input loads, and input that does not fit is refused with the reason.
#[test]
fn inputs() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        headers(&mut world);
        files(&mut world);
        patterns(&mut world);
        parts(&mut world);
        encodings(&mut world);
        types(&mut world);
        binary(&mut world);
        convert(&mut world);
    });
}

/// A record that is longer than every buffer is loaded; one that never ends is an error.
#[test]
fn records_too_long_to_be_held() {
    on_last_major(|installation| giants(&mut World::new(installation)));
}
