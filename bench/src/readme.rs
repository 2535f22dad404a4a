//! Figures in the project's pages. They are generated from the kept runs and checked against them.
//!
//! Everything between `<!-- bench: … -->` and `<!-- /bench -->` is generated:
//!
//! - `<!-- bench: table suite=votes methods=copy-csv,pgsluice-auto -->`
//! - `<!-- bench: figure suite=votes method=pgsluice-auto of=speedup -->`, where `of` is
//!   `seconds`, `rows_per_second`, `ratio`, `speedup` or `published_seconds`
//! - `<!-- bench: demands suite=copy -->`: the required figures of the suite and those reached. If
//!   no run of the suite is kept yet, the text says so
//! - `<!-- bench: run suite=votes -->` names folder, machine and versions
//!
//! A table names its run. A single figure is allowed only on a page that names the run elsewhere.
//! `run=FOLDER` selects a run. Without it, the newest full run of the whole suite is used. If there
//! is none, the newest full run of a part is used, and its text says what is missing. If there is
//! no full run, a quick one is used.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{bail, ensure, Context, Result};

use crate::result::{MethodResult, SuiteResult};
use crate::{demand, figures, markdown, whole};

const BEGIN: &str = "<!-- bench:";
const END: &str = "<!-- /bench -->";

/// The folder of the kept runs, and the folder of the definitions to compare them with.
#[derive(Clone, Debug)]
pub struct KeptRuns {
    /// Folder of the folders of runs.
    pub runs: PathBuf,
    /// Folder of the definitions.
    pub suites: PathBuf,
}

/// The page with every generated part written again.
pub fn generate(page: &str, kept: &KeptRuns) -> Result<String> {
    let mut text = String::new();
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let marker_end = rest[at..].find("-->").context("a marker does not end")? + at + 3;
        let body_end = rest[marker_end..]
            .find(END)
            .with_context(|| format!("no {END} after {}", &rest[at..marker_end]))?
            + marker_end;
        let order = rest[at + BEGIN.len()..marker_end - 3].trim();
        text += &rest[..marker_end];
        text += &part(order, page, kept).with_context(|| format!("in the marker {order:?}"))?;
        text += END;
        rest = &rest[body_end + END.len()..];
    }
    Ok(text + rest)
}

/// The generated text of one marker.
fn part(order: &str, page: &str, kept: &KeptRuns) -> Result<String> {
    let mut words = order.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let options: BTreeMap<&str, &str> = words.filter_map(|w| w.split_once('=')).collect();
    let suite = options.get("suite").context("which suite?")?;
    let found = kept.newest(suite, options.get("run").copied())?;
    if kind == "demands" && found.is_none() {
        return Ok("\nNo run of this suite is kept yet.\n".to_owned());
    }
    let (folder, result) = found.with_context(|| format!("no complete run of {suite} is kept"))?;
    match kind {
        "demands" => Ok(format!("\n{}\n{}", demand::table(&result), caption(&folder, &result))),
        "table" => {
            let table = table(&result, options.get("methods").copied())?;
            Ok(format!("{table}\n{}", caption(&folder, &result)))
        }
        "figure" => {
            ensure!(
                names_run_of(page, suite),
                "the page does not say which run it is of\nhint: <!-- bench: run suite={suite} -->"
            );
            let name = options.get("method").context("which method?")?;
            let rows = result.parameters.rows.last().copied().unwrap_or_default();
            let method = result.method(name, rows).with_context(|| format!("no method {name}"))?;
            figure(method, options.get("of").copied().unwrap_or("seconds"))
        }
        "run" => Ok(described(&folder, &result)),
        _ => bail!("neither table, demands, figure nor run"),
    }
}

/// Whether another marker of the page names the run of a suite.
fn names_run_of(page: &str, suite: &str) -> bool {
    let orders = page.split(BEGIN).skip(1).filter_map(|rest| rest.split_once("-->"));
    let suite = format!("suite={suite}");
    let mut orders = orders.map(|(order, _)| order.split_whitespace().collect::<Vec<_>>());
    orders.any(|words| words.first() != Some(&"figure") && words.contains(&&*suite))
}

