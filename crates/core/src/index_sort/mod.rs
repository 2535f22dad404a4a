//! Sorting the rows of a B-tree index: keys, runs and their merge.
//!
//! The straight way of the data:
//!
//! ```text
//! row ─ key::encode ─▶ Collector (bounded) ─ radix ─▶ run ─▶ [spill ─▶ merge] ─▶ page::btree_load
//! ```
//!
//! Every row becomes an [`run::Entry`]: the first sixteen bytes of an encoding of its key that
//! `memcmp` puts in the order of the index, and where the row is. Nearly all of the sorting is
//! done on those bytes; rows whose key is longer are compared by their index tuples, by the next
//! bytes where many begin alike ([`ties`]).
//!
//! [`build::IndexBuild`] holds it all together. It does no I/O: it says what must be read or
//! written next and its caller does so, which lets a PostgreSQL backend use its own temporary
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
mod words;

use crate::memory::OutOfMemory;

/// Why a build cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildFailure {
    /// memory could not be reserved
    OutOfMemory,
    /// what was read back is not what was written
    Corrupt,
    /// two live rows have the same key in a unique index
    Duplicate,
    /// the caller wants no more of it
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
