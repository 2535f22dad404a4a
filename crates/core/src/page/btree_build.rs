//! Builds the levels of a B-tree from left to right, as `nbtsort.c` forms them.
//!
//! Tuples are added in order. A full page gets a high key and a downlink in its parent, and is then
//! handed out. Blocks are numbered in the order in which their pages are begun. The metapage is 0.

use super::btree::{self, Page, FIRST_KEY, HIGH_KEY};
use crate::index_sort::shape::{IndexShape, MAX_ATTRIBUTES};
use crate::index_sort::tuple;
use crate::index_sort::BuildFailure;
use crate::memory::{try_push_back, Fallible};
use std::collections::VecDeque;

/// Bytes to leave free on an inner page (`BTREE_NONLEAF_FILLFACTOR` 70).
const INNER_FREE: usize = btree::SIZE * 30 / 100;
/// Bytes that a heap tid takes in a pivot tuple.
const PIVOT_TID: usize = 8;

/// The unfinished page of a level.
#[derive(Debug)]
struct Level {
    page: Page,
    block: u32,
    /// the lower bound of the page: the left sibling's high key, or minus infinity
    low_key: Vec<u8>,
    /// offset of the last tuple; `HIGH_KEY` if there is none yet
    last: u16,
    /// bytes of the last tuple's posting list
    last_extra: usize,
}

/// A tree that is being built.
#[derive(Debug)]
pub struct Builder {
    levels: Vec<Level>,
    next_block: u32,
    finished: VecDeque<(u32, Page)>,
    spare: Vec<Page>,
    scratch: Vec<u8>,
}

/// The root of a finished tree: block and level; `None` for an index without rows.
pub type Root = Option<(u32, u32)>;

impl Default for Builder {
    fn default() -> Self {
        Self {
            levels: Vec::new(),
            next_block: 1,
            finished: VecDeque::new(),
            spare: Vec::new(),
            scratch: Vec::new(),
        }
    }
}

impl Builder {
    /// Adds a leaf tuple without a posting list.
    ///
    /// # Errors
    ///
    /// No memory.
    #[inline]
    pub fn add(&mut self, shape: &IndexShape, tuple: &[u8]) -> Result<(), BuildFailure> {
        self.add_at(shape, 0, tuple)
    }

