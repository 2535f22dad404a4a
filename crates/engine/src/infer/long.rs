//! Checks a record that is too long to be held in memory against the types that were inferred from
//! other records: field by field, as its pieces are read.
//!
//! Fields end where COPY ends them. If stray quotes do not have COPY's meaning, a record with a
//! stray quote is rejected before that piece gets here.

use super::{Guess, NewColumn};
use pgsluice_core::scan::{Dialect, Eol, FieldKind, Format, Next, Record, Scanner};
use pgsluice_core::sink::PgCopySink;

/// The longest text that types other than `text` and `json` may return as it was written, in bytes.
/// A `numeric` has at most 131,072 digits before its point and 16,383 after it.
const LONGEST: usize = 256 << 10;

/// The fields of one record.
pub struct LongRecordFit {
    columns: Vec<NewColumn>,
    dialect: Dialect,
    /// the field so far, up to [`LONGEST`] bytes and one more
    field: Vec<u8>,
    index: usize,
    in_quote: bool,
    /// the last byte was an escape
    escaped: bool,
    /// the last byte, if a character of two bytes may begin with it
    lead: u8,
    record: Record,
    scratch: PgCopySink,
}

impl LongRecordFit {
    /// `columns` are the columns of the record's fields.
    pub fn new(columns: Vec<NewColumn>, dialect: &Dialect) -> LongRecordFit {
        LongRecordFit {
            columns,
            dialect: dialect.clone(),
            field: Vec::new(),
            index: 0,
            in_quote: false,
            escaped: false,
            lead: 0,
            record: Record::default(),
            scratch: PgCopySink::new(1),
        }
    }

    /// Takes the next piece. Returns the index of the first field that its type would not return as
    /// it was written.
    pub fn altered(&mut self, piece: &[u8], last: bool) -> Option<usize> {
        for byte in piece {
            if !self.is_delimiter(*byte) {
                if self.field.len() <= LONGEST {
                    self.field.push(*byte);
                }
                continue;
            }
            if self.alters_field() {
                return Some(self.index);
            }
            self.index += 1;
            self.field.clear();
        }
        (last && self.alters_field()).then_some(self.index)
    }

    /// Whether the next byte ends a field, by the rules of `CopyReadLineText`.
    fn is_delimiter(&mut self, byte: u8) -> bool {
        let d = &self.dialect;
        let escaped = std::mem::take(&mut self.escaped);
        if d.characters.joins(self.lead, byte) {
            self.lead = 0;
            return false;
        }
        self.lead = byte;
        if d.format == Format::Text {
            self.escaped = byte == b'\\' && !escaped;
            return byte == d.delimiter && !escaped;
        }
        if byte == d.escape && d.escape != d.quote {
            self.escaped = self.in_quote && !escaped;
        }
        if byte == d.quote && !escaped {
            self.in_quote = !self.in_quote;
        }
        byte == d.delimiter && !self.in_quote
    }

    fn alters_field(&mut self) -> bool {
        let Some(column) = self.columns.get(self.index) else { return false };
        if self.field.len() > LONGEST {
            return !matches!(column.guess, Guess::Json | Guess::Text);
        }
        let mut scanner = Scanner::new(&self.field, true, &self.dialect, Eol::Unknown);
        if scanner.next(&mut self.record) != Ok(Next::Record) || self.record.len() != 1 {
            return false;
        }
        let (kind, value) = self.record.field(&self.field, 0);
        let is_value = matches!(kind, FieldKind::Plain | FieldKind::Quoted);
        is_value && column.alters(value, &mut self.scratch)
    }
}
