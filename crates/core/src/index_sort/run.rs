//! Collecting rows in bounded memory, and the runs that come of it.

use super::grouped::Grouped;
use super::interrupt;
use super::key::{self, Standing};
use super::packed::{Packed, Unpacked};
use super::rows::RunRows;
use super::shape::{IndexShape, MAX_TUPLE};
use super::ties;
use super::tuple::{self, Field, Tid};
use super::BuildFailure;
use crate::memory::Fallible;
use std::cmp::Ordering;

const STORED: u64 = 1;
const DEAD: u64 = 2;

/// A row in a run: the first bytes of its key, and where it is.
///
/// `place` has two flags in its lowest bits: the row's index tuple is *stored* (its key was not
/// whole in the prefix), the row is *dead*. Above them is, for a stored row in memory, the
/// tuple's place in the arena; else the row's tid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    pub(super) high: u64,
    pub(super) low: u64,
    /// flags and tid or arena offset
    pub place: u64,
}

/// Bytes of an entry in a spilled run.
pub const ENTRY: usize = 24;

impl Entry {
    /// An entry with this prefix and place.
    #[must_use]
    pub fn new(prefix: u128, place: u64) -> Self {
        Self { high: (prefix >> 64) as u64, low: prefix as u64, place }
    }

    /// The first bytes of the key.
    #[must_use]
    #[inline]
    pub fn prefix(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    pub(super) fn stored(self) -> Option<usize> {
        (self.place & STORED != 0).then_some((self.place >> 2) as usize)
    }

    fn to_bytes(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.high.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.low.to_le_bytes());
        bytes[16..].copy_from_slice(&self.place.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ENTRY]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self { high: word(0), low: word(8), place: word(16) }
    }
}

/// A row as it comes out of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunRow<'a> {
    /// the first bytes of the key
    pub prefix: u128,
    /// flags and tid, as [`Entry::place`] of a spilled run
    pub place: u64,
    /// the index tuple, empty where the prefix is whole
    pub tuple: &'a [u8],
}

impl RunRow<'_> {
    /// The row's address.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.place >> 2
    }

    /// The row is dead to all, and kept for scans that are older: no part in uniqueness.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.place & DEAD != 0
    }

    /// The row's index tuple, made in `scratch` if it is not there yet. Its tid may be zero.
    ///
    /// # Errors
    ///
    /// No memory for `scratch`.
    pub fn tuple<'a>(
        &'a self,
        shape: &IndexShape,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], BuildFailure> {
        if !self.tuple.is_empty() {
            return Ok(self.tuple);
        }
        self.decode(shape, scratch)?;
        Ok(scratch)
    }

    /// Makes the index tuple of a row whose prefix is whole, in place of what is in `tuple`.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn decode(&self, shape: &IndexShape, tuple: &mut Vec<u8>) -> Result<(), BuildFailure> {
        tuple.clear();
        tuple.try_reserve(if shape.ranked() > 0 { MAX_TUPLE } else { key::DECODED })?;
        key::decode(shape, self.prefix, tuple);
        Ok(())
    }

    /// Puts the index tuple in place of what is in `tuple`. Its tid may be zero.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn put(&self, shape: &IndexShape, tuple: &mut Vec<u8>) -> Result<(), BuildFailure> {
        if self.tuple.is_empty() {
            return self.decode(shape, tuple);
        }
        tuple.clear();
        Ok(tuple.try_extend(self.tuple)?)
    }

    /// Compares as the index orders rows: by key, then by tid.
    ///
    /// # Errors
    ///
    /// No memory.
    #[inline]
    pub fn compare(&self, other: &RunRow, shape: &IndexShape) -> Result<Ordering, BuildFailure> {
        if self.prefix != other.prefix {
            return Ok(self.prefix.cmp(&other.prefix));
        }
        if (self.place | other.place) & STORED == 0 {
            return Ok(self.place.cmp(&other.place));
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let order = tuple::compare(shape, self.tuple(shape, &mut a)?, other.tuple(shape, &mut b)?);
        Ok(order.0.then(self.place.cmp(&other.place)))
    }
}

/// What became of a row that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// it is in, and there is room for more
    Stored,
    /// it is in, and the collector must be emptied before the next one
    Full,
    /// it is not in: its index tuple is larger than a leaf page takes
    TooLarge,
}

/// What became of rows that were added together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAdded {
    /// all are in
    All,
    /// the build must be flushed before the next one
    Full,
    /// the next one has a value that is compressed, out of line or long, or is too large
    Unfit,
    /// the next one has a value more than can be ranked
    Crowded,
}

/// Rows of one run, in memory.
#[derive(Debug, Default)]
pub struct Collector {
    /// none where they are packed and others have been added to them
    pub(super) entries: Vec<Entry>,
    /// index tuples of the rows that are not whole in their entry, `t_tid` set
    pub(super) arena: Vec<u8>,
    /// bits in which prefixes, and places, differ
    pub(super) varying_prefix: u128,
    pub(super) varying_place: u64,
    pub(super) sorted: Sorted,
    pub(super) limit: usize,
}

