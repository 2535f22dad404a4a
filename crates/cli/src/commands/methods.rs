//! `pgsluice methods`: lists the methods.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use pgsluice_engine::options::Method;
use std::process::ExitCode;

/// List the methods of writing rows, and what each gives up
#[derive(Args, Debug)]
pub struct Arguments {}

/// Runs the command.
pub fn run(_: &Arguments) -> Result<ExitCode, Failure> {
    let line = |(_, name, what, cost): &(Method, &str, &str, &str)| {
        format!("{name:<16} {what}\n{:<16} gives up: {cost}", "")
    };
    print(Method::ALL.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
