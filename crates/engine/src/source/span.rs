//! A range of a file as a source, with which several machines load one file together.
//!
//! The bytes before the first record of the file (a byte order mark, a header) precede the range,
//! so they are read as at the start of the file. The start and the end of the range are known from
//! a pass over the whole file: they are boundaries of records, also with quoted line ends.

use super::{Opened, Source, Version, VersionOf};
use pgsluice_core::scan::Eol;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// A range of an uncompressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// number of bytes before the first record of the file
    pub head: u64,
    /// the first byte of the range
    pub start: u64,
    /// the byte after its last; `None` for the end of the file
    pub end: Option<u64>,
    /// number of records of the file before the range
    pub records: u64,
    /// number of lines before the range, including the header
    pub lines: u64,
    /// the line end, if it is known before the range
    pub eol: Eol,
}

/// A range of a source.
#[derive(Clone, Debug)]
pub(crate) struct SpanSource {
    pub source: Arc<dyn Source>,
    pub span: Span,
}

impl SpanSource {
    /// The number of bytes of this range, for a source of `length` bytes.
    fn bytes_of(&self, length: u64) -> u64 {
        let Span { head, start, end, .. } = self.span;
        head + end.unwrap_or(length).saturating_sub(start)
    }
}

impl Source for SpanSource {
    fn name(&self) -> String {
        self.source.name()
    }

    fn length(&self) -> io::Result<Option<u64>> {
        Ok(self.source.length()?.map(|length| self.bytes_of(length)))
    }

    fn can_be_read_again(&self) -> bool {
        self.source.can_be_read_again()
    }

    fn open(&self) -> io::Result<Opened> {
        let Span { head, start, end, .. } = self.span;
        let opened = self.source.open_at(start)?;
        let length = end.map_or(u64::MAX, |end| end.saturating_sub(start));
        let range = opened.bytes.take(length);
        let bytes: Box<dyn Read + Send> = match head {
            0 => Box::new(range),
            _ => Box::new(self.source.open()?.bytes.take(head).chain(range)),
        };
        let Some(version) = opened.version else { return Ok(Opened { bytes, version: None }) };
        let whole = version()?.length;
        let own = self.bytes_of(whole);
        let of_range = move || {
            let now = version()?;
            // Add the difference by which the file's length has changed.
            let length = own.wrapping_add(now.length).wrapping_sub(whole);
            Ok(Version { length, ..now })
        };
        Ok(Opened { bytes, version: Some(Box::new(of_range) as VersionOf) })
    }

    fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    fn span(&self) -> Option<&Span> {
        Some(&self.span)
    }
}
