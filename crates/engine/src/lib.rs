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
//! A load is all or nothing unless its [`Method`] says otherwise. The library does not print and
//! does not read arguments. An [`Error`] has a [`Kind`], from which a program can decide what to
//! do, the [`Place`] in the input, the server's message and a hint. A [`Text`] marks the words that
//! name settings, so that a program can change them or write them in its own form.
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
#[cfg(test)]
mod testing;
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
    pub use crate::once::forget::{forget, forget_load, Forgotten};
    pub use crate::once::listing::{files, list, verify, LoadRow, SourceRow, Verified};
    pub use crate::once::tables::{init, statements};
}

/// For this crate's own tests with servers. It is not a stable interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::input::decompress;
    pub use crate::session::conn::{quote_literal, Conn};

    /// The facts from which plans are made.
    pub mod facts {
        pub use crate::facts::*;
    }

    /// The records of objects that are dropped or disabled.
    pub mod ledger {
        pub use crate::ledger::*;
    }

    /// Drops or disables objects, and recreates them.
    pub mod maintenance {
        pub use crate::maintenance::*;
        pub use crate::plan::policy::*;
    }
}
