//! Infers the column types of a table that the load creates from its records, so that no value is
//! altered.
//!
//! Each column has a set of types that would keep every value so far unchanged. At the end, the
//! type with the highest rank in the set is chosen, or `text` if the set is empty. A number with a
//! leading zero or a plus sign does not count as a number, because post codes and telephone numbers
//! would lose it. Plain decimals become `numeric`. If some values have exponents, the column
//! becomes `double precision` if that type returns every value unchanged (`number.rs`). JSON
//! becomes `json`, because `jsonb` drops duplicate keys.

use crate::options::TargetOptions;
use crate::rewrite::Value;
use pgsluice_core::error::Refusal;
use pgsluice_core::scan::{FieldKind, Record};
use pgsluice_core::shape::{Env, Type};
use pgsluice_core::sink::PgCopySink;
use pgsluice_core::types;
use std::borrow::Cow;

mod long;
mod number;

pub use long::LongRecordFit;

/// A type that a column can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// `boolean`: true and false in any case; t and f only in lower case, as the server writes
    /// them, because capital letters may be anything
    Bool,
    /// `integer`
    Int4,
    /// `bigint`
    Int8,
    /// `numeric`
    Numeric,
    /// `double precision`: if a value has an exponent
    Float8,
    /// `uuid`
    Uuid,
    /// `date`
    Date,
    /// `time`: with seconds
    Time,
    /// `timestamp`
    Timestamp,
    /// `timestamptz`: if every value has a zone
    TimestampTz,
    /// `json`: objects and arrays
    Json,
    /// `text`: for all other values
    Text,
}

/// Every guess except text, the most specific first.
const RANKED: [Guess; 11] = [
    Guess::Bool,
    Guess::Int4,
    Guess::Int8,
    Guess::Numeric,
    Guess::Float8,
    Guess::Uuid,
    Guess::Date,
    Guess::Time,
    Guess::Timestamp,
    Guess::TimestampTz,
    Guess::Json,
];

impl Guess {
    /// The type's name in SQL.
    pub fn sql(self) -> &'static str {
        match self {
            Guess::Bool => "boolean",
            Guess::Int4 => "integer",
            Guess::Int8 => "bigint",
            Guess::Numeric => "numeric",
            Guess::Float8 => "double precision",
            Guess::Uuid => "uuid",
            Guess::Date => "date",
            Guess::Time => "time",
            Guess::Timestamp => "timestamp",
            Guess::TimestampTz => "timestamptz",
            Guess::Json => "json",
            Guess::Text => "text",
        }
    }

    /// `typlen` and alignment in bytes; `None` if the length is variable.
    fn layout(self) -> (Option<usize>, usize) {
        match self {
            Guess::Bool => (Some(1), 1),
            Guess::Int4 | Guess::Date => (Some(4), 4),
            Guess::Int8 | Guess::Float8 | Guess::Time | Guess::Timestamp | Guess::TimestampTz => {
                (Some(8), 8)
            }
            Guess::Uuid => (Some(16), 1),
            Guess::Numeric | Guess::Json | Guess::Text => (None, 4),
        }
    }

    /// The type in the core.
    fn core(self) -> Type {
        match self {
            Guess::Bool => Type::Bool,
            Guess::Int4 => Type::Int4,
            Guess::Int8 => Type::Int8,
            Guess::Numeric => Type::Numeric(-1),
            Guess::Float8 => Type::Float8,
            Guess::Uuid => Type::Uuid,
            Guess::Date => Type::Date,
            Guess::Time => Type::Time(-1),
            Guess::Timestamp => Type::Timestamp(-1),
            Guess::TimestampTz => Type::TimestampTz(-1),
            Guess::Json => Type::Json,
            Guess::Text => Type::Text,
        }
    }

    /// Whether this type keeps the meaning of a value.
    fn holds(self, text: &[u8], scratch: &mut PgCopySink) -> bool {
        let dated = dashed(text);
        let mut reads = |ty: Type| {
            scratch.clear();
            types::put(&ty, &dated, &Env::default(), scratch).is_ok()
        };
        match self {
            Guess::Bool => {
                let is_word = |word| text.eq_ignore_ascii_case(word);
                matches!(text, b"t" | b"f") || is_word(b"true") || is_word(b"false")
            }
            Guess::Int4 => number::is_integer(text) && reads(Type::Int4),
            Guess::Int8 => number::is_integer(text) && reads(Type::Int8),
            Guess::Numeric => number::fits_numeric(text) && reads(Type::Numeric(-1)),
            Guess::Float8 => number::fits_float(text) && reads(Type::Float8),
            Guess::Uuid => is_uuid(text),
            Guess::Date => reads(Type::Date) && keeps_year(text),
            Guess::Time => is_clock(text) && reads(Type::Time(-1)),
            // The server's timestamp accepts a zone and drops it silently.
            Guess::Timestamp => {
                let read = reads(Type::Timestamp(-1)) || reads(Type::Date);
                read && !states_zone(text) && keeps_clock(text) && keeps_year(text)
            }
            Guess::TimestampTz => {
                reads(Type::TimestampTz(-1)) && keeps_clock(text) && keeps_year(text)
            }
            Guess::Json => matches!(text.first(), Some(b'{' | b'[')) && reads(Type::Json),
            Guess::Text => true,
        }
    }
}

