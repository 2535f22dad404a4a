//! The figures that a suite must reach, and whether it does. They are computed from the runs alone.

use std::collections::BTreeMap;

use anyhow::{ensure, Result};
use serde::{Deserialize, Serialize};

use crate::figures;
use crate::result::{MedianRange, MethodResult, MethodStatus, Run, SuiteResult};

/// One figure that a suite must show.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// The work, in words.
    pub work: String,
    /// The method that must reach it.
    pub method: String,
    /// The method it is compared with.
    #[serde(default)]
    pub against: Option<String>,
    /// The kind of figure.
    pub kind: DemandKind,
    /// Name of the figure, if it is one that the method itself reports.
    #[serde(default)]
    pub figure: Option<String>,
    /// The required figure.
    pub must: f64,
    /// The required figure on some major versions, by number, in place of `must`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub must_on: BTreeMap<String, f64>,
    /// The figure aimed at.
    #[serde(default)]
    pub goal: Option<f64>,
}

/// The kind of a demand. Figures of two methods are compared round by round.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DemandKind {
    /// The other's time over the method's, at least.
    Speedup,
    /// The method's time over the other's, at most.
    TimeRatio,
    /// The share of the other's speed that the method reaches, at least.
    Share,
    /// Megabytes (10^6) of CSV in a second, at least.
    MegabytesPerSecond,
    /// The method's time, at most.
    Seconds,
    /// Peak memory of the client in megabytes (2^20), at most.
    ClientPeak,
    /// CPU seconds of the client over the other's, at most.
    ClientCpuRatio,
    /// CPU seconds of the server's processes over the other's, at most.
    ServerCpuRatio,
    /// Bytes of WAL over those of the other, at most.
    WalRatio,
    /// Rows for each CPU second of the client, at least.
    RowsPerClientCpuSecond,
    /// The exponent of rows by which the method's time grows over all row counts, at most.
    TimeExponent,
    /// A figure that the method reports, at least.
    Figure,
}

impl Demand {
    /// Checks that a demand names exactly the fields that its kind needs.
    pub fn validate(&self) -> Result<()> {
        let pairs = matches!(
            self.kind,
            DemandKind::Speedup
                | DemandKind::TimeRatio
                | DemandKind::Share
                | DemandKind::ClientCpuRatio
                | DemandKind::ServerCpuRatio
                | DemandKind::WalRatio
        );
        ensure!(self.against.is_some() == pairs, "demand {:?}: against", self.work);
        ensure!(
            self.figure.is_some() == (self.kind == DemandKind::Figure),
            "demand {:?}",
            self.work
        );
        let is_major = |major: &String| major.parse::<u32>().is_ok();
        ensure!(self.must_on.keys().all(is_major), "demand {:?}: must_on", self.work);
        Ok(())
    }

    /// The same demand with the figure that is required on this version of the server.
    fn on(mut self, postgres: &str) -> Self {
        let major = postgres.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        self.must = self.must_on.get(major).copied().unwrap_or(self.must);
        self
    }

    /// Whether a value is at least as good as a limit.
    fn meets(&self, value: f64, limit: f64) -> bool {
        match self.kind {
            DemandKind::TimeRatio
            | DemandKind::Seconds
            | DemandKind::ClientPeak
            | DemandKind::TimeExponent
            | DemandKind::ClientCpuRatio
            | DemandKind::ServerCpuRatio
            | DemandKind::WalRatio => value <= limit,
            _ => value >= limit,
        }
    }

    /// A value as the tables show it.
    pub fn written(&self, value: f64) -> String {
        match self.kind {
            DemandKind::Speedup => format!("{value:.2}x"),
            DemandKind::TimeRatio
            | DemandKind::ClientCpuRatio
            | DemandKind::ServerCpuRatio
            | DemandKind::WalRatio => format!("{value:.2}"),
            DemandKind::RowsPerClientCpuSecond => format!("{:.2} M rows/s", value / 1e6),
            DemandKind::Share => format!("{:.0} %", 100.0 * value),
            DemandKind::MegabytesPerSecond => format!("{value:.0} MB/s"),
            DemandKind::Seconds => format!("{value:.2} s"),
            DemandKind::ClientPeak => format!("{value:.0} MiB"),
            DemandKind::TimeExponent | DemandKind::Figure => format!("{value:.2}"),
        }
    }

