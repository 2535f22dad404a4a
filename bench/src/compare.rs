//! Compares two runs, so that a regression in speed is seen before it lands.

use std::path::Path;

use anyhow::{ensure, Result};

use crate::figures;
use crate::result::{MethodResult, MethodStatus, SuiteResult};

/// What a comparison found.
#[derive(Debug, Default)]
pub struct Comparison {
    /// The report, line by line.
    pub lines: Vec<String>,
    /// Methods compared.
    pub compared: usize,
    /// Methods of the first run that could not be compared; the lines say why.
    pub not_compared: usize,
    /// Methods that became slower than the tolerance allows, or fail now.
    pub worse: usize,
}

/// Compares run B with run A. A method is worse when its time in B is more than `1 + tolerance`
/// times that in A. With `relative`, the ratio of a method to its counterpart in the same run is
/// compared instead. A slower machine, or a machine that drifts, does not change that ratio. A
/// method without a counterpart is then not compared.
pub fn runs(a: &Path, b: &Path, tolerance: f64, relative: bool) -> Result<Comparison> {
    let (old, new) = (read(a)?, read(b)?);
    let mut found = Comparison::default();
    for before in &old {
        let Some(after) = new.iter().find(|r| r.suite == before.suite) else {
            found.lines.push(format!("{}: only in the first run", before.suite));
            continue;
        };
        circumstances(before, after, &mut found.lines);
        for method in &before.methods {
            let label =
                format!("{} {} of {} rows", before.suite, method.name, figures::count(method.rows));
            one(&label, method, after, tolerance, relative, &mut found);
        }
    }
    ensure!(found.compared > 0, "the two runs have no method in common that could be compared");
    Ok(found)
}

/// A folder of runs, or one suite's file.
fn read(path: &Path) -> Result<Vec<SuiteResult>> {
    if path.is_dir() {
        SuiteResult::read_all(path)
    } else {
        Ok(vec![SuiteResult::read(path)?])
    }
}

/// Adds a line for each circumstance that differs between the two runs.
fn circumstances(a: &SuiteResult, b: &SuiteResult, lines: &mut Vec<String>) {
    let (x, y) = (&a.environment, &b.environment);
    let facts = [
        ("processors", x.cpu.clone(), y.cpu.clone()),
        ("cores", x.cores.to_string(), y.cores.to_string()),
        ("PostgreSQL", x.postgres.clone(), y.postgres.clone()),
        (
            "settings",
            format!("{:?}", a.parameters.settings),
            format!("{:?}", b.parameters.settings),
        ),
        ("lanes", a.parameters.lanes.to_string(), b.parameters.lanes.to_string()),
        ("seeds", a.parameters.seed.to_string(), b.parameters.seed.to_string()),
        (
            "page caches",
            a.parameters.page_cache.word().to_owned(),
            b.parameters.page_cache.word().to_owned(),
        ),
    ];
    for (what, old, new) in facts.into_iter().filter(|(_, old, new)| old != new) {
        lines.push(format!("{}: {what} differ: {old} and {new}", a.suite));
    }
}

fn one(
    label: &str,
    before: &MethodResult,
    result: &SuiteResult,
    tolerance: f64,
    relative: bool,
    found: &mut Comparison,
) {
    let left_out = |found: &mut Comparison, why: &str| {
        found.lines.push(format!("{label}: not compared: {why}"));
        found.not_compared += 1;
    };
    let Some(after) = result.method(&before.name, before.of_rows) else {
        return left_out(found, "only in the first run");
    };
    if before.durability != after.durability {
        let (x, y) = (before.durability.word(), after.durability.word());
        return left_out(found, &format!("durability was {x} and is {y}"));
    }
    if after.status == MethodStatus::Failed && before.status == MethodStatus::Ok {
        let message = after.message.as_deref().unwrap_or_default();
        found.lines.push(format!("{label}: WORSE: fails now: {message}"));
        found.compared += 1;
        found.worse += 1;
        return;
    }
    let Some((old, new)) = before.seconds.zip(after.seconds) else {
        return left_out(found, "no time in one of the runs");
    };
    let by_pairs = before.ratio.as_ref().zip(after.ratio.as_ref());
    let by_pairs = by_pairs.filter(|(x, y)| x.against == y.against);
    let change = match by_pairs {
        Some((x, y)) if relative => y.pairs.median / x.pairs.median,
        None if relative => return left_out(found, "no counterpart in one of the runs"),
        _ => new.median / old.median,
    };
    found.compared += 1;
    let verdict = if change > 1.0 + tolerance {
        found.worse += 1;
        "WORSE"
    } else if change < 1.0 / (1.0 + tolerance) {
        "better"
    } else {
        "same"
    };
    let pairs = by_pairs.map_or(String::new(), |(x, y)| {
        format!("; over {}: {:.2} and {:.2}", x.against, x.pairs.median, y.pairs.median)
    });
    found.lines.push(format!(
        "{label}: {change:.2} {verdict}: {} s and {} s{pairs}",
        figures::spread(old),
        figures::spread(new)
    ));
}
