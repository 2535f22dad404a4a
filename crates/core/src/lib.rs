//! Bytes → fields → typed values → rows in PostgreSQL's own formats.
//!
//! This crate is pure: no files, sockets, threads, clocks, environment or
//! PostgreSQL headers. It is used by the loader (rows in the wire form of
//! `COPY … WITH (FORMAT binary)`) and, through `ext/ffi`, by the server
//! extension (rows in heap form).
//!
//! The straight way of the data:
//!
//! ```text
//! chunk of bytes ─ scan ─▶ Record (field spans) ─ row::put ─▶ types::put ─▶ RowSink
//! ```
//!
//! One rule stands above the rest: **a field is encoded only where it is
//! certain that the server would read it in the same way.** Anything else is
//! answered with [`error::Refusal`], and the caller lets the server judge.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)
)]

pub mod error;
pub mod index_sort;
pub mod memory;
pub mod page;
pub mod row;
pub mod scan;
pub mod shape;
pub mod sink;
#[cfg(test)]
mod testing;
pub mod types;