    /// A limit as the tables show it: `≥ 3.5x`.
    fn limit(&self, value: f64) -> String {
        let sign = if self.meets(value - 1.0, value) { "≤" } else { "≥" };
        format!("{sign} {}", self.written(value))
    }

    /// The name of the kind in the tables.
    pub fn what(&self) -> &str {
        match self.kind {
            DemandKind::Speedup => "times as fast as",
            DemandKind::TimeRatio => "time over that of",
            DemandKind::Share => "share of the speed of",
            DemandKind::ClientCpuRatio => "CPU of the client over that of",
            DemandKind::ServerCpuRatio => "CPU of the servers over that of",
            DemandKind::WalRatio => "WAL over that of",
            DemandKind::RowsPerClientCpuSecond => "rows for each CPU second of the client",
            DemandKind::MegabytesPerSecond => "rate",
            DemandKind::Seconds => "seconds",
            DemandKind::ClientPeak => "peak memory of the client",
            DemandKind::TimeExponent => "time grows with rows to the power of",
            DemandKind::Figure => self.figure.as_deref().unwrap_or_default(),
        }
    }
}

/// A demand with its result in the runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Judged {
    /// The demand.
    #[serde(flatten)]
    pub demand: Demand,
    /// Rows that the method loaded.
    pub rows: u64,
    /// The figure reached; `None` if a method has no figure.
    pub reached: Option<MedianRange>,
    /// The number of runs, or of pairs of runs, that the figure is of.
    #[serde(default)]
    pub runs: usize,
    /// Whether the median is at least as good as `must`.
    pub must_met: Option<bool>,
    /// Whether it is at least as good as `goal`.
    pub goal_met: Option<bool>,
    /// False if the two methods guarantee different things after a crash.
    pub same_durability: bool,
}

impl Judged {
    /// Computes a demand from a result, at the largest row count.
    pub fn new(demand: Demand, result: &SuiteResult) -> Self {
        let demand = demand.on(&result.environment.postgres);
        let of_rows = result.parameters.rows.iter().copied().max().unwrap_or_default();
        let method = result.method(&demand.method, of_rows);
        let other = demand.against.as_ref().map(|name| result.method(name, of_rows));
        let figures = method.map_or(Vec::new(), |m| match demand.kind {
            DemandKind::TimeExponent => exponent(result, m).into_iter().collect(),
            _ => reached(&demand, m, other.flatten()),
        });
        let (runs, reached) = (figures.len(), MedianRange::of(figures));
        let median = reached.map(|r| r.median);
        Self {
            rows: method.map_or(0, |m| m.rows),
            must_met: median.map(|m| demand.meets(m, demand.must)),
            goal_met: median.zip(demand.goal).map(|(m, goal)| demand.meets(m, goal)),
            same_durability: other
                .flatten()
                .is_none_or(|o| method.is_none_or(|m| m.durability == o.durability)),
            reached,
            runs,
            demand,
        }
    }

    /// `4.21x (4.10x to 4.30x)`, with a mark if the durability differs; a dash without a figure.
    pub fn reached(&self) -> String {
        let Some(MedianRange { median, min, max }) = self.reached else { return "–".to_owned() };
        let write = |v| self.demand.written(v);
        let mark = if self.same_durability { "" } else { " †" };
        if self.runs == 1 && self.demand.kind != DemandKind::TimeExponent {
            return format!("{}{mark} (one run)", write(median));
        }
        if min == max {
            return format!("{}{mark}", write(median));
        }
        format!("{} ({} to {}){mark}", write(median), write(min), write(max))
    }

