//! `--plan FILE`: options from a TOML file. They are used as if they preceded the options on the
//! command line. An option on the command line overrides one in the file.

use crate::failure::Failure;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use pgsluice_engine::Error;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Options whose values are lists of names.
const NAMES: [&str; 3] = ["columns", "force-null", "force-not-null"];

/// The arguments, extended by the options of the plan that they name, if they name one.
///
/// # Errors
///
/// The plan cannot be read, or contains an unknown option.
pub fn expanded(command: &Command, arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let names =
        |a: &OsString| a.to_str().is_some_and(|a| a == "--plan" || a.starts_with("--plan="));
    if !arguments.iter().any(names) {
        return Ok(arguments);
    }
    // Ignore errors here: a missing option may be in the plan.
    let lenient = command.clone().ignore_errors(true);
    let Ok(matches) = lenient.try_get_matches_from(&arguments) else { return Ok(arguments) };
    let Some((name, matches)) = matches.subcommand() else { return Ok(arguments) };
    let Some(command) = command.find_subcommand(name) else { return Ok(arguments) };
    let Ok(Some(path)) = matches.try_get_one::<PathBuf>("plan") else { return Ok(arguments) };
    let plan = Plan { path, command, text: read(path)? };
    let mut all = arguments[..2.min(arguments.len())].to_vec();
    all.extend(plan.options(&typed(command, matches))?);
    all.extend(arguments.into_iter().skip(2));
    Ok(all)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|e| Error::io("read the plan", &path.to_string_lossy(), &e).into())
}

/// The names of the options on the command line.
fn typed(command: &Command, matches: &ArgMatches) -> BTreeSet<String> {
    let is_typed =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let all = command.get_arguments().filter(is_typed);
    all.filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

struct Plan<'a> {
    path: &'a Path,
    command: &'a Command,
    text: String,
}

impl Plan<'_> {
    /// The plan's options, except those on the command line.
    fn options(&self, typed: &BTreeSet<String>) -> Result<Vec<OsString>, Failure> {
        let table: Table = self.text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map(|span| 1 + self.text[..span.start].matches('\n').count());
            let place = line.map_or(String::new(), |line| format!(", line {line}"));
            Error::usage(format!("{}{place}: {}", self.path.display(), e.message()))
        })?;
        self.decided(&table, typed)?;
        let is_header = |name: &str| matches!(name, "header" | "no-header");
        let header = typed.iter().any(|name| is_header(name));
        let mut options = Vec::new();
        for (key, value) in table.iter().filter(|(key, _)| *key != "undecided") {
            let arg = self.known(key)?;
            if typed.contains(key) || (header && is_header(key)) {
                continue;
            }
            options.extend(self.option(key, value, arg)?.into_iter().map(OsString::from));
        }
        Ok(options)
    }

    /// Checks that each undecided setting is decided in the plan or by an option.
    fn decided(&self, table: &Table, typed: &BTreeSet<String>) -> Result<(), Failure> {
        let Some(open) = table.get("undecided") else { return Ok(()) };
        let open = open.as_array().cloned().unwrap_or_default();
        for key in open.iter().filter_map(Value::as_str) {
            let has = |name: &str| table.contains_key(name) || typed.contains(name);
            let decided = has(key) || (key == "header" && has("no-header"));
            if !decided {
                let message = format!("{}: {key} is undecided", self.place("undecided"));
                return Err(Error::usage(message)
                    .with_hint(format!(
                        "choose one of the lines that the plan has for it, or give --{key}"
                    ))
                    .into());
            }
        }
        Ok(())
    }

    /// The option that a key names.
    fn known(&self, key: &str) -> Result<&Arg, Failure> {
        let longs = || self.command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
        let of_database = |arg: &Arg| arg.get_help_heading() == Some("Connection");
        let barred =
            |(long, arg): &(&str, &Arg)| matches!(*long, "plan" | "help") || of_database(arg);
        let named = longs().find(|(long, _)| *long == key);
        if let Some((_, arg)) = named.filter(|named| !barred(named)) {
            return Ok(arg);
        }
        let place = self.place(key);
        if named.is_some_and(|(_, arg)| of_database(arg)) {
            return Err(Error::usage(format!("{place}: a plan cannot name the database"))
                .with_hint("give --to on the command line")
                .into());
        }
        let near = longs()
            .filter(|named| !barred(named))
            .map(|(long, _)| (strsim::damerau_levenshtein(&key.replace('_', "-"), long), long))
            .filter(|(distance, _)| *distance <= 2)
            .min();
        let error = Error::usage(format!(
            "{place}: {key:?} is no option of {} that a plan may have",
            self.command.get_name()
        ));
        Err(match near {
            Some((_, long)) => error.with_hint(format!("did you mean {long:?}?")),
            None => error,
        }
        .into())
    }

    /// The place of a key in the file.
    fn place(&self, key: &str) -> String {
        let is_key = |line: &&str| {
            let name = line.split('=').next().unwrap_or_default().trim();
            name.trim_matches(|c| matches!(c, '"' | '\'' | '[' | ']')) == key
        };
        match self.text.lines().collect::<Vec<_>>().iter().position(is_key) {
            Some(at) => format!("{}, line {}", self.path.display(), at + 1),
            None => self.path.display().to_string(),
        }
    }

    /// An option in the form of the command line.
    fn option(&self, key: &str, value: &Value, arg: &Arg) -> Result<Vec<String>, Failure> {
        let one = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Integer(number) => Some(number.to_string()),
            _ => None,
        };
        let takes = arg.get_action().takes_values();
        let bare = !takes || arg.get_num_args().is_some_and(|range| range.min_values() == 0);
        let found = match value {
            Value::Boolean(true) if bare => Some(vec![format!("--{key}")]),
            Value::Boolean(false) if key == "header" => Some(vec!["--no-header".into()]),
            Value::Boolean(false) if bare => Some(Vec::new()),
            Value::Array(items) if takes => {
                let all: Option<Vec<String>> = items.iter().map(one).collect();
                all.map(|all| match NAMES.contains(&key) {
                    true => vec![format!("--{key}={}", names(&all))],
                    false => all.iter().map(|item| format!("--{key}={item}")).collect(),
                })
            }
            value if takes => one(value).map(|text| vec![format!("--{key}={text}")]),
            _ => None,
        };
        found.ok_or_else(|| {
            let kind = value.type_str();
            Error::usage(format!("{}: {key} cannot be a value of type {kind}", self.place(key)))
                .into()
        })
    }
}

/// A list of names for `--columns`, with each name in quotes, except `-` and `*`, which are not
/// names.
fn names(all: &[String]) -> String {
    let quoted = |name: &String| match name.as_str() {
        "-" | "*" => name.clone(),
        name => format!("\"{}\"", name.replace('"', "\"\"")),
    };
    all.iter().map(quoted).collect::<Vec<_>>().join(",")
}
