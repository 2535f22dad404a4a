//! One record: the spans of its fields, and its position.

use super::Dialect;
use crate::memory::{Fallible, OutOfMemory};

/// The kind of a field, before a column's own rules (FORCE_NULL …) are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// a value; in CSV, one without quotes
    Plain,
    /// CSV: a value with at least one quote, which is not NULL unless FORCE_NULL makes it so
    Quoted,
    /// CSV: a quoted value that equals the NULL marker; it is NULL for a column with FORCE_NULL
    QuotedNull,
    /// the NULL marker
    Null,
    /// the DEFAULT marker
    Default,
}

/// One field: its kind, and the position of its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldSpan {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kind: FieldKind,
    /// the value is in the record's scratch, not in the chunk
    pub(super) scratch: bool,
}

/// The most fields of a record that are kept. No relation has as many columns (the limit is 1,600),
/// so a record with more fields is rejected anyway.
pub const MAX_FIELDS: usize = 1 << 17;

/// The fields of one record. It is reused for the next record.
///
/// Its memory is bounded: 12 bytes for each field that is kept, and the unescaped values, which are
/// shorter than the raw ones.
#[derive(Debug, Default)]
pub struct Record {
    pub(super) spans: Vec<FieldSpan>,
    pub(super) scratch: Vec<u8>,
    /// the start of the record in the chunk
    pub start: usize,
    /// its end in the chunk, after its line end
    pub end: usize,
    /// the number of the record's *last* line, from 1 at the chunk's start: the
    /// line that COPY names in the CONTEXT of an error
    pub line: u64,
}

impl Record {
    /// The number of fields, up to [`MAX_FIELDS`]. An empty line has one empty field.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The kind and the value of field `i`, with escapes and quotes resolved.
    ///
    /// `chunk` must be the chunk from which the record was scanned. For [`FieldKind::Null`] and
    /// [`FieldKind::Default`], the value is the marker.
    #[inline]
    pub fn field<'a>(&'a self, chunk: &'a [u8], i: usize) -> (FieldKind, &'a [u8]) {
        let span = self.spans[i];
        let from: &[u8] = if span.scratch { &self.scratch } else { chunk };
        (span.kind, &from[span.start as usize..span.end as usize])
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.spans.clear();
        self.scratch.clear();
    }

    /// Adds a field whose value is in the chunk.
    #[inline]
    pub(super) fn push(
        &mut self,
        start: usize,
        end: usize,
        kind: FieldKind,
    ) -> Result<(), OutOfMemory> {
        if self.spans.len() < MAX_FIELDS {
            let span = FieldSpan { start: start as u32, end: end as u32, kind, scratch: false };
            self.spans.try_push(span)?;
        }
        Ok(())
    }

    /// Adds a field whose value is in the scratch from `start` on.
    pub(super) fn push_scratch(
        &mut self,
        start: usize,
        kind: FieldKind,
    ) -> Result<(), OutOfMemory> {
        if self.spans.len() < MAX_FIELDS {
            let end = self.scratch.len() as u32;
            self.spans.try_push(FieldSpan { start: start as u32, end, kind, scratch: true })?;
        } else {
            self.scratch.truncate(start);
        }
        Ok(())
    }

    /// Makes room for the values of `raw` bytes. Resolved values are never longer.
    pub(super) fn room(&mut self, raw: usize) -> Result<(), OutOfMemory> {
        self.scratch.reserve_room(raw)
    }
}

impl Dialect {
    /// The kind of a field without quotes, from its raw bytes.
    #[inline]
    pub(super) fn kind_of_raw(&self, raw: &[u8]) -> FieldKind {
        if is_marker(raw, &self.null) {
            FieldKind::Null
        } else if self.default.as_ref().is_some_and(|marker| is_marker(raw, marker)) {
            FieldKind::Default
        } else {
            FieldKind::Plain
        }
    }

    /// The kind of a CSV field with quotes, from its value.
    #[inline]
    pub(super) fn kind_of_quoted(&self, value: &[u8]) -> FieldKind {
        if is_marker(value, &self.null) {
            FieldKind::QuotedNull
        } else {
            FieldKind::Quoted
        }
    }
}

/// Whether the two are equal.
///
/// The slice of an empty marker has a dangling address. Where the C library compares with masked
/// loads of AVX-512, even zero bytes from such an address take a hundred nanoseconds, because the
/// processor checks for a fault. So an empty marker is not compared.
#[inline(always)]
fn is_marker(bytes: &[u8], marker: &[u8]) -> bool {
    bytes.len() == marker.len() && (marker.is_empty() || bytes == marker)
}
