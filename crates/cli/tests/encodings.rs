//! Files in every encoding that the server knows; databases in another one than
//! UTF-8, and what a load makes of escapes there.

mod common;

use std::process::{Command, Output};

use common::{each_major, World};
use pgsluice_engine::session::conn::Conn;

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
    conn.copy_end().map_err(|e| e.message().to_owned())
}

/// `\xc3\xa9` of the text format are two bytes of the *database's* encoding, in
/// LATIN1 two characters and not one: only the server can tell. Beside them stand
/// characters of the file's own encoding, quotes and backslashes.
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

/// Escapes that are no characters of the database's encoding are refused as stock
/// COPY refuses them, and rejected alone.
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
        assert_eq!(output.status.code(), Some(1), "{method}");
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

/// Characters, one of which is in each of the server's encodings.
const CHARACTERS: [&str; 9] = ["é", "ж", "日本", "한국", "ب", "α", "א", "ไ", "ơ"];

/// By their names, as stock COPY converts them.
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
            eprintln!("left out: {name} has none of the characters");
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
}
