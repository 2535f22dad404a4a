//! Rewrites records: as CSV, in the text format, as values of INSERT.

use crate::plan::{Plan, Wire};
use pgsluice_core::scan::{FieldKind, Record};
use pgsluice_core::shape::{RowShape, ValueSource};

/// The marker for the default of a column in the text format that is written here.
pub const DEFAULT: &str = "\\D";

/// The value of a field for its column: text, NULL, or the default of the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// a value
    Text(&'a [u8]),
    /// NULL
    Null,
    /// the column's default
    Default,
}

impl<'a> Value<'a> {
    /// Returns the value of a field for a column with these options of COPY.
    pub fn of(
        (kind, value): (FieldKind, &'a [u8]),
        force_null: bool,
        force_not_null: bool,
    ) -> Value<'a> {
        match kind {
            FieldKind::Plain | FieldKind::Quoted => Value::Text(value),
            FieldKind::Null if force_not_null => Value::Text(value),
            FieldKind::Null => Value::Null,
            FieldKind::QuotedNull if force_null => Value::Null,
            FieldKind::QuotedNull => Value::Text(value),
            FieldKind::Default => Value::Default,
        }
    }
}

/// Returns the values of a record, which must have as many fields as the shape requires.
pub fn values<'a>(
    shape: &'a RowShape,
    chunk: &'a [u8],
    record: &'a Record,
) -> impl Iterator<Item = Value<'a>> + 'a {
    shape.columns.iter().map(move |column| {
        let ValueSource::Field(field) = column.source else { return Value::Null };
        Value::of(record.field(chunk, field), column.force_null, column.force_not_null)
    })
}

/// Writes a record in the form of the plan: CSV or text, with COPY's defaults. Returns `None` and
/// writes nothing if the number of fields differs from that of the plan, or if the form cannot
/// express a value.
pub fn record(plan: &Plan, chunk: &[u8], record: &Record, out: &mut Vec<u8>) -> Option<()> {
    if record.len() != plan.shape.fields {
        return None;
    }
    let values = values(&plan.shape, chunk, record);
    match plan.wire {
        Wire::Csv => csv(values, out),
        _ => {
            text(values, out);
            Some(())
        }
    }
}

/// Writes a record in COPY's default form of CSV. Returns `None` if a value is the default of its
/// column, which this form cannot express.
fn csv<'a>(values: impl Iterator<Item = Value<'a>>, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        match value {
            Value::Text(text) => csv_field(text, out),
            Value::Null => {}
            Value::Default => {
                out.truncate(start);
                return None;
            }
        }
    }
    out.push(b'\n');
    Some(())
}

fn csv_field(text: &[u8], out: &mut Vec<u8>) {
    let special = |b: &u8| matches!(b, b',' | b'"' | b'\r' | b'\n' | b'\\');
    if !text.is_empty() && !text.iter().any(special) {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for byte in text {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// Writes a record in COPY's text format, with [`DEFAULT`] for defaults. No value looks like it,
/// because backslashes in values are doubled.
pub fn text<'a>(values: impl Iterator<Item = Value<'a>>, out: &mut Vec<u8>) {
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push(b'\t');
        }
        match value {
            Value::Null => out.extend_from_slice(b"\\N"),
            Value::Default => out.extend_from_slice(DEFAULT.as_bytes()),
            Value::Text(text) => text_field(text, out),
        }
    }
    out.push(b'\n');
}

fn text_field(mut text: &[u8], out: &mut Vec<u8>) {
    let special = |b: &u8| matches!(b, b'\\' | b'\t' | b'\n' | b'\r');
    while let Some(at) = text.iter().position(special) {
        out.extend_from_slice(&text[..at]);
        out.extend_from_slice(match text[at] {
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\\\",
        });
        text = &text[at + 1..];
    }
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_tell_null_from_empty() {
        let row = [Value::Null, Value::Text(b""), Value::Text(b"a\"b\n"), Value::Text(b"\\.")];
        let (mut c, mut t) = (Vec::new(), Vec::new());
        csv(row.into_iter(), &mut c).unwrap();
        text(row.into_iter(), &mut t);
        assert_eq!(c, b",\"\",\"a\"\"b\n\",\"\\.\"\n");
        assert_eq!(t, b"\\N\t\ta\"b\\n\t\\\\.\n");
        let before = c.clone();
        assert_eq!(csv([Value::Text(b"x"), Value::Default].into_iter(), &mut c), None);
        assert_eq!(c, before);
        t.clear();
        text([Value::Default, Value::Text(DEFAULT.as_bytes())].into_iter(), &mut t);
        assert_eq!(t, b"\\D\t\\\\D\n");
    }
}
