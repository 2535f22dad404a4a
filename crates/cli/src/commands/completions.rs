//! `pgsluice completions`: prints completions for a shell.

use crate::failure::Failure;
use crate::output::print;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::process::ExitCode;

/// Print a shell's completions
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  pgsluice completions bash > ~/.local/share/bash-completion/completions/pgsluice"
)]
pub struct Arguments {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut command = crate::Program::command();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "pgsluice", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
