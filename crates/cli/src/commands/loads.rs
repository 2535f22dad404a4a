//! `pgsluice loads`: the record of what `load --once` has loaded.

use crate::connection::ConnectionArguments;
use crate::failure::Failure;
use crate::output::{print, say};
use clap::{Args, Subcommand};
use pgsluice_engine::loads::{self, LoadRow};
use serde::Serialize;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice loads list --to \"$URL\"
  pgsluice loads init --print";

/// List, verify or forget what `load --once` has loaded
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    Show(Show),
    Verify(Verify),
    Forget(Forget),
    Init(Init),
}

/// List the recorded loads
///
/// A load whose program was killed stays `running` until a later load continues its files.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct List {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Print one JSON object per line
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Show a load and its files
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Show {
    /// The number of the load
    #[arg(value_name = "LOAD")]
    load: i64,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Print one JSON object per line: the load, then its files
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Compare the files of a load with the hashes that are recorded
///
/// Exit code 1 means that a file differs or cannot be read.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Verify {
    /// The number of the load
    #[arg(value_name = "LOAD")]
    load: i64,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Print one JSON object per line
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Forget files: the next load with --once loads them again. Their rows stay in the table
///
/// A reject file of a load that is not complete is forgotten, too: the load continues without the
/// rejects that it has. Exit code 1 means that no such file was recorded for the table.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Forget {
    /// The files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// The table, written as in SQL
    #[arg(long, short, value_name = "NAME")]
    table: String,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// The tables of the record, for an administrator to create
///
/// The first load with --once creates them. If its role may not create a schema, the owner of the
/// database runs these statements. Each role then sees and writes the record of the tables into
/// which it may insert.
#[derive(Args)]
struct Init {
    /// Print the statements
    #[arg(long, required = true)]
    #[allow(dead_code)] // it is all that the command does
    print: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        Action::List(list) => {
            let all = loads::list(&list.connection.target()?, None)?;
            if all.is_empty() {
                say("no load is recorded");
            }
            put(&all, list.json, line)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Show(show) => show_load(show),
        Action::Verify(verify) => {
            let all = loads::verify(&verify.connection.target()?, verify.load)?;
            put(&all, verify.json, |v| {
                format!("{}: {}", v.file, v.difference.as_deref().unwrap_or("the same"))
            })?;
            let same = all.iter().all(|v| v.difference.is_none());
            Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Action::Forget(forget) => {
            let url = forget.connection.target()?;
            let forgotten = loads::forget(&url, &forget.table, &forget.files)?;
            put(&forgotten, false, |file| format!("{file} is forgotten; its rows stay"))?;
            if forgotten.len() < forget.files.len() {
                let missing = forget.files.len() - forgotten.len();
                say(format_args!(
                    "error: {missing} of the files are not recorded for {}",
                    forget.table
                ));
                return Ok(ExitCode::FAILURE);
            }
            Ok(ExitCode::SUCCESS)
        }
        Action::Init(_) => {
            print(loads::statements())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn show_load(show: &Show) -> Result<ExitCode, Failure> {
    let url = show.connection.target()?;
    let found = loads::list(&url, Some(show.load))?;
    if found.is_empty() {
        return Err(Failure::new(format!("no load {} is recorded", show.load))
            .with_hint("pgsluice loads list lists those that this role may see"));
    }
    put(&found, show.json, |load| {
        let error = load.error.as_ref().map_or(String::new(), |e| format!("\n  error: {e}"));
        format!("{}{error}", line(load))
    })?;
    put(&loads::files(&url, show.load)?, show.json, |s| {
        let (file, state, pieces) = (&s.file, &s.state, s.pieces);
        format!("  {file}: {state}, {} records in {} bytes, {pieces} pieces", s.records, s.bytes)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn line(l: &LoadRow) -> String {
    let until = l.ended.as_ref().map_or(String::new(), |ended| format!(" to {ended}"));
    format!(
        "load {}: {} {}, {}{until}, {} files, {} commits, read {} = loaded {} + rejected {} + skipped {}",
        l.load, l.table, l.state, l.started, l.files, l.commits, l.read, l.loaded, l.rejected, l.skipped
    )
}

/// Prints each row as a line, or as JSON.
fn put<T: Serialize>(rows: &[T], json: bool, line: impl Fn(&T) -> String) -> Result<(), Failure> {
    for row in rows {
        let text = if json { serde_json::to_string(row).unwrap_or_default() } else { line(row) };
        print(text)?;
    }
    Ok(())
}
