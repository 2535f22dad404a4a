//! `pgsluice check`: every value of the files tried, nothing loaded.

use crate::arguments::LoadArguments;
use crate::commands::load::REJECTED;
use crate::failure::Failure;
use crate::output::{print, say};
use clap::Args;
use pgsluice_engine::check::check;
use pgsluice_engine::load::Watch;
use pgsluice_engine::reject::Reject;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

const EXAMPLES: &str = "\
Bad records are listed on standard output. The exit code is what load's would be: 0 where
all is well, 1 with bad records, 3 with --on-error reject and bad records within the limit.

Examples:
  pgsluice check votes.csv --to postgresql:///test --table votes --header
  pgsluice check votes.csv --to \"$URL\" --table votes --json | jq .sqlstate";

/// Try every value and list every bad record; load nothing
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    load: LoadArguments,
    /// List bad records as JSON, one object a line
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let options = arguments.load.options()?;
    let json = arguments.json;
    let lost = Arc::new(OnceLock::new());
    let first = lost.clone();
    let tell = move |reject: &Reject| {
        let told = print(if json { as_json(reject) } else { line(reject) });
        if let Err(failure) = told {
            let _ = first.set(failure);
        }
    };
    let found = check(&options, &Watch::default(), Box::new(tell))?;
    if let Some(failure) = Arc::into_inner(lost).and_then(OnceLock::into_inner) {
        return Err(failure);
    }
    say(format_args!("read {} = good {} + bad {} + skipped {}; unique and foreign keys, exclusion and partitions were not checked",
        found.read, found.good, found.bad, found.skipped));
    Ok(match &options.rejects {
        _ if found.bad == 0 => ExitCode::SUCCESS,
        Some(rejects) if !rejects.limit.exceeded_at_end(found.bad, found.read - found.skipped) => {
            ExitCode::from(REJECTED)
        }
        _ => ExitCode::FAILURE,
    })
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
