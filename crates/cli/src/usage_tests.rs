//! Tests the hints of the command line. Generates the page of the guide that has all of them.

use super::*;
use clap::{CommandFactory, Parser};
use pgsluice_engine::options::Method;
use std::fmt::Write as _;

fn program() -> Command {
    let mut program = crate::Program::command();
    program.build();
    program
}

/// The hint of `pgsluice load` for one more option; an empty string if the option works.
fn said(option: &str) -> Option<String> {
    let arguments = ["pgsluice", "load", "x.csv", "--table", "t", option, "7"].map(OsString::from);
    let error = match crate::Program::try_parse_from(&arguments) {
        Ok(_) => return Some(String::new()),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::UnknownArgument, "{option}: {error}");
    hint(&error, &arguments, &program())
}

#[test]
fn every_foreign_name_works_or_has_its_hint() {
    let mut names = 0;
    for (_, table) in TOOLS {
        for (name, here) in *table {
            assert_eq!(said(name).as_deref(), Some(*here), "{name}");
            names += 1;
        }
    }
    assert!(names > 100, "{names}");
    for works in ["-d", "-h", "-p", "-U", "--dbname", "--host", "--port", "--username", "--to"] {
        assert_eq!(said(works).as_deref(), Some(""), "{works}");
    }
    // Dashes and underscores between the words do not matter.
    for (name, like) in [("--batchsize", "--batch-size"), ("--skip_header", "--skip-header")] {
        assert_eq!(said(name), said(like), "{name}");
        assert!(said(name).is_some());
    }
}

/// With the text for the other case, a load could succeed with wrong rows.
#[test]
fn hints_on_numbers_and_headers_have_both_cases() {
    let thousands = said("--thousands").unwrap();
    let (comma, point) = ("replace(?, ',', '')", "replace(replace(?, '.', ''), ',', '.')");
    assert!(thousands.contains(comma) && thousands.contains(point), "{thousands}");
    for several in ["--skip-header", "--header-line-count"] {
        let hint = said(several).unwrap();
        assert!(hint.contains("--skip-lines N") && hint.contains("--header=ignore"), "{hint}");
    }
}

/// Whether the value of an option is a method, or is in capitals.
fn names_a_method(text: &str) -> bool {
    let named = text.split(|c: char| c != '-' && !c.is_ascii_lowercase()).next().unwrap();
    named.is_empty() || Method::ALL.iter().any(|(_, name, ..)| *name == named)
}

#[test]
fn hints_name_options_that_exist() {
    let program = program();
    let known = longs(&program);
    let texts = TOOLS.iter().flat_map(|(_, names)| names.iter().map(|(_, here)| *here));
    for text in texts.chain(VALUES.iter().map(|(_, _, here)| *here)) {
        for word in text.split([' ', '=', ',', ':', ';']).filter_map(|w| w.strip_prefix("--")) {
            assert!(known.contains(&word), "--{word} in: {text}");
        }
        assert!(text.split("--method ").skip(1).all(names_a_method), "{text}");
    }
    for (_, command) in COMMANDS {
        assert!(program.find_subcommand(command).is_some(), "{command}");
    }
}

#[test]
fn slips_are_corrected_and_opposites_never_suggested() {
    for (slip, meant) in [
        ("--tabel", "--table"),
        ("--headers", "--header"),
        ("--column", "--columns"),
        ("--rejects-file", "--reject-file"),
        ("--no-headers", "--no-header"),
        ("--delimeter", "--delimiter"),
    ] {
        assert_eq!(said(slip), Some(format!("did you mean {meant}?")));
    }
    assert_eq!(said("--nodes").as_deref(), Some("--nodes is an option of pgsluice server"));
    let program = program();
    for name in longs(&program) {
        let mut opposites: Vec<String> =
            TURNS.iter().map(|turn| format!("--{turn}-{name}")).collect();
        opposites.extend(name.strip_prefix("no-").map(|bare| format!("--{bare}")));
        opposites.push(format!("--{}", name.replace("not-", "")));
        for opposite in opposites {
            if longs(&program).contains(&opposite.trim_start_matches("--")) {
                continue;
            }
            let said = of_option(&opposite, &program);
            let suggested = format!("did you mean --{name}?");
            assert_ne!(said, Some(suggested), "{opposite}");
        }
    }
    for nothing in ["--quux", "--s", "--he"] {
        assert_eq!(said(nothing), None, "{nothing}");
    }
}

