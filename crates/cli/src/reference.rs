//! Generates the command reference, `docs/reference.md`, from the help of the arguments.

use clap::{Command, CommandFactory};
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
# Command reference

Made from `pgsluice --help` by `make reference`; `make check` fails when it is stale.
";

/// One section for each command, in the order in which help lists them.
fn render(command: &mut Command, name: &str, out: &mut String) {
    let mut shown = command.clone().bin_name(name).term_width(96);
    let help = shown.render_long_help().to_string();
    let trimmed: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(out, "\n## {name}\n\n```text\n{}\n```\n", trimmed.join("\n").trim_end()).unwrap();
    for inner in
        command.get_subcommands_mut().filter(|c| c.get_name() != "help" && !c.is_hide_set())
    {
        let name = format!("{name} {}", inner.get_name());
        render(inner, &name, out);
    }
}

#[test]
fn the_reference_is_current() {
    let mut command = crate::Program::command();
    command.build();
    let mut made = HEAD.to_owned();
    render(&mut command, "pgsluice", &mut made);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/reference.md is stale: run make reference");
}
