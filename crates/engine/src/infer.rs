//! Column types for a table that the load creates: inferred from records,
//! chosen so that no value is altered.
//!
//! Each column keeps the set of types that every value so far would survive
//! unchanged. What is left at the end is ranked; where nothing is left it is
//! `text`. A number with a leading zero or a plus sign is not a number here
//! (post codes and telephone numbers would lose it), decimals become `numeric`
//! rather than a float, and JSON becomes `json`, since `jsonb` drops
//! duplicate keys.

use crate::options::TargetOptions;
use crate::rewrite::Value;
use pgsluice_core::error::Refusal;
use pgsluice_core::scan::{Kind, Record};
use pgsluice_core::shape::{Env, Type};
use pgsluice_core::sink::PgCopySink;
use pgsluice_core::types;

/// A type that a column can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// `boolean`: true and false in any case; t and f as the server writes them, since
    /// capital letters may be anything
    Bool,
    /// `integer`
    Int4,
    /// `bigint`
    Int8,
    /// `numeric`
    Numeric,
    /// `double precision`: where a value has an exponent
    Float8,
    /// `uuid`
    Uuid,
    /// `date`
    Date,
    /// `timestamp`
    Timestamp,
    /// `timestamptz`: where every value states its zone
    TimestampTz,
    /// `json`: objects and arrays
    Json,
    /// `text`: whatever there is
    Text,
}

/// Every guess but text, the most telling first.
const RANKED: [Guess; 10] = [
    Guess::Bool,
    Guess::Int4,
    Guess::Int8,
    Guess::Numeric,
    Guess::Float8,
    Guess::Uuid,
    Guess::Date,
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
            Guess::Timestamp => "timestamp",
            Guess::TimestampTz => "timestamptz",
            Guess::Json => "json",
            Guess::Text => "text",
        }
    }

    /// `typlen` and alignment in bytes; `None` for a variable length.
    fn layout(self) -> (Option<usize>, usize) {
        match self {
            Guess::Bool => (Some(1), 1),
            Guess::Int4 | Guess::Date => (Some(4), 4),
            Guess::Int8 | Guess::Float8 | Guess::Timestamp | Guess::TimestampTz => (Some(8), 8),
            Guess::Uuid => (Some(16), 1),
            Guess::Numeric | Guess::Json | Guess::Text => (None, 4),
        }
    }

    /// The type as the core reads it.
    fn core(self) -> Type {
        match self {
            Guess::Bool => Type::Bool,
            Guess::Int4 => Type::Int4,
            Guess::Int8 => Type::Int8,
            Guess::Numeric => Type::Numeric(-1),
            Guess::Float8 => Type::Float8,
            Guess::Uuid => Type::Uuid,
            Guess::Date => Type::Date,
            Guess::Timestamp => Type::Timestamp(-1),
            Guess::TimestampTz => Type::TimestampTz(-1),
            Guess::Json => Type::Json,
            Guess::Text => Type::Text,
        }
    }

    /// Whether the server may take a value as this type and give back another one.
    fn alters(self, text: &[u8], scratch: &mut PgCopySink) -> bool {
        // JSON is kept as it is written.
        if matches!(self, Guess::Json | Guess::Text) || self.holds(text, scratch) {
            return false;
        }
        scratch.clear();
        let read = types::put(&self.core(), text, &Env::default(), scratch);
        matches!(read, Ok(()) | Err(Refusal::Ask))
    }

    /// Whether a value survives this type unchanged in meaning.
    fn holds(self, text: &[u8], scratch: &mut PgCopySink) -> bool {
        let mut reads = |ty: Type| {
            scratch.clear();
            types::put(&ty, text, &Env::default(), scratch).is_ok()
        };
        match self {
            Guess::Bool => {
                let is_word = |word| text.eq_ignore_ascii_case(word);
                matches!(text, b"t" | b"f") || is_word(b"true") || is_word(b"false")
            }
            Guess::Int4 => is_decimal(text, false) && reads(Type::Int4),
            Guess::Int8 => is_decimal(text, false) && reads(Type::Int8),
            Guess::Numeric => is_decimal(text, true) && reads(Type::Numeric(-1)),
            Guess::Float8 => is_float(text) && !pads(text) && reads(Type::Float8),
            Guess::Uuid => text.len() == 36 && reads(Type::Uuid),
            Guess::Date => reads(Type::Date),
            // The server's timestamp takes a zone and drops it without a word.
            Guess::Timestamp => {
                let read = reads(Type::Timestamp(-1)) || reads(Type::Date);
                read && !states_zone(text) && keeps_clock(text)
            }
            Guess::TimestampTz => reads(Type::TimestampTz(-1)) && keeps_clock(text),
            Guess::Json => matches!(text.first(), Some(b'{' | b'[')) && reads(Type::Json),
            Guess::Text => true,
        }
    }
}

