//! Splits bytes into field spans: CSV and text by the rules of the server's COPY.
//!
//! The rules are those of `src/backend/commands/copyfromparse.c` of PostgreSQL 15 to 18. The server
//! works in two steps, and so does [`naive`]:
//!
//! 1. `CopyReadLineText` finds the end of the line. In CSV, a quote toggles wherever it is. An
//!    escape that is not the quote counts only within quotes, before a quote or another escape. In
//!    text, a backslash hides the byte after it. The end of the first line is the end of all lines;
//!    another one outside quotes is an error. `\.` is handled here, see [`DotLine`].
//! 2. `CopyReadAttributesCSV` or `CopyReadAttributesText` splits the line. The NULL marker, then
//!    the DEFAULT marker, are compared with the *raw* field; in CSV only if it has no quote. In
//!    text, the encoding of a field is checked again if its escapes yield a byte above 127 or a
//!    NUL. A backslash that ends the data without a line end is dropped.
//!
//! If stray quotes have another meaning than in COPY ([`StrayQuotes`]), [`strict`] finds the
//! records that have one. For all other records, the rules above apply.
//!
//! The line of an error is counted like `cur_lineno`: one for each record, and one for each LF
//! within quotes (for each CR, if lines do not end in LF).

pub mod binary;
mod dialect;
mod fast;
mod marks;
mod naive;
mod raw;
mod record;
mod simd;
mod split;
mod strict;
#[cfg(test)]
mod tests;
mod unescape;
mod utf8;

use crate::error::Malformed;
use crate::memory;

pub use dialect::{Characters, Dialect, DotLine, Eol, Format, StrayQuotes};
pub use raw::raw_fields;
pub use record::{FieldKind, Record, MAX_FIELDS};
pub use split::{whole_records, Cuts, Splitter};
pub use strict::quote_strays;
pub use utf8::{valid_utf8, BadBytes};

/// The longest record that is scanned, in bytes: the server's own limit for a
/// line (`MaxAllocSize`), which also keeps every offset within 30 bits.
pub const MAX_RECORD: usize = 0x3fff_ffff;

/// The longest chunk that is scanned, in bytes. Offsets therefore fit in 32 bits.
pub const MAX_CHUNK: usize = u32::MAX as usize;

/// The result of [`Scanner::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// a whole record
    Record,
    /// the chunk ends within a record and is not the last one: scan again from
    /// [`Scanner::position`] with more bytes
    Partial,
    /// the end of the chunk, or a `\.` that ends the data
    End,
}

/// Reads a chunk record by record.
///
/// A chunk begins at the start of a record. Only the last chunk must end at the end of one.
#[derive(Debug)]
pub struct Scanner<'c> {
    chunk: &'c [u8],
    position: usize,
    last: bool,
    dialect: &'c Dialect,
    eol: Eol,
    line: u64,
    ended: bool,
    processor: Processor,
    rules: Option<marks::Rules>,
    window: fast::Window,
    /// the end of the record at `position` and the number of its lines, after it was found to be
    /// malformed
    refused: Option<(usize, u64)>,
    /// see [`strict`]
    strict: bool,
    strays: u64,
}

/// The instructions with which the fast scanner compares bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// 64 bytes at a time
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 32 bytes at a time
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 16 bytes at a time
    #[cfg(target_arch = "x86_64")]
    Sse2,
    /// 8 bytes at a time, on any processor
    Any,
}

impl Processor {
    /// Those that this machine has, the best first.
    pub fn available() -> &'static [Processor] {
        #[cfg(target_arch = "x86_64")]
        {
            const ALL: &[Processor] =
                &[Processor::Avx512, Processor::Avx2, Processor::Sse2, Processor::Any];
            &ALL[usize::from(!simd::has_avx512()) + usize::from(!simd::has_avx2())..]
        }
        #[cfg(not(target_arch = "x86_64"))]
        &[Processor::Any]
    }
}

impl<'c> Scanner<'c> {
    /// A scanner at the start of `chunk`. `last`: no bytes follow the chunk. `eol`: the line end of
    /// earlier chunks.
    ///
    /// # Panics
    ///
    /// The chunk is longer than [`MAX_CHUNK`].
    pub fn new(chunk: &'c [u8], last: bool, dialect: &'c Dialect, eol: Eol) -> Self {
        assert!(chunk.len() <= MAX_CHUNK, "a chunk's offsets fit in 32 bits");
        Scanner {
            chunk,
            position: 0,
            last,
            dialect,
            eol,
            line: 0,
            ended: false,
            processor: Processor::available()[0],
            rules: marks::Rules::new(dialect),
            window: fast::Window::before(0),
            refused: None,
            strict: dialect.strict(),
            strays: 0,
        }
    }

