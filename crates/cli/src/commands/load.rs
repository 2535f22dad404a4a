//! `pgsluice load`: files into a table.

use crate::arguments::LoadArguments;
use crate::failure::{Failure, FAILED};
use crate::output::{self, say};
use crate::progress::{say_above, Shown};
use clap::Args;
use pgsluice_engine::load::{load, Watch};
use pgsluice_engine::plan::Plan;
use pgsluice_engine::report::Summary;
use std::cell::OnceCell;
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
pub(super) const REJECTED: u8 = 3;

/// Load files into a table: all of it or nothing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    load: LoadArguments,
    /// Write the summary as JSON; - for standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    summary: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let options = arguments.load.options()?;
    let file = arguments.summary.as_deref().map(SummaryFile::open).transpose()?;
    let watch = Watch::default();
    stop_on_signal(&watch)?;
    let shown = Shown::start(&watch, arguments.quiet);
    let told = OnceCell::new();
    let planned = |plan: &Plan| {
        if !arguments.quiet {
            tell(plan);
            let _ = told.set(plan.notes.clone());
        }
    };
    let loaded = load(&options, &watch, &planned);
    shown.end();
    let summary = match (loaded, file) {
        (Ok(summary), Some(file)) => file.write(summary)?,
        (Ok(summary), None) => summary,
        (Err(error), Some(file)) => return Err(file.leave(error.into())),
        (Err(error), None) => return Err(error.into()),
    };
    if !arguments.quiet {
        print(&summary, told.get().map_or(&[], Vec::as_slice));
    }
    Ok(if summary.rejected > 0 { ExitCode::from(REJECTED) } else { ExitCode::SUCCESS })
}

/// Ctrl-C and SIGTERM ask the server to cancel; a second one ends the program,
/// which the server takes for a lost connection.
fn stop_on_signal(watch: &Watch) -> Result<(), Failure> {
    let watch = watch.clone();
    let mut asked = false;
    ctrlc::set_handler(move || {
        if asked {
            std::process::exit(FAILED.into());
        }
        asked = true;
        say(format_args!(
            "\nstopping: the server rolls back; press Ctrl-C again not to wait for it"
        ));
        watch.cancel();
    })
    .map_err(|e| Failure::new(format!("cannot listen to signals: {e}")))
}

/// Where the summary goes: opened before the load, since whether it can be
/// written should not come out after hours.
struct SummaryFile<'p> {
    path: &'p Path,
    /// none where it goes to standard output
    file: Option<File>,
    /// it was not there before
    new: bool,
}

impl SummaryFile<'_> {
    fn open(path: &Path) -> Result<SummaryFile<'_>, Failure> {
        if path == Path::new("-") {
            return Ok(SummaryFile { path, file: None, new: false });
        }
        let new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| {
            Failure::new(format!("cannot write {}: {e}; nothing was loaded", path.display()))
        })?;
        Ok(SummaryFile { path, file: Some(file), new })
    }

    fn write(self, summary: Summary) -> Result<Summary, Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            let path = self.path.display();
            Failure::new(format!("the rows are loaded, but {path} cannot be written: {e}"))
        };
        let mut json = serde_json::to_string_pretty(&summary).map_err(|e| failed(&e))?;
        let Some(mut file) = self.file else {
            output::print(json)?;
            return Ok(summary);
        };
        json.push('\n');
        // A device or a pipe has no length to set.
        if file.metadata().is_ok_and(|facts| facts.is_file()) {
            file.set_len(0).map_err(|e| failed(&e))?;
        }
        let written = file.write_all(json.as_bytes());
        written.map_err(|e| failed(&e))?;
        Ok(summary)
    }

    /// The load failed: an earlier summary stays as it was.
    fn leave(self, failure: Failure) -> Failure {
        if self.new {
            let _ = std::fs::remove_file(self.path);
        }
        failure
    }
}

/// Before the load begins: how it will go, and what the user should know of it
/// while there is time to stop.
fn tell(plan: &Plan) {
    say_above(format_args!("{}: loading by {} ({})", plan.table, plan.method, plan.reason));
    for note in &plan.notes {
        say(format_args!("  note: {note}"));
    }
}

/// What was told before is not told again.
fn print(s: &Summary, told: &[String]) {
    say(format_args!("{}: {} rows loaded by {} ({})", s.table, s.loaded, s.method, s.reason));
    if !s.gives_up.starts_with("nothing") {
        say(format_args!("  gives up {}", s.gives_up));
    }
    say(format_args!(
        "  read {} = loaded {} + rejected {} + skipped {}",
        s.read, s.loaded, s.rejected, s.skipped
    ));
    say(format_args!(
        "  {:.2} s: open {:.2}, inspect {:.2}, load {:.2}, finish {:.2}, analyze {:.2}; held up by {}",
        s.seconds.total,
        s.seconds.open,
        s.seconds.inspect,
        s.seconds.load,
        s.seconds.finish,
        s.seconds.analyze,
        s.bottleneck
    ));
    say(format_args!(
        "  {:.1} MB read, {:.0} rows/s, {:.1} MB/s",
        s.bytes as f64 / 1e6,
        s.rows_per_second,
        s.megabytes_per_second
    ));
    if let Some(wal) = s.wal_bytes {
        say(format_args!("  {:.1} MB of WAL", wal as f64 / 1e6));
    }
    for index in &s.indexes {
        say(format_args!("  index {index}"));
    }
    for step in &s.steps {
        say(format_args!("  step: {step}"));
    }
    for note in s.notes.iter().filter(|note| !told.contains(note)) {
        say(format_args!("  note: {note}"));
    }
}
