//! Several statements at once.

use super::{c_string, lost, Conn, Res};
use crate::error::Error;
use crate::session::libpq::*;

impl Conn {
    /// Runs several statements, in one transaction if none is open. Returns the number of rows that
    /// they have written, all together. Rows of queries do not count.
    ///
    /// # Errors
    ///
    /// As for [`Conn::exec`].
    pub fn exec_all(&mut self, sql: &str) -> Result<u64, Error> {
        let sql = c_string(sql)?;
        // SAFETY: the connection is not NULL, and the string is a C string.
        if unsafe { PQsendQuery(self.raw, sql.as_ptr()) } != 1 {
            return Err(lost(&self.said()));
        }
        self.results()
    }

    /// Reads all results of what was sent. Returns the number of rows that were written.
    pub(super) fn results(&mut self) -> Result<u64, Error> {
        let mut outcome = Ok(0);
        loop {
            // SAFETY: the connection is not NULL; results are read until there are none.
            let res = Res(unsafe { PQgetResult(self.raw) });
            if res.0.is_null() {
                return outcome;
            }
            match res.status() {
                PGRES_COMMAND_OK => outcome = outcome.map(|rows: u64| rows + res.touched()),
                PGRES_TUPLES_OK => {}
                _ if outcome.is_ok() => outcome = Err(self.error(&res)),
                _ => {}
            }
            // SAFETY: as above. A lost connection may return results without end.
            if outcome.is_err() && unsafe { PQstatus(self.raw) } != CONNECTION_OK {
                return outcome;
            }
        }
    }
}
