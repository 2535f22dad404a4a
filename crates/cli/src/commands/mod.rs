//! One file for each command: its arguments, and what it does with them.

pub mod check;
pub mod completions;
pub mod convert;
pub mod load;
pub mod loads;
pub mod man;
pub mod methods;
pub mod plan;
pub mod repair;
pub mod sample;
pub mod server;
pub mod sniff;
