//! Forms leaf tuples from rows in the order of the index, with posting lists and a check of
//! uniqueness (`_bt_load`).

use super::btree;
use super::btree_build::{Builder, Root};
use crate::index_sort::run::RunRow;
use crate::index_sort::shape::IndexShape;
use crate::index_sort::tuple::{self, Tid};
use crate::index_sort::BuildFailure;
use crate::memory::Fallible;

/// Largest tuple with a posting list, in bytes: a tenth of a page less a line pointer
/// (`_bt_load`).
const MAX_POSTING: usize = (btree::SIZE / 10) / 8 * 8 - 4;

/// Most tids of such a tuple with a base of `base` bytes. Sizes of tuples are multiples of eight.
fn most_tids(base: usize) -> usize {
    (MAX_POSTING / 8 * 8).saturating_sub(base) / 6
}

/// Forms the leaf level and the levels above it from rows that are added in order.
#[derive(Debug, Default)]
pub struct TreeLoader {
    builder: Builder,
    /// the prefix and the tuple of the row with which the next one is compared
    prefix: u128,
    base: Vec<u8>,
    /// true if a unique index has a base; without deduplication nothing else needs one
    has_base: bool,
    /// the base has no tuple: another row with its prefix and no tuple is equal
    whole: bool,
    /// the base's tid, in a unique index
    base_tid: Tid,
    /// tids of the rows that are equal to `base` and are not in the tree yet
    tids: Vec<[u8; 6]>,
    /// most tids in one posting list with this base
    most: usize,
    scratch: Vec<u8>,
    /// the tuple with the lowest tid of those that repeat a key
    duplicate: Vec<u8>,
    /// the tid of the first row with that key
    earlier: Tid,
    /// adjacent rows with equal keys, if these are reported: both tids
    pairs: Vec<[Tid; 2]>,
    rows: u64,
}

impl TreeLoader {
    /// Adds the next row.
    ///
    /// # Errors
    ///
    /// No memory. In a unique index, also [`BuildFailure::Duplicate`]: see
    /// [`TreeLoader::duplicate`].
    #[inline]
    pub fn add(&mut self, shape: &IndexShape, row: &RunRow) -> Result<(), BuildFailure> {
        self.rows += 1;
        if shape.unique {
            self.add_unique(shape, row)
        } else if shape.deduplicate {
            self.add_deduplicated(shape, row)
        } else {
            let tuple = with_tid(shape, row, &mut self.scratch)?;
            self.builder.add(shape, tuple)
        }
    }

    fn add_unique(&mut self, shape: &IndexShape, row: &RunRow) -> Result<(), BuildFailure> {
        let tuple = with_tid(shape, row, &mut self.scratch)?;
        self.builder.add(shape, tuple)?;
        if row.is_dead() {
            return Ok(());
        }
        // The base's tuple is kept only if the prefix does not hold its whole key.
        let mut equal = self.has_base && self.prefix == row.prefix;
        if equal && !(self.whole && row.tuple.is_empty()) {
            if self.whole {
                let base = RunRow { prefix: self.prefix, place: 0, tuple: &[] };
                base.decode(shape, &mut self.base)?;
            }
            equal = tuple::compare(shape, &self.base, tuple).0.is_eq();
        }
        equal &= shape.nulls_not_distinct || !tuple::key_has_null(shape, tuple);
        if equal && shape.reports_pairs {
            self.pairs.try_push([self.base_tid, row.tid()])?;
        } else if equal {
            let first = self.duplicate.is_empty() || row.tid() < tuple::tid_of(&self.duplicate);
            if first {
                self.duplicate.clear();
                self.duplicate.try_extend(tuple)?;
                // Rows with equal keys are added in the order of their tids.
                self.earlier = self.base_tid;
            }
            if !shape.first_in_table {
                return Err(BuildFailure::Duplicate);
            }
        }
        self.has_base = true;
        self.base_tid = row.tid();
        self.prefix = row.prefix;
        self.whole = row.tuple.is_empty();
        if !self.whole {
            self.base.clear();
            self.base.try_extend(tuple)?;
        }
        Ok(())
    }

