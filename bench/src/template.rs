//! Replaces `{name}` in the definitions by snippets, files and addresses.

use std::collections::BTreeMap;

use anyhow::{bail, Result};

/// The variables that the runner supplies.
pub const KNOWN: &[&str] = &[
    "answer",
    "base",
    "bench",
    "column_names",
    "copies",
    "csv",
    "database",
    "host",
    "lane",
    "lanes",
    "part",
    "pgsluice",
    "port",
    "psql",
    "python",
    "rows",
    "scratch",
    "seed",
    "summary",
    "typed_columns",
    "url",
    "user",
    "out",
];

/// The variables that a text uses: `{`, then lower-case letters, digits and underscores, then `}`.
/// Other braces are plain text.
pub fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('}')?;
        is_name(name).then_some(name)
    })
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Fills in the values. Values may use variables in turn, up to three levels deep.
pub fn fill(text: &str, values: &BTreeMap<String, String>) -> Result<String> {
    let mut text = text.to_owned();
    for _ in 0..3 {
        let names: Vec<String> = variables(&text).map(str::to_owned).collect();
        if names.is_empty() {
            break;
        }
        for name in names {
            let Some(value) = values.get(&name) else { bail!("nothing is called {{{name}}} here") };
            text = text.replace(&format!("{{{name}}}"), value);
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_nested_and_leaves_other_braces() {
        let values = [("a".to_owned(), "x{b}".to_owned()), ("b".to_owned(), "y".to_owned())].into();
        assert_eq!(fill("{a} '{1,2}' {B}", &values).unwrap(), "xy '{1,2}' {B}");
        assert!(fill("{c}", &values).is_err());
    }
}
