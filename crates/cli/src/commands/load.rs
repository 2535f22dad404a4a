//! `pgsluice load`: files into a table.

use crate::arguments::{LoadArguments, OutputArguments};
use crate::failure::{code, Failure};
use crate::output::say;
use crate::progress::{say_above, Shown};
use crate::summary::SummaryFile;
use clap::Args;
use pgsluice_engine::load::{load, Watch};
use pgsluice_engine::plan::Plan;
use pgsluice_engine::report::Summary;
use std::cell::OnceCell;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  pgsluice load votes.csv --to postgresql:///test --table votes
  pgsluice load 'part-*.csv.gz' --to \"$URL\" --table s.votes --header --truncate
  zcat big.tsv.gz | pgsluice load - --format text --to \"$URL\" --table events";

/// Load files into a table: all of it or nothing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    load: LoadArguments,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let options = arguments.load.options()?;
    let OutputArguments { summary, quiet } = &arguments.load.output;
    let file = summary.as_deref().map(|path| SummaryFile::open(path, &options.input.sources));
    let file = file.transpose()?;
    let watch = Watch::default();
    stop_on_signal(&watch)?;
    let shown = Shown::start(&watch, *quiet);
    let told = OnceCell::new();
    let planned = |plan: &Plan| {
        if !quiet {
            tell(plan);
            let _ = told.set(plan.notes.clone());
        }
    };
    let loaded = load(&options, &watch, &planned);
    shown.end();
    let summary = match (loaded, file) {
        (Ok(summary), Some(file)) => {
            file.write(serde_json::to_string_pretty(&summary), "the rows are loaded")?;
            summary
        }
        (Ok(summary), None) => summary,
        (Err(error), Some(file)) => return Err(file.leave(error.into())),
        (Err(error), None) => return Err(error.into()),
    };
    if !quiet {
        print(&summary, told.get().map_or(&[], Vec::as_slice));
    }
    Ok(if summary.rejected > 0 { ExitCode::from(code::REJECTED) } else { ExitCode::SUCCESS })
}

/// Ctrl-C and SIGTERM ask the server to cancel; a second one ends the program,
/// which the server takes for a lost connection.
fn stop_on_signal(watch: &Watch) -> Result<(), Failure> {
    let watch = watch.clone();
    let mut asked = false;
    ctrlc::set_handler(move || {
        if asked {
            std::process::exit(code::CANCELLED.into());
        }
        asked = true;
        say(format_args!(
            "\nstopping: the server rolls back what is not committed; press Ctrl-C again not to wait for it"
        ));
        watch.cancel();
    })
    .map_err(|e| Failure::new(format!("cannot listen to signals: {e}")))
}

/// Before the load begins: how it will go, and what the user should know of it
/// while there is time to stop.
fn tell(plan: &Plan) {
    say_above(format_args!("{}: loading by {} ({})", plan.table, plan.method, plan.reason));
    for note in &plan.notes {
        say(format_args!("  note: {note}"));
    }
}

/// The lines of the rejects, where they are more than the records.
fn lines_of(s: &Summary) -> String {
    if s.rejected_lines == s.rejected {
        return String::new();
    }
    format!(" ({} lines)", s.rejected_lines)
}

/// What was told before is not told again.
fn print(s: &Summary, told: &[String]) {
    say(format_args!("{}: {} rows loaded by {} ({})", s.table, s.loaded, s.method, s.reason));
    if !s.gives_up.starts_with("nothing") {
        say(format_args!("  gives up {}", s.gives_up));
    }
    say(format_args!(
        "  read {} = loaded {} + rejected {}{} + skipped {}",
        s.read,
        s.loaded,
        s.rejected,
        lines_of(s),
        s.skipped
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