/// Where the rows of a sorted run are.
#[derive(Debug, Default)]
pub(super) enum Sorted {
    /// the entries are in order
    #[default]
    Entries,
    /// words in order, in place of the entries
    Packed(Packed),
    /// runs of entries
    Grouped(Grouped),
}

/// Bytes that a row takes in memory: its entry, and the word it may be packed into.
const ROW: usize = ENTRY + 8;

impl Collector {
    /// A collector that takes about `limit` bytes, and one row at least.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a row.
    ///
    /// # Errors
    ///
    /// No memory; nothing was added.
    #[inline]
    pub fn add<'a>(
        &mut self,
        shape: &IndexShape,
        tid: Tid,
        dead: bool,
        field: impl Fn(usize) -> Option<Field<'a>>,
    ) -> Result<Added, BuildFailure> {
        let key = key::encode(shape, &field);
        let dead = if dead { DEAD } else { 0 };
        // A tuple that may be too large is formed to find out.
        let small = shape.ranked() == 0 || tuple::size_bound(shape, &field) <= MAX_TUPLE;
        let place = if key.whole && small {
            tid << 2 | dead
        } else {
            match self.store(shape, tid, &field)? {
                Some(at) => (at as u64) << 2 | dead | STORED,
                None => return Ok(Added::TooLarge),
            }
        };
        if let Some(first) = self.entries.first() {
            self.varying_prefix |= first.prefix() ^ key.prefix;
            self.varying_place |= first.place ^ place;
        }
        if self.entries.len() == self.entries.capacity() {
            self.grow()?;
        }
        self.entries.push_within(Entry::new(key.prefix, place));
        let used = self.entries.len() * self.row_bytes() + self.arena.len();
        Ok(if used >= self.limit { Added::Full } else { Added::Stored })
    }

    /// Bytes of a row without its tuple: rows that have tuples are never packed.
    fn row_bytes(&self) -> usize {
        [ENTRY, ROW][usize::from(self.arena.is_empty())]
    }

    /// Reserves entries, by doubling, but not beyond the limit.
    #[cold]
    fn grow(&mut self) -> Result<(), BuildFailure> {
        let room = self.limit.saturating_sub(self.arena.len());
        let most = (room / self.row_bytes()).max(self.entries.len());
        let more = (most - self.entries.len()).min(self.entries.len().max(1024)).max(1);
        Ok(self.entries.try_reserve_exact(more)?)
    }

    fn store<'a>(
        &mut self,
        shape: &IndexShape,
        tid: Tid,
        field: impl Fn(usize) -> Option<Field<'a>>,
    ) -> Result<Option<usize>, BuildFailure> {
        let at = self.arena.len();
        let count = shape.attributes().len();
        match tuple::short_ones(shape.attributes(), &field) {
            Some(size) => {
                self.arena.try_reserve(tuple::maxalign(size))?;
                tuple::form_short_ones(count, size, field, &mut self.arena);
            }
            None => {
                self.arena.try_reserve(tuple::size_bound(shape, &field))?;
                tuple::form(shape, count, field, &mut self.arena);
            }
        }
        if self.arena.len() - at > MAX_TUPLE {
            self.arena.truncate(at);
            return Ok(None);
        }
        self.arena[at..at + 6].copy_from_slice(&tuple::tid_bytes(tid));
        Ok(Some(at))
    }

    /// How many rows are in.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.sorted {
            Sorted::Packed(packed) => packed.words().len(),
            _ => self.entries.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts the rows in order.
    ///
    /// # Errors
    ///
    /// No memory, or interrupted.
    pub fn sort(&mut self, shape: &IndexShape) -> Result<(), BuildFailure> {
        if let Sorted::Packed(_) = self.sorted {
            return Ok(());
        }
        if shape.ranked() > 0 {
            self.rank(shape);
        }
        // Stored rows are not in order when their entries are.
        if self.arena.is_empty() {
            let ascend = |pair: &[Entry]| {
                (pair[0].prefix(), pair[0].place) <= (pair[1].prefix(), pair[1].place)
            };
            if self.entries.windows(2).all(ascend) {
                return Ok(());
            }
            if let Some(grouped) = Grouped::sorted(&self.entries)? {
                self.sorted = Sorted::Grouped(grouped);
                return Ok(());
            }
            let (prefix, place) = (self.varying_prefix, self.varying_place);
            if let Some(packed) = Packed::sorted(&self.entries, prefix, place, shape.interrupts)? {
                self.sorted = Sorted::Packed(packed);
                return Ok(());
            }
        }
        let (entries, arena) = (&mut self.entries, &self.arena);
        interrupt::unless_left(|| ties::sort(entries, arena, self.varying_prefix, shape))
    }

    /// Puts numbers, of values that are interned in `shape`, in the place of the values that
    /// `by_bytes` has put into the entries. `false`: there is no room for them.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn number(
        &mut self,
        by_bytes: &IndexShape,
        shape: &mut IndexShape,
    ) -> Result<bool, BuildFailure> {
        self.sort(by_bytes)?;
        let sorted = std::mem::take(&mut self.sorted);
        // Where groups are sorted instead, entries of one value are neighbours as they are.
        let grouped = matches!(sorted, Sorted::Grouped(_));
        if let Sorted::Packed(packed) = sorted {
            self.entries.clear();
            self.entries.try_reserve_exact(packed.words().len())?;
            for entry in Unpacked::new(&packed, 0) {
                self.entries.push_within(entry);
            }
        }
        let changes = self.entries.windows(2).filter(|two| two[0].prefix() != two[1].prefix());
        if let (Some(dictionary), false) = (shape.dictionary_mut(0), grouped) {
            dictionary.expect(changes.count() + 1)?;
        }
        let mut last = None;
        for entry in &mut self.entries {
            let value = entry.prefix();
            let prefix = match last {
                Some((of, prefix)) if of == value => prefix,
                _ => {
                    shape.interrupts.check()?;
                    let mut bytes = [0; 16];
                    let mut field = key::held(value, &mut bytes).map(Field::Bytes);
                    if let Some(held) = field {
                        field = shape.intern(0, held)?;
                        if field.is_none() {
                            return Ok(false);
                        }
                    }
                    key::encode(shape, |_| field).prefix
                }
            };
            last = Some((value, prefix));
            *entry = Entry::new(prefix, entry.place);
        }
        Ok(true)
    }

    /// Puts ranks in the place of numbers.
    fn rank(&mut self, shape: &IndexShape) {
        let translate = |prefix| key::translate(shape, prefix, Standing::Ranks);
        let Some(mut before) = self.entries.first().map(Entry::prefix) else { return };
        let mut prefix = translate(before);
        let first = prefix;
        self.varying_prefix = 0;
        for entry in &mut self.entries {
            // Values come in groups, more often than not.
            if entry.prefix() != before {
                before = entry.prefix();
                prefix = translate(before);
                self.varying_prefix |= prefix ^ first;
            }
            *entry = Entry::new(prefix, entry.place);
        }
    }

    /// The rows in order, from the one with this index on.
    #[must_use]
    pub fn rows(&self, from: usize) -> RunRows<'_> {
        RunRows::new(self, from)
    }

    /// Empties the collector and keeps its memory for the next run.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.arena.clear();
        self.varying_prefix = 0;
        self.varying_place = 0;
        self.sorted = Sorted::Entries;
    }

    /// Gives the memory back.
    pub fn release(&mut self) {
        *self = Self::new(self.limit);
    }
}

