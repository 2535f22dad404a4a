//! Rebuilds the published loading benchmarks of the field, side by side.
//!
//! A suite is a TOML file ([`definition`]). [`run`] takes it through interleaved rounds, each on
//! its own server ([`server`], [`measure`]). A time is kept only when the answer is right
//! ([`check`], [`checksum`]). The measured programs run as separate processes; none is linked in.

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
