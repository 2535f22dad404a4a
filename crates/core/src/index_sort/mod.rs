//! Sorting the rows of a B-tree index: keys, runs and their merge.
//!
//! The path of the data:
//!
//! ```text
//! row ─ key::encode ─▶ Collector (bounded) ─ radix ─▶ run ─▶ [spill ─▶ merge] ─▶ page::btree_load
//! ```
//!
//! Every row becomes a [`run::Entry`]: the first sixteen bytes of its encoded key, and the place of
//! the row. `memcmp` of the encoding has the order of the index. Nearly all sorting uses only those
//! bytes. Rows with longer keys are compared by their index tuples. If many begin alike, they are
//! compared by the next bytes ([`ties`]).
//!
//! [`build::IndexBuild`] controls the build. It does no I/O. It returns what must be read or
//! written next, and its caller does that. A PostgreSQL backend can therefore use its own temporary
//! files, storage manager and interrupts.

mod bits;
pub mod build;
pub mod grouped;
pub mod heap_reader;
pub mod interrupt;
pub mod key;
mod load;
pub mod merge;
pub mod packed;
pub mod radix;
pub mod rank;
pub mod rows;
pub mod run;
pub mod shape;
pub mod team;
#[cfg(test)]
mod tests;
pub mod ties;
pub mod tuple;
mod waiting;
mod words;

use crate::memory::OutOfMemory;

/// The reason why a build cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildFailure {
    /// memory could not be reserved
    OutOfMemory,
    /// the bytes read back are not those written
    Corrupt,
    /// two live rows have the same key in a unique index
    Duplicate,
    /// the caller wants the work to end
    Interrupted,
}

impl From<OutOfMemory> for BuildFailure {
    fn from(_: OutOfMemory) -> Self {
        BuildFailure::OutOfMemory
    }
}

impl From<std::collections::TryReserveError> for BuildFailure {
    fn from(_: std::collections::TryReserveError) -> Self {
        BuildFailure::OutOfMemory
    }
}
