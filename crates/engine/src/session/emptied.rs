//! Checks that the DELETE before the rows has emptied the table.

use super::conn::Conn;
use crate::error::Error;
use crate::plan::Plan;

/// A row if a trigger or a rule of a user acts on a DELETE (tgtype: 8, `pg_trigger.h`; ev_type: 4,
/// `CmdType`). Without one, DELETE leaves no row, and rows that other sessions insert meanwhile do
/// not matter.
const ACTS: &str = "SELECT 1 FROM pg_catalog.pg_trigger \
    WHERE NOT tgisinternal AND tgenabled <> 'D' AND tgtype::integer & 8 <> 0 \
      AND (tgrelid = $1::oid OR tgrelid IN \
        (SELECT relid::oid FROM pg_catalog.pg_partition_tree($1::oid::regclass))) \
    UNION ALL SELECT 1 FROM pg_catalog.pg_rewrite \
    WHERE ev_class = $1::oid AND ev_type = '4' AND ev_enabled <> 'D'";

/// Checks that no row is left, if the plan deletes all rows.
///
/// # Errors
///
/// A row is left, or the role may not read the table, or the connection is lost.
pub fn check(conn: &mut Conn, plan: &Plan) -> Result<(), Error> {
    let Some(delete) = plan.before.iter().find(|s| s.starts_with("DELETE")) else { return Ok(()) };
    if conn.query(ACTS, &[Some(&plan.oid.to_string())])?.is_empty() {
        return Ok(());
    }
    let left = format!("{} LIMIT 1", delete.replacen("DELETE", "SELECT", 1));
    if conn.exec(&left)?.is_empty() {
        return Ok(());
    }
    Err(Error::new(format!("DELETE has left rows in {}", plan.table)).with_hint(
        "a trigger or a rule on DELETE has kept or added them, or another session has inserted them \
         meanwhile; `method` auto empties the table by TRUNCATE instead",
    ))
}
