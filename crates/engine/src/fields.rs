//! Options for the fields of the file: the column of each field, if any, additional spellings of
//! NULL, and columns with other values.

use crate::error::Error;
use crate::expression::Expression;
use crate::quote::cut_name;

/// Options on fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldOptions {
    /// names of the header, each with the column of its field; `None` leaves the field out
    pub map: Vec<(String, Option<String>)>,
    /// fields are left out if no column has their name
    pub ignore_unknown: bool,
    /// every column of the table must be in the file
    pub all_columns: bool,
    /// additional spellings of NULL for a column; `None` means all columns of the file
    pub nulls: Vec<(Option<String>, String)>,
    /// columns that are not in the file, each with its value
    pub set: Vec<(String, Vec<ValuePart>)>,
    /// expressions that the server computes from the text of fields
    pub expressions: Vec<Expression>,
}

/// A part of a value that is not in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePart {
    /// this text
    Text(String),
    /// the name of the file, as it was given
    File,
    /// the number of the record's first line in the file
    Line,
}

impl FieldOptions {
    /// The expression for a column.
    pub fn expression_of(&self, column: &str) -> Option<&Expression> {
        self.expressions.iter().find(|expression| names(&expression.column, column))
    }
}

/// Whether a name in an option is that of a column. The server cuts longer names.
pub(crate) fn names(given: &str, column: &str) -> bool {
    given == column || cut_name(given) == column
}

/// Splits a value into its parts. `{file}` and `{line}` stand for the file and the line.
pub fn pieces(value: &str) -> Vec<ValuePart> {
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), value);
    while let Some(c) = rest.chars().next() {
        let found = [("{file}", ValuePart::File), ("{line}", ValuePart::Line)];
        match found.into_iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, piece)) => {
                pieces
                    .extend((!text.is_empty()).then(|| ValuePart::Text(std::mem::take(&mut text))));
                pieces.push(piece);
                rest = &rest[name.len()..];
            }
            None => {
                text.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    pieces.extend((!text.is_empty()).then_some(ValuePart::Text(text)));
    pieces
}

/// Parses `COLUMN=TEXT`. The column may be in double quotes.
///
/// # Errors
///
/// There is no column, or no `=`.
pub fn pair(option: &str, given: &str) -> Result<(String, String), Error> {
    let wrong = || Error::usage(format!("{option} takes COLUMN=TEXT, not {given:?}"));
    let (mut name, mut rest) = (String::new(), given);
    if let Some(quoted) = given.strip_prefix('"') {
        rest = quoted;
        loop {
            let (piece, behind) = rest.split_once('"').ok_or_else(wrong)?;
            name.push_str(piece);
            match behind.strip_prefix('"') {
                Some(more) => rest = more,
                None => {
                    rest = behind;
                    break;
                }
            }
            name.push('"');
        }
    } else if let Some((column, _)) = given.split_once('=') {
        name.push_str(column.trim());
        rest = &given[column.len()..];
    }
    match rest.strip_prefix('=') {
        Some(text) if !name.is_empty() => Ok((name, text.to_owned())),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let text = |text: &str| ValuePart::Text(text.into());
        assert_eq!(
            pieces("a{file}:{line}"),
            [text("a"), ValuePart::File, text(":"), ValuePart::Line]
        );
        assert_eq!(pieces("{\"é\":1} {files}"), [text("{\"é\":1} {files}")]);
        assert_eq!(pieces(""), []);
        let read = |given: &str| pair("`set`", given).ok();
        let some = |name: &str, text: &str| Some((name.to_owned(), text.to_owned()));
        assert_eq!(read("a=b=c"), some("a", "b=c"));
        assert_eq!(read("\"a=\"\"b\"= c "), some("a=\"b", " c "));
        assert_eq!(read("A b="), some("A b", ""));
        for bad in ["", "a", "=a", "\"a=b", "\"a\"b=c", "\"\"=c"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
