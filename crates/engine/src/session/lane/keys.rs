//! Moves sequences with each row that is committed by itself.
//!
//! If the loader is killed, the rows before stay, and nobody moves a sequence past their keys. So it
//! is moved in the transaction of the row, after the INSERT: a key that the server rejects moves
//! nothing.

use super::Lane;
use crate::error::Error;
use crate::rewrite::{self, Value};
use crate::session::sequences::by_sent_key;
use pgsluice_core::scan::Record;

impl Lane {
    /// Finds the sequences to move with each row. Call this in a transaction. Sequences that are not
    /// found are moved at the end of the load.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub(crate) fn find_keys(&mut self) -> Result<(), Error> {
        self.keys = by_sent_key(&mut self.conn, self.plan.oid, &self.plan.columns)?;
        Ok(())
    }

    /// The statements that follow the INSERT of a record, each after a semicolon: they move sequences
    /// past its keys. A key that is no plain number is left to the end of the load.
    pub(super) fn past_keys(&self, bytes: &[u8], record: &Record) -> String {
        let key = |index: usize| -> Option<i128> {
            match rewrite::values(&self.plan.shape, bytes, record).nth(index)? {
                Value::Text(text) => std::str::from_utf8(text).ok()?.trim().parse().ok(),
                Value::Null | Value::Default => None,
            }
        };
        let keys = self.keys.iter().filter_map(|(index, sequence)| {
            key(*index).map(|key| format!("; {}", sequence.past(key)))
        });
        keys.collect()
    }
}
