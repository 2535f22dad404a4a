//! Records written anew: as CSV, in the text format, as values of INSERT.

use pgsluice_core::scan::{Kind, Record};
use pgsluice_core::shape::{RowShape, Source};

/// A field's value to its column: what it says, NULL, or the column's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// a value
    Text(&'a [u8]),
    /// NULL
    Null,
    /// the column's default
    Default,
}

/// The values of a record that has as many fields as the shape wants.
pub fn values<'a>(
    shape: &'a RowShape,
    chunk: &'a [u8],
    record: &'a Record,
) -> impl Iterator<Item = Value<'a>> + 'a {
    shape.columns.iter().map(move |column| {
        let Source::Field(field) = column.source else { return Value::Null };
        let (kind, value) = record.field(chunk, field);
        match kind {
            Kind::Plain | Kind::Quoted => Value::Text(value),
            Kind::Null if column.force_not_null => Value::Text(value),
            Kind::Null => Value::Null,
            Kind::QuotedNull if column.force_null => Value::Null,
            Kind::QuotedNull => Value::Text(value),
            Kind::Default => Value::Default,
        }
    })
}

/// Writes a record in COPY's default form of CSV. `None` where a column's
/// default is asked for, which this form cannot say.
pub fn csv<'a>(values: impl Iterator<Item = Value<'a>>, out: &mut Vec<u8>) -> Option<()> {
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        match value {
            Value::Text(text) => csv_field(text, out),
            Value::Null => {}
            Value::Default => return None,
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

/// Writes a record in COPY's text format. `None` as for [`csv`].
pub fn text<'a>(values: impl Iterator<Item = Value<'a>>, out: &mut Vec<u8>) -> Option<()> {
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push(b'\t');
        }
        match value {
            Value::Null => out.extend_from_slice(b"\\N"),
            Value::Default => return None,
            Value::Text(text) => {
                for byte in text {
                    match byte {
                        b'\\' => out.extend_from_slice(b"\\\\"),
                        b'\t' => out.extend_from_slice(b"\\t"),
                        b'\n' => out.extend_from_slice(b"\\n"),
                        b'\r' => out.extend_from_slice(b"\\r"),
                        other => out.push(*other),
                    }
                }
            }
        }
    }
    out.push(b'\n');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_tell_null_from_empty() {
        let row = [Value::Null, Value::Text(b""), Value::Text(b"a\"b\n"), Value::Text(b"\\.")];
        let (mut c, mut t) = (Vec::new(), Vec::new());
        csv(row.into_iter(), &mut c).unwrap();
        text(row.into_iter(), &mut t).unwrap();
        assert_eq!(c, b",\"\",\"a\"\"b\n\",\"\\.\"\n");
        assert_eq!(t, b"\\N\t\ta\"b\\n\t\\\\.\n");
        assert_eq!(csv([Value::Default].into_iter(), &mut c), None);
    }
}
