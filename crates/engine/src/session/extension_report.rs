//! How the extension's COPY fills the table's indexes: what it plans, and what it has done.

use super::conn::Conn;
use crate::error::Error;
use crate::options::Method;
use crate::plan::Plan;

/// One line for each index that stays in place: the way that its entries take
/// if the load is long enough for that, and why not a faster one.
const PLANNED: &str = "SELECT pg_catalog.format('fill %s by %s%s', index, way, ': ' || because) \
    FROM pgsluice.index_ways($1::oid::regclass, $2) \
    WHERE NOT index = ANY ($3::regclass[]) ORDER BY index";

/// One line for each index: the rows by the ways of their entries.
const TAKEN: &str = "SELECT pg_catalog.format('%s: %s%s', x->>'index', \
      (SELECT coalesce(string_agg(rows || ' rows by ' || way, ', ' ORDER BY way), 'no rows') \
       FROM pg_catalog.jsonb_each_text(x->'rows') r (way, rows)), \
      ': ' || (x->>'because')) \
    FROM pgsluice.last_copy, pg_catalog.jsonb_array_elements(indexes) x ORDER BY x->>'index'";

/// What the extension would do with each of the table's indexes that is not among
/// `down`, the names of those that the load takes down. Nothing with another method.
///
/// # Errors
///
/// The connection is lost.
pub fn planned(conn: &mut Conn, plan: &Plan, down: &[&str]) -> Result<Vec<String>, Error> {
    if plan.method != Method::Extension {
        return Ok(Vec::new());
    }
    let quoted =
        down.iter().map(|n| format!("\"{}\"", n.replace('\\', "\\\\").replace('"', "\\\"")));
    let down = format!("{{{}}}", quoted.collect::<Vec<_>>().join(","));
    let (oid, private) = (plan.oid.to_string(), plan.private.to_string());
    lines(conn, PLANNED, &[Some(&oid), Some(&private), Some(&down)])
}

/// What the extension's COPY has done with each index, if all rows went by one
/// COPY of its own. In the transaction of that COPY: behind a pooler the next
/// one may be another session's.
///
/// # Errors
///
/// The connection is lost.
pub fn taken(conn: &mut Conn, plan: &Plan, statements: u64) -> Result<Vec<String>, Error> {
    if plan.method != Method::Extension || statements != 1 {
        return Ok(Vec::new());
    }
    lines(conn, TAKEN, &[])
}

fn lines(conn: &mut Conn, sql: &str, values: &[Option<&str>]) -> Result<Vec<String>, Error> {
    let rows = conn.query(sql, values)?;
    Ok(rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
}
