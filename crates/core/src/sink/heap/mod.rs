//! Rows in PostgreSQL's heap form: tuples as `heap_form_tuple` would form them.
//!
//! The sources are `heap_form_tuple`, `heap_compute_data_size` and `fill_val` of
//! `src/backend/access/common/heaptuple.c`. The form of each value is that of its type's struct in
//! `src/include/utils/`. Padding is zero. The fields that `heap_prepare_insert` sets (xmin, cmin,
//! ctid, xmax) are left zero.

mod pages;
#[cfg(test)]
mod tests;
mod values;

use super::{append, ArrayHead, Numeric, RowSink};
use crate::error::Refusal;
use crate::page::tuple::{self, align, long_header, null_hoff, short_header};
use crate::types::jsonb::JsonbBuilder;
pub use pages::HeapPages;
use values::Elements;

/// The properties of one attribute of the relation that the sink uses.
#[derive(Debug, PartialEq, Eq)]
pub struct HeapColumn {
    /// `attlen`: bytes of a fixed-width type, -1 for varlena
    pub len: i16,
    /// `attalign` in bytes: 1, 2, 4 or 8
    pub align: u8,
    /// the varlena may have a one-byte header: `attstorage` is not plain
    pub packable: bool,
    /// `typalign` in bytes of the elements of an array type
    pub element_align: u8,
    /// the value for [`RowSink::given`]; `None` if it is filled in later
    pub given: Option<Vec<u8>>,
}

/// One tuple in the sink's memory.
///
/// The order of the fields differs from that in the caller's rows. For every row, each field is
/// read just after it is written. A load of two fields at once would wait until both writes have
/// reached the processor's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formed {
    /// `t_len`
    pub len: usize,
    /// its start; a multiple of 8
    pub offset: usize,
    /// offset in the tuple of the value to be filled in; 0 for none
    pub blank: usize,
    /// number of values that the server must read
    pub asks: usize,
}

/// A value that the server must read. The tuple has NULL in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ask {
    /// the start of the text in the sink's memory; a NUL follows the text
    pub offset: u32,
    /// its length in bytes
    pub len: u32,
    /// the column's index
    pub column: u32,
    /// the index of its tuple among the tuples of this sink
    pub row: u32,
}

/// Memory of a [`HeapSink`] that outlives the sink.
#[derive(Debug, Default)]
pub struct Scratch {
    /// an unfinished array; does not grow beyond its capacity
    pub array: Vec<u8>,
    /// `jsonb` values; grows fallibly, up to its own limit
    pub jsonb: JsonbBuilder,
}

/// Forms tuples in memory that the caller provides, which never grows. If a row does not fit,
/// [`formed`](Self::formed) is `None` after its end, and the next row overwrites it.
#[derive(Debug)]
pub struct HeapSink<'a> {
    columns: &'a [HeapColumn],
    out: &'a mut [u8],
    /// the start of the texts of `asks`, which fill `out` from its end
    tail: usize,
    asks: &'a mut [Ask],
    /// number of asks of the finished rows
    asked: usize,
    /// number of rows that were formed
    rows: u32,
    /// number of all asks, including those of the unfinished row
    asking: usize,
    scratch: &'a mut Scratch,
    /// the start of the row
    start: usize,
    /// the start of its values
    data: usize,
    /// the position of the next value
    at: usize,
    column: usize,
    infomask: u16,
    nulls: [u8; tuple::MAX_ATTRIBUTES / 8],
    blank: usize,
    overflow: bool,
    formed: Option<Formed>,
    array: Option<Elements>,
}

