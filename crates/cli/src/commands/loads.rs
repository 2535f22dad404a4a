//! `pgsluice loads`: the record of what `load --once` has loaded.

use crate::failure::Failure;
use crate::output::print;
use clap::{Args, Subcommand};
use pgsluice_engine::loads::statements;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice loads init --print";

/// The record of what `load --once` has loaded, in the schema pgsluice_loads
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Init(Init),
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
    let Action::Init(_) = &arguments.action;
    print(statements())?;
    Ok(ExitCode::SUCCESS)
}
