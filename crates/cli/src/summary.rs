//! Writes the summary as JSON to a file or to standard output.
//!
//! The file is replaced as a whole by a rename, so that a reader sees either summary but never a
//! part of one. It has the status `running` during the load. If the program is killed, an earlier
//! success cannot be taken for the result of this load.

use crate::failure::{code, Failure, Problem};
use crate::moment::{self, Moment};
use crate::output;
use pgsluice_engine::options::Options;
use pgsluice_engine::{io_message, Error};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The summary: the result of the run, and its details.
#[derive(Serialize)]
struct Record<'r, W: Serialize> {
    status: &'static str,
    exit_code: Option<u8>,
    id: &'static str,
    version: &'static str,
    started: String,
    ended: Option<String>,
    reject_file: Option<&'r str>,
    error: Option<Problem<'r>>,
    #[serde(flatten)]
    what: W,
}

/// The details of a load that has not succeeded.
#[derive(Serialize)]
struct Wanted<'w> {
    table: &'w str,
    files: &'w [String],
}

/// The destination of the summary. It is opened before the work, so that an unwritable file is
/// reported at once and not after hours.
#[derive(Debug)]
pub struct SummaryFile {
    /// `None` for standard output
    path: Option<PathBuf>,
    table: String,
    files: Vec<String>,
    reject_file: Option<String>,
}

impl SummaryFile {
    /// Writes the status `running`. The path must not be an input file or a reject file.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or it is an input file or a reject file.
    pub fn open(path: &Path, options: &Options) -> Result<SummaryFile, Failure> {
        let to_file = path != Path::new("-");
        if to_file {
            options.input.check_output(path)?;
            options.rejects.iter().try_for_each(|rejects| spare_rejects(&rejects.file, path))?;
        }
        let file = SummaryFile {
            path: to_file.then(|| resolved(path)).transpose().map_err(|e| unwritten(path, &e))?,
            table: options.target.table.clone(),
            files: options.input.sources.iter().map(|s| s.name()).collect(),
            reject_file: options.rejects.as_ref().map(|r| r.file.display().to_string()),
        };
        if let (Some(path), true) = (&file.path, file.is_replaced()) {
            let (table, files) = (file.table.as_str(), file.files.as_slice());
            let begun = file.record("running", None, None, Wanted { table, files });
            replace(path, &begun).map_err(|e| unwritten(path, &e))?;
        }
        Ok(file)
    }

    /// Writes a summary of success. `done` describes the work in an error message.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, what: &impl Serialize, rejected: bool, done: &str) -> Result<(), Failure> {
        let (status, exit) = match rejected {
            true => ("loaded_with_rejects", code::REJECTED),
            false => ("loaded", 0),
        };
        self.finish(status, exit, what, done)
    }

    /// Like [`SummaryFile::write`], for a check, which loads nothing.
    ///
    /// # Errors
    ///
    /// As [`SummaryFile::write`].
    pub fn checked(&self, what: &impl Serialize, exit: u8, done: &str) -> Result<(), Failure> {
        self.finish("checked", exit, what, done)
    }

    fn finish(
        &self,
        status: &'static str,
        exit: u8,
        what: &impl Serialize,
        done: &str,
    ) -> Result<(), Failure> {
        self.put(self.record(status, Some(exit), None, what)).map_err(|e| {
            let (path, e) = (self.path.as_deref().unwrap_or(Path::new("-")), io_message(&e));
            Failure::new(format!("{done}, but {} cannot be written: {e}", path.display()))
        })
    }

    /// Writes a summary of failure and returns the failure. If that fails, a message says so.
    pub fn fail(&self, failure: Failure) -> Failure {
        let status = if failure.code() == code::CANCELLED { "cancelled" } else { "failed" };
        let (table, files) = (self.table.as_str(), self.files.as_slice());
        let problem = Some(failure.problem());
        let text = self.record(status, Some(failure.code()), problem, Wanted { table, files });
        if let Err(e) = self.put(text) {
            output::say(format_args!("the summary cannot be written: {}", io_message(&e)));
        }
        failure
    }

    fn record(
        &self,
        status: &'static str,
        exit_code: Option<u8>,
        error: Option<Problem<'_>>,
        what: impl Serialize,
    ) -> String {
        let record = Record {
            status,
            exit_code,
            id: moment::id(),
            version: env!("CARGO_PKG_VERSION"),
            started: moment::started().written(),
            ended: exit_code.map(|_| Moment::now().written()),
            // The file exists only if it has rejects.
            reject_file: self.reject_file.as_deref().filter(|f| Path::new(f).exists()),
            error,
            what,
        };
        serde_json::to_string_pretty(&record).unwrap_or_default()
    }

    /// Whether the file is replaced by a rename. Devices and pipes are written to directly.
    fn is_replaced(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.metadata().map_or(true, |facts| facts.is_file()))
    }

    fn put(&self, text: String) -> io::Result<()> {
        match &self.path {
            None => {
                let written = writeln!(io::stdout(), "{text}");
                written.or_else(|e| match e.kind() {
                    io::ErrorKind::BrokenPipe => Ok(()),
                    _ => Err(e),
                })
            }
            Some(path) if self.is_replaced() => replace(path, &text),
            Some(path) => writeln!(File::options().write(true).open(path)?, "{text}"),
        }
    }
}

