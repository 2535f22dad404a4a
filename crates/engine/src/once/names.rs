//! Names of contents in the ledger: adds, drops and updates them.

use super::identity::{Ends, Seen};
use super::record::{Alias, Target};
use crate::error::Error;
use crate::session::conn::Conn;
use serde_json::{json, Value};

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
