//! The table that is loaded.

use super::record::Target;
use crate::error::Error;
use crate::options::{Options, Route};
use crate::session::catalog;
use crate::session::conn::Conn;

/// Finds the table, which must exist.
pub(super) fn target(conn: &mut Conn, options: &Options) -> Result<Target, Error> {
    let name = &options.target.table;
    match catalog::find(conn, name)? {
        Some(table) => Ok(Target { oid: table.oid, sql: table.sql }),
        None => Err(Error::new(format!("there is no table {name}"))
            .with_hint(format!("in database {}; create it first", conn.database()))),
    }
}

/// Checks that a crash of the server cannot empty a partition, and that the rows of all partitions
/// are in the same transaction. The plan checks the table itself. The open transaction keeps no lock
/// of a partition: it lasts as long as the load, and between two commits DDL would wait for it, and
/// the load for the DDL.
pub(super) fn check_partitions(
    conn: &mut Conn,
    target: &Target,
    options: &Options,
) -> Result<(), Error> {
    let unlogged = options.once.as_ref().is_some_and(|once| once.force_unlogged);
    conn.exec("SAVEPOINT pgsluice_partitions")?;
    let rows = conn.query(
        "SELECT p.relid::regclass, c.relkind = 'f' \
         FROM pg_catalog.pg_partition_tree($1::oid::regclass) p \
         JOIN pg_catalog.pg_class c ON c.oid = p.relid::oid \
         WHERE c.relkind = 'f' OR c.relpersistence = 'u' AND c.relkind = 'r' AND NOT $2::boolean \
         LIMIT 1",
        &[Some(&target.oid.to_string()), Some(&unlogged.to_string())],
    )?;
    conn.exec("ROLLBACK TO SAVEPOINT pgsluice_partitions; RELEASE SAVEPOINT pgsluice_partitions")?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (name, foreign) = (row[0].clone().unwrap_or_default(), row[1].as_deref() == Some("t"));
    if foreign && options.target.route == Route::Nodes {
        // The nodes commit together with the record, or have their own. The plan checks their
        // tables.
        return Ok(());
    }
    Err(match foreign {
        true => {
            Error::new(format!("the partition {name} is a foreign table: its rows are elsewhere"))
                .with_hint("`route` nodes loads them with a record of what is loaded")
        }
        false => Error::new(format!("the partition {name} is UNLOGGED: a crash would empty it"))
            .with_hint("ALTER TABLE ... SET LOGGED, or accept that with `force-unlogged`"),
    })
}
