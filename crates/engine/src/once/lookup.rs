//! Reads from the ledger what is recorded of the files of a load, and claims the files.

use super::identity::{Ends, Seen};
use crate::error::Error;
use crate::input::{Counts, KnownPiece};
use crate::session::conn::Conn;
use serde_json::Value;
use std::collections::HashMap;

/// The maximum number of locks that a load takes; the server has room for a few thousand. Files
/// with the same lock wait for each other.
const CLAIMS: u8 = 255;

/// A row of `sources` that may be about a file.
#[derive(Clone, Debug)]
pub(super) struct KnownSource {
    /// the file's index
    pub file: usize,
    pub number: i64,
    pub name: String,
    /// the row has the name of the file
    pub by_name: bool,
    pub size: u64,
    /// the hash of its first bytes
    pub head: String,
    /// the hash of its last bytes
    pub tail: String,
    /// the hash of its header
    pub header: Option<String>,
    pub complete: bool,
    /// a file of this name was all loaded, or had the same bytes as one that was
    pub compared: bool,
    /// the content is complete
    pub whole: bool,
    /// the last load of the source
    pub load: i64,
    pub options: String,
    /// the row that has the pieces of the content
    pub content: i64,
}

/// Finds the files that are complete and have not changed since, by name, size and time. Returns
/// the index of each, and the options with which it was loaded. A name without a time of completion
/// is that of a file that was completed under another name, and was not compared since.
///
/// The server looks up each name in an index. The plan of a join would depend on estimates: the
/// server knows neither the number of files nor, before the first ANALYZE, the number of rows.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn complete(
    conn: &mut Conn,
    target: u32,
    files: &[(usize, &Seen)],
) -> Result<Vec<(usize, String)>, Error> {
    let by_name: HashMap<&str, (usize, &Seen)> =
        files.iter().map(|(file, seen)| (seen.name.as_str(), (*file, *seen))).collect();
    let names = Value::from_iter(by_name.keys().copied());
    let rows = conn.query(
        "SELECT name, size, modified, options FROM pgsluice_loads.sources \
         WHERE target = $1::oid AND state = 'complete' AND completed IS NOT NULL \
           AND name = ANY (ARRAY(SELECT pg_catalog.jsonb_array_elements_text($2::jsonb)))",
        &[Some(&target.to_string()), Some(&names.to_string())],
    )?;
    let found = |row: Vec<Option<String>>| {
        let (file, seen) = by_name.get(row[0].as_deref()?)?;
        let same = (seen.size, seen.modified) == (number::<u64>(&row[1]), number::<i64>(&row[2]));
        same.then(|| (*file, text(&row[3])))
    };
    Ok(rows.into_iter().filter_map(found).collect())
}

/// Waits for other loads of the same names or contents, and makes them wait until the transaction
/// ends. Loads that are `shared` do not wait for each other. Calls `waiting` before it waits.
///
/// # Errors
///
/// The connection is lost, or the wait takes too long.
pub(super) fn claim(
    conn: &mut Conn,
    target: u32,
    files: &[(&Seen, &Ends)],
    shared: bool,
    waiting: &dyn Fn(),
) -> Result<(), Error> {
    let shared = if shared { "_shared" } else { "" };
    let claim_of = |text: String| blake3::hash(text.as_bytes()).as_bytes()[0] % CLAIMS;
    let mut claims: Vec<u8> = files
        .iter()
        .flat_map(|(seen, ends)| {
            let content = format!("content {} {} {}", seen.size, ends.head, ends.tail);
            let content = (!seen.stream).then(|| claim_of(content));
            [Some(claim_of(format!("name {}", seen.name))), content].into_iter().flatten()
        })
        .collect();
    claims.sort_unstable();
    claims.dedup();
    let (target, claims) = (target.to_string(), Value::from_iter(claims).to_string());
    // All loads take the locks in the same order, so there are no deadlocks.
    let with = |function: &str| {
        format!(
            "SELECT pg_catalog.{function}{shared}(key) FROM ( \
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
    // Release the locks that were free, and take all of them in order: other loads may hold locks
    // that come earlier.
    conn.exec("ROLLBACK TO SAVEPOINT pgsluice_claim")?;
    waiting();
    conn.query(&with("pg_advisory_xact_lock"), &parameters).map(drop)
}

/// Finds the rows that may be about the files: first those with the name of a file, then those with
/// the same content.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn candidates(
    conn: &mut Conn,
    target: u32,
    files: &[(usize, &Seen, &Ends)],
) -> Result<Vec<KnownSource>, Error> {
    const COLUMNS: &str = "number, name, size, state, options, coalesce(same_as, number), \
         E'\\\\x' || pg_catalog.encode(head, 'hex'), E'\\\\x' || pg_catalog.encode(tail, 'hex'), \
         (SELECT E'\\\\x' || pg_catalog.encode(h.hash, 'hex') FROM pgsluice_loads.headers h \
           WHERE h.source = coalesce(sources.same_as, sources.number)), load, \
         completed IS NOT NULL, NOT EXISTS (SELECT FROM pgsluice_loads.sources c \
           WHERE c.number = sources.same_as AND c.state <> 'complete') \
         FROM pgsluice_loads.sources WHERE target = $1::oid";
    let target = target.to_string();
    let row = |file: usize, by_name: bool, row: &[Option<String>]| KnownSource {
        file,
        number: number(&row[0]),
        name: text(&row[1]),
        by_name,
        size: number(&row[2]),
        complete: row[3].as_deref() == Some("complete"),
        options: text(&row[4]),
        content: number(&row[5]),
        head: text(&row[6]),
        tail: text(&row[7]),
        header: row[8].clone(),
        load: number(&row[9]),
        compared: row[10].as_deref() == Some("t"),
        whole: row[11].as_deref() == Some("t"),
    };
    let (mut by_name, mut by_content) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
    for (file, seen, ends) in files {
        by_name.insert(seen.name.as_str(), *file);
        if seen.stream {
            continue;
        }
        let content = (seen.size, ends.head.as_str(), ends.tail.as_str());
        by_content.entry(content).or_default().push((*file, seen.name.as_str()));
    }
    let names = Value::from_iter(by_name.keys().copied()).to_string();
    let of_name = format!(
        "SELECT {COLUMNS} AND name = ANY (ARRAY(SELECT pg_catalog.jsonb_array_elements_text($2::jsonb)))"
    );
    let mut found = Vec::new();
    for cells in conn.query(&of_name, &[Some(&target), Some(&names)])? {
        let file = cells[1].as_deref().and_then(|name| by_name.get(name));
        found.extend(file.map(|file| row(*file, true, &cells)));
    }
    let heads = Value::from_iter(by_content.keys().map(|(_, head, _)| *head)).to_string();
    // Other names of a content count, too: the content may have grown since they were recorded.
    let of_content = format!(
        "SELECT DISTINCT ON (coalesce(same_as, number), size, head, tail) {COLUMNS} \
           AND head = ANY (ARRAY(SELECT h::bytea \
             FROM pg_catalog.jsonb_array_elements_text($2::jsonb) h)) \
         ORDER BY coalesce(same_as, number), size, head, tail, same_as IS NOT NULL, \
           state <> 'complete', completed IS NULL, number"
    );
    for cells in conn.query(&of_content, &[Some(&target), Some(&heads)])? {
        let (head, tail, name) = (text(&cells[6]), text(&cells[7]), text(&cells[1]));
        let content = (number(&cells[2]), head.as_str(), tail.as_str());
        for (file, own) in by_content.get(&content).into_iter().flatten() {
            found.extend((*own != name).then(|| row(*file, false, &cells)));
        }
    }
    Ok(found)
}

/// Reads the pieces of a source that are loaded, in order.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn pieces(conn: &mut Conn, source: i64) -> Result<Vec<KnownPiece>, Error> {
    pieces_until(conn, source, i64::MAX)
}

