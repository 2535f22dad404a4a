//! How the extension's COPY fills the table's indexes: what it plans, and what it has done.

use super::conn::Conn;
use crate::error::Error;
use crate::options::Method;
use crate::plan::Plan;

/// One line for each index that is not dropped: how its entries are made if the load is large
/// enough for that, and why no faster way is used.
const PLANNED: &str = "SELECT pg_catalog.format('fill %s by %s%s', index, way, ': ' || because) \
    FROM pgsluice.index_ways($1::oid::regclass, $2) \
    WHERE NOT index::oid = ANY ($3::regclass[]::oid[]) ORDER BY index";

/// One line for each index: the number of rows by the way in which their entries were made.
const TAKEN: &str = "SELECT pg_catalog.format('%s: %s%s', x->>'index'::text, \
      (SELECT coalesce(pg_catalog.string_agg(rows || ' rows by ' || way, ', ' ORDER BY way), \
         'no rows') FROM pg_catalog.jsonb_each_text(x->'rows'::text) r (way, rows)), \
      ': ' || (x->>'because'::text)) \
    FROM pgsluice.last_copy, pg_catalog.jsonb_array_elements(indexes) x ORDER BY x->>'index'::text";

/// How the extension would fill each index of the table that is not in `down`, the names of the
/// indexes that the load drops. Empty with another method.
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

/// How the extension's COPY has filled each index, if all rows were loaded by one COPY of the
/// extension. Call this in the transaction of that COPY: with a pooler, the next transaction may be
/// in another session.
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
