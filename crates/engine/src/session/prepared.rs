//! How prepared transactions end. Ends those on nodes, for a session that has the decision.

use super::conn::{quote_literal, Conn};
use super::transaction::{BEGIN, PAUSE, TRIES};
use crate::error::Error;
use crate::ledger;
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
