//! Databases in another encoding than UTF-8: what a load makes of escapes.

mod common;

use std::process::Command;

use common::{each_major, World};
use pgsluice_engine::session::conn::Conn;

/// `\xc3\xa9` of text format are two bytes of the *database's* encoding, here two
/// characters and not one: only the server can tell.
#[test]
fn escapes_mean_bytes_of_the_databases_encoding() {
    let world = World::new(&each_major()[0]);
    let mut conn = Conn::open(&world.server.url("postgres")).unwrap();
    conn.exec("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'").unwrap();
    let url = world.server.url("latin");
    let mut latin = Conn::open(&url).unwrap();
    latin.exec("SET client_encoding = UTF8").unwrap();
    latin.exec("CREATE TABLE t (a int, b text); CREATE TABLE s (a int, b text)").unwrap();
    let bytes = b"1\t\\xc3\\xa9\n2\t\xc3\xa9\n";
    latin.copy_start("COPY s FROM STDIN").unwrap();
    latin.copy_data(bytes).unwrap();
    latin.copy_end().unwrap();
    let file = world.file("escapes", bytes);
    for method in ["copy-binary", "copy-csv", "copy-text"] {
        latin.exec("TRUNCATE t").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["load", &file, "--format", "text", "--table", "t", "--method", method])
            .args(["--quiet", "--to", &url])
            .output()
            .unwrap();
        assert!(output.status.success(), "{method}: {}", String::from_utf8_lossy(&output.stderr));
        let rows = "SELECT string_agg(a || b, ',' ORDER BY a) FROM";
        let (theirs, ours) = (format!("{rows} s"), format!("{rows} t"));
        assert_eq!(latin.exec(&ours).unwrap(), latin.exec(&theirs).unwrap(), "{method}");
    }
}
