//! `pgsluice convert`: converts files to COPY's binary format.

use crate::arguments::{input, HeaderUse, SourceArguments};
use crate::connection::ConnectionArguments;
use crate::detect::detected;
use crate::failure::Failure;
use crate::fields::no_spellings;
use crate::output::say;
use clap::Args;
use pgsluice_engine::convert::{convert, open, shape_of_table, shape_of_types};
use pgsluice_engine::options::{Options, TargetOptions};
use pgsluice_engine::typenames;
use pgsluice_engine::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice convert votes.csv --types text,text,int --out votes.bin
  pgsluice convert votes.csv --types text,text,int | psql -c '\\copy votes from pstdin binary'
  pgsluice convert votes.csv --to postgresql:///test --table votes --out votes.bin";

/// Convert CSV or text to COPY's binary format
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The types of the fields. No server is used then; money is read as dollars and cents
    #[arg(
        long,
        value_name = "TYPES",
        required_unless_present = "table",
        conflicts_with = "table",
        help_heading = "Target"
    )]
    types: Option<String>,
    /// Take the types from this table
    #[arg(long, short, value_name = "NAME", help_heading = "Target")]
    table: Option<String>,
    /// TimeZone of the session; with UTC, timestamptz values need no zone
    #[arg(long, value_name = "ZONE", help_heading = "Target")]
    time_zone: Option<String>,
    /// File to write, or - for standard output
    #[arg(long, default_value = "-", value_name = "FILE", help_heading = "Output")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(a: &Arguments) -> Result<ExitCode, Failure> {
    no_spellings(&a.source, "convert")?;
    let types = a.types.as_deref().map(typenames::parse_list).transpose()?;
    if types.is_some() && a.source.header == Some(HeaderUse::Match) {
        return Err(Error::usage(
            "--header=match compares with the columns of a table, and --types names no table",
        )
        .with_hint("use --header=ignore to skip the line, or --table")
        .into());
    }
    let input = input(&detected(&a.source, false, false)?)?;
    input.check_output(&a.out)?;
    // Overwrite nothing before the input has been opened.
    let reader = open(&input)?;
    let shape = match types {
        Some(types) => {
            let utc = a.time_zone.as_deref().is_some_and(|z| z.eq_ignore_ascii_case("utc"));
            shape_of_types(types, utc)
        }
        None => {
            let mut target =
                TargetOptions::new(&a.connection.target()?, a.table.as_deref().unwrap_or_default());
            target.time_zone.clone_from(&a.time_zone);
            shape_of_table(
                &reader,
                &Options { input: input.clone(), target, rejects: None, once: None },
            )?
        }
    };
    let to_file = a.out.as_os_str() != "-";
    let file = to_file.then(|| File::create(&a.out)).transpose().map_err(|e| failed(&a.out, &e))?;
    let mut out: Box<dyn Write + '_> = match &file {
        Some(file) => Box::new(file),
        None => Box::new(io::stdout()),
    };
    let done = convert(reader, &input, &shape, &mut *out);
    drop(out);
    if let (Err(_), Some(file)) = (&done, file) {
        give_up(&a.out, &file)?;
    }
    say(format_args!("{} rows converted", done?));
    Ok(ExitCode::SUCCESS)
}

fn failed(out: &Path, e: &io::Error) -> Failure {
    Error::io("write", &out.to_string_lossy(), e).into()
}

/// Removes a partial output file: it is useless, and could be taken for a complete one. An output
/// that is not a regular file, such as a pipe or a device, stays.
fn give_up(out: &Path, file: &File) -> Result<(), Failure> {
    if !file.metadata().is_ok_and(|facts| facts.is_file()) {
        return Ok(());
    }
    // If the name is a symbolic link, this empties the file that it points to.
    let removed = file.set_len(0).and_then(|()| std::fs::remove_file(out));
    removed.map_err(|e| failed(out, &e))
}
