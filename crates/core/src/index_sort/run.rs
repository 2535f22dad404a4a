//! Collects rows in bounded memory, and sorts them into runs.

use super::grouped::Grouped;
use super::interrupt;
use super::key::{self, Standing};
use super::packed::{Packed, Unpacked};
use super::rows::RunRows;
use super::shape::{IndexShape, MAX_TUPLE};
use super::ties;
use super::tuple::{self, Field, Tid};
use super::BuildFailure;
use crate::memory::{reserve_up_to, Fallible};
use std::cmp::Ordering;

const STORED: u64 = 1;
const DEAD: u64 = 2;

/// A row in a run: the first bytes of its key, and its place.
///
/// `place` has two flags in its lowest bits. *Stored*: the row has an index tuple, because the
/// prefix does not hold its whole key. *Dead*: the row is dead. Above the flags, a stored row in
/// memory has the offset of its tuple in the arena. All other rows have their tid.
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

/// A row that is read from a run.
#[derive(Clone, Copy, Debug)]
pub struct RunRow<'a> {
    /// the first bytes of the key
    pub prefix: u128,
    /// flags and tid, like [`Entry::place`] of a spilled run
    pub place: u64,
    /// the index tuple; empty if the prefix holds the whole key
    pub tuple: &'a [u8],
}

impl RunRow<'_> {
    /// The row's tid.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.place >> 2
    }

    /// Whether the row is dead to all but older scans. It does not count for uniqueness.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.place & DEAD != 0
    }

    /// The row's index tuple. If there is none yet, it is formed in `scratch`. Its tid may be zero.
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

    /// Forms the index tuple of a row whose prefix holds the whole key. It replaces the content of
    /// `tuple`.
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

    /// Replaces the content of `tuple` by the index tuple. Its tid may be zero.
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

    /// Compares two rows in the order of the index: by key, then by tid.
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

/// The result of adding a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// it was added, and there is room for more
    Stored,
    /// it was added, and the collector must be emptied before the next one
    Full,
    /// it was not added: its index tuple is too large for a leaf page
    TooLarge,
}

/// The result of adding several rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAdded {
    /// all were added
    All,
    /// the build must be flushed before the next row
    Full,
    /// the next row has a compressed, out-of-line or long value, or is too large
    Unfit,
    /// the next row has a new value, but no more values can be ranked
    Crowded,
}

/// The rows of one run, in memory.
#[derive(Debug, Default)]
pub struct Collector {
    /// empty if they are packed; further packed words may have been merged since
    pub(super) entries: Vec<Entry>,
    /// index tuples of the rows whose whole key is not in the entry, with `t_tid` set
    pub(super) arena: Vec<u8>,
    /// bits in which the prefixes, and the places, differ
    pub(super) varying_prefix: u128,
    pub(super) varying_place: u64,
    pub(super) sorted: Sorted,
    pub(super) limit: usize,
}

/// The form of a sorted run.
#[derive(Debug, Default)]
pub(super) enum Sorted {
    /// the entries are in order
    #[default]
    Entries,
    /// sorted words, instead of the entries
    Packed(Packed),
    /// groups of entries
    Grouped(Grouped),
}

/// Bytes of a row in memory: its entry, and the word into which it may be packed.
const ROW: usize = ENTRY + 8;

impl Collector {
    /// A collector that takes about `limit` bytes, but at least one row.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a row.
    ///
    /// # Errors
    ///
    /// No memory. Nothing was added.
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
        // A tuple that may be too large is formed to check its size.
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

    /// Bytes of a row without its tuple. Rows are not packed if any row has a tuple.
    fn row_bytes(&self) -> usize {
        [ENTRY, ROW][usize::from(self.arena.is_empty())]
    }

    /// Reserves entries by doubling, up to the limit.
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
        let most = self.limit.saturating_sub(self.entries.len() * ENTRY);
        match tuple::short_ones(shape.attributes(), &field) {
            Some(size) => {
                reserve_up_to(&mut self.arena, tuple::maxalign(size), most)?;
                tuple::form_short_ones(count, size, field, &mut self.arena);
            }
            None => {
                reserve_up_to(&mut self.arena, tuple::size_bound(shape, &field), most)?;
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

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.sorted {
            Sorted::Packed(packed) => packed.words().len(),
            _ => self.entries.len(),
        }
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sorts the rows.
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
        // The order of entries is not that of stored rows.
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

    /// Replaces the values in the prefixes, which were encoded for `by_bytes`, by their numbers.
    /// The values are interned in `shape`. `false`: there is no room for them.
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
        // In a grouped run, entries of one value are mostly adjacent although they are not sorted.
        // A value may have several groups, so the changes do not count the values.
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

    /// Replaces numbers by ranks in the prefixes.
    fn rank(&mut self, shape: &IndexShape) {
        let translate = |prefix| key::translate(shape, prefix, Standing::Ranks);
        let Some(mut before) = self.entries.first().map(Entry::prefix) else { return };
        let mut prefix = translate(before);
        let first = prefix;
        self.varying_prefix = 0;
        for entry in &mut self.entries {
            // Equal values are often adjacent.
            if entry.prefix() != before {
                before = entry.prefix();
                prefix = translate(before);
                self.varying_prefix |= prefix ^ first;
            }
            *entry = Entry::new(prefix, entry.place);
        }
    }

    /// The rows in order, from index `from` on.
    #[must_use]
    pub fn rows(&self, from: usize) -> RunRows<'_> {
        RunRows::new(self, from)
    }

    /// Removes all rows but keeps the memory for the next run.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.arena.clear();
        self.varying_prefix = 0;
        self.varying_place = 0;
        self.sorted = Sorted::Entries;
    }

    /// Frees the memory.
    pub fn release(&mut self) {
        *self = Self::new(self.limit);
    }
}

/// The row of an entry. Its tuple, if it has one, is in the arena.
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
    // More values may be added before the row is read again, and change the ranks.
    let prefix = match shape.ranked() {
        0 => row.prefix,
        _ => key::translate(shape, row.prefix, Standing::Numbers),
    };
    out.extend_within_room(&Entry::new(prefix, row.place).to_bytes());
    out.extend_within_room(row.tuple);
    Ok(())
}

/// Reads the row at the start of `bytes`. Returns it and its size in bytes.
///
/// `None`: the row is incomplete. A row has at most [`ENTRY`] and [`MAX_TUPLE`] bytes.
///
/// # Errors
///
/// The bytes are not a row.
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

/// Replaces numbers by ranks in the row at the start of `bytes`, which must be complete.
#[inline]
pub fn rank_spilled(shape: &IndexShape, bytes: &mut [u8]) {
    if let Some(place) = bytes.first_chunk_mut::<ENTRY>() {
        let entry = Entry::from_bytes(place);
        let prefix = key::translate(shape, entry.prefix(), Standing::Ranks);
        *place = Entry::new(prefix, entry.place).to_bytes();
    }
}