impl KeptRuns {
    /// The named run of a suite, or its newest complete one. A full run comes before a quick one,
    /// and a run of the whole suite before a run of a part.
    fn newest(&self, suite: &str, named: Option<&str>) -> Result<Option<(String, SuiteResult)>> {
        let mut folders = Vec::new();
        let runs = &self.runs;
        for entry in fs::read_dir(runs).with_context(|| format!("no runs in {}", runs.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path().join(format!("{suite}.json"));
            if path.exists() && named.is_none_or(|n| n == name) {
                let mut result = SuiteResult::read(&path)?;
                whole::annotate(&mut result, &self.suites);
                folders.push((name, result));
            }
        }
        folders.retain(|(_, result)| result.complete);
        folders.sort_by_key(|(name, result)| {
            let full = result.parameters.profile == "full";
            (full, whole::sentence(result).is_none(), name.clone())
        });
        Ok(folders.pop())
    }
}

/// The run of a table, the number of rounds, and the meaning of its marks.
fn caption(folder: &str, result: &SuiteResult) -> String {
    let p = &result.parameters;
    let mut text = format!(
        "`bench/runs/{folder}/{}.md`: {}, commit {}.",
        result.suite,
        figures::rounds(p),
        result.environment.commit
    );
    text.extend(whole::sentence(result).map(|sentence| format!(" {sentence}")));
    text.extend(markdown::unlike(result).map(|mark| format!(" {mark}")));
    text + "\n"
}

fn table(result: &SuiteResult, methods: Option<&str>) -> Result<String> {
    let mut text = String::from(
        "\n| method | durability | published | seconds | rows/s | time over its counterpart | gives up |\n\
         |---|---|--:|--:|--:|--:|---|\n",
    );
    let chosen: Vec<&MethodResult> = match methods {
        None => result.methods.iter().collect(),
        Some(names) => {
            let find = |name: &str| {
                let mut all = result.methods.iter().filter(|m| m.name == name);
                all.next_back().with_context(|| format!("no method {name}"))
            };
            names.split(',').map(find).collect::<Result<_>>()?
        }
    };
    for method in chosen {
        let ratio = method.ratio.as_ref().map_or("–".to_owned(), |r| {
            format!("{} of {}", figures::ratio(r), result.title_of(&r.against))
        });
        text += &format!(
            "| {} | {} | {} | {} | {} | {ratio} | {} |\n",
            method.title,
            method.durability.word(),
            figures::published(result, method),
            figures::time(method),
            method.rows_per_second.map_or("–".to_owned(), |r| figures::count(r as u64)),
            figures::gives_up(method),
        );
    }
    Ok(text)
}

fn figure(method: &MethodResult, of: &str) -> Result<String> {
    let ratio = || method.ratio.as_ref().map(|r| r.pairs.median).context("it has no counterpart");
    let seconds = || method.seconds.map(|s| s.median).context("it has no time");
    Ok(match of {
        "seconds" => figures::seconds(seconds()?),
        "rows_per_second" => figures::count(method.rows_per_second.context("no rate")? as u64),
        "ratio" => format!("{:.2}", ratio()?),
        "speedup" => format!("{:.1}", 1.0 / ratio()?),
        "published_seconds" => figures::seconds(method.published_seconds.context("not published")?),
        _ => bail!("no figure is called {of}"),
    })
}

fn described(folder: &str, result: &SuiteResult) -> String {
    let e = &result.environment;
    format!(
        "`bench/runs/{folder}`: {} rows, {}, PostgreSQL {}, {} with {} cores, {}{}",
        figures::count(result.parameters.rows.last().copied().unwrap_or_default()),
        figures::rounds(&result.parameters),
        e.postgres,
        e.cpu,
        e.cores,
        e.system,
        whole::sentence(result).map_or(String::new(), |sentence| format!(". {sentence}"))
    )
}
