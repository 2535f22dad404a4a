//! Packs the entries of one run into single words.
//!
//! Most keys differ in few of their bits, and so do tids. If the entries of a run differ in at most
//! 64 bits of prefix and place together, each entry is packed into one word. The word has the
//! differing bits, most significant first, which keeps the order. Words are sorted much faster than
//! entries. Entries with equal keys are then also in the order of their places.

use super::bits::{self, BitPart, Bits, Pass};
use super::interrupt::Interrupts;
use super::rows::Taker;
use super::run::Entry;
use super::words::{self, Digit, BUCKETS, SMALL};
use super::BuildFailure;
use crate::memory::{Fallible, OutOfMemory};
use std::ops::Range;

/// The positions of an entry's bits in the packed word.
#[derive(Debug)]
struct Layout {
    high: BitPart,
    low: BitPart,
    place: BitPart,
    /// the lowest bit that does not belong to the place
    above_place: u32,
}

impl Layout {
    fn new(sample: Entry, varying_prefix: u128, varying_place: u64) -> Result<Self, OutOfMemory> {
        let (high, low) = ((varying_prefix >> 64) as u64, varying_prefix as u64);
        let above_place = varying_place.count_ones();
        Ok(Self {
            high: BitPart::new(high, above_place + low.count_ones(), sample.high)?,
            low: BitPart::new(low, above_place, sample.low)?,
            place: BitPart::new(varying_place, 0, sample.place)?,
            above_place,
        })
    }

    /// The bits that words of the same prefix have in common.
    #[inline(always)]
    fn key(&self, word: u64) -> u64 {
        word.checked_shr(self.above_place).unwrap_or(0)
    }

    /// # Safety
    ///
    /// The processor has the features that `B` needs.
    #[inline(always)]
    unsafe fn pack<B: Bits>(&self, entry: &Entry) -> u64 {
        // SAFETY: the caller guarantees what `B` needs.
        unsafe {
            B::gather(&self.high, entry.high)
                | B::gather(&self.low, entry.low)
                | B::gather(&self.place, entry.place)
        }
    }

    /// # Safety
    ///
    /// The processor has the features that `B` needs.
    #[inline(always)]
    unsafe fn unpack<B: Bits>(&self, word: u64) -> Entry {
        // SAFETY: the caller guarantees what `B` needs.
        unsafe {
            Entry {
                high: B::scatter(&self.high, word),
                low: B::scatter(&self.low, word),
                place: B::scatter(&self.place, word),
            }
        }
    }
}

/// Counts the words of each bucket. Returns whether the words are in order.
struct Count<'a> {
    layout: &'a Layout,
    entries: &'a [Entry],
    digit: Digit,
    counts: &'a mut [usize; BUCKETS],
}

impl Pass for Count<'_> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run<B: Bits>(self) -> bool {
        let mut before = 0;
        let mut ascend = true;
        for entry in self.entries {
            // SAFETY: the caller guarantees what `B` needs.
            let word = unsafe { self.layout.pack::<B>(entry) };
            ascend &= before <= word;
            before = word;
            self.counts[self.digit.of(word) % BUCKETS] += 1;
        }
        ascend
    }
}

/// Puts the words into their buckets. `next` has the next position in each bucket.
struct Distribute<'a> {
    layout: &'a Layout,
    entries: &'a [Entry],
    digit: Digit,
    next: &'a mut [usize; BUCKETS],
    words: &'a mut [u64],
}

impl Pass for Distribute<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<B: Bits>(self) {
        for entry in self.entries {
            // SAFETY: the caller guarantees what `B` needs.
            let word = unsafe { self.layout.pack::<B>(entry) };
            let next = &mut self.next[self.digit.of(word) % BUCKETS];
            self.words[*next] = word;
            *next += 1;
        }
    }
}

/// Unpacks words.
struct Unpack<'a> {
    layout: &'a Layout,
    words: &'a [u64],
    entries: &'a mut [Entry],
}

impl Pass for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<B: Bits>(self) {
        for (word, entry) in self.words.iter().zip(self.entries) {
            // SAFETY: the caller guarantees what `B` needs.
            *entry = unsafe { self.layout.unpack::<B>(*word) };
        }
    }
}

/// Passes the rows of packed words to a [`Taker`].
struct Give<'a, T> {
    layout: &'a Layout,
    words: &'a [u64],
    to: &'a mut T,
}

