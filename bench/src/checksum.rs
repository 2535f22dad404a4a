//! The order-independent checksum of a table: the number of rows, and the sum of a 64-bit hash of
//! each row's text form.
//!
//! The server computes it with [`server_sql`]. This module computes the same number from a CSV
//! file, with its own reader and its own hash, so that an error on one side does not hide an error
//! on the other. A lost row, a doubled row and an altered value each change it. The order of the
//! rows does not.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};

/// Number of rows and the exact sum of their signed 64-bit hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// Rows seen, duplicates included.
    pub rows: u64,
    /// Sum of the hashes, as wide as PostgreSQL's `sum(bigint)` (numeric).
    pub sum: i128,
}

impl Checksum {
    /// Adds one row, given its text form (PostgreSQL's `record_out`).
    pub fn add(&mut self, row: &[u8]) {
        self.rows += 1;
        self.sum += i128::from(hash_bytes_extended(row) as i64);
    }

    /// The checksum of the same rows loaded `copies` times.
    pub fn times(self, copies: u32) -> Self {
        Self { rows: self.rows * u64::from(copies), sum: self.sum * i128::from(copies) }
    }

    /// The checksum of these rows and others together.
    pub fn plus(self, other: Self) -> Self {
        Self { rows: self.rows + other.rows, sum: self.sum + other.sum }
    }

    /// Reads what [`server_sql`] returns: `count|sum`, the sum empty for an empty table.
    pub fn parse(text: &str) -> Result<Self> {
        let (rows, sum) =
            text.trim().split_once('|').with_context(|| format!("no checksum in {text:?}"))?;
        let sum = if sum.is_empty() { 0 } else { sum.parse()? };
        Ok(Self { rows: rows.parse()?, sum })
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}", self.rows, self.sum)
    }
}

impl Serialize for Checksum {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The query whose answer [`Checksum::parse`] reads, over the given expressions of a relation.
pub fn server_sql(relation: &str, expressions: &[String]) -> String {
    format!(
        "SELECT count(*), sum(hashtextextended(ROW({})::text COLLATE \"C\", 0)) FROM {relation}",
        expressions.join(", ")
    )
}

/// The checksum of a CSV file without a header. Every field is taken as its text. An unquoted empty
/// field is NULL, as in COPY.
pub fn of_csv(path: &Path, columns: usize) -> Result<Checksum> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut reader = CsvRows::new(columns);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return reader.finish().with_context(|| format!("in {}", path.display()));
        }
        reader.feed(&buffer[..n]).with_context(|| format!("in {}", path.display()))?;
    }
}

/// The position of the reader within a field.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Start,
    Plain,
    Quoted,
    QuoteSeen,
}

/// A plain CSV reader that takes one byte at a time and hashes each complete record.
struct CsvRows {
    columns: usize,
    at: At,
    quoted: bool,
    field: Vec<u8>,
    row: Vec<u8>,
    fields: usize,
    checksum: Checksum,
}