    #[inline]
    fn add_deduplicated(&mut self, shape: &IndexShape, row: &RunRow) -> Result<(), BuildFailure> {
        if self.tids.is_empty() || self.tids.len() >= self.most || !self.is_base(shape, row)? {
            self.flush(shape)?;
            row.put(shape, &mut self.base)?;
            self.most = most_tids(self.base.len());
            self.tids.try_reserve(self.most.max(1))?;
            self.prefix = row.prefix;
            self.whole = row.tuple.is_empty();
        }
        self.tids.push_within(tuple::tid_bytes(row.tid()));
        Ok(())
    }

    /// Adds a row that has the same bytes as the one before, to an index that deduplicates.
    /// `false`: call [`TreeLoader::add`] instead.
    #[inline]
    pub fn add_same(&mut self, tid: Tid) -> bool {
        let room = self.tids.len() < self.most;
        if room {
            self.rows += 1;
            self.tids.push_within(tuple::tid_bytes(tid));
        }
        room
    }

    /// Whether the row's values have the same bytes as the base's (`_bt_keep_natts_fast`).
    /// Compressed and plain forms of a value count as the same.
    #[inline]
    fn is_base(&mut self, shape: &IndexShape, row: &RunRow) -> Result<bool, BuildFailure> {
        if self.prefix != row.prefix {
            return Ok(false);
        }
        if self.whole && row.tuple.is_empty() {
            return Ok(true);
        }
        let tuple = row.tuple(shape, &mut self.scratch)?;
        Ok(tuple[6..] == self.base[6..]
            || shape.mixed
                && shape.key().iter().all(|attribute| attribute.exact)
                && tuple::compare(shape, &self.base, tuple).0.is_eq())
    }

    /// Adds the rows that are equal to the base to the tree.
    fn flush(&mut self, shape: &IndexShape) -> Result<(), BuildFailure> {
        match self.tids.as_slice() {
            [] => return Ok(()),
            [tid] => {
                self.base[..6].copy_from_slice(tid);
                self.builder.add(shape, &self.base)?;
            }
            tids => self.builder.add_posting(shape, &self.base, tids)?,
        }
        self.tids.clear();
        Ok(())
    }

    /// Finishes the tree. No more rows may be added.
    ///
    /// # Errors
    ///
    /// No memory. [`BuildFailure::Duplicate`] if it was delayed until all rows were added.
    pub fn finish(&mut self, shape: &IndexShape) -> Result<Root, BuildFailure> {
        if !self.duplicate.is_empty() {
            return Err(BuildFailure::Duplicate);
        }
        self.flush(shape)?;
        self.builder.finish(shape)
    }

    /// The builder, which has the finished pages.
    pub fn builder(&mut self) -> &mut Builder {
        &mut self.builder
    }

    /// The tuple of a row that repeats a key, and the tid of the first row with that key.
    #[must_use]
    pub fn duplicate(&self) -> (&[u8], Tid) {
        (&self.duplicate, self.earlier)
    }

    /// The tids of each row that has the key of the row before, and of that row, since
    /// [`TreeLoader::forget_pairs`].
    #[must_use]
    pub fn pairs(&self) -> &[[Tid; 2]] {
        &self.pairs
    }

    /// Forgets the reported rows after the caller has read them.
    pub fn forget_pairs(&mut self) {
        self.pairs.clear();
    }

    /// The number of rows added so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// The row's index tuple, with its tid set.
#[inline]
fn with_tid<'a>(
    shape: &IndexShape,
    row: &RunRow<'a>,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], BuildFailure> {
    if !row.tuple.is_empty() {
        return Ok(row.tuple);
    }
    row.decode(shape, scratch)?;
    scratch[..6].copy_from_slice(&tuple::tid_bytes(row.tid()));
    Ok(scratch)
}
