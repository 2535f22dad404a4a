//! A connection that a load by several lanes opens before its rows, for what follows them.
//!
//! At the end of a load, the server may accept no new connection: a password may be valid for
//! minutes only, or other clients have the last connections of the role. Then what was committed as
//! dropped would stay missing, and the lanes could not be committed together.

use super::conn::Conn;
use super::transaction::{BEGIN, NO_TIMEOUTS};
use crate::error::Error;
use crate::watch::Watch;

/// The connection while it is not used, or nothing. It is in a transaction without time limits: a
/// server may end sessions that are idle and in none.
#[derive(Default)]
pub(crate) struct SpareConnection {
    conn: Option<Conn>,
    /// what follows the rows needs it
    after_rows: bool,
}

impl SpareConnection {
    /// Opens the connection. No request to cancel is sent to it: it recreates what was dropped even
    /// after a stop. `after_rows`: what follows the rows needs it.
    ///
    /// # Errors
    ///
    /// As for [`Conn::open`], or the user has stopped the load.
    pub fn open(url: &str, watch: &Watch, after_rows: bool) -> Result<SpareConnection, Error> {
        let target = url.to_owned();
        let open = move || Conn::open(&target).and_then(in_transaction);
        Ok(SpareConnection { conn: Some(watch.until_stopped(open)?), after_rows })
    }

    /// Keeps a connection that is in no transaction, unless it is lost or nothing needs it any more.
    /// Behind a pooler, this may wait for a session of the server.
    pub fn keep(&mut self, conn: Conn) {
        self.conn = if self.after_rows { in_transaction(conn).ok() } else { None };
    }

    /// Takes the connection, in no transaction. If there is none, or it is lost, opens another one.
    ///
    /// # Errors
    ///
    /// As for [`Conn::open`].
    pub fn take(&mut self, url: &str) -> Result<Conn, Error> {
        let kept = self.conn.take();
        let kept = kept.and_then(|mut conn| conn.exec("ROLLBACK").is_ok().then_some(conn));
        kept.map_or_else(|| Conn::open(url), Ok)
    }
}

fn in_transaction(mut conn: Conn) -> Result<Conn, Error> {
    // Through a pooler, only a statement shows that there is a session.
    conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
    Ok(conn)
}
