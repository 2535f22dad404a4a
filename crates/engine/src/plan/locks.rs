//! The locks of a load that make other sessions wait. They are reported before it begins.

use super::policy::{Choice, Policy};
use super::Plan;
use crate::error::Error;
use crate::facts::{Facts, TableFacts, TableObjects};
use crate::options::{ForeignKeys, Indexes, Method, Options, TargetOptions, Triggers};
use crate::text::text;
use serde::Serialize;
use std::fmt;

/// The lowest rate that a load is expected to have, in bytes per second, to estimate its duration.
const SLOW_RATE: u64 = 20 << 20;

/// Index entries that a build adds per second. (Decision 0008: three indexes of 4 M rows took 29 to
/// 55 s.)
const ENTRIES: f64 = 250_000.0;

/// Who waits for a lock against readers.
const ALL: &str = "all other sessions, readers too,";

/// Bytes of a row besides its values: header, line pointer, padding.
const ROW_OVERHEAD: f64 = 32.0;

/// The amounts to load and to index.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// bytes of the input, 0 if unknown
    pub bytes: u64,
    /// rows of the table after the load, if they can be estimated
    pub rows: Option<f64>,
}

/// The size of the input, and the number of rows after the load.
pub(super) fn size(plan: &Plan, options: &Options, objects: &TableObjects, facts: &Facts) -> Size {
    let relation = &objects.relation;
    let there = match options.target.truncate || relation.empty {
        true => Some(0.0),
        false if relation.rows >= 0.0 => Some(relation.rows),
        // Never analyzed: assume that its rows are as long as the records.
        false => plan.records.filter(|records| *records > 0).map(|records| {
            let record = facts.input.bytes as f64 / records as f64;
            relation.heap_bytes as f64 / (record + ROW_OVERHEAD)
        }),
    };
    let rows = plan.records.zip(there).map(|(new, there)| new as f64 + there);
    Size { bytes: facts.input.bytes, rows }
}

impl Plan {
    /// What the load gives up. `locked`: other sessions wait for one of its locks.
    pub fn gives_up(&self, locked: bool) -> String {
        match self.cost.starts_with("nothing") && locked {
            true => "concurrent access to what is locked".into(),
            false => self.cost.clone(),
        }
    }
}

/// A lock that makes readers or writers wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lock {
    /// the lock mode in PostgreSQL's terms
    pub mode: &'static str,
    /// the locked table
    pub relation: String,
    /// when the lock is taken
    pub from: &'static str,
    /// when the lock is released
    pub until: &'static str,
    /// which sessions wait
    pub waits: &'static str,
    /// seconds for the rows at 20 MB/s, if the size of the input is known
    pub seconds: Option<u64>,
    /// seconds for building indexes after that, if indexes are built and the number of rows is
    /// known
    pub build_seconds: Option<u64>,
    /// indexes are built
    #[serde(skip)]
    builds: bool,
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lock { mode, relation, from, until, waits, .. } = self;
        write!(f, "{mode} on {relation} from {from} until {until}: {waits} wait")?;
        match (self.seconds, self.build_seconds) {
            (Some(rows), Some(builds)) => {
                write!(f, ", about {rows} s for the rows and {builds} s to build indexes")
            }
            (Some(rows), None) if self.builds => {
                write!(f, ", about {rows} s plus the time to build indexes")
            }
            (Some(rows), None) => write!(f, ", about {rows} s"),
            (None, Some(builds)) => write!(f, ", about {builds} s to build indexes"),
            (None, None) => Ok(()),
        }
    }
}

/// Whether the load locks the table against all other sessions before it inspects it. What these
/// options request needs that lock later: to wait for it while holding a weaker one could end in a
/// deadlock.
pub(crate) fn locked_first(table: &TableFacts, target: &TargetOptions) -> bool {
    // With lanes, several connections use the table, so none may lock it exclusively.
    let lanes = target.method == Method::Lanes;
    // Nothing is dropped from a table that another role owns.
    let down = table.owned
        && (target.indexes == Indexes::Rebuild
            || target.foreign_keys == ForeignKeys::Revalidate
            || target.triggers == Triggers::Off);
    target.method.exclusive()
        || (target.truncate || down && target.method != Method::Insert) && !lanes
}

