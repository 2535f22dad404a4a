//! Where typed values go: rows in one of PostgreSQL's formats.

pub(crate) mod append;
mod heap;
mod pgcopy;

pub use heap::{Ask, Formed, HeapColumn, HeapPages, HeapSink, Scratch};
pub use pgcopy::{PgCopySink, HEADER, TRAILER};

/// A `numeric` in the server's own terms (`src/backend/utils/adt/numeric.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numeric<'a> {
    /// base-10000 digits, most significant first, no leading or trailing zeros
    pub digits: &'a [i16],
    /// the power of 10000 of the first digit; 0 where there are no digits
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

    /// The header of `NumericData` in native byte order, and its length: short
    /// where weight and scale allow it, as `make_result` of
    /// `src/backend/utils/adt/numeric.c` chooses.
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

/// Takes the values of rows, column after column.
///
/// Statically dispatched: the loader has one sink and the extension another,
/// and there is no detour through a common intermediate form.
///
/// The calls for a row are: [`begin`](RowSink::begin), then one `null` or
/// `put_…` for each column, then [`end`](RowSink::end), or
/// [`undo`](RowSink::undo) at any moment after `begin`, which leaves the sink
/// as it was before that row. An array value is
/// [`array_begin`](RowSink::array_begin), one call for each element in
/// row-major order, [`array_end`](RowSink::array_end).
pub trait RowSink {
    /// Starts a row.
    fn begin(&mut self);
    /// Finishes a row.
    fn end(&mut self);
    /// Takes back the row that was begun and not ended.
    fn undo(&mut self);

    /// NULL.
    fn null(&mut self);
    /// The value that the sink was given beforehand for this column: a default.
    ///
    /// Only [`crate::shape::ValueSource::Given`] leads here.
    fn given(&mut self);
    /// A value that the core cannot read, as text, for the server to read later.
    ///
    /// It may follow upon a value of the same column that was given up half-way.
    ///
    /// # Errors
    ///
    /// This sink takes no such values; the row must be undone.
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
    /// `text`, `varchar`, `char(n)` (already padded), `bytea` and `json`: bytes
    /// that are stored as they are.
    fn put_bytes(&mut self, v: &[u8]);
    /// `char(n)`: `v` and as many spaces as it lacks.
    fn put_padded(&mut self, v: &[u8], spaces: usize);
    /// `jsonb`, as text that the sink checks by `jsonb`'s rules: it may form the
    /// binary value on the way.
    ///
    /// # Errors
    ///
    /// The text is refused, or this sink cannot form its value; the row must be undone.
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
    /// `bit` and `varbit`: how many bits, then ceil(bits / 8) bytes, padded with zeros.
    fn put_bits(&mut self, bits: u32, bytes: &[u8]);
    /// `inet` and `cidr`: address of 4 or 16 bytes and the length of the netmask.
    fn put_inet(&mut self, address: &[u8], netmask: u8, is_cidr: bool);
    /// Starts an array.
    fn array_begin(&mut self, head: ArrayHead<'_>);
    /// Finishes an array.
    fn array_end(&mut self);
}
