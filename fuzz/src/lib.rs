//! Hostile input for the core: generators and fuzz targets.
//!
//! A target is a plain function over bytes that panics where a rule is broken.
//! The drivers are in `tests/`; what servers do with the same input is asked in
//! `tests/server.rs`.

pub mod binary;
pub mod hostile;
pub mod rng;
pub mod scan;
pub mod split;