impl<'a> HeapSink<'a> {
    /// A sink for rows of `columns` into `out`, from `at` on, which must be a multiple of 8. `asks`
    /// is room for the values that the server must read. If it is empty, a row with such a value is
    /// refused. `scratch` holds unfinished arrays and `jsonb` values.
    pub fn new(
        columns: &'a [HeapColumn],
        out: &'a mut [u8],
        at: usize,
        asks: &'a mut [Ask],
        scratch: &'a mut Scratch,
    ) -> Self {
        HeapSink {
            columns,
            tail: out.len(),
            out,
            asks,
            asked: 0,
            rows: 0,
            asking: 0,
            scratch,
            start: at,
            data: at,
            at,
            column: 0,
            infomask: 0,
            nulls: [0; tuple::MAX_ATTRIBUTES / 8],
            blank: 0,
            overflow: false,
            formed: None,
            array: None,
        }
    }

    /// The last finished tuple; `None` if it did not fit.
    #[inline]
    pub fn formed(&self) -> Option<Formed> {
        self.formed
    }

    /// The start of the next tuple.
    pub fn position(&self) -> usize {
        self.start
    }

    /// Writes the header of the tuple and the padding after it, and records it in `formed`, field
    /// by field and in place (see [`Formed`]).
    #[inline]
    fn finish(&mut self) {
        debug_assert_eq!(self.column, self.columns.len());
        let natts = self.columns.len();
        self.formed = None;
        if self.infomask & tuple::HASNULL != 0 {
            self.make_room_for_nulls(natts);
        }
        let next = align(self.at, tuple::MAXALIGN);
        if self.overflow || next > self.tail {
            return;
        }
        let (head, values) = self.out[self.start..next].split_at_mut(self.data - self.start);
        let mut fixed = [0; tuple::PLAIN_HOFF];
        fixed[tuple::INFOMASK2..tuple::INFOMASK].copy_from_slice(&(natts as u16).to_ne_bytes());
        fixed[tuple::INFOMASK..tuple::HOFF].copy_from_slice(&self.infomask.to_ne_bytes());
        fixed[tuple::HOFF] = head.len() as u8;
        head[..tuple::PLAIN_HOFF].copy_from_slice(&fixed);
        if self.infomask & tuple::HASNULL != 0 {
            tuple::write_bitmap(&mut head[tuple::HEADER..], &self.nulls, natts);
        }
        for padding in &mut values[self.at - self.data..] {
            *padding = 0;
        }
        self.formed = Some(Formed {
            offset: self.start,
            len: self.at - self.start,
            blank: if self.blank == 0 { 0 } else { self.data + self.blank - 1 - self.start },
            asks: self.asking - self.asked,
        });
        self.start = next;
        self.asked = self.asking;
        self.rows += 1;
    }

    /// Removes the asks of the unfinished row.
    #[inline]
    fn forget_asks(&mut self) {
        for ask in &self.asks[self.asked..self.asking] {
            self.tail += ask.len as usize + 1;
        }
        self.asking = self.asked;
    }

    /// Moves the values away from the header, if the NULL bitmap needs more than the one byte that
    /// every header has room for.
    fn make_room_for_nulls(&mut self, natts: usize) {
        let data = self.start + null_hoff(natts);
        let by = data - self.data;
        if by == 0 || self.overflow {
            return;
        }
        if self.at + by > self.tail {
            self.overflow = true;
            return;
        }
        self.out.copy_within(self.data..self.at, data);
        self.data = data;
        self.at += by;
    }

    /// Allocates `len` bytes for the next value, aligned by zeros; `None` if they do not fit.
    #[inline(always)]
    fn room(&mut self, len: usize, to: usize) -> Option<&mut [u8]> {
        // This is relative to the start of the values, which is itself a multiple of 8.
        let from = align(self.at, to);
        let end = from + len;
        if end > self.tail {
            self.overflow = true;
            return None;
        }
        for gap in self.at..from {
            self.out[gap] = 0;
        }
        self.at = end;
        Some(&mut self.out[from..end])
    }

    #[inline(always)]
    fn fixed(&mut self, value: &[u8]) {
        if let Some(array) = &mut self.array {
            self.overflow |= !array.element(&mut self.scratch.array, &[], value);
            return;
        }
        let to = usize::from(self.columns[self.column].align);
        self.column += 1;
        if let Some(room) = self.room(value.len(), to) {
            room.copy_from_slice(value);
        }
    }

