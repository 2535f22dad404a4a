//! Reads one source: opens it, decompresses it, and cuts it where records end.

use super::ahead::Ahead;
use super::chunk::{Chunk, Counts, Part};
use super::content;
use super::decompress::{self, Compression};
use super::footer::{Footer, WithoutFooter};
use super::held::HeldBytes;
use super::records::{fields, Cutter, Layout};
use crate::error::{Error, Place};
use crate::frame::{blank_end, first_comment, Frame, Passed};
use crate::source::{Source, Version, VersionOf};
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::binary::{self, Corrupt, TupleSplitter, HEADER_LEN};
use pgsluice_core::scan::{Dialect, Eol, Format, Next, Record, Scanner, Splitter};
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

mod fault;
mod frame;
mod header;
mod room;
mod span;
mod strays;
#[cfg(test)]
mod tests;

pub(super) use fault::unreadable;
pub use header::HeaderLine;

/// The size of a chunk in bytes, unless a record is longer.
const CHUNK: usize = 512 << 10;

/// The longest record that is held as a whole, in bytes. A longer one is passed on in pieces.
const MAX_HELD: usize = 4 << 20;

/// The longest record that is allowed, in bytes: the server's own limit for a line.
const MAX_RECORD: u64 = pgsluice_core::scan::MAX_RECORD as u64;

/// Counts the bytes that are read from disk.
struct Counted {
    source: Box<dyn Read + Send>,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        self.count.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// One source that is being read.
pub(super) struct InputFile {
    pub(super) name: String,
    index: usize,
    source: Ahead,
    /// number of bytes that were read from disk
    raw_read: Arc<AtomicU64>,
    /// how many of these bytes were decompressed, if the file is compressed
    taken: Arc<AtomicU64>,
    /// its version when it was opened, if the source has versions
    version: Option<(VersionOf, Version)>,
    /// the compression that the first bytes show
    pub compression: Option<Compression>,
    /// the bytes that were read and not yet passed on
    pub(super) held: HeldBytes,
    pub(super) ended: bool,
    pub(super) offset: u64,
    pub(super) eol: Eol,
    cutter: Option<Cutter>,
    /// the fault that the cutter has found after the last record, which is passed on first
    fault: Option<Corrupt>,
    /// how many of the held bytes the cutter has processed
    seen: usize,
    /// where the last whole record ends, in the held bytes
    cut: usize,
    /// the held bytes may have stray quotes up to here
    stray_to: usize,
    /// a stray quote did not have COPY's meaning, so the cutter no longer finds where records end
    lost: bool,
    /// number of bytes so far of a record that is passed on in pieces
    giant: Option<u64>,
    /// where that record ends, in the held bytes
    giant_end: Option<usize>,
    /// its stray quote, if it has one
    damaged: Option<Malformed>,
    passed: Counts,
    /// the records and lines before the range that is read, if that is not the whole file
    pub(super) before: Counts,
    /// lines that begin with this byte are not records
    comment: Option<u8>,
    /// where the next such line is, in the held bytes, if it was found
    comment_at: Option<usize>,
    /// the lines at the end that are held back, if there are any
    footer: Option<Footer>,
    /// lines skipped since the last chunk that are not records
    pub(super) passed_over: Passed,
    done: bool,
}

impl InputFile {
    /// Opens a source. The header of PGCOPY is skipped. A byte order mark is skipped if the file
    /// should be in UTF-8 (`utf8`): in other encodings, these bytes are data. The lines of a footer
    /// are never returned.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is in an encoding that no server supports, or is not PGCOPY.
    pub fn open(
        index: usize,
        source: &dyn Source,
        dialect: Option<&Dialect>,
        utf8: bool,
        frame: &Frame,
    ) -> Result<InputFile, Error> {
        let name = source.name();
        let failed = |e: &io::Error| Error::io("open", &name, e);
        let opened = source.open().map_err(|e| failed(&e))?;
        let version = match opened.version {
            Some(version) => version().map(|now| Some((version, now))).map_err(|e| failed(&e))?,
            None => None,
        };
        let raw_read = Arc::new(AtomicU64::new(0));
        let counted = Counted { source: opened.bytes, count: raw_read.clone() };
        let taken = Arc::new(AtomicU64::new(0));
        let span = source.span();
        // A range always belongs to an uncompressed file, whatever its first bytes look like.
        let (compression, source) = match span {
            Some(_) => (None, Box::new(counted) as Box<dyn Read + Send>),
            None => decompress::open(counted, &taken).map_err(|e| Error::io("read", &name, &e))?,
        };
        let (source, footer) = match (frame.skip_footer, dialect) {
            (1.., Some(dialect)) => {
                let (source, footer) = WithoutFooter::new(source, *frame, dialect);
                (Box::new(source) as Box<dyn Read + Send>, Some(footer))
            }
            _ => (source, None),
        };
        let mut file = InputFile {
            name,
            index,
            source: Ahead::new(source),
            raw_read,
            taken,
            version,
            compression,
            held: HeldBytes::default(),
            ended: false,
            offset: 0,
            eol: Eol::Unknown,
            cutter: None,
            fault: None,
            seen: 0,
            cut: 0,
            stray_to: 0,
            lost: false,
            giant: None,
            giant_end: None,
            damaged: None,
            passed: Counts::default(),
            before: Counts::default(),
            comment: None,
            comment_at: None,
            footer,
            passed_over: Passed::default(),
            done: false,
        };
        file.fill(CHUNK)?;
        match dialect {
            // The bytes are not those at the start of the file.
            Some(_) if span.is_some_and(|span| span.head == 0) => {}
            Some(dialect) => file.begin(dialect, utf8, frame.skip_lines > 0)?,
            None => file.pass_signature()?,
        }
        Ok(file)
    }

