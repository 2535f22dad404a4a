//! What is done with the server: the connection, what is known of the table,
//! the statements, the lanes that data takes.

mod canceller;
pub mod catalog;
pub(crate) mod circumstances;
pub mod conn;
pub mod create;
pub(crate) mod header;
pub mod lane;
mod libpq;
pub mod private;
mod quote;
mod refused;
pub mod siblings;
mod socket;
pub mod staged;
pub mod statement;
pub mod surroundings;
pub mod target;
pub mod transaction;
mod types;
pub mod ways;
