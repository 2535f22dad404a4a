//! Rows in PostgreSQL's heap form: tuples as `heap_form_tuple` would make them.
//!
//! Sources: `heap_form_tuple`, `heap_compute_data_size` and `fill_val` of
//! `src/backend/access/common/heaptuple.c`; each value's form is that of its
//! type's struct in `src/include/utils/`. Padding is zero. The fields that
//! `heap_prepare_insert` sets (xmin, cmin, ctid, xmax) are left zero.

use super::{ArrayHead, Numeric, RowSink};
use crate::error::Refusal;
use crate::page::tuple::{self, align, long_header, null_hoff, short_header};

/// What the sink knows of one attribute of the relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapColumn {
    /// `attlen`: bytes of a fixed-width type, -1 for varlena
    pub len: i16,
    /// `attalign` in bytes: 1, 2, 4 or 8
    pub align: u8,
    /// the varlena may have a one-byte header: `attstorage` is not plain
    pub packable: bool,
    /// of an array type: its elements' `typalign` in bytes
    pub element_align: u8,
    /// the value for [`RowSink::given`], `None` for one that is filled in later
    pub given: Option<Vec<u8>>,
}

/// One tuple in the sink's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Formed {
    /// where it begins; a multiple of 8
    pub offset: u32,
    /// `t_len`
    pub len: u32,
    /// where the value lies that is to be filled in, from the tuple's start; 0 for none
    pub blank: u32,
}

/// Forms tuples in memory that the caller gave.
///
/// It never grows: for a row that does not fit, [`formed`](Self::formed) is
/// `None` after its end, and the next row takes its place.
#[derive(Debug)]
pub struct HeapSink<'a> {
    columns: &'a [HeapColumn],
    out: &'a mut [u8],
    scratch: &'a mut Vec<u8>,
    /// where the row begins
    start: usize,
    /// where its values begin
    data: usize,
    /// where the next value goes
    at: usize,
    column: usize,
    infomask: u16,
    nulls: [u8; tuple::MAX_ATTRIBUTES / 8],
    blank: usize,
    overflow: bool,
    formed: Option<Formed>,
    array: Option<Elements>,
}

/// An array in the making, in the scratch memory.
#[derive(Debug)]
struct Elements {
    align: usize,
    next: usize,
    bitmap: Option<usize>,
}

