//! Hostile input for the core: generators and fuzz targets.
//!
//! A target is a plain function over bytes that panics where a rule is broken.
//! The drivers are in `tests/`; what servers do with the same input is asked in
//! `tests/server.rs`.

pub mod binary;
pub mod damaged;
pub mod hostile;
pub mod jsonb;
pub mod render;
pub mod rng;
pub mod scan;
pub mod split;
pub mod types;

/// A fuzz target.
pub type FuzzTarget = fn(&[u8]);

/// Every target by its name, which is also that of its folder in `corpus/`.
pub const TARGETS: &[(&str, FuzzTarget)] = &[
    ("scan", scan::target),
    ("split", split::target),
    ("binary", binary::target),
    ("array", |bytes| types::target("array", bytes)),
    ("bits", |bytes| types::target("bits", bytes)),
    ("datetime", |bytes| types::target("datetime", bytes)),
    ("float", |bytes| types::target("float", bytes)),
    ("integer", |bytes| types::target("integer", bytes)),
    ("interval", |bytes| types::target("interval", bytes)),
    ("json", |bytes| types::target("json", bytes)),
    ("network", |bytes| types::target("network", bytes)),
    ("numeric", |bytes| types::target("numeric", bytes)),
    ("text", |bytes| types::target("text", bytes)),
];