/// Whether a UUID is written as the server returns it, except for the case of its letters. The
/// server also accepts hyphens after other groups of four digits, and braces.
pub(crate) fn is_uuid(text: &[u8]) -> bool {
    let dash = |i| matches!(i, 8 | 13 | 18 | 23);
    let fits = |(i, c): (usize, &u8)| if dash(i) { *c == b'-' } else { c.is_ascii_hexdigit() };
    text.len() == 36 && text.iter().enumerate().all(fits)
}

/// Whether the server returns the year of a date as it is written. It accepts leading zeros in a
/// year of more than four digits, and drops them.
fn keeps_year(text: &[u8]) -> bool {
    text.first() != Some(&b'0') || text.iter().take_while(|c| c.is_ascii_digit()).count() <= 4
}

/// Whether the server returns a time of day as it is written. It rounds to microseconds. It turns
/// 24:00:00 and a leap second into the next day.
fn keeps_clock(text: &[u8]) -> bool {
    let start = text.iter().position(|c| matches!(c, b' ' | b'T')).map_or(text.len(), |at| at + 1);
    let time = &text[start..];
    let mut parts = time.splitn(2, |c| *c == b'.').skip(1);
    let decimals = parts.next().unwrap_or_default();
    decimals.iter().take_while(|c| c.is_ascii_digit()).count() <= 6
        && !time.starts_with(b"24")
        && !time.windows(3).any(|w| w == b":60")
}

/// Whether other characters than digits, points and colons follow an ISO date.
fn states_zone(text: &[u8]) -> bool {
    text.iter().skip(11).any(|c| !matches!(c, b'0'..=b'9' | b'.' | b':'))
}

/// Replaces the slashes of a date by dashes. The year is first in both, whatever `DateStyle` is.
fn dashed(text: &[u8]) -> Cow<'_, [u8]> {
    match text {
        [_, _, _, _, b'/', _, _, b'/', _, _, ..] => {
            let mut dashed = text.to_vec();
            (dashed[4], dashed[7]) = (b'-', b'-');
            dashed.into()
        }
        _ => text.into(),
    }
}

/// Whether `text` is a time of day with seconds. Without them, it may be minutes and seconds.
fn is_clock(text: &[u8]) -> bool {
    let [a, b, b':', c, d, b':', e, f, decimals @ ..] = text else { return false };
    let below = |tens: &u8, ones: &u8, limit: u32| {
        let digit = |c: &u8| char::from(*c).to_digit(10);
        let number = digit(tens).zip(digit(ones)).map(|(tens, ones)| tens * 10 + ones);
        number.is_some_and(|n| n < limit)
    };
    below(a, b, 24)
        && below(c, d, 60)
        && below(e, f, 60)
        && match decimals {
            [] => true,
            [b'.', digits @ ..] => {
                (1..=6).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
            }
            _ => false,
        }
}

/// One column of a table to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewColumn {
    /// the name, unquoted
    pub name: String,
    /// the type
    pub guess: Guess,
    /// its values are measurements
    measures: bool,
    /// no value was seen
    empty: bool,
    /// the mean length of the values seen, in bytes, without NULLs
    mean_length: usize,
}

