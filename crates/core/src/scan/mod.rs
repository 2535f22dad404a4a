//! Bytes to field spans: CSV and text by the rules of the server's COPY.
//!
//! Source of the rules: `src/backend/commands/copyfromparse.c` of PostgreSQL
//! 18 (`CopyReadLineText`, `CopyReadAttributesCSV`, `CopyReadAttributesText`).

mod naive;

use crate::error::Malformed;

/// The longest record that is scanned, in bytes: the server's own limit for a
/// line (`MaxAllocSize`), which also keeps every offset within 30 bits.
pub const MAX_RECORD: usize = 0x3fff_ffff;

/// The two formats with delimiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `FORMAT csv`
    Csv,
    /// `FORMAT text`
    Text,
}

/// What ends a line. COPY takes it from the first line and holds the rest to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eol {
    /// no line has ended yet
    Unknown,
    /// LF
    Nl,
    /// CR
    Cr,
    /// CR LF
    CrNl,
}

/// What a line of `\.` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotLine {
    /// the end of the data: text format always, CSV up to PostgreSQL 17
    Ends,
    /// data like any other: CSV since PostgreSQL 18
    IsData,
}

/// COPY's options on the form of the file, validated as the server validates them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// csv or text
    pub format: Format,
    /// one byte, neither CR nor LF
    pub delimiter: u8,
    /// csv: the quote
    pub quote: u8,
    /// csv: the escape within quotes; the quote itself by default
    pub escape: u8,
    /// the marker of NULL, without CR or LF
    pub null: Vec<u8>,
    /// the marker of a column's default (PostgreSQL 16), if there is one
    pub default: Option<Vec<u8>>,
    /// what a line of `\.` means
    pub dot_line: DotLine,
}

impl Dialect {
    /// COPY's defaults for `FORMAT csv`.
    pub fn csv() -> Self {
        Dialect {
            format: Format::Csv,
            delimiter: b',',
            quote: b'"',
            escape: b'"',
            null: Vec::new(),
            default: None,
            dot_line: DotLine::IsData,
        }
    }

    /// COPY's defaults for `FORMAT text`.
    pub fn text() -> Self {
        Dialect {
            format: Format::Text,
            delimiter: b'\t',
            quote: b'"',
            escape: b'"',
            null: b"\\N".to_vec(),
            default: None,
            dot_line: DotLine::Ends,
        }
    }
}

/// What a field is, before any column's own rules (FORCE_NULL …) are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// a value; in CSV: with no quote in it
    Plain,
    /// CSV: a value with at least one quote in it, which is never NULL by itself
    Quoted,
    /// the NULL marker
    Null,
    /// the DEFAULT marker
    Default,
}

/// One field: its kind, and where its value lies.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    start: u32,
    end: u32,
    kind: Kind,
    /// in the record's scratch rather than in the chunk
    scratch: bool,
}

/// The fields of one record. Reused from record to record.
#[derive(Debug, Default)]
pub struct Record {
    spans: Vec<Span>,
    scratch: Vec<u8>,
    /// where the record begins in the chunk
    pub start: usize,
    /// where it ends in the chunk, after its line end
    pub end: usize,
    /// the number of the record's *last* line, from 1 at the chunk's start: the
    /// line that COPY names in the CONTEXT of an error
    pub line: u64,
}

impl Record {
    /// How many fields the record has. An empty line has one, empty.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no field at all.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The kind and the value of field `i`, escapes and quotes resolved.
    ///
    /// `chunk` is the chunk that the record was scanned from. For [`Kind::Null`]
    /// and [`Kind::Default`] the value is the marker.
    #[inline]
    pub fn field<'a>(&'a self, chunk: &'a [u8], i: usize) -> (Kind, &'a [u8]) {
        let span = self.spans[i];
        let from: &[u8] = if span.scratch { &self.scratch } else { chunk };
        (span.kind, &from[span.start as usize..span.end as usize])
    }

    fn clear(&mut self) {
        self.spans.clear();
        self.scratch.clear();
    }
}

/// What [`Scanner::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// a whole record
    Record,
    /// the chunk ends in mid-record and is not the last: scan again from
    /// [`Scanner::position`] with more bytes
    Partial,
    /// the end of the chunk, or a line of `\.` that ends the data
    End,
}

/// Walks through a chunk record by record.
///
/// A chunk begins at a record's start. It need not end at a record's end
/// unless it is the last one.
#[derive(Debug)]
pub struct Scanner<'c> {
    chunk: &'c [u8],
    position: usize,
    last: bool,
    dialect: &'c Dialect,
    eol: Eol,
    line: u64,
    ended: bool,
}

