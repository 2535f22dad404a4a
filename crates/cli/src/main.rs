//! The bulk loader for PostgreSQL.
//!
//! Each command has a file, which checks its arguments and calls the engine. Data go to standard
//! output, messages to standard error.

mod arguments;
mod commands;
mod connection;
mod detect;
mod encodings;
mod failure;
mod fields;
mod foreign;
mod moment;
mod names;
mod once;
mod outcome;
mod output;
mod patterns;
mod plan_file;
mod progress;
#[cfg(test)]
mod reference;
mod sample_data;
mod secret;
mod signals;
mod sources;
mod summary;
mod target;
mod usage;
mod wording;

use clap::{CommandFactory, Parser, Subcommand};
use commands::{
    check, completions, convert, load, loads, man, methods, plan, repair, sample, server, sniff,
};
use pgsluice_engine::{Error, COMPILED_OPENSSL};
use std::ffi::OsString;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::ExitCode;

/// Connection timeout in seconds for each address of a host, unless the user sets another.
const CONNECT_SECONDS: &str = "15";

const EXIT_CODES: &str = "\
Exit codes:
  0  all records are loaded
  1  failed: the cause must be mended first
  2  wrong usage
  3  loaded, and some records were rejected
  4  bad data
  5  no connection, or it was lost; the command can be repeated
  6  a lock, a time limit, or the table was altered meanwhile; the command can be repeated
  7  cancelled; the command can be repeated
  8  internal error
After 5, 6 and 7, nothing is loaded, or --once has recorded what is.";

/// Bulk loader for PostgreSQL
#[derive(Parser)]
#[command(name = "pgsluice", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Load(Box<load::Arguments>),
    Plan(Box<plan::Arguments>),
    Convert(Box<convert::Arguments>),
    Check(Box<check::Arguments>),
    Sniff(sniff::Arguments),
    Methods(methods::Arguments),
    Repair(repair::Arguments),
    Loads(loads::Arguments),
    Sample(sample::Arguments),
    Server(server::Arguments),
    Completions(completions::Arguments),
    #[command(hide = true)]
    Man(man::Arguments),
}

/// Sets a connection timeout. Without it, libpq waits for an unreachable host until TCP gives up,
/// which takes minutes. The variable has lower priority than the target and the service file, so it
/// is only a default.
fn limit_connecting() {
    if std::env::var_os("PGCONNECT_TIMEOUT").is_none() {
        std::env::set_var("PGCONNECT_TIMEOUT", CONNECT_SECONDS);
    }
}

/// Sets the path of the certificates, which `sslrootcert=system` reads. An OpenSSL that is compiled
/// into the program has no path to the system's certificates.
fn find_certificates() {
    let named = |name| std::env::var_os(name).is_some();
    if COMPILED_OPENSSL && !named("SSL_CERT_FILE") && !named("SSL_CERT_DIR") {
        if let Some(file) = openssl_probe::probe().cert_file {
            std::env::set_var("SSL_CERT_FILE", file);
        }
    }
}

fn main() -> ExitCode {
    if let Err(failure) = secret::hide() {
        return refused(failure).report();
    }
    let command = match parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    if !matches!(command, Command::Server(_)) {
        limit_connecting();
        find_certificates();
    }
    // The standard library has printed the panic message. Its own exit code would be 101.
    match catch_unwind(AssertUnwindSafe(|| run(command))) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => failure.report(),
        Err(_) => ExitCode::from(failure::code::INTERNAL),
    }
}

fn parse() -> Result<Command, ExitCode> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let mut program = Program::command();
    program.build();
    let parsed = match usage::one_dash(&typed, &program) {
        Some(error) => Err(error),
        None => {
            let with_plan = plan_file::expanded(&Program::command(), typed.clone())
                .map_err(|failure| refused(failure).report())?;
            Program::try_parse_from(with_plan)
        }
    };
    parsed.map(|a| a.command).map_err(|error| {
        summarise_wrong(&error);
        usage::report(error, &typed, &program)
    })
}

/// Writes a failure before the arguments were parsed to the summary, if one is requested.
fn refused(failure: failure::Failure) -> failure::Failure {
    summary::refuse(summary::wanted(std::env::args_os()).as_deref(), failure)
}

/// Writes the summary of a usage error, if the command line names one.
fn summarise_wrong(error: &clap::Error) {
    if error.use_stderr() {
        let text = error.to_string();
        let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
        let message = lines.collect::<Vec<&str>>().join(" ");
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        refused(Error::usage(message.to_owned()).into());
    }
}

fn run(command: Command) -> Result<ExitCode, failure::Failure> {
    match command {
        Command::Load(arguments) => load::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Sniff(arguments) => sniff::run(&arguments),
        Command::Methods(arguments) => methods::run(&arguments),
        Command::Repair(arguments) => repair::run(&arguments),
        Command::Loads(arguments) => loads::run(&arguments),
        Command::Sample(arguments) => sample::run(arguments),
        Command::Server(arguments) => server::run(arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
    }
}
