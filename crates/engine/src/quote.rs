//! Names and strings as SQL takes them.

/// A name as SQL takes it, always quoted.
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The longest name in bytes: NAMEDATALEN - 1 (`src/include/pg_config_manual.h`).
const LONGEST: usize = 63;

/// A name as the server cuts it when it reads one (`truncate_identifier` of
/// `scansup.c`), in a database in UTF-8.
pub fn cut_name(name: &str) -> &str {
    let end = (0..=name.len().min(LONGEST)).rev().find(|at| name.is_char_boundary(*at));
    &name[..end.unwrap_or(0)]
}

/// A string as SQL takes it, whatever `standard_conforming_strings` says.
pub fn quote_literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if text.contains('\\') {
        format!("E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_hold_under_both_readings_of_backslashes() {
        assert_eq!(quote_literal("a'b"), "'a''b'");
        assert_eq!(quote_literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(quote_ident("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = format!("{}ééé", "x".repeat(60));
        assert_eq!(cut_name(&long), format!("{}é", "x".repeat(60)));
        assert_eq!(cut_name("short"), "short");
    }
}
