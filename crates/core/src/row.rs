//! Turns one record into one row: checks the number of fields, and applies NULL, its COPY options
//! and the types.

use std::ops::Range;

use crate::error::{Malformed, Refusal};
use crate::scan::{FieldKind, Record};
use crate::shape::{Column, RowShape, ValueSource};
use crate::sink::RowSink;
use crate::types;

/// The reason why a record did not become a row. The sink is as it was before the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRow {
    /// the record itself has too many or too few fields
    Malformed(Malformed),
    /// the value of the column with this index in [`RowShape::columns`]
    Value(usize, Refusal),
}

/// Writes `record`, scanned from `chunk`, into the sink as one row.
///
/// `chunk` must be valid UTF-8 without NUL bytes (see [`crate::scan`]).
///
/// # Errors
///
/// See [`NoRow`]. The row has been undone.
#[inline]
pub fn put<S: RowSink>(
    shape: &RowShape,
    chunk: &[u8],
    record: &Record,
    sink: &mut S,
) -> Result<(), NoRow> {
    if record.len() != shape.fields && !(shape.fields == 0 && is_empty_line(chunk, record)) {
        return Err(NoRow::Malformed(if record.len() > shape.fields {
            Malformed::ExtraData
        } else {
            Malformed::MissingData(record.len())
        }));
    }
    put_columns(shape, sink, |column, field, sink| {
        let (kind, value) = record.field(chunk, field);
        value_of(column, kind, value).and_then(|value| put_value(shape, column, value, sink))
    })
}

/// Writes a tuple of `FORMAT binary` into the sink as one row. `fields` has the ranges of its
/// fields in `chunk`, with `None` for NULL, as many as [`RowShape::fields`].
///
/// # Errors
///
/// See [`NoRow`]. The row has been undone.
pub fn put_binary<S: RowSink>(
    shape: &RowShape,
    chunk: &[u8],
    fields: &[Option<Range<usize>>],
    sink: &mut S,
) -> Result<(), NoRow> {
    put_columns(shape, sink, |column, field, sink| match &fields[field] {
        Some(place) => {
            let bytes = &chunk[place.start..place.end];
            types::receive::receive(&column.ty, bytes, &shape.env, sink)
                .or_else(|refusal| ask(refusal, bytes, sink))
        }
        None => put_value(shape, column, None, sink),
    })
}

/// Writes one row: columns with a field by `put_field`, the others as NULL or as the value that the
/// sink gives them.
#[inline]
fn put_columns<S: RowSink>(
    shape: &RowShape,
    sink: &mut S,
    put_field: impl Fn(&Column, usize, &mut S) -> Result<(), Refusal>,
) -> Result<(), NoRow> {
    sink.begin();
    for (index, column) in shape.columns.iter().enumerate() {
        let done = match column.source {
            ValueSource::Field(field) => put_field(column, field, sink),
            ValueSource::Null => put_value(shape, column, None, sink),
            ValueSource::Given => {
                sink.given();
                Ok(())
            }
        };
        if let Err(refusal) = done {
            sink.undo();
            return Err(NoRow::Value(index, refusal));
        }
    }
    sink.end();
    Ok(())
}

/// In a relation without columns, an empty line is a row.
fn is_empty_line(chunk: &[u8], record: &Record) -> bool {
    record.len() == 1
        && record.field(chunk, 0).1.is_empty()
        && matches!(record.field(chunk, 0).0, FieldKind::Plain | FieldKind::Null)
}

/// The value of a field for its column: `None` for NULL.
///
/// Like `NextCopyFrom`: FORCE_NOT_NULL makes an unquoted marker a value, and FORCE_NULL makes a
/// quoted marker NULL. A column may have both options.
#[inline]
fn value_of<'a>(
    column: &Column,
    kind: FieldKind,
    value: &'a [u8],
) -> Result<Option<&'a [u8]>, Refusal> {
    match kind {
        FieldKind::Plain | FieldKind::Quoted => Ok(Some(value)),
        FieldKind::Null => Ok(column.force_not_null.then_some(value)),
        FieldKind::QuotedNull => Ok((!column.force_null).then_some(value)),
        // Only the server can evaluate the default expression.
        FieldKind::Default => Err(Refusal::Ask),
    }
}

/// Leaves a rejected value to the server, if the sink accepts such values.
#[inline]
fn ask<S: RowSink>(refusal: Refusal, text: &[u8], sink: &mut S) -> Result<(), Refusal> {
    if refusal == Refusal::OutOfMemory {
        return Err(refusal);
    }
    sink.ask(text).map_err(|_| refusal)
}

#[inline]
fn put_value<S: RowSink>(
    shape: &RowShape,
    column: &Column,
    value: Option<&[u8]>,
    sink: &mut S,
) -> Result<(), Refusal> {
    match value {
        Some(text) => types::put(&column.ty, text, &shape.env, sink)
            .or_else(|refusal| ask(refusal, text, sink)),
        None if column.not_null => Err(Refusal::Null),
        None => {
            sink.null();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::{Dialect, Eol, Next, Scanner};
    use crate::shape::{Env, Type};
    use crate::sink::PgCopySink;

    #[test]
    fn a_refused_record_leaves_the_sink_as_it_was() {
        let shape = RowShape {
            columns: vec![Column::new("a", Type::Text, 0), Column::new("b", Type::Int4, 1)],
            fields: 2,
            env: Env::default(),
        };
        let dialect = Dialect::csv();
        let chunk = b"x,1\ny,z\nw\n,-1\n";
        let mut scanner = Scanner::new(chunk, true, &dialect, Eol::Unknown);
        let mut record = Record::default();
        let mut sink = PgCopySink::new(2);
        let mut outcomes = Vec::new();
        while scanner.next(&mut record) == Ok(Next::Record) {
            outcomes.push(put(&shape, chunk, &record, &mut sink));
        }
        assert_eq!(
            outcomes,
            [
                Ok(()),
                Err(NoRow::Value(1, Refusal::Syntax)),
                Err(NoRow::Malformed(Malformed::MissingData(1))),
                Ok(()),
            ]
        );
        let mut expected = b"\0\x02\0\0\0\x01x\0\0\0\x04\0\0\0\x01".to_vec();
        expected.extend_from_slice(b"\0\x02\xff\xff\xff\xff\0\0\0\x04\xff\xff\xff\xff");
        assert_eq!(sink.bytes(), expected);
    }
}
