//! Locks an empty table for the load alone and truncates it in the load's transaction, so that the
//! extension's COPY may build its indexes after the last row.

use super::catalog;
use super::conn::Conn;
use crate::error::Error;
use crate::facts::TableFacts;

/// Minimum size of the input in bytes. For less, a new file for each index costs more than it
/// saves.
pub const WORTH: u64 = 4 << 20;

/// Whether the table can be truncated without an effect that others could see. It must be a plain
/// table of the role with an index, and its file must have no block, so that it has no rows that
/// the role cannot see. No other table may refer to it, no trigger may fire for it, and `wal_level`
/// must not be `logical`. The rows of some tables are in other ones: see [`catalog::rows_kept_by`].
const CAN: &str = "SELECT c.relkind = 'r' AND NOT c.relispartition AND c.relhasindex \
    AND pg_catalog.pg_relation_size(c.oid) = 0 AND pg_catalog.pg_has_role(c.relowner, 'USAGE') \
    AND pg_catalog.current_setting('wal_level') <> 'logical' \
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k \
        WHERE k.confrelid = c.oid AND k.contype = 'f' AND k.conrelid <> c.oid) \
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger g \
        WHERE g.tgrelid = c.oid AND g.tgtype & 32 <> 0), $lists \
    FROM pg_catalog.pg_class c WHERE c.oid = $1::oid";

/// Whether the table could be made private now. Call this within [`in_pg_catalog`].
///
/// [`in_pg_catalog`]: super::transaction::in_pg_catalog
///
/// # Errors
///
/// The connection is lost.
pub fn can(conn: &mut Conn, table: &TableFacts) -> Result<bool, Error> {
    let can = CAN.replace("$lists", catalog::LISTS);
    let rows = conn.query(&can, &[Some(&table.oid.to_string())])?;
    match rows.first() {
        Some(row) if row[0].as_deref() == Some("t") => {
            Ok(catalog::rows_kept_by(conn, table.oid, row[1].as_deref())?.is_none())
        }
        _ => Ok(false),
    }
}

/// Locks the table for the load alone, if the lock is free and the table can be made private.
/// Otherwise takes no lock. Returns whether it is locked.
///
/// # Errors
///
/// The connection is lost.
pub fn lock(conn: &mut Conn, table: &TableFacts) -> Result<bool, Error> {
    if !can(conn, table)? {
        return Ok(false);
    }
    conn.exec("SAVEPOINT pgsluice_private")?;
    // Another session may have inserted rows before the lock was granted.
    let locked = conn
        .exec(&format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE NOWAIT", table.sql))
        .and_then(|_| can(conn, table));
    match locked {
        Ok(true) => {
            conn.exec("RELEASE SAVEPOINT pgsluice_private")?;
            Ok(true)
        }
        Err(error) if error.sqlstate().is_empty() => Err(error),
        _ => {
            conn.exec(
                "ROLLBACK TO SAVEPOINT pgsluice_private; RELEASE SAVEPOINT pgsluice_private",
            )?;
            Ok(false)
        }
    }
}
