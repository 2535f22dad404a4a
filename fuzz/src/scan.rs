//! The scanner: fast equals naive, and any chunking equals the whole.

use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{
    valid_utf8, Dialect, Eol, FieldKind, Format, Next, Processor, Record, Scanner, StrayQuotes,
};

use crate::hostile;
use crate::rng::Random;

/// Everything that is to be known of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRecord {
    fields: Vec<(FieldKind, Vec<u8>)>,
    start: usize,
    end: usize,
    line: u64,
}

/// The records of a whole, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    records: Vec<SeenRecord>,
    /// malformed records that were passed over: why, the line, from where and to where
    passed: Vec<(Malformed, u64, usize, usize)>,
    pub(crate) refused: Option<(Malformed, u64)>,
    pub(crate) eol: Eol,
    pub(crate) lines: u64,
    pub(crate) ended: bool,
}

impl Scanned {
    pub(crate) fn new() -> Self {
        let (records, passed) = (vec![], vec![]);
        Scanned { records, passed, refused: None, eol: Eol::Unknown, lines: 0, ended: false }
    }

    /// How many records there are, and from where to where those lie that were passed over.
    pub fn found(&self) -> (usize, Vec<(usize, usize)>) {
        (self.records.len(), self.passed.iter().map(|passed| (passed.2, passed.3)).collect())
    }

    /// The values of all fields, record by record.
    pub fn values(&self) -> Vec<Vec<&[u8]>> {
        let fields = self.records.iter().map(|record| record.fields.iter());
        fields.map(|fields| fields.map(|(_, value)| value.as_slice()).collect()).collect()
    }

    /// Where the last record ends.
    fn end(&self) -> usize {
        let passed = self.passed.last().map_or(0, |passed| passed.3);
        self.records.last().map_or(0, |r| r.end).max(passed)
    }
}

fn seen(record: &Record, chunk: &[u8], base: usize, lines: u64) -> SeenRecord {
    SeenRecord {
        fields: (0..record.len())
            .map(|i| record.field(chunk, i))
            .map(|(kind, value)| (kind, value.to_vec()))
            .collect(),
        start: base + record.start,
        end: base + record.end,
        line: lines + record.line,
    }
}

/// Scans a chunk that begins at `base`; gives what it left and whether to go on. Where stray
/// quotes are not what they are to COPY, malformed records are passed over.
pub(crate) fn scan_chunk(
    outcome: &mut Scanned,
    chunk: &[u8],
    base: usize,
    strict: bool,
    mut scanner: Scanner<'_>,
    mut step: impl FnMut(&mut Scanner<'_>, &mut Record) -> Result<Next, Malformed>,
) -> (usize, bool) {
    let lines = outcome.lines;
    let mut record = Record::default();
    let go_on = loop {
        match step(&mut scanner, &mut record) {
            Ok(Next::Record) => outcome.records.push(seen(&record, chunk, base, lines)),
            Ok(Next::Partial) => break true,
            Ok(Next::End) => break !scanner.ended(),
            Err(fault) if strict => {
                let line = lines + record.line;
                let Some((from, to)) = scanner.skip_record() else { break true };
                outcome.passed.push((fault, line, base + from, base + to));
            }
            Err(fault) => {
                outcome.refused = Some((fault, lines + record.line));
                break false;
            }
        }
    };
    outcome.eol = scanner.eol();
    outcome.lines = lines + scanner.lines();
    outcome.ended = scanner.ended();
    (scanner.position(), go_on)
}

/// Whether stray quotes are something else than to COPY.
pub(crate) fn strict(dialect: &Dialect) -> bool {
    let line_end = |c: u8| matches!(c, b'\r' | b'\n');
    dialect.format == Format::Csv
        && dialect.stray_quotes != StrayQuotes::Copy
        && !line_end(dialect.quote)
        && !line_end(dialect.escape)
}

/// Scans all of `data` at once, byte by byte.
pub fn naive(dialect: &Dialect, data: &[u8]) -> Scanned {
    let mut outcome = Scanned::new();
    let scanner = Scanner::new(data, true, dialect, Eol::Unknown);
    scan_chunk(&mut outcome, data, 0, strict(dialect), scanner, |s, r| s.next_naive(r));
    outcome
}

/// Scans all of `data` at once, as the product does.
pub fn fast(dialect: &Dialect, data: &[u8], processor: Processor) -> Scanned {
    let mut outcome = Scanned::new();
    let scanner = Scanner::new(data, true, dialect, Eol::Unknown).on(processor);
    scan_chunk(&mut outcome, data, 0, strict(dialect), scanner, |s, r| s.next(r));
    outcome
}

/// Scans `data` in chunks of up to `size` bytes, longer where a record is.
pub fn chunked(dialect: &Dialect, data: &[u8], size: usize) -> Scanned {
    let mut outcome = Scanned::new();
    let (mut base, mut size) = (0, size.max(1));
    let first = size;
    loop {
        let end = data.len().min(base + size);
        let (chunk, last) = (&data[base..end], end == data.len());
        let scanner = Scanner::new(chunk, last, dialect, outcome.eol);
        let (used, go_on) =
            scan_chunk(&mut outcome, chunk, base, strict(dialect), scanner, |s, r| s.next(r));
        base += used;
        size = if used == 0 { size * 2 } else { first };
        if !go_on || last {
            return outcome;
        }
    }
}

/// Checks every rule on one file.
pub fn check(dialect: &Dialect, data: &[u8], size: usize) {
    let whole = naive(dialect, data);
    for processor in Processor::available() {
        assert_eq!(fast(dialect, data, *processor), whole, "{processor:?}");
    }
    assert_eq!(chunked(dialect, data, size), whole, "in chunks of {size}");
    assert!(whole.end() <= data.len());
    assert!(whole.ended || whole.refused.is_some() || whole.end() == data.len());
}

/// The fuzz target: some bytes choose dialect and chunk size, the rest is the file.
pub fn target(bytes: &[u8]) {
    let Some((dialect, size, data)) = input(bytes) else { return };
    check(&dialect, data, size);
}

/// A fuzz target's bytes: dialect, size of a chunk, and the file. The scanner is
/// promised valid bytes: what is not is cut off.
pub(crate) fn input(bytes: &[u8]) -> Option<(Dialect, usize, &[u8])> {
    let (head, data) = bytes.split_first_chunk::<3>()?;
    let format = if head[0] & 1 == 0 { Format::Csv } else { Format::Text };
    let major = if head[0] & 2 == 0 { 15 } else { 18 };
    let mut dialect = hostile::dialect(&mut Random::new(u64::from(head[1])), format, major);
    dialect.stray_quotes = match head[0] >> 2 & 3 {
        1 => StrayQuotes::Error,
        2 => StrayQuotes::Literal,
        _ => StrayQuotes::Copy,
    };
    let valid = valid_utf8(data).map_or_else(|bad| bad.offset, |()| data.len());
    Some((dialect, 1 + usize::from(head[2]), &data[..valid]))
}