/// Whether `text` is a number in the one form that it would be printed in.
fn is_decimal(text: &[u8], fraction: bool) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let mut parts = digits.splitn(2, |c| *c == b'.');
    let whole = parts.next().unwrap_or_default();
    let all_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    all_digits(whole)
        && !pads(text)
        && match parts.next() {
            Some(decimals) => fraction && all_digits(decimals),
            None => true,
        }
}

/// Whether a number is written with a plus sign, a leading zero or the sign of
/// a negative zero, which a numeric type would not give back.
fn pads(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_zero = !digits.iter().any(|c| !matches!(c, b'0' | b'.'));
    matches!(digits, [b'+', ..] | [b'0', b'0'..=b'9', ..]) || (is_zero && text != digits)
}

/// Whether a time of day comes back as it is written: the server rounds to
/// microseconds, and 24:00:00 and a leap second become the next day.
fn keeps_clock(text: &[u8]) -> bool {
    let start = text.iter().position(|c| matches!(c, b' ' | b'T')).map_or(text.len(), |at| at + 1);
    let time = &text[start..];
    let mut parts = time.splitn(2, |c| *c == b'.').skip(1);
    let decimals = parts.next().unwrap_or_default();
    decimals.iter().take_while(|c| c.is_ascii_digit()).count() <= 6
        && !time.starts_with(b"24")
        && !time.windows(3).any(|w| w == b":60")
}

/// Whether anything but digits, points and colons stands behind an ISO date.
fn states_zone(text: &[u8]) -> bool {
    text.iter().skip(11).any(|c| !matches!(c, b'0'..=b'9' | b'.' | b':'))
}

/// Whether a double gives all digits back: it has 15 of them, fewer near zero. The
/// words are those that the server writes; others may be somebody's name.
fn is_float(text: &[u8]) -> bool {
    if matches!(text, b"NaN" | b"Infinity" | b"-Infinity") {
        return true;
    }
    let mantissa = text.split(|c| matches!(c, b'e' | b'E')).next().unwrap_or_default();
    let digits = mantissa.iter().filter(|c| c.is_ascii_digit()).count();
    let value = std::str::from_utf8(text).ok().and_then(|t| t.parse::<f64>().ok());
    (1..=15).contains(&digits) && value.is_some_and(|v| v.is_normal() || v == 0.0)
}

/// One column of a table to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewColumn {
    /// the name, unquoted
    pub name: String,
    /// the type
    pub guess: Guess,
    /// the mean length of the values seen, in bytes, NULLs left out
    mean_length: usize,
}

#[derive(Clone, Debug)]
struct Seen {
    /// a quoted NULL marker is NULL
    force_null: bool,
    /// a NULL marker is a value
    force_not_null: bool,
    /// one bit for each of [`RANKED`]
    possible: u16,
    values: u64,
    bytes: u64,
}

/// Sees records and narrows each column's types.
#[derive(Debug)]
pub struct Inference {
    columns: Vec<Seen>,
    scratch: PgCopySink,
}

impl Inference {
    /// For records of fields with these names, whose NULLs are as the options say.
    pub fn new(names: &[String], target: &TargetOptions) -> Self {
        let column = |name: &String| Seen {
            force_null: target.force_null.has(name),
            force_not_null: target.force_not_null.has(name),
            possible: (1 << RANKED.len()) - 1,
            values: 0,
            bytes: 0,
        };
        Inference { columns: names.iter().map(column).collect(), scratch: PgCopySink::new(1) }
    }

