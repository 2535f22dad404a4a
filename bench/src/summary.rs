//! Computes the figures from the runs: medians, ratios of pairs, growth.

use std::collections::BTreeMap;

use crate::demand::Judged;
use crate::result::{
    fitted_exponent, Growth, MedianRange, MethodResult, MethodStatus, Ratio, Run, SuiteResult,
};

/// Fills in every figure that is computed from the runs.
pub fn summarise(result: &mut SuiteResult, extrapolate: bool) {
    let all = result.methods.clone();
    for method in &mut result.methods {
        // A method that failed in any round has no figure, even if other rounds have a time.
        let runs = if method.status == MethodStatus::Failed { &[][..] } else { &method.runs[..] };
        let seconds = MedianRange::of(runs.iter().map(|r| r.seconds).collect());
        method.seconds = seconds;
        method.rows_per_second =
            seconds.filter(|_| method.rows > 0).map(|s| method.rows as f64 / s.median);
        method.extrapolated_seconds = seconds
            .filter(|_| extrapolate && method.sampled)
            .map(|s| s.median * method.of_rows as f64 / method.rows as f64);
        method.ratio = method
            .against
            .as_ref()
            .filter(|name| **name != method.name)
            .and_then(|name| all.iter().find(|m| m.name == *name && m.of_rows == method.of_rows))
            .and_then(|other| ratio(method, other));
    }
    result.growth = growth(&result.methods);
    let demands = std::mem::take(&mut result.demands);
    result.demands = demands.into_iter().map(|d| Judged::new(d.demand, result)).collect();
}

/// Marks the result as complete when no method is pending.
pub fn complete(result: &mut SuiteResult) {
    result.complete = result.methods.iter().all(|m| m.status != MethodStatus::Pending);
}

/// Time divided by time, round by round. A sample is never compared with a whole input.
fn ratio(method: &MethodResult, other: &MethodResult) -> Option<Ratio> {
    let failed = [method, other].iter().any(|m| m.status == MethodStatus::Failed);
    if failed || method.rows != other.rows || method.rows == 0 {
        return None;
    }
    let of_round = |run: &Run| {
        let theirs = other.runs.iter().find(|r| r.round == run.round)?;
        Some(run.seconds / theirs.seconds)
    };
    let pairs = MedianRange::of(method.runs.iter().filter_map(of_round).collect())?;
    Some(Ratio {
        against: other.name.clone(),
        pairs,
        same_durability: method.durability == other.durability,
    })
}

/// Exponents of growth of the methods that have several row counts.
fn growth(methods: &[MethodResult]) -> Vec<Growth> {
    let mut by_name: BTreeMap<&str, Vec<&MethodResult>> = BTreeMap::new();
    for method in methods.iter().filter(|m| m.seconds.is_some()) {
        by_name.entry(&method.name).or_default().push(method);
    }
    let fit = |entries: &[&MethodResult], figure: &dyn Fn(&MethodResult) -> Option<f64>| {
        let point = |m: &&MethodResult| Some((m.rows as f64, figure(m)?));
        let points: Option<Vec<(f64, f64)>> = entries.iter().map(point).collect();
        fitted_exponent(&points?)
    };
    let one = |(name, entries): (&str, Vec<&MethodResult>)| {
        let bytes = |n: Option<u64>| n.map(|n| n as f64);
        Some(Growth {
            method: name.to_owned(),
            time_exponent: fit(&entries, &|m| Some(m.seconds?.median))?,
            server_memory_exponent: fit(&entries, &|m| m.median(|r| bytes(r.server_peak_bytes))),
            client_memory_exponent: fit(&entries, &|m| {
                m.median(|r| bytes(Some(r.client_peak_bytes)))
            }),
            points: entries.len(),
        })
    };
    by_name.into_iter().filter_map(one).collect()
}
