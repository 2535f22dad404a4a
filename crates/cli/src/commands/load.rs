//! `pgsluice load`: files into a table.

use crate::arguments::{options, ErrorArguments, SourceArguments, TargetArguments};
use crate::failure::Failure;
use clap::Args;
use pgsluice_engine::load::{load, Watch};
use pgsluice_engine::report::Summary;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice load votes.csv --to postgresql:///test --table votes
  pgsluice load 'part-*.csv.gz' --to \"$URL\" --table s.votes --header --truncate
  zcat big.tsv.gz | pgsluice load - --format text --to \"$URL\" --table events";

/// The exit code of a load that left rejected records out.
const REJECTED: u8 = 3;

/// Load files into a table: all of it or nothing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    errors: ErrorArguments,
    /// Write the summary as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    summary: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let options = options(&arguments.source, &arguments.target, &arguments.errors)?;
    let watch = Watch::default();
    let summary = load(&options, &watch)?;
    if let Some(path) = &arguments.summary {
        write_summary(&summary, path)?;
    }
    if !arguments.quiet {
        print(&summary);
    }
    Ok(if summary.rejected > 0 { ExitCode::from(REJECTED) } else { ExitCode::SUCCESS })
}

fn write_summary(summary: &Summary, path: &Path) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| {
        Failure::new(format!("the rows are loaded, but {} cannot be written: {e}", path.display()))
    };
    let mut json = serde_json::to_vec_pretty(summary).map_err(|e| failed(&e))?;
    json.push(b'\n');
    let mut file = File::create(path).map_err(|e| failed(&e))?;
    file.write_all(&json).map_err(|e| failed(&e))
}

fn print(s: &Summary) {
    eprintln!("{}: {} rows loaded by {} ({})", s.table, s.loaded, s.method, s.reason);
    eprintln!(
        "  read {} = loaded {} + rejected {} + skipped {}",
        s.read, s.loaded, s.rejected, s.skipped
    );
    eprintln!(
        "  {:.2} s: open {:.2}, inspect {:.2}, load {:.2}, finish {:.2}; held up by {}",
        s.seconds.total,
        s.seconds.open,
        s.seconds.inspect,
        s.seconds.load,
        s.seconds.finish,
        s.bottleneck
    );
    eprintln!("  {:.0} rows/s, {:.1} MB/s", s.rows_per_second, s.megabytes_per_second);
    if let Some(wal) = s.wal_bytes {
        eprintln!("  {:.1} MB of WAL", wal as f64 / 1e6);
    }
    for step in &s.steps {
        eprintln!("  step: {step}");
    }
    for note in &s.notes {
        eprintln!("  note: {note}");
    }
}
