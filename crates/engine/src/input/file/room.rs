//! Counts the bytes that were read of a file, and limits the chunks and the memory for the rest.

use super::{InputFile, CHUNK};
use crate::frame::blank_end;
use crate::input::Layout;
use pgsluice_core::scan::{Format, Next, Record, Scanner};
use std::sync::atomic::Ordering;

impl InputFile {
    /// Number of bytes that were read from disk so far.
    pub(in crate::input) fn raw_bytes(&self) -> u64 {
        self.raw_read.load(Ordering::Relaxed)
    }

    /// Returns the end of the first `most` records in the held bytes up to `end`, or of as many as
    /// can be in a chunk of the usual size. If `blank`, leaves out empty lines there, which may be
    /// the last lines of the file.
    pub(super) fn end_of(&self, most: usize, end: usize, layout: &Layout, blank: bool) -> usize {
        let (bytes, most) = (&self.held[..end], most.min(CHUNK));
        let Some(dialect) = layout.dialect() else { return end };
        // A record has at least one byte.
        if most >= end || memchr::memchr2_iter(b'\r', b'\n', bytes).take(most).count() < most {
            return end;
        }
        let mut scanner = Scanner::new(bytes, true, dialect, self.eol);
        let mut record = Record::default();
        for _ in 0..most {
            match scanner.next(&mut record) {
                Ok(Next::Record) => {}
                Err(_) if scanner.skip_record().is_some_and(|(from, to)| from < to) => {}
                _ => return end,
            }
        }
        let text = dialect.format == Format::Text;
        match scanner.position() {
            at if blank => match blank_end(&bytes[..at], text).0 {
                0 if self.ended && blank_end(bytes, text).0 == 0 => end,
                // A record follows, or more empty lines than are held.
                0 => at,
                at => at,
            },
            at => at,
        }
    }

    /// Returns `target`, or less if less is left of the file: small files need little memory. One
    /// more byte than is left would show that the file has grown.
    pub(super) fn enough(&self, target: usize) -> usize {
        let (Some((_, opened)), None) = (&self.version, self.compression) else { return target };
        match opened.length.saturating_sub(self.offset + self.held.len() as u64) {
            0 => target,
            left => target.min(usize::try_from(left).map_or(target, |n| self.held.len() + n + 1)),
        }
    }
}
