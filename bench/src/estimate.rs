//! Estimates how long a suite still takes from the whole duration of its runs so far, set-up and
//! checks included.

use crate::definition::MethodDefinition;
use crate::result::{MethodResult, MethodStatus, SuiteResult};

/// Seconds of the runs to come; `None` before the first run. Making the data is not counted.
///
/// Each run is expected to last as long as the method's earlier runs, in proportion to the rows.
/// For a method that has not run yet, the average of the other methods is used.
pub fn seconds_left(result: &SuiteResult, methods: &[&MethodDefinition]) -> Option<f64> {
    let rows = &result.parameters.rows;
    let pairs = rows.iter().flat_map(|n| methods.iter().map(move |method| (*n, *method)));
    pairs.map(|(of_rows, method)| of_method(result, method, of_rows)).sum()
}

/// Seconds of one method's runs to come at one row count.
fn of_method(result: &SuiteResult, method: &MethodDefinition, of_rows: u64) -> Option<f64> {
    let mine = |m: &&MethodResult| m.name == method.name;
    let out = |s: MethodStatus| matches!(s, MethodStatus::Failed | MethodStatus::Unavailable);
    let entry = result.method(&method.name, of_rows);
    let settled = entry.or_else(|| result.methods.iter().find(mine));
    if settled.is_some_and(|m| out(m.status)) {
        return Some(0.0);
    }
    let done = entry.map_or(0, |m| m.runs.len() as u32);
    let coming = method.runs(result.parameters.runs_at(of_rows)).saturating_sub(done);
    if coming == 0 {
        return Some(0.0);
    }
    let own = result.methods.iter().filter(mine).rfind(|m| !m.runs.is_empty());
    let one = match own {
        Some(method) => seconds_at(method, of_rows)?,
        None => {
            let others = result.methods.iter().filter(|m| !m.runs.is_empty());
            mean(others.filter_map(|m| seconds_at(m, of_rows)))?
        }
    };
    Some(one * f64::from(coming))
}

/// Mean duration of a method's runs, in proportion to another row count.
fn seconds_at(method: &MethodResult, of_rows: u64) -> Option<f64> {
    let whole = mean(method.runs.iter().map(|r| r.whole_seconds))?;
    Some(whole * of_rows as f64 / method.of_rows as f64)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0, 0.0), |(n, sum), value| (n + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// A duration as the progress lines show it: `40 s`, `3 min`, `2 h 5 min`.
pub fn words(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match (seconds, minutes) {
        (s, _) if s < 90.0 => format!("{s:.0} s"),
        (_, m) if m < 120 => format!("{m} min"),
        (_, m) => format!("{} h {} min", m / 60, m % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_words() {
        let all = [0.4, 89.0, 91.0, 7_100.0, 7_500.0].map(words);
        assert_eq!(all, ["0 s", "89 s", "2 min", "118 min", "2 h 5 min"]);
    }
}
