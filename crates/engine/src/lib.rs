//! The I/O and the threads of the loader.
//!
//! Nothing here prints or parses arguments.

pub mod error;
pub mod infer;
pub mod input;
pub mod isolate;
pub mod options;
pub mod reject;
pub mod sample;
pub mod server;
pub mod session;
