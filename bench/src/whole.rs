//! Compares a run with its suite: what the command line left out or changed, in words, and what its
//! methods are known to give up today.

use std::path::Path;

use crate::definition::{Data, Suite};
use crate::demand::{Demand, Judged};
use crate::figures;
use crate::result::{Parameters, SuiteResult};

/// The differences between the parameters of a run and the suite's for its profile.
pub fn departures(suite: &Suite, made: &Parameters) -> Vec<String> {
    let quick = made.profile == "quick";
    let rows = if quick { &suite.rows.quick } else { &suite.rows.full };
    let runs = if quick { suite.runs.quick } else { suite.runs.full };
    let mut words = Vec::new();
    if made.rows != *rows {
        words.push(format!("{} rows instead of {}", counts(&made.rows), counts(rows)));
    }
    // More rounds than the suite's are no departure.
    if made.runs < runs {
        let plural = if made.runs == 1 { "" } else { "s" };
        words.push(format!("{} round{plural} instead of {runs}", made.runs));
    }
    if made.page_cache != suite.page_cache {
        let (is, due) = (made.page_cache.word(), suite.page_cache.word());
        words.push(format!("page cache {is} instead of {due}"));
    }
    if !made.only.is_empty() {
        let chosen =
            |name: &String| made.only.contains(name) || made.against.as_ref() == Some(name);
        let n = suite.method.iter().filter(|m| chosen(&m.name)).count();
        words.push(format!("{n} of {} methods", suite.method.len()));
    }
    words.extend(made.against.as_ref().map(|name| format!("all compared with {name}")));
    words
}

/// The inputs that had another number of rows than the suite asks for today.
fn other_inputs(suite: &Suite, result: &SuiteResult) -> Vec<String> {
    let words = |data: &Data| {
        let due = data.rows.as_ref()?.full;
        let had = result.data.iter().find(|d| d.name == data.name)?.rows;
        let (is, due_rows) = (figures::count(had), figures::count(due));
        (had != due).then(|| format!("{is} rows of {} instead of {due_rows}", data.name))
    };
    match result.parameters.profile == "full" {
        true => suite.data.iter().filter_map(words).collect(),
        false => Vec::new(),
    }
}

/// How many methods of today's suite were not in it yet, or were called otherwise. Those that the
/// command line left out are in [`departures`].
fn other_methods(suite: &Suite, result: &SuiteResult) -> Option<String> {
    let there = |name: &String| result.methods.iter().any(|m| m.name == *name);
    let n = suite.method.iter().filter(|m| there(&m.name)).count();
    let whole = result.parameters.profile == "full" && result.parameters.only.is_empty();
    (whole && n < suite.method.len()).then(|| format!("{n} of {} methods", suite.method.len()))
}

fn counts(rows: &[u64]) -> String {
    rows.iter().map(|n| figures::count(*n)).collect::<Vec<_>>().join(", ")
}

/// Adds to a result what only the current definitions state. The runs stay as they were:
///
/// * the differences from its suite, if the result is older than that field; and the inputs that had
///   another size, and how many methods the suite had of those of today
/// * what its methods were later found to give up, so that a later warning appears beside the
///   figures
/// * the demands of today. If the run does not have the method that one names, it is replaced by the
///   one of the same work in the result, or has no figure
///
/// Without a definition nothing changes.
pub fn annotate(result: &mut SuiteResult, suites: &Path) {
    let Ok(suite) = Suite::read(suites, &result.suite) else { return };
    let made = || departures(&suite, &result.parameters);
    let mut departs = result.departs.clone().unwrap_or_else(made);
    for words in other_inputs(&suite, result).into_iter().chain(other_methods(&suite, result)) {
        if !departs.contains(&words) {
            departs.push(words);
        }
    }
    result.departs = Some(departs);
    for method in &mut result.methods {
        let Some(defined) = suite.method.iter().find(|m| m.name == method.name) else { continue };
        for given_up in &defined.gives_up {
            if !method.gives_up.contains(given_up) {
                method.gives_up.push(given_up.clone());
            }
        }
    }
    let ran = |name: &String| result.methods.iter().any(|m| m.name == *name);
    let asked = |work: &String| result.demands.iter().map(|j| &j.demand).find(|d| d.work == *work);
    // Methods that the command line left out are no part of the run.
    let left_out = |name: &String| {
        let made = &result.parameters;
        !made.only.is_empty() && !made.only.contains(name) && made.against.as_ref() != Some(name)
    };
    let of_run = |today: &Demand| match ran(&today.method) && today.against.iter().all(ran) {
        true => Some(today.clone()),
        false if left_out(&today.method) => asked(&today.work).cloned(),
        false => Some(asked(&today.work).unwrap_or(today).clone()),
    };
    let demands: Vec<Demand> = suite.demand.iter().filter_map(of_run).collect();
    result.demands = demands.into_iter().map(|d| Judged::new(d, result)).collect();
}

/// The differences from the suite as a sentence; `None` if the run is the whole suite.
pub fn sentence(result: &SuiteResult) -> Option<String> {
    let departs = result.departs.as_ref().filter(|words| !words.is_empty())?;
    Some(format!("Not the whole suite: {}.", departs.join("; ")))
}