/// Reads the pieces of a source that were loaded by `load` or by earlier loads, in order.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn pieces_until(
    conn: &mut Conn,
    source: i64,
    load: i64,
) -> Result<Vec<KnownPiece>, Error> {
    let rows = conn.query(
        "SELECT p.start_byte, p.end_byte, p.records, p.lines, pg_catalog.encode(p.hash, 'hex') \
         FROM pgsluice_loads.pieces p JOIN pgsluice_loads.commits c ON c.number = p.commit \
         WHERE p.source = $1::bigint AND c.load <= $2::bigint ORDER BY p.start_byte",
        &[Some(&source.to_string()), Some(&load.to_string())],
    )?;
    rows.iter().map(|row| known_piece(row)).collect()
}

/// Parses a piece: first byte, end (the byte after the last one), records, lines, hash.
pub(super) fn known_piece(row: &[Option<String>]) -> Result<KnownPiece, Error> {
    let hash = blake3::Hash::from_hex(text(&row[4]))
        .map_err(|e| Error::new(format!("a row of pgsluice_loads.pieces: {e}")))?;
    let counts = Counts { records: number(&row[2]), lines: number(&row[3]) };
    Ok(KnownPiece { bytes: number(&row[0])..number(&row[1]), counts, hash })
}

/// A file that several machines load in parts.
pub(super) struct SharedRow {
    pub number: i64,
    pub name: String,
    pub size: u64,
    pub modified: i64,
    pub head: String,
    pub tail: String,
    pub options: String,
}

/// Finds the files of a table that have parts.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn shared_rows(conn: &mut Conn, target: u32) -> Result<Vec<SharedRow>, Error> {
    let rows = conn.query(
        "SELECT s.number, s.name, s.size, s.modified, \
           E'\\\\x' || pg_catalog.encode(s.head, 'hex'), \
           E'\\\\x' || pg_catalog.encode(s.tail, 'hex'), s.options FROM pgsluice_loads.sources s \
         WHERE s.target = $1::oid AND s.state = 'loading' \
           AND EXISTS (SELECT FROM pgsluice_loads.parts p WHERE p.source = s.number)",
        &[Some(&target.to_string())],
    )?;
    let row = |row: &Vec<Option<String>>| SharedRow {
        number: number(&row[0]),
        name: text(&row[1]),
        size: number(&row[2]),
        modified: number(&row[3]),
        head: text(&row[4]),
        tail: text(&row[5]),
        options: text(&row[6]),
    };
    Ok(rows.iter().map(row).collect())
}

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}

/// Parses a number from the server whose column is NOT NULL.
pub(super) fn number<T: std::str::FromStr + Default>(value: &Option<String>) -> T {
    value.as_ref().and_then(|text| text.parse().ok()).unwrap_or_default()
}