impl<'a> HeapSink<'a> {
    /// A sink for rows of `columns` into `out`, from `at` on, a multiple of 8.
    /// `scratch` holds arrays and names in the making.
    pub fn new(
        columns: &'a [HeapColumn],
        out: &'a mut [u8],
        at: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Self {
        HeapSink {
            columns,
            out,
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

    /// The tuple that was ended last; `None` where it did not fit.
    #[inline]
    pub fn formed(&self) -> Option<Formed> {
        self.formed
    }

    /// Where the next tuple will begin.
    pub fn position(&self) -> usize {
        self.start
    }

    /// Writes the header and the padding behind the tuple.
    #[inline]
    fn finish(&mut self) -> Option<Formed> {
        debug_assert_eq!(self.column, self.columns.len());
        let natts = self.columns.len();
        if self.infomask & tuple::HASNULL != 0 {
            self.make_room_for_nulls(natts);
        }
        let next = align(self.at, tuple::MAXALIGN);
        if self.overflow || next > self.out.len() {
            return None;
        }
        let hoff = self.data - self.start;
        let head = &mut self.out[self.start..self.data];
        head[..tuple::INFOMASK2].fill(0);
        head[tuple::INFOMASK2..tuple::INFOMASK].copy_from_slice(&(natts as u16).to_ne_bytes());
        head[tuple::INFOMASK..tuple::HOFF].copy_from_slice(&self.infomask.to_ne_bytes());
        head[tuple::HOFF] = hoff as u8;
        if self.infomask & tuple::HASNULL != 0 {
            write_bitmap(&mut head[tuple::HEADER..], &self.nulls, natts);
        } else {
            head[tuple::HEADER..].fill(0);
        }
        self.out[self.at..next].fill(0);
        let formed = Formed {
            offset: self.start as u32,
            len: (self.at - self.start) as u32,
            blank: if self.blank == 0 {
                0
            } else {
                (self.data + self.blank - 1 - self.start) as u32
            },
        };
        self.start = next;
        Some(formed)
    }

    /// Moves the values away from the header if the NULL bitmap needs more
    /// than the one byte that is there anyway.
    fn make_room_for_nulls(&mut self, natts: usize) {
        let data = self.start + null_hoff(natts);
        let by = data - self.data;
        if by == 0 || self.overflow {
            return;
        }
        if self.at + by > self.out.len() {
            self.overflow = true;
            return;
        }
        self.out.copy_within(self.data..self.at, data);
        self.data = data;
        self.at += by;
    }

    /// `len` bytes for the next value, aligned by zeros; `None` where they do not fit.
    #[inline(always)]
    fn room(&mut self, len: usize, to: usize) -> Option<&mut [u8]> {
        // Aligned from the values' start, which is itself a multiple of 8.
        let from = align(self.at, to);
        let end = from + len;
        if end > self.out.len() {
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
        if self.array.is_some() {
            return self.element(value);
        }
        let to = usize::from(self.columns[self.column].align);
        self.column += 1;
        if let Some(room) = self.room(value.len(), to) {
            room.copy_from_slice(value);
        }
    }

    /// A varlena whose payload is `head` and then `body`.
    #[inline(always)]
    fn varlena(&mut self, head: &[u8], body: &[u8]) {
        if self.array.is_some() {
            return self.varlena_element(head, body);
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
        room[header + head.len()..].copy_from_slice(body);
    }

    /// One fixed-width element of an array.
    fn element(&mut self, value: &[u8]) {
        let Some(elements) = &mut self.array else { return };
        set_present(self.scratch, elements);
        self.scratch.extend_from_slice(value);
        pad(self.scratch, elements.align);
    }

    /// One varlena element: within arrays they keep their long headers.
    fn varlena_element(&mut self, head: &[u8], body: &[u8]) {
        let Some(elements) = &mut self.array else { return };
        set_present(self.scratch, elements);
        self.scratch.extend_from_slice(&long_header(tuple::VARHDRSZ + head.len() + body.len()));
        self.scratch.extend_from_slice(head);
        self.scratch.extend_from_slice(body);
        pad(self.scratch, elements.align);
    }
}

/// The array's next element is there: its bit in the NULL bitmap, if there is one.
fn set_present(scratch: &mut [u8], elements: &mut Elements) {
    if let Some(bitmap) = elements.bitmap {
        scratch[bitmap + elements.next / 8] |= 1 << (elements.next % 8);
    }
    elements.next += 1;
}

/// Zeros up to a multiple of `to`, counted from the array's own header.
fn pad(scratch: &mut Vec<u8>, to: usize) {
    // The scratch leaves out the array's four bytes of varlena header.
    let len = align(scratch.len() + tuple::VARHDRSZ, to) - tuple::VARHDRSZ;
    scratch.resize(len, 0);
}

/// The tuple's NULL bitmap: one bit for each attribute that is *not* NULL.
fn write_bitmap(to: &mut [u8], nulls: &[u8], natts: usize) {
    let bytes = natts.div_ceil(8);
    for (to, nulls) in to[..bytes].iter_mut().zip(nulls) {
        *to = !nulls;
    }
    if natts % 8 != 0 {
        to[bytes - 1] &= (1 << (natts % 8)) - 1;
    }
    to[bytes..].fill(0);
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
        self.overflow = self.at > self.out.len();
        self.array = None;
    }

    #[inline]
    fn end(&mut self) {
        self.formed = self.finish();
    }

    fn undo(&mut self) {
        self.at = self.start;
        self.array = None;
    }

    fn null(&mut self) {
        if let Some(elements) = &mut self.array {
            elements.next += 1;
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

    fn put_bool(&mut self, v: bool) {
        self.fixed(&[u8::from(v)]);
    }

    fn put_i16(&mut self, v: i16) {
        self.fixed(&v.to_ne_bytes());
    }

    #[inline]
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

    #[inline]
    fn put_bytes(&mut self, v: &[u8]) {
        self.varlena(&[], v);
    }

    fn put_jsonb(&mut self, _text: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::Ask)
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
        let (head, head_len) = numeric_head(v);
        let len = 2 * v.digits.len();
        if len <= value.len() {
            for (to, digit) in value.chunks_exact_mut(2).zip(v.digits) {
                to.copy_from_slice(&digit.to_ne_bytes());
            }
            self.varlena(&head[..head_len], &value[..len]);
        } else {
            let value: Vec<u8> = v.digits.iter().flat_map(|d| d.to_ne_bytes()).collect();
            self.varlena(&head[..head_len], &value);
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
        // ArrayType: ndim, dataoffset, elemtype, lengths, lower bounds, NULL bitmap.
        let to = self.columns[self.column].element_align;
        let items: i64 = head.dims.iter().map(|d| i64::from(d.0)).product();
        let items = if head.dims.is_empty() { 0 } else { items as usize };
        let fixed = 16 + 8 * head.dims.len();
        let bitmap = if head.has_null { items.div_ceil(8) } else { 0 };
        let data = align(fixed + bitmap, tuple::MAXALIGN);
        let out = &mut *self.scratch;
        out.clear();
        out.extend_from_slice(&(head.dims.len() as i32).to_ne_bytes());
        let offset = if head.has_null { data as i32 } else { 0 };
        out.extend_from_slice(&offset.to_ne_bytes());
        out.extend_from_slice(&head.element_oid.to_ne_bytes());
        for (len, _) in head.dims {
            out.extend_from_slice(&len.to_ne_bytes());
        }
        for (_, lower) in head.dims {
            out.extend_from_slice(&lower.to_ne_bytes());
        }
        if !head.dims.is_empty() {
            out.resize(data - tuple::VARHDRSZ, 0);
        }
        self.array = Some(Elements {
            align: usize::from(to),
            next: 0,
            bitmap: head.has_null.then_some(fixed - tuple::VARHDRSZ),
        });
    }

    fn array_end(&mut self) {
        self.array = None;
        let scratch = std::mem::take(self.scratch);
        self.varlena(&[], &scratch);
        *self.scratch = scratch;
    }
}

/// The header of `NumericData`: short where weight and scale allow it, as
/// `make_result` of `src/backend/utils/adt/numeric.c` chooses.
fn numeric_head(v: Numeric<'_>) -> ([u8; 4], usize) {
    const SHORT: u16 = 0x8000;
    const SHORT_NEGATIVE: u16 = 0x2000;
    let mut head = [0; 4];
    if v.sign & 0xC000 == 0xC000 {
        head[..2].copy_from_slice(&v.sign.to_ne_bytes());
        return (head, 2);
    }
    if v.dscale <= 63 && (-64..=63).contains(&v.weight) {
        let sign = if v.sign == Numeric::NEGATIVE { SHORT_NEGATIVE } else { 0 };
        let word = SHORT | sign | (v.dscale << 7) | (v.weight as u16 & 0x7f);
        head[..2].copy_from_slice(&word.to_ne_bytes());
        return (head, 2);
    }
    head[..2].copy_from_slice(&(v.sign | v.dscale).to_ne_bytes());
    head[2..].copy_from_slice(&v.weight.to_ne_bytes());
    (head, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(len: i16, align: u8) -> HeapColumn {
        HeapColumn { len, align, packable: true, element_align: 4, given: None }
    }

    /// What `heap_page_items` of pageinspect shows for
    /// `CREATE TABLE t (a int, b text, c bigint); INSERT INTO t VALUES (1, 'xy', NULL), (2, NULL, 3)`.
    #[test]
    fn tuples_are_as_the_server_forms_them() {
        let columns = [column(4, 4), column(-1, 4), column(8, 8)];
        let mut out = [0xaa; 128];
        let mut scratch = Vec::new();
        let mut sink = HeapSink::new(&columns, &mut out, 0, &mut scratch);
        sink.begin();
        sink.put_i32(1);
        sink.put_bytes(b"xy");
        sink.null();
        sink.end();
        assert_eq!(sink.formed(), Some(Formed { offset: 0, len: 31, blank: 0 }));
        sink.begin();
        sink.put_i32(2);
        sink.null();
        sink.put_i64(3);
        sink.end();
        assert_eq!(sink.formed(), Some(Formed { offset: 32, len: 40, blank: 0 }));
        // natts, infomask (HASNULL | HASVARWIDTH), hoff, bitmap
        assert_eq!(out[18..24], [3, 0, 3, 0, 24, 0b011]);
        assert_eq!(out[24..32], [1, 0, 0, 0, 0x07, b'x', b'y', 0]);
        assert_eq!(out[32 + 18..32 + 24], [3, 0, 1, 0, 24, 0b101]);
        assert_eq!(out[56..72], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_row_that_does_not_fit_leaves_room_for_none() {
        let columns = [column(-1, 4)];
        let mut out = [0; 40];
        let mut scratch = Vec::new();
        let mut sink = HeapSink::new(&columns, &mut out, 0, &mut scratch);
        for (len, fits) in [(16, false), (15, true), (0, false)] {
            sink.begin();
            sink.put_bytes(&vec![b'z'; len]);
            sink.end();
            assert_eq!(sink.formed().is_some(), fits, "{len} bytes");
        }
        assert_eq!(sink.position(), 40);
    }

    #[test]
    fn a_wide_bitmap_moves_the_values() {
        let columns: Vec<_> = (0..17).map(|_| column(2, 2)).collect();
        let mut out = [0xaa; 128];
        let mut scratch = Vec::new();
        let mut sink = HeapSink::new(&columns, &mut out, 0, &mut scratch);
        sink.begin();
        for value in 0..16 {
            sink.put_i16(value);
        }
        sink.null();
        sink.end();
        assert_eq!(sink.formed(), Some(Formed { offset: 0, len: 64, blank: 0 }));
        assert_eq!(out[22..32], [32, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out[32..36], [0, 0, 1, 0]);
    }
}
