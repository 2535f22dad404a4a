//! `pgsluice plan`: shows what a load would do.

use crate::arguments::LoadArguments;
use crate::failure::Failure;
use crate::output::print;
use crate::wording::words;
use clap::Args;
use pgsluice_engine::Foretold;
use pgsluice_engine::Loader;
use pgsluice_engine::{Plan, Text, Wire};
use serde_json::{json, Value};
use std::process::ExitCode;

/// Show what a load would do and why; change nothing
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  pgsluice plan votes.csv --to postgresql:///test --table votes"
)]
pub struct Arguments {
    #[command(flatten)]
    load: LoadArguments,
    /// Write the plan as a JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    show(&arguments.load, arguments.json)
}

/// Prints the plan of a load.
pub fn show(load: &LoadArguments, json: bool) -> Result<ExitCode, Failure> {
    let options = load.options()?;
    let files: Vec<String> = options.input.sources.iter().map(|s| s.name()).collect();
    let foretold = Loader::from(options).plan()?;
    if json {
        let json = serde_json::to_string_pretty(&as_json(&foretold, &files));
        print(json.unwrap_or_default())?;
    } else {
        print(lines(&foretold, &files).join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All settings of the session, as `name = value`.
fn settings(foretold: &Foretold) -> Vec<String> {
    let all = foretold.plan.settings.iter().chain(&foretold.settings);
    all.map(|(name, value)| format!("{name} = {value}")).collect()
}

fn lines(foretold: &Foretold, files: &[String]) -> Vec<String> {
    let plan = &foretold.plan;
    let mut lines = vec![
        format!("table     {}", plan.table),
        format!("method    {}: {}", plan.method, words(&plan.reason)),
        format!("gives up  {}", plan.gives_up(!plan.locks.is_empty())),
        format!("rows      {}", wire(plan)),
        format!("columns   {}", plan.columns.join(", ")),
        format!("threads   {} encoding, {} sending", plan.encoders, plan.lanes),
        format!("sessions  {}: {}", sessions(plan), purposes(plan)),
    ];
    lines.extend(plan.route.iter().map(|route| format!("route     {}", words(route))));
    lines.extend(files.iter().map(|file| format!("file      {file}")));
    lines.extend(plan.records.map(|n| {
        let s = if n == 1 { "" } else { "s" };
        format!("estimate  about {n} record{s}")
    }));
    lines.extend(plan.locks.iter().map(|lock| format!("lock      {lock}")));
    lines.extend(settings(foretold).iter().map(|setting| format!("setting   {setting}")));
    let before = plan.made.iter().chain(&plan.before);
    lines.extend(before.map(|statement| format!("before    {statement}")));
    lines.extend(plan.after.iter().map(|statement| format!("after     {statement}")));
    lines.extend(foretold.maintenance.iter().map(|line| format!("objects   {}", words(line))));
    lines.extend(plan.notes.iter().map(|note| format!("note      {}", words(note))));
    lines
}

fn as_json(foretold: &Foretold, files: &[String]) -> Value {
    let plan = &foretold.plan;
    let all = |texts: &[Text]| texts.iter().map(words).collect::<Vec<_>>();
    let before: Vec<&String> = plan.made.iter().chain(&plan.before).collect();
    json!({
        "table": plan.table,
        "method": plan.method.name(),
        "reason": words(&plan.reason),
        "gives_up": plan.gives_up(!plan.locks.is_empty()),
        "files": files,
        "records": plan.records,
        "columns": plan.columns,
        "route": plan.route.as_ref().map(words),
        "lanes": plan.lanes,
        "sessions": sessions(plan),
        "locks": plan.locks,
        "settings": settings(foretold),
        "before": before,
        "after": plan.after,
        "objects": all(&foretold.maintenance),
        "notes": all(&plan.notes),
    })
}

/// How many sessions of servers the load has while it sends rows.
fn sessions(plan: &Plan) -> usize {
    plan.connections.iter().map(|(number, _)| number).sum()
}

/// What each of them is for.
fn purposes(plan: &Plan) -> String {
    let each = plan.connections.iter().map(|(number, why)| format!("{number} {why}"));
    each.collect::<Vec<_>>().join("; ")
}

fn wire(plan: &Plan) -> String {
    match plan.wire {
        Wire::AsIs if plan.recast.is_some() => "as in the file, one field for each column".into(),
        Wire::AsIs => "as they are in the file".into(),
        Wire::Binary => {
            "binary if the loader is certain of every value, otherwise as in the file".into()
        }
        Wire::Csv => "rewritten as CSV".into(),
        Wire::Text => "rewritten in the text format".into(),
        Wire::Insert(1) => "one INSERT each".into(),
        Wire::Insert(n) => format!("INSERTs of {n}"),
    }
}