    /// Number of bytes on disk that the held bytes come from, if no bytes were passed on yet.
    pub(super) fn sampled(&self) -> u64 {
        let bytes = if self.compression.is_some() { &self.taken } else { &self.raw_read };
        bytes.load(Ordering::Relaxed)
    }

    fn pass_signature(&mut self) -> Result<(), Error> {
        let head = &self.held[..self.held.len().min(HEADER_LEN)];
        let extension = binary::header(head).map_err(|corrupt| {
            let place = Place { file: self.name.clone(), ..Place::default() };
            let error = Error::data(corrupt.to_string()).at(place);
            match corrupt {
                Corrupt::Signature => error
                    .with_hint("the file is not COPY's binary format: is it `format` csv or text?"),
                _ => error,
            }
        })?;
        let mut left = HEADER_LEN + extension as usize;
        while left > 0 {
            if self.held.is_empty() {
                let place = Place { file: self.name.clone(), ..Place::default() };
                return Err(Error::data(Corrupt::WrongLength.to_string()).at(place));
            }
            let passed = left.min(self.held.len());
            self.held.pass(passed);
            self.offset += passed as u64;
            left -= passed;
            self.fill(CHUNK)?;
        }
        Ok(())
    }

    /// Checks that the content may be CSV or text. Skips a byte order mark.
    fn begin(&mut self, dialect: &Dialect, utf8: bool, preamble: bool) -> Result<(), Error> {
        let other = match preamble {
            true => content::no_text(&self.held, dialect, utf8),
            false => content::other(&self.held, dialect, utf8),
        };
        if let Some(other) = other {
            let message = format!(
                "{} {}, and not {}",
                self.name,
                other.what,
                match dialect.format {
                    Format::Csv => "CSV",
                    Format::Text => "COPY's text format",
                }
            );
            return Err(Error::data(message).with_hint(other.hint));
        }
        if !utf8 {
            return Ok(());
        }
        if self.held.starts_with(b"\xff\xfe") || self.held.starts_with(b"\xfe\xff") {
            return Err(Error::data(format!(
                "{} is UTF-16, which PostgreSQL does not support",
                self.name
            ))
            .with_hint(content::UTF16));
        }
        if self.held.starts_with(b"\xef\xbb\xbf") {
            self.held.pass(3);
            self.offset = 3;
        }
        Ok(())
    }

