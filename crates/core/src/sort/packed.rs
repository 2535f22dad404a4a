//! Entries of one run as single words.
//!
//! Most keys differ in few of their bits, and so do tids. Where all the bits of prefix and place
//! in which two entries of the run differ are 64 or less, an entry is packed into one word: the
//! differing bits, most significant first, which keeps the order. Words are sorted much faster
//! than entries, and the order of place within equal keys comes for free.

use super::run::Entry;
use super::Failure;

/// Bits that go together: `width` bits from `from` of the entry are at `to` of the word.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    from: u32,
    to: u32,
    width: u32,
}

impl Segment {
    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.width)
    }
}

/// More parts than this are not worth taking apart and putting together.
const MAX_SEGMENTS: usize = 24;

/// Where the bits of one value are in the packed word.
#[derive(Debug, Default)]
struct Layout {
    segments: Vec<Segment>,
    /// the bits that are the same in all
    constant: u128,
}

impl Layout {
    #[inline]
    fn pack(&self, value: u128) -> u64 {
        self.segments.iter().fold(0, |word, segment| {
            word | ((value >> segment.from) as u64 & segment.mask()) << segment.to
        })
    }

    #[inline]
    fn unpack(&self, word: u64) -> u128 {
        self.segments.iter().fold(self.constant, |value, segment| {
            value | u128::from(word >> segment.to & segment.mask()) << segment.from
        })
    }
}

/// A run of packed entries, sorted.
#[derive(Debug)]
pub struct Packed {
    words: Vec<u64>,
    prefix: Layout,
    place: Layout,
    /// the bits of a word that come from the prefix
    prefix_mask: u64,
}

/// The prefix that was unpacked last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpacked {
    valid: bool,
    word: u64,
    prefix: u128,
}

/// The runs of one bits in `varying`, from the top, as `(from, width)`.
fn runs_of_ones(mut varying: u128) -> Vec<(u32, u32)> {
    let mut runs = Vec::new();
    while varying != 0 {
        let top = 127 - varying.leading_zeros();
        let width = (varying << (127 - top)).leading_ones();
        runs.push((top + 1 - width, width));
        varying &= !(u128::MAX >> (128 - width) << (top + 1 - width));
    }
    runs
}

/// Closes gaps between runs, the smallest first, as long as all fits into `spare` more bits.
fn close_gaps(runs: &mut Vec<(u32, u32)>, spare: &mut u32) {
    loop {
        let gap = |pair: &[(u32, u32)]| pair[0].0 - (pair[1].0 + pair[1].1);
        let Some((index, gap)) = runs
            .windows(2)
            .map(gap)
            .enumerate()
            .min_by_key(|&(_, gap)| gap)
            .filter(|&(_, gap)| gap <= *spare && runs.len() > 1)
        else {
            return;
        };
        // A word takes no wider run.
        if runs[index].1 + gap + runs[index + 1].1 > 64 {
            return;
        }
        *spare -= gap;
        let (from, width) = runs.remove(index + 1);
        runs[index] = (from, width + gap + runs[index].1);
    }
}

fn layout(runs: &[(u32, u32)], top: &mut u32, sample: u128) -> Layout {
    let mut constant = sample;
    let segments = runs
        .iter()
        .map(|&(from, width)| {
            *top -= width;
            constant &= !(u128::MAX >> (128 - width) << from);
            Segment { from, to: *top, width }
        })
        .collect();
    Layout { segments, constant }
}

