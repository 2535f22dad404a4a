//! Forgets what is recorded of files or of a load: the next load loads it again. Rows of the table
//! stay.
//!
//! A running load is stopped first. The stop waits for transactions of that load that are about to
//! commit (`record`). So the load commits nothing of what is forgotten here.

use super::listing::begin;
use super::rejects::absolute;
use super::{slices, tables};
use crate::error::Error;
use crate::session::catalog;
use crate::session::conn::{Conn, Rows};
use crate::session::nodes;
use crate::session::transaction::refuse_read_only;
use std::path::Path;

/// The rows of all names of the content that the name `$2` has in the table with the qualified name
/// `$1`.
const OF_CONTENT: &str = "target = pg_catalog.to_regclass($1) AND coalesce(same_as, number) IN \
    (SELECT coalesce(n.same_as, n.number) FROM pgsluice_loads.sources n \
      WHERE n.target = pg_catalog.to_regclass($1) AND n.name = $2)";

/// The time of the last change that no file has.
const NEVER: i64 = i64::MIN;

/// What was forgotten.
#[derive(Clone, Debug, Default)]
pub struct Forgotten {
    /// the names that were recorded, also other names of the same contents
    pub names: Vec<String>,
    /// how many of the files are not recorded
    pub missing: usize,
}

/// Opens a connection to a server that may be written to. Returns `None` if the ledger does not
/// exist.
fn connect(url: &str) -> Result<Option<Conn>, Error> {
    let mut conn = Conn::open(url)?;
    refuse_read_only(&mut conn)?;
    Ok(tables::there(&mut conn)?.then_some(conn))
}

/// Forgets files of a table by their paths, streams by their names, and reject files of loads of
/// the table that are not complete. A file is forgotten with all names of its content. `nodes` are
/// addresses to use in place of those of the catalog.
///
/// # Errors
///
/// The server or a node of the table cannot be reached, is read-only by default, or reports an
/// error.
pub fn forget(
    url: &str,
    table: &str,
    files: &[String],
    nodes: &[(String, String)],
) -> Result<Forgotten, Error> {
    let mut all = Forgotten { missing: files.len(), ..Forgotten::default() };
    let mut loads = Vec::new();
    let Some(mut conn) = connect(url)? else { return Ok(all) };
    // The transaction does not look names up as the user's SQL does.
    let found = catalog::find(&mut conn, table)?;
    let table = found.as_ref().map_or(table, |found| found.sql.as_str());
    begin(&mut conn)?;
    for file in files {
        let path = Path::new(file).canonicalize().ok();
        // If the file is gone, resolve its folder alone.
        let path = path.or_else(|| absolute(Path::new(file)).ok());
        let path = path.and_then(|path| path.to_str().map(str::to_owned));
        // The name of a stream is not a path.
        for name in path.iter().chain([file]) {
            // It may be another name of a content that was forgotten before.
            let found = match all.names.contains(name) {
                true => Vec::new(),
                false => forget_one(&mut conn, table, name, nodes, &mut loads)?,
            };
            all.names.extend(found);
            if all.names.contains(name) {
                all.missing -= 1;
                break;
            }
        }
    }
    release(&mut conn)?;
    keeps_rejects(&mut conn, &loads)?;
    conn.exec("COMMIT")?;
    Ok(all)
}

