//! The progress of a load while it runs, and its summary.

use crate::event::Phase;
use crate::frame::Passed;
use crate::options::Method;
use crate::text::Text;
use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A number to which several threads add.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets the number.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a load that is recorded has committed so far. Lanes add to it.
#[derive(Debug, Default)]
pub struct Committed {
    /// records that were read
    pub read: Counter,
    /// rows
    pub rows: Counter,
    /// transactions
    pub transactions: Counter,
}

/// The total time that threads have spent.
#[derive(Debug, Default)]
pub struct Spent(AtomicU64);

impl Spent {
    /// Adds a duration.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The total in seconds.
    pub fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// What limits the speed of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// the reader waits for the files
    Reading,
    /// the encoders have the most work
    Parsing,
    /// connections wait until the server accepts data
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

/// The progress of a load. Other threads can read it while the load runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// bytes of all files on disk, 0 if unknown
    pub total_bytes: Counter,
    /// bytes read from the disk
    pub bytes: Counter,
    /// records sent
    pub records: Counter,
    /// seconds for which lanes waited until the server accepted data
    pub sending: Spent,
    /// seconds for which the reader waited for the files
    pub reading: Spent,
    /// seconds for which encoders worked
    pub encoding: Spent,
    /// number of encoding threads, of whose time `encoding` is a share
    pub encoders: Counter,
    /// number of connections that send data
    pub lanes: Counter,
    /// an index into the phases
    phase: Counter,
    /// 1 while the reader waits for the files
    waiting: Counter,
}

impl Progress {
    /// The current phase.
    pub fn phase(&self) -> Phase {
        Phase::ALL.get(self.phase.get() as usize).copied().unwrap_or_default()
    }

    /// Sets the phase that begins.
    pub fn begin(&self, phase: Phase) {
        self.phase.set(phase as u64);
    }

    /// Reads the files, and measures how long the reader waits for them.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        self.waiting.set(1);
        let done = read();
        self.waiting.set(0);
        self.reading.add(started.elapsed());
        done
    }

    /// Whether the reader waits for the files. It does not if it has read them all, or if what it
    /// has read waits for the lanes.
    pub(crate) fn waits_for_files(&self) -> bool {
        self.waiting.get() == 1
    }

    /// What limits the load, after `seconds` seconds of loading.
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
    /// sending the rows
    pub load: f64,
    /// recreating indexes and constraints, moving sequences, the commit
    pub finish: f64,
    /// ANALYZE, before the commit or after it
    pub analyze: f64,
    /// all phases
    pub total: f64,
}

/// The part of one machine in a shared load. All other numbers of its summary are its own, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SharedSummary {
    /// number of parts that it has loaded
    pub parts: u64,
    /// number of its parts that others have taken over, because it was delayed for longer than its
    /// lease
    pub parts_lost: u64,
    /// number of machines that it has declared dead
    pub machines_lost: u64,
    /// it was the last machine to finish
    pub last: bool,
}

/// The result of a load. This struct is the JSON of `--summary`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// number of records read and of lines that are not records, without the header
    pub read: u64,
    /// number of rows in the table
    pub loaded: u64,
    /// number of records in the reject file
    pub rejected: u64,
    /// number of lines of these records
    pub rejected_lines: u64,
    /// with `once`: number of records that earlier loads rejected, which this one continues
    pub rejected_before: u64,
    /// number of records skipped by `--skip`, `--where` or a trigger, and of lines that are not
    /// records
    pub skipped: u64,
    /// with `once`: the number of the load in `pgsluice_loads.loads`; null if nothing was new
    pub load: Option<i64>,
    /// with `once`: number of files skipped because they were loaded already
    pub files_known: u64,
    /// with `once`: number of records skipped because they were loaded already, in files that were
    /// not complete
    pub records_known: u64,
    /// with `share`: the numbers of this machine alone
    pub share: Option<SharedSummary>,
    /// number of fields with stray quotes, whatever `--stray-quotes` does with them
    pub stray_quotes: u64,
    /// the table, quoted and qualified
    pub table: String,
    /// the files, as the user named them
    pub files: Vec<String>,
    /// the method; none if nothing was new
    #[serde(serialize_with = "word")]
    pub method: Option<Method>,
    /// why this method was chosen
    pub reason: Text,
    /// what the method gives up
    pub gives_up: String,
    /// bytes read from the disk
    pub bytes: u64,
    /// seconds by phase
    pub seconds: Seconds,
    /// rows loaded per second of the whole run
    pub rows_per_second: f64,
    /// megabytes (10^6) read per second of the whole run
    pub megabytes_per_second: f64,
    /// WAL that the server wrote between the load's first statement and its end, for all sessions;
    /// null if the server does not report it
    pub wal_bytes: Option<u64>,
    /// what limited the load; none if nothing was new
    #[serde(serialize_with = "word")]
    pub bottleneck: Option<Bottleneck>,
    /// number of connections that sent rows
    pub lanes: u64,
    /// number of COPY or INSERT statements
    pub statements: u64,
    /// number of committed transactions
    pub transactions: u64,
    /// number of chunks that were sent in another form than the file's
    pub chunks_encoded: u64,
    /// number of rows that were sent straight to their partition
    pub to_partitions: u64,
    /// number of chunks that were sent unchanged
    pub chunks_as_is: u64,
    /// with `extension`: how each index's entries were added, and why not in a faster way
    pub indexes: Vec<String>,
    /// locks that made other sessions wait, with the longest possible wait
    pub locks: Vec<String>,
    /// the steps before and after the rows: what was dropped, rebuilt, set
    pub steps: Vec<String>,
    /// settings of the session
    pub settings: Vec<String>,
    /// notes for the user
    pub notes: Vec<Text>,
}

/// Writes a word as a JSON string, empty for `None`.
fn word<T: fmt::Display, S: Serializer>(word: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match word {
        Some(word) => to.collect_str(word),
        None => to.serialize_str(""),
    }
}

impl Summary {
    /// The texts that may name settings.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut Text> {
        [&mut self.reason].into_iter().chain(&mut self.notes)
    }

    /// Adds lines that were skipped because they are not records.
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
