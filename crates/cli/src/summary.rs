//! The summary as JSON, in a file or on standard output.

use crate::arguments::spare;
use crate::failure::Failure;
use crate::output;
use pgsluice_engine::options::Source;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Where the summary goes: opened before the work, since whether it can be
/// written should not come out after hours.
pub struct SummaryFile<'p> {
    path: &'p Path,
    /// none where it goes to standard output
    file: Option<File>,
    /// it was not there before
    new: bool,
}

impl SummaryFile<'_> {
    /// Opens it, and leaves what is in it for now; it is none of the files that are read.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or is one of those.
    pub fn open<'p>(path: &'p Path, sources: &[Source]) -> Result<SummaryFile<'p>, Failure> {
        if path == Path::new("-") {
            return Ok(SummaryFile { path, file: None, new: false });
        }
        spare(sources, path)?;
        let new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| {
            Failure::new(format!("cannot write {}: {e}; nothing was loaded", path.display()))
        })?;
        Ok(SummaryFile { path, file: Some(file), new })
    }

    /// Writes the JSON; `done` says what has been done by then.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(self, json: serde_json::Result<String>, done: &str) -> Result<(), Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            let path = self.path.display();
            Failure::new(format!("{done}, but {path} cannot be written: {e}"))
        };
        let json = json.map_err(|e| failed(&e))?;
        let Some(mut file) = self.file else { return output::print(json) };
        // A device or a pipe has no length to set.
        if file.metadata().is_ok_and(|facts| facts.is_file()) {
            file.set_len(0).map_err(|e| failed(&e))?;
        }
        writeln!(file, "{json}").map_err(|e| failed(&e))
    }

    /// The work failed: an earlier summary stays as it was.
    pub fn leave(self, failure: Failure) -> Failure {
        if self.new {
            let _ = std::fs::remove_file(self.path);
        }
        failure
    }
}