#[test]
fn commands_and_values() {
    let of = |arguments: &[&str]| {
        let all: Vec<OsString> = ["pgsluice"].iter().chain(arguments).map(OsString::from).collect();
        let error = match crate::Program::try_parse_from(&all) {
            Err(error) => error,
            Ok(_) => panic!("{arguments:?} is accepted"),
        };
        hint(&error, &all, &program()).unwrap_or_default()
    };
    assert!(of(&["import", "x.csv"]).contains("pgsluice load"));
    assert!(of(&["votes.csv", "--table", "votes"]).contains("pgsluice load votes.csv"));
    assert!(of(&["load", "x", "-t", "t", "--format", "tsv"]).contains("--delimiter '\\t'"));
    assert!(of(&["load", "x", "-t", "t", "--on-error", "ignore"]).contains("--on-error reject"));
    assert!(of(&["load", "-h"]).contains("--help"));
    let go = ["pgsluice", "load", "-table", "votes"].map(OsString::from);
    let program = program();
    let error = one_dash(&go, &program).unwrap();
    assert_eq!(hint(&error, &go, &program).unwrap(), "options have two dashes: --table");
    let go = ["pgsluice", "load", "-t", "able", "-Uadmin", "--", "-table"].map(OsString::from);
    assert!(one_dash(&go, &program).is_none());
}

/// No part of a message names an option with another meaning. clap's usage line had `--no-header`
/// for `--skip-header`.
#[test]
fn messages_name_no_other_option() {
    let program = program();
    for (unknown, others) in
        [("--skip-header", ["--no-header"]), ("--upsert", ["--port"]), ("--sep", ["--set"])]
    {
        let arguments = ["pgsluice", "load", "x.csv", "--table", "t", unknown];
        let arguments = arguments.map(OsString::from);
        let Err(mut error) = crate::Program::try_parse_from(&arguments) else {
            panic!("{unknown} is accepted")
        };
        let hint = hint(&error, &arguments, &program);
        let text = message(&mut error, hint, false);
        assert!(text.contains(unknown) && text.contains("\nhint: "), "{text}");
        assert!(others.iter().all(|other| !text.contains(other)), "{text}");
        assert!(text.ends_with("For more information, try '--help'.\n"), "{text}");
    }
}

const PAGE: &str = "docs/guide/coming-from.md";
const MARK: &str = "<!-- written by make reference -->";

/// Formats options and commands as code.
fn as_code(text: &str) -> String {
    let word = |word: &str| {
        let end = word.trim_end_matches([',', ';', ':']).len();
        match word.starts_with("--") {
            true => format!("`{}`{}", &word[..end], &word[end..]),
            false => word.to_owned(),
        }
    };
    text.replace('|', "\\|").split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_reference_of_foreign_names_is_current() {
    let mut tables = String::new();
    for (tool, names) in TOOLS {
        write!(tables, "\n## {tool}\n\n| there | here |\n|---|---|\n").unwrap();
        for (name, here) in *names {
            writeln!(tables, "| `{name}` | {} |", as_code(here)).unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let kept = std::fs::read_to_string(&path).unwrap();
    let (head, _) = kept.split_once(MARK).unwrap();
    let made = format!("{head}{MARK}\n{tables}");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &made).unwrap();
        return;
    }
    assert!(kept == made, "{PAGE} is stale: run make reference");
}
