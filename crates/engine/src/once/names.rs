//! Files and other names of contents in the ledger: adds, drops and updates them.

use super::identity::{Ends, Seen};
use super::lookup::number;
use super::record::{Alias, Target, Wanted};
use crate::error::Error;
use crate::session::conn::Conn;
use serde_json::{json, Value};

/// Adds the new files of a load, and takes over those that an earlier load has begun. Returns their
/// numbers.
///
/// # Errors
///
/// The connection is lost, or another load has added one of the files.
pub(super) fn put_files(
    conn: &mut Conn,
    load: i64,
    target: &Target,
    files: &[Wanted],
    fingerprint: &str,
) -> Result<Vec<i64>, Error> {
    let row = |(index, file): (usize, &Wanted)| {
        let Wanted { seen, ends, begun, whole } = file;
        json!({ "file": index, "number": begun, "name": seen.name, "size": seen.size,
            "modified": seen.modified, "head": ends.head, "tail": ends.tail, "whole": whole })
    };
    let rows = Value::from_iter(files.iter().enumerate().map(row)).to_string();
    let (load, oid) = (load.to_string(), target.oid.to_string());
    let of_file = "pg_catalog.jsonb_to_recordset($1::jsonb) AS f(file integer, number bigint, \
        name text, size bigint, modified bigint, head bytea, tail bytea, whole boolean)";
    // A stream that was loaded as a whole stays complete, even if this comparison fails.
    conn.query(
        &format!(
            "UPDATE pgsluice_loads.sources s SET load = $2::bigint, name = f.name, \
               state = CASE WHEN f.whole THEN state ELSE 'loading' END, \
               completed = CASE WHEN f.whole THEN completed END, \
               options = $3::jsonb, size = f.size, modified = f.modified, head = f.head, tail = f.tail \
             FROM {of_file} WHERE s.number = f.number"
        ),
        &[Some(&rows), Some(&load), Some(fingerprint)],
    )?;
    conn.query(
        &format!(
            "INSERT INTO pgsluice_loads.sources \
               (target, name, size, modified, head, tail, options, load) \
             SELECT $3::oid, name, size, modified, head, tail, $4::jsonb, $2::bigint \
             FROM {of_file} WHERE number IS NULL ORDER BY file"
        ),
        &[Some(&rows), Some(&load), Some(&oid), Some(fingerprint)],
    )?;
    let found = conn.query(
        &format!(
            "SELECT s.number FROM {of_file} JOIN pgsluice_loads.sources s \
               ON s.target = $3::oid AND s.name = f.name AND s.load = $2::bigint ORDER BY f.file"
        ),
        &[Some(&rows), Some(&load), Some(&oid)],
    )?;
    if found.len() != files.len() {
        return Err(Error::defect("the ledger has another number of files"));
    }
    let numbers: Vec<i64> = found.iter().map(|row| number(&row[0])).collect();
    put_headers(conn, files, &numbers)?;
    Ok(numbers)
}

/// Records the hashes of the headers. If an earlier load has begun a file, its hash is replaced,
/// even if the header now does not count or cannot be read.
fn put_headers(conn: &mut Conn, files: &[Wanted], numbers: &[i64]) -> Result<(), Error> {
    let rows: Vec<Value> = files
        .iter()
        .zip(numbers)
        .filter(|(file, _)| file.ends.header.is_some() || file.begun.is_some())
        .map(|(file, number)| json!([number, file.ends.header]))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    conn.query(
        "INSERT INTO pgsluice_loads.headers (source, hash) \
         SELECT (h->>0)::bigint, (h->>1)::bytea FROM pg_catalog.jsonb_array_elements($1::jsonb) h \
         ON CONFLICT (source) DO UPDATE SET hash = excluded.hash",
        &[Some(&Value::from(rows).to_string())],
    )
    .map(drop)
}

/// Adds names of contents that are loaded, or that `load` is about to complete. For contents that
/// are all loaded, `load` is 0.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn add_names(
    conn: &mut Conn,
    target: &Target,
    aliases: &[Alias],
    fingerprint: &str,
    load: i64,
) -> Result<(), Error> {
    if aliases.is_empty() {
        return Ok(());
    }
    let row = |alias: &Alias| {
        let Alias { seen, ends, same_as } = alias;
        json!({ "name": seen.name, "size": seen.size, "modified": seen.modified,
            "head": ends.head, "tail": ends.tail, "same_as": same_as })
    };
    let rows = Value::from_iter(aliases.iter().map(row)).to_string();
    conn.query(
        "INSERT INTO pgsluice_loads.sources (target, name, size, modified, head, tail, options, \
           state, load, same_as, completed) \
         SELECT $2::oid, f.name, f.size, f.modified, f.head, f.tail, $3::jsonb, 'complete', s.load, \
           f.same_as, pg_catalog.clock_timestamp() \
         FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS f(name text, size bigint, \
           modified bigint, head bytea, tail bytea, same_as bigint) \
         JOIN pgsluice_loads.sources s ON s.number = f.same_as \
         WHERE s.state = 'complete' OR s.load = $4::bigint \
         ON CONFLICT (target, name) DO UPDATE SET (size, modified, head, tail, options, state, \
             load, same_as, completed) = (excluded.size, excluded.modified, excluded.head, \
             excluded.tail, excluded.options, excluded.state, excluded.load, excluded.same_as, \
             excluded.completed)",
        &[
            Some(&rows),
            Some(&target.oid.to_string()),
            Some(fingerprint),
            Some(&load.to_string()),
        ],
    )?;
    Ok(())
}

/// Drops rows of `sources` that have no pieces.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn drop_rows(conn: &mut Conn, rows: &[i64]) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    conn.query(
        "DELETE FROM pgsluice_loads.sources s WHERE number IN \
           (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) \
           AND NOT EXISTS (SELECT FROM pgsluice_loads.pieces p WHERE p.source = s.number)",
        &[Some(&json!(rows).to_string())],
    )
    .map(drop)
}

/// Records the present size and time of complete files whose content has not changed.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn touch(conn: &mut Conn, files: &[(i64, Seen, Ends)]) -> Result<(), Error> {
    if files.is_empty() {
        return Ok(());
    }
    let row = |(number, seen, ends): &(i64, Seen, Ends)| {
        json!({ "number": number, "size": seen.size, "modified": seen.modified,
            "head": ends.head, "tail": ends.tail })
    };
    let rows = Value::from_iter(files.iter().map(row)).to_string();
    conn.query(
        "UPDATE pgsluice_loads.sources s SET size = f.size, modified = f.modified, \
           head = f.head, tail = f.tail \
         FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS f(number bigint, size bigint, \
           modified bigint, head bytea, tail bytea) WHERE s.number = f.number",
        &[Some(&rows)],
    )
    .map(drop)
}
