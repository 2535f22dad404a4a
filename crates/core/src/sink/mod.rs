//! The sinks for typed values, which form rows in one of PostgreSQL's formats.

pub(crate) mod append;
mod heap;
mod pgcopy;

pub use heap::{Ask, Formed, HeapColumn, HeapPages, HeapSink, Scratch};
pub use pgcopy::{PgCopySink, HEADER, TRAILER};

/// A `numeric` in the server's own form (`src/backend/utils/adt/numeric.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numeric<'a> {
    /// base-10000 digits, most significant first, no leading or trailing zeros
    pub digits: &'a [i16],
    /// the power of 10000 of the first digit; 0 if there are no digits
    pub weight: i16,
    /// one of the constants below
    pub sign: u16,
    /// decimal digits after the point, as displayed
    pub dscale: u16,
}

impl Numeric<'_> {
    /// `NUMERIC_POS`
    pub const POSITIVE: u16 = 0x0000;
    /// `NUMERIC_NEG`
    pub const NEGATIVE: u16 = 0x4000;
    /// `NUMERIC_NAN`
    pub const NAN: u16 = 0xC000;
    /// `NUMERIC_PINF`
    pub const PLUS_INFINITY: u16 = 0xD000;
    /// `NUMERIC_NINF`
    pub const MINUS_INFINITY: u16 = 0xF000;

    /// The header of `NumericData` in native byte order, and its length. It is short if weight and
    /// scale allow it, as in `make_result` of `src/backend/utils/adt/numeric.c`.
    pub(crate) fn stored_head(self) -> ([u8; 4], usize) {
        const SHORT: u16 = 0x8000;
        const SHORT_NEGATIVE: u16 = 0x2000;
        let mut head = [0; 4];
        if self.sign & 0xC000 == 0xC000 {
            head[..2].copy_from_slice(&self.sign.to_ne_bytes());
            return (head, 2);
        }
        if self.dscale <= 63 && (-64..=63).contains(&self.weight) {
            let sign = if self.sign == Numeric::NEGATIVE { SHORT_NEGATIVE } else { 0 };
            let word = SHORT | sign | (self.dscale << 7) | (self.weight as u16 & 0x7f);
            head[..2].copy_from_slice(&word.to_ne_bytes());
            return (head, 2);
        }
        head[..2].copy_from_slice(&(self.sign | self.dscale).to_ne_bytes());
        head[2..].copy_from_slice(&self.weight.to_ne_bytes());
        (head, 4)
    }
}

/// The head of an array value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayHead<'a> {
    /// the element's `pg_type.oid`
    pub element_oid: u32,
    /// whether any element is NULL
    pub has_null: bool,
    /// length and lower bound of each dimension; empty for an empty array
    pub dims: &'a [(i32, i32)],
}

/// Receives the values of rows, column by column.
///
/// It is dispatched statically. The loader has one sink and the extension another, so there is no
/// common intermediate form.
///
/// The calls for a row are:
///
/// * [`begin`](RowSink::begin)
/// * one `null` or `put_…` for each column; for an array value,
///   [`array_begin`](RowSink::array_begin), one call for each element in row-major order, then
///   [`array_end`](RowSink::array_end)
/// * [`end`](RowSink::end)
///
/// [`undo`](RowSink::undo) may be called at any time between `begin` and `end`. It leaves the sink
/// as it was before the row.
pub trait RowSink {
    /// Starts a row.
    fn begin(&mut self);
    /// Finishes a row.
    fn end(&mut self);
    /// Removes the unfinished row.
    fn undo(&mut self);

    /// Writes NULL.
    fn null(&mut self);
    /// Writes the default that the sink already has for this column.
    ///
    /// It is called only for [`crate::shape::ValueSource::Given`].
    fn given(&mut self);
    /// Stores a value that the core cannot read, as text, so that the server can read it later.
    ///
    /// It may replace an unfinished value of the same column.
    ///
    /// # Errors
    ///
    /// This sink does not accept such values. The row must be undone.
    fn ask(&mut self, text: &[u8]) -> Result<(), crate::error::Refusal>;
    /// `boolean`.
    fn put_bool(&mut self, v: bool);
    /// `smallint`.
    fn put_i16(&mut self, v: i16);
    /// `integer`, and `date` (days since 2000-01-01).
    fn put_i32(&mut self, v: i32);
    /// `oid`.
    fn put_u32(&mut self, v: u32);
    /// `bigint`, `money`, `time`, `timestamp` and `timestamptz`
    /// (microseconds, the latter two since 2000-01-01).
    fn put_i64(&mut self, v: i64);
    /// `real`.
    fn put_f32(&mut self, v: f32);
    /// `double precision`.
    fn put_f64(&mut self, v: f64);
    /// `text`, `varchar`, `char(n)` (already padded), `bytea` and `json`, whose bytes are stored
    /// unchanged.
    fn put_bytes(&mut self, v: &[u8]);
    /// `char(n)`: `v`, padded with `spaces` spaces.
    fn put_padded(&mut self, v: &[u8], spaces: usize);
    /// `jsonb` as text, which the sink checks by the rules of `jsonb`. It may form the binary value
    /// at the same time.
    ///
    /// # Errors
    ///
    /// The text is not valid, or this sink cannot form its value. The row must be undone.
    fn put_jsonb(&mut self, text: &[u8]) -> Result<(), crate::error::Refusal>;
    /// `name`: at most 63 bytes.
    fn put_name(&mut self, v: &[u8]);
    /// An enum: its label and its `pg_enum.oid`.
    fn put_enum(&mut self, label: &[u8], oid: u32);
    /// `uuid`.
    fn put_uuid(&mut self, v: [u8; 16]);
    /// `macaddr`.
    fn put_macaddr(&mut self, v: [u8; 6]);
    /// `macaddr8`.
    fn put_macaddr8(&mut self, v: [u8; 8]);
    /// `interval`: microseconds, days, months.
    fn put_interval(&mut self, micros: i64, days: i32, months: i32);
    /// `timetz`: microseconds, and seconds west of UTC.
    fn put_timetz(&mut self, micros: i64, west: i32);
    /// `numeric`.
    fn put_numeric(&mut self, v: Numeric<'_>);
    /// `bit` and `varbit`: number of bits, then ceil(bits / 8) bytes, padded with zeros.
    fn put_bits(&mut self, bits: u32, bytes: &[u8]);
    /// `inet` and `cidr`: an address of 4 or 16 bytes, and the length of the netmask.
    fn put_inet(&mut self, address: &[u8], netmask: u8, is_cidr: bool);
    /// Starts an array.
    fn array_begin(&mut self, head: ArrayHead<'_>);
    /// Finishes an array.
    fn array_end(&mut self);
}
