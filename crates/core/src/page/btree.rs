//! A page of a B-tree, in the layout of `nbtree.h` and `bufpage.h` (version 4 of both;
//! little-endian).
//!
//! ```text
//! 0      24                     lower        upper             8176     8192
//! header | line pointers (4 B) →|   hole     |← index tuples   | opaque
//! ```

use crate::index_sort::tuple;
use crate::index_sort::BuildFailure;
use crate::memory::try_box;
use crate::sink::append;

/// Bytes of a page (`BLCKSZ`).
pub const SIZE: usize = 8192;
const HEADER: usize = 24;
const LINE_POINTER: usize = 4;
const OPAQUE: usize = 16;
const SPECIAL: usize = SIZE - OPAQUE;
const LAYOUT_VERSION: u16 = 4;
const LP_NORMAL: u32 = 1;

/// `BTP_LEAF`
pub const LEAF: u16 = 1;
/// `BTP_ROOT`
pub const ROOT: u16 = 2;
/// `P_NONE`: no sibling
pub const NONE: u32 = 0;
/// The offset of the high key, or of the first tuple of a page without one (`P_HIKEY`).
pub const HIGH_KEY: u16 = 1;
/// The offset of the first tuple of a page with a high key (`P_FIRSTKEY`).
pub const FIRST_KEY: u16 = 2;
/// `BT_PIVOT_HEAP_TID_ATTR`
const PIVOT_HEAP_TID: u16 = 0x1000;
/// `BT_IS_POSTING`
const IS_POSTING: u16 = 0x2000;
/// `BT_OFFSET_MASK`
const OFFSET_MASK: u16 = 0x0FFF;

const _: () = assert!(SPECIAL == 8176 && HEADER.is_multiple_of(8));

/// A page being formed.
#[derive(Debug)]
pub struct Page {
    bytes: Box<[u8; SIZE]>,
}

impl Page {
    /// An empty page of a level (0: leaf), with the line pointer of a high key allocated.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(level: u32) -> Result<Self, BuildFailure> {
        let mut page = Self { bytes: try_box([0; SIZE])? };
        page.clear(level);
        Ok(page)
    }

    /// Empties the page, so that it is as after [`Page::new`].
    pub fn clear(&mut self, level: u32) {
        self.bytes.fill(0);
        self.put16(12, (HEADER + LINE_POINTER) as u16);
        self.put16(14, SPECIAL as u16);
        self.put16(16, SPECIAL as u16);
        self.put16(18, SIZE as u16 | LAYOUT_VERSION);
        self.put32(SPECIAL + 8, level);
        self.put16(SPECIAL + 12, if level == 0 { LEAF } else { 0 });
    }

    /// The page as it is written to disk, except for LSN and checksum.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..]
    }

    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn lower(&self) -> usize {
        self.get16(12).into()
    }

    fn upper(&self) -> usize {
        self.get16(14).into()
    }

    /// Sets the left sibling.
    pub fn set_previous(&mut self, block: u32) {
        self.put32(SPECIAL, block);
    }

    /// Sets the right sibling.
    pub fn set_next(&mut self, block: u32) {
        self.put32(SPECIAL + 4, block);
    }

    /// Marks the page as the root.
    pub fn set_root(&mut self) {
        let flags = self.get16(SPECIAL + 12);
        self.put16(SPECIAL + 12, flags | ROOT);
    }

    /// Bytes free for one more tuple (`PageGetFreeSpace`).
    #[must_use]
    pub fn free(&self) -> usize {
        (self.upper() - self.lower()).saturating_sub(LINE_POINTER)
    }

    fn line_pointer(&self, offset: u16) -> (usize, usize) {
        let at = HEADER + LINE_POINTER * (usize::from(offset) - 1);
        let b = &self.bytes[at..at + 4];
        let word = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        ((word & 0x7FFF) as usize, (word >> 17) as usize)
    }

    fn set_line_pointer(&mut self, offset: u16, at: usize, len: usize) {
        let word = at as u32 | LP_NORMAL << 15 | (len as u32) << 17;
        self.put32(HEADER + LINE_POINTER * (usize::from(offset) - 1), word);
    }

    /// The tuple at `offset`.
    #[must_use]
    pub fn tuple(&self, offset: u16) -> &[u8] {
        let (at, len) = self.line_pointer(offset);
        &self.bytes[at..at + len]
    }

    /// Adds a tuple at the next offset, which is `offset`. There must be room for it.
    pub fn add(&mut self, offset: u16, tuple: &[u8]) {
        let upper = self.upper() - tuple::maxalign(tuple.len());
        let lower = HEADER + LINE_POINTER * usize::from(offset);
        debug_assert!(lower <= upper && tuple.len().is_multiple_of(8));
        append::fill(&mut self.bytes[upper..upper + tuple.len()], tuple);
        self.set_line_pointer(offset, upper, tuple.len());
        self.put16(12, lower as u16);
        self.put16(14, upper as u16);
    }

    /// Adds the tuple `base` with a posting list of `tids` at the next offset (`_bt_form_posting`).
    /// There must be at least two tids, in ascending order, and room for them.
    pub fn add_posting(&mut self, offset: u16, base: &[u8], tids: &[[u8; 6]]) {
        let size = tuple::maxalign(base.len() + 6 * tids.len());
        let upper = self.upper() - size;
        let lower = HEADER + LINE_POINTER * usize::from(offset);
        debug_assert!(lower <= upper && base.len().is_multiple_of(8) && tids.len() > 1);
        // The bytes after the last tid are zero, like the whole hole.
        let posting = &mut self.bytes[upper..upper + size];
        let (head, list) = posting.split_at_mut(base.len());
        append::fill(head, base);
        append::fill(&mut list[..6 * tids.len()], tids.as_flattened());
        set_down_link(posting, base.len() as u32);
        let count = tids.len() as u16 | IS_POSTING;
        posting[4..6].copy_from_slice(&count.to_le_bytes());
        let info = tuple::info(posting) & !tuple::SIZE_MASK | tuple::ALT_TID | size as u16;
        posting[6..8].copy_from_slice(&info.to_le_bytes());
        self.set_line_pointer(offset, upper, size);
        self.put16(12, lower as u16);
        self.put16(14, upper as u16);
    }

    /// Replaces the last tuple, which is at `last`, by `high_key`, and makes that the page's high
    /// key.
    pub fn finish(&mut self, last: u16, high_key: &[u8]) {
        let (at, len) = self.line_pointer(last);
        debug_assert_eq!(at, self.upper());
        let end = at + len;
        let upper = end - high_key.len();
        // No bytes of the removed tuple may remain in the hole.
        self.bytes[at..end].fill(0);
        self.bytes[upper..end].copy_from_slice(high_key);
        self.set_line_pointer(HIGH_KEY, upper, high_key.len());
        let lower = self.lower() - LINE_POINTER;
        self.put32(lower, 0);
        self.put16(12, lower as u16);
        self.put16(14, upper as u16);
    }

    /// Removes the unused line pointer of the high key, for the rightmost page of a level.
    pub fn slide_left(&mut self) {
        let lower = self.lower();
        self.bytes.copy_within(HEADER + LINE_POINTER..lower, HEADER);
        self.put32(lower - LINE_POINTER, 0);
        self.put16(12, (lower - LINE_POINTER) as u16);
    }
}

