//! Finds out whether a transaction of a load is committed if its COMMIT was not acknowledged.
//!
//! The transaction ID does not show it (`transaction::commit_recorded`). The rows that the
//! transaction has recorded do. After a failover, the number of the load and that of the commit may
//! be used a second time, but not with the same piece of the same source.

use super::record::{Piece, Recording};
use crate::error::Error;
use crate::ledger::under_policies;
use crate::session::conn::{Conn, Rows};
use crate::session::transaction::BEGIN;

impl Recording {
    /// Whether a transaction is committed. `commit` is its row of `commits`, and `first` is its
    /// first piece. Without pieces, the transaction has only completed files (`last`), or changed
    /// nothing that could be missing.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub(crate) fn is_there(
        &self,
        conn: &mut Conn,
        xid: &str,
        commit: Option<&str>,
        first: Option<&Piece>,
        last: bool,
    ) -> Result<bool, Error> {
        if (commit.is_none() || first.is_none()) && !last {
            return Ok(true);
        }
        let load = self.load.to_string();
        looked_up(conn, |conn| match (commit, first) {
            (Some(commit), Some(first)) => conn.query(
                "SELECT FROM pgsluice_loads.commits c \
                   JOIN pgsluice_loads.pieces p ON p.commit = c.number \
                 WHERE c.number = $1::bigint AND c.load = $2::bigint AND c.xid = $3::text::xid8 \
                   AND p.source = $4::bigint AND p.start_byte = $5::bigint AND p.hash = $6::bytea",
                &[
                    Some(commit),
                    Some(&load),
                    Some(xid),
                    Some(&first.source.to_string()),
                    Some(&first.start_byte.to_string()),
                    Some(&first.hash),
                ],
            ),
            _ => match &self.parts {
                Some(parts) => conn.query(
                    "SELECT WHERE NOT EXISTS (SELECT FROM pgsluice_loads.parts \
                       WHERE load = $2::bigint AND number IN (SELECT n::bigint \
                         FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n))",
                    &[Some(&super::parts::list(parts.iter().copied())), Some(&load)],
                ),
                None => conn.query(
                    "SELECT FROM pgsluice_loads.loads \
                     WHERE number = $1::bigint AND state = 'complete'",
                    &[Some(&load)],
                ),
            },
        })
    }
}

/// Whether a query of the ledger returns a row. The session is in no transaction afterwards, so the
/// query can be repeated after a request to cancel.
pub(super) fn looked_up(
    conn: &mut Conn,
    query: impl FnOnce(&mut Conn) -> Result<Rows, Error>,
) -> Result<bool, Error> {
    let rows = conn.exec(BEGIN).and_then(|_| under_policies(conn, query));
    let ended = conn.exec(if rows.is_ok() { "COMMIT" } else { "ROLLBACK" });
    let found = !rows?.is_empty();
    ended.map(|_| found)
}
