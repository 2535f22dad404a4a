//! A suite's result, as in its JSON file. docs/benchmark.md describes every field.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::definition::{By, Durability, PageCache, Published};
use crate::demand::Judged;
use crate::environment::Environment;

/// Version of the schema. A reader rejects any other.
pub const SCHEMA: u32 = 1;

/// One suite's result.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SuiteResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the suite.
    pub suite: String,
    /// Heading.
    pub title: String,
    /// What is measured.
    pub about: String,
    /// What is left out, and why.
    pub left_out: Option<String>,
    /// The published comparison.
    pub published: Option<Published>,
    /// When the first run began, UTC.
    pub started: String,
    /// When the file was last written, UTC.
    pub updated: String,
    /// True once every method has had all its runs.
    pub complete: bool,
    /// Machine, versions, commit.
    pub environment: Environment,
    /// The parameters of the runs.
    pub parameters: Parameters,
    /// The inputs.
    pub data: Vec<DataResult>,
    /// One entry for each method and row count.
    pub methods: Vec<MethodResult>,
    /// Fitted growth, for suites of several row counts.
    pub growth: Vec<Growth>,
    /// The required figures, and whether they were reached.
    #[serde(default)]
    pub demands: Vec<Judged>,
    /// Largest size of the folder for data and servers, in bytes.
    #[serde(default)]
    pub peak_disk_bytes: u64,
    /// The differences between the command line and the suite, in words. `None` in results that are
    /// older than this field.
    #[serde(default)]
    pub departs: Option<Vec<String>>,
}

/// The parameters that identify a run. A result is continued only with the same ones.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Parameters {
    /// `full` or `quick`.
    pub profile: String,
    /// Row counts.
    pub rows: Vec<u64>,
    /// Runs of each method.
    pub runs: u32,
    /// From this row count on, each method is run once.
    #[serde(default)]
    pub once_from: Option<u64>,
    /// Seed of the sample.
    pub seed: u64,
    /// Connections of parallel methods.
    pub lanes: u32,
    /// State of the page cache.
    pub page_cache: PageCache,
    /// Server settings.
    pub settings: BTreeMap<String, String>,
    /// The method that all others are compared with, if the option gave one.
    pub against: Option<String>,
    /// The chosen methods, if the option gave any.
    pub only: Vec<String>,
}

impl Parameters {
    /// Runs of each method at a row count.
    pub fn runs_at(&self, rows: u64) -> u32 {
        if self.once_from.is_some_and(|from| rows >= from) {
            1
        } else {
            self.runs
        }
    }
}

/// One input.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DataResult {
    /// Name in the suite.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Bytes of the CSV.
    pub bytes: u64,
    /// Bytes of each derived file.
    pub derived: BTreeMap<String, u64>,
    /// Checksum of the file's text, by the runner's own reader.
    pub text_checksum: Checksum,
    /// Checksum that a typed table must have.
    pub typed_checksum: Checksum,
}

/// The state of a method.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum MethodStatus {
    /// Some runs are missing.
    Pending,
    /// All runs are done and all answers are right.
    Ok,
    /// A program or an extension is missing; `message` names it.
    Unavailable,
    /// It failed, or its answer was wrong; `message` gives the reason.
    Failed,
}

/// One method at one row count.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct MethodResult {
    /// Name.
    pub name: String,
    /// Title.
    pub title: String,
    /// Who provides it.
    pub by: By,
    /// What is lost if the server crashes right after it.
    pub durability: Durability,
    /// What else it gives up.
    pub gives_up: Vec<String>,
    /// Settings of the server. They override the suite's.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Name of its input.
    pub data: String,
    /// The row count of the suite for this entry.
    pub of_rows: u64,
    /// Rows loaded in one run.
    pub rows: u64,
    /// Bytes of CSV of these rows.
    pub bytes: u64,
    /// True if only a sample was loaded instead of all rows.
    pub sampled: bool,
    /// Name of the method it is compared with.
    pub against: Option<String>,
    /// Published seconds.
    pub published_seconds: Option<f64>,
    /// Published rows per second.
    pub published_rows_per_second: Option<f64>,
    /// A published factor or range, where no time is published.
    pub published_note: Option<String>,
    /// Its state.
    pub status: MethodStatus,
    /// Why it is unavailable or failed.
    pub message: Option<String>,
    /// Versions of the programs it needs.
    pub versions: BTreeMap<String, String>,
    /// The runs.
    pub runs: Vec<Run>,
    /// Spread of the runs' seconds.
    pub seconds: Option<MedianRange>,
    /// Rows per second at the median.
    pub rows_per_second: Option<f64>,
    /// Seconds for all rows, extrapolated from the sample; only on request.
    pub extrapolated_seconds: Option<f64>,
    /// Comparison with another method, pair by pair.
    pub ratio: Option<Ratio>,
}

/// Smallest, middle and largest value of the runs.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
pub struct MedianRange {
    /// Middle.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl MedianRange {
    /// The spread of some figures; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let median = match n {
            0 => return None,
            _ if n % 2 == 1 => values[n / 2],
            _ => (values[n / 2 - 1] + values[n / 2]) / 2.0,
        };
        Some(Self { median, min: values[0], max: values[n - 1] })
    }
}

/// Time divided by the time of another method in the same round.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Ratio {
    /// The other method.
    pub against: String,
    /// Spread of the pairs' ratios.
    pub pairs: MedianRange,
    /// False if the durability of the other method differs.
    pub same_durability: bool,
}

