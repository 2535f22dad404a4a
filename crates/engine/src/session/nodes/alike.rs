//! Compares the tables on the nodes with the partitions.

use crate::error::Error;
use crate::facts::{RemoteColumn, RemoteLeaf};
use crate::session::catalog;
use crate::session::conn::{quote_literal, Conn};
use crate::session::unchanged::changed;

/// The base types and constraints of the domains that the type of the column `a` consists of: the
/// type itself, the elements of an array, and the domains below.
const DOMAINS: &str = "(WITH RECURSIVE d AS ( \
    SELECT y.oid, y.typtype, y.typbasetype, y.typtypmod, y.typnotnull, y.typelem, 1 AS level \
      FROM pg_type y WHERE y.oid = a.atttypid UNION ALL \
    SELECT y.oid, y.typtype, y.typbasetype, y.typtypmod, y.typnotnull, y.typelem, d.level + 1 \
      FROM d JOIN pg_type y \
        ON y.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE nullif(d.typelem, 0) END) \
  SELECT string_agg(format('%s%s%s', format_type(d.typbasetype, d.typtypmod), \
      CASE WHEN d.typnotnull THEN ' NOT NULL' END, \
      (SELECT string_agg(' ' || pg_get_constraintdef(k.oid), '' ORDER BY pg_get_constraintdef(k.oid)) \
        FROM pg_constraint k WHERE k.contypid = d.oid AND k.contype = 'c')), ' of ' ORDER BY d.level) \
    FROM d WHERE d.typtype = 'd')";

/// Reads the columns of a leaf, as the coordinator has them.
pub(super) fn columns(conn: &mut Conn, leaf: u32) -> Result<Vec<RemoteColumn>, Error> {
    let select = format!(
        "SELECT a.attname, coalesce((SELECT option_value \
           FROM pg_options_to_table(a.attfdwoptions) WHERE option_name = 'column_name'), a.attname), \
         format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated <> '', \
         coalesce(' COLLATE ' || nullif(a.attcollation, y.typcollation)::regcollation, ''), {DOMAINS} \
         FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid \
         WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    );
    let rows = conn.query(&select, &[Some(&leaf.to_string())])?;
    let column = |row: &Vec<Option<String>>| {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        RemoteColumn {
            name: text(0),
            remote: text(1),
            sql_type: text(2) + &text(5),
            type_name: text(2),
            domains: text(6),
            not_null: text(3) == "t",
            generated: text(4) == "t",
            filled_by_node: false,
        }
    };
    Ok(rows.iter().map(column).collect())
}

/// Whether a crash empties the table or one of its partitions.
pub(super) fn unlogged(conn: &mut Conn, table: &str) -> Result<bool, Error> {
    let rows = conn.query(
        "SELECT EXISTS (SELECT 1 FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r' \
           AND (oid = $1::regclass OR oid IN (SELECT relid FROM pg_partition_tree($1::regclass))))",
        &[Some(table)],
    )?;
    Ok(rows[0][0].as_deref() == Some("t"))
}

/// The CHECK constraints of a table.
pub(super) fn checks(conn: &mut Conn, table: &str) -> Result<Vec<String>, Error> {
    let rows = conn.query(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint \
         WHERE conrelid = $1::regclass AND contype = 'c'",
        &[Some(table)],
    )?;
    Ok(rows.into_iter().filter_map(|mut row| row[0].take()).collect())
}

/// The error for a table on a node that differs from its partition.
fn differs(what: String) -> Error {
    Error::new(what).with_hint(
        "make the table on the node and the foreign table alike, or load with `route` \
         root through the coordinator",
    )
}

fn missing(leaf: &RemoteLeaf) -> Error {
    differs(format!("there is no table {} for {}", leaf.table, leaf.partition))
}

/// Locks the table on the node as an INSERT does, until the transaction ends, and compares it
/// again. The plan compared it in another transaction, and the same bytes may be another value of
/// another type.
///
/// # Errors
///
/// It has changed, the role may not lock it any more, or the connection is lost.
pub fn hold_leaf(conn: &mut Conn, leaf: &RemoteLeaf) -> Result<(), Error> {
    let table = catalog::find(conn, &leaf.table)?.ok_or_else(|| missing(leaf))?;
    conn.exec(&table.shared_lock())?;
    match compared(conn, leaf)? == leaf.columns {
        true => Ok(()),
        false => Err(changed(&leaf.table)),
    }
}

/// Compares the table on the node with the leaf. Returns the columns, with what the node fills. The
/// search path of the connection is pg_catalog, so that type names are qualified.
pub(super) fn compared(conn: &mut Conn, leaf: &RemoteLeaf) -> Result<Vec<RemoteColumn>, Error> {
    let table = &leaf.table;
    let sql = format!(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, \
         a.attgenerated <> '', a.atthasdef OR a.attidentity <> '', \
         has_column_privilege(c.oid, a.attnum, 'INSERT'), row_security_active(c.oid), {DOMAINS} \
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
         WHERE c.oid = to_regclass({}) AND c.relkind IN ('r', 'p') AND a.attnum > 0 \
         AND NOT a.attisdropped",
        quote_literal(table)
    );
    let rows = conn.exec(&sql)?;
    if rows.is_empty() {
        return Err(missing(leaf));
    }
    let mut columns = Vec::new();
    for column in &leaf.columns {
        let RemoteColumn { remote, type_name, domains, .. } = column;
        let Some(row) = rows.iter().find(|row| row[0].as_ref() == Some(remote)) else {
            return Err(differs(format!("table {table} has no column {remote}")));
        };
        let is = |i: usize| row[i].as_deref() == Some("t");
        let theirs = |i: usize| row[i].as_deref().unwrap_or_default();
        let why = if theirs(1) != type_name {
            format!("has the type {}, and {type_name} in {}", theirs(1), leaf.partition)
        } else if theirs(7) != domains {
            format!("has a domain {}, and {domains} in {}", theirs(7), leaf.partition)
        } else if column.not_null && !is(2) {
            format!("accepts NULL, and does not in {}", leaf.partition)
        } else if column.generated || is(3) {
            "is generated".to_owned()
        } else if !is(5) {
            "does not accept rows of this role: it may not insert".to_owned()
        } else if is(6) {
            "is under row-level security".to_owned()
        } else {
            columns.push(RemoteColumn { filled_by_node: is(4), ..column.clone() });
            continue;
        };
        return Err(differs(format!("column {remote} of table {table} {why}")));
    }
    let theirs = checks(conn, table)?;
    match leaf.checks.iter().find(|check| !theirs.contains(check)) {
        Some(check) => Err(differs(format!("table {table} lacks the constraint {check}"))),
        None => Ok(columns),
    }
}
