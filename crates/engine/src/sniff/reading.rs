//! A sample in the reading of one dialect: the records, the forms of their values, and how well the
//! dialect fits.

use super::cell::CellKind;
use super::Sample;
use pgsluice_core::scan::{self, Dialect, Eol, Next, Scanner, StrayQuotes};

/// The most records that are read to find the dialect.
const RECORDS: usize = 2000;

/// The most fields of a record whose values are examined.
const FIELDS: usize = 2000;

/// The most values that are read to find the dialect.
const VALUES: usize = 400_000;

/// Limits for records and values.
const SOME: (usize, usize) = (RECORDS, VALUES);
const ALL: (usize, usize) = (usize::MAX, usize::MAX);

/// One record of the sample.
#[derive(Clone, Debug)]
pub(super) struct SampleRow {
    /// its first line, from 1
    pub line: u64,
    /// its last line
    pub last: u64,
    /// its start and end in the sample
    pub start: usize,
    pub end: usize,
    /// number of its fields
    pub width: usize,
    /// number of its fields that have a value
    pub filled: usize,
    /// it has stray quotes
    pub stray: bool,
    /// the forms of its values
    pub kinds: Vec<CellKind>,
    /// whether each field is quoted
    pub quoted: Vec<bool>,
}

impl SampleRow {
    /// Whether the line is empty.
    pub fn is_blank(&self) -> bool {
        self.width == 1 && self.filled == 0
    }

    /// The form of a value. Fields beyond those examined count as empty.
    pub fn kind(&self, i: usize) -> CellKind {
        self.kinds.get(i).copied().unwrap_or(CellKind::Empty)
    }
}

/// The sample in the reading of one dialect.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub dialect: Dialect,
    pub rows: Vec<SampleRow>,
    /// true if the rows are the whole file
    pub whole: bool,
    /// the number of fields that most records have
    pub width: usize,
    /// of the records from the first to the last one with that number, the share that has it
    pub even: f64,
    /// of the values of these records, the share that has a specific form
    pub typed: f64,
    /// the share of the records that have stray quotes
    pub stray: f64,
    /// number of quoted fields
    pub quoted: usize,
}

impl Reading {
    /// Reads a limited part of the sample.
    pub fn of(sample: Sample<'_>, delimiter: u8, quote: u8, escape: u8) -> Reading {
        let stray_quotes = StrayQuotes::Literal;
        let dialect = Dialect { delimiter, quote, escape, stray_quotes, ..Dialect::csv() };
        Reading::by(sample, dialect, SOME)
    }

    /// Reads all records if the sample is the whole file, because a footer comes after the last
    /// record.
    pub fn entire(self, sample: Sample<'_>) -> Reading {
        if self.whole || !sample.whole || self.dialect.stray_quotes != StrayQuotes::Literal {
            return self;
        }
        Reading::by(sample, self.dialect, ALL)
    }

    /// Reads the sample as COPY does. `None` unless all opening quotes are at the start of a field
    /// or after spaces there, and some are after spaces.
    pub fn spaced(sample: Sample<'_>, delimiter: u8, quote: u8) -> Option<Reading> {
        memchr::memmem::find(sample.bytes, &[delimiter, b' ', quote])?;
        let stray_quotes = StrayQuotes::Copy;
        let dialect = Dialect { delimiter, quote, escape: quote, stray_quotes, ..Dialect::csv() };
        let mut reading = Reading::by(sample, dialect, SOME);
        let opens = |row: &SampleRow| {
            opens_after_spaces(&sample.bytes[row.start..row.end], delimiter, quote)
        };
        let all = reading.rows.iter().all(opens);
        for row in &mut reading.rows {
            row.stray = false;
        }
        reading.stray = 0.0;
        (all && reading.even >= 0.98).then_some(reading)
    }

    fn by(sample: Sample<'_>, dialect: Dialect, most: (usize, usize)) -> Reading {
        let length = sample.bytes.len();
        let (mut rows, mut covered) = rows(sample, sample.whole, &dialect, most);
        if !sample.whole && rows.len() < RECORDS / 2 && covered < length / 2 {
            // An unclosed quote hides the rest. Read again as if the data ended here.
            (rows, covered) = self::rows(sample, true, &dialect, most);
            rows.pop();
        }
        let mut reading = Reading {
            dialect,
            whole: sample.whole && covered == length,
            rows,
            width: 0,
            even: 0.0,
            typed: 0.0,
            stray: 0.0,
            quoted: 0,
        };
        reading.measure();
        reading
    }

