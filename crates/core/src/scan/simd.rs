//! A mask of the bytes in a block of 64 that equal a given byte. There is one implementation for
//! each kind of processor, so that the code that uses it is written only once.

use super::unescape::halve;

/// Bytes of a block: one for each bit of a `u64`.
pub(super) const BLOCK: usize = 64;

/// The comparison of bytes, as a processor supports it.
pub(super) trait Lanes {
    /// A mask with bit `i` set if `block[i] == needle`.
    ///
    /// # Safety
    ///
    /// The processor has the features that the implementation names.
    unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64;

    /// [`super::unescape::halve`], compiled for the processor. It is called and not inlined, which
    /// keeps the scanner's loop small.
    ///
    /// # Safety
    ///
    /// As [`Lanes::eq`].
    unsafe fn halve(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool;
}

/// Eight bytes at a time in ordinary registers. Every processor can do this.
pub(super) struct Swar;

impl Lanes for Swar {
    #[inline(always)]
    unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64 {
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let splat = u64::from(needle) * 0x0101_0101_0101_0101;
        let mut mask = 0;
        for (i, word) in block.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            // The high bit of each byte that is zero, without a carry between bytes.
            let x = word ^ splat;
            let zero = !(((x & LOW) + LOW) | x | LOW);
            // Gather the eight high bits into one byte.
            mask |= ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
        }
        mask
    }

    unsafe fn halve(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool {
        // SAFETY: plain registers need no processor feature.
        unsafe { halve::<Self>(inside, quote, out) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{has_avx2, Avx2, Sse2};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{halve, Lanes, BLOCK};
    use std::arch::x86_64::*;

    /// 16 bytes at a time. Every x86-64 processor can do this.
    pub(in crate::scan) struct Sse2;

    impl Lanes for Sse2 {
        #[inline(always)]
        unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64 {
            let mut mask = 0;
            for i in (0..BLOCK).step_by(16) {
                // SAFETY: SSE2 is part of x86-64. 16 bytes from `i` on are within the block.
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

    /// 32 bytes at a time. Needs [`has_avx2`].
    pub(in crate::scan) struct Avx2;

    impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64 {
            let mut mask = 0;
            for i in (0..BLOCK).step_by(32) {
                // SAFETY: the caller guarantees AVX2. 32 bytes from `i` on are within the block.
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
            // SAFETY: the caller guarantees AVX2 and the other features.
            unsafe { halve::<Self>(inside, quote, out) }
        }
    }

    /// Whether the processor has the features for which the AVX2 functions are compiled.
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

    /// A single line that is obviously right.
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
                // SAFETY: plain registers need no processor feature.
                assert_eq!(unsafe { Swar::eq(&block, needle) }, expected);
                #[cfg(target_arch = "x86_64")]
                {
                    // SAFETY: SSE2 is part of x86-64, and AVX2 is checked first.
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
