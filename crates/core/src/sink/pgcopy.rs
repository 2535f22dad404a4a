//! Rows in the wire format of `COPY … WITH (FORMAT binary)`.
//!
//! The source is the PostgreSQL manual, "COPY", "Binary Format". The form of each type is that of
//! its `*_send` function, big-endian.
//!
//! Only the loader uses this module, so a failed allocation may end the process.
#![allow(clippy::disallowed_methods)]

use super::append::append;
use super::{ArrayHead, Numeric, RowSink};
use crate::error::Refusal;
use crate::types::json;

/// The signature, flags and header extension length that open a PGCOPY stream.
pub const HEADER: &[u8; 19] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// The field count of -1 that closes a PGCOPY stream.
pub const TRAILER: &[u8; 2] = b"\xff\xff";

const AF_INET: u8 = 2; // PGSQL_AF_INET of src/include/utils/inet.h
const AF_INET6: u8 = 3;

/// Writes rows into a buffer, which the caller may empty between rows.
#[derive(Debug)]
pub struct PgCopySink {
    out: Vec<u8>,
    columns: i16,
    row_start: usize,
    array_starts: usize,
    most: usize,
    overflow: bool,
    checks_json: bool,
}

impl PgCopySink {
    /// A sink for rows of `columns` columns (at most 1,600, the server's own limit).
    pub fn new(columns: usize) -> Self {
        let columns = i16::try_from(columns).expect("the server allows 1,600 columns");
        let most = i32::MAX as usize;
        PgCopySink {
            out: Vec::new(),
            columns,
            row_start: 0,
            array_starts: 0,
            most,
            overflow: false,
            checks_json: true,
        }
    }

    /// The same sink, for rows that a server reads. The wire form of `jsonb` is text, so the server
    /// finds the same faults in it, and reports them in the same words.
    pub fn leaving_json(mut self) -> Self {
        self.checks_json = false;
        self
    }

    /// The same sink with a limit of `most` bytes for the rows in it, at most 2 GB.
    ///
    /// The limit is for padding: one character can become megabytes as `char(n)`.
    pub fn within(mut self, most: usize) -> Self {
        self.most = most.min(self.most);
        self
    }

    /// Whether the rows exceed the limit. Then they are incomplete and must not be used.
    pub fn is_full(&self) -> bool {
        self.overflow || self.out.len() > self.most
    }

    /// The bytes of the finished rows, without header and trailer.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// Empties the sink but keeps its memory.
    pub fn clear(&mut self) {
        self.out.clear();
        self.row_start = 0;
        self.overflow = false;
    }

    /// Returns the buffer and continues with `fresh`, which is emptied.
    pub fn replace(&mut self, mut fresh: Vec<u8>) -> Vec<u8> {
        fresh.clear();
        self.row_start = 0;
        self.overflow = false;
        std::mem::replace(&mut self.out, fresh)
    }

    #[inline]
    fn put<const N: usize>(&mut self, v: [u8; N]) {
        append(&mut self.out, N as i32, &v);
    }

    fn length(&mut self, len: usize) {
        let len = i32::try_from(len).expect("a value is shorter than 1 GB");
        self.out.extend_from_slice(&len.to_be_bytes());
    }
}

impl RowSink for PgCopySink {
    #[inline]
    fn begin(&mut self) {
        self.row_start = self.out.len();
        self.out.extend_from_slice(&self.columns.to_be_bytes());
    }

    #[inline]
    fn end(&mut self) {
        self.row_start = self.out.len();
    }

    fn undo(&mut self) {
        self.out.truncate(self.row_start);
    }

    #[inline]
    fn null(&mut self) {
        self.out.extend_from_slice(&(-1i32).to_be_bytes());
    }

