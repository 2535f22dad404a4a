//! `pgsluice loads`: shows and edits the record of what `load --once` has loaded.

use crate::arguments::node;
use crate::connection::ConnectionArguments;
use crate::failure::Failure;
use crate::output::{print, say};
use clap::{Args, Subcommand};
use pgsluice_engine::loads::{self, Forgotten, LoadRow};
use pgsluice_engine::Error;
use serde::Serialize;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice loads list --to \"$URL\"
  pgsluice loads init --to \"$URL\"";

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

// The arguments of all commands that print rows. (A doc comment would appear in their help.)
#[derive(Args)]
struct Printed {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Print one JSON object per line
    #[arg(long, help_heading = "Output")]
    json: bool,
}

// The load that a command refers to. (Not a doc comment, for the same reason.)
#[derive(Args)]
struct OneLoad {
    /// The number of the load
    #[arg(value_name = "LOAD")]
    load: i64,
    #[command(flatten)]
    printed: Printed,
}

/// List the recorded loads
///
/// A load whose program was killed stays `running` until a later load continues its files.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct List {
    #[command(flatten)]
    printed: Printed,
}

/// Show a load and its files
///
/// With --json, the first object is the load; its files follow.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Show {
    #[command(flatten)]
    one: OneLoad,
}

/// Compare the files of a load with the hashes that are recorded
///
/// Exit code 1 means that a file differs, has grown, is not complete or cannot be read. A stream
/// cannot be compared here: load it again, and it is compared.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Verify {
    #[command(flatten)]
    one: OneLoad,
}

/// Forget loads, or files of a table: the next load with --once loads them again. Their rows stay
///
/// With --table, the arguments are files; without it, they are the numbers of loads. A file is
/// forgotten with all other names of the same bytes. If one of several loads of a file is forgotten,
/// what the others have loaded stays recorded. A load that is running is stopped. A reject file of a
/// load that is not complete is forgotten, too: the load continues without the rejects that it has.
/// Exit code 1 means that one of them was not recorded.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Forget {
    /// The numbers of the loads, or the files
    #[arg(value_name = "LOAD|FILE", required = true)]
    what: Vec<String>,
    /// The table of the files, written as in SQL
    #[arg(long, short, value_name = "NAME")]
    table: Option<String>,
    /// Connect to the node NAME by URL, instead of as the catalog says; may be repeated
    #[arg(long = "node", value_name = "NAME=URL", value_parser = node)]
    nodes: Vec<(String, String)>,
    #[command(flatten)]
    printed: Printed,
}

/// A file that was forgotten.
#[derive(Serialize)]
struct ForgottenFile {
    file: String,
}

/// A load that was forgotten, with the files that are not complete any more.
#[derive(Serialize)]
struct ForgottenLoad {
    load: i64,
    files: Vec<String>,
}

/// Create the tables of the record, or upgrade those of an earlier version
///
/// The first load with --once does the same. If its role may not create a schema or tables, the
/// owner of the database or a superuser runs this command. Each role then sees and writes the record
/// of the tables into which it may insert.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Init {
    /// Only print the statements that create the schema and its tables where they do not exist
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        Action::List(List { printed }) => {
            let all = loads::list(&printed.connection.target()?, None)?;
            if all.is_empty() {
                say("no load is recorded");
            }
            print_rows(&all, printed.json, line)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Show(show) => show_load(&show.one),
        Action::Verify(verify) => verify_load(&verify.one),
        Action::Forget(forget) => match &forget.table {
            Some(table) => forget_files(forget, table),
            None => forget_loads(forget),
        },
        Action::Init(init) => {
            if init.print {
                print(loads::statements())?;
            } else {
                let version = loads::init(&init.connection.target()?)?;
                print(format_args!("the schema pgsluice_loads has tables of version {version}"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn forget_files(forget: &Forget, table: &str) -> Result<ExitCode, Failure> {
    let url = forget.printed.connection.target()?;
    let Forgotten { names, missing } = loads::forget(&url, table, &forget.what, &forget.nodes)?;
    let files: Vec<_> = names.into_iter().map(|file| ForgottenFile { file }).collect();
    print_rows(&files, forget.printed.json, |f| format!("{} is forgotten; its rows stay", f.file))?;
    if missing > 0 {
        say(format_args!("error: {missing} of the files are not recorded for {table}"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn forget_loads(forget: &Forget) -> Result<ExitCode, Failure> {
    let number = |what: &String| {
        what.parse::<i64>().map_err(|_| {
            Failure::from(
                Error::usage(format!("\"{what}\" is not the number of a load"))
                    .with_hint("a file needs its table: --table NAME"),
            )
        })
    };
    let numbers = forget.what.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let url = forget.printed.connection.target()?;
    let mut code = ExitCode::SUCCESS;
    for load in numbers {
        match loads::forget_load(&url, load, &forget.nodes)? {
            None => {
                say(format_args!("error: no load {load} is recorded"));
                code = ExitCode::FAILURE;
            }
            Some(files) => {
                let forgotten = ForgottenLoad { load, files };
                print_rows(&[forgotten], forget.printed.json, |f| {
                    let files = f.files.iter().map(|f| format!("\n  {f} is not complete any more"));
                    format!("load {load} is forgotten; its rows stay{}", files.collect::<String>())
                })?;
            }
        }
    }
    Ok(code)
}

/// Reads the row of a load, which must be recorded.
fn recorded(url: &str, load: i64) -> Result<Vec<LoadRow>, Failure> {
    let found = loads::list(url, Some(load))?;
    if found.is_empty() {
        return Err(Failure::new(format!("no load {load} is recorded"))
            .with_hint("pgsluice loads list lists those that this role may see"));
    }
    Ok(found)
}

fn verify_load(OneLoad { load, printed }: &OneLoad) -> Result<ExitCode, Failure> {
    let url = printed.connection.target()?;
    recorded(&url, *load)?;
    let all = loads::verify(&url, *load)?;
    if all.is_empty() {
        say(format_args!("load {load} has no files to compare"));
    }
    print_rows(&all, printed.json, |v| {
        let found = v.difference.as_deref().or(v.not_compared.as_deref());
        format!("{}: {}", v.file, found.unwrap_or("the same"))
    })?;
    let differs = all.iter().any(|v| v.difference.is_some());
    Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show_load(OneLoad { load, printed }: &OneLoad) -> Result<ExitCode, Failure> {
    let url = printed.connection.target()?;
    let found = recorded(&url, *load)?;
    print_rows(&found, printed.json, |load| {
        let error = load.error.as_ref().map_or(String::new(), |e| format!("\n  error: {e}"));
        format!("{}{error}", line(load))
    })?;
    print_rows(&loads::files(&url, *load)?, printed.json, |s| {
        let (file, state, pieces) = (&s.file, &s.state, s.pieces);
        let next = s.next_record.map_or(String::new(), |record| {
            let place = s.next_line.zip(s.next_byte);
            let place =
                place.map(|(line, byte)| format!(", after line {} and byte {byte}", line - 1));
            format!("; it goes on at record {record}{}", place.unwrap_or_default())
        });
        format!(
            "  {file}: {state}, {} records in {} bytes, {pieces} pieces{next}",
            s.records, s.bytes
        )
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

/// Prints each row as a line, or as a JSON object.
fn print_rows<T: Serialize>(
    rows: &[T],
    json: bool,
    line: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    for row in rows {
        let text = if json { serde_json::to_string(row).unwrap_or_default() } else { line(row) };
        print(text)?;
    }
    Ok(())
}
