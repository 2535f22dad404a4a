//! `pgsluice sample`: makes deterministic data for trials and measurements.

use crate::failure::Failure;
use crate::sample_data::{Sample, SampleFormat, SampleTable};
use clap::Args;
use pgsluice_engine::Error;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

const EXAMPLES: &str = "\
Examples:
  pgsluice sample votes --ddl
  pgsluice sample votes --rows 1000000 --out votes.csv
  pgsluice sample events --rows 1000 --seed 7 --format text";

/// Make sample data: the same for the same kind, seed and number of rows
///
/// A longer file begins with the shorter one. The data load with COPY's defaults for their
/// format; there is no header. The file is overwritten if it exists.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Which table
    kind: SampleTable,
    /// Number of rows
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    rows: u64,
    /// Another seed gives other data
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// File to write, or - for standard output
    #[arg(long, default_value = "-", value_name = "FILE")]
    out: PathBuf,
    /// One of COPY's textual formats
    #[arg(long, default_value = "csv")]
    format: SampleFormat,
    /// Print the CREATE TABLE statement instead of data
    #[arg(long, conflicts_with_all = ["rows", "seed", "format"])]
    ddl: bool,
}

pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { kind, format, .. } = arguments;
    let sample = Sample { kind, rows: arguments.rows, seed: arguments.seed, format };
    let write = |out: &mut dyn Write| {
        if arguments.ddl {
            return out.write_all(kind.ddl().as_bytes()).and_then(|()| out.flush());
        }
        // More threads would only use memory, because one thread writes all their blocks.
        let threads = available_parallelism().map_or(1, |n| n.get().min(8));
        sample.write(threads, out).map(|_| ())
    };
    let result = if arguments.out == Path::new("-") {
        write(&mut io::stdout().lock())
    } else {
        File::create(&arguments.out).and_then(|mut file| write(&mut file))
    };
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The reader has ended early, as `head` does.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e) => Err(Error::io("write", &arguments.out.to_string_lossy(), &e).into()),
    }
}
