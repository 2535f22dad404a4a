//! Values whose heap form is more than their bytes.

use super::HeapSink;
use crate::memory::Fallible;
use crate::page::tuple::{self, align};
use crate::sink::ArrayHead;
use crate::types::numeric::MOST_STORED;

/// An unfinished array: `ArrayType` of `src/include/utils/array.h` without its varlena header, in
/// the layout of `construct_md_array`.
#[derive(Debug)]
pub(super) struct Elements {
    align: usize,
    next: usize,
    bitmap: Option<usize>,
    full: bool,
}

impl Elements {
    /// Starts an array in `out`, which does not grow beyond its capacity.
    pub(super) fn begin(out: &mut Vec<u8>, head: ArrayHead<'_>, align: usize) -> Elements {
        let items: usize = head.dims.iter().map(|(len, _)| *len as usize).product();
        let fixed = 16 + 8 * head.dims.len();
        let bitmap = if head.has_null { items.div_ceil(8) } else { 0 };
        let data = tuple::align(fixed + bitmap, tuple::MAXALIGN);
        out.clear();
        if data > out.capacity() {
            return Elements { align, next: 0, bitmap: None, full: true };
        }
        // ndim, dataoffset, elemtype, lengths, lower bounds, NULL bitmap
        out.extend_within_room(&(head.dims.len() as i32).to_ne_bytes());
        let offset = if head.has_null { data as i32 } else { 0 };
        out.extend_within_room(&offset.to_ne_bytes());
        out.extend_within_room(&head.element_oid.to_ne_bytes());
        for (len, _) in head.dims {
            out.extend_within_room(&len.to_ne_bytes());
        }
        for (_, lower) in head.dims {
            out.extend_within_room(&lower.to_ne_bytes());
        }
        if !head.dims.is_empty() {
            out.resize_within(data - tuple::VARHDRSZ, 0);
        }
        let bitmap = head.has_null.then_some(fixed - tuple::VARHDRSZ);
        Elements { align, next: 0, bitmap, full: false }
    }

    /// Adds a NULL.
    pub(super) fn null(&mut self) {
        self.next += 1;
    }

    /// Adds one element: `head`, then `body`. Returns whether it fitted.
    pub(super) fn element(&mut self, out: &mut Vec<u8>, head: &[u8], body: &[u8]) -> bool {
        self.put(out, head, body, 0)
    }

    /// Adds one varlena element. Within arrays, varlenas keep their long headers.
    pub(super) fn varlena(&mut self, out: &mut Vec<u8>, head: &[u8], body: &[u8]) -> bool {
        let header = tuple::long_header(tuple::VARHDRSZ + head.len() + body.len());
        let mut front = [0; 8];
        front[..4].copy_from_slice(&header);
        front[4..4 + head.len()].copy_from_slice(head);
        self.put(out, &front[..4 + head.len()], body, 0)
    }

    /// Adds `v` and `spaces` spaces as one varlena element. Returns whether it fitted.
    pub(super) fn padded(&mut self, out: &mut Vec<u8>, v: &[u8], spaces: usize) -> bool {
        // A saturated length never fits, so its wrong header is never written.
        let header = tuple::long_header((tuple::VARHDRSZ + v.len()).saturating_add(spaces));
        self.put(out, &header, v, spaces)
    }

    /// Adds one element of `head`, `body` and `spaces` spaces, and the padding after it.
    #[inline(always)]
    fn put(&mut self, out: &mut Vec<u8>, head: &[u8], body: &[u8], spaces: usize) -> bool {
        let len = (head.len() + body.len() + self.align).saturating_add(spaces);
        self.full |= len > out.capacity() - out.len();
        if self.full {
            return false;
        }
        if let Some(bitmap) = self.bitmap {
            out[bitmap + self.next / 8] |= 1 << (self.next % 8);
        }
        self.next += 1;
        out.extend_within_room(head);
        out.extend_within_room(body);
        if spaces > 0 {
            out.resize_within(out.len() + spaces, b' ');
        }
        // The four bytes of the array's header are missing here.
        let len = align(out.len() + tuple::VARHDRSZ, self.align) - tuple::VARHDRSZ;
        out.resize_within(len, 0);
        true
    }
}

impl HeapSink<'_> {
    /// Writes `v` and many spaces.
    #[cold]
    pub(super) fn long_padded(&mut self, v: &[u8], spaces: usize) {
        if let Some(array) = &mut self.array {
            self.overflow |= !array.padded(&mut self.scratch.array, v, spaces);
            return;
        }
        let to = usize::from(self.columns[self.column].align);
        self.column += 1;
        self.infomask |= tuple::HASVARWIDTH;
        let len = (tuple::VARHDRSZ + v.len()).saturating_add(spaces);
        if len > self.out.len() {
            self.overflow = true;
            return;
        }
        // The value is too long for a short header.
        let Some(room) = self.room(len, to) else { return };
        room[..tuple::VARHDRSZ].copy_from_slice(&tuple::long_header(len));
        let (text, padding) = room[tuple::VARHDRSZ..].split_at_mut(v.len());
        text.copy_from_slice(v);
        padding.fill(b' ');
    }

    /// Writes a number with more digits than most numbers.
    #[cold]
    #[inline(never)]
    pub(super) fn long_numeric(&mut self, head: &[u8], digits: &[i16]) {
        let mut value = [0; 2 * MOST_STORED];
        for (to, digit) in value.chunks_exact_mut(2).zip(digits) {
            to.copy_from_slice(&digit.to_ne_bytes());
        }
        self.varlena(head, &value[..2 * digits.len()]);
    }
}
