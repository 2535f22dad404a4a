//! `pgsluice load`: loads files into a table.

use crate::arguments::LoadArguments;
use crate::commands::plan;
use crate::failure::{code, Failure};
use crate::outcome::OutputArguments;
use crate::output::{log_as, say};
use crate::progress::{say_above, Shown};
use crate::signals;
use crate::summary::{refuse, SummaryFile};
use crate::wording::words;
use clap::Args;
use pgsluice_engine::Event;
use pgsluice_engine::Loader;
use pgsluice_engine::Plan;
use pgsluice_engine::Summary;
use pgsluice_engine::Text;
use pgsluice_engine::Watch;
use pgsluice_engine::{Error, Kind};
use std::cell::OnceCell;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  pgsluice load votes.csv --to postgresql:///test --table votes
  pgsluice load 'part-*.csv.gz' --to \"$URL\" --table s.votes --header --truncate
  zcat big.tsv.gz | pgsluice load - --format text --to \"$URL\" --table events";

/// Before the load has begun, a signal waits this long for it to end by itself.
const GRACE: Duration = Duration::from_millis(500);

/// Below this many seconds, no rate is printed, because it would mean nothing.
const MEASURED: f64 = 1.0;

/// Load files into a table: all rows or none
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    load: LoadArguments,
    /// Show what the load would do, as `pgsluice plan` does, and change nothing
    #[arg(long, help_heading = "Output", conflicts_with = "summary")]
    dry_run: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let OutputArguments { summary, quiet, verbose, log_format } = &arguments.load.output;
    log_as(*log_format);
    if arguments.dry_run {
        return plan::show(&arguments.load, false);
    }
    let wrong = |failure| refuse(summary.as_deref(), failure);
    let options = arguments.load.options().map_err(wrong)?;
    let file = summary.as_deref().map(|path| SummaryFile::open(path, &options)).transpose()?;
    let file = Arc::new(file);
    let loader = Loader::from(options);
    let watch = loader.watch();
    let begun = Arc::new(AtomicBool::new(false));
    stop_on_signal(&watch, &file, &begun)?;
    let shown = Shown::start(&watch, *quiet);
    let told = OnceCell::new();
    let on_event = |event: Event<'_>| {
        if matches!(event, Event::Waiting) && !quiet {
            say_above(format_args!("waiting for another load of the same files"));
        }
        if matches!(event, Event::OtherMachines) && !quiet {
            say_above(format_args!("waiting for other machines, which load the rest"));
        }
        let Event::Planned(plan) = event else { return };
        begun.store(true, Ordering::SeqCst);
        if !quiet {
            tell(plan);
            let _ = told.set(plan.notes.iter().map(words).collect());
        }
    };
    let loaded = loader.on_event(on_event).run();
    shown.end();
    let mut summary = loaded.map_err(|error| failed(&file, error.into()))?;
    summary.texts_mut().for_each(|text| *text = words(text).into());
    let rejected = summary.rejected + summary.rejected_before > 0;
    if let Some(file) = &*file {
        file.write(&summary, rejected, "the rows are loaded")?;
    }
    if !quiet {
        print(&summary, told.get().map_or(&[], Vec::as_slice), *verbose);
    } else {
        // The next rows of others may fail.
        for step in summary.steps.iter().filter(|step| not_moved(step)) {
            say(format_args!("{}: step: {step}", summary.table));
        }
    }
    Ok(if rejected { ExitCode::from(code::REJECTED) } else { ExitCode::SUCCESS })
}

/// Whether a step says that a sequence is behind the keys of the table.
fn not_moved(step: &str) -> bool {
    step.contains(" not moved")
}

/// Writes a failure to the summary, if there is one, and returns it.
fn failed(file: &Option<SummaryFile>, failure: Failure) -> Failure {
    match file {
        Some(file) => file.fail(failure),
        None => failure,
    }
}

/// On Ctrl-C, SIGTERM or SIGHUP, asks the server to cancel. A second signal ends the program; the
/// server takes that for a lost connection. Before the plan is made, one signal is enough: nothing
/// has begun in the database, and the program may wait for something that cannot be interrupted
/// (standard input, a name to resolve).
fn stop_on_signal(
    watch: &Watch,
    file: &Arc<Option<SummaryFile>>,
    begun: &Arc<AtomicBool>,
) -> Result<(), Failure> {
    let (watch, file, begun) = (watch.clone(), file.clone(), begun.clone());
    let end = move |why: &'static str| {
        let stopped = Error::new(why).of_kind(Kind::Cancelled);
        failed(&file, stopped.into()).report();
        std::process::exit(code::CANCELLED.into());
    };
    let mut asked = false;
    signals::on_stop(move || {
        if asked {
            end("stopped without waiting for the server, which rolls back what is not committed");
        }
        asked = true;
        if begun.load(Ordering::SeqCst) {
            say(format_args!(
                "\nstopping: the server rolls back what is not committed; press Ctrl-C again not to wait for it"
            ));
        }
        // In another thread: a server that does not answer holds it up, and only this one receives
        // the second signal.
        let watch = watch.clone();
        thread::spawn(move || watch.cancel());
        thread::sleep(GRACE);
        if !begun.load(Ordering::SeqCst) {
            end("stopped before the load began");
        }
    })
    .map_err(|e| Failure::new(format!("cannot install the signal handler: {e}")))
}