impl CsvRows {
    fn new(columns: usize) -> Self {
        Self {
            columns,
            at: At::Start,
            quoted: false,
            field: Vec::new(),
            row: vec![b'('],
            fields: 0,
            checksum: Checksum::default(),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        for &byte in bytes {
            match (self.at, byte) {
                (At::Quoted, b'"') => self.at = At::QuoteSeen,
                (At::QuoteSeen, b'"') => {
                    self.field.push(b'"');
                    self.at = At::Quoted;
                }
                (At::Quoted, _) => self.field.push(byte),
                (_, b',') => self.end_field(),
                (_, b'\n') => self.end_row()?,
                (_, b'"') => {
                    self.quoted = true;
                    self.at = At::Quoted;
                }
                _ => {
                    self.field.push(byte);
                    self.at = At::Plain;
                }
            }
        }
        Ok(())
    }

    fn end_field(&mut self) {
        if self.fields > 0 {
            self.row.push(b',');
        }
        if self.quoted || !self.field.is_empty() {
            put_record_field(&self.field, &mut self.row);
        }
        self.fields += 1;
        self.field.clear();
        self.quoted = false;
        self.at = At::Start;
    }

    fn end_row(&mut self) -> Result<()> {
        if self.field.last() == Some(&b'\r') {
            bail!("record {}: lines must end in a bare newline", self.checksum.rows + 1);
        }
        self.end_field();
        if self.fields != self.columns {
            let record = self.checksum.rows + 1;
            bail!("record {record}: {} fields where {} are due", self.fields, self.columns);
        }
        self.row.push(b')');
        self.checksum.add(&self.row);
        self.row.truncate(1);
        self.fields = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<Checksum> {
        if self.at == At::Quoted {
            bail!("unterminated quoted field");
        }
        if self.fields > 0 || !self.field.is_empty() || self.quoted {
            self.end_row()?;
        }
        Ok(self.checksum)
    }
}

/// Appends one field as `record_out` (rowtypes.c) writes it: quoted when it is
/// empty or holds a quote, backslash, parenthesis, comma or white space.
fn put_record_field(field: &[u8], row: &mut Vec<u8>) {
    let special = |b: &u8| matches!(b, b'"' | b'\\' | b'(' | b')' | b',' | b' ' | 9..=13);
    if !field.is_empty() && !field.iter().any(special) {
        row.extend_from_slice(field);
        return;
    }
    row.push(b'"');
    for &byte in field {
        if byte == b'"' || byte == b'\\' {
            row.push(byte);
        }
        row.push(byte);
    }
    row.push(b'"');
}

/// PostgreSQL's `hashtextextended(text, 0)` for a deterministic collation on a
/// little-endian server: Bob Jenkins' lookup3 over the bytes, with the two
/// last words as the result (`hash_bytes_extended` in hashfn.c).
pub fn hash_bytes_extended(key: &[u8]) -> u64 {
    let start = 0x9e37_79b9_u32.wrapping_add(key.len() as u32).wrapping_add(3_923_095);
    let mut state = [start; 3];
    let mut chunks = key.chunks_exact(12);
    for chunk in &mut chunks {
        for (word, bytes) in state.iter_mut().zip(chunk.chunks_exact(4)) {
            let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
            *word = word.wrapping_add(u32::from_le_bytes(bytes));
        }
        mix(&mut state);
    }
    for (i, &byte) in chunks.remainder().iter().enumerate() {
        // The lowest byte of the third word is reserved for the length and is left alone.
        let place = if i < 8 { i } else { i + 1 };
        state[place / 4] = state[place / 4].wrapping_add(u32::from(byte) << (8 * (place % 4)));
    }
    final_mix(&mut state);
    u64::from(state[1]) << 32 | u64::from(state[2])
}

/// lookup3's reversible mixing of three words.
fn mix([a, b, c]: &mut [u32; 3]) {
    for (first, second) in [(4, 6), (16, 19)] {
        *a = a.wrapping_sub(*c) ^ c.rotate_left(first);
        *c = c.wrapping_add(*b);
        *b = b.wrapping_sub(*a) ^ a.rotate_left(second);
        *a = a.wrapping_add(*c);
        let third = if first == 4 { 8 } else { 4 };
        *c = c.wrapping_sub(*b) ^ b.rotate_left(third);
        *b = b.wrapping_add(*a);
    }
}

/// lookup3's last mixing of three words into the third.
fn final_mix([a, b, c]: &mut [u32; 3]) {
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(14));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(11));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(25));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(16));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(4));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(14));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(24));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values of PostgreSQL 15: `SELECT hashtextextended(t COLLATE "C", 0)`.
    #[test]
    fn hashes_as_the_server_does() {
        for (text, expected) in GOLDEN {
            assert_eq!(hash_bytes_extended(text.as_bytes()) as i64, *expected, "{text:?}");
        }
    }

    const GOLDEN: &[(&str, i64)] = &[
        ("", -6_939_563_903_564_495_251),
        ("a", 3_591_986_179_850_072_241),
        ("abcdefgh", -8_882_191_227_074_733_005),
        ("abcdefghi", -3_278_210_106_038_014_113),
        ("abcdefghijk", 3_112_909_444_737_856_467),
        ("abcdefghijkl", -7_556_637_188_122_330_412),
        ("(00ash00,t3_as2t0,1)", 7_870_590_310_825_238_148),
    ];

    fn of(text: &str) -> Checksum {
        let mut rows = CsvRows::new(3);
        rows.feed(text.as_bytes()).unwrap();
        rows.finish().unwrap()
    }

    #[test]
    fn order_does_not_matter_but_rows_and_values_do() {
        let whole = of("a,b,1\nc,d,2\na,b,1\n");
        assert_eq!(whole, of("c,d,2\na,b,1\na,b,1\n"));
        assert_ne!(whole, of("a,b,1\nc,d,2\n"));
        assert_ne!(whole, of("a,b,1\nc,d,2\nc,d,2\n"));
        assert_ne!(whole, of("a,d,1\nc,b,2\na,b,1\n"), "values exchanged between rows");
        assert_ne!(whole, of("a,b,1\nc,d,2\na,b,2\n"));
    }

    #[test]
    fn null_and_empty_differ_and_quotes_are_undone() {
        assert_ne!(of("a,,1\n"), of("a,\"\",1\n"));
        assert_eq!(of("\"a\",b,1"), of("a,b,1\n"));
        let mut row = Vec::new();
        put_record_field(b"a \"b\\", &mut row);
        assert_eq!(row, b"\"a \"\"b\\\\\"");
    }

    #[test]
    fn ragged_and_unterminated_are_refused() {
        let mut rows = CsvRows::new(3);
        assert!(rows.feed(b"a,b\n").is_err());
        let mut rows = CsvRows::new(3);
        rows.feed(b"a,\"b").unwrap();
        assert!(rows.finish().is_err());
    }
}
