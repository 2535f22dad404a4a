//! Values whose heap form takes more than their bytes.

use crate::page::tuple::{self, align};
use crate::sink::ArrayHead;

/// An array in the making: `ArrayType` of `src/include/utils/array.h` without
/// its varlena header, as `construct_md_array` lays it out.
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
        let bitmap = head.has_null.then_some(fixed - tuple::VARHDRSZ);
        Elements { align, next: 0, bitmap, full: false }
    }

    /// NULL.
    pub(super) fn null(&mut self) {
        self.next += 1;
    }

    /// One element of `head` and then `body`; whether it fitted.
    pub(super) fn element(&mut self, out: &mut Vec<u8>, head: &[u8], body: &[u8]) -> bool {
        self.full |= out.len() + head.len() + body.len() + self.align > out.capacity();
        if self.full {
            return false;
        }
        if let Some(bitmap) = self.bitmap {
            out[bitmap + self.next / 8] |= 1 << (self.next % 8);
        }
        self.next += 1;
        out.extend_from_slice(head);
        out.extend_from_slice(body);
        // The array is without its four bytes of header here.
        let len = align(out.len() + tuple::VARHDRSZ, self.align) - tuple::VARHDRSZ;
        out.resize(len, 0);
        true
    }

    /// One varlena element: within arrays they keep their long headers.
    pub(super) fn varlena(&mut self, out: &mut Vec<u8>, head: &[u8], body: &[u8]) -> bool {
        let header = tuple::long_header(tuple::VARHDRSZ + head.len() + body.len());
        let mut front = [0; 8];
        front[..4].copy_from_slice(&header);
        front[4..4 + head.len()].copy_from_slice(head);
        self.element(out, &front[..4 + head.len()], body)
    }
}
