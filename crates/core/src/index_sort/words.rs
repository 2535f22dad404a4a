//! Sorting words, in place: by digits from the highest one on, as entries are (`radix.rs`).

use super::interrupt::Interrupts;
use super::BuildFailure;

/// Below this, a comparison sort is as good.
pub const SMALL: usize = 256;
/// Bits of a digit: with more buckets the processor's caches do not keep up.
const DIGIT: u32 = 11;
pub const BUCKETS: usize = 1 << DIGIT;

/// Some neighbouring bits of a word.
#[derive(Clone, Copy, Debug)]
pub struct Digit {
    /// the lowest of them
    pub shift: u32,
    /// one more than their greatest value
    pub buckets: usize,
}

impl Digit {
    /// The same in all words.
    pub const NONE: Self = Self { shift: 0, buckets: 1 };

    /// The highest of so many bits, so that there are some tens of `count` words in each bucket, if
    /// they are even.
    #[must_use]
    pub fn highest(bits: u32, count: usize) -> Self {
        let wanted = usize::BITS - (count / 16).leading_zeros();
        let width = bits.min(DIGIT).min(wanted.max(1));
        Self { shift: bits - width, buckets: 1 << width }
    }

    /// Those of a word.
    #[inline(always)]
    #[must_use]
    pub fn of(self, word: u64) -> usize {
        (word >> self.shift) as usize & (self.buckets - 1)
    }
}

/// Makes of how many there are in each bucket where each begins.
pub fn begin(counts: &mut [usize]) {
    let mut start = 0;
    for count in counts {
        start += std::mem::replace(count, start);
    }
}

/// Sorts the words of each bucket, of which the lowest `bits` bits differ.
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

/// Sorts words of which the lowest `bits` bits differ.
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
