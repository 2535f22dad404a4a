//! The end of a load: records its outcome, and adds to an error that the load can continue.

use super::correction::correctable;
use super::listing::begin;
use super::{begin_transaction, Once};
use crate::error::Error;
use crate::report::Summary;
use crate::session::conn::Conn;
use crate::text::Text;
use crate::watch::{despite_cancel, Watch};

impl Once {
    /// Ends the load: records its outcome and releases the claims.
    ///
    /// # Errors
    ///
    /// The error of the load, with the number of rows that are committed.
    pub fn end(mut self, done: Result<Summary, Error>) -> Result<Summary, Error> {
        let recording = &self.recording;
        let load = recording.load;
        let mut summary = match done {
            Ok(summary) => summary,
            Err(error) => {
                // The load's row says why it stopped, if the server can still be reached.
                let _ = despite_cancel(|| stopped(&mut self.guard, load, &error));
                let error = correctable(error, &mut self.guard, recording);
                return Err(resumable(error, recording.committed.rows.get(), load));
            }
        };
        // Closing the connection ends its transaction as well.
        let _ = self.guard.exec("COMMIT");
        let loaded = recording.options.input.sources.len();
        summary.load = Some(load);
        summary.rejected_before = recording.earlier.rejected.records;
        summary.files_known = (self.names.len() - loaded) as u64;
        summary.transactions += recording.committed.transactions.get();
        summary.files = self.names;
        summary.notes.extend(self.notes.summed_up().into_iter().map(Text::from));
        Ok(summary)
    }

    /// Returns the connection with the claims, in a transaction. If that connection is lost, opens
    /// another one without claims. This is enough after all rows are committed.
    ///
    /// # Errors
    ///
    /// No other connection can be opened.
    pub fn guard_again(&mut self, watch: &Watch) -> Result<&mut Conn, Error> {
        if self.guard.exec("SELECT 1").is_err() {
            let options = &self.recording.options;
            self.guard = watch.connect(&options.target.url)?;
            begin_transaction(&mut self.guard, options)?;
        }
        Ok(&mut self.guard)
    }
}

fn stopped(conn: &mut Conn, load: i64, error: &Error) -> Result<(), Error> {
    conn.exec("ROLLBACK")?;
    begin(conn)?;
    conn.query(
        "UPDATE pgsluice_loads.loads SET state = 'stopped', ended = pg_catalog.clock_timestamp(), \
           error = $2 WHERE number = $1::bigint AND state = 'running'",
        &[Some(&load.to_string()), Some(&error.to_string())],
    )?;
    conn.exec("COMMIT").map(drop)
}

/// Adds to an error how many rows are committed, and that the same command continues the load.
fn resumable(error: Error, committed: u64, load: i64) -> Error {
    let before = format!(
        "{committed} rows are committed and recorded as load {load}; the same command continues there"
    );
    let error = match error.changed().map(|changed| format!("{changed}; {before}")) {
        None if committed == 0 => return error,
        None => error.with_changed(before),
        Some(_) if committed == 0 => error,
        Some(both) => error.with_changed(both),
    };
    error.repeatable()
}
