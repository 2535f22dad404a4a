//! Settings for reading definitions and for building indexes, for one transaction only.

use crate::error::Error;
use crate::session::conn::{quote_literal, Conn};

/// With these settings, the server writes every name in full, and every constant in a form that is
/// read as the same value under any settings. Backslashes are the exception: `place` in
/// `indexes.sql` sets `standard_conforming_strings` before a definition is executed.
const EXACT: &str = "SELECT name, pg_catalog.current_setting(name), \
    pg_catalog.set_config(name, value, true) FROM (VALUES ('search_path', 'pg_catalog'), \
    ('extra_float_digits', '3'), ('DateStyle', 'ISO'), ('IntervalStyle', 'postgres'), \
    ('standard_conforming_strings', 'on')) AS exact(name, value)";

/// Memory that the server requires for each process of a build (`plan_create_index_workers`), in
/// MB.
const EACH: u64 = 32;

/// Sets the settings for exact definitions until the transaction ends. Returns a statement that
/// restores the previous settings.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn exact(conn: &mut Conn) -> Result<String, Error> {
    let rows = conn.exec(EXACT)?;
    let literal = |cell: &Option<String>| quote_literal(cell.as_deref().unwrap_or_default());
    let set = |row: &Vec<Option<String>>| {
        format!("pg_catalog.set_config({}, {}, true)", literal(&row[0]), literal(&row[1]))
    };
    Ok(format!("SELECT {}", rows.iter().map(set).collect::<Vec<_>>().join(", ")))
}

/// Raises `maintenance_work_mem` until the transaction ends, if it has the server's default and is
/// too low for the allowed number of parallel workers, to what they need. A value that someone has
/// set is kept. Returns the name and the value that were set.
///
/// # Errors
///
/// The connection is lost.
pub fn for_builds(conn: &mut Conn) -> Result<Option<(String, String)>, Error> {
    let rows = conn.exec(
        "SELECT source, pg_catalog.pg_size_bytes(pg_catalog.current_setting(name)), \
         pg_catalog.current_setting('max_parallel_maintenance_workers') \
         FROM pg_catalog.pg_settings WHERE name = 'maintenance_work_mem'",
    )?;
    let number = |i: usize| rows[0][i].as_deref().unwrap_or("").parse::<u64>().unwrap_or(0);
    let wanted = EACH * (number(2) + 1);
    if rows[0][0].as_deref() != Some("default") || wanted << 20 <= number(1) {
        return Ok(None);
    }
    conn.exec(&format!("SET LOCAL maintenance_work_mem = '{wanted}MB'"))?;
    Ok(Some(("maintenance_work_mem".into(), format!("{wanted}MB"))))
}
