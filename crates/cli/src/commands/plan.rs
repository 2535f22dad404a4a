//! `pgsluice plan`: what a load would do.

use crate::arguments::{options, ErrorArguments, SourceArguments, TargetArguments};
use crate::failure::Failure;
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
    source: SourceArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    errors: ErrorArguments,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let plan = plan_only(&options(&arguments.source, &arguments.target, &arguments.errors)?)?;
    print(&plan);
    Ok(ExitCode::SUCCESS)
}

fn print(plan: &Plan) {
    println!("table     {}", plan.table);
    println!("method    {}: {}", plan.method, plan.reason);
    println!("gives up  {}", plan.cost);
    println!("rows      {}", wire(plan));
    println!("columns   {}", plan.columns.join(", "));
    println!("threads   {} encoding, {} sending", plan.encoders, plan.lanes);
    for (name, value) in &plan.settings {
        println!("setting   {name} = {value}");
    }
    for statement in plan.made.iter().chain(&plan.before) {
        println!("before    {statement}");
    }
    for statement in &plan.after {
        println!("after     {statement}");
    }
    for line in &plan.around {
        println!("around    {line}");
    }
    for note in &plan.notes {
        println!("note      {note}");
    }
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
