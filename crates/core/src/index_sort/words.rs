//! Sorts words in place, by digits from the highest one on, as `radix.rs` sorts entries.

use super::interrupt::Interrupts;
use super::BuildFailure;

/// Up to this number of words, a comparison sort is as fast.
pub const SMALL: usize = 256;
/// Bits of a digit. More buckets would exceed the processor's caches.
const DIGIT: u32 = 11;
pub const BUCKETS: usize = 1 << DIGIT;

/// Adjacent bits of a word.
#[derive(Clone, Copy, Debug)]
pub struct Digit {
    /// the lowest of these bits
    pub shift: u32,
    /// one more than their greatest value
    pub buckets: usize,
}

impl Digit {
    /// A digit of no bits, which is the same in all words.
    pub const NONE: Self = Self { shift: 0, buckets: 1 };

    /// The highest of `bits` bits, as many of them as put 8 to 16 of `count` evenly spread words
    /// into each bucket. A digit has at most [`DIGIT`] bits, so buckets of many words are larger.
    #[must_use]
    pub fn highest(bits: u32, count: usize) -> Self {
        let wanted = usize::BITS - (count / 16).leading_zeros();
        let width = bits.min(DIGIT).min(wanted.max(1));
        Self { shift: bits - width, buckets: 1 << width }
    }

    /// The digit of a word.
    #[inline(always)]
    #[must_use]
    pub fn of(self, word: u64) -> usize {
        (word >> self.shift) as usize & (self.buckets - 1)
    }
}

/// Replaces the number of words in each bucket by the start of the bucket.
pub fn begin(counts: &mut [usize]) {
    let mut start = 0;
    for count in counts {
        start += std::mem::replace(count, start);
    }
}

/// Sorts the words of each bucket. They differ in the lowest `bits` bits.
///
/// # Errors
///
/// Interrupted.
pub fn sort_buckets(
    words: &mut [u64],
    ends: &[usize],
    bits: u32,
    interrupts: Interrupts,
) -> Result<(), BuildFailure> {
    let mut start = 0;
    for &end in ends {
        if end - start > 1 && bits > 0 {
            sort_words(&mut words[start..end], bits, interrupts)?;
        }
        start = end;
    }
    Ok(())
}

/// Sorts words that differ in the lowest `bits` bits.
fn sort_words(words: &mut [u64], bits: u32, interrupts: Interrupts) -> Result<(), BuildFailure> {
    if words.len() <= SMALL {
        words.sort_unstable();
        return Ok(());
    }
    interrupts.check()?;
    let digit = Digit::highest(bits, words.len());
    let mut next = [0; BUCKETS];
    for &word in words.iter() {
        next[digit.of(word)] += 1;
    }
    begin(&mut next[..digit.buckets]);
    let mut ends = [0; BUCKETS];
    ends[..digit.buckets - 1].copy_from_slice(&next[1..digit.buckets]);
    ends[digit.buckets - 1] = words.len();
    for bucket in 0..digit.buckets {
        while next[bucket] < ends[bucket] {
            let at = next[bucket];
            let mut held = words[at];
            let mut to = digit.of(held);
            while to != bucket {
                std::mem::swap(&mut held, &mut words[next[to]]);
                next[to] += 1;
                to = digit.of(held);
            }
            words[at] = held;
            next[bucket] += 1;
        }
    }
    sort_buckets(words, &ends[..digit.buckets], digit.shift, interrupts)
}
