//! `pgsluice man`: writes the manual pages, for makers of packages.

use crate::failure::Failure;
use clap::{Args, CommandFactory};
use pgsluice_engine::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the manual pages, one for each command
#[derive(Args, Debug)]
pub struct Arguments {
    /// The folder for them
    folder: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = &arguments.folder;
    let command = crate::Program::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, folder)
        .map_err(|e| Error::io("write", &folder.to_string_lossy(), &e))?;
    Ok(ExitCode::SUCCESS)
}
