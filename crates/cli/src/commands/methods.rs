//! `pgsluice methods`: the write paths.

use crate::failure::Failure;
use clap::Args;
use pgsluice_engine::options::Method;
use std::process::ExitCode;

/// List the write paths, with what each gives up
#[derive(Args, Debug)]
pub struct Arguments {}

/// Runs the command.
pub fn run(_: &Arguments) -> Result<ExitCode, Failure> {
    for (_, name, what, cost) in Method::ALL {
        println!("{name:<16} {what}\n{:<16} gives up: {cost}", "");
    }
    Ok(ExitCode::SUCCESS)
}