/// One run: times and costs. The answer was checked before they were kept.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Run {
    /// Number of the round, from 0.
    pub round: u32,
    /// Wall-clock seconds of all steps.
    pub seconds: f64,
    /// Wall-clock seconds of the whole run, including the server's start, set-up and checks.
    #[serde(default)]
    pub whole_seconds: f64,
    /// Seconds of each phase, in order.
    pub phases: Vec<PhaseTime>,
    /// WAL written.
    pub wal_bytes: Option<u64>,
    /// Size of the table, including its TOAST and maps.
    pub table_bytes: Option<u64>,
    /// Size of its indexes.
    pub index_bytes: Option<u64>,
    /// CPU seconds of the server's processes.
    pub server_cpu_seconds: Option<f64>,
    /// CPU seconds of the clients.
    pub client_cpu_seconds: f64,
    /// Largest memory of the server, in bytes.
    pub server_peak_bytes: Option<u64>,
    /// Largest memory of the clients, in bytes.
    pub client_peak_bytes: u64,
    /// Bytes that the server had sent to storage when the command returned.
    pub written_bytes: Option<u64>,
    /// Seconds to write and sync as many bytes with plain `write`, measured right after the steps.
    pub floor_seconds: Option<f64>,
    /// Notes that the method reported.
    pub notes: Vec<String>,
    /// Figures that the method reported, by name.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
    /// The answer that was checked.
    pub answer: Answer,
    /// The rows left after a crash, if the run had one.
    pub after_crash: Option<AfterCrash>,
}

/// Seconds of a part of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PhaseTime {
    /// Name.
    pub name: String,
    /// Seconds.
    pub seconds: f64,
}

/// The answer that was checked against the source before the time was kept.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Answer {
    /// Count and checksum of the table.
    pub checksum: Checksum,
    /// What was compared: `values`, or `count` if the method changes values on purpose.
    pub compared: String,
    /// Each index and how it was checked.
    pub indexes: BTreeMap<String, String>,
    /// Fingerprint of the answer to each question.
    pub questions: BTreeMap<String, String>,
    /// The table's indexes and constraints by name, as the server describes them. Empty in results
    /// that are older than this field.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub definitions: BTreeMap<String, String>,
}

impl Answer {
    /// The answer of a program that loads nothing and has checked itself.
    pub fn of_itself() -> Self {
        Self {
            checksum: Checksum::default(),
            compared: "by the program itself".to_owned(),
            indexes: BTreeMap::new(),
            questions: BTreeMap::new(),
            definitions: BTreeMap::new(),
        }
    }
}

/// The state after kill -9 and recovery.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AfterCrash {
    /// Rows found.
    pub rows: u64,
    /// Whether count and checksum were the same as before.
    pub same: bool,
}

/// A straight line fitted through the logarithms of seconds and rows.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Growth {
    /// Method.
    pub method: String,
    /// Seconds grow with this power of the rows.
    pub time_exponent: f64,
    /// The same exponent for the peak memory of the server.
    pub server_memory_exponent: Option<f64>,
    /// The same exponent for the peak memory of the client.
    pub client_memory_exponent: Option<f64>,
    /// Number of row counts it was fitted through.
    pub points: usize,
}

impl SuiteResult {
    /// Reads a result.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let result: Self =
            serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        ensure!(result.schema == SCHEMA, "{}: schema {}", path.display(), result.schema);
        Ok(result)
    }

    /// Writes the result atomically, so that no reader sees a partial file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let new = path.with_extension("json.new");
        fs::write(&new, serde_json::to_string(self)? + "\n")?;
        fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Every suite's result in a folder of runs, sorted by the name of the suite.
    pub fn read_all(dir: &Path) -> Result<Vec<Self>> {
        let mut results = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("no runs in {}", dir.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "json") {
                results.push(Self::read(&path)?);
            }
        }
        results.sort_by(|a, b| a.suite.cmp(&b.suite));
        Ok(results)
    }

    /// The entry of a method at one of the suite's row counts.
    pub fn method(&self, name: &str, of_rows: u64) -> Option<&MethodResult> {
        self.methods.iter().find(|m| m.name == name && m.of_rows == of_rows)
    }
}

impl SuiteResult {
    /// The title of a method, or its name if it is not in this result.
    pub fn title_of<'a>(&'a self, name: &'a str) -> &'a str {
        self.methods.iter().find(|m| m.name == name).map_or(name, |m| m.title.as_str())
    }
}

impl MethodResult {
    /// Median of a figure over the runs; `None` unless every run has it.
    pub fn median(&self, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.runs.iter().map(figure).collect();
        Some(MedianRange::of(values?)?.median)
    }
}

/// Fits `y = a * x^b` by least squares on the logarithms and returns b.
pub fn fitted_exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let mean = |f: fn(&(f64, f64)) -> f64| logs.iter().map(f).sum::<f64>() / n;
    let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
    let over: f64 = logs.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    let under: f64 = logs.iter().map(|(x, _)| (x - mx) * (x - mx)).sum();
    (logs.len() > 1 && under > 0.0).then(|| over / under)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_the_middle_and_the_ends() {
        let spread = MedianRange::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread, MedianRange { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(MedianRange::of(vec![4.0, 1.0]).unwrap().median, 2.5);
        assert!(MedianRange::of(vec![]).is_none());
    }

    #[test]
    fn exponent_of_a_square_is_two() {
        let points = [(1.0, 3.0), (2.0, 12.0), (4.0, 48.0)];
        assert!((fitted_exponent(&points).unwrap() - 2.0).abs() < 1e-9);
        assert!(fitted_exponent(&points[..1]).is_none());
    }
}