    /// `≥ 3.5x: met`.
    pub fn verdict(&self, limit: Option<f64>, met: Option<bool>) -> String {
        let Some(limit) = limit else { return "–".to_owned() };
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "no figure",
        };
        format!("{}: {verdict}", self.demand.limit(limit))
    }
}

/// The figure in each run, or for each pair of runs of the same round.
fn reached(demand: &Demand, method: &MethodResult, other: Option<&MethodResult>) -> Vec<f64> {
    if method.status == MethodStatus::Failed {
        return Vec::new();
    }
    let other_run = |run: &Run| {
        let other = other.filter(|o| o.status != MethodStatus::Failed)?;
        other.runs.iter().find(|r| r.round == run.round)
    };
    let theirs = |run: &Run| other_run(run).map(|r| r.seconds);
    let figure = |run: &Run| match demand.kind {
        DemandKind::Speedup | DemandKind::Share => theirs(run).map(|other| other / run.seconds),
        DemandKind::TimeRatio => theirs(run).map(|other| run.seconds / other),
        DemandKind::ClientCpuRatio => {
            other_run(run).map(|r| run.client_cpu_seconds / r.client_cpu_seconds)
        }
        DemandKind::ServerCpuRatio => other_run(run)
            .and_then(|r| r.server_cpu_seconds)
            .zip(run.server_cpu_seconds)
            .map(|(theirs, ours)| ours / theirs),
        DemandKind::WalRatio => other_run(run)
            .and_then(|r| r.wal_bytes)
            .zip(run.wal_bytes)
            .map(|(theirs, ours)| ours as f64 / theirs as f64),
        DemandKind::RowsPerClientCpuSecond => Some(method.rows as f64 / run.client_cpu_seconds),
        DemandKind::MegabytesPerSecond => Some(method.bytes as f64 / 1e6 / run.seconds),
        DemandKind::Seconds => Some(run.seconds),
        DemandKind::ClientPeak => Some(run.client_peak_bytes as f64 / f64::from(1 << 20)),
        DemandKind::Figure => run.figures.get(demand.figure.as_ref()?).copied(),
        DemandKind::TimeExponent => None,
    };
    method.runs.iter().filter_map(figure).collect()
}

/// The exponent fitted through all row counts; `None` if the method has no time at the largest.
fn exponent(result: &SuiteResult, largest: &MethodResult) -> Option<f64> {
    largest.seconds?;
    let growth = result.growth.iter().find(|g| g.method == largest.name)?;
    Some(growth.time_exponent)
}

/// The headings of the columns of [`rows`].
pub const HEADS: [&str; 7] =
    ["work", "rows", "what", "reached, median (min to max)", "must", "goal", "gives up"];

/// The demands of a suite, as rows of any table.
pub fn rows(result: &SuiteResult) -> Vec<[String; 7]> {
    let largest = result.parameters.rows.iter().copied().max().unwrap_or_default();
    let row = |judged: &Judged| {
        let demand = &judged.demand;
        let method = result.method(&demand.method, largest);
        let against = demand.against.as_ref().map_or(String::new(), |name| format!(" {name}"));
        [
            demand.work.clone(),
            if judged.reached.is_none() { "–".to_owned() } else { figures::count(judged.rows) },
            format!("{}: {}{against}", demand.method, demand.what()),
            judged.reached(),
            judged.verdict(Some(demand.must), judged.must_met),
            judged.verdict(demand.goal, judged.goal_met),
            method.map_or("–".to_owned(), figures::gives_up_with_durability),
        ]
    };
    result.demands.iter().map(row).collect()
}

/// The demands as a Markdown table.
pub fn table(result: &SuiteResult) -> String {
    let mut text = format!("| {} |\n|---|--:|---|--:|--:|--:|---|\n", HEADS.join(" | "));
    for row in rows(result) {
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}
