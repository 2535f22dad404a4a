//! The commands. Each file has the arguments of one command and its code.

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
