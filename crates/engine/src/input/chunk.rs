//! A run of whole records, with the facts that errors are reported by.

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

/// Records and lines, counted as COPY counts them.
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
    /// what lines end with, as far as it was known before the chunk
    pub eol: Eol,
    /// whole records or a piece of one
    pub part: Part,
    /// no bytes of the file follow
    pub last: bool,
    /// records passed over (and the header's lines) immediately before the chunk
    pub passed: Counts,
    /// the bytes
    pub bytes: Vec<u8>,
}

impl Chunk {
    /// A scanner over the chunk's records.
    pub fn scanner<'c>(&'c self, dialect: &'c Dialect) -> Scanner<'c> {
        Scanner::new(&self.bytes, true, dialect, self.eol)
    }

    /// Counts records and lines without looking into the fields, where that
    /// can be told from the line ends alone.
    pub fn count(&self, dialect: &Dialect) -> Counts {
        let end = if self.eol == Eol::Cr { b'\r' } else { b'\n' };
        let ends = || memchr::memchr_iter(end, &self.bytes).count() as u64;
        if self.part != Part::Whole {
            let records = u64::from(self.part == Part::LastPiece);
            return Counts { records, lines: ends() };
        }
        let plain = match dialect.format {
            Format::Csv => memchr::memchr(dialect.quote, &self.bytes).is_none(),
            Format::Text => memchr::memchr(b'\\', &self.bytes).is_none(),
        };
        if plain && self.eol != Eol::Unknown {
            let open = self.bytes.last().is_some_and(|b| *b != end);
            let lines = ends() + u64::from(open);
            return Counts { records: lines, lines };
        }
        let mut records = 0;
        let mut record = Record::default();
        let mut scanner = self.scanner(dialect);
        loop {
            match scanner.next(&mut record) {
                Ok(Next::Record) => records += 1,
                Ok(_) => return Counts { records, lines: scanner.lines() },
                // The server will say what is wrong with it; it counts as one.
                Err(_) if scanner.skip_line().is_some_and(|(from, to)| from < to) => records += 1,
                Err(_) => return Counts { records, lines: scanner.lines() },
            }
        }
    }

    /// Where the record lies whose last line is `line` (from 1), as offsets
    /// into the chunk, and how many records precede it.
    pub fn record_of_line(&self, dialect: &Dialect, line: u64) -> (u64, usize, usize) {
        self.locate(dialect, |_, last| last >= line)
    }

    /// Where record `index` (from 0) lies, and how many records precede it.
    pub fn record_at(&self, dialect: &Dialect, index: u64) -> (u64, usize, usize) {
        self.locate(dialect, |before, _| before >= index)
    }

    /// How many lines have ended before `end`.
    pub fn lines_to(&self, dialect: &Dialect, end: usize) -> u64 {
        let mut scanner = self.scanner(dialect);
        let mut record = Record::default();
        while scanner.position() < end && scanner.next(&mut record) == Ok(Next::Record) {}
        scanner.lines()
    }

    fn locate(&self, dialect: &Dialect, found: impl Fn(u64, u64) -> bool) -> (u64, usize, usize) {
        let mut record = Record::default();
        let mut scanner = self.scanner(dialect);
        let mut before = 0;
        loop {
            let (start, end) = match scanner.next(&mut record) {
                Ok(Next::Record) => (record.start, record.end),
                Ok(_) => return (before, scanner.position(), scanner.position()),
                Err(_) => match scanner.skip_line() {
                    Some((from, to)) if from < to => (from, to),
                    _ => return (before, scanner.position(), self.bytes.len()),
                },
            };
            if found(before, scanner.lines()) {
                return (before, start, end);
            }
            before += 1;
        }
    }
}

impl Chunk {
    /// Passes over as many of the first records as are still to be skipped.
    pub(super) fn pass(&mut self, skip: &mut u64, dialect: &Dialect) {
        if *skip == 0 || self.bytes.is_empty() {
            return;
        }
        if self.part != Part::Whole {
            let counts = self.count(dialect);
            *skip -= counts.records;
            self.passed += counts;
            self.offset += self.bytes.len() as u64;
            self.bytes.clear();
            return;
        }
        let (records, lines, end) = self.first_records(*skip, dialect);
        *skip -= records;
        self.passed += Counts { records, lines };
        self.bytes.drain(..end);
        self.offset += end as u64;
    }

    /// Cuts the chunk off behind the last record that is still to be read.
    pub(super) fn limit(&mut self, limit: &mut Option<u64>, dialect: &Dialect) {
        let Some(left) = limit else { return };
        if self.part != Part::Whole {
            *left -= self.count(dialect).records;
            return;
        }
        let (records, _, end) = self.first_records(*left, dialect);
        *left -= records;
        if *left == 0 {
            self.bytes.truncate(end);
            self.last = true;
        }
    }

    /// How many of the first `most` records there are, their lines, and where
    /// they end.
    fn first_records(&self, most: u64, dialect: &Dialect) -> (u64, u64, usize) {
        let mut record = Record::default();
        let mut scanner = self.scanner(dialect);
        let mut records = 0;
        while records < most {
            match scanner.next(&mut record) {
                Ok(Next::Record) => records += 1,
                Ok(_) => break,
                Err(_) => match scanner.skip_line() {
                    Some((from, to)) if from < to => records += 1,
                    _ => break,
                },
            }
        }
        (records, scanner.lines(), scanner.position())
    }
}