    fn ask(&mut self, _text: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::Ask)
    }

    fn given(&mut self) {
        unreachable!("the wire carries the columns of the statement's list and no defaults");
    }

    fn put_bool(&mut self, v: bool) {
        self.put([u8::from(v)]);
    }

    fn put_i16(&mut self, v: i16) {
        self.put(v.to_be_bytes());
    }

    #[inline]
    fn put_i32(&mut self, v: i32) {
        self.put(v.to_be_bytes());
    }

    fn put_u32(&mut self, v: u32) {
        self.put(v.to_be_bytes());
    }

    #[inline]
    fn put_i64(&mut self, v: i64) {
        self.put(v.to_be_bytes());
    }

    fn put_f32(&mut self, v: f32) {
        self.put(v.to_bits().to_be_bytes());
    }

    fn put_f64(&mut self, v: f64) {
        self.put(v.to_bits().to_be_bytes());
    }

    #[inline]
    fn put_bytes(&mut self, v: &[u8]) {
        let len = i32::try_from(v.len()).expect("a value is shorter than 1 GB");
        append(&mut self.out, len, v);
    }

    fn put_padded(&mut self, v: &[u8], spaces: usize) {
        if self.out.len() + v.len() + spaces > self.most {
            self.overflow = true;
            return self.put_bytes(v);
        }
        self.length(v.len() + spaces);
        self.out.extend_from_slice(v);
        self.out.resize(self.out.len() + spaces, b' ');
    }

    fn put_jsonb(&mut self, text: &[u8]) -> Result<(), Refusal> {
        if self.checks_json {
            json::jsonb(text)?;
        }
        // jsonb_recv: a version byte, 1, then the text.
        self.length(text.len() + 1);
        self.out.push(1);
        self.out.extend_from_slice(text);
        Ok(())
    }

    fn put_name(&mut self, v: &[u8]) {
        self.put_bytes(v);
    }

    fn put_enum(&mut self, label: &[u8], _oid: u32) {
        self.put_bytes(label);
    }

    fn put_uuid(&mut self, v: [u8; 16]) {
        self.put(v);
    }

    fn put_macaddr(&mut self, v: [u8; 6]) {
        self.put(v);
    }

    fn put_macaddr8(&mut self, v: [u8; 8]) {
        self.put(v);
    }

    fn put_interval(&mut self, micros: i64, days: i32, months: i32) {
        self.length(16);
        self.out.extend_from_slice(&micros.to_be_bytes());
        self.out.extend_from_slice(&days.to_be_bytes());
        self.out.extend_from_slice(&months.to_be_bytes());
    }

    fn put_timetz(&mut self, micros: i64, west: i32) {
        self.length(12);
        self.out.extend_from_slice(&micros.to_be_bytes());
        self.out.extend_from_slice(&west.to_be_bytes());
    }

    fn put_numeric(&mut self, v: Numeric<'_>) {
        // numeric_send: ndigits, weight, sign, dscale, digits.
        self.length(8 + 2 * v.digits.len());
        self.out.extend_from_slice(&(v.digits.len() as u16).to_be_bytes());
        self.out.extend_from_slice(&v.weight.to_be_bytes());
        self.out.extend_from_slice(&v.sign.to_be_bytes());
        self.out.extend_from_slice(&v.dscale.to_be_bytes());
        for digit in v.digits {
            self.out.extend_from_slice(&digit.to_be_bytes());
        }
    }

    fn put_bits(&mut self, bits: u32, bytes: &[u8]) {
        // varbit_send: the length in bits, then the bytes.
        self.length(4 + bytes.len());
        self.out.extend_from_slice(&bits.to_be_bytes());
        self.out.extend_from_slice(bytes);
    }

    fn put_inet(&mut self, address: &[u8], netmask: u8, is_cidr: bool) {
        // network_send: family, netmask, is_cidr, address length, address.
        let family = if address.len() == 4 { AF_INET } else { AF_INET6 };
        self.length(4 + address.len());
        self.out.extend_from_slice(&[family, netmask, u8::from(is_cidr), address.len() as u8]);
        self.out.extend_from_slice(address);
    }

    fn array_begin(&mut self, head: ArrayHead<'_>) {
        // array_send: ndim, flags, element type, then length and lower bound of each dimension.
        self.array_starts = self.out.len();
        self.length(0);
        self.out.extend_from_slice(&(head.dims.len() as i32).to_be_bytes());
        self.out.extend_from_slice(&i32::from(head.has_null).to_be_bytes());
        self.out.extend_from_slice(&head.element_oid.to_be_bytes());
        for (len, lower) in head.dims {
            self.out.extend_from_slice(&len.to_be_bytes());
            self.out.extend_from_slice(&lower.to_be_bytes());
        }
    }

    fn array_end(&mut self) {
        let start = self.array_starts;
        let len = i32::try_from(self.out.len() - start - 4).expect("a value is shorter than 1 GB");
        self.out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }
}
