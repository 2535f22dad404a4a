//! `pgsluice check`: checks every value of the files and loads nothing.

use crate::arguments::LoadArguments;
use crate::failure::{code, Failure};
use crate::outcome::OutputArguments;
use crate::output::{log_as, print, say};
use crate::summary::{refuse, SummaryFile};
use clap::Args;
use pgsluice_engine::options::RejectOptions;
use pgsluice_engine::Checked;
use pgsluice_engine::Loader;
use pgsluice_engine::{Amount, Reject};
use serde_json::{json, Value};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

const EXAMPLES: &str = "\
Bad records are listed on standard output. The exit code is that of a load: 0 without bad
records, 4 with bad records, 3 with --on-error reject and bad records within the limit.

Examples:
  pgsluice check votes.csv --to postgresql:///test --table votes --header
  pgsluice check votes.csv --to \"$URL\" --table votes --json | jq .sqlstate";

/// Check every value and list every bad record; load nothing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    load: LoadArguments,
    /// List bad records as JSON, one object per line
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let OutputArguments { summary, quiet, log_format, .. } = &arguments.load.output;
    log_as(*log_format);
    let wrong = |failure| refuse(summary.as_deref(), failure);
    let options = arguments.load.options().map_err(wrong)?;
    let file = summary.as_deref().map(|path| SummaryFile::open(path, &options)).transpose()?;
    let (as_objects, rejects) = (arguments.json, options.rejects.clone());
    let lost = Arc::new(OnceLock::new());
    let first = lost.clone();
    let tell = move |reject: &Reject| {
        let told = print(if as_objects { as_json(reject) } else { line(reject) });
        if let Err(failure) = told {
            let _ = first.set(failure);
        }
    };
    let checked = Loader::from(options).check(Box::new(tell)).map_err(Failure::from);
    let lost = Arc::into_inner(lost).and_then(OnceLock::into_inner);
    let found = lost.map_or(checked, Err).map_err(|failure| match &file {
        Some(file) => file.fail(failure),
        None => failure,
    })?;
    let exit = exit_code(&found, rejects.as_ref());
    if let Some(file) = file {
        file.checked(&sums(&found), exit, "the files are checked")?;
    }
    if !quiet {
        tell_sums(&found);
    }
    Ok(ExitCode::from(exit))
}

/// The exit code of a load of these files, as far as a check can predict it.
fn exit_code(found: &Checked, rejects: Option<&RejectOptions>) -> u8 {
    let bad = Amount { records: found.bad, lines: found.bad_lines };
    let read = Amount { records: found.read, lines: found.lines };
    match rejects {
        _ if found.bad == 0 => 0,
        Some(rejects) if !rejects.limit.exceeded_at_end(bad, read) => code::REJECTED,
        _ => code::DATA,
    }
}

/// The totals in a load's summary, as far as a check can predict them.
fn sums(found: &Checked) -> Value {
    let Checked { read, good, bad, bad_lines, skipped, stray_quotes, .. } = found;
    json!({ "read": read, "loaded": good, "rejected": bad, "rejected_lines": bad_lines,
        "skipped": skipped, "stray_quotes": stray_quotes })
}

fn tell_sums(found: &Checked) {
    say(format_args!("read {} = good {} + bad {} + skipped {}; unique and foreign keys, exclusion constraints and partitions were not checked",
        found.read, found.good, found.bad, found.skipped));
    if found.stray_quotes > 0 {
        say(format_args!("fields with stray quotes: {}", found.stray_quotes));
    }
}

fn line(r: &Reject) -> String {
    let column = r.column.as_ref().map_or(String::new(), |c| format!(", column {c}"));
    format!(
        "{}:{}: record {}, byte offset {}{column}: {} ({})",
        r.file, r.line, r.record, r.offset, r.message, r.sqlstate
    )
}

fn as_json(reject: &Reject) -> String {
    serde_json::to_string(reject).unwrap_or_else(|e| e.to_string())
}
