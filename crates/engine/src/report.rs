//! What a load tells while it runs and when it is done.

use crate::event::Phase;
use crate::frame::Passed;
use crate::options::Method;
use crate::text::Text;
use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Time that threads have spent, added up.
#[derive(Debug, Default)]
pub struct Spent(AtomicU64);

impl Spent {
    /// Adds.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Seconds.
    pub fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// What limits the speed of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// the reader waits for the files
    Reading,
    /// encoders have the most work
    Parsing,
    /// connections wait for the server to take data
    Server,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bottleneck::Reading => "reading",
            Bottleneck::Parsing => "parsing",
            Bottleneck::Server => "server",
        })
    }
}

/// Where a load is; read from another thread while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// bytes of all files on disk, 0 where nobody knows
    pub total_bytes: Counter,
    /// bytes read from the disk
    pub bytes: Counter,
    /// records sent
    pub records: Counter,
    /// seconds in which a lane waited for the server to take data
    pub sending: Spent,
    /// seconds in which the reader waited for the files
    pub reading: Spent,
    /// seconds in which encoders worked
    pub encoding: Spent,
    /// encoders and lanes, to tell what share of their time that is
    pub encoders: Counter,
    /// connections that take data
    pub lanes: Counter,
    /// an index into the phases
    phase: Counter,
}

impl Progress {
    /// What is being done.
    pub fn phase(&self) -> Phase {
        Phase::ALL.get(self.phase.get() as usize).copied().unwrap_or_default()
    }

    /// Says that a phase begins.
    pub fn begin(&self, phase: Phase) {
        self.phase.set(phase as u64);
    }

    /// What limits the load, after so many seconds of loading.
    pub fn bottleneck(&self, seconds: f64) -> Bottleneck {
        let share = |spent: &Spent, threads: &Counter| {
            spent.seconds() / (seconds * threads.get().max(1) as f64).max(1e-9)
        };
        let one = Counter::default();
        let parts = [
            (Bottleneck::Server, share(&self.sending, &self.lanes)),
            (Bottleneck::Parsing, share(&self.encoding, &self.encoders)),
            (Bottleneck::Reading, share(&self.reading, &one)),
        ];
        let most = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(Bottleneck::Reading, |part| part.0)
    }
}

/// Seconds by phase.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seconds {
    /// opening the files and connecting
    pub open: f64,
    /// reading the catalog and planning
    pub inspect: f64,
    /// rows on their way
    pub load: f64,
    /// indexes and constraints put back, sequences moved, commit
    pub finish: f64,
    /// ANALYZE, before the commit or after it
    pub analyze: f64,
    /// all of it
    pub total: f64,
}

/// One machine of several that share a load. All other numbers of its summary are this machine's, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SharedSummary {
    /// parts that it has loaded
    pub parts: u64,
    /// parts that others have taken over, since it was held up for longer than its lease
    pub parts_lost: u64,
    /// machines that it took for dead
    pub machines_lost: u64,
    /// it was the last one at work
    pub last: bool,
}

/// What a load has done. The JSON of `--summary` is this struct.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// records read, and lines that are no records; the header is not counted
    pub read: u64,
    /// rows in the table
    pub loaded: u64,
    /// records in the reject file
    pub rejected: u64,
    /// the lines that they span
    pub rejected_lines: u64,
    /// with `once`: records that were rejected before, by loads that this one continues
    pub rejected_before: u64,
    /// records passed over by `--skip`, `--where` or a trigger, and lines that are no records
    pub skipped: u64,
    /// with `once`: the number of the load in `pgsluice_loads.loads`; null where nothing was new
    pub load: Option<i64>,
    /// with `once`: files passed over since they are loaded already
    pub files_known: u64,
    /// with `once`: records passed over since they are loaded already, of files that were not
    /// complete
    pub records_known: u64,
    /// with `share`: what is said of this machine alone
    pub share: Option<SharedSummary>,
    /// fields with a quote that neither opens nor closes them, whatever `--stray-quotes` makes of it
    pub stray_quotes: u64,
    /// the table, quoted and qualified
    pub table: String,
    /// the files, as they were named
    pub files: Vec<String>,
    /// the write path; none where nothing was new
    #[serde(serialize_with = "word")]
    pub method: Option<Method>,
    /// why this one
    pub reason: Text,
    /// what it gives up
    pub gives_up: String,
    /// bytes read from the disk
    pub bytes: u64,
    /// seconds by phase
    pub seconds: Seconds,
    /// rows loaded in a second of the whole run
    pub rows_per_second: f64,
    /// megabytes (10^6) read in a second of the whole run
    pub megabytes_per_second: f64,
    /// WAL that the server wrote from the load's first statement to its end,
    /// by whomever; null where the server does not tell
    pub wal_bytes: Option<u64>,
    /// what limited the load; none where nothing was new
    #[serde(serialize_with = "word")]
    pub bottleneck: Option<Bottleneck>,
    /// connections that carried rows
    pub lanes: u64,
    /// COPY or INSERT statements
    pub statements: u64,
    /// transactions that were committed
    pub transactions: u64,
    /// chunks that went in another form than the file's
    pub chunks_encoded: u64,
    /// rows that went straight to the partition they belong to
    pub to_partitions: u64,
    /// chunks that went as they are in the file
    pub chunks_as_is: u64,
    /// with `extension`: how each index's entries went in, and why not in a faster way
    pub indexes: Vec<String>,
    /// locks that made other sessions wait, and for how long at most
    pub locks: Vec<String>,
    /// statements before and after the rows: what was taken down, rebuilt, set
    pub steps: Vec<String>,
    /// settings of the session
    pub settings: Vec<String>,
    /// what the user should know
    pub notes: Vec<Text>,
}

/// In JSON a word is always a string, empty for none.
fn word<T: fmt::Display, S: Serializer>(word: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match word {
        Some(word) => to.collect_str(word),
        None => to.serialize_str(""),
    }
}

impl Summary {
    /// The texts in which settings may be named.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut Text> {
        [&mut self.reason].into_iter().chain(&mut self.notes)
    }

    /// Adds lines that were passed over since they are no records.
    pub fn pass_over(&mut self, passed: Passed) {
        self.read += passed.lines();
        self.skipped += passed.lines();
        self.notes.extend(passed.note());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_json_are_strings() {
        let json = |summary: &Summary| serde_json::to_value(summary).unwrap();
        let none = json(&Summary::default());
        assert_eq!((&none["method"], &none["bottleneck"]), (&"".into(), &"".into()));
        for (method, name, ..) in Method::ALL {
            let one = json(&Summary { method: Some(method), ..Summary::default() });
            assert_eq!(one["method"], name);
        }
        for (part, name) in [
            (Bottleneck::Reading, "reading"),
            (Bottleneck::Parsing, "parsing"),
            (Bottleneck::Server, "server"),
        ] {
            let one = json(&Summary { bottleneck: Some(part), ..Summary::default() });
            assert_eq!(one["bottleneck"], name);
        }
    }
}
