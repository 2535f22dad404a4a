//! Options for loading each source once, and options that cannot be combined with that.

use super::{Create, ForeignKeys, Indexes, InputOptions, Options, Route, Triggers};
use crate::error::Error;
use crate::input::Reader;
use crate::sniff::option;
use crate::text::{text, Text};
use std::time::Duration;

/// How sources are loaded once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnceOptions {
    /// a connection commits after this many bytes of the decompressed input; `None` for one
    /// transaction
    pub commit_every: Option<u64>,
    /// if a source has grown, load the rest
    pub append: bool,
    /// the table may be UNLOGGED
    pub force_unlogged: bool,
    /// the name of the only source, which is a stream and cannot be recognised otherwise
    pub source_name: Option<String>,
    /// several machines load the sources together
    pub share: Option<ShareOptions>,
}

/// How several machines share a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareOptions {
    /// if a machine has shown no activity for this long, others stop its load
    pub lease: Duration,
    /// the number of this machine's load, once it is registered
    pub(crate) load: Option<i64>,
}

impl ShareOptions {
    /// Creates options with this lease.
    pub fn new(lease: Duration) -> ShareOptions {
        ShareOptions { lease, load: None }
    }
}

impl Default for ShareOptions {
    /// The lease is 30 seconds.
    fn default() -> ShareOptions {
        ShareOptions::new(Duration::from_secs(30))
    }
}

/// The default size in bytes of the part of a file that a machine takes at a time.
const PART: u64 = 64 << 20;

impl OnceOptions {
    /// How many bytes a connection loads before each commit, if it commits several times. A shared
    /// load is committed in parts.
    pub fn commits_every(&self) -> Option<u64> {
        self.commit_every.or(self.share.map(|_| PART))
    }
}

impl Options {
    /// The same options, completed with what `reader` has detected in the files.
    ///
    /// # Errors
    ///
    /// A file names its delimiter, and with `once` only the options may. Which of the files are
    /// read by one load depends on what is loaded already, so none of them decides for the others.
    pub fn reading(&self, reader: &Reader) -> Result<Options, Error> {
        let input = reader.settled(&self.input);
        let delimiter = |input: &InputOptions| input.dialect().map(|d| d.delimiter);
        match (&self.once, delimiter(&input)) {
            (Some(_), Some(named)) if delimiter(&self.input) != Some(named) => {
                let name = option(named);
                Err(Error::data(text!(
                    "the first line of a file names the delimiter '{}', which with `once` is not enough",
                    name
                ))
                .with_hint(text!("`delimiter` '{}' is for all files", name)))
            }
            _ => Ok(Options { input, ..self.clone() }),
        }
    }

    /// Whether each connection commits several times.
    pub fn in_pieces(&self) -> bool {
        self.once.as_ref().is_some_and(|once| once.commits_every().is_some())
    }

    /// How long a machine may show no activity.
    pub(crate) fn lease(&self) -> Duration {
        self.once.as_ref().and_then(|once| once.share).unwrap_or_default().lease
    }

    /// Checks that the other options can be combined with `once`.
    ///
    /// # Errors
    ///
    /// One of them cannot.
    pub(super) fn check_once(&self) -> Result<(), Error> {
        let Some(once) = &self.once else { return Ok(()) };
        let target = &self.target;
        let never = [
            ("`truncate`", target.truncate, "it would empty the table that the record describes"),
            ("`create`", target.create != Create::No, "the second load would find the table"),
            ("`skip`", self.input.skip > 0, "a file counts as loaded if all of it is"),
            ("`limit`", self.input.limit.is_some(), "a file counts as loaded if all of it is"),
            (
                "`skip-footer`",
                once.append && self.input.frame.skip_footer > 0,
                "the footer of a file that has grown is among its records",
            ),
            ("`ledger` none", !target.ledger, "what is loaded is recorded in pgsluice_loads"),
        ];
        let one_transaction = "it needs one transaction for the whole load";
        let never_in_pieces = [
            ("`indexes` rebuild", target.indexes == Indexes::Rebuild, one_transaction),
            ("`triggers` off", target.triggers == Triggers::Off, one_transaction),
            (
                "`foreign-keys` revalidate",
                target.foreign_keys == ForeignKeys::Revalidate,
                one_transaction,
            ),
        ];
        let wrong = |all: &[(&'static str, bool, &str)], with: &str| {
            let found = all.iter().find(|(_, given, _)| *given);
            found.map(|(option, _, why)| {
                let (option, with) = (Text::from(*option), Text::setting(with));
                Error::usage(text!("{} cannot be used with {}: {}", option, with, why))
            })
        };
        let never_shared = [
            (
                "`on-error` reject",
                self.rejects.is_some(),
                "each machine would have some of the rejects, and those of a machine that is lost \
                 would be lost with it",
            ),
            ("`source-name`", once.source_name.is_some(), "only one machine can read a stream"),
            ("`atomic`", target.atomic, "the machines commit one after another"),
            ("`route` nodes", target.route == Route::Nodes, "it needs one transaction"),
        ];
        let alone = match self.rejects {
            Some(_) => {
                "load on one machine, without `share`; or mend the files first: pgsluice check lists \
                 their bad records"
            }
            None => "load on one machine, without `share`",
        };
        let option = if once.share.is_some() { "share" } else { "commit-every" };
        let in_pieces = once.commits_every().and_then(|_| wrong(&never_in_pieces, option));
        let shared = once.share.and_then(|_| wrong(&never_shared, option));
        let shared = shared.map(|error| error.with_hint(alone));
        wrong(&never, "once").or(shared).or(in_pieces).map_or(Ok(()), Err)
    }
}
