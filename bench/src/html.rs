//! One self-contained page for a folder of runs.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::demand;
use crate::losses::Loss;
use crate::result::SuiteResult;

const PAGE: &str = include_str!("../assets/report.html");
const CSS: &str = include_str!("../assets/report.css");
const JS: &str = include_str!("../assets/report.js");
const D3: &str = include_str!("../assets/d3.min.js");
const PLOT: &str = include_str!("../assets/plot.min.js");

/// The data for the page's script.
#[derive(Serialize)]
struct Data<'a> {
    folder: &'a str,
    results: &'a [SuiteResult],
    losses: &'a [Loss],
    demand_heads: [&'static str; 7],
    demands: BTreeMap<&'a str, Vec<[String; 7]>>,
}

/// The page. Data, libraries and styles are embedded, so the page fetches nothing.
pub fn page(folder: &str, results: &[SuiteResult], losses: &[Loss]) -> Result<String> {
    // Inside a script element, only `<` could end the element or begin another.
    let demands = results.iter().map(|r| (&*r.suite, demand::rows(r))).collect();
    let data = Data { folder, results, losses, demand_heads: demand::HEADS, demands };
    let data = serde_json::to_string(&data)?.replace('<', "\\u003c");
    let mut page = String::with_capacity(PAGE.len() + D3.len() + PLOT.len() + data.len() + 40_000);
    let mut rest = PAGE;
    for (mark, text) in
        [("/*CSS*/", CSS), ("/*DATA*/", &*data), ("/*D3*/", D3), ("/*PLOT*/", PLOT), ("/*JS*/", JS)]
    {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page += before;
        page += text;
        rest = after;
    }
    Ok(page + rest)
}
