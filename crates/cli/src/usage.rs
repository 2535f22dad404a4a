//! Errors in the command line: clap's message, and a hint only if it is certain.
//!
//! clap suggests the option with the most similar name, which may have the opposite meaning
//! (`--skip-header` and `--no-header`). Here a hint is from the table in `foreign.rs`, or the
//! correction of a typing error.

use crate::foreign::{COMMANDS, TOOLS, VALUES};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::ffi::OsString;
use std::io::{stderr, stdout, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

/// Changed, missing or swapped letters that a typing error may have.
const SLIPS: usize = 2;

/// Words that reverse the meaning of a name.
const TURNS: [&str; 8] = ["no", "not", "skip", "without", "ignore", "drop", "disable", "off"];

/// Prints clap's error with our hint, or the requested help. Returns the exit code.
pub fn report(mut error: Error, arguments: &[OsString], program: &Command) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let hint = hint(&error, arguments, program);
    let colours = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = message(&mut error, hint, colours);
    let _ = stdout().flush();
    let _ = stderr().write_all(text.as_bytes());
    ExitCode::from(crate::failure::code::USAGE)
}

/// clap's message without its own suggestions, and with our hint.
fn message(error: &mut Error, hint: Option<String>, colours: bool) -> String {
    for kind in [ContextKind::SuggestedArg, ContextKind::Suggested] {
        error.remove(kind);
    }
    // The usage line of an unknown option also contains the most similar option.
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Usage);
    }
    if hint.is_some() {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedValue);
    }
    let text = error.render();
    let mut text = if colours { text.ansi().to_string() } else { text.to_string() };
    if let Some(hint) = hint {
        let first = text.find("\n\n").unwrap_or(text.trim_end().len());
        text.insert_str(first, &format!("\nhint: {hint}"));
    }
    text
}

/// Detects options with one dash, as programs in Go have them. `-table votes` would be parsed as
/// `-t able`.
pub fn one_dash(arguments: &[OsString], program: &Command) -> Option<Error> {
    let options = arguments.iter().skip(1).map_while(|a| a.to_str().filter(|a| *a != "--"));
    let written = options.filter_map(|a| a.strip_prefix('-')).filter(|a| !a.starts_with('-'));
    let name = written.map(|a| a.split('=').next().unwrap_or(a)).find(|name| {
        let long = format!("--{name}");
        name.len() > 2 && (longs(program).contains(name) || foreign(&long).is_some())
    })?;
    let mut error = Error::new(ErrorKind::UnknownArgument).with_cmd(program);
    error.insert(ContextKind::InvalidArg, ContextValue::String(format!("-{name}")));
    Some(error)
}

/// The text to write instead, if that is certain.
fn hint(error: &Error, arguments: &[OsString], program: &Command) -> Option<String> {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => of_option(said(ContextKind::InvalidArg)?, program),
        ErrorKind::InvalidSubcommand => of_command(said(ContextKind::InvalidSubcommand)?),
        ErrorKind::InvalidValue => {
            let option = said(ContextKind::InvalidArg)?;
            let value = said(ContextKind::InvalidValue)?;
            if value.is_empty() && option.contains("--host") {
                return Some(
                    "-h is the server's host, as in psql; --help or -? prints help".into(),
                );
            }
            let known = VALUES.iter().find(|(o, v, _)| option.starts_with(o) && *v == value)?;
            Some(known.2.into())
        }
        // The command is missing before a file.
        ErrorKind::MissingSubcommand => arguments.get(1)?.to_str().and_then(of_command),
        _ => None,
    }
}

fn of_option(option: &str, program: &Command) -> Option<String> {
    if let Some(here) = foreign(option) {
        return Some(here.into());
    }
    if !option.starts_with("--") {
        let name = option.strip_prefix('-')?;
        let long = format!("--{name}");
        let known = longs(program).contains(&name);
        return known
            .then(|| format!("options have two dashes: {long}"))
            .or_else(|| foreign(&long).map(str::to_owned));
    }
    let name = option.trim_start_matches("--");
    let elsewhere: Vec<&str> = program
        .get_subcommands()
        .filter(|command| longs(command).contains(&name))
        .map(Command::get_name)
        .collect();
    if !elsewhere.is_empty() {
        return Some(format!("{option} is an option of pgsluice {}", elsewhere.join(", ")));
    }
    let meant = longs(program).into_iter().filter(|known| turned(known) == turned(name));
    let far = |known: &str| strsim::damerau_levenshtein(known, name);
    let nearest = meant.min_by_key(|known| far(known))?;
    let near = far(nearest) <= SLIPS.min(name.len() / 3);
    near.then(|| format!("did you mean --{nearest}?"))
}

fn of_command(word: &str) -> Option<String> {
    if let Some((_, command)) = COMMANDS.iter().find(|(foreign, _)| *foreign == word) {
        return Some(format!("the command for it is pgsluice {command}"));
    }
    let file = word.contains('.') || Path::new(word).exists();
    file.then(|| format!("a command comes first: pgsluice load {word} --table NAME"))
}

/// The text of the table for a name. Dashes and underscores between its words do not matter.
fn foreign(option: &str) -> Option<&'static str> {
    let bare = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    let same = |known: &str| match (known.starts_with("--"), option.starts_with("--")) {
        (true, true) => bare(known) == bare(option),
        _ => known == option,
    };
    TOOLS.iter().flat_map(|(_, names)| *names).find(|(known, _)| same(known)).map(|(_, here)| *here)
}

/// Whether a name has a word that reverses its meaning.
fn turned(name: &str) -> bool {
    name.split('-').any(|word| TURNS.contains(&word))
}

/// The long names of the options of all commands.
fn longs(program: &Command) -> Vec<&str> {
    let own =
        program.get_arguments().flat_map(|a| a.get_long_and_visible_aliases().unwrap_or_default());
    let of_commands = program.get_subcommands().flat_map(longs);
    own.chain(of_commands).collect()
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
