//! Prepared transactions on nodes, and how they are ended by a session that knows the decision.

use super::conn::{quote_literal, Conn};
use super::transaction::{BEGIN, PAUSE, TRIES};
use crate::error::Error;
use crate::ledger;
use std::thread;

/// Which way a prepared transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// its rows are visible afterwards
    Commit,
    /// its rows are gone afterwards
    Rollback,
}

/// Ends a prepared transaction; false if there is none. Afterwards none of this name will come:
/// see the essay of `ledger/node_commits.rs`.
///
/// # Errors
///
/// The server refuses; a session still works on it; the connection is lost.
pub fn end(conn: &mut Conn, how: End, gid: &str) -> Result<bool, Error> {
    let verb = if how == End::Commit { "COMMIT" } else { "ROLLBACK" };
    let statement = format!("{verb} PREPARED {}", quote_literal(gid));
    let mut busy = None;
    for _ in 0..TRIES {
        match conn.exec(&statement) {
            Ok(_) => return Ok(true),
            // There is none. One that is only just being prepared holds the lock.
            Err(error) if error.sqlstate() == "42704" => {
                conn.exec(BEGIN)?;
                let free = ledger::lock(conn, gid)?;
                conn.exec("COMMIT")?;
                if free {
                    return Ok(false);
                }
                busy = Some(Error::new("a session of the load is still at work"));
            }
            // Another session is about to end it.
            Err(error) if error.sqlstate() == "55000" => busy = Some(error),
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    }
    Err(busy.unwrap_or_else(|| Error::defect("a prepared transaction was not looked for")))
}
