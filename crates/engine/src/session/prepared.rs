//! How prepared transactions end. Ends those on nodes, for a session that has the decision, and
//! refuses to wait for those that nobody is about to end.

use super::conn::{quote_literal, Conn, Rows};
use super::transaction::{BEGIN, PAUSE, TRIES};
use crate::error::Error;
use crate::ledger::{self, PREPARED_LANES};
use std::thread;

/// How a prepared transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// its rows become visible
    Commit,
    /// its rows are dropped
    Rollback,
}

impl End {
    /// The statement that ends a prepared transaction.
    pub fn statement(self, gid: &str) -> String {
        let verb = if self == End::Commit { "COMMIT" } else { "ROLLBACK" };
        format!("{verb} PREPARED {}", quote_literal(gid))
    }
}

/// Ends a prepared transaction. Returns false if there is none. After that, none of this name can
/// be created: `ledger/node_commits.rs` explains why.
///
/// # Errors
///
/// The server reports an error, a session still works on the transaction, or the connection is
/// lost.
pub fn end(conn: &mut Conn, how: End, gid: &str) -> Result<bool, Error> {
    let statement = how.statement(gid);
    let mut busy = None;
    for _ in 0..TRIES {
        match conn.exec(&statement) {
            Ok(_) => return Ok(true),
            // There is none yet. A session that is about to prepare it holds the lock.
            Err(error) if error.sqlstate() == "42704" => {
                conn.exec(BEGIN)?;
                let free = ledger::lock(conn, gid)?;
                conn.exec("COMMIT")?;
                if free {
                    return Ok(false);
                }
                busy = Some(Error::new("a session of the load is still at work"));
            }
            // Another session is ending it.
            Err(error) if error.sqlstate() == "55000" => busy = Some(error),
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    }
    Err(busy.unwrap_or_else(|| Error::defect("a prepared transaction was not looked for")))
}

/// The prepared lanes, of any role, that hold locks of a table or of its partitions. One row for
/// each load: the load, the name of a transaction, its owner, and whether that is this role. The
/// query takes no lock of any of these tables: to wait for a partitioned table while holding its
/// partitions could end in a deadlock.
fn holders(conn: &mut Conn, oid: u32) -> Result<Rows, Error> {
    conn.query(
        &format!(
            "SELECT DISTINCT ON (load) load, gid, owner, owner = current_user \
             FROM {PREPARED_LANES} \
               JOIN pg_catalog.pg_locks x ON x.transactionid = lanes.transaction AND x.pid IS NULL \
               JOIN pg_catalog.pg_locks k \
                 ON k.virtualtransaction = x.virtualtransaction AND k.pid IS NULL \
             WHERE k.relation = $1::oid OR $1::oid IN (SELECT relid::oid \
               FROM pg_catalog.pg_partition_ancestors(k.relation::regclass)) \
             ORDER BY load, gid"
        ),
        &[Some(&oid.to_string())],
    )
}

/// Refuses to wait for prepared lanes of an earlier load, of any role. They hold locks of the
/// table, or of its partitions, until `repair` ends them, and other sessions would wait behind this
/// load. Call this before a wait for a lock that excludes writers.
///
/// # Errors
///
/// There are such lanes, and their load is gone; or the connection is lost.
pub fn refuse_to_wait(conn: &mut Conn, oid: u32, table: &str) -> Result<(), Error> {
    for seen in holders(conn, oid)? {
        // A load that is about to commit holds the lock of its first transaction.
        if !ledger::lock(conn, seen[0].as_deref().unwrap_or_default())? {
            continue;
        }
        // The load, or a repair, may have ended them before this lock was taken.
        let now = holders(conn, oid)?;
        let Some(row) = now.into_iter().find(|row| row[0] == seen[0]) else { continue };
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let gid = text(1);
        let message = format!(
            "an earlier load has not ended: the prepared transaction {gid} holds a lock of {table}"
        );
        let own = text(3) == "t";
        let by = if own { String::new() } else { format!(" as the role {}", text(2)) };
        return Err(Error::new(message)
            .with_hint(format!("run pgsluice repair{by}: it ends the prepared transaction")));
    }
    Ok(())
}
