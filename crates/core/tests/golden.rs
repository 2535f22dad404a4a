//! The core encodes values, in the text format of the server, into the same PGCOPY bytes as the
//! server.
//!
//! `fixtures/golden/*.sql` has the queries. Next to each are PostgreSQL's results, as text and as
//! binary (`UPDATE` in `crates/engine/tests/golden.rs`).

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use pgsluice_core::row;
use pgsluice_core::scan::{Dialect, Eol, Next, Record, Scanner};
use pgsluice_core::shape::{Column, Env, RowShape, Type};
use pgsluice_core::sink::{PgCopySink, HEADER, TRAILER};
use std::fs;
use std::path::{Path, PathBuf};

fn queries() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden");
    let entries = fs::read_dir(dir).expect("the fixtures").map(|e| e.unwrap().path());
    let mut queries: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "sql")).collect();
    queries.sort();
    queries
}

/// The type that the query's first line names: `-- oid 23 typmod -1`.
fn column_type(query: &Path) -> Type {
    let sql = fs::read_to_string(query).unwrap();
    let words: Vec<&str> = sql.lines().next().unwrap().split(' ').collect();
    assert_eq!((words[1], words[3]), ("oid", "typmod"));
    Type::from_oid(words[2].parse().unwrap(), words[4].parse().unwrap())
}

fn encode(ty: Type, text: &[u8]) -> Result<Vec<u8>, String> {
    let env = Env { utc: true, money_c: true, ..Env::default() };
    let shape = RowShape { columns: vec![Column::new("v", ty, 0)], fields: 1, env };
    let dialect = Dialect::text();
    let mut scanner = Scanner::new(text, true, &dialect, Eol::Unknown);
    let mut record = Record::default();
    let mut sink = PgCopySink::new(1);
    while scanner.next(&mut record).map_err(|e| e.to_string())? == Next::Record {
        row::put(&shape, text, &record, &mut sink)
            .map_err(|e| format!("line {}: {e:?}", record.line))?;
    }
    Ok([HEADER.as_slice(), sink.bytes(), TRAILER].concat())
}

/// For each query, the core makes the server's binary bytes from the server's text.
#[test]
fn the_core_makes_the_servers_bytes() {
    let queries = queries();
    assert!(queries.len() > 40, "{} fixtures", queries.len());
    for query in queries {
        let text = fs::read(query.with_extension("txt")).expect("the server's text");
        let binary = fs::read(query.with_extension("pgcopy")).expect("the server's bytes");
        let made = encode(column_type(&query), &text).unwrap_or_else(|e| panic!("{query:?}: {e}"));
        assert!(made == binary, "{query:?}:\nmade   {made:02x?}\nserver {binary:02x?}");
    }
}
