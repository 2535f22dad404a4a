//! Formats figures for people, in the same way in every report.

use crate::definition::Durability;
use crate::result::{MedianRange, MethodResult, MethodStatus, Parameters, Ratio, Run, SuiteResult};

/// Seconds with three significant digits; three decimals below 1 s.
pub fn seconds(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else if value >= 1.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

/// Median with smallest and largest.
pub fn spread(spread: MedianRange) -> String {
    let MedianRange { median, min, max } = spread;
    format!("{} ({} to {})", seconds(median), seconds(min), seconds(max))
}

/// A whole number with thousands separators.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Megabytes (10^6).
pub fn megabytes(bytes: f64) -> String {
    let value = bytes / 1e6;
    let digits = usize::from(value < 10.0);
    format!("{value:.digits$}")
}

/// A ratio of pairs, with a mark if the durability of the two differs. A single pair has no minimum
/// and maximum: they would suggest repeated runs.
pub fn ratio(ratio: &Ratio) -> String {
    let MedianRange { median, min, max } = ratio.pairs;
    let mark = if ratio.same_durability { "" } else { " †" };
    if min == max {
        return format!("{median:.2}{mark} (one run)");
    }
    format!("{median:.2} ({min:.2} to {max:.2}){mark}")
}

/// How often each method was run: `3 interleaved rounds (one from 5,000,000 rows on)`.
pub fn rounds(made: &Parameters) -> String {
    let once = made.once_from.filter(|from| made.rows.iter().any(|n| n >= from));
    let once = once.map_or(String::new(), |n| format!(" (one from {} rows on)", count(n)));
    let plural = if made.runs == 1 { "" } else { "s" };
    format!("{} interleaved round{plural}{once}", made.runs)
}

/// What a method gives up besides durability; a dash for nothing.
pub fn gives_up(method: &MethodResult) -> String {
    if method.gives_up.is_empty() {
        "–".to_owned()
    } else {
        method.gives_up.join("; ")
    }
}

/// The same for tables without a column for durability. The durability comes first, unless it is
/// `kept`.
pub fn gives_up_with_durability(method: &MethodResult) -> String {
    match (method.durability, method.gives_up.is_empty()) {
        (Durability::Kept, _) => gives_up(method),
        (other, true) => format!("durability: {}", other.word()),
        (other, false) => format!("durability: {}; {}", other.word(), gives_up(method)),
    }
}

/// Seconds of each phase at the median; `None` if there is only one phase.
pub fn phases(method: &MethodResult) -> Option<String> {
    let first = &method.runs.first()?.phases;
    let seconds_of = |name: &str| {
        let of_run = |run: &Run| Some(run.phases.iter().find(|p| p.name == name)?.seconds);
        Some(format!("{name} {}", seconds(method.median(of_run)?)))
    };
    let words: Vec<String> = first.iter().filter_map(|phase| seconds_of(&phase.name)).collect();
    (words.len() > 1).then(|| format!("seconds by phase: {}", words.join(", ")))
}

/// The published figures of a method, as the table shows them. Seconds that are for another number
/// of rows have that number beside them.
pub fn published(result: &SuiteResult, method: &MethodResult) -> String {
    let mut parts = Vec::new();
    let rows = result.published.as_ref().map(|p| p.rows).filter(|rows| *rows != method.of_rows);
    let rows = rows.map_or(String::new(), |rows| format!(" for {} rows", count(rows)));
    parts.extend(method.published_seconds.map(|s| format!("{} s{rows}", seconds(s))));
    parts.extend(method.published_rows_per_second.map(|r| format!("{} rows/s", count(r as u64))));
    parts.extend(method.published_note.clone());
    if parts.is_empty() {
        "–".to_owned()
    } else {
        parts.join("; ")
    }
}

/// The measured time, or why there is none. A single run has no minimum and maximum: they would
/// suggest repeated runs.
pub fn time(method: &MethodResult) -> String {
    let spread = |s: MedianRange| match method.runs.len() {
        1 => format!("{} (one run)", seconds(s.median)),
        _ => spread(s),
    };
    match (method.status, method.seconds) {
        (MethodStatus::Unavailable, _) => "not available here".to_owned(),
        (MethodStatus::Failed, _) => "failed".to_owned(),
        (_, None) => "not yet".to_owned(),
        (_, Some(_)) if method.rows == 0 => "loads nothing: its own figures below".to_owned(),
        (_, Some(s)) if method.sampled => format!("{} for {} rows", spread(s), count(method.rows)),
        (_, Some(s)) => spread(s),
    }
}

/// The median of a figure over the runs, formatted by `write`; a dash if there is none.
pub fn median(
    method: &MethodResult,
    figure: impl Fn(&Run) -> Option<f64>,
    write: impl Fn(f64) -> String,
) -> String {
    method.median(figure).map_or_else(|| "–".to_owned(), write)
}

/// Megabytes of CSV in a second, at the median.
pub fn csv_rate(method: &MethodResult) -> String {
    let loads = method.seconds.filter(|_| method.rows > 0);
    loads.map_or("–".to_owned(), |s| megabytes(method.bytes as f64 / s.median))
}

/// The rows left after the crash, from the run that had one.
pub fn after_crash(method: &MethodResult) -> String {
    match method.runs.iter().find_map(|r| r.after_crash.as_ref()) {
        None => "–".to_owned(),
        Some(left) if left.same => "all rows".to_owned(),
        Some(left) => format!("{} rows", count(left.rows)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(seconds(1017.4), "1017");
        assert_eq!(seconds(0.12345), "0.123");
        assert_eq!(count(7_500_000), "7,500,000");
        assert_eq!(count(12), "12");
        assert_eq!(megabytes(162_400_000.0), "162");
        assert_eq!(megabytes(1_500_000.0), "1.5");
    }
}