/// A pivot tuple without attributes: minus infinity.
#[must_use]
pub fn minus_infinity() -> [u8; tuple::HEADER] {
    let mut pivot = [0; tuple::HEADER];
    tuple::set_size(&mut pivot, tuple::HEADER);
    set_attributes(&mut pivot, 0, false);
    pivot
}

/// Makes the tuple a pivot of `count` attributes, with a heap tid after them if `heap_tid`
/// (`BTreeTupleSetNAtts`).
pub fn set_attributes(pivot: &mut [u8], count: u16, heap_tid: bool) {
    let info = tuple::info(pivot) | tuple::ALT_TID;
    pivot[6..8].copy_from_slice(&info.to_le_bytes());
    let count = if heap_tid { count | PIVOT_HEAP_TID } else { count };
    pivot[4..6].copy_from_slice(&count.to_le_bytes());
}

/// Makes the pivot point to a block (`BTreeTupleSetDownLink`).
pub fn set_down_link(pivot: &mut [u8], block: u32) {
    let b = block.to_le_bytes();
    pivot[..4].copy_from_slice(&[b[2], b[3], b[0], b[1]]);
}

/// The start of a leaf tuple's posting list, and the number of its tids; `None` if it has none.
#[must_use]
pub fn posting(tuple: &[u8]) -> Option<(usize, usize)> {
    let offset = u16::from_le_bytes([tuple[4], tuple[5]]);
    if tuple::info(tuple) & tuple::ALT_TID == 0 || offset & IS_POSTING == 0 {
        return None;
    }
    let start = usize::from(u16::from_le_bytes([tuple[2], tuple[3]]));
    Some((start, usize::from(offset & OFFSET_MASK)))
}

/// The last of a leaf tuple's tids (`BTreeTupleGetMaxHeapTID`).
#[must_use]
pub fn last_tid(tuple: &[u8]) -> [u8; 6] {
    let at = posting(tuple).map_or(0, |(start, count)| start + 6 * (count - 1));
    let mut tid = [0; 6];
    tid.copy_from_slice(&tuple[at..at + 6]);
    tid
}
