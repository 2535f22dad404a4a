//! The work with the server: the connection, the facts about the table, the statements, and the
//! lanes that load data.

pub(crate) mod advice_facts;
mod canceller;
pub mod catalog;
pub mod conn;
pub mod create;
pub mod deadlock_watch;
pub mod emptied;
pub mod exclusive_table;
pub mod extension_report;
pub(crate) mod header;
pub mod lane;
mod libpq;
pub(crate) mod nodes;
pub(crate) mod partitions;
pub(crate) mod prepared;
mod refused;
pub mod sequences;
mod socket;
pub(crate) mod spare_connection;
pub mod staged;
pub mod statement;
pub mod target;
pub mod transaction;
pub(crate) mod two_phase;
mod types;
pub(crate) mod unchanged;

pub use libpq::COMPILED_OPENSSL;
