//! What the ledger has of the files of a load.

use super::identity::{Ends, Seen};
use crate::error::Error;
use crate::input::{Counts, KnownPiece};
use crate::session::conn::Conn;
use serde_json::{json, Value};

/// How many locks a load takes at most: the server has room for a few thousand. Files that share
/// one wait for each other.
const CLAIMS: u8 = 255;

/// A row of `sources` that may be about a file.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// the file's index
    pub file: usize,
    pub number: i64,
    pub name: String,
    /// the file has the row's name
    pub by_name: bool,
    pub size: u64,
    /// the hash of its first bytes
    pub head: String,
    pub complete: bool,
    pub options: String,
    /// the row whose pieces describe the content
    pub content: i64,
}

/// Files that are complete and have not changed since, by name, size and time: the index of each,
/// and the options that it was loaded with.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn complete(
    conn: &mut Conn,
    target: u32,
    files: &[(usize, &Seen)],
) -> Result<Vec<(usize, String)>, Error> {
    let files = files.iter().map(|(file, seen)| {
        json!({ "file": file, "name": seen.name, "size": seen.size, "modified": seen.modified })
    });
    let rows = conn.query(
        "SELECT f.file, s.options \
         FROM pg_catalog.jsonb_to_recordset($2::jsonb) \
           AS f(file integer, name text, size bigint, modified bigint) \
         JOIN pgsluice_loads.sources s ON s.target = $1::oid AND s.name = f.name \
         WHERE s.state = 'complete' AND s.size = f.size AND s.modified = f.modified",
        &[Some(&target.to_string()), Some(&Value::from_iter(files).to_string())],
    )?;
    Ok(rows.into_iter().map(|row| (number(&row[0]), text(&row[1]))).collect())
}

/// Waits for other loads of the same names or contents, and keeps them waiting until the
/// transaction ends. Calls `waiting` before it waits.
///
/// # Errors
///
/// The connection is lost, or the wait takes too long.
pub(super) fn claim(
    conn: &mut Conn,
    target: u32,
    files: &[(&Seen, &Ends)],
    waiting: &dyn Fn(),
) -> Result<(), Error> {
    let claim_of = |text: String| blake3::hash(text.as_bytes()).as_bytes()[0] % CLAIMS;
    let mut claims: Vec<u8> = files
        .iter()
        .flat_map(|(seen, ends)| {
            let content = format!("content {} {} {}", seen.size, ends.head, ends.tail);
            [claim_of(format!("name {}", seen.name)), claim_of(content)]
        })
        .collect();
    claims.sort_unstable();
    claims.dedup();
    let (target, claims) = (target.to_string(), Value::from_iter(claims).to_string());
    // All loads take the locks in the same order, so that none of them waits in a circle.
    let with = |function: &str| {
        format!(
            "SELECT pg_catalog.{function}(key) FROM ( \
               SELECT pg_catalog.hashtextextended('pgsluice_loads once ' || $1::text || ' ' || claim, 0) AS key \
               FROM pg_catalog.jsonb_array_elements_text($2::jsonb) AS claim ORDER BY key OFFSET 0) AS keys"
        )
    };
    let parameters = [Some(target.as_str()), Some(claims.as_str())];
    conn.exec("SAVEPOINT pgsluice_claim")?;
    let free = conn.query(&with("pg_try_advisory_xact_lock"), &parameters)?;
    if free.iter().all(|row| row[0].as_deref() == Some("t")) {
        return Ok(());
    }
    // Gives back those that were free: others may come before them in the order.
    conn.exec("ROLLBACK TO SAVEPOINT pgsluice_claim")?;
    waiting();
    conn.query(&with("pg_advisory_xact_lock"), &parameters).map(drop)
}

/// The rows that may be about the files, those with a file's name before those with its content.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn candidates(
    conn: &mut Conn,
    target: u32,
    files: &[(usize, &Seen, &Ends)],
) -> Result<Vec<Row>, Error> {
    let files = files.iter().map(|(file, seen, ends)| {
        json!({ "file": file, "name": seen.name, "size": seen.size, "head": ends.head,
            "tail": ends.tail })
    });
    let rows = conn.query(
        "WITH f AS MATERIALIZED (SELECT * FROM pg_catalog.jsonb_to_recordset($2::jsonb) \
           AS f(file integer, name text, size bigint, head bytea, tail bytea)) \
         SELECT f.file, s.number, s.name, true, s.size, s.state, s.options, \
             coalesce(s.same_as, s.number), '\\x' || pg_catalog.encode(s.head, 'hex') \
           FROM f JOIN pgsluice_loads.sources s ON s.target = $1::oid AND s.name = f.name \
         UNION ALL \
         SELECT f.file, s.number, s.name, false, s.size, s.state, s.options, s.number, \
             '\\x' || pg_catalog.encode(s.head, 'hex') \
           FROM f JOIN pgsluice_loads.sources s ON s.target = $1::oid AND s.size = f.size \
             AND s.head = f.head AND s.tail = f.tail AND s.name <> f.name \
           WHERE s.same_as IS NULL \
         ORDER BY 1, 4 DESC, 2",
        &[Some(&target.to_string()), Some(&Value::from_iter(files).to_string())],
    )?;
    let row = |row: Vec<Option<String>>| Row {
        file: number(&row[0]),
        number: number(&row[1]),
        name: text(&row[2]),
        by_name: row[3].as_deref() == Some("t"),
        size: number(&row[4]),
        complete: row[5].as_deref() == Some("complete"),
        options: text(&row[6]),
        content: number(&row[7]),
        head: text(&row[8]),
    };
    Ok(rows.into_iter().map(row).collect())
}

/// The pieces of a source that are in the table, in their order.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn pieces(conn: &mut Conn, source: i64) -> Result<Vec<KnownPiece>, Error> {
    let rows = conn.query(
        "SELECT start_byte, end_byte, records, lines, pg_catalog.encode(hash, 'hex') \
         FROM pgsluice_loads.pieces WHERE source = $1::bigint ORDER BY start_byte",
        &[Some(&source.to_string())],
    )?;
    let piece = |row: &Vec<Option<String>>| {
        let hash = blake3::Hash::from_hex(text(&row[4]))
            .map_err(|e| Error::new(format!("a row of pgsluice_loads.pieces: {e}")))?;
        let counts = Counts { records: number(&row[2]), lines: number(&row[3]) };
        Ok(KnownPiece { bytes: number(&row[0])..number(&row[1]), counts, hash })
    };
    rows.iter().map(piece).collect()
}

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}

/// A number that the server gives and whose column is NOT NULL.
pub(super) fn number<T: std::str::FromStr + Default>(value: &Option<String>) -> T {
    value.as_ref().and_then(|text| text.parse().ok()).unwrap_or_default()
}