/// Forgets what is recorded of the content that has a name. Returns all of its names, or the name
/// of the reject file. Adds its last load to `loads`.
fn forget_one(
    conn: &mut Conn,
    table: &str,
    name: &str,
    given: &[(String, String)],
    loads: &mut Vec<String>,
) -> Result<Vec<String>, Error> {
    let (table, name) = (Some(table), Some(name));
    let last = format!("SELECT load FROM pgsluice_loads.sources WHERE {OF_CONTENT}");
    loads.extend(names(conn.query(&last, &[table, name])?));
    let loading = format!(
        "number IN (SELECT load FROM pgsluice_loads.sources WHERE {OF_CONTENT} AND state = 'loading')"
    );
    stop(conn, &loading, &[table, name])?;
    let slices = forget_on_nodes(conn, table.unwrap_or_default(), name.unwrap_or_default(), given)?;
    let rows = conn.query(
        &format!(
            "WITH rejects AS (DELETE FROM pgsluice_loads.reject_files r \
                   USING pgsluice_loads.loads l WHERE l.number = r.load \
                     AND l.target = pg_catalog.to_regclass($1) AND (r.file = $2 \
                       OR pg_catalog.starts_with(r.file, $2 || '.') \
                         AND pg_catalog.substr(r.file, pg_catalog.length($2) + 2) ~ '^[0-9]+$') \
                   RETURNING $2), \
                 sources AS (DELETE FROM pgsluice_loads.sources WHERE {OF_CONTENT} RETURNING name) \
                 SELECT name FROM sources UNION SELECT * FROM rejects"
        ),
        &[table, name],
    )?;
    Ok(match (rows.is_empty(), slices, name) {
        (true, true, Some(name)) => vec![name.to_owned()],
        _ => names(rows),
    })
}

/// Forgets the slices of a content on the nodes of a table. Returns whether there were any. This is
/// done before anything is forgotten on the coordinator: if a node cannot be reached, the same
/// command can be run again later.
fn forget_on_nodes(
    conn: &mut Conn,
    table: &str,
    name: &str,
    given: &[(String, String)],
) -> Result<bool, Error> {
    let rows = conn.query(
        &format!("SELECT size, head, tail, name FROM pgsluice_loads.sources WHERE {OF_CONTENT}"),
        &[Some(table), Some(name)],
    )?;
    let mut any = false;
    for (node, tables) in nodes::tables(conn, table)? {
        let mut there = nodes::connect(conn, &node, given)?;
        refuse_read_only(&mut there).map_err(|error| nodes::of_node(&node, error))?;
        let names = rows.iter().map(|row| (row[3].as_deref().unwrap_or(name), Some(row)));
        for (name, row) in names.chain(rows.is_empty().then_some((name, None))) {
            let gone = slices::forget(&mut there, &tables, name, row);
            any |= gone.map_err(|error| nodes::of_node(&node, error))?;
        }
    }
    Ok(any)
}

