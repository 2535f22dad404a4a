//! Formed tuples into pages, filled as `heap_multi_insert` fills them.

use super::{Formed, HeapSink};
use crate::page::heap::{Hole, SIZE};
use crate::page::tuple::{align, MAXALIGN};

/// The pages at the front of a sink's memory.
///
/// A row is formed behind the page that is being filled, with room for one more
/// page in between, and then copied into its page. A row that no page takes (it is
/// too long, or the server has to read a value) ends the packing, so that the table
/// keeps the order of the data: it and all rows after it stay where they were formed.
#[derive(Debug)]
pub struct HeapPages {
    longest: usize,
    reserve: usize,
    /// pages before the one that is being filled
    whole: usize,
    /// rows in all pages
    rows: usize,
    hole: Option<Hole>,
    ended: bool,
}

impl HeapPages {
    /// Pages for tuples of up to `longest` bytes (0: no pages), each with
    /// `reserve` bytes left free for updates (`RelationGetTargetPageFreeSpace`).
    pub fn new(longest: usize, reserve: usize) -> HeapPages {
        let ended = longest == 0;
        HeapPages { longest, reserve, whole: 0, rows: 0, hole: None, ended }
    }

    /// Where the first row is to be formed: the sink's `at`.
    pub fn start(&self) -> usize {
        if self.ended {
            0
        } else {
            SIZE
        }
    }

    /// How many pages no further row would fit into.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// How many pages there are, the one that is being filled included.
    pub fn begun(&self) -> usize {
        self.whole + usize::from(self.hole.is_some())
    }

    /// How many rows the whole pages hold.
    pub fn rows(&self) -> usize {
        self.rows - self.hole.map_or(0, Hole::tuples)
    }

    /// Whether every row so far has gone into a page.
    pub fn all(&self) -> bool {
        !self.ended
    }
}

impl HeapSink<'_> {
    /// Moves the tuple that was ended last into a page; its new place, `None` where it did not
    /// fit into the sink's memory.
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
        // The next row leaves room for a further page.
        self.start = page + 2 * SIZE;
        pages.hole = Some(hole);
        pages.rows += 1;
        self.place(to)
    }

    /// Notes where the tuple that was ended last lies now.
    #[inline(always)]
    fn place(&mut self, to: usize) -> Option<&Formed> {
        let formed = self.formed.as_mut()?;
        formed.offset = to;
        Some(formed)
    }
}
