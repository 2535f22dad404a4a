//! The I/O and the threads of the loader.

pub mod infer;
pub mod input;
pub mod isolate;
pub mod reject;
pub mod sample;
pub mod server;
