//! A page of a heap, as `bufpage.h` and `heapam.h` lay it out (version 4; little-endian).
//!
//! ```text
//! 0      24                     lower        upper        8192
//! header | line pointers (4 B) →|   hole     |← tuples    |
//! ```

use super::tuple;

/// Bytes of a page (`BLCKSZ`).
pub const SIZE: usize = 8192;
/// `SizeOfPageHeaderData`
pub const HEADER: usize = 24;
/// `MaxHeapTuplesPerPage`
pub const MAX_TUPLES: usize =
    (SIZE - HEADER) / (tuple::align(tuple::HEADER, tuple::MAXALIGN) + LINE_POINTER);
const LINE_POINTER: usize = 4;
const LAYOUT_VERSION: u16 = 4;
const LP_NORMAL: u32 = 1;

const _: () = assert!(MAX_TUPLES == 291);

/// The start and the end of the free space of the page that is being filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    lower: usize,
    upper: usize,
}

impl Hole {
    /// Initializes the 8192 bytes of `page` as an empty page (`PageInit`), and returns its hole.
    pub(crate) fn open(page: &mut [u8]) -> Hole {
        page.fill(0);
        let hole = Hole { lower: HEADER, upper: SIZE };
        hole.note(page);
        page[16..18].copy_from_slice(&(SIZE as u16).to_le_bytes());
        page[18..20].copy_from_slice(&(SIZE as u16 | LAYOUT_VERSION).to_le_bytes());
        hole
    }

    /// Writes `pd_lower` and `pd_upper`.
    fn note(self, page: &mut [u8]) {
        page[12..14].copy_from_slice(&(self.lower as u16).to_le_bytes());
        page[14..16].copy_from_slice(&(self.upper as u16).to_le_bytes());
    }

    /// Whether `heap_multi_insert` would put another tuple of `len` bytes on the page and leave
    /// `reserve` bytes free (`PageGetHeapFreeSpace`).
    #[inline]
    pub(crate) fn takes(self, len: usize, reserve: usize) -> bool {
        self.lower + LINE_POINTER + tuple::align(len, tuple::MAXALIGN) + reserve <= self.upper
            && self.tuples() < MAX_TUPLES
    }

    /// The number of tuples on the page.
    pub(crate) fn tuples(self) -> usize {
        (self.lower - HEADER) / LINE_POINTER
    }

    /// Adds a line pointer and allocates room for the tuple, which must fit (`PageAddItem`).
    /// Returns its position in the page.
    #[inline]
    pub(crate) fn add(&mut self, page: &mut [u8], len: usize) -> usize {
        self.upper -= tuple::align(len, tuple::MAXALIGN);
        let word = self.upper as u32 | LP_NORMAL << 15 | (len as u32) << 17;
        page[self.lower..self.lower + LINE_POINTER].copy_from_slice(&word.to_le_bytes());
        self.lower += LINE_POINTER;
        self.note(page);
        self.upper
    }
}