    /// The same scanner with other instructions, so that tests reach every path.
    ///
    /// # Panics
    ///
    /// The machine does not have them.
    pub fn on(mut self, processor: Processor) -> Self {
        assert!(Processor::available().contains(&processor), "the machine has {processor:?}");
        self.processor = processor;
        self
    }

    /// The position of the next record.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The line end, if it is known.
    pub fn eol(&self) -> Eol {
        self.eol
    }

    /// The number of lines that have ended, including those within quotes.
    pub fn lines(&self) -> u64 {
        self.line
    }

    /// Whether `\.` ended the data before the chunk's end.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The number of fields with stray quotes that [`Scanner::next_naive`] has seen.
    /// [`Scanner::next`] does not count stray quotes with COPY's meaning.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Scans one record into `record`.
    ///
    /// # Errors
    ///
    /// The record is malformed. The scanner stays at its start; `record` has the line. The errors
    /// [`Malformed::ExtraData`] and [`Malformed::MissingData`] do not occur, because the scanner
    /// has no number of columns. If there is no memory for the record, the process ends.
    /// [`Scanner::try_next`] returns an error instead.
    #[inline]
    pub fn next(&mut self, record: &mut Record) -> Result<Next, Malformed> {
        let next = self.try_next(record);
        if let Err(Malformed::OutOfMemory) = next {
            memory::abort();
        }
        next
    }

    /// Like [`Scanner::next`].
    ///
    /// # Errors
    ///
    /// Those of [`Scanner::next`], and [`Malformed::OutOfMemory`].
    pub fn try_next(&mut self, record: &mut Record) -> Result<Next, Malformed> {
        if let (Some(rules), true) = (self.rules, self.eol != Eol::Unknown) {
            let next = match self.processor {
                // SAFETY: the processor was found to have AVX-512 and the other features.
                #[cfg(target_arch = "x86_64")]
                Processor::Avx512 => unsafe { fast::next_avx512(self, &rules, record) },
                // SAFETY: the processor was found to have AVX2 and the other features.
                #[cfg(target_arch = "x86_64")]
                Processor::Avx2 => unsafe { fast::next_avx2(self, &rules, record) },
                // SAFETY: SSE2 is part of x86-64.
                #[cfg(target_arch = "x86_64")]
                Processor::Sse2 => unsafe { fast::next::<simd::Sse2>(self, &rules, record) },
                // SAFETY: plain registers need no processor feature.
                Processor::Any => unsafe { fast::next::<simd::Swar>(self, &rules, record) },
            };
            if let Some(next) = next {
                return Ok(next);
            }
        }
        self.next_naive(record)
    }

    /// Skips the record at [`Scanner::position`], so that scanning can continue after an error.
    /// Returns the start and the end of the skipped bytes, and adds its lines.
    ///
    /// The record ends where a [`Splitter`] would find its end, whatever its fault. With stray
    /// quotes, it ends where [`strict`] ends it. If a quote is open to the end of the data, the
    /// record ends with its first line.
    ///
    /// `None` if the chunk ends first and is not the last one.
    pub fn skip_record(&mut self) -> Option<(usize, usize)> {
        let (end, lines) = match self.refused.take() {
            Some(found) => found,
            None => self.end_of_record()?,
        };
        let start = self.position;
        self.position = end;
        self.window = fast::Window::before(end);
        self.line += lines;
        Some((start, end))
    }

    /// The end of the record at the scanner's position, and the number of its lines.
    fn end_of_record(&self) -> Option<(usize, u64)> {
        let rest = &self.chunk[self.position..];
        let mut splitter = Splitter::new(self.dialect, self.eol);
        for (at, byte) in rest.iter().enumerate() {
            let cuts = splitter.feed_naive(std::slice::from_ref(byte));
            if let Some(end) = cuts.first {
                return Some((self.position + at + end, cuts.lines));
            }
        }
        let len = match self.eol {
            _ if !splitter.in_quote() && !self.dialect.quotes_with_line_ends() => None,
            Eol::Cr => memchr::memchr(b'\r', rest).map(|at| at + 1),
            Eol::CrNl => memchr::memmem::find(rest, b"\r\n").map(|at| at + 2),
            Eol::Nl | Eol::Unknown => memchr::memchr(b'\n', rest).map(|at| at + 1),
        };
        self.last.then(|| (self.position + len.unwrap_or(rest.len()), 1))
    }

    /// Like [`Scanner::next`], but byte by byte. `next` must give the same result on every input,
    /// and leaves all unusual records to this function.
    ///
    /// # Errors
    ///
    /// As [`Scanner::next`].
    pub fn next_naive(&mut self, record: &mut Record) -> Result<Next, Malformed> {
        let next = naive::next(self, record);
        self.window = fast::Window::before(self.position);
        next
    }
}