impl NewColumn {
    /// A column whose values are not in the file.
    pub fn set(name: &str, guess: Guess) -> NewColumn {
        let (measures, empty, mean_length) = (false, false, 0);
        NewColumn { name: name.to_owned(), guess, measures, empty, mean_length }
    }

    /// Whether the column's name looks like a value of its type. Years are accepted as names.
    pub fn is_named_by_value(&self) -> bool {
        let name = self.name.as_bytes();
        let of_value = match self.guess {
            Guess::Numeric | Guess::Float8 => name.contains(&b'.'),
            Guess::Bool | Guess::Int4 | Guess::Int8 | Guess::Text => false,
            _ => true,
        };
        of_value && self.guess.holds(name, &mut PgCopySink::new(1))
    }

    /// Whether no value was seen.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// Whether the server may accept a value as the column's type but return another one.
    fn alters(&self, text: &[u8], scratch: &mut PgCopySink) -> bool {
        // JSON is kept as it is written.
        if matches!(self.guess, Guess::Json | Guess::Text) {
            return false;
        }
        if self.guess.holds(text, scratch) {
            let number = matches!(self.guess, Guess::Numeric | Guess::Float8);
            return number && !self.measures && number::needs_measures(text);
        }
        scratch.clear();
        let read = types::put(&self.guess.core(), text, &Env::default(), scratch);
        match read {
            Ok(()) => true,
            Err(Refusal::Ask) => !self.is_of_time() || may_be_time(text),
            Err(_) => false,
        }
    }

    fn is_of_time(&self) -> bool {
        matches!(self.guess, Guess::Date | Guess::Time | Guess::Timestamp | Guess::TimestampTz)
    }
}

/// Whether the server may read the text as a date or a time: it has a digit or one of the words that
/// stand for a value.
fn may_be_time(text: &[u8]) -> bool {
    const WORDS: [&str; 7] = ["now", "today", "tomorrow", "yesterday", "epoch", "allballs", "inf"];
    let lower = text.to_ascii_lowercase();
    let has = |word: &&str| memchr::memmem::find(&lower, word.as_bytes()).is_some();
    text.iter().any(u8::is_ascii_digit) || WORDS.iter().any(has)
}

#[derive(Clone, Debug)]
struct Seen {
    /// a quoted NULL marker is NULL
    force_null: bool,
    /// a NULL marker is a value
    force_not_null: bool,
    /// other texts that are NULL
    nulls: Vec<Vec<u8>>,
    /// one bit for each of [`RANKED`]
    possible: u16,
    numbers: number::NumberColumn,
    values: u64,
    bytes: u64,
}

impl Seen {
    /// The chosen type. `whole`: all records were seen.
    fn guess(&self, whole: bool) -> Guess {
        let may_be = |guess: &Guess| {
            let number = matches!(guess, Guess::Numeric | Guess::Float8);
            let bit = RANKED.iter().position(|ranked| ranked == guess).unwrap_or_default();
            self.possible & (1 << bit) != 0 && (!number || self.numbers.may_be_numbers())
        };
        if self.values == 0 {
            return Guess::Text;
        }
        if self.numbers.prefers_float() && may_be(&Guess::Float8) {
            return Guess::Float8;
        }
        match RANKED.iter().find(|guess| may_be(guess)) {
            Some(Guess::Int4) if !whole => Guess::Int8,
            Some(guess) => *guess,
            None => Guess::Text,
        }
    }
}

/// Reads records and narrows each column's types.
#[derive(Debug)]
pub struct Inference {
    columns: Vec<Seen>,
    scratch: PgCopySink,
}

impl Inference {
    /// For records with these field names. The options determine which fields are NULL.
    pub fn new(names: &[String], target: &TargetOptions) -> Self {
        let column = |name: &String| Seen {
            force_null: target.force_null.has(name),
            force_not_null: target.force_not_null.has(name),
            nulls: target.nulls_of(name),
            possible: (1 << RANKED.len()) - 1,
            numbers: number::NumberColumn::default(),
            values: 0,
            bytes: 0,
        };
        Inference { columns: names.iter().map(column).collect(), scratch: PgCopySink::new(1) }
    }

