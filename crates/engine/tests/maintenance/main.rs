//! Taking down and putting back on every PostgreSQL of this machine: afterwards the catalogs are as
//! before.

mod after;
mod cluster;
mod committed;
mod one_transaction;
mod repairs;
mod rights;
#[path = "../../../pgserver/tests/support/mod.rs"]
mod support;