impl<T: Taker> Pass for Give<'_, T> {
    type Output = Result<(), BuildFailure>;

    #[inline(always)]
    unsafe fn run<B: Bits>(self) -> Result<(), BuildFailure> {
        let mut before = None;
        for &word in self.words {
            let key = self.layout.key(word);
            // SAFETY: the caller guarantees what `B` needs.
            let place = unsafe { B::scatter(&self.layout.place, word) };
            if before == Some(key) && self.to.take_same(place) {
                continue;
            }
            before = Some(key);
            // SAFETY: the caller guarantees what `B` needs.
            self.to.take(&unsafe { self.layout.unpack::<B>(word) })?;
        }
        Ok(())
    }
}

/// A sorted run of packed entries.
#[derive(Debug)]
pub struct Packed {
    words: Vec<u64>,
    layout: Layout,
}

impl Packed {
    /// Packs and sorts `entries`. Their prefixes and places differ only in the given bits.
    ///
    /// `None`: these are more than 64 bits, or there is no entry.
    ///
    /// # Errors
    ///
    /// No memory, or interrupted.
    pub fn sorted(
        entries: &[Entry],
        varying_prefix: u128,
        varying_place: u64,
        interrupts: Interrupts,
    ) -> Result<Option<Self>, BuildFailure> {
        let bits = varying_prefix.count_ones() + varying_place.count_ones();
        let Some(sample) = entries.first().filter(|_| bits <= 64) else { return Ok(None) };
        let layout = Layout::new(*sample, varying_prefix, varying_place)?;
        let mut words = Vec::with_room(entries.len())?;
        words.resize_within(entries.len(), 0);

        let small = entries.len() <= SMALL || bits == 0;
        let mut digit = if small { Digit::NONE } else { Digit::highest(bits, entries.len()) };
        let mut next = [0; BUCKETS];
        if !small {
            let counts = &mut next;
            if bits::run(Count { layout: &layout, entries, digit, counts }) {
                digit = Digit::NONE;
            }
            words::begin(&mut next[..digit.buckets]);
        }
        let places = &mut next;
        bits::run(Distribute { layout: &layout, entries, digit, next: places, words: &mut words });
        if small {
            words.sort_unstable();
        } else if digit.buckets > 1 {
            words::sort_buckets(&mut words, &next[..digit.buckets], digit.shift, interrupts)?;
        }
        Ok(Some(Self { words, layout }))
    }

    /// The words in their order.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Passes some of the rows to `to`, in their order.
    ///
    /// # Errors
    ///
    /// A row could not be taken.
    pub fn give(&self, rows: Range<usize>, to: &mut impl Taker) -> Result<(), BuildFailure> {
        let words = self.words.get(rows).unwrap_or_default();
        bits::run(Give { layout: &self.layout, words, to })
    }

    /// Merges these words with `others`, which must be sorted and have the same layout.
    ///
    /// # Errors
    ///
    /// No memory. Nothing has changed.
    pub fn merge(&mut self, others: &[u64]) -> Result<(), BuildFailure> {
        let own = &self.words;
        let mut merged = Vec::with_room(own.len() + others.len())?;
        merged.resize_within(own.len() + others.len(), 0);
        let (low, high) = merged.split_at_mut((own.len() + others.len()) / 2);
        let mut high = high.iter_mut().rev();
        let (mut left, mut right) = (0, 0);
        let (mut left_end, mut right_end) = (own.len(), others.len());
        // Which word comes first is nearly random, so there is no branch that could be
        // mispredicted. Each choice depends on the one before it, so two are made at a time, one
        // from each end. The defaults at the ends cannot come before a different word.
        let mut greater = |to: &mut u64| {
            let one = own.get(left_end.wrapping_sub(1)).copied().unwrap_or(0);
            let other = others.get(right_end.wrapping_sub(1)).copied().unwrap_or(0);
            *to = one.max(other);
            left_end = left_end.wrapping_sub(usize::from(one >= other));
            right_end = right_end.wrapping_sub(usize::from(one < other));
        };
        for (to, last) in low.iter_mut().zip(&mut high) {
            let one = own.get(left).copied().unwrap_or(u64::MAX);
            let other = others.get(right).copied().unwrap_or(u64::MAX);
            *to = one.min(other);
            left += usize::from(one <= other);
            right += usize::from(one > other);
            greater(last);
        }
        // An odd number of words leaves one in the middle.
        high.for_each(greater);
        self.words = merged;
        Ok(())
    }
}

/// Number of words that are unpacked at once.
const AHEAD: usize = 64;

/// Unpacks the entries of packed words, in their order.
#[derive(Debug)]
pub struct Unpacked<'a> {
    layout: &'a Layout,
    /// words that are not yet in `entries`
    words: &'a [u64],
    /// unpacked entries, of which those from `next` on come next
    entries: [Entry; AHEAD],
    next: usize,
}

