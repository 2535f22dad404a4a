//! One file for each command: its arguments, and what it does with them.

pub mod load;
pub mod repair;
pub mod sample;
pub mod server;
