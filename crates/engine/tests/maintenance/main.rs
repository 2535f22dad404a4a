//! Taking down and putting back on every PostgreSQL that this machine has:
//! afterwards the catalogs say what they said before.

mod after;
mod cluster;
mod committed;
mod one_transaction;
mod repairs;
mod rights;
#[path = "../../../pgserver/tests/support/mod.rs"]
mod support;
