//! `pgsluice plan`: what a load would do.

use crate::arguments::LoadArguments;
use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use pgsluice_engine::load::plan_only;
use pgsluice_engine::plan::{Plan, Wire};
use std::process::ExitCode;

/// Say what a load would do and why, and do nothing
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  pgsluice plan votes.csv --to postgresql:///test --table votes"
)]
pub struct Arguments {
    #[command(flatten)]
    load: LoadArguments,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let plan = plan_only(&arguments.load.options()?)?;
    print(lines(&plan).join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn lines(plan: &Plan) -> Vec<String> {
    let mut lines = vec![
        format!("table     {}", plan.table),
        format!("method    {}: {}", plan.method, plan.reason),
        format!("gives up  {}", plan.cost),
        format!("rows      {}", wire(plan)),
        format!("columns   {}", plan.columns.join(", ")),
        format!("threads   {} encoding, {} sending", plan.encoders, plan.lanes),
    ];
    lines.extend(plan.settings.iter().map(|(name, value)| format!("setting   {name} = {value}")));
    let before = plan.made.iter().chain(&plan.before);
    lines.extend(before.map(|statement| format!("before    {statement}")));
    lines.extend(plan.after.iter().map(|statement| format!("after     {statement}")));
    lines.extend(plan.around.iter().map(|line| format!("around    {line}")));
    lines.extend(plan.notes.iter().map(|note| format!("note      {note}")));
    lines
}

fn wire(plan: &Plan) -> String {
    match plan.wire {
        Wire::AsIs => "as they are in the file".into(),
        Wire::Binary => "binary where every value is surely understood, else as in the file".into(),
        Wire::Csv => "written anew as CSV".into(),
        Wire::Text => "written anew in the text format".into(),
        Wire::Insert(1) => "one INSERT each".into(),
        Wire::Insert(n) => format!("INSERTs of {n}"),
    }
}
