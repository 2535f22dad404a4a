//! `pgsluice repair`: recreates what was dropped or disabled when a load crashed.

use crate::arguments::node;
use crate::connection::ConnectionArguments;
use crate::failure::Failure;
use crate::output::{print, say};
use crate::wording::words;
use clap::Args;
use pgsluice_engine::repair::{repair, Report};
use pgsluice_engine::Error;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice repair --to postgresql://loader@db.example/shop
  pgsluice repair --to service=shop --jobs 4";

/// Recreate indexes, constraints and triggers that a load had dropped or disabled before a crash
///
/// A load over several connections drops or disables them in a separate transaction, and records
/// them in the schema pgsluice_loads first. If the loader or the server dies before they are back,
/// this command recreates them exactly as they were. Lanes that were prepared for a common commit
/// are committed if the first of them was, and rolled back otherwise. What nodes have prepared for
/// a load with --atomic is committed if that load was, and rolled back otherwise; the command
/// connects to the nodes for that. The command may be run at
/// any time, more than once, and during a load, which it leaves alone. Exit code 1 means that
/// something is still missing, or may still be prepared.
#[derive(Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Number of connections that build at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Connect to the node NAME by URL, instead of as the catalog says; may be repeated
    #[arg(long = "node", value_name = "NAME=URL", value_parser = node)]
    nodes: Vec<(String, String)>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let report = repair(&arguments.connection.target()?, arguments.jobs.into(), &arguments.nodes)?;
    tell(&report)?;
    let down = report.failed.len() + report.others.len() + report.prepared.len();
    Ok(if down == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(report: &Report) -> Result<(), Failure> {
    for lane in &report.lanes {
        print(lane)?;
    }
    for restored in &report.put_back {
        let how = if restored.was_back {
            "nothing to do".to_string()
        } else {
            format!("recreated in {:.1} s", restored.seconds)
        };
        print(format_args!("{}: {how}", restored.object))?;
    }
    for table in &report.running {
        print(format_args!("{table}: a load is running; left alone"))?;
    }
    for (transaction, error) in &report.prepared {
        say_error(&format!("{transaction} may still be there"), error);
    }
    for (objects, error) in report.failed.iter().chain(&report.others) {
        say_error(&format!("still missing: {objects}"), error);
    }
    let nothing = report.put_back.is_empty()
        && report.lanes.is_empty()
        && report.running.is_empty()
        && report.failed.is_empty()
        && report.prepared.is_empty()
        && report.others.is_empty();
    if nothing {
        print("nothing is missing")?;
    }
    Ok(())
}

fn say_error(what: &str, error: &Error) {
    say(format_args!("error: {what}: {}", words(&error.text())));
    if let Some(hint) = error.hint() {
        say(format_args!("hint: {}", words(hint)));
    }
}
