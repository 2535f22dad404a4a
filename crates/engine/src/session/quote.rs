//! Names and strings as SQL takes them.

/// A name as SQL takes it, always quoted.
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
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
}
