//! The pages of a folder of runs: Markdown for each suite, one HTML page for all.

use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};

use crate::result::SuiteResult;
use crate::{html, losses, markdown, whole};

/// Writes `<suite>.md`, `losses.md` and `index.html` into a folder of runs. Facts that only the
/// current definitions state are added.
pub fn write(dir: &Path, suites: &Path) -> Result<()> {
    let mut results = SuiteResult::read_all(dir)?;
    ensure!(!results.is_empty(), "no suite's JSON in {}", dir.display());
    results.iter_mut().for_each(|result| whole::annotate(result, suites));
    let found = losses::find(&results);
    for result in &results {
        write_page(&dir.join(format!("{}.md", result.suite)), &markdown::page(result))?;
    }
    write_page(&dir.join("losses.md"), &losses::markdown(&found))?;
    let folder = dir.file_name().unwrap_or_default().to_string_lossy();
    write_page(&dir.join("index.html"), &html::page(&folder, &results, &found)?)
}

fn write_page(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
