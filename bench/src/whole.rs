//! Is a run the whole of its suite? What the command line had it leave out or do otherwise, in words,
//! and what is known today about what its methods give up.

use std::path::Path;

use crate::definition::Suite;
use crate::demand::{Demand, Judged};
use crate::figures;
use crate::result::{Parameters, SuiteResult};

/// Where a run of these parameters departs from what the suite says for its profile.
pub fn departures(suite: &Suite, made: &Parameters) -> Vec<String> {
    let quick = made.profile == "quick";
    let rows = if quick { &suite.rows.quick } else { &suite.rows.full };
    let runs = if quick { suite.runs.quick } else { suite.runs.full };
    let mut words = Vec::new();
    if made.rows != *rows {
        words.push(format!("{} rows instead of {}", counts(&made.rows), counts(rows)));
    }
    // More rounds hold all that the suite asks for.
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

fn counts(rows: &[u64]) -> String {
    rows.iter().map(|n| figures::count(*n)).collect::<Vec<_>>().join(", ")
}

/// Adds to a result what the current definitions say beyond it: where it departs from its suite, if
/// it was made before that was kept, and what its methods were later found to give up. A warning
/// that was written after a run must stand beside its figures too. What is asked of the figures is
/// what the definition asks today, or what it asked, where it names methods now that the run does
/// not have; the runs stay as they were. Without a definition nothing changes.
pub fn annotate(result: &mut SuiteResult, suites: &Path) {
    let Ok(suite) = Suite::read(suites, &result.suite) else { return };
    if result.departs.is_none() {
        result.departs = Some(departures(&suite, &result.parameters));
    }
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
    let of_run = |today: &Demand| match ran(&today.method) && today.against.iter().all(ran) {
        true => Some(today.clone()),
        false => asked(&today.work).cloned(),
    };
    let demands: Vec<Demand> = suite.demand.iter().filter_map(of_run).collect();
    result.demands = demands.into_iter().map(|d| Judged::new(d, result)).collect();
}

/// Where a result departs from its suite, as a sentence; nothing where it is the whole of it.
pub fn sentence(result: &SuiteResult) -> Option<String> {
    let departs = result.departs.as_ref().filter(|words| !words.is_empty())?;
    Some(format!("Not the whole suite: {}.", departs.join("; ")))
}
