//! A run of whole records, or a piece of one record, with the facts that error reports need.

use super::records::{Found, Layout, Records};
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{Dialect, Eol, Format, Next, Record, Scanner, Splitter};

/// What a chunk contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// whole records
    Whole,
    /// the beginning or the middle of one record that is too long to be held in memory
    Piece,
    /// the end of that record
    LastPiece,
}

/// Numbers of records and lines, counted as COPY counts them: a tuple of PGCOPY is a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// records
    pub records: u64,
    /// lines, including those within quotes
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
    /// its position in the whole input, from 0
    pub sequence: u64,
    /// the index of the file among the sources
    pub file: usize,
    /// where it begins, as a byte offset in the uncompressed file
    pub offset: u64,
    /// where its first record begins: before `offset` if it is a later piece of that record
    pub start: u64,
    /// the line end, if it is known before the chunk
    pub eol: Eol,
    /// whole records or a piece of one
    pub part: Part,
    /// it may have stray quotes
    pub stray: bool,
    /// the stray quote of the record that ends with this piece
    pub damaged: Option<Malformed>,
    /// no records of the file are read after it
    pub last: bool,
    /// the number of lines of the file before it, if lines are counted
    /// ([`super::Reader::count_lines`])
    pub line: u64,
    /// the records that were skipped immediately before the chunk, and the lines of these, of the
    /// header and of comments
    pub passed: Counts,
    /// the records immediately before the chunk that an earlier load has loaded
    pub known: Counts,
    /// the bytes
    pub bytes: Vec<u8>,
}

impl Chunk {
    /// Returns a scanner of the chunk's records.
    pub fn scanner<'c>(&'c self, dialect: &'c Dialect) -> Scanner<'c> {
        Scanner::new(&self.bytes, true, dialect, self.eol)
    }

    /// Returns the line end of the file, if it is known before the chunk or from its first record.
    /// A piece of a record does not show it: what looks like a line end may be within quotes.
    pub fn line_end(&self, layout: &Layout) -> Eol {
        let shown = self.eol == Eol::Unknown && self.part == Part::Whole;
        let Some(dialect) = layout.dialect().filter(|_| shown) else {
            return self.eol;
        };
        let mut scanner = self.scanner(dialect);
        // Faults are reported elsewhere.
        let _ = scanner.next(&mut Record::default());
        scanner.eol()
    }

    /// The chunk's records.
    pub fn records<'c>(&'c self, layout: &'c Layout) -> Records<'c> {
        Records::new(self, layout)
    }

    /// Counts records and lines. Does not parse the fields if the line ends alone give the numbers.
    pub fn count(&self, layout: &Layout) -> Counts {
        if self.part != Part::Whole {
            return self.count_piece(layout);
        }
        let end = if self.eol == Eol::Cr { b'\r' } else { b'\n' };
        let ends = || memchr::memchr_iter(end, &self.bytes).count() as u64;
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
        self.count_cuts(layout).unwrap_or_else(|| self.count_records(layout))
    }

    /// Counts a record and its lines in pieces, by the rule of COPY: only the first character of a line
    /// end counts, also within quotes, and in the text format an escaped one does not.
    fn count_piece(&self, layout: &Layout) -> Counts {
        let records = u64::from(self.part == Part::LastPiece);
        let lines = match layout.dialect() {
            Some(d) if d.format == Format::Csv => {
                let end = if matches!(self.eol, Eol::Cr | Eol::CrNl) { b'\r' } else { b'\n' };
                memchr::memchr_iter(end, &self.bytes).count() as u64
            }
            _ => records,
        };
        Counts { records, lines }
    }

    /// Counts where records end, which takes less than half as long as looking at their fields.
    /// `None` if the ends alone do not give the numbers.
    fn count_cuts(&self, layout: &Layout) -> Option<Counts> {
        let dialect = layout.dialect().filter(|_| self.eol != Eol::Unknown && !self.stray)?;
        let cuts = Splitter::new(dialect, self.eol).feed(&self.bytes);
        let sure = !cuts.marker && cuts.last == Some(self.bytes.len());
        sure.then_some(Counts { records: cuts.records, lines: cuts.lines })
    }

    /// Counts the records one by one. A malformed record counts as one. The server reports its
    /// fault.
    fn count_records(&self, layout: &Layout) -> Counts {
        let mut all = self.records(layout);
        let records = all.by_ref().count() as u64;
        Counts { records, lines: all.lines() }
    }

    /// Finds the record whose last line is `line` (from 1). Returns the number of records before
    /// it, and its start and end as offsets in the chunk.
    pub fn record_of_line(&self, layout: &Layout, line: u64) -> (u64, usize, usize) {
        self.locate(layout, |_, record| record.line >= line)
    }

    /// Finds the record of a byte. Returns the same values.
    pub fn record_at_byte(&self, layout: &Layout, at: usize) -> (u64, usize, usize) {
        self.locate(layout, |_, record| record.end > at)
    }

    /// Finds record `index` (from 0). Returns the same values.
    pub fn record_at(&self, layout: &Layout, index: u64) -> (u64, usize, usize) {
        self.locate(layout, |before, _| before >= index)
    }

    /// Returns the number of lines that end before `end`.
    pub fn lines_to(&self, layout: &Layout, end: usize) -> u64 {
        let mut records = self.records(layout);
        while records.position() < end && records.next().is_some() {}
        records.lines()
    }

    fn locate(&self, layout: &Layout, found: impl Fn(u64, &Found) -> bool) -> (u64, usize, usize) {
        let mut records = self.records(layout);
        let mut before = 0;
        for record in records.by_ref() {
            // For a malformed record, this is the line that COPY names. If a quote is left open,
            // COPY names the line at the end of the file.
            if found(before, &record) {
                return (before, record.start, record.end);
            }
            before += 1;
        }
        (before, records.position(), self.bytes.len())
    }
}

