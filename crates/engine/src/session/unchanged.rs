//! Checks that the table is still the one for which the plan was made.
//!
//! A load that commits several times holds no lock between two of its transactions. DDL that waits
//! for the load runs then. Rows are sent by the name of the table and in the form of its types: the
//! same bytes may be another value of another type, and another table may have the name.

use super::conn::Conn;
use crate::error::{Error, Kind};
use crate::plan::Plan;

/// Locks the table as an INSERT does, until the transaction ends, and compares it with the plan.
///
/// # Errors
///
/// It has changed, the role may not lock it any more, or the connection is lost.
pub(crate) fn hold(conn: &mut Conn, plan: &Plan) -> Result<(), Error> {
    if let Some(lock) = &plan.shared_lock {
        conn.exec(lock).map_err(|error| match error.sqlstate() {
            "42P01" => changed(&plan.table),
            _ => error,
        })?;
    }
    // A table without columns has one row, too. Names of types would depend on the session's search
    // path, and a pooler gives each transaction any session.
    let now = conn.query(
        "SELECT a.attname, a.atttypid, a.atttypmod \
         FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_attribute a \
           ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
         WHERE c.oid = $1::oid AND c.oid = pg_catalog.to_regclass($2)::oid",
        &[Some(&plan.oid.to_string()), Some(&plan.table)],
    )?;
    let is_there = |(name, (oid, typmod)): (&String, &(u32, i32))| {
        let (oid, typmod) = (oid.to_string(), typmod.to_string());
        now.iter().any(|row| {
            row[0].as_ref() == Some(name)
                && row[1].as_ref() == Some(&oid)
                && row[2].as_ref() == Some(&typmod)
        })
    };
    match !now.is_empty() && plan.columns.iter().zip(&plan.types).all(is_there) {
        true => Ok(()),
        false => Err(changed(&plan.table)),
    }
}

/// The error for a table that is not the one with which the load began.
pub(crate) fn changed(table: &str) -> Error {
    Error::new(format!("table {table} was changed during the load")).of_kind(Kind::Busy).with_hint(
        "DDL of another session has altered or replaced it; the same command loads what is \
             missing into the table as it is now",
    )
}