    /// Reads a record, unless it has too few or too many fields: then it is not loaded.
    pub fn see(&mut self, chunk: &[u8], record: &Record) {
        if record.len() != self.columns.len() {
            return;
        }
        for (index, seen) in self.columns.iter_mut().enumerate() {
            let field = record.field(chunk, index);
            let Value::Text(value) = Value::of(field, seen.force_null, seen.force_not_null) else {
                continue;
            };
            let spelled = field.0 == FieldKind::Plain || seen.force_null;
            if spelled && seen.nulls.iter().any(|null| null == value) {
                continue;
            }
            seen.values += 1;
            seen.bytes += value.len() as u64;
            seen.numbers.see(value);
            for (bit, guess) in RANKED.iter().enumerate() {
                if seen.possible & (1 << bit) != 0 && !guess.holds(value, &mut self.scratch) {
                    seen.possible &= !(1 << bit);
                }
            }
        }
    }

    /// The number of columns without a value so far.
    pub fn without_value(&self) -> usize {
        self.columns.iter().filter(|seen| seen.values == 0).count()
    }

    /// The number of fields of the records.
    pub fn fields(&self) -> usize {
        self.columns.len()
    }

    /// The columns so far. `whole`: all records were seen. Only then can `integer` be wide enough;
    /// otherwise it becomes `bigint`.
    pub fn columns(&self, names: &[String], whole: bool) -> Vec<NewColumn> {
        let named = names.iter().zip(&self.columns);
        named
            .map(|(name, seen)| NewColumn {
                name: name.clone(),
                guess: seen.guess(whole),
                measures: seen.numbers.measures(),
                empty: seen.values == 0,
                mean_length: (seen.bytes / seen.values.max(1)) as usize,
            })
            .collect()
    }
}

/// The columns of a new table, into which records may be loaded that were not part of the inference.
#[derive(Clone, Debug, PartialEq)]
pub struct InferredColumns {
    /// in the order of the file's fields
    pub columns: Vec<NewColumn>,
    /// all records were part of it. Others come from a file that was written to since then
    pub whole: bool,
}

/// Checks records that were not part of the inference against the inferred types.
#[derive(Debug)]
pub struct Fit {
    columns: Vec<NewColumn>,
    scratch: PgCopySink,
}

impl Fit {
    /// Takes the columns of a record's fields.
    pub fn new(columns: Vec<NewColumn>) -> Fit {
        Fit { columns, scratch: PgCopySink::new(1) }
    }

    /// The index of the first field that the server would return changed. Values that the server
    /// rejects are left to it, as are records with too few or too many fields: they were no part of
    /// the inference either.
    pub fn altered(&mut self, chunk: &[u8], record: &Record) -> Option<usize> {
        let Fit { columns, scratch } = self;
        if record.len() != columns.len() {
            return None;
        }
        let found = columns.iter().enumerate().find(|(index, column)| {
            let (kind, value) = record.field(chunk, *index);
            matches!(kind, FieldKind::Plain | FieldKind::Quoted) && column.alters(value, scratch)
        });
        found.map(|(index, _)| index)
    }
}

/// The order of columns that wastes the fewest bytes on alignment: indexes into `columns`.
///
/// Fixed lengths come first, the widest alignment before others, then variable lengths. Otherwise
/// columns keep the order of the file.
pub fn by_alignment(columns: &[NewColumn]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|i| match columns[*i].guess.layout() {
        (Some(_), align) => (0, std::cmp::Reverse(align)),
        (None, align) => (1, std::cmp::Reverse(align)),
    });
    order
}

/// The bytes of a row of mean lengths in this order of columns, without the tuple header, rounded
/// up to the 8 bytes at which tuples are placed (`heap_compute_data_size`; a short varlena needs no
/// alignment).
pub fn row_bytes(columns: &[NewColumn], order: &[usize]) -> usize {
    let mut at = 0usize;
    for column in order.iter().map(|i| &columns[*i]) {
        match column.guess.layout() {
            (Some(length), align) => at = at.next_multiple_of(align) + length,
            (None, _) if column.mean_length < 127 => at += 1 + column.mean_length,
            (None, align) => at = at.next_multiple_of(align) + 4 + column.mean_length,
        }
    }
    at.next_multiple_of(8)
}

#[cfg(test)]
mod tests;