impl Chunk {
    /// Returns the chunk up to `end`. No record before `end` may have a stray quote.
    pub fn head(&self, end: usize) -> Chunk {
        let bytes = self.bytes[..end].to_vec();
        Chunk { bytes, last: false, stray: false, ..*self }
    }

    /// Counts the fields with stray quotes, whatever these quotes mean.
    pub fn strays(&self, layout: &Layout) -> u64 {
        let Some(dialect) = layout.dialect().filter(|_| self.stray) else { return 0 };
        if self.part != Part::Whole {
            // At least one.
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

    /// Drops the first records of the chunk, as many as are still to be skipped.
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
            // Nothing is left that could be counted again.
            self.part = Part::Whole;
            self.damaged = None;
            return;
        }
        if self.eol == Eol::Unknown {
            self.eol = self.line_end(layout);
        }
        let (records, lines, end) = self.first_records(*skip, layout);
        *skip -= records;
        self.passed += Counts { records, lines };
        self.bytes.drain(..end);
        self.offset += end as u64;
    }

    /// Cuts off the chunk after the last record that is still to be read.
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

    /// Counts the first records, up to `most`. Returns their number, the number of their lines, and
    /// where they end.
    fn first_records(&self, most: u64, layout: &Layout) -> (u64, u64, usize) {
        let mut all = self.records(layout);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let records = all.by_ref().take(most).count() as u64;
        (records, all.lines(), all.position())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgsluice_core::scan::{DotLine, StrayQuotes};

    fn chunk(bytes: Vec<u8>, eol: Eol, stray: bool) -> Chunk {
        Chunk {
            sequence: 0,
            file: 0,
            offset: 0,
            start: 0,
            eol,
            part: Part::Whole,
            stray,
            damaged: None,
            last: true,
            line: 0,
            passed: Counts::default(),
            known: Counts::default(),
            bytes,
        }
    }

    /// Any bytes, in files with each line end, and by each rule on quotes and on `\.`.
    #[test]
    fn ends_of_records_give_the_numbers_that_the_records_give() {
        let mut state = 1_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let strict = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
        let old = Dialect { dot_line: DotLine::Ends, ..Dialect::csv() };
        let escaped = Dialect { escape: b'\\', ..Dialect::csv() };
        let dialects = [Dialect::csv(), strict, old, escaped, Dialect::text()];
        let mut compared = 0;
        for _ in 0..40_000 {
            let (length, n) = (random() % 150, random());
            let eol = [Eol::Nl, Eol::Cr, Eol::CrNl][n as usize % 3];
            let line_end: &[u8] = [b"\n".as_slice(), b"\r", b"\r\n"][n as usize % 3];
            let rare = [b"\"", b"\\", b".", b"\r", b"\n".as_slice()];
            let mut bytes = Vec::new();
            for _ in 0..length {
                bytes.extend_from_slice(match random() % 32 {
                    n @ 0..=4 => rare[n as usize],
                    5..=7 => line_end,
                    8..=9 => b"\"\"",
                    10..=11 => b",\"x",
                    12..=13 => b"y\",",
                    14..=15 => b"\t",
                    _ => b"z",
                });
            }
            bytes.extend_from_slice(line_end);
            for dialect in &dialects {
                let stray = Splitter::new(dialect, eol).watching().feed(&bytes).stray;
                let layout = Layout::Lines(dialect.clone());
                let chunk = chunk(bytes.clone(), eol, stray);
                let Some(counts) = chunk.count_cuts(&layout) else { continue };
                let shown = chunk.bytes.escape_ascii();
                assert_eq!(counts, chunk.count_records(&layout), "{dialect:?} {eol:?} {shown}");
                compared += 1;
            }
        }
        assert!(compared > 20_000, "{compared}");
    }

    #[test]
    fn a_record_in_pieces_has_the_lines_that_it_has_at_once() {
        let csv = |eol: Eol, bytes: &'static [u8]| (Dialect::csv(), eol, bytes);
        for (dialect, eol, bytes) in [
            csv(Eol::Nl, b"1,\"a\r\nb\rc\nd\"\n"),
            csv(Eol::CrNl, b"1,\"a\nb\r\nc\nd\"\r\n"),
            csv(Eol::Cr, b"1,\"a\nb\rc\"\r"),
            (Dialect::text(), Eol::Nl, b"1\ta\\\nb\n"),
        ] {
            let layout = Layout::Lines(dialect);
            let whole = chunk(bytes.to_vec(), eol, false).count(&layout);
            for at in 1..bytes.len() {
                let piece =
                    |bytes: &[u8], part| Chunk { part, ..chunk(bytes.to_vec(), eol, false) };
                let first = piece(&bytes[..at], Part::Piece).count(&layout);
                let rest = piece(&bytes[at..], Part::LastPiece).count(&layout);
                let all = (first.records + rest.records, first.lines + rest.lines);
                assert_eq!(all, (whole.records, whole.lines), "{} at {at}", bytes.escape_ascii());
            }
        }
    }

    /// The first record's line end is unknown: a line feed within its quotes says nothing of it.
    #[test]
    fn a_piece_does_not_show_the_line_end() {
        let layout = Layout::Lines(Dialect::csv());
        let last = chunk(b"b\nc\"\r\n".to_vec(), Eol::Unknown, false);
        assert_eq!(last.line_end(&layout), Eol::Nl);
        assert_eq!(Chunk { part: Part::LastPiece, ..last }.line_end(&layout), Eol::Unknown);
    }
}
