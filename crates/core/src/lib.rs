//! Bytes → fields → typed values → rows in PostgreSQL's own formats.
//!
//! This crate is pure: no files, sockets, threads, clocks, environment or PostgreSQL headers. The
//! loader uses it (rows in the wire format of `COPY … WITH (FORMAT binary)`), and so does the
//! server extension through `ext/ffi` (rows in heap format).
//!
//! The path of the data:
//!
//! ```text
//! chunk of bytes ─ scan ─▶ Record (field spans) ─ row::put ─▶ types::put ─▶ RowSink
//! ```
//!
//! One rule comes before all others: **a field is encoded only if it is certain that the server
//! would read it in the same way.** For any other field the answer is [`error::Refusal`], and the
//! caller lets the server decide.

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