/// Reports, before the load begins, how it will run and the notes for the user, who can still stop
/// it then.
fn tell(plan: &Plan) {
    say_above(format_args!("{}: loading by {} ({})", plan.table, plan.method, words(&plan.reason)));
    for lock in &plan.locks {
        say(format_args!("  lock: {lock}"));
    }
    for note in &plan.notes {
        say(format_args!("  note: {}", words(note)));
    }
}

/// The lines of the rejects, if there are more of them than records.
fn lines_of(s: &Summary) -> String {
    if s.rejected_lines == s.rejected {
        return String::new();
    }
    format!(" ({} lines)", s.rejected_lines)
}

/// Prints the summary, except the notes that were reported before the load.
fn print(s: &Summary, told: &[String], verbose: bool) {
    if s.load.is_none() && s.files_known > 0 {
        // There was no new file, so no method was chosen.
        s.notes.iter().for_each(|note| say(format_args!("{}: {}", s.table, note.plain())));
        return;
    }
    say(format_args!(
        "{}: {} loaded by {} in {}",
        s.table,
        rows(s.loaded),
        word(s.method),
        took(s)
    ));
    // The locks were reported before the first row. No other session waits for a new table.
    let brief = !verbose && s.seconds.total < MEASURED;
    let waits = brief && s.gives_up.starts_with("concurrent access");
    if !waits && !s.gives_up.starts_with("nothing") {
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
    if let Some(load) = s.load {
        say(format_args!(
            "  load {load}; loaded before: {} files, and {} records of the others",
            s.files_known, s.records_known
        ));
        if let Some(share) = s.share {
            say(format_args!("  this machine has loaded {} parts of the files", share.parts));
        }
        if s.rejected_before > 0 {
            say(format_args!("  rejected before: {} records", s.rejected_before));
        }
    }
    for lock in s.locks.iter().filter(|_| !brief) {
        say(format_args!("  lock: {lock}"));
    }
    if verbose {
        print_more(s);
    }
    // Always report the steps that could not be done.
    let left = |step: &&String| not_moved(step) || step.starts_with("no ");
    for step in s.steps.iter().filter(|step| verbose || left(step)) {
        say(format_args!("  step: {step}"));
    }
    for note in s.notes.iter().map(Text::plain).filter(|note| told.iter().all(|t| t != note)) {
        say(format_args!("  note: {note}"));
    }
}

/// Empty for `None`: one machine of a shared load may have had nothing to load.
fn word<T: std::fmt::Display>(word: Option<T>) -> String {
    word.map_or(String::new(), |word| word.to_string())
}

fn rows(n: u64) -> String {
    format!("{n} row{}", if n == 1 { "" } else { "s" })
}

/// The time, and the rates if the load was long enough to measure them.
fn took(s: &Summary) -> String {
    let seconds = format!("{:.2} s", s.seconds.total);
    if s.seconds.total < MEASURED {
        return seconds;
    }
    format!(
        "{seconds} ({:.0} rows/s, {:.1} MB/s, bottleneck: {})",
        s.rows_per_second,
        s.megabytes_per_second,
        word(s.bottleneck)
    )
}

fn print_more(s: &Summary) {
    say(format_args!("  {}: {}", word(s.method), s.reason.plain()));
    say(format_args!(
        "  open {:.2} s, inspect {:.2} s, load {:.2} s, finish {:.2} s, analyze {:.2} s",
        s.seconds.open, s.seconds.inspect, s.seconds.load, s.seconds.finish, s.seconds.analyze,
    ));
    let wal = s.wal_bytes.map_or(String::new(), |wal| format!(", {} of WAL", size(wal)));
    say(format_args!("  {} read{wal}; bottleneck: {}", size(s.bytes), word(s.bottleneck)));
    for index in &s.indexes {
        say(format_args!("  index {index}"));
    }
}

/// Bytes with a suitable unit.
fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1e4 => format!("{bytes} bytes"),
        b if b < 1e6 => format!("{:.0} kB", b / 1e3),
        b => format!("{:.1} MB", b / 1e6),
    }
}