/// The row of an entry, whose tuple, if it has one, is in the arena.
#[inline]
pub(super) fn row<'a>(arena: &'a [u8], entry: &Entry) -> RunRow<'a> {
    match entry.stored() {
        None => RunRow { prefix: entry.prefix(), place: entry.place, tuple: &[] },
        Some(at) => {
            let tuple = &arena[at..];
            let tuple = &tuple[..tuple::size(tuple)];
            let place = tuple::tid_of(tuple) << 2 | entry.place & (DEAD | STORED);
            RunRow { prefix: entry.prefix(), place, tuple }
        }
    }
}

/// Appends a row to a spilled run: the entry, then the tuple if it is stored.
///
/// # Errors
///
/// No memory.
pub fn spill(shape: &IndexShape, row: &RunRow, out: &mut Vec<u8>) -> Result<(), BuildFailure> {
    out.try_reserve(ENTRY + row.tuple.len())?;
    // More values may come before the row is read again, and change the ranks.
    let prefix = match shape.ranked() {
        0 => row.prefix,
        _ => key::translate(shape, row.prefix, Standing::Numbers),
    };
    out.extend_within_room(&Entry::new(prefix, row.place).to_bytes());
    out.extend_within_room(row.tuple);
    Ok(())
}

/// Reads the row at the start of `bytes` and says how many bytes it takes.
///
/// `None`: not all of it is there. Most bytes of a row are [`ENTRY`] and
/// [`MAX_TUPLE`].
///
/// # Errors
///
/// The bytes are no row.
#[inline]
pub fn unspill(bytes: &[u8]) -> Result<Option<(RunRow<'_>, usize)>, BuildFailure> {
    let Some((entry, rest)) = bytes.split_first_chunk::<ENTRY>() else { return Ok(None) };
    let entry = Entry::from_bytes(entry);
    let mut size = 0;
    if entry.stored().is_some() {
        if rest.len() < tuple::HEADER {
            return Ok(None);
        }
        size = tuple::size(rest);
        if !(tuple::HEADER..=MAX_TUPLE).contains(&size) {
            return Err(BuildFailure::Corrupt);
        }
    }
    let Some(tuple) = rest.get(..size) else { return Ok(None) };
    Ok(Some((RunRow { prefix: entry.prefix(), place: entry.place, tuple }, ENTRY + size)))
}

/// Puts ranks in the place of numbers in the row at the start of `bytes`, which is all there.
#[inline]
pub fn rank_spilled(shape: &IndexShape, bytes: &mut [u8]) {
    if let Some(place) = bytes.first_chunk_mut::<ENTRY>() {
        let entry = Entry::from_bytes(place);
        let prefix = key::translate(shape, entry.prefix(), Standing::Ranks);
        *place = Entry::new(prefix, entry.place).to_bytes();
    }
}
