//! Moves formed tuples into pages, which are filled like those of `heap_multi_insert`.

use super::{Formed, HeapSink};
use crate::page::heap::{Hole, SIZE};
use crate::page::tuple::{align, MAXALIGN};

/// The pages at the start of a sink's memory.
///
/// A row is formed after the page that is being filled, with room for one more page between them.
/// It is then copied into its page. A row may be unfit for a page: it is too long, or the server
/// must read one of its values. Such a row ends the packing, because the table must keep the order
/// of the data. It and all later rows stay where they were formed.
#[derive(Debug)]
pub struct HeapPages {
    longest: usize,
    reserve: usize,
    /// number of pages before the one that is being filled
    whole: usize,
    /// number of rows in all pages
    rows: usize,
    hole: Option<Hole>,
    ended: bool,
}

impl HeapPages {
    /// Pages for tuples of up to `longest` bytes (0: no pages). Each keeps `reserve` bytes free for
    /// updates (`RelationGetTargetPageFreeSpace`).
    pub fn new(longest: usize, reserve: usize) -> HeapPages {
        let ended = longest == 0;
        HeapPages { longest, reserve, whole: 0, rows: 0, hole: None, ended }
    }

    /// The position at which to form the first row: the sink's `at`.
    pub fn start(&self) -> usize {
        if self.ended {
            0
        } else {
            SIZE
        }
    }

    /// The number of full pages.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// The number of pages, including the one that is being filled.
    pub fn begun(&self) -> usize {
        self.whole + usize::from(self.hole.is_some())
    }

    /// The number of rows in full pages.
    pub fn rows(&self) -> usize {
        self.rows - self.hole.map_or(0, Hole::tuples)
    }

    /// Whether all rows so far are in pages.
    pub fn all(&self) -> bool {
        !self.ended
    }
}

impl HeapSink<'_> {
    /// Moves the last finished tuple into a page. Returns the tuple with its new position; `None`
    /// if it did not fit into the sink's memory.
    #[inline(always)]
    pub fn pack(&mut self, pages: &mut HeapPages) -> Option<&Formed> {
        let Formed { offset: from, len, asks, .. } = *self.formed.as_ref()?;
        if pages.ended || asks > 0 || len > pages.longest {
            pages.ended = true;
            return self.formed.as_ref();
        }
        let mut hole = match pages.hole {
            Some(hole) if hole.takes(len, pages.reserve) => hole,
            open => {
                pages.whole += usize::from(open.is_some());
                let page = pages.whole * SIZE;
                debug_assert!(page + SIZE <= from);
                Hole::open(&mut self.out[page..page + SIZE])
            }
        };
        let page = pages.whole * SIZE;
        let to = page + hole.add(&mut self.out[page..page + SIZE], len);
        self.out.copy_within(from..from + align(len, MAXALIGN), to);
        // The next row must leave room for one more page.
        self.start = page + 2 * SIZE;
        pages.hole = Some(hole);
        pages.rows += 1;
        self.place(to)
    }

    /// Records the new position of the last finished tuple.
    #[inline(always)]
    fn place(&mut self, to: usize) -> Option<&Formed> {
        let formed = self.formed.as_mut()?;
        formed.offset = to;
        Some(formed)
    }
}
