//! Formats the library's texts for the command line: the settings that they name are options here.

use pgsluice_engine::Text;

/// The text with the names of settings as options: `--truncate`.
pub fn words(text: &Text) -> String {
    text.with(|name| format!("--{name}"))
}

#[cfg(test)]
mod tests {
    use crate::Program;
    use clap::{Command, CommandFactory};
    use std::collections::HashSet;
    use std::fs;
    use std::path::Path;

    fn collect(command: &Command, all: &mut HashSet<String>) {
        all.extend(command.get_arguments().filter_map(|a| a.get_long()).map(str::to_owned));
        command.get_subcommands().for_each(|sub| collect(sub, all));
    }

    /// The words in backquotes in a part of a source file.
    fn named(code: &str) -> impl Iterator<Item = &str> {
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let even = lines.filter(|line| line.matches('`').count() % 2 == 0);
        let word = |c: char| c.is_ascii_lowercase() || c == '-';
        even.flat_map(|line| line.split('`').skip(1).step_by(2))
            .filter(move |name| !name.is_empty() && name.chars().all(word))
    }

    /// Each name of one word in backquotes in the library's strings is an option here. No string
    /// for `format!` has such a name, because only `text!` keeps names and values apart.
    #[test]
    fn every_setting_that_the_library_names_is_an_option() {
        let (mut options, mut found) = (HashSet::new(), 0);
        collect(&Program::command(), &mut options);
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                if path.extension() != Some("rs".as_ref()) || path.ends_with("text.rs") {
                    continue;
                }
                let source = fs::read_to_string(&path).unwrap_or_default();
                for name in named(&source) {
                    assert!(options.contains(name), "{}: {name}", path.display());
                    found += 1;
                }
                for call in source.split("format!(").skip(1) {
                    let literal = call.trim_start().replace("\\\"", "");
                    let template = literal.split('"').nth(1).unwrap_or_default();
                    let name = named(template).next();
                    assert_eq!(name, None, "{}: format!(\"{template}\")", path.display());
                }
            }
        }
        assert!(found > 60, "{found} names");
    }
}
