//! What a load has done, and how long each phase took.

use super::Job;
use crate::pipeline::Through;
use crate::plan::Plan;
use crate::reject::Amount;
use crate::report::{Seconds, Summary};
use crate::session::lane::{Lane, LaneCounts};
use crate::stray;
use crate::text::{text, Text};
use std::time::Instant;

/// Rows that are committed.
pub(super) struct Done {
    pub through: Through,
    pub counts: LaneCounts,
    pub rejected: Amount,
    pub lanes: Vec<Lane>,
    pub transactions: u64,
    /// how the entries of each index were made
    pub indexes: Vec<String>,
    /// what was done after the rows
    pub steps: Vec<String>,
    /// the statistics were committed together with the rows
    pub analyzed: bool,
}

pub(super) fn summarise(job: &Job<'_>, plan: &Plan, done: &Done, clock: &Stopwatch) -> Summary {
    let Job { options, watch, .. } = job;
    let (through, counts, records) = (&done.through, &done.counts, done.through.records);
    let (bytes, total) = (watch.progress.bytes.get(), clock.start.elapsed().as_secs_f64());
    let stray = stray::note(through.stray_quotes, plan.dialect());
    let steps = plan.made.iter().chain(&plan.before).chain(&plan.after).chain(&done.steps);
    let by_root = (counts.windows_by_root > 0).then(|| {
        text!(
            "{} times a partition refused a row, and the rows sent with it went through the root",
            counts.windows_by_root
        )
    });
    let stale = (counts.stale_transactions > 0).then(|| {
        text!(
            "partitions were changed during the load: the rows of {} transactions went through the root",
            counts.stale_transactions
        )
    });
    Summary {
        read: records + through.passed - counts.there,
        loaded: counts.rows,
        rejected: done.rejected.records,
        rejected_lines: done.rejected.lines,
        skipped: through.passed + (records - counts.rows - counts.there - done.rejected.records),
        records_known: through.known + counts.there,
        stray_quotes: through.stray_quotes,
        table: plan.table.clone(),
        files: options.input.sources.iter().map(|s| s.name()).collect(),
        method: Some(plan.method),
        reason: plan.reason.clone(),
        gives_up: plan.gives_up(!plan.locks.is_empty()),
        bytes,
        seconds: Seconds { total, ..clock.seconds.clone() },
        rows_per_second: counts.rows as f64 / total.max(1e-9),
        megabytes_per_second: bytes as f64 / 1e6 / total.max(1e-9),
        bottleneck: Some(watch.progress.bottleneck(clock.seconds.load)),
        lanes: plan.lanes as u64,
        statements: counts.statements,
        chunks_encoded: counts.chunks_encoded,
        chunks_as_is: counts.chunks_as_is,
        to_partitions: counts.to_leaves,
        transactions: done.transactions,
        indexes: done.indexes.clone(),
        steps: steps.cloned().collect(),
        settings: plan.settings.iter().map(|(name, value)| format!("{name} = {value}")).collect(),
        notes: plan
            .notes
            .iter()
            .cloned()
            .chain(stray.map(Text::from))
            .chain(by_root)
            .chain(stale)
            .collect(),
        ..Summary::default()
    }
}

/// Measures the time of each phase.
pub(super) struct Stopwatch {
    start: Instant,
    lap: Instant,
    pub seconds: Seconds,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        let now = Instant::now();
        Stopwatch { start: now, lap: now, seconds: Seconds::default() }
    }

    /// Seconds since the last call.
    pub fn lap(&mut self) -> f64 {
        let now = Instant::now();
        (now - std::mem::replace(&mut self.lap, now)).as_secs_f64()
    }
}