    fn measure(&mut self) {
        let full: Vec<&SampleRow> = self.rows.iter().filter(|row| !row.is_blank()).collect();
        let mut counts: Vec<(usize, usize)> = Vec::new();
        for row in &full {
            match counts.iter_mut().find(|(width, _)| *width == row.width) {
                Some((_, count)) => *count += 1,
                None => counts.push((row.width, 1)),
            }
        }
        // Of equally frequent numbers, take the one that occurs first.
        let most = counts.iter().map(|(_, count)| *count).max().unwrap_or_default();
        let width = counts.iter().find(|(_, count)| *count == most).map_or(0, |(width, _)| *width);
        let first = full.iter().position(|row| row.width == width).unwrap_or_default();
        let last = full.iter().rposition(|row| row.width == width).unwrap_or_default();
        let among = if full.is_empty() { 0 } else { last + 1 - first };
        let share = |part: usize, of: usize| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let even = share(most, among);
        // The first record may be a header.
        let own = full.iter().filter(|row| row.width == width);
        let skip = usize::from(most > 1);
        let kinds = || own.clone().skip(skip).flat_map(|row| &row.kinds);
        let values = kinds().filter(|kind| kind.is_value()).count();
        let typed = share(kinds().filter(|kind| kind.is_typed()).count(), values);
        let stray = share(full.iter().filter(|row| row.stray).count(), full.len());
        let quoted = full.iter().flat_map(|row| &row.quoted).filter(|quoted| **quoted).count();
        (self.width, self.even, self.typed) = (width, even, typed);
        (self.stray, self.quoted) = (stray, quoted);
    }

    /// The number of records with the usual number of fields.
    pub fn fitting(&self) -> usize {
        self.rows.iter().filter(|row| row.width == self.width && !row.is_blank()).count()
    }

    /// The number of records, without empty lines.
    pub fn records(&self) -> usize {
        self.rows.iter().filter(|row| !row.is_blank()).count()
    }

    /// The values of a row.
    pub fn values(&self, sample: Sample<'_>, row: &SampleRow) -> Vec<Vec<u8>> {
        let bytes = &sample.bytes[row.start..row.end];
        let mut scanner = Scanner::new(bytes, true, &self.dialect, Eol::Unknown);
        let mut record = scan::Record::default();
        match scanner.next_naive(&mut record) {
            Ok(Next::Record) => {
                (0..record.len()).map(|i| record.field(bytes, i).1.to_vec()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Whether each quote of a record opens at the start of its field, or after spaces there, and only
/// spaces follow its closing quote.
fn opens_after_spaces(record: &[u8], delimiter: u8, quote: u8) -> bool {
    let (mut open, mut last, mut before) = (false, delimiter, delimiter);
    for &byte in record {
        if byte == quote {
            if !open && before != delimiter && last != quote {
                return false;
            }
            open = !open;
        } else if !open && before == quote && ![delimiter, b' ', b'\r', b'\n'].contains(&byte) {
            return false;
        }
        if byte != b' ' {
            before = byte;
        }
        last = byte;
    }
    !open
}

/// Reads the records. Returns them and the number of their bytes.
fn rows(
    sample: Sample<'_>,
    last: bool,
    dialect: &Dialect,
    (records, most): (usize, usize),
) -> (Vec<SampleRow>, usize) {
    let mut scanner = Scanner::new(sample.bytes, last, dialect, Eol::Unknown);
    let (mut record, mut rows, mut values) = (scan::Record::default(), Vec::new(), 0);
    while rows.len() < records && values < most {
        let (line, start, strays) =
            (sample.before + scanner.lines() + 1, scanner.position(), scanner.strays());
        match scanner.next_naive(&mut record) {
            Ok(Next::Record) => {}
            Ok(_) => break,
            Err(_) => match scanner.skip_record() {
                // A line end of the wrong kind: the record does not fit this dialect.
                Some((from, to)) if from < to => {
                    let (kinds, quoted) = (Vec::new(), Vec::new());
                    let last = sample.before + scanner.lines();
                    let (width, filled, stray) = (0, 1, true);
                    rows.push(SampleRow {
                        line,
                        last,
                        start,
                        end: to,
                        width,
                        filled,
                        stray,
                        kinds,
                        quoted,
                    });
                    continue;
                }
                _ => break,
            },
        }
        let seen = record.len().min(FIELDS);
        let fields = || (0..seen).map(|i| record.field(sample.bytes, i));
        let kinds: Vec<CellKind> = fields().map(|(_, value)| CellKind::of(value)).collect();
        let is_quoted =
            |kind| matches!(kind, scan::FieldKind::Quoted | scan::FieldKind::QuotedNull);
        values += seen;
        rows.push(SampleRow {
            line,
            last: sample.before + record.line,
            start,
            end: record.end,
            width: record.len(),
            filled: kinds.iter().filter(|kind| **kind != CellKind::Empty).count(),
            stray: scanner.strays() > strays,
            quoted: fields().map(|(kind, _)| is_quoted(kind)).collect(),
            kinds,
        });
    }
    (rows, scanner.position())
}
