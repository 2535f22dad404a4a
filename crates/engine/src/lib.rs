//! The I/O and the threads of the loader.
//!
//! Nothing here prints or parses arguments.

mod advice;
pub mod blame;
mod buffer_pool;
pub mod causes;
pub mod check;
mod clue;
pub mod convert;
pub mod encode;
pub mod error;
pub mod expression;
pub mod facts;
pub mod fields;
pub mod frame;
pub mod infer;
pub mod input;
mod inspect;
pub mod isolate;
pub mod ledger;
pub mod load;
pub mod maintenance;
mod mapping;
mod naming;
pub mod options;
mod pipeline;
pub mod plan;
mod quote;
mod recast;
pub mod reject;
pub mod repair;
pub mod report;
mod rewrite;
pub mod session;
pub mod sniff;
pub mod source;
mod stray;
pub mod typenames;
pub mod watch;
pub mod wire;
