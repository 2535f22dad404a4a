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

    /// Bit `i` of the result is the parity of bits 0 to `i`.
    ///
    /// # Safety
    ///
    /// As [`Lanes::eq`].
    #[inline(always)]
    unsafe fn parities(mut bits: u64) -> u64 {
        for shift in [1, 2, 4, 8, 16, 32] {
            bits ^= bits << shift;
        }
        bits
    }

    /// [`super::unescape::halve`], compiled for the processor or written in its instructions. It is
    /// called and not inlined, which keeps the scanner's loop small. `out` has room for `inside` in
    /// whole blocks.
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
pub(super) use x86::{has_avx2, has_avx512, Avx2, Avx512, Sse2};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{halve, Lanes, BLOCK};
    use crate::scan::marks::{escaped_by, Carry};
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

        #[inline(always)]
        unsafe fn parities(bits: u64) -> u64 {
            // SAFETY: the caller guarantees PCLMULQDQ.
            unsafe { parities_by_product(bits) }
        }

        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,pclmulqdq")]
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
            && is_x86_feature_detected!("pclmulqdq")
    }

    /// [`Lanes::parities`]: the product with all ones, without carries.
    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    unsafe fn parities_by_product(bits: u64) -> u64 {
        let product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(bits as i64), _mm_set1_epi8(-1), 0);
        _mm_cvtsi128_si64(product) as u64
    }

    /// 64 bytes at a time. Needs [`has_avx512`].
    pub(in crate::scan) struct Avx512;

    impl Lanes for Avx512 {
        #[inline(always)]
        unsafe fn eq(block: &[u8; BLOCK], needle: u8) -> u64 {
            // SAFETY: the caller guarantees AVX-512. All 64 bytes are within the block.
            unsafe {
                let bytes = _mm512_loadu_si512(block.as_ptr().cast());
                _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(needle as i8))
            }
        }

        #[inline(always)]
        unsafe fn parities(bits: u64) -> u64 {
            // SAFETY: the caller guarantees PCLMULQDQ.
            unsafe { parities_by_product(bits) }
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,pclmulqdq")]
        unsafe fn halve(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool {
            let start = out.len();
            let blocks = inside.len().div_ceil(BLOCK);
            assert!(out.capacity() - start >= blocks * BLOCK, "room for whole blocks");
            let mut carry = Carry::default();
            for at in (0..inside.len()).step_by(BLOCK) {
                let rest = inside.len() - at;
                let there = if rest < BLOCK { (1 << rest) - 1 } else { u64::MAX };
                // SAFETY: the caller guarantees AVX-512 with VBMI2. The mask limits the bytes read
                // to those of `inside`. Each block adds at most 64 bytes to `out`, so those written
                // are within the room that was asserted, and those up to the new length are
                // initialized. `out` does not overlap `inside`, because it is borrowed mutably.
                unsafe {
                    let bytes = _mm512_maskz_loadu_epi8(there, inside.as_ptr().add(at).cast());
                    let quotes =
                        _mm512_mask_cmpeq_epi8_mask(there, bytes, _mm512_set1_epi8(quote as i8));
                    // As with backslashes: of each pair, the first quote escapes the second.
                    let second = escaped_by(quotes, &mut carry);
                    if second & !quotes != 0 {
                        out.truncate(start);
                        return false;
                    }
                    let kept = there & !second;
                    let end = out.as_mut_ptr().add(out.len());
                    _mm512_storeu_si512(end.cast(), _mm512_maskz_compress_epi8(kept, bytes));
                    out.set_len(out.len() + kept.count_ones() as usize);
                }
            }
            if carry.escaped != 0 {
                out.truncate(start);
                return false;
            }
            true
        }
    }

    /// Whether the processor has the features for which the AVX-512 functions are compiled. VBMI2
    /// came with processors that are not slowed down by vectors of 64 bytes.
    pub(in crate::scan) fn has_avx512() -> bool {
        has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi2")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Processor;

    /// Each method of one implementation, as safe functions.
    struct Methods {
        eq: fn(&[u8; BLOCK], u8) -> u64,
        parities: fn(u64) -> u64,
        halve: fn(&[u8], &mut Vec<u8>) -> bool,
    }

    fn of<L: Lanes>() -> Methods {
        // SAFETY: `every` only asks for those that the processor has.
        unsafe {
            Methods {
                eq: |block, needle| L::eq(block, needle),
                parities: |bits| L::parities(bits),
                halve: |inside, out| L::halve(inside, b'"', out),
            }
        }
    }

    fn every() -> impl Iterator<Item = Methods> {
        Processor::available().iter().map(|processor| match processor {
            #[cfg(target_arch = "x86_64")]
            Processor::Avx512 => of::<Avx512>(),
            #[cfg(target_arch = "x86_64")]
            Processor::Avx2 => of::<Avx2>(),
            #[cfg(target_arch = "x86_64")]
            Processor::Sse2 => of::<Sse2>(),
            Processor::Any => of::<Swar>(),
        })
    }

    #[test]
    fn bytes_are_compared_alike_by_every_kind() {
        for seed in 0..=255_u8 {
            let block: [u8; BLOCK] = std::array::from_fn(|i| match i % 3 {
                0 => seed,
                1 => seed ^ 0x80,
                _ => (i as u8).wrapping_mul(seed).wrapping_add(seed >> 3),
            });
            for needle in [seed, seed ^ 0x80, seed ^ 1, 0, 255] {
                // A single line that is obviously right.
                let expected =
                    (0..BLOCK).fold(0, |mask, i| mask | u64::from(block[i] == needle) << i);
                every().for_each(|methods| assert_eq!((methods.eq)(&block, needle), expected));
            }
        }
    }

    #[test]
    fn parities_are_computed_alike_by_every_kind() {
        for bits in (0..64).flat_map(|i| [1 << i, u64::MAX >> i, 0x9e37_79b9_7f4a_7c15 << i]) {
            let upto = |i: u32| (bits & (u64::MAX >> (63 - i))).count_ones();
            let expected = (0..64).fold(0, |mask, i| mask | u64::from(upto(i) % 2) << i);
            every().for_each(|methods| assert_eq!((methods.parities)(bits), expected));
        }
    }

    /// Runs of quotes at every position of a block, in fields that end within a block and with one.
    #[test]
    fn quotes_are_halved_alike_by_every_kind() {
        /// Two runs of quotes, and the bytes between them.
        const RUNS: [(usize, usize, usize); 10] = [
            (0, 0, 0),
            (1, 0, 0),
            (2, 0, 0),
            (3, 0, 1),
            (4, 1, 1),
            (1, 1, 1),
            (2, 2, 1),
            (2, 3, 63),
            (4, 2, 63),
            (2, 1, 64),
        ];
        for before in 0..=BLOCK {
            for (first, second, between) in RUNS {
                for behind in [0, 1, BLOCK, 3 * BLOCK - before] {
                    let field = [("x", before), ("\"", first), ("y", between)].into_iter();
                    let field = field.chain([("\"", second), ("z", behind)]);
                    let field: String = field.map(|(c, times)| c.repeat(times)).collect();
                    let runs = field.split(|c| c != '"').map(str::len);
                    let expected = runs.clone().all(|length| length % 2 == 0);
                    let halved = field.replace("\"\"", "\"");
                    for methods in every() {
                        let mut out = Vec::with_capacity(field.len() + 2 * BLOCK);
                        out.push(b'!');
                        let simple = (methods.halve)(field.as_bytes(), &mut out);
                        let value = if expected { &*halved } else { "" };
                        assert_eq!((simple, &out[1..]), (expected, value.as_bytes()), "{field}");
                    }
                }
            }
        }
    }
}