    /// Writes a varlena whose payload is `head`, then `body`.
    #[inline(always)]
    fn varlena(&mut self, head: &[u8], body: &[u8]) {
        if let Some(array) = &mut self.array {
            self.overflow |= !array.varlena(&mut self.scratch.array, head, body);
            return;
        }
        let (packable, to) = {
            let column = &self.columns[self.column];
            (column.packable, usize::from(column.align))
        };
        self.column += 1;
        self.infomask |= tuple::HASVARWIDTH;
        self.write_varlena(packable, to, head, body);
    }

    #[inline(always)]
    fn write_varlena(&mut self, packable: bool, to: usize, head: &[u8], body: &[u8]) {
        let payload = head.len() + body.len();
        let short = packable && payload <= tuple::SHORT_MAX;
        let header = if short { 1 } else { tuple::VARHDRSZ };
        let to = if short { 1 } else { to };
        let Some(room) = self.room(header + payload, to) else { return };
        if short {
            room[0] = short_header(1 + payload);
        } else {
            room[..4].copy_from_slice(&long_header(tuple::VARHDRSZ + payload));
        }
        room[header..header + head.len()].copy_from_slice(head);
        append::fill(&mut room[header + head.len()..], body);
    }
}

impl RowSink for HeapSink<'_> {
    #[inline]
    fn begin(&mut self) {
        self.data = self.start + tuple::PLAIN_HOFF;
        self.at = self.data;
        self.column = 0;
        if self.infomask & tuple::HASNULL != 0 {
            self.nulls[..self.columns.len().div_ceil(8)].fill(0);
        }
        self.infomask = 0;
        self.blank = 0;
        self.overflow = self.at > self.tail;
        self.array = None;
        self.forget_asks();
    }

    #[inline(always)]
    fn end(&mut self) {
        self.finish();
    }

    fn undo(&mut self) {
        self.at = self.start;
        self.array = None;
        self.forget_asks();
    }

    fn null(&mut self) {
        if let Some(array) = &mut self.array {
            array.null();
            return;
        }
        self.infomask |= tuple::HASNULL;
        self.nulls[self.column / 8] |= 1 << (self.column % 8);
        self.column += 1;
    }

    fn given(&mut self) {
        let column = &self.columns[self.column];
        let (to, len) = (usize::from(column.align), column.len);
        match &column.given {
            Some(value) if len == -1 => self.varlena(&[], value),
            Some(value) => self.fixed(value),
            None => {
                self.column += 1;
                let len = len.max(0) as usize;
                if let Some(room) = self.room(len, to) {
                    room.fill(0);
                    self.blank = self.at - len - self.data + 1;
                }
            }
        }
    }

    fn ask(&mut self, text: &[u8]) -> Result<(), Refusal> {
        self.array = None;
        if self.asks.is_empty() {
            return Err(Refusal::Ask);
        }
        if self.asking == self.asks.len() || self.at + text.len() + 1 > self.tail {
            self.overflow = true;
            self.null(); // so that the next value is for the next column
            return Ok(());
        }
        self.tail -= text.len() + 1;
        self.out[self.tail..self.tail + text.len()].copy_from_slice(text);
        self.out[self.tail + text.len()] = 0;
        self.asks[self.asking] = Ask {
            offset: self.tail as u32,
            len: text.len() as u32,
            column: self.column as u32,
            row: self.rows,
        };
        self.asking += 1;
        self.null();
        Ok(())
    }

    #[inline(always)]
    fn put_bool(&mut self, v: bool) {
        self.fixed(&[u8::from(v)]);
    }

    #[inline(always)]
    fn put_i16(&mut self, v: i16) {
        self.fixed(&v.to_ne_bytes());
    }

    #[inline(always)]
    fn put_i32(&mut self, v: i32) {
        self.fixed(&v.to_ne_bytes());
    }

    fn put_u32(&mut self, v: u32) {
        self.fixed(&v.to_ne_bytes());
    }

    #[inline]
    fn put_i64(&mut self, v: i64) {
        self.fixed(&v.to_ne_bytes());
    }

    fn put_f32(&mut self, v: f32) {
        self.fixed(&v.to_ne_bytes());
    }

    fn put_f64(&mut self, v: f64) {
        self.fixed(&v.to_ne_bytes());
    }

    #[inline(always)]
    fn put_bytes(&mut self, v: &[u8]) {
        self.varlena(&[], v);
    }

    fn put_padded(&mut self, v: &[u8], spaces: usize) {
        const SPACES: [u8; 256] = [b' '; 256];
        if self.array.is_none() && spaces <= SPACES.len() {
            self.varlena(v, &SPACES[..spaces]);
            return;
        }
        self.long_padded(v, spaces);
    }

    fn put_jsonb(&mut self, text: &[u8]) -> Result<(), Refusal> {
        let mut builder = std::mem::take(&mut self.scratch.jsonb);
        let built = builder.build(text).map(|value| self.varlena(&[], value));
        self.scratch.jsonb = builder;
        built
    }

    fn put_name(&mut self, v: &[u8]) {
        // NameData: NAMEDATALEN bytes, padded with zeros.
        let mut name = [0; 64];
        name[..v.len()].copy_from_slice(v);
        self.fixed(&name);
    }

    fn put_enum(&mut self, _label: &[u8], oid: u32) {
        self.put_u32(oid);
    }

    fn put_uuid(&mut self, v: [u8; 16]) {
        self.fixed(&v);
    }

    fn put_macaddr(&mut self, v: [u8; 6]) {
        self.fixed(&v);
    }

    fn put_macaddr8(&mut self, v: [u8; 8]) {
        self.fixed(&v);
    }

    fn put_interval(&mut self, micros: i64, days: i32, months: i32) {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&micros.to_ne_bytes());
        value[8..12].copy_from_slice(&days.to_ne_bytes());
        value[12..].copy_from_slice(&months.to_ne_bytes());
        self.fixed(&value);
    }

    fn put_timetz(&mut self, micros: i64, west: i32) {
        let mut value = [0; 12];
        value[..8].copy_from_slice(&micros.to_ne_bytes());
        value[8..].copy_from_slice(&west.to_ne_bytes());
        self.fixed(&value);
    }

    fn put_numeric(&mut self, v: Numeric<'_>) {
        let mut value = [0; 256];
        let (head, head_len) = v.stored_head();
        let len = 2 * v.digits.len();
        if len <= value.len() {
            for (to, digit) in value.chunks_exact_mut(2).zip(v.digits) {
                to.copy_from_slice(&digit.to_ne_bytes());
            }
            self.varlena(&head[..head_len], &value[..len]);
        } else {
            self.long_numeric(&head[..head_len], v.digits);
        }
    }

    fn put_bits(&mut self, bits: u32, bytes: &[u8]) {
        // VarBit: bit_len, then the bits.
        self.varlena(&bits.to_ne_bytes(), bytes);
    }

    fn put_inet(&mut self, address: &[u8], netmask: u8, _is_cidr: bool) {
        // inet_struct: family (PGSQL_AF_INET, PGSQL_AF_INET6), bits, address.
        let family = if address.len() == 4 { 2 } else { 3 };
        self.varlena(&[family, netmask], address);
    }

    fn array_begin(&mut self, head: ArrayHead<'_>) {
        let align = self.columns[self.column].element_align;
        self.array = Some(Elements::begin(&mut self.scratch.array, head, usize::from(align)));
    }

    fn array_end(&mut self) {
        self.array = None;
        let scratch = std::mem::take(&mut self.scratch.array);
        self.varlena(&[], &scratch);
        self.scratch.array = scratch;
    }
}