/// Checks that the summary does not replace rejects: the reject file, further ones with numbers, or
/// the reasons of one of these.
fn spare_rejects(rejects: &Path, summary: &Path) -> Result<(), Failure> {
    let (Some(rejects), Some(path)) = (absolute(rejects), absolute(summary)) else { return Ok(()) };
    let more = path.as_os_str().as_bytes().strip_prefix(rejects.as_os_str().as_bytes());
    let number = more.map(|more| more.strip_suffix(b".jsonl").unwrap_or(more));
    let same = match number {
        Some([b'.', digits @ ..]) => digits.iter().all(u8::is_ascii_digit),
        other => other.is_some_and(<[u8]>::is_empty),
    };
    if same {
        let message = format!("{} is a reject file and cannot be the summary", summary.display());
        return Err(Error::usage(message)
            .with_hint("--summary and --reject-file need different names")
            .into());
    }
    Ok(())
}

/// The absolute name of a file that need not exist yet; `None` if its folder does not exist.
fn absolute(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let new =
        || Some(folder.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(new)
}

/// The path of the summary in a command line that is otherwise wrong.
pub fn wanted(mut arguments: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    arguments.next();
    arguments.next().filter(|command| command == "load" || command == "check")?;
    while let Some(argument) = arguments.next().filter(|a| a != "--") {
        if argument == "--summary" {
            return arguments.next().map(PathBuf::from);
        }
        if let Some(path) = argument.to_str().and_then(|a| a.strip_prefix("--summary=")) {
            return Some(path.into());
        }
    }
    None
}

/// Writes a summary for a command that failed before its options were parsed. Wrong arguments may
/// name a data file here, so a file that is not a summary is left unchanged.
pub fn refuse(path: Option<&Path>, failure: Failure) -> Failure {
    let Some(path) = path else { return failure };
    let to_file = path != Path::new("-");
    let Ok(path) = to_file.then(|| resolved(path)).transpose() else { return failure };
    let kept =
        path.as_deref().is_some_and(|p| p.metadata().is_ok_and(|f| f.is_file()) && !is_ours(p));
    if kept {
        return failure;
    }
    let (table, files, reject_file) = (String::new(), Vec::new(), None);
    SummaryFile { path, table, files, reject_file }.fail(failure)
}

/// Whether a file is empty or an earlier summary.
fn is_ours(path: &Path) -> bool {
    let Ok(bytes) = fs::read(path) else { return false };
    let keys = |summary: Value| {
        ["status", "exit_code", "id", "version"].iter().all(|key| summary.get(key).is_some())
    };
    bytes.is_empty() || serde_json::from_slice(&bytes).is_ok_and(keys)
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let e = io_message(error);
    Failure::new(format!("cannot write {}: {e}; nothing was loaded", path.display()))
}

/// The file that the summary replaces: if `path` is a link to a file, that file. In a folder such
/// as /tmp, the kernel follows no link that another user has made, but `canonicalize` does. So the
/// link is also opened, and must lead to the same file.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|facts| facts.is_symlink());
    if !is_link || !path.metadata().is_ok_and(|facts| facts.is_file()) {
        return Ok(path.to_owned());
    }
    let opened = File::options().write(true).open(path)?.metadata()?;
    let target = fs::canonicalize(path)?;
    let found = fs::metadata(&target)?;
    match (opened.dev(), opened.ino()) == (found.dev(), found.ino()) {
        true => Ok(target),
        false => Err(io::Error::other("the link was changed")),
    }
}

/// Replaces a file atomically, or creates it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", moment::id()));
    let put = || {
        let mut file = File::create(&beside)?;
        if let Ok(facts) = path.metadata() {
            file.set_permissions(facts.permissions())?;
        }
        writeln!(file, "{text}")?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    put().inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}
