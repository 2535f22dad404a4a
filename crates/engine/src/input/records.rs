//! Finds the records in the bytes of a file: lines of CSV or text, or tuples of PGCOPY.

use super::chunk::Chunk;
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::binary::{Corrupt, TupleSplitter, Tuples};
use pgsluice_core::scan::{Dialect, Eol, Next, Record, Scanner, Splitter};
use std::ops::Range;

/// The rules by which a file is cut into records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// lines, by the rules of CSV or of the text format
    Lines(Dialect),
    /// PGCOPY: tuples of fields for these columns
    Tuples(Vec<String>),
}

impl Layout {
    /// The rules of CSV or of the text format.
    pub fn dialect(&self) -> Option<&Dialect> {
        match self {
            Layout::Lines(dialect) => Some(dialect),
            Layout::Tuples(_) => None,
        }
    }
}

/// The number of fields of a tuple for these columns. No table has more columns than an `i16`
/// holds.
pub(super) fn fields(columns: &[String]) -> i16 {
    i16::try_from(columns.len()).unwrap_or(i16::MAX)
}

/// A record of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// where it begins, in the chunk
    pub start: usize,
    /// where it ends, including its line end
    pub end: usize,
    /// the line that COPY would name: the last line of the record, or the number of the tuple;
    /// counted from 1 at the start of the chunk
    pub line: u64,
    /// how many fields it has, or why it is malformed
    pub fields: Result<usize, Malformed>,
}

/// The records of a chunk one after another, including malformed ones.
pub struct Records<'c>(Walk<'c>);

enum Walk<'c> {
    Lines(Scanner<'c>, Record),
    Tuples(Tuples<'c>, Vec<Option<Range<usize>>>),
}

impl<'c> Records<'c> {
    /// Starts at the first record of the chunk.
    pub fn new(chunk: &'c Chunk, layout: &'c Layout) -> Records<'c> {
        Records(match layout {
            Layout::Lines(dialect) => Walk::Lines(chunk.scanner(dialect), Record::default()),
            Layout::Tuples(columns) => {
                Walk::Tuples(Tuples::new(&chunk.bytes, fields(columns)), Vec::new())
            }
        })
    }

    /// The number of lines so far, as COPY counts them. Each tuple is one line.
    pub fn lines(&self) -> u64 {
        match &self.0 {
            Walk::Lines(scanner, _) => scanner.lines(),
            Walk::Tuples(tuples, _) => tuples.line() - 1,
        }
    }

    /// Where the next record begins.
    pub fn position(&self) -> usize {
        match &self.0 {
            Walk::Lines(scanner, _) => scanner.position(),
            Walk::Tuples(tuples, _) => tuples.position(),
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        match &mut self.0 {
            Walk::Lines(scanner, record) => match scanner.next(record) {
                Ok(Next::Record) => {
                    let (start, end, line) = (record.start, record.end, record.line);
                    Some(Found { start, end, line, fields: Ok(record.len()) })
                }
                Ok(_) => None,
                Err(fault) => {
                    let line = record.line;
                    let (start, end) = scanner.skip_record().filter(|(start, end)| start < end)?;
                    Some(Found { start, end, line, fields: Err(fault) })
                }
            },
            Walk::Tuples(tuples, fields) => {
                let (start, line) = (tuples.position(), tuples.line());
                // A chunk consists of whole tuples.
                let whole = tuples.next(fields).unwrap_or(false);
                let end = tuples.position();
                whole.then_some(Found { start, end, line, fields: Ok(fields.len()) })
            }
        }
    }
}

/// The number of lines of the first record, by a known line end or as COPY counts them while it is
/// unknown: then without those within quotes.
pub fn lines_of_first(bytes: &[u8], dialect: &Dialect, eol: Eol) -> u64 {
    let mut scanner = Scanner::new(bytes, true, dialect, eol);
    // If the record is malformed, its lines count all the same.
    let _ = scanner.next(&mut Record::default());
    scanner.lines()
}

/// Finds where records end in a file that is read block by block.
pub(super) enum Cutter {
    Lines(Splitter),
    Tuples(TupleSplitter),
}

/// Where records end in a block of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordCuts {
    /// the end of the first record that ends in the block
    pub first: Option<usize>,
    /// the end of the last one
    pub last: Option<usize>,
    /// there may be a stray quote
    pub stray: bool,
    /// a fault after which nothing can be read
    pub fault: Option<Corrupt>,
}

impl Cutter {
    pub fn feed(&mut self, block: &[u8]) -> RecordCuts {
        match self {
            Cutter::Lines(splitter) => {
                let cuts = splitter.feed(block);
                RecordCuts { first: cuts.first, last: cuts.last, stray: cuts.stray, fault: None }
            }
            Cutter::Tuples(splitter) => {
                let (cuts, fed) = splitter.feed(block);
                RecordCuts { first: cuts.first, last: cuts.last, stray: false, fault: fed.err() }
            }
        }
    }
}