    /// Reads until `target` bytes are held or the file ends.
    fn fill(&mut self, target: usize) -> Result<(), Error> {
        let target = self.enough(target);
        let mut filled = self.held.len();
        if filled < target && !self.ended {
            self.held.grow(target);
        }
        while filled < target && !self.ended {
            match self.source.read(&mut self.held[filled..]) {
                Ok(0) => self.ended = true,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.unreadable(&e)),
            }
        }
        self.held.truncate(filled);
        if self.ended {
            self.check_unchanged()?;
            self.check_footer()?;
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        let Some((version, opened)) = &self.version else { return Ok(()) };
        let now = version().map_err(|e| Error::io("read", &self.name, &e))?;
        let (had, has, read) = (opened.length, now.length, self.raw_read.load(Ordering::Relaxed));
        // Files of /proc and of some FUSE mounts report no size.
        let sized = had > 0 || has > 0;
        let what = if has != had || (sized && read != had && self.compression.is_none()) {
            format!("it had {had} bytes, has {has}, and {read} were read")
        } else if now != *opened {
            "it was written to".into()
        } else {
            return Ok(());
        };
        Err(Error::new(format!("{} changed while it was read: {what}", self.name))
            .with_hint("load it again when nothing writes to it"))
    }

    /// Reads until `target` bytes are held, and finds where records end in them.
    fn split(&mut self, layout: &Layout, target: usize) -> Result<(), Error> {
        // If comments make the chunks short, do not read a few bytes each time.
        if target > CHUNK || self.held.len() < CHUNK - CHUNK / 4 {
            self.fill(target)?;
        }
        let strict = layout.dialect().filter(|dialect| dialect.strict());
        if let (Some(dialect), true) = (strict, self.giant.is_some() || target >= MAX_HELD) {
            self.fill_past_quote(dialect)?;
        }
        let eol = self.eol;
        let mut cutter = self.cutter.take().unwrap_or_else(|| match layout {
            Layout::Lines(dialect) => Cutter::Lines(Splitter::new(dialect, eol).watching()),
            Layout::Tuples(columns) => Cutter::Tuples(TupleSplitter::new(fields(columns))),
        });
        let in_giant = match &cutter {
            Cutter::Lines(splitter) if self.giant.is_some() => Some((splitter.clone(), self.seen)),
            _ => None,
        };
        let (mut stray, mut from) = (false, self.seen);
        loop {
            let (to, comment) = self.up_to(from);
            stray |= self.feed(&mut cutter, to);
            if comment && self.may_end_first_line(to, &cutter) {
                stray |= self.feed(&mut cutter, to + 1);
            }
            // After a stray quote, only a walk through the records finds where they end.
            let sure = strict.is_none() || !stray && !self.lost;
            if comment && self.cut == to && sure {
                self.comment_at = Some(to);
            }
            if !comment || self.comment_at.is_some() {
                break;
            }
            if !sure && self.giant.is_none() {
                // Do not look at every line that may be a comment: it would be in vain.
                (self.seen, self.stray_to) = (self.held.len(), self.held.len());
                break;
            }
            from = to + 1;
        }
        if let (Cutter::Tuples(splitter), true) = (&mut cutter, self.ended) {
            self.fault = self.fault.or(splitter.finish().err());
        }
        self.cutter = Some(cutter);
        match strict {
            Some(dialect) => self.find_again(dialect, stray, in_giant),
            None => Ok(()),
        }
    }

    /// Finds where records end up to `to`. Returns whether there may be a stray quote.
    fn feed(&mut self, cutter: &mut Cutter, to: usize) -> bool {
        let cuts = cutter.feed(&self.held[self.seen..to]);
        if cuts.stray {
            self.stray_to = to;
        }
        if let Some(last) = cuts.last {
            self.cut = self.seen + last;
        }
        if self.giant.is_some() && self.giant_end.is_none() {
            self.giant_end = cuts.first.map(|first| self.seen + first);
        }
        self.seen = to;
        self.fault = cuts.fault;
        cuts.stray
    }

