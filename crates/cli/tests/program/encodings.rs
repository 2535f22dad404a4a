//! Files in every encoding of the server, and databases in other encodings than UTF-8, where
//! escapes mean bytes of the database's encoding.

use std::process::{Command, Output};

use crate::common::{each_major, left_out, World};
use pgsluice_engine::internals::Conn;

const METHODS: [&str; 7] =
    ["copy-binary", "copy-csv", "copy-text", "insert", "insert-batch", "staged", "lanes"];

/// A database of this encoding, with a table for stock COPY and one for the program.
fn database(world: &World, name: &str, encoding: &str) -> (String, Conn) {
    let mut conn = Conn::open(&world.server.url("postgres")).unwrap();
    conn.exec(&format!(
        "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
    ))
    .unwrap();
    let url = world.server.url(name);
    let mut conn = Conn::open(&url).unwrap();
    conn.exec("SET client_encoding = UTF8; CREATE TABLE t (a int, b text); CREATE TABLE s (a int, b text)")
        .unwrap();
    (url, conn)
}

fn load(file: &str, url: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", file, "--format", "text", "--table", "t", "--quiet", "--to", url])
        .args(more)
        .output()
        .unwrap()
}

fn stock(conn: &mut Conn, bytes: &[u8]) -> Result<u64, String> {
    conn.copy_start("COPY s FROM STDIN").unwrap();
    conn.copy_data(bytes).unwrap();
    conn.copy_end().map_err(|e| e.message().to_string())
}

/// In the text format, `\xc3\xa9` means two bytes of the *database's* encoding, which are two
/// characters in LATIN1. By every method, such escapes mean what they mean to stock COPY, also next
/// to quotes, backslashes and characters of the file's encoding.
#[test]
fn escapes_mean_bytes_of_the_databases_encoding() {
    let world = World::new(&each_major()[0]);
    let cases: [(&str, &str, &[u8]); 3] = [
        (
            "latin",
            "LATIN1",
            b"1\t\\xc3\\xa9\n2\t\xc3\xa9\n3\t\xc3\xa9\\xe9'\\\\\\351\\\xc3\xa9\\xe\n4\t\\N\n5\t\\xe9a\n6\tplain\\tx\n",
        ),
        ("japanese", "EUC_JP", b"1\t\\xc6\\xfc\xe6\x9c\xac\n2\t\xe6\x97\xa5\\xcb\\xdc\\\\\n"),
        ("ascii", "SQL_ASCII", b"1\t\\xff\n2\t\xc3\xa9\\xff\n"),
    ];
    for (name, encoding, bytes) in cases {
        let (url, mut conn) = database(&world, name, encoding);
        stock(&mut conn, bytes).unwrap();
        let file = world.file(name, bytes);
        for method in METHODS {
            conn.exec("TRUNCATE t").unwrap();
            let output = load(&file, &url, &["--method", method]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{encoding} by {method}: {said}");
            let rows = "SELECT string_agg(a || encode(b::bytea, 'hex'), ',' ORDER BY a) FROM
                (SELECT a, convert_to(b, getdatabaseencoding()) AS b FROM";
            let (theirs, ours) = (format!("{rows} s) x"), format!("{rows} t) x"));
            let (theirs, ours) = (conn.exec(&theirs).unwrap(), conn.exec(&ours).unwrap());
            assert_eq!(ours, theirs, "{encoding} by {method}");
        }
    }
}

/// Escapes that are no characters of the database's encoding are refused with stock COPY's message,
/// and only their records are rejected.
#[test]
fn escapes_that_are_no_characters_are_refused() {
    let world = World::new(&each_major()[0]);
    let (url, mut conn) = database(&world, "japanese", "EUC_JP");
    let bytes = b"1\t\\xc6\\xfc\n2\t\\xff\n3\tx\\000\n4\ty\n";
    let message = stock(&mut conn, bytes).unwrap_err();
    let file = world.file("bad", bytes);
    let rejects = world.path("rejects");
    for method in METHODS {
        conn.exec("TRUNCATE t").unwrap();
        let output = load(&file, &url, &["--method", method]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{method}");
        assert!(said.contains(&message) && said.contains("record 2"), "{method}: {said}");

        conn.exec("TRUNCATE t").unwrap();
        let _ = std::fs::remove_file(&rejects);
        let _ = std::fs::remove_file(format!("{rejects}.jsonl"));
        let reject = ["--method", method, "--on-error", "reject", "--reject-file", &rejects];
        let output = load(&file, &url, &reject);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{method}: {said}");
        assert_eq!(std::fs::read(&rejects).unwrap(), b"2\t\\xff\n3\tx\\000\n", "{method}");
        let left = conn.exec("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t").unwrap();
        assert_eq!(left[0][0].as_deref(), Some("1 4"), "{method}");
    }
}

/// In SJIS, a character's second byte may be that of a backslash or a delimiter. It neither ends a
/// record nor separates fields.
#[test]
fn characters_with_a_backslash_in_them() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE s (a int, b text); CREATE TABLE t (a int, b text)");
    let text = b"1\t\x95\x5c\n2\t\x95\x5c\\\\\n3\t\x95\x5c\\t\x83\x7c\n4\tx\n";
    let bars = b"1|\x83\x7c\n2|\"\x83\x7c|\x95\x5c\"\n3|\x95\x5c\n4|x\n";
    let rejects = world.path("rejects");
    for (copy, bytes, more) in [
        ("FORMAT text", &text[..], ["--format", "text"]),
        ("FORMAT csv, DELIMITER '|'", &bars[..], ["--delimiter", "|"]),
    ] {
        world.sql("TRUNCATE s");
        let copy = format!("COPY s FROM STDIN ({copy}, ENCODING 'SJIS')");
        assert_eq!(world.stock(&copy, bytes).unwrap(), 4);
        let load = |world: &World, bytes: &[u8], others: &[&str]| {
            let file = world.file("sjis", bytes);
            let base = [&file, "--table", "t", "--encoding", "SJIS", "--truncate"];
            world.load(&[&base[..], &more[..], others].concat()).unwrap()
        };
        for method in ["auto", "copy-csv", "copy-text", "copy-binary", "lanes", "staged"] {
            let summary = load(&world, bytes, &["--method", method]);
            assert_eq!(summary["read"], 4, "{copy} by {method}");
            assert_eq!(world.difference("s", "t"), "", "{copy} by {method}");
        }
        load(&world, bytes, &["--skip", "1", "--limit", "2"]);
        assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "2 3");
        let ragged = [bytes, b"ragged\n"].concat();
        let summary = load(&world, &ragged, &["--on-error", "reject", "--reject-file", &rejects]);
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&4.into(), &1.into()));
        assert_eq!(std::fs::read(&rejects).unwrap(), b"ragged\n");
        assert_eq!(world.difference("s", "t"), "", "{copy} with rejects");
        std::fs::remove_file(&rejects).unwrap();
        std::fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    }
}

