//! Rebuilds the published loading benchmarks of the field, side by side.
//!
//! A suite is a TOML file ([`definition`]); [`run`] takes it through
//! interleaved rounds, each on a server of its own ([`server`], [`measure`]),
//! and keeps a time only when the answer is right ([`check`], [`checksum`]).
//! The programs it measures it runs, and links none of them.

pub mod cache;
pub mod check;
pub mod checksum;
pub mod compare;
pub mod data;
pub mod definition;
pub mod demand;
pub mod environment;
pub mod estimate;
pub mod figures;
pub mod html;
pub mod losses;
pub mod markdown;
pub mod measure;
pub mod order;
pub mod proc;
pub mod psql;
pub mod readme;
pub mod report;
pub mod result;
pub mod run;
pub mod server;
pub mod summary;
pub mod template;
pub mod timed;
pub mod tools;
pub mod whole;
pub mod work;
