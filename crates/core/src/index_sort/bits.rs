//! Takes selected bits out of words and packs them side by side, and the reverse, on any processor.

use crate::memory::{Fallible, OutOfMemory};

/// Selected bits of a word, and their position in a packed word.
#[derive(Debug)]
pub struct BitPart {
    mask: u64,
    /// the position of the lowest of them in the packed word; the others follow it
    to: u32,
    /// the bits that are not selected, the same in every word
    constant: u64,
    /// the selected bits, adjacent ones as one run
    runs: Vec<Run>,
}

/// Adjacent bits: their position in a word and in a packed word, and a mask of their width.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: u32,
    to: u32,
    ones: u64,
}

impl BitPart {
    /// Selects the bits of `mask` and packs them side by side from bit `to` on. All other bits are
    /// those of `sample`.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(mask: u64, to: u32, sample: u64) -> Result<Self, OutOfMemory> {
        // Without bits, `to` may be past the last bit.
        let to = if mask == 0 { 0 } else { to };
        let mut runs = Vec::new();
        let (mut rest, mut next) = (mask, to);
        while rest != 0 {
            let from = rest.trailing_zeros();
            let width = (rest >> from).trailing_ones();
            let ones = u64::MAX >> (64 - width);
            runs.try_push(Run { from, to: next, ones })?;
            rest &= !(ones << from);
            next += width;
        }
        Ok(Self { mask, to, constant: sample & !mask, runs })
    }
}

/// The operations on bits, as a processor supports them.
pub trait Bits {
    /// The selected bits of `word`, at their positions in the packed word.
    ///
    /// # Safety
    ///
    /// The processor has the features that the implementation names.
    unsafe fn gather(part: &BitPart, word: u64) -> u64;

    /// The word whose selected bits are in `packed`.
    ///
    /// # Safety
    ///
    /// As [`Bits::gather`].
    unsafe fn scatter(part: &BitPart, packed: u64) -> u64;
}

/// Moves one run after the other. Every processor can do this.
pub struct Plain;

impl Bits for Plain {
    #[inline(always)]
    unsafe fn gather(part: &BitPart, word: u64) -> u64 {
        part.runs.iter().fold(0, |packed, run| packed | (word >> run.from & run.ones) << run.to)
    }

    #[inline(always)]
    unsafe fn scatter(part: &BitPart, packed: u64) -> u64 {
        part.runs
            .iter()
            .fold(part.constant, |word, run| word | (packed >> run.to & run.ones) << run.from)
    }
}

/// Work on many words. It is written once for all processors.
pub trait Pass {
    /// The result.
    type Output;

    /// Does the work.
    ///
    /// # Safety
    ///
    /// The processor has the features that `B` needs.
    unsafe fn run<B: Bits>(self) -> Self::Output;
}

/// Does the work with the best implementation for this processor.
#[inline]
pub fn run<P: Pass>(pass: P) -> P::Output {
    #[cfg(target_arch = "x86_64")]
    if x86::is_quick() {
        // SAFETY: the check above has found BMI2.
        return unsafe { x86::run(pass) };
    }
    // SAFETY: plain shifts need no processor feature.
    unsafe { pass.run::<Plain>() }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BitPart, Bits, Pass};
    use std::arch::x86_64::{_pdep_u64, _pext_u64};

    /// Moves all bits at once. Needs BMI2.
    pub(super) struct Bmi2;

    impl Bits for Bmi2 {
        #[inline(always)]
        unsafe fn gather(part: &BitPart, word: u64) -> u64 {
            // SAFETY: the caller guarantees BMI2.
            unsafe { _pext_u64(word, part.mask) << part.to }
        }

        #[inline(always)]
        unsafe fn scatter(part: &BitPart, packed: u64) -> u64 {
            // SAFETY: the caller guarantees BMI2.
            unsafe { _pdep_u64(packed >> part.to, part.mask) | part.constant }
        }
    }

    /// Whether BMI2 is available and fast. AMD's processors before VAES execute it bit by bit.
    pub(super) fn is_quick() -> bool {
        is_x86_feature_detected!("bmi2")
            && (is_x86_feature_detected!("vaes") || !is_x86_feature_detected!("sse4a"))
    }

    /// Does the work, compiled for BMI2.
    ///
    /// # Safety
    ///
    /// The processor has BMI2.
    #[target_feature(enable = "bmi2")]
    pub(super) unsafe fn run<P: Pass>(pass: P) -> P::Output {
        // SAFETY: the caller guarantees BMI2.
        unsafe { pass.run::<Bmi2>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    /// Packs a word and unpacks it again.
    struct Both<'a>(&'a BitPart, u64);

    impl Pass for Both<'_> {
        type Output = (u64, u64);

        unsafe fn run<B: Bits>(self) -> (u64, u64) {
            // SAFETY: the caller guarantees what `B` needs.
            unsafe {
                let packed = B::gather(self.0, self.1);
                (packed, B::scatter(self.0, packed))
            }
        }
    }

    /// Packs a word bit by bit.
    fn naive(mask: u64, to: u32, word: u64) -> u64 {
        let bits = (0..64).filter(|bit| mask >> bit & 1 != 0);
        bits.zip(to..).fold(0, |packed, (from, to)| packed | (word >> from & 1) << to)
    }

    #[test]
    fn bits_are_found_where_they_were() {
        let mut random = random();
        for round in 0..2000 {
            let mask = match round {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << 63,
                _ => random() & random() | random() & random() & random(),
            };
            let free = 64 - mask.count_ones();
            let to = if free == 0 { 0 } else { random() as u32 % (free + 1) };
            let sample = random();
            let word = sample & !mask | random() & mask;
            let part = BitPart::new(mask, to, sample).unwrap();
            let expected = (naive(mask, to, word), word);
            assert_eq!(run(Both(&part, word)), expected);
            // SAFETY: plain shifts need no processor feature.
            assert_eq!(unsafe { Both(&part, word).run::<Plain>() }, expected);
        }
    }
}
