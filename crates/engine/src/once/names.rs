//! Files and other names of contents in the ledger: adds, drops and updates them.

use super::lookup::number;
use super::record::{Alias, Target, Touched, Wanted};
use crate::error::Error;
use crate::session::conn::Conn;
use serde_json::{json, Value};

/// The files of the parameter `$1`. `number` is that of the content that an earlier load has begun.
const FILES: &str =
    "pg_catalog.jsonb_to_recordset($1::jsonb) AS f(file integer, number bigint, name text, \
     size bigint, modified bigint, head bytea, tail bytea, whole boolean)";

/// The newest load that has loaded something of the content `s`.
const NEWEST: &str = "(SELECT pg_catalog.max(k.load) FROM pgsluice_loads.pieces p \
    JOIN pgsluice_loads.commits k ON k.number = p.commit WHERE p.source = s.number)";

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
    let continues = files.iter().any(|file| file.begun.is_some());
    let earlier = if continues { take_names(conn, &rows, &oid)? } else { None };
    if continues {
        // A stream that was loaded as a whole stays complete, even if this comparison fails.
        conn.query(
            &format!(
                "UPDATE pgsluice_loads.sources s SET load = $2::bigint, name = f.name, \
                   state = CASE WHEN f.whole THEN state ELSE 'loading' END, \
                   completed = CASE WHEN f.whole THEN completed END, options = $3::jsonb, \
                   size = f.size, modified = f.modified, head = f.head, tail = f.tail \
                 FROM {FILES} WHERE s.number = f.number"
            ),
            &[Some(&rows), Some(&load), Some(fingerprint)],
        )?;
    }
    conn.query(
        &format!(
            "INSERT INTO pgsluice_loads.sources \
               (target, name, size, modified, head, tail, options, load) \
             SELECT $3::oid, name, size, modified, head, tail, $4::jsonb, $2::bigint \
             FROM {FILES} WHERE number IS NULL ORDER BY file"
        ),
        &[Some(&rows), Some(&load), Some(&oid), Some(fingerprint)],
    )?;
    if let Some(earlier) = earlier {
        keep_names(conn, &earlier, &oid)?;
    }
    let found = conn.query(
        &format!(
            "SELECT s.number FROM {FILES} JOIN pgsluice_loads.sources s \
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

/// Makes the names of the files free, which may be other names of contents that are loaded under
/// them from now on. Returns the rows of these contents, as JSON, with the names that they have.
fn take_names(conn: &mut Conn, files: &str, target: &str) -> Result<Option<String>, Error> {
    conn.query(
        &format!(
            "DELETE FROM pgsluice_loads.sources s USING {FILES} \
             WHERE s.target = $2::oid AND s.name = f.name AND s.same_as = f.number"
        ),
        &[Some(files), Some(target)],
    )?;
    let rows = conn.query(
        &format!(
            "SELECT pg_catalog.jsonb_agg(pg_catalog.to_jsonb(s)) FROM {FILES} \
             JOIN pgsluice_loads.sources s ON s.number = f.number WHERE s.name <> f.name"
        ),
        &[Some(files)],
    )?;
    Ok(rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
}

/// Adds the names that contents had before as other names of them. A file of such a name must not be
/// taken for a new one, whatever it holds later.
fn keep_names(conn: &mut Conn, earlier: &str, target: &str) -> Result<(), Error> {
    conn.query(
        "INSERT INTO pgsluice_loads.sources (target, name, size, modified, head, tail, options, \
           state, load, same_as, completed) \
         SELECT $2::oid, name, size, modified, head, tail, options, state, load, number, completed \
         FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS e(number bigint, name text, size bigint, \
           modified bigint, head bytea, tail bytea, options jsonb, state text, load bigint, \
           completed timestamptz)",
        &[Some(earlier), Some(target)],
    )
    .map(drop)
}

/// Completes other names of contents that are complete now. A name under which an earlier load had
/// only begun the content gets no time of completion: its file was not compared with what was loaded
/// since.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn complete_names(conn: &mut Conn, sources: &str) -> Result<(), Error> {
    conn.query(
        &format!("UPDATE pgsluice_loads.sources o SET state = 'complete', load = coalesce({NEWEST}, s.load), \
           completed = CASE WHEN o.completed IS NOT NULL THEN pg_catalog.clock_timestamp() END \
         FROM pgsluice_loads.sources s WHERE o.same_as = s.number AND o.state = 'loading' \
           AND s.state = 'complete' AND s.number IN (SELECT n::bigint \
             FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n)"),
        &[Some(sources)],
    )
    .map(drop)
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
        let Alias { seen, ends, same_as, was } = alias;
        json!({ "name": seen.name, "size": seen.size, "modified": seen.modified,
            "head": ends.head, "tail": ends.tail, "same_as": same_as, "was": was })
    };
    let rows = Value::from_iter(aliases.iter().map(row)).to_string();
    let sql = format!(
        "INSERT INTO pgsluice_loads.sources (target, name, size, modified, head, tail, options, \
           state, load, same_as, completed) \
         SELECT $2::oid, f.name, f.size, f.modified, f.head, f.tail, $3::jsonb, 'complete', \
           CASE WHEN f.was IS NULL THEN coalesce({NEWEST}, s.load) ELSE w.load END, f.same_as, CASE WHEN f.was IS NULL THEN pg_catalog.clock_timestamp() \
             ELSE coalesce(w.completed, l.started) END \
         FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS f(name text, size bigint, \
           modified bigint, head bytea, tail bytea, same_as bigint, was bigint) \
         JOIN pgsluice_loads.sources s ON s.number = f.same_as \
         JOIN pgsluice_loads.sources w ON w.number = coalesce(f.was, f.same_as) \
         JOIN pgsluice_loads.loads l ON l.number = w.load \
         WHERE s.state = 'complete' OR s.load = $4::bigint \
         ON CONFLICT (target, name) DO UPDATE SET (size, modified, head, tail, options, state, \
             load, same_as, completed) = (excluded.size, excluded.modified, excluded.head, \
             excluded.tail, excluded.options, excluded.state, excluded.load, excluded.same_as, \
             excluded.completed)"
    );
    let (target, load) = (target.oid.to_string(), load.to_string());
    conn.query(&sql, &[Some(&rows), Some(&target), Some(fingerprint), Some(&load)]).map(drop)
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

/// Records the present size and time of complete files whose content has not changed. A name relies
/// on all pieces that its content has now, unless it is what that was before.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn touch(conn: &mut Conn, files: &[Touched]) -> Result<(), Error> {
    if files.is_empty() {
        return Ok(());
    }
    let row = |file: &Touched| {
        let Touched { row, seen, ends, was } = file;
        json!({ "number": row, "name": seen.name, "size": seen.size, "modified": seen.modified,
            "head": ends.head, "tail": ends.tail, "was": was })
    };
    let rows = Value::from_iter(files.iter().map(row)).to_string();
    let sql = format!(
        "UPDATE pgsluice_loads.sources o SET size = f.size, modified = f.modified, \
           head = f.head, tail = f.tail, \
           load = CASE WHEN f.was THEN o.load ELSE coalesce({NEWEST}, o.load) END, \
           completed = CASE WHEN o.same_as IS NULL THEN o.completed \
             WHEN f.was THEN coalesce(o.completed, l.started) \
             ELSE pg_catalog.clock_timestamp() END \
         FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS f(number bigint, name text, \
             size bigint, modified bigint, head bytea, tail bytea, was boolean) \
           JOIN pgsluice_loads.sources r ON r.number = f.number \
           JOIN pgsluice_loads.sources s ON s.number = coalesce(r.same_as, r.number) \
           JOIN pgsluice_loads.loads l ON l.number = r.load \
         WHERE o.number = f.number AND o.name = f.name"
    );
    conn.query(&sql, &[Some(&rows)]).map(drop)
}
