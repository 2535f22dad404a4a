//! One record: its fields as spans, and where it lies.

use super::Dialect;
use crate::memory::{Fallible, OutOfMemory};

/// What a field is, before any column's own rules (FORCE_NULL …) are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// a value; in CSV: with no quote in it
    Plain,
    /// CSV: a value with at least one quote in it, which is never NULL by itself
    Quoted,
    /// CSV: a quoted value that equals the NULL marker, and so is NULL to a
    /// column with FORCE_NULL
    QuotedNull,
    /// the NULL marker
    Null,
    /// the DEFAULT marker
    Default,
}

/// One field: its kind, and where its value lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldSpan {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kind: FieldKind,
    /// in the record's scratch rather than in the chunk
    pub(super) scratch: bool,
}

/// The most fields of a record that are kept. No relation has as many columns
/// (1,600 at most): what is beyond needs no value, only a refusal.
pub const MAX_FIELDS: usize = 1 << 17;

/// The fields of one record. Reused from record to record.
///
/// Its memory is bounded: 12 bytes for each field that is kept, and the values
/// that had to be unescaped, which are shorter than what they were.
#[derive(Debug, Default)]
pub struct Record {
    pub(super) spans: Vec<FieldSpan>,
    pub(super) scratch: Vec<u8>,
    /// where the record begins in the chunk
    pub start: usize,
    /// where it ends in the chunk, after its line end
    pub end: usize,
    /// the number of the record's *last* line, from 1 at the chunk's start: the
    /// line that COPY names in the CONTEXT of an error
    pub line: u64,
}

impl Record {
    /// How many fields the record has, up to [`MAX_FIELDS`]. An empty line has
    /// one, empty.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no field at all.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The kind and the value of field `i`, escapes and quotes resolved.
    ///
    /// `chunk` is the chunk that the record was scanned from. For [`FieldKind::Null`]
    /// and [`FieldKind::Default`] the value is the marker.
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

    /// Adds a field whose value lies in the chunk.
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

    /// Adds a field whose value is the scratch from `start` on.
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

    /// Makes room for values whose escapes are resolved from `raw` bytes, which they never exceed.
    pub(super) fn room(&mut self, raw: usize) -> Result<(), OutOfMemory> {
        self.scratch.reserve_room(raw)
    }
}

impl Dialect {
    /// The kind of a field without quotes, by its bytes before escapes are resolved.
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

    /// The kind of a CSV field with quotes, by its value.
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
/// An empty marker points nowhere, and where the C library compares by masked loads of AVX-512, even
/// no bytes from nowhere take a hundred nanoseconds: the processor looks whether that is a fault.
#[inline(always)]
fn is_marker(bytes: &[u8], marker: &[u8]) -> bool {
    bytes.len() == marker.len() && (marker.is_empty() || bytes == marker)
}
