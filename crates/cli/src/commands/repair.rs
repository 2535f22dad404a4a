//! `pgsluice repair`: puts back what a crash left down.

use crate::connection::ConnectionArguments;
use crate::failure::Failure;
use crate::output::{print, say};
use clap::Args;
use pgsluice_engine::repair::{repair, Report};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice repair --to postgresql://loader@db.example/shop
  pgsluice repair --to service=shop --jobs 4";

/// Put back indexes, constraints and triggers that a crash left down
///
/// A load over several connections takes them down in a transaction of its own, and records them
/// in the schema pgsluice_loads first. Where the loader or the server died before they were back,
/// this command builds them again exactly as they were. Lanes that were prepared for a common
/// commit are committed if the first of them was, and rolled back if it was not. The command may
/// be run at any time, twice, or beside a load, which it leaves alone. Exit code 1 says that
/// something is still down.
#[derive(Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Connections that build at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let report = repair(&arguments.connection.target()?, arguments.jobs.into())?;
    tell(&report)?;
    let down = report.failed.len() + report.others.len();
    Ok(if down == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(report: &Report) -> Result<(), Failure> {
    for lane in &report.lanes {
        print(lane)?;
    }
    for restored in &report.put_back {
        let how = if restored.was_back {
            "was back already".to_string()
        } else {
            format!("put back in {:.1} s", restored.seconds)
        };
        print(format_args!("{}: {how}", restored.object))?;
    }
    for table in &report.running {
        print(format_args!("{table}: a load is at work there; left alone"))?;
    }
    for (object, error) in &report.failed {
        say(format_args!("error: {object} is still down: {error}"));
    }
    for other in &report.others {
        say(format_args!("error: {other} is still down: only that role's repair puts it back"));
    }
    let nothing = report.put_back.is_empty()
        && report.lanes.is_empty()
        && report.running.is_empty()
        && report.failed.is_empty()
        && report.others.is_empty();
    if nothing {
        print("nothing is down")?;
    }
    Ok(())
}
