//! A run of whole records, with the facts that errors are reported by.

use super::records::{Layout, Records};
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{Dialect, Eol, Format, Next, Record, Scanner};

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// whole records
    Whole,
    /// the beginning or the middle of one record that is too long to be held
    Piece,
    /// the end of that record
    LastPiece,
}

/// Records and lines, counted as COPY counts them: a tuple of PGCOPY is a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// records
    pub records: u64,
    /// lines, those within quotes counted
    pub lines: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.records += other.records;
        self.lines += other.lines;
    }
}

/// A run of bytes of one file.
#[derive(Debug)]
pub struct Chunk {
    /// its place in the whole input, from 0
    pub sequence: u64,
    /// the index of the file among the sources
    pub file: usize,
    /// where it begins, in bytes of the uncompressed file
    pub offset: u64,
    /// where the record begins that it is a piece of
    pub start: u64,
    /// what lines end with, as far as it was known before the chunk
    pub eol: Eol,
    /// whole records or a piece of one
    pub part: Part,
    /// it may have stray quotes
    pub stray: bool,
    /// the stray quote of the record that ends with this piece
    pub damaged: Option<Malformed>,
    /// no bytes of the file follow
    pub last: bool,
    /// the lines of the file before it, where somebody has to know them ([`super::Reader::count_lines`])
    pub line: u64,
    /// records passed over (and the header's lines) immediately before the chunk
    pub passed: Counts,
    /// records immediately before the chunk that an earlier load has loaded
    pub known: Counts,
    /// the bytes
    pub bytes: Vec<u8>,
}

impl Chunk {
    /// A scanner over the chunk's records.
    pub fn scanner<'c>(&'c self, dialect: &'c Dialect) -> Scanner<'c> {
        Scanner::new(&self.bytes, true, dialect, self.eol)
    }

    /// What the file's lines end with, as far as it is known when the chunk is.
    pub fn line_end(&self, layout: &Layout) -> Eol {
        let Some(dialect) = layout.dialect().filter(|_| self.eol == Eol::Unknown) else {
            return self.eol;
        };
        let mut scanner = self.scanner(dialect);
        // A fault is somebody else's to report.
        let _ = scanner.next(&mut Record::default());
        scanner.eol()
    }

    /// The chunk's records.
    pub fn records<'c>(&'c self, layout: &'c Layout) -> Records<'c> {
        Records::new(self, layout)
    }

    /// Counts records and lines without looking into the fields, where the
    /// line ends alone give the numbers.
    pub fn count(&self, layout: &Layout) -> Counts {
        let end = if self.eol == Eol::Cr { b'\r' } else { b'\n' };
        let ends = || memchr::memchr_iter(end, &self.bytes).count() as u64;
        if self.part != Part::Whole {
            let records = u64::from(self.part == Part::LastPiece);
            let lines = layout.dialect().map_or(records, |_| ends());
            return Counts { records, lines };
        }
        let plain = match layout.dialect() {
            None => false,
            Some(d) if d.format == Format::Csv => memchr::memchr(d.quote, &self.bytes).is_none(),
            Some(_) => memchr::memchr(b'\\', &self.bytes).is_none(),
        };
        if plain && self.eol != Eol::Unknown {
            let open = !self.bytes.is_empty() && !self.bytes.ends_with(&[end]);
            let lines = ends() + u64::from(open);
            return Counts { records: lines, lines };
        }
        // What breaks the rules counts as one: the server will say what is wrong with it.
        let mut all = self.records(layout);
        let records = all.by_ref().count() as u64;
        Counts { records, lines: all.lines() }
    }

    /// Where the record lies whose last line is `line` (from 1), as offsets
    /// into the chunk, and how many records precede it.
    pub fn record_of_line(&self, layout: &Layout, line: u64) -> (u64, usize, usize) {
        self.locate(layout, |_, last| last >= line)
    }

    /// Where record `index` (from 0) lies, and how many records precede it.
    pub fn record_at(&self, layout: &Layout, index: u64) -> (u64, usize, usize) {
        self.locate(layout, |before, _| before >= index)
    }

    /// How many lines have ended before `end`.
    pub fn lines_to(&self, layout: &Layout, end: usize) -> u64 {
        let mut records = self.records(layout);
        while records.position() < end && records.next().is_some() {}
        records.lines()
    }

    fn locate(&self, layout: &Layout, found: impl Fn(u64, u64) -> bool) -> (u64, usize, usize) {
        let mut records = self.records(layout);
        let mut before = 0;
        for record in records.by_ref() {
            // Of a record that breaks the rules, the line that COPY names: where an open
            // quote comes to the file's end.
            if found(before, record.line) {
                return (before, record.start, record.end);
            }
            before += 1;
        }
        (before, records.position(), self.bytes.len())
    }
}

impl Chunk {
    /// The chunk up to `end`, before which no record has a stray quote.
    pub fn head(&self, end: usize) -> Chunk {
        let bytes = self.bytes[..end].to_vec();
        Chunk { bytes, last: false, stray: false, ..*self }
    }

    /// How many fields have stray quotes, whatever those mean.
    pub fn strays(&self, layout: &Layout) -> u64 {
        let Some(dialect) = layout.dialect().filter(|_| self.stray) else { return 0 };
        if self.part != Part::Whole {
            // One at least.
            return 1;
        }
        let (mut scanner, mut record) = (self.scanner(dialect), Record::default());
        loop {
            match scanner.next_naive(&mut record) {
                Ok(Next::Record) => {}
                Err(_) if scanner.skip_record().is_some_and(|(from, to)| from < to) => {}
                _ => return scanner.strays(),
            }
        }
    }

    /// Passes over as many of the first records as are still to be skipped.
    pub(super) fn pass(&mut self, skip: &mut u64, layout: &Layout) {
        if *skip == 0 || self.bytes.is_empty() {
            return;
        }
        if self.part != Part::Whole {
            let counts = self.count(layout);
            *skip -= counts.records;
            self.passed += counts;
            self.offset += self.bytes.len() as u64;
            self.bytes.clear();
            // Nothing is left of it that could be counted again.
            self.part = Part::Whole;
            self.damaged = None;
            return;
        }
        let (records, lines, end) = self.first_records(*skip, layout);
        *skip -= records;
        self.passed += Counts { records, lines };
        self.bytes.drain(..end);
        self.offset += end as u64;
    }

    /// Cuts the chunk off behind the last record that is still to be read.
    pub(super) fn limit(&mut self, limit: &mut Option<u64>, layout: &Layout) {
        let Some(left) = limit else { return };
        if self.part != Part::Whole {
            *left -= self.count(layout).records;
            return;
        }
        let (records, _, end) = self.first_records(*left, layout);
        *left -= records;
        if *left == 0 {
            self.bytes.truncate(end);
            self.last = true;
        }
    }

    /// How many of the first `most` records there are, their lines, and where
    /// they end.
    fn first_records(&self, most: u64, layout: &Layout) -> (u64, u64, usize) {
        let mut all = self.records(layout);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let records = all.by_ref().take(most).count() as u64;
        (records, all.lines(), all.position())
    }
}