/// Forgets what one load has loaded. Returns the files of which it had loaded something, or `None`
/// if there is no such load.
///
/// # Errors
///
/// As for [`forget`].
pub fn forget_load(
    url: &str,
    load: i64,
    nodes: &[(String, String)],
) -> Result<Option<Vec<String>>, Error> {
    let Some(mut conn) = connect(url)? else { return Ok(None) };
    begin(&mut conn)?;
    let load = load.to_string();
    let found = stop(&mut conn, "number = $1::bigint", &[Some(&load)])?;
    if found.is_empty() {
        return Ok(None);
    }
    let sources = "SELECT target::text, name FROM pgsluice_loads.sources s \
        WHERE load = $1::bigint OR number IN (SELECT p.source FROM pgsluice_loads.pieces p \
          JOIN pgsluice_loads.commits c ON c.number = p.commit WHERE c.load = $1::bigint)";
    for row in conn.query(sources, &[Some(&load)])? {
        if let [Some(table), Some(name)] = &row[..] {
            forget_on_nodes(&mut conn, table, name, nodes)?;
        }
    }
    // A load that continues these files treats the forgotten pieces as loaded, so stop it as well.
    stop(
        &mut conn,
        "number IN (SELECT s.load FROM pgsluice_loads.commits c \
           JOIN pgsluice_loads.pieces p ON p.commit = c.number \
           JOIN pgsluice_loads.sources s ON s.number = p.source WHERE c.load = $1::bigint)",
        &[Some(&load)],
    )?;
    conn.query(
        "UPDATE pgsluice_loads.loads SET state = 'stopped', error = 'forgotten' \
         WHERE number = $1::bigint",
        &[Some(&load)],
    )?;
    // The row of a source stays if other loads have loaded pieces of it, and so do its other names:
    // a file of such a name must not be taken for a new one. Those that rely on the forgotten pieces
    // are not complete any more. The others were complete before these: all that they have is loaded.
    // Their files are compared again, whatever their time.
    let sql = format!(
        "WITH gone AS (DELETE FROM pgsluice_loads.pieces p USING pgsluice_loads.commits c \
           WHERE c.number = p.commit AND c.load = $1::bigint RETURNING p.source, c.at), \
         begun AS (SELECT source AS number FROM gone UNION \
           SELECT number FROM pgsluice_loads.sources WHERE load = $1::bigint AND same_as IS NULL), \
         names AS (UPDATE pgsluice_loads.sources o SET state = 'loading', modified = '{NEVER}'::bigint \
           WHERE same_as IN (SELECT source FROM gone) AND (completed IS NULL \
             OR load >= $1::bigint OR EXISTS \
               (SELECT FROM gone g WHERE g.source = o.same_as AND g.at <= o.completed))), \
         parts AS (DELETE FROM pgsluice_loads.parts \
           WHERE source IN (SELECT number FROM begun)) \
         UPDATE pgsluice_loads.sources s SET state = 'loading', completed = NULL \
         FROM begun WHERE s.number = begun.number RETURNING s.name, s.load"
    );
    let rows = conn.query(&sql, &[Some(&load)])?;
    conn.query(
        "DELETE FROM pgsluice_loads.sources s WHERE state = 'loading' \
           AND target IN (SELECT target FROM pgsluice_loads.loads WHERE number = $1::bigint) \
           AND NOT EXISTS (SELECT FROM pgsluice_loads.pieces p \
             WHERE p.source = coalesce(s.same_as, s.number)) \
           AND NOT EXISTS (SELECT FROM pgsluice_loads.loads l \
             WHERE l.number = s.load AND l.state = 'running')",
        &[Some(&load)],
    )?;
    conn.query("DELETE FROM pgsluice_loads.commits WHERE load = $1::bigint", &[Some(&load)])?;
    release(&mut conn)?;
    let loads: Vec<String> = rows.iter().filter_map(|row| row[1].clone()).collect();
    keeps_rejects(&mut conn, &loads)?;
    conn.exec("COMMIT")?;
    Ok(Some(names(rows)))
}

/// Stops those of the loads that run, and waits for transactions that are about to commit. Returns
/// the numbers of all of the loads, running or not.
fn stop(conn: &mut Conn, loads: &str, parameters: &[Option<&str>]) -> Result<Rows, Error> {
    conn.query(
        &format!(
            "UPDATE pgsluice_loads.loads SET state = CASE state WHEN 'running' THEN 'stopped' \
               ELSE state END, error = CASE state WHEN 'running' THEN 'forgotten' ELSE error END, \
               ended = coalesce(ended, pg_catalog.clock_timestamp()) WHERE {loads} RETURNING number"
        ),
        parameters,
    )
}

/// Refuses to forget files of a load that has rejects and is not complete: the next load would read
/// them again, and add their rejects to the reject file again.
fn keeps_rejects(conn: &mut Conn, loads: &[String]) -> Result<(), Error> {
    let rows = conn.query(
        "SELECT file, load FROM pgsluice_loads.reject_files WHERE records > 0 AND load IN \
           (SELECT l::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) l) LIMIT 1",
        &[Some(&serde_json::json!(loads).to_string())],
    )?;
    let Some([Some(file), Some(load)]) = rows.first().map(Vec::as_slice) else { return Ok(()) };
    Err(Error::new(format!(
        "{file} has rejects of load {load}, which is not complete: the next load would add them again"
    ))
    .with_hint(format!(
        "move that file away, and forget it, too: pgsluice loads forget {file} (and the table)"
    )))
}

/// Releases the reject files of loads that have no source left.
fn release(conn: &mut Conn) -> Result<(), Error> {
    conn.exec(
        "DELETE FROM pgsluice_loads.reject_files r WHERE NOT EXISTS \
           (SELECT FROM pgsluice_loads.sources s WHERE s.load = r.load)",
    )
    .map(drop)
}

fn names(rows: Rows) -> Vec<String> {
    rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
}
