//! Rows in the order of the index, to leaf tuples: posting lists, uniqueness (`_bt_load`).

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

/// How many tids such a tuple takes whose base is of so many bytes; tuples are multiples of eight.
fn most_tids(base: usize) -> usize {
    (MAX_POSTING / 8 * 8).saturating_sub(base) / 6
}

/// Forms the leaf level, and the levels above it, of rows that come in order.
#[derive(Debug, Default)]
pub struct TreeLoader {
    builder: Builder,
    /// the first bytes and the tuple of the row that the next one is compared with
    prefix: u128,
    base: Vec<u8>,
    /// a unique index has a base; without deduplication nothing else needs one
    has_base: bool,
    /// the base is made of its prefix: another row with the prefix and no tuple is equal
    whole: bool,
    /// the base's address, in a unique index
    base_tid: Tid,
    /// tids of the rows that are equal to `base` and not in the tree yet
    tids: Vec<[u8; 6]>,
    /// how many go into one posting list with the base
    most: usize,
    scratch: Vec<u8>,
    /// the tuple with the lowest tid that has a key again
    duplicate: Vec<u8>,
    /// the address of the first row with that key
    earlier: Tid,
    /// neighbours with equal keys, where these are reported: both addresses
    twins: Vec<[Tid; 2]>,
    rows: u64,
}

impl TreeLoader {
    /// Adds the next row.
    ///
    /// # Errors
    ///
    /// No memory; in a unique index, [`BuildFailure::Duplicate`]: see [`TreeLoader::duplicate`].
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
        // The base's tuple is kept only where its prefix does not say it all.
        let mut equal = self.has_base && self.prefix == row.prefix;
        if equal && !(self.whole && row.tuple.is_empty()) {
            if self.whole {
                let base = RunRow { prefix: self.prefix, place: 0, tuple: &[] };
                base.decode(shape, &mut self.base)?;
            }
            equal = tuple::compare(shape, &self.base, tuple).0.is_eq();
        }
        equal &= shape.nulls_not_distinct || !tuple::key_has_null(shape, tuple);
        if equal && shape.tells_twins {
            self.twins.try_push([self.base_tid, row.tid()])?;
        } else if equal {
            let first = self.duplicate.is_empty() || row.tid() < tuple::tid_of(&self.duplicate);
            if first {
                self.duplicate.clear();
                self.duplicate.try_extend(tuple)?;
                // Rows with equal keys come in the order of their addresses.
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

    /// Adds a row that is equal to the one before, bit for bit, to an index that deduplicates.
    /// `false`: it is to be added by [`TreeLoader::add`].
    #[inline]
    pub fn add_same(&mut self, tid: Tid) -> bool {
        let room = self.tids.len() < self.most;
        if room {
            self.rows += 1;
            self.tids.push_within(tuple::tid_bytes(tid));
        }
        room
    }

    /// Whether the row's values are the base's, bit for bit (`_bt_keep_natts_fast`).
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

    /// Puts the rows that are equal to the base into the tree.
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

    /// No more rows: finishes the tree.
    ///
    /// # Errors
    ///
    /// No memory; [`BuildFailure::Duplicate`] where that was to wait for all rows.
    pub fn finish(&mut self, shape: &IndexShape) -> Result<Root, BuildFailure> {
        if !self.duplicate.is_empty() {
            return Err(BuildFailure::Duplicate);
        }
        self.flush(shape)?;
        self.builder.finish(shape)
    }

    /// The pages that are done.
    pub fn builder(&mut self) -> &mut Builder {
        &mut self.builder
    }

    /// The tuple of a row that has the key of another one, and the address of the first such row.
    #[must_use]
    pub fn duplicate(&self) -> (&[u8], Tid) {
        (&self.duplicate, self.earlier)
    }

    /// Rows with the key of the row before, and that row, both by their addresses, since
    /// [`TreeLoader::forget_twins`].
    #[must_use]
    pub fn twins(&self) -> &[[Tid; 2]] {
        &self.twins
    }

    /// The twins have been taken.
    pub fn forget_twins(&mut self) {
        self.twins.clear();
    }

    /// Rows added so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// The row's index tuple, its tid set.
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
