//! Which bytes of a block of 64 equal a byte, as a mask: once for each kind of
//! processor, so that what is built on it need be written once.

use super::unescape::halve;

/// How many bytes a block has: one bit each in a `u64`.
pub(super) const BLOCK: usize = 64;

/// What the processor offers for the comparison of bytes.
pub(super) trait Lanes {
    /// Bit `i` is set where `block[i] == needle`.
    ///
    /// # Safety
    ///
    /// The processor has the features that the implementation names.
    unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64;

    /// [`super::unescape::halve`], compiled for the processor: it is called,
    /// not inlined, and so keeps the scanner's loop small.
    ///
    /// # Safety
    ///
    /// As [`Lanes::eq`].
    unsafe fn halve(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool;
}

/// Eight bytes at a time in ordinary registers: every processor.
pub(super) struct Swar;

impl Lanes for Swar {
    #[inline(always)]
    unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64 {
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let splat = u64::from(needle) * 0x0101_0101_0101_0101;
        let mut mask = 0;
        for (i, word) in block.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            // The high bit of each byte that is zero, with no carry between bytes.
            let x = word ^ splat;
            let zero = !(((x & LOW) + LOW) | x | LOW);
            // Gathers the eight high bits into one byte.
            mask |= ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
        }
        mask
    }

    unsafe fn halve(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool {
        // SAFETY: plain registers need nothing.
        unsafe { halve::<Self>(inside, quote, out) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{has_avx2, Avx2, Sse2};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{halve, Lanes, BLOCK};
    use std::arch::x86_64::*;

    /// 16 bytes at a time: every x86-64 processor.
    pub(in crate::scan) struct Sse2;

    impl Lanes for Sse2 {
        #[inline(always)]
        unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64 {
            let mut mask = 0;
            for i in (0..BLOCK).step_by(16) {
                // SAFETY: SSE2 is part of x86-64; 16 bytes from `i` lie within the block.
                let found = unsafe {
                    let bytes = _mm_loadu_si128(block.as_ptr().add(i).cast());
                    _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(needle as i8)))
                };
                mask |= u64::from(found as u32) << i;
            }
            mask
        }

        unsafe fn halve(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool {
            // SAFETY: SSE2 is part of x86-64.
            unsafe { halve::<Self>(inside, quote, out) }
        }
    }

    /// 32 bytes at a time; needs [`has_avx2`].
    pub(in crate::scan) struct Avx2;

    impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64 {
            let mut mask = 0;
            for i in (0..BLOCK).step_by(32) {
                // SAFETY: the caller answers for AVX2; 32 bytes from `i` lie within the block.
                let found = unsafe {
                    let bytes = _mm256_loadu_si256(block.as_ptr().add(i).cast());
                    _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(needle as i8)))
                };
                mask |= u64::from(found as u32) << i;
            }
            mask
        }

        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
        unsafe fn halve(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool {
            // SAFETY: the caller answers for AVX2 and its companions.
            unsafe { halve::<Self>(inside, quote, out) }
        }
    }

    /// Whether the processor has what the AVX2 shells are compiled for.
    pub(in crate::scan) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line that cannot be wrong.
    fn naive(block: &[u8; BLOCK], needle: u8) -> u64 {
        (0..BLOCK).fold(0, |mask, i| mask | u64::from(block[i] == needle) << i)
    }

    #[test]
    fn every_kind_equals_the_naive_one() {
        for seed in 0..=255_u8 {
            let block: [u8; BLOCK] = std::array::from_fn(|i| match i % 3 {
                0 => seed,
                1 => seed ^ 0x80,
                _ => (i as u8).wrapping_mul(seed).wrapping_add(seed >> 3),
            });
            for needle in [seed, seed ^ 0x80, seed ^ 1, 0, 255] {
                let expected = naive(&block, needle);
                // SAFETY: SWAR needs nothing.
                assert_eq!(unsafe { Swar::eq(&block, needle) }, expected);
                #[cfg(target_arch = "x86_64")]
                {
                    // SAFETY: SSE2 is part of x86-64, AVX2 has been looked for.
                    unsafe {
                        assert_eq!(Sse2::eq(&block, needle), expected);
                        if has_avx2() {
                            assert_eq!(Avx2::eq(&block, needle), expected);
                        }
                    }
                }
            }
        }
    }
}
