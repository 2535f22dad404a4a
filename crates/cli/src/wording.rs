//! Puts the library's texts into the program's words: a setting that they name is an option here.
//!
//! The library writes the name of a setting in backquotes (`truncate`). It has no command line.

use crate::Program;
use clap::{Command, CommandFactory};
use std::collections::HashSet;
use std::sync::OnceLock;

/// The text with the names of settings as options: `--truncate`. It may be JSON.
pub fn as_options(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(start) = rest.find('`') {
        let inner = &rest[start + 1..];
        match inner.find('`').map(|end| &inner[..end]) {
            Some(name) if options().contains(name) => {
                out += &rest[..start];
                out += "--";
                out += name;
                rest = &inner[name.len() + 1..];
            }
            _ => {
                out += &rest[..=start];
                rest = inner;
            }
        }
    }
    out + rest
}

/// The names of all options of all commands.
fn options() -> &'static HashSet<String> {
    static OPTIONS: OnceLock<HashSet<String>> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let mut all = HashSet::new();
        collect(&Program::command(), &mut all);
        all
    })
}

fn collect(command: &Command, all: &mut HashSet<String>) {
    all.extend(command.get_arguments().filter_map(|a| a.get_long()).map(str::to_owned));
    command.get_subcommands().for_each(|sub| collect(sub, all));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn settings_become_options_and_all_else_stays() {
        for (text, expected) in [
            ("`truncate` empties it", "--truncate empties it"),
            ("`header`=ignore, `columns` a,b", "--header=ignore, --columns a,b"),
            ("run `pgsluice repair` or `indexes` keep", "run `pgsluice repair` or --indexes keep"),
            ("a ` alone and `no such setting`", "a ` alone and `no such setting`"),
            ("``truncate``", "`--truncate`"),
            ("none", "none"),
        ] {
            assert_eq!(as_options(text), expected);
        }
    }

    /// Each name of one word in backquotes within the library's strings is an option here.
    #[test]
    fn every_setting_that_the_library_names_is_an_option() {
        let mut named = 0;
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                if path.extension() != Some("rs".as_ref()) {
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap_or_default();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                for line in code.filter(|line| line.matches('`').count() % 2 == 0) {
                    for name in line.split('`').skip(1).step_by(2) {
                        let word = |c: char| c.is_ascii_lowercase() || c == '-';
                        if !name.is_empty() && name.chars().all(word) {
                            assert!(options().contains(name), "{}: {name}", path.display());
                            named += 1;
                        }
                    }
                }
            }
        }
        assert!(named > 60, "{named} names");
    }
}