    /// Returns the next bytes: whole records, about `most` of them, or a piece of a record that is
    /// too long to be held. `None` at the end. If `blank`, skips empty lines at the end of the
    /// file.
    pub(super) fn next(
        &mut self,
        layout: &Layout,
        blank: bool,
        most: usize,
        free: Vec<u8>,
    ) -> Result<Option<Chunk>, Error> {
        if self.done {
            return Ok(None);
        }
        let text = layout.dialect().is_some_and(|d| d.format == Format::Text);
        let mut target = CHUNK;
        let (end, part) = loop {
            if self.fault.is_none() && self.comment_at.is_none() {
                self.split(layout, target)?;
            }
            match (self.giant, self.giant_end) {
                (Some(_), Some(end)) => break (end, Part::LastPiece),
                (None, _) if self.comment_at == Some(0) => match layout.dialect() {
                    Some(dialect) => self.pass_comments(dialect)?,
                    None => self.comment_at = None,
                },
                (None, _) if self.comment_at.is_some() => break (self.cut, Part::Whole),
                _ if self.fault.is_some() && self.cut == 0 => return Err(self.corrupt(layout)),
                (Some(_), None) if self.ended => break (self.held.len(), Part::LastPiece),
                (Some(_), None) => break (self.held.len(), Part::Piece),
                _ if self.fault.is_some() => break (self.cut, Part::Whole),
                _ if self.ended => break (self.end_of_records(layout), Part::Whole),
                // Empty lines at the end of the held bytes may be the last lines of the file.
                _ if self.cut > 0 && blank => match blank_end(&self.held[..self.cut], text).0 {
                    0 if target < MAX_HELD => target *= 2,
                    0 => break (self.cut, Part::Whole),
                    end => break (end, Part::Whole),
                },
                _ if self.cut > 0 => break (self.cut, Part::Whole),
                _ if target < MAX_HELD => target *= 2,
                _ if self.giant.is_some() || self.passes(layout)? => {
                    break (self.held.len(), Part::Piece)
                }
                _ => break (self.first_line()?, Part::Whole),
            }
        };
        let end = if part == Part::Whole { self.end_of(most, end, layout, blank) } else { end };
        let start = self.offset - self.giant.unwrap_or(0);
        if part != Part::Whole {
            let length = self.giant.unwrap_or(0) + end as u64;
            if layout.dialect().is_some() {
                self.check_giant(length, end)?;
            }
            self.giant = (part == Part::Piece).then_some(length);
            self.giant_end = None;
        }
        let mut chunk = Chunk { start, ..self.give(end, part, layout, free) };
        if blank && chunk.last && part == Part::Whole {
            let (end, lines) = blank_end(&chunk.bytes, text);
            chunk.bytes.truncate(end);
            self.passed_over.blank += lines;
        }
        if let (Some(footer), true) = (&self.footer, chunk.last && self.ended) {
            self.passed_over.footer += footer.lines();
        }
        Ok(Some(chunk))
    }

    /// Returns where the last record of the file ends. In PGCOPY, a trailer follows it.
    fn end_of_records(&mut self, layout: &Layout) -> usize {
        if layout.dialect().is_none() {
            self.held.truncate(self.cut);
        }
        self.held.len()
    }

    /// Makes a chunk of the first `end` held bytes.
    fn give(&mut self, end: usize, part: Part, layout: &Layout, free: Vec<u8>) -> Chunk {
        let mut bytes = self.held.take(end, free);
        if bytes.len() < bytes.capacity() / 4 {
            // Lanes keep chunks, and limit the sum of their bytes.
            bytes.shrink_to_fit();
        }
        let mut last = self.ended && self.held.is_empty();
        let text = layout.dialect().filter(|d| d.format == Format::Text);
        let text = text.filter(|_| part == Part::Whole);
        last |= text.is_some_and(|d| ends_data(&bytes, d, self.eol));
        let chunk = Chunk {
            sequence: 0,
            file: self.index,
            offset: self.offset,
            start: self.offset,
            eol: self.eol,
            part,
            stray: self.stray_to > 0,
            damaged: self.damaged.take(),
            last,
            line: 0,
            passed: std::mem::take(&mut self.passed),
            known: Counts::default(),
            bytes,
        };
        self.offset += end as u64;
        self.stray_to = self.stray_to.saturating_sub(end);
        self.seen -= end.min(self.seen);
        self.cut = self.cut.saturating_sub(end);
        self.comment_at = self.comment_at.map(|at| at.saturating_sub(end));
        self.done = last;
        if let Some(Cutter::Lines(splitter)) = &self.cutter {
            self.eol = splitter.eol();
        }
        chunk
    }
}

/// Whether a `\.` of the text format ends the data in this chunk.
fn ends_data(bytes: &[u8], dialect: &Dialect, eol: Eol) -> bool {
    if memchr::memmem::find(bytes, b"\\.").is_none() {
        return false;
    }
    let mut scanner = Scanner::new(bytes, true, dialect, eol);
    let mut record = Record::default();
    loop {
        match scanner.next(&mut record) {
            Ok(Next::Record) => {}
            // The marker may follow a malformed record.
            Err(_) if scanner.skip_record().is_some_and(|(from, to)| from < to) => {}
            _ => return scanner.ended(),
        }
    }
}