/// A lock without an estimate of its duration.
fn moment(
    table: &str,
    mode: &'static str,
    from: &'static str,
    until: &'static str,
    waits: &'static str,
) -> Lock {
    let (seconds, build_seconds, builds) = (None, None, false);
    Lock { mode, relation: table.to_owned(), from, until, waits, seconds, build_seconds, builds }
}

/// The locks of a plan that drops or disables objects as in `decision`.
pub fn locks(plan: &Plan, options: &Options, decision: &Policy, size: Size) -> Vec<Lock> {
    // Other sessions do not see a new table before the commit.
    if plan.made.is_some() && plan.lanes == 1 {
        return Vec::new();
    }
    let seconds = (size.bytes > 0).then(|| (size.bytes / SLOW_RATE).max(1));
    let indexes = decision.down().filter(|c| c.kind == "index").count();
    let builds = indexes > 0;
    let entries = size.rows.filter(|_| builds).map(|rows| rows * indexes as f64);
    let build_seconds = entries.map(|entries| (entries / ENTRIES).ceil().max(1.0) as u64);
    let exclusive = |relation: &str| Lock {
        mode: "ACCESS EXCLUSIVE",
        relation: relation.to_owned(),
        from: "before the first row",
        until: "the commit",
        waits: ALL,
        seconds,
        build_seconds,
        builds,
    };
    let mut locks = Vec::new();
    let within = !plan.commits_first();
    let whole = plan.locked_first
        || plan.method.exclusive()
        || plan.private
        || plan.before.iter().any(|s| s.starts_with("TRUNCATE"))
        || plan.nodes.as_ref().is_some_and(|nodes| nodes.truncate)
        || within && decision.any_down();
    if whole && plan.method != Method::Insert {
        locks.push(exclusive(&plan.table));
    }
    for choice in decision.down().filter(|c| c.kind == "foreign key") {
        let referenced = choice.object.rsplit_once(" to ").map_or("", |(_, table)| table);
        locks.push(exclusive(referenced));
    }
    let first = "before the first row";
    let table = &plan.table;
    if plan.method == Method::Insert && options.target.truncate {
        locks.push(moment(table, "ACCESS EXCLUSIVE", first, "the TRUNCATE is committed", ALL));
    }
    if !within && builds {
        locks.push(moment(table, "ACCESS EXCLUSIVE", first, "the indexes are dropped", ALL));
        let build = moment(table, "SHARE", "the last row", "the indexes are built", "all writers");
        locks.push(Lock { build_seconds, builds, ..build });
    }
    let triggers = decision.down().any(|c| c.kind == "trigger");
    if triggers && options.target.method == Method::Lanes {
        let mode = "SHARE ROW EXCLUSIVE";
        locks.push(moment(table, mode, first, "the triggers are disabled", "all writers"));
        locks.push(moment(table, mode, "the last row", "the triggers are enabled", "all writers"));
    }
    locks
}

/// The locks with which a load first recreates what an earlier load has left dropped or disabled.
pub(crate) fn to_put_back(table: &str, down: &[Choice]) -> Vec<Lock> {
    let lock = |(kind, mode)| {
        let until = "what an earlier load dropped or disabled is recreated";
        down.iter()
            .any(|choice| choice.kind == kind)
            .then(|| moment(table, mode, "the beginning", until, "all writers"))
    };
    [("index", "SHARE"), ("trigger", "SHARE ROW EXCLUSIVE")].into_iter().filter_map(lock).collect()
}

/// Rejects these locks if the user forbids locks that make others wait.
///
/// # Errors
///
/// `no-lock-out` is set, and there is such a lock.
pub(crate) fn refuse_to_put_back(locks: &[Lock], options: &Options) -> Result<(), Error> {
    match locks.first().filter(|_| options.target.no_lock_out) {
        Some(lock) => Err(Error::new(text!("`no-lock-out` forbids this load: {}", lock))
            .with_hint("pgsluice repair recreates it when writers can wait")),
        None => Ok(()),
    }
}
