//! What a plan asks the server about rights, so that a load is not the first to hear of it.

use crate::error::Error;
use crate::plan::Plan;
use crate::session::conn::Conn;

/// Whether the role may do what the plan does before and with the rows.
///
/// # Errors
///
/// It may not, or the connection is lost.
pub(super) fn check(conn: &mut Conn, plan: &Plan) -> Result<(), Error> {
    let quoted = |c: &String| format!("\"{}\"", c.replace('\\', "\\\\").replace('"', "\\\""));
    let columns: Vec<String> = plan.columns.iter().map(quoted).collect();
    let rows = conn.query(
        "SELECT (SELECT pg_catalog.string_agg(c, ', ') FROM pg_catalog.unnest($2::text[]) AS c \
           WHERE NOT pg_catalog.has_column_privilege($1::regclass, c, 'INSERT')), \
         pg_catalog.has_table_privilege($1::regclass, 'TRUNCATE'), \
         pg_catalog.has_table_privilege($1::regclass, 'DELETE')",
        &[Some(&plan.table), Some(&format!("{{{}}}", columns.join(",")))],
    )?;
    let denied = |what: String| {
        let right = format!("the role may not {what} {}", plan.table);
        Err(Error::new(right).with_hint("the table's owner can GRANT it"))
    };
    let may = |i: usize| rows[0][i].as_deref() == Some("t");
    let before = |verb: &str| plan.before.iter().any(|s| s.starts_with(verb));
    match &rows[0][0] {
        Some(columns) => denied(format!("insert into the columns {columns} of")),
        None if before("TRUNCATE") && !may(1) => denied("truncate".into()),
        None if before("DELETE") && !may(2) => denied("delete from".into()),
        None => Ok(()),
    }
}