/// A record may have escapes next to characters of the file's encoding. If stock COPY accepts it,
/// it is not rejected because it would be invalid in UTF-8.
#[test]
fn escapes_beside_other_encodings() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE s (a int, b text); CREATE TABLE t (a int, b text)");
    let bytes = b"1\t\xe9\\xc3\\xa9\n2\t\\xc3\\xa9\n";
    world.stock("COPY s FROM STDIN (ENCODING 'LATIN1')", bytes).unwrap();
    let file = world.file("escapes", &[bytes, &b"ragged\n3\t\\xff\n"[..]].concat());
    let rejects = world.path("rejects");
    for method in ["copy-binary", "copy-csv", "copy-text", "staged"] {
        let base = [&file, "--table", "t", "--format", "text", "--encoding", "LATIN1"];
        let more = ["--method", method, "--truncate", "--on-error", "reject", "--reject-file"];
        world.load(&[&base[..], &more[..], &[&rejects]].concat()).unwrap();
        assert_eq!(std::fs::read(&rejects).unwrap(), b"ragged\n3\t\\xff\n", "{method}");
        assert_eq!(world.difference("s", "t"), "", "{method}");
        std::fs::remove_file(&rejects).unwrap();
        std::fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    }
}

/// Non-ASCII names mean the same in every statement, also outside the load's transaction. Here the
/// database is in LATIN1, and the user has set PGCLIENTENCODING.
#[test]
fn names_beyond_ascii() {
    let world = World::new(&each_major()[0]);
    let (url, mut conn) = database(&world, "names", "LATIN1");
    conn.exec("CREATE TABLE \"té\" (a int, \"bé\" int); CREATE INDEX \"ié\" ON \"té\" (\"bé\")")
        .unwrap();
    let file = world.file("names.csv", "bé,a\n1,2\n".as_bytes());
    let run = |file: &str, more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["load", file, "--header", "--summary", "-", "--method", "lanes"])
            .args(["--lanes", "2", "--to", &url])
            .args(more)
            .env("PGCLIENTENCODING", "LATIN1")
            .output()
            .unwrap()
    };
    let output = run(&file, &["--table", "té"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = summary["steps"].as_array().unwrap();
    assert!(steps.iter().any(|s| s == "ANALYZE \"public\".\"té\""), "{steps:?}");
    assert!(steps.iter().any(|s| s.as_str().unwrap().contains("ié\" recreated")), "{steps:?}");
    // The load drops the table that it created and committed for the lanes.
    let bad = world.file("bad.csv", "bé,a\n1,2\n3\n".as_bytes());
    let output = run(&bad, &["--table", "né", "--create"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("missing data for column") && !said.contains("is left"), "{said}");
    let left = conn.exec("SELECT to_regclass('né')").unwrap();
    assert_eq!(left[0][0], None);
}

/// In a SQL_ASCII database, a label of an enum need not be valid UTF-8. Loads into its column work.
#[test]
fn labels_that_are_no_characters() {
    let world = World::new(&each_major()[0]);
    let (url, mut conn) = database(&world, "labels", "SQL_ASCII");
    conn.exec("CREATE TYPE e AS ENUM ('a', E'\\xe9'); ALTER TABLE t ADD c e").unwrap();
    let file = world.file("labels", b"1\tx\ta\n");
    let output = load(&file, &url, &["--method", "copy-binary"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let latin = world.file("latin", b"2\tx\t\xe9\n");
    let output = load(&latin, &url, &["--encoding", "SQL_ASCII"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found =
        "SELECT string_agg(encode(convert_to(c::text, 'SQL_ASCII'), 'hex'), ',' ORDER BY a) FROM t";
    assert_eq!(conn.exec(found).unwrap()[0][0].as_deref(), Some("61,e9"));
}

/// Nearly every encoding of the server has at least one of these characters.
const CHARACTERS: [&str; 9] = ["é", "ж", "日本", "한국", "ب", "α", "א", "ไ", "ơ"];

/// `--encoding` accepts every encoding of the server by its name. Values are converted as stock
/// COPY converts them.
#[test]
fn every_encoding_of_the_server() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE s (a int, b text); CREATE TABLE t (a int, b text)");
    let names = "SELECT name FROM (SELECT pg_encoding_to_char(i) AS name FROM generate_series(0, 60) i) x WHERE name <> ''";
    let mut loaded = 0;
    for row in world.conn.exec(names).unwrap() {
        let name = row[0].clone().unwrap();
        let convert = |c| format!("SELECT encode(convert_to('{c}', '{name}'), 'hex')");
        let found = CHARACTERS.iter().find_map(|c| world.conn.exec(&convert(c)).ok());
        let Some(found) = found else {
            left_out(&format!("the encoding {name}, which has none of the characters"));
            continue;
        };
        let hex = found[0][0].clone().unwrap();
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
            .collect();
        let record = [b"1,\"x".as_slice(), &bytes, b"\"\n2,", &bytes, b"\n"].concat();
        world.sql("TRUNCATE s, t");
        world
            .stock(&format!("COPY s FROM STDIN (FORMAT csv, ENCODING '{name}')"), &record)
            .unwrap();
        let file = world.file("encoded.csv", &record);
        let summary = world.load(&[&file, "--table", "t", "--encoding", &name]).unwrap();
        assert_eq!(summary["loaded"], 2, "{name}");
        assert_eq!(world.difference("s", "t"), "", "{name}");
        loaded += 1;
    }
    assert!(loaded >= 41, "{loaded} encodings");
    let file = world.file("named.csv", b"caf\xe9\n1\n");
    let made = ["--create", "--table", "made", "--header", "--encoding", "LATIN1"];
    world.load(&[&[file.as_str()], &made[..]].concat()).unwrap();
    assert_eq!(world.sql("SELECT \"café\" FROM made"), "1");
}

/// A character may contain the byte of a backslash, a delimiter or a quote. That byte neither hides
/// nor ends anything where the input is split for lanes and rejects, or where records are counted.
#[test]
fn characters_that_end_in_ascii_bytes() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE s (a int, b text); CREATE TABLE t (a int, b text)");
    // In each pattern, `#` stands for a number. One record ends in such a character, another
    // continues after it.
    type Case<'c> = (&'c str, [&'c str; 2], &'c str, &'c [u8], &'c [u8]);
    let (text, backslash) = (["--format", "text"], ["--escape", "\\"]);
    let cases: [Case<'_>; 5] = [
        ("SJIS", text, "FORMAT text", b"#\t\x95\\\n#\t\x95\\\\\nB\\\\\n", b"x\t\x95\\\n"),
        ("BIG5", text, "FORMAT text", b"#\t\xa5\\\n#\t\xa5\\\\\n\\\xa5\\\n", b"x\t\xa5\\\n"),
        (
            "GBK",
            backslash,
            "FORMAT csv, ESCAPE '\\'",
            b"#,\"\xd5\\\"\n#,\"a\nb\\\"\"\n",
            b"x,\"\xd5\\\"\n",
        ),
        (
            "GB18030",
            ["--delimiter", "0"],
            "FORMAT csv, DELIMITER '0'",
            b"70\x81\x30\x81\x30x\n80\"\x81\x30\x81\x30\n\"\n",
            b"x0\x81\x30\x81\x30\n",
        ),
        ("UHC", ["--quote", "a"], "FORMAT csv, QUOTE 'a'", b"#,a\x81\x61,\na\n", b"x,\x81\x61\n"),
    ];
    for (encoding, options, copy, pattern, bad) in cases {
        let numbered = |i: usize| {
            let digits = |byte: &u8| match byte {
                b'#' => i.to_string().into_bytes(),
                byte => vec![*byte],
            };
            pattern.iter().flat_map(digits).collect::<Vec<u8>>()
        };
        let half: Vec<u8> = (0..280_000 / pattern.len()).flat_map(numbered).collect();
        let whole = [&half[..], &half].concat();
        let with_bad = [&half[..], bad, &half].concat();
        world.sql("TRUNCATE s");
        let stock = format!("COPY s FROM STDIN ({copy}, ENCODING '{encoding}')");
        world.stock(&stock, &whole).unwrap();
        let rejects = world.path(&format!("rejects-{encoding}"));
        let ways: [(&[u8], &[&str]); 3] = [
            (&whole, &[]),
            (&whole, &["--method", "lanes", "--lanes", "2"]),
            (&with_bad, &["--on-error", "reject", "--reject-file", &rejects]),
        ];
        for (bytes, way) in ways {
            world.sql("TRUNCATE t");
            let file = world.file("wide", bytes);
            let first = [file.as_str(), "--table", "t", "--encoding", encoding];
            let summary = world.load(&[&first[..], &options[..], way].concat());
            let summary = summary.unwrap_or_else(|said| panic!("{encoding} {way:?}: {said}"));
            assert_eq!(world.difference("s", "t"), "", "{encoding} {way:?}");
            let refused = u64::from(bytes.len() > whole.len());
            assert_eq!(summary["rejected"], refused, "{encoding} {way:?}");
        }
        assert_eq!(std::fs::read(&rejects).unwrap(), bad, "{encoding}");
    }
}

/// In EUC_JIS_2004, か and its mark are one character; in UTF-8 they are two. The server has to
/// count the characters for a limit such as `varchar(3)`.
#[test]
fn characters_that_are_two_of_utf8() {
    let world = World::new(&each_major()[0]);
    let (url, mut conn) = database(&world, "jis", "EUC_JIS_2004");
    for table in ["s", "t"] {
        conn.exec(&format!("ALTER TABLE {table} ALTER b TYPE varchar(3)")).unwrap();
    }
    let bytes = "1\tか\u{309a}   \n2\tab\n".as_bytes();
    stock(&mut conn, bytes).unwrap();
    let output = load(&world.file("marked", bytes), &url, &["--method", "copy-binary"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lengths =
        |table| format!("SELECT string_agg(length(b)::text, ' ' ORDER BY a) FROM {table}");
    let (theirs, ours) = (conn.exec(&lengths("s")).unwrap(), conn.exec(&lengths("t")).unwrap());
    assert_eq!((ours, theirs[0][0].as_deref()), (theirs.clone(), Some("3 2")));
}