    /// Takes a record into account, unless it has too few fields or too many: such a
    /// record is not loaded.
    pub fn see(&mut self, chunk: &[u8], record: &Record) {
        if record.len() != self.columns.len() {
            return;
        }
        for (index, seen) in self.columns.iter_mut().enumerate() {
            let field = record.field(chunk, index);
            let Value::Text(value) = Value::of(field, seen.force_null, seen.force_not_null) else {
                continue;
            };
            seen.values += 1;
            seen.bytes += value.len() as u64;
            for (bit, guess) in RANKED.iter().enumerate() {
                if seen.possible & (1 << bit) != 0 && !guess.holds(value, &mut self.scratch) {
                    seen.possible &= !(1 << bit);
                }
            }
        }
    }

    /// How many fields the records have.
    pub fn fields(&self) -> usize {
        self.columns.len()
    }

    /// The columns as they stand. `whole` says that every record was seen:
    /// only then is `integer` trusted to be wide enough, else it is `bigint`.
    pub fn columns(&self, names: &[String], whole: bool) -> Vec<NewColumn> {
        let guess = |seen: &Seen| {
            let held = RANKED.iter().enumerate().find(|(bit, _)| seen.possible & (1 << bit) != 0);
            match held {
                Some(_) if seen.values == 0 => Guess::Text,
                Some((_, Guess::Int4)) if !whole => Guess::Int8,
                Some((_, guess)) => *guess,
                None => Guess::Text,
            }
        };
        let named = names.iter().zip(&self.columns);
        named
            .map(|(name, seen)| NewColumn {
                name: name.clone(),
                guess: guess(seen),
                mean_length: (seen.bytes / seen.values.max(1)) as usize,
            })
            .collect()
    }
}

/// Holds records that were not seen to the types that were inferred from others.
#[derive(Debug)]
pub struct Fit {
    guesses: Vec<Guess>,
    scratch: PgCopySink,
}

impl Fit {
    /// The types of a record's fields.
    pub fn new(guesses: Vec<Guess>) -> Fit {
        Fit { guesses, scratch: PgCopySink::new(1) }
    }

    /// The index of the first field that would not come back as it is written. What the server
    /// refuses is its to tell.
    pub fn altered(&mut self, chunk: &[u8], record: &Record) -> Option<usize> {
        let Fit { guesses, scratch } = self;
        let mut fields = guesses.iter().enumerate().take(record.len());
        let found = fields.find(|(index, guess)| {
            let (kind, value) = record.field(chunk, *index);
            matches!(kind, Kind::Plain | Kind::Quoted) && guess.alters(value, scratch)
        });
        found.map(|(index, _)| index)
    }
}

/// The order of columns that wastes the least on alignment: indexes into `columns`.
///
/// Widest alignment first, then fixed lengths before variable ones; columns
/// that are alike in this keep the order of the file.
pub fn by_alignment(columns: &[NewColumn]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|i| match columns[*i].guess.layout() {
        (Some(_), align) => (0, std::cmp::Reverse(align)),
        (None, align) => (1, std::cmp::Reverse(align)),
    });
    order
}

/// The bytes of a row of mean lengths in this order of columns, the tuple
/// header left out, rounded up to the 8 bytes at which tuples are placed
/// (`heap_compute_data_size`; a short varlena needs no alignment).
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
mod tests {
    use super::*;
    use pgsluice_core::scan::{Dialect, Eol, Next, Scanner};

    fn infer(csv: &str, whole: bool) -> Vec<Guess> {
        let dialect = Dialect::csv();
        let mut scanner = Scanner::new(csv.as_bytes(), true, &dialect, Eol::Unknown);
        let mut record = Record::default();
        let mut inference = None;
        while scanner.next(&mut record) == Ok(Next::Record) {
            let inference = inference.get_or_insert_with(|| {
                let names = vec![String::new(); record.len()];
                Inference::new(&names, &TargetOptions::new("", "t"))
            });
            inference.see(csv.as_bytes(), &record);
        }
        let inference = inference.expect("a record");
        let names = vec![String::new(); inference.columns.len()];
        inference.columns(&names, whole).iter().map(|c| c.guess).collect()
    }

    #[test]
    fn values_that_a_number_would_alter_stay_text() {
        assert_eq!(infer("007,+1,-0,1,\n12,2,3,2,\n", true), {
            use Guess::*;
            [Text, Text, Text, Int4, Text]
        });
    }

