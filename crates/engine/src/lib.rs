//! pgsluice: the bulk loader for PostgreSQL, as a library.
//!
//! ```no_run
//! use pgsluice_engine::{Event, FileSource, Loader, TargetOptions};
//!
//! let mut target = TargetOptions::new("postgresql:///test", "public.votes");
//! target.truncate = true;
//! let summary = Loader::new(target)
//!     .input(FileSource::new("votes.csv.gz"))
//!     .on_event(|event| {
//!         if let Event::Planned(plan) = event {
//!             println!("{}: {}", plan.method, plan.reason.plain());
//!         }
//!     })
//!     .run()?;
//! println!("{} rows in {:.1} s", summary.loaded, summary.seconds.total);
//! # Ok::<(), pgsluice_engine::Error>(())
//! ```
//!
//! A load is all or nothing unless its [`Method`] says otherwise. Nothing here prints or reads
//! arguments. An [`Error`] has a [`Kind`], which says what a program can do about it, the [`Place`]
//! in the input, what the server said and a hint. A [`Text`] keeps apart which of its words name
//! settings: a program can change these, or write them its own way.
//!
//! ```no_run
//! # use pgsluice_engine::{Error, FileSource, Kind, Loader, TargetOptions};
//! # let loader = Loader::new(TargetOptions::new("postgresql:///test", "public.votes"));
//! match loader.input(FileSource::new("votes.csv")).run() {
//!     Ok(summary) => println!("{} rows", summary.loaded),
//!     Err(error) => match error.kind() {
//!         Kind::Connection | Kind::Busy => println!("try again later"),
//!         Kind::Data => println!("{:?}: {}", error.place(), error.message().plain()),
//!         _ => {
//!             let hint = error.hint().into_iter();
//!             println!("look at: {:?}", hint.flat_map(|hint| hint.settings()).collect::<Vec<_>>());
//!         }
//!     },
//! }
//! ```

mod advice;
mod blame;
mod buffer_pool;
mod causes;
mod check;
mod clue;
pub mod convert;
mod encode;
mod error;
mod event;
mod expression;
mod facts;
mod fields;
mod frame;
mod infer;
mod input;
mod inspect;
mod isolate;
mod ledger;
mod load;
mod loader;
mod maintenance;
mod mapping;
mod naming;
mod once;
pub mod options;
mod pipeline;
mod plan;
mod quote;
mod recast;
mod reject;
pub mod repair;
mod report;
mod rewrite;
mod route;
mod session;
mod share;
mod signs;
pub mod sniff;
mod source;
mod stray;
mod text;
pub mod typenames;
mod watch;
mod wire;

pub use check::Checked;
pub use error::{io_message, Error, Kind, Place, ServerSays};
pub use event::{Event, Phase};
pub use inspect::Foretold;
pub use loader::Loader;
pub use options::{InputOptions, Method, Options, RejectOptions, TargetOptions};
pub use plan::{locks::Lock, Plan, Wire};
pub use reject::{side_path, Amount, Reject};
pub use report::{Bottleneck, Progress, Seconds, SharedSummary, Summary};
pub use session::COMPILED_OPENSSL;
pub use share::{Parts, Share};
pub use source::{
    stdin, BytesSource, FileSource, Opened, Source, StreamSource, Version, VersionOf,
};
pub use text::Text;
pub use watch::Watch;

/// Connection strings: libpq's URLs, and its keywords and values.
pub mod target {
    pub use crate::session::target::{joined, part, SECRETS};
}

/// The record of loads with `once`.
pub mod loads {
    pub use crate::once::forget::{forget, forget_load};
    pub use crate::once::listing::{files, list, verify, LoadRow, SourceRow, Verified};
    pub use crate::once::tables::statements;
}

/// For this crate's own tests against servers; no promise is made of it.
#[doc(hidden)]
pub mod internals {
    pub use crate::input::decompress;
    pub use crate::session::conn::{quote_literal, Conn};

    /// What plans are made from.
    pub mod facts {
        pub use crate::facts::*;
    }

    /// What is taken down, as it is recorded.
    pub mod ledger {
        pub use crate::ledger::*;
    }

    /// What is taken down and put back.
    pub mod maintenance {
        pub use crate::maintenance::*;
        pub use crate::plan::policy::*;
    }
}
