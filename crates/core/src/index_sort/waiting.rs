//! Rows that wait for the numbers of their values.
//!
//! Rows wait as long as every key is a text that fits into a prefix. They are sorted by bytes, so
//! each value is looked up only once, and the order of the numbers is often close to the server's.
//! While all rows of a build wait, another build can receive them ([`super::team`]).

use super::build::IndexBuild;
use super::key;
use super::run::Added;
use super::tuple::{Field, Tid};
use super::BuildFailure;

impl IndexBuild {
    /// Adds a row of one value to those that wait. `None`: it was not added, because a prefix does
    /// not hold the value, or because rows do not wait, or no longer. [`IndexBuild::settle`] must
    /// then be called before the row is added.
    ///
    /// # Errors
    ///
    /// No memory.
    #[inline]
    pub fn add_waiting(
        &mut self,
        tid: Tid,
        dead: bool,
        field: Option<Field>,
    ) -> Result<Option<Added>, BuildFailure> {
        match &self.waiting {
            Some(waiting) if key::holds(field) => {
                self.collector.add(waiting, tid, dead, |_| field).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Assigns numbers to the values of waiting rows. `false`: there are too many values.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn settle(&mut self) -> Result<bool, BuildFailure> {
        match self.waiting.take() {
            Some(waiting) => self.collector.number(&waiting, &mut self.shape),
            None => Ok(true),
        }
    }
}