    /// Adds the leaf tuple `base` with a posting list of `tids`.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn add_posting(
        &mut self,
        shape: &IndexShape,
        base: &[u8],
        tids: &[[u8; 6]],
    ) -> Result<(), BuildFailure> {
        let size = tuple::maxalign(base.len() + 6 * tids.len());
        let state = self.make_room(shape, 0, size)?;
        state.last_extra = size - base.len();
        state.page.add_posting(state.last, base, tids);
        Ok(())
    }

    /// The next finished page, with its block number.
    pub fn take_finished(&mut self) -> Option<(u32, Page)> {
        self.finished.pop_front()
    }

    /// Whether a page is finished.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Returns a page that was taken, for reuse.
    pub fn reuse(&mut self, page: Page) {
        if self.spare.len() < self.spare.capacity() {
            self.spare.push_within(page);
        }
    }

    fn new_page(&mut self, level: u32) -> Result<(Page, u32), BuildFailure> {
        let block = self.next_block;
        self.next_block += 1;
        self.spare.try_reserve(1)?;
        match self.spare.pop() {
            Some(mut page) => {
                page.clear(level);
                Ok((page, block))
            }
            None => Ok((Page::new(level)?, block)),
        }
    }

    fn new_level(&mut self) -> Result<(), BuildFailure> {
        let (page, block) = self.new_page(self.levels.len() as u32)?;
        let mut low_key = Vec::with_room(tuple::HEADER)?;
        low_key.extend_within_room(&btree::minus_infinity());
        let level = Level { page, block, low_key, last: HIGH_KEY, last_extra: 0 };
        Ok(self.levels.try_push(level)?)
    }

    #[inline]
    fn add_at(
        &mut self,
        shape: &IndexShape,
        level: usize,
        tuple: &[u8],
    ) -> Result<(), BuildFailure> {
        let state = self.make_room(shape, level, tuple.len())?;
        state.last_extra = 0;
        if level > 0 && state.last == FIRST_KEY {
            state.page.add(FIRST_KEY, &first_of_inner(tuple));
        } else {
            state.page.add(state.last, tuple);
        }
        Ok(())
    }

    /// The level, whose page has room for a tuple of `size` bytes at the offset `last`.
    #[inline]
    fn make_room(
        &mut self,
        shape: &IndexShape,
        level: usize,
        size: usize,
    ) -> Result<&mut Level, BuildFailure> {
        if level == self.levels.len() {
            self.new_level()?;
        }
        let state = &self.levels[level];
        let free = state.page.free();
        let (reserve, keep_free) = match level {
            0 => (PIVOT_TID, usize::from(shape.leaf_free)),
            _ => (0, INNER_FREE),
        };
        let over_soft = free + state.last_extra < keep_free && state.last > FIRST_KEY;
        if free < size + reserve || over_soft {
            self.finish_page(shape, level)?;
        }
        let state = &mut self.levels[level];
        state.last += 1;
        Ok(state)
    }

    /// Begins a new page with the last tuple of the current one. That tuple becomes the high key of
    /// the current page, truncated on a leaf. The current page is linked into its parent and handed
    /// out.
    fn finish_page(&mut self, shape: &IndexShape, level: usize) -> Result<(), BuildFailure> {
        let (mut page, block) = self.new_page(level as u32)?;
        let state = &mut self.levels[level];
        let last = state.page.tuple(state.last);
        self.scratch.clear();
        if level == 0 {
            page.add(FIRST_KEY, last);
            truncate(shape, state.page.tuple(state.last - 1), last, &mut self.scratch)?;
        } else {
            page.add(FIRST_KEY, &first_of_inner(last));
            self.scratch.try_extend(last)?;
        }
        state.page.finish(state.last, &self.scratch);
        state.page.set_next(block);
        page.set_previous(state.block);

        let done = std::mem::replace(&mut state.page, page);
        let done_block = std::mem::replace(&mut state.block, block);
        state.last = FIRST_KEY;
        std::mem::swap(&mut state.low_key, &mut self.scratch);
        let mut down_link = std::mem::take(&mut self.scratch);
        btree::set_down_link(&mut down_link, done_block);
        self.add_at(shape, level + 1, &down_link)?;
        self.scratch = down_link;
        Ok(try_push_back(&mut self.finished, (done_block, done))?)
    }

    /// Finishes the rightmost page of every level. No tuple may be added after that.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn finish(&mut self, shape: &IndexShape) -> Result<Root, BuildFailure> {
        let mut level = 0;
        let mut root = None;
        while level < self.levels.len() {
            if level + 1 == self.levels.len() {
                self.levels[level].page.set_root();
                root = Some((self.levels[level].block, level as u32));
            } else {
                let mut low_key = std::mem::take(&mut self.levels[level].low_key);
                btree::set_down_link(&mut low_key, self.levels[level].block);
                self.add_at(shape, level + 1, &low_key)?;
            }
            level += 1;
        }
        for mut state in self.levels.drain(..) {
            state.page.slide_left();
            try_push_back(&mut self.finished, (state.block, state.page))?;
        }
        Ok(root)
    }
}

/// The first tuple of an inner page, of which only the downlink is kept.
fn first_of_inner(tuple: &[u8]) -> [u8; tuple::HEADER] {
    let mut first = btree::minus_infinity();
    first[..4].copy_from_slice(&tuple[..4]);
    first
}

/// Appends to `out` the high key between two leaf tuples: the leading attributes of the right one
/// that distinguish them. If all are equal, it is the whole key and the left tuple's last tid
/// (`_bt_truncate`).
fn truncate(
    shape: &IndexShape,
    left: &[u8],
    right: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), BuildFailure> {
    let keys = shape.key().len();
    let (_, equal) = tuple::compare(shape, left, right);
    let count = (equal + 1).min(keys);
    out.try_reserve(right.len() + PIVOT_TID)?;
    if count < shape.attributes().len() {
        let mut fields = [None; MAX_ATTRIBUTES];
        for (to, field) in fields.iter_mut().zip(tuple::TupleFields::new(shape, right).take(count))
        {
            *to = field;
        }
        tuple::form(shape, count, |index| fields[index], out);
        out[..6].copy_from_slice(&right[..6]);
    } else {
        let end = btree::posting(right).map_or(right.len(), |(start, _)| start);
        out.extend_within_room(&right[..end]);
        tuple::set_size(out, end);
    }
    let heap_tid = equal == keys;
    if heap_tid {
        let at = out.len();
        out.resize_within(at + PIVOT_TID, 0);
        out[at + 2..].copy_from_slice(&btree::last_tid(left));
        let size = out.len();
        tuple::set_size(out, size);
    }
    btree::set_attributes(out, count as u16, heap_tid);
    Ok(())
}