impl Packed {
    /// Packs and sorts `entries`, whose prefixes and places differ in no bits but those given.
    ///
    /// `None`: these are too many.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn sorted(
        entries: &[Entry],
        varying_prefix: u128,
        varying_place: u64,
    ) -> Result<Option<Self>, Failure> {
        let bits = varying_prefix.count_ones() + varying_place.count_ones();
        let Some(sample) = entries.first().filter(|_| bits <= 64) else { return Ok(None) };
        let mut spare = 64 - bits;
        let mut prefix = runs_of_ones(varying_prefix);
        let mut place = runs_of_ones(varying_place.into());
        close_gaps(&mut place, &mut spare);
        close_gaps(&mut prefix, &mut spare);
        if prefix.len() + place.len() > MAX_SEGMENTS {
            return Ok(None);
        }
        let used = prefix.iter().chain(&place).map(|&(_, width)| width).sum();
        let mut top = used;
        let prefix = layout(&prefix, &mut top, sample.prefix());
        let place = layout(&place, &mut top, sample.place.into());
        let mut words = Vec::new();
        words.try_reserve_exact(entries.len())?;
        words.extend(
            entries
                .iter()
                .map(|entry| prefix.pack(entry.prefix()) | place.pack(entry.place.into())),
        );
        if !words.windows(2).all(|pair| pair[0] <= pair[1]) {
            sort_words(&mut words, used);
        }
        let prefix_mask =
            prefix.segments.iter().fold(0, |mask, segment| mask | segment.mask() << segment.to);
        Ok(Some(Self { words, prefix, place, prefix_mask }))
    }

    /// The words, in order.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Merges with words that are in order and have the same layout.
    ///
    /// # Errors
    ///
    /// No memory; nothing has changed.
    pub fn merge(&mut self, others: &[u64]) -> Result<(), Failure> {
        let own = &self.words;
        let mut merged = Vec::new();
        merged.try_reserve_exact(own.len() + others.len())?;
        let (mut left, mut right) = (0, 0);
        // Which comes first is as good as random: no branch that would be guessed wrong.
        while left < own.len() && right < others.len() {
            let first = own[left] <= others[right];
            merged.push(if first { own[left] } else { others[right] });
            left += usize::from(first);
            right += usize::from(!first);
        }
        merged.extend_from_slice(&own[left..]);
        merged.extend_from_slice(&others[right..]);
        self.words = merged;
        Ok(())
    }

    /// The entry with this index. `last` remembers its prefix: many have that of the one before.
    #[must_use]
    #[inline]
    pub fn entry(&self, index: usize, last: &mut Unpacked) -> Entry {
        let word = self.words[index];
        if !last.valid || (word ^ last.word) & self.prefix_mask != 0 {
            *last = Unpacked { valid: true, word, prefix: self.prefix.unpack(word) };
        }
        Entry::new(last.prefix, self.place.unpack(word) as u64)
    }
}

/// Below this, a comparison sort is as good.
const SMALL: usize = 256;
/// Bits of a digit: with more buckets the processor's caches do not keep up.
const DIGIT: u32 = 11;

/// Sorts words of which the lowest `bits` bits differ.
fn sort_words(words: &mut [u64], bits: u32) {
    if words.len() <= SMALL || bits == 0 {
        words.sort_unstable();
        return;
    }
    // As many buckets as leave some tens of words in each, if they are even.
    let wanted = usize::BITS - (words.len() / 16).leading_zeros();
    let width = bits.min(DIGIT).min(wanted.max(1));
    let shift = bits - width;
    let buckets = 1 << width;
    let digit = |word: u64| (word >> shift) as usize & (buckets - 1);
    let mut ends = [0; 1 << DIGIT];
    for &word in words.iter() {
        ends[digit(word)] += 1;
    }
    let mut next = [0; 1 << DIGIT];
    let mut start = 0;
    for bucket in 0..buckets {
        next[bucket] = start;
        start += ends[bucket];
        ends[bucket] = start;
    }
    for bucket in 0..buckets {
        while next[bucket] < ends[bucket] {
            let at = next[bucket];
            let mut held = words[at];
            let mut to = digit(held);
            while to != bucket {
                std::mem::swap(&mut held, &mut words[next[to]]);
                next[to] += 1;
                to = digit(held);
            }
            words[at] = held;
            next[bucket] += 1;
        }
    }
    let mut start = 0;
    for &end in &ends[..buckets] {
        if end - start > 1 && shift > 0 {
            sort_words(&mut words[start..end], shift);
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entries: &[Entry]) -> bool {
        let first = entries[0];
        let (prefix, place) = entries.iter().fold((0, 0), |(prefix, place), entry| {
            (prefix | entry.prefix() ^ first.prefix(), place | entry.place ^ first.place)
        });
        let Some(packed) = Packed::sorted(entries, prefix, place).unwrap() else { return false };
        let mut expected = entries.to_vec();
        expected.sort_by_key(|entry| (entry.prefix(), entry.place));
        let mut last = Unpacked::default();
        for (index, entry) in expected.iter().enumerate() {
            assert_eq!(packed.entry(index, &mut last), *entry);
        }
        true
    }

    #[test]
    fn packed_entries_are_in_order_and_come_back_whole() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut packed = 0;
        for case in 0..400 {
            let wide =
                |random: &mut dyn FnMut() -> u64| u128::from(random()) << 64 | u128::from(random());
            let mut mask = wide(&mut random) & wide(&mut random);
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