impl<'a> Unpacked<'a> {
    /// The entries from index `from` on.
    #[must_use]
    pub fn new(packed: &'a Packed, from: usize) -> Self {
        let words = packed.words.get(from..).unwrap_or_default();
        Self { layout: &packed.layout, words, entries: [Entry::default(); AHEAD], next: AHEAD }
    }

    /// Unpacks the next words to the end of `entries`.
    fn fill(&mut self) {
        let (words, rest) = self.words.split_at(AHEAD.min(self.words.len()));
        self.words = rest;
        self.next = AHEAD - words.len();
        let entries = &mut self.entries[self.next..];
        bits::run(Unpack { layout: self.layout, words, entries });
    }
}

impl Iterator for Unpacked<'_> {
    type Item = Entry;

    #[inline]
    fn next(&mut self) -> Option<Entry> {
        if self.next == AHEAD {
            self.fill();
        }
        let entry = self.entries.get(self.next)?;
        self.next += 1;
        Some(*entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    fn check(entries: &[Entry]) -> bool {
        let first = entries[0];
        let (prefix, place) = entries.iter().fold((0, 0), |(prefix, place), entry| {
            (prefix | entry.prefix() ^ first.prefix(), place | entry.place ^ first.place)
        });
        let Some(packed) = Packed::sorted(entries, prefix, place, Interrupts::default()).unwrap()
        else {
            return false;
        };
        let mut expected = entries.to_vec();
        expected.sort_by_key(|entry| (entry.prefix(), entry.place));
        for from in [0, entries.len() / 3, entries.len()] {
            assert!(Unpacked::new(&packed, from).eq(expected[from..].iter().copied()));
            let mut taken = Taken::default();
            packed.give(from..entries.len(), &mut taken).unwrap();
            assert_eq!(taken.rows, &expected[from..]);
        }
        true
    }

    /// Takes every third row with a prefix separately, although it could be grouped.
    #[derive(Default)]
    struct Taken {
        rows: Vec<Entry>,
        same: usize,
    }

    impl Taker for Taken {
        fn take(&mut self, entry: &Entry) -> Result<(), BuildFailure> {
            self.rows.push(*entry);
            self.same = 0;
            Ok(())
        }

        fn take_same(&mut self, place: u64) -> bool {
            self.same += 1;
            let before = *self.rows.last().unwrap();
            if self.same < 3 {
                self.rows.push(Entry { place, ..before });
            }
            self.same < 3
        }
    }

    #[test]
    fn merged_words_are_in_order() {
        let entry = |prefix: &u64| Entry::new(u128::from(*prefix), 0);
        let some = |words: &[u64]| {
            let entries: Vec<Entry> = words.iter().map(entry).collect();
            Packed::sorted(&entries, u64::MAX.into(), 0, Interrupts::default()).unwrap().unwrap()
        };
        let lists: [&[u64]; 6] =
            [&[7], &[0, 0, u64::MAX], &[1, 5, 9, 13], &[2; 5], &[u64::MAX; 3], &[0, 6, 6, 8, 20]];
        for own in lists {
            for others in lists.into_iter().chain([&[][..]]) {
                let mut packed = some(own);
                packed.merge(others).unwrap();
                let mut expected = [own, others].concat();
                expected.sort_unstable();
                assert_eq!(packed.words(), expected);
            }
        }
    }

    #[test]
    fn packed_entries_are_in_order_and_come_back_whole() {
        let mut random = random();
        let mut packed = 0;
        for case in 0..400 {
            let wide =
                |random: &mut dyn FnMut() -> u64| u128::from(random()) << 64 | u128::from(random());
            let mut mask = wide(&mut random);
            for _ in 0..case % 3 {
                mask &= wide(&mut random);
            }
            let places = random() & random() & random();
            let base = wide(&mut random);
            let count = [1, 2, 300, 20_000][case % 4];
            let entries: Vec<Entry> = (0..count)
                .map(|_| {
                    let prefix = base & !mask | wide(&mut random) & mask;
                    Entry::new(prefix, random() & places)
                })
                .collect();
            packed += usize::from(check(&entries));
        }
        assert!((100..400).contains(&packed), "{packed} packed");
        let adjacent: Vec<Entry> = (0..5000).map(|n| Entry::new(n << 17, n as u64)).collect();
        assert!(check(&adjacent));
        let full: Vec<Entry> =
            (0..5000).map(|n: u64| Entry::new(n.wrapping_mul(u64::MAX / 4999).into(), 7)).collect();
        assert!(check(&full));
    }
}
