//! `pgsluice convert`: files to COPY's binary format.

use crate::arguments::{input, SourceArguments};
use crate::failure::Failure;
use crate::output::say;
use clap::Args;
use pgsluice_engine::convert::{convert, shape_of_table, shape_of_types};
use pgsluice_engine::error::Error;
use pgsluice_engine::options::{Options, TargetOptions};
use pgsluice_engine::typenames;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice convert votes.csv --types text,text,int --out votes.bin
  pgsluice convert votes.csv --types text,text,int | psql -c '\\copy votes from pstdin binary'
  pgsluice convert votes.csv --to postgresql:///test --table votes --out votes.bin";

/// Convert CSV or text to COPY's binary format
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    /// The types of the fields; no server is asked then
    #[arg(long, value_name = "TYPES", required_unless_present = "table", conflicts_with = "table")]
    types: Option<String>,
    /// Take the types from this table
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// The database of the table, as for load
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    to: String,
    /// The session's TimeZone; UTC lets timestamptz values do without a zone
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// File to write, or - for standard output
    #[arg(long, default_value = "-", value_name = "FILE")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(a: &Arguments) -> Result<ExitCode, Failure> {
    let input = input(&a.source)?;
    let shape = match &a.types {
        Some(types) => {
            let utc = a.time_zone.as_deref().is_some_and(|z| z.eq_ignore_ascii_case("utc"));
            shape_of_types(typenames::parse_list(types)?, utc)
        }
        None => {
            let mut target = TargetOptions::new(&a.to, a.table.as_deref().unwrap_or_default());
            target.time_zone.clone_from(&a.time_zone);
            shape_of_table(&Options { input: input.clone(), target, rejects: None })?
        }
    };
    let failed = |e: &io::Error| Failure::from(Error::io("write", &a.out.to_string_lossy(), e));
    let to_file = a.out.as_os_str() != "-";
    let mut out: Box<dyn Write> = if to_file {
        Box::new(File::create(&a.out).map_err(|e| failed(&e))?)
    } else {
        Box::new(io::stdout())
    };
    let done = convert(&input, &shape, &mut *out);
    if done.is_err() && to_file {
        // Half a stream is of no use to anybody.
        std::fs::remove_file(&a.out).map_err(|e| failed(&e))?;
    }
    say(format_args!("{} rows converted", done?));
    Ok(ExitCode::SUCCESS)
}
