//! Settings for index builds, for one transaction only.

use crate::error::Error;
use crate::session::conn::Conn;

/// What index builds may use at most where nobody has set a limit.
const MOST: u64 = 1 << 30;

/// Raises `maintenance_work_mem` until the transaction ends, where it has the
/// server's default: to a quarter of `shared_buffers`, which grows with the
/// machine. A value that somebody has set is kept. Gives what was set, as
/// `name = value`.
///
/// # Errors
///
/// The connection is lost.
pub fn for_builds(conn: &mut Conn) -> Result<Option<String>, Error> {
    let rows = conn.exec(
        "SELECT source, pg_catalog.pg_size_bytes(pg_catalog.current_setting(name)), \
         pg_catalog.pg_size_bytes(pg_catalog.current_setting('shared_buffers')) \
         FROM pg_catalog.pg_settings WHERE name = 'maintenance_work_mem'",
    )?;
    let number = |i: usize| rows[0][i].as_deref().unwrap_or("").parse::<u64>().unwrap_or(0);
    let better = (number(2) / 4).min(MOST) >> 20 << 20;
    if rows[0][0].as_deref() != Some("default") || better <= number(1) {
        return Ok(None);
    }
    let value = format!("{}MB", better >> 20);
    conn.exec(&format!("SET LOCAL maintenance_work_mem = '{value}'"))?;
    Ok(Some(format!("maintenance_work_mem = {value}")))
}
