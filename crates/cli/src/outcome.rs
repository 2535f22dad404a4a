//! The arguments on bad records and on reports.

use crate::failure::Failure;
use crate::moment;
use crate::output::LogFormat;
use clap::{Args, ValueEnum};
use pgsluice_engine::options::{Existing, Limit};
use pgsluice_engine::options::{InputOptions, RejectOptions};
use pgsluice_engine::Error;
use std::path::{Path, PathBuf};

/// What to do with a bad record
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnError {
    /// fail the load; nothing is loaded
    Stop,
    /// write the record to the reject file and go on
    Reject,
}

/// What to do if the reject file exists
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExistingFile {
    /// fail before the load begins
    Error,
    /// add the rejects to it
    Append,
    /// overwrite it
    Replace,
}

/// What becomes of bad records.
#[derive(Args, Debug)]
#[command(next_help_heading = "Bad records")]
pub struct ErrorArguments {
    /// What to do with a bad record
    #[arg(long, value_enum, default_value = "stop")]
    pub on_error: OnError,
    /// The file for rejected records, which are kept as they are in the input; FILE.jsonl has
    /// the reasons. {time} and {id} are replaced by the time and the ID of the run [default:
    /// the name of the first file plus .rejects, in the current folder]
    #[arg(long, value_name = "FILE")]
    pub reject_file: Option<PathBuf>,
    /// What to do if the reject file exists [default: error]
    #[arg(long, value_enum, value_name = "HOW")]
    pub reject_existing: Option<ExistingFile>,
    /// Fail if more than N records or lines are rejected, or more than P% of those read; none:
    /// no limit [default: 10%, but at least 100]
    #[arg(long, value_name = "N|P%|none", value_parser = Limit::parse)]
    pub reject_limit: Option<Limit>,
}

/// What is reported.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputArguments {
    /// Write the summary to FILE as JSON, on failure too; - is standard output
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Write messages as a log: text with a timestamp on each line, or JSON
    #[arg(long, value_enum, value_name = "FORM")]
    pub log_format: Option<LogFormat>,
    /// Also report phases, WAL and each step
    #[arg(long, short, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Report errors only
    #[arg(long, short)]
    pub quiet: bool,
}

/// Checks that options on rejects are given only with `--on-error reject`.
///
/// # Errors
///
/// They are given without it, or the rejects would go to standard output.
pub fn only_with_rejects(a: &ErrorArguments) -> Result<(), Failure> {
    let given = [
        ("--reject-file", a.reject_file.is_some()),
        ("--reject-existing", a.reject_existing.is_some()),
        ("--reject-limit", a.reject_limit.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) if a.on_error == OnError::Stop => {
            Err(Error::usage(format!("{option} needs --on-error reject")).into())
        }
        _ if a.reject_file.as_deref() == Some(Path::new("-")) => {
            Err(Error::usage("rejects are written to two files, which standard output cannot be")
                .with_hint("name a file; the reasons go to FILE.jsonl")
                .into())
        }
        _ => Ok(()),
    }
}

/// The options of the engine on rejects.
pub fn rejects(a: &ErrorArguments, input: &InputOptions) -> Option<RejectOptions> {
    if a.on_error == OnError::Stop {
        return None;
    }
    let default = || {
        let first = input.sources.first().and_then(|source| source.path()?.file_name());
        let mut name = first.unwrap_or("stdin".as_ref()).to_owned();
        name.push(".rejects");
        PathBuf::from(name)
    };
    let file = match &a.reject_file {
        Some(file) => file.to_str().map_or_else(|| file.clone(), |f| moment::named(f).into()),
        None => default(),
    };
    let existing = match a.reject_existing {
        None | Some(ExistingFile::Error) => Existing::Error,
        Some(ExistingFile::Append) => Existing::Append,
        Some(ExistingFile::Replace) => Existing::Replace,
    };
    let limit = a.reject_limit.unwrap_or_default();
    Some(RejectOptions { file, existing, limit })
}