    #[test]
    fn a_sample_is_not_trusted_to_show_the_largest_integer() {
        assert_eq!(infer("1\n2\n", false), [Guess::Int8]);
        assert_eq!(infer("1\n3000000000\n", true), [Guess::Int8]);
    }

    #[test]
    fn letters_are_booleans_only_as_the_server_writes_them() {
        use Guess::*;
        let csv = "t,T,F,true,TRUE,t\nf,F,F,False,FALSE,F\n";
        assert_eq!(infer(csv, true), [Bool, Text, Text, Bool, Bool, Text]);
    }

    #[test]
    fn dates_zones_uuids_and_json_are_told_apart() {
        use Guess::*;
        let csv = "2024-02-29,2024-02-29 12:00:00,2024-02-29T12:00:00Z,\
            7f3b1c1e-0d5a-4c1b-9d5e-0123456789ab,\"{\"\"a\"\":1}\",1e-3,0.10,2024-02-29\n\
            1999-12-31,1999-12-31,1999-12-31 00:00:00+02,\
            7f3b1c1e-0d5a-4c1b-9d5e-0123456789AB,[],2.5,12.5,1999-12-31 00:00:00+02\n";
        let expected = [Date, Timestamp, TimestampTz, Uuid, Json, Float8, Numeric, Text];
        assert_eq!(infer(csv, true), expected);
        assert_eq!(infer("2023-02-29\n", true), [Text]);
    }

    #[test]
    fn what_a_type_would_round_or_respell_stays_text() {
        use Guess::*;
        for (value, guess) in [
            ("2024-01-01 00:00:00.123456", Timestamp),
            ("2024-01-01 00:00:00.1234567", Text),
            ("2024-01-01T00:00:00.123456Z", TimestampTz),
            ("2024-01-01T00:00:00.123456789Z", Text),
            ("2016-12-31 23:59:60", Text),
            ("2016-12-31T24:00:00+00", Text),
            ("-0.0", Text),
            ("-0.5", Numeric),
            ("1e-300", Float8),
            ("1.23456e-320", Text),
            ("-0e1", Float8),
            ("NaN", Float8),
            ("Nan", Text),
            ("inf", Text),
            ("infinity", Date),
        ] {
            assert_eq!(infer(&format!("{value}\n"), true), [guess], "{value}");
        }
    }

    #[test]
    fn what_the_server_would_take_otherwise_does_not_fit() {
        use Guess::*;
        let csv = "7,1.5,t,2024-01-01,x\n\
            007,1.5,t,2024-01-01,x\n+1,1.50,f,2024-01-01,\n1,1e5,t,2024-01-01,x\n\
            x,y,maybe,2024-13-01,z\n1,.5,t,,x\n,,yes,2024-01-01,x\n1,1,,20240101,x\n";
        let mut fit = Fit::new(vec![Int8, Numeric, Bool, Date, Text]);
        let dialect = Dialect::csv();
        let mut scanner = Scanner::new(csv.as_bytes(), true, &dialect, Eol::Unknown);
        let (mut record, mut found) = (Record::default(), Vec::new());
        while scanner.next(&mut record) == Ok(Next::Record) {
            found.push(fit.altered(csv.as_bytes(), &record));
        }
        let expected = [None, Some(0), Some(0), Some(1), None, Some(1), Some(2), Some(3)];
        assert_eq!(found, expected);
    }

    #[test]
    fn one_odd_value_widens_the_column() {
        assert_eq!(infer("true,1\nx,y\n", true), [Guess::Text, Guess::Text]);
    }

    #[test]
    fn wide_alignment_comes_first_and_saves_its_padding() {
        let column = |guess, mean_length| NewColumn { name: String::new(), guess, mean_length };
        let columns = [
            column(Guess::Bool, 1),
            column(Guess::Int8, 8),
            column(Guess::Text, 5),
            column(Guess::Int4, 4),
            column(Guess::Int8, 8),
        ];
        let order = by_alignment(&columns);
        assert_eq!(order, [1, 4, 3, 0, 2]);
        assert_eq!(row_bytes(&columns, &[0, 1, 2, 3, 4]), 40);
        assert_eq!(row_bytes(&columns, &order), 32);
    }
}