impl<'c> Scanner<'c> {
    /// A scanner at the start of `chunk`; `last` says that no bytes follow it,
    /// `eol` is what earlier chunks' lines ended with.
    pub fn new(chunk: &'c [u8], last: bool, dialect: &'c Dialect, eol: Eol) -> Self {
        Scanner { chunk, position: 0, last, dialect, eol, line: 0, ended: false }
    }

    /// Where the next record begins.
    pub fn position(&self) -> usize {
        self.position
    }

    /// What lines end with, as far as it is known.
    pub fn eol(&self) -> Eol {
        self.eol
    }

    /// How many lines have ended, those within quotes counted.
    pub fn lines(&self) -> u64 {
        self.line
    }

    /// Whether a line of `\.` ended the data before the chunk's end.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Scans one record into `record`.
    ///
    /// # Errors
    ///
    /// The record is not well formed. The scanner stays where it is; `record`
    /// has the line. [`Malformed::ExtraData`] and [`Malformed::MissingData`]
    /// never come from here: the scanner does not know how many columns there are.
    pub fn next(&mut self, record: &mut Record) -> Result<Next, Malformed> {
        naive::next(self, record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All records of `data`, fields rendered: `N` for NULL, `"x"` for quoted, `x` for plain.
    fn all(dialect: &Dialect, data: &[u8]) -> Result<Vec<Vec<String>>, Malformed> {
        let mut scanner = Scanner::new(data, true, dialect, Eol::Unknown);
        let mut record = Record::default();
        let mut rows = Vec::new();
        while scanner.next(&mut record)? == Next::Record {
            rows.push(
                (0..record.len())
                    .map(|i| {
                        let (kind, value) = record.field(data, i);
                        let value = String::from_utf8_lossy(value).into_owned();
                        match kind {
                            Kind::Plain => value,
                            Kind::Quoted => format!("\"{value}\""),
                            Kind::Null => "N".into(),
                            Kind::Default => "D".into(),
                        }
                    })
                    .collect(),
            );
        }
        Ok(rows)
    }

    #[test]
    fn csv_tells_empty_from_quoted_empty() {
        let rows = all(&Dialect::csv(), b"1,,\"\"\n").unwrap();
        assert_eq!(rows, [["1", "N", "\"\""]]);
    }

    #[test]
    fn csv_quotes_may_open_in_mid_field_and_hold_line_ends() {
        let rows = all(&Dialect::csv(), b"a\"b,\"\"c\"d,\"x\ny\"\nz,1").unwrap();
        assert_eq!(rows, [vec!["\"ab,\"cd\"", "\"x\ny\""], vec!["z", "1"]]);
    }

    #[test]
    fn csv_holds_lines_to_the_first_ones_end() {
        assert_eq!(all(&Dialect::csv(), b"a\r\nb\n"), Err(Malformed::Newline));
        assert_eq!(all(&Dialect::csv(), b"a\nb\r\n"), Err(Malformed::CarriageReturn));
        assert_eq!(all(&Dialect::csv(), b"a\rb\r").unwrap(), [["a"], ["b"]]);
        assert_eq!(all(&Dialect::csv(), b"\"a"), Err(Malformed::UnterminatedQuote));
    }

    #[test]
    fn text_resolves_escapes_and_null_before_them() {
        let rows = all(&Dialect::text(), b"a\\tb\t\\N\t\\\\N\t\\x41\\101\n").unwrap();
        assert_eq!(rows, [["a\tb", "N", "\\N", "AA"]]);
    }

    #[test]
    fn dot_line_ends_text_and_old_csv_only() {
        assert_eq!(all(&Dialect::text(), b"a\n\\.\nb\n").unwrap(), [["a"]]);
        assert_eq!(all(&Dialect::csv(), b"a\n\\.\nb\n").unwrap(), [["a"], ["\\."], ["b"]]);
        let old = Dialect { dot_line: DotLine::Ends, ..Dialect::csv() };
        assert_eq!(all(&old, b"a\n\\.\nb\n").unwrap(), [["a"]]);
    }

    #[test]
    fn a_chunk_that_is_not_the_last_may_end_anywhere() {
        let dialect = Dialect::csv();
        let mut scanner = Scanner::new(b"a,b\nc,\"d\ne", false, &dialect, Eol::Unknown);
        let mut record = Record::default();
        assert_eq!(scanner.next(&mut record), Ok(Next::Record));
        assert_eq!(scanner.next(&mut record), Ok(Next::Partial));
        assert_eq!(scanner.position(), 4);
    }
}
