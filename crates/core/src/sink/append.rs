//! Appends short values without a call of `memcpy` for each.

use crate::memory;
use std::ptr;

/// Appends `len`, big-endian, then `v`.
///
/// Most fields of a load have only a few bytes. A call for each would cost more than the copy.
#[inline]
#[allow(clippy::disallowed_methods)] // for PGCOPY, which only the loader writes
pub(crate) fn append(out: &mut Vec<u8>, len: i32, v: &[u8]) {
    const HEAD: usize = 4;
    out.reserve(HEAD + v.len());
    let old = out.len();
    // SAFETY: `reserve` has made room for HEAD + v.len() bytes after `old`, so all writes of the
    // head and of `copy` stay within the allocation. `v` cannot overlap it, because `out` is
    // borrowed mutably. All bytes up to the new length are then initialized.
    unsafe {
        let to = out.as_mut_ptr().add(old);
        ptr::copy_nonoverlapping(len.to_be_bytes().as_ptr(), to, HEAD);
        copy(v, to.add(HEAD));
        out.set_len(old + HEAD + v.len());
    }
}

/// Appends `v` to a vector that has room for it, like [`memory::Fallible::extend_within_room`].
#[inline]
pub(crate) fn extend(out: &mut Vec<u8>, v: &[u8]) {
    let old = out.len();
    if v.len() > out.capacity() - old {
        memory::no_room();
    }
    // SAFETY: as in `append`, without the head: there is room for `v.len()` bytes after `old`.
    unsafe {
        copy(v, out.as_mut_ptr().add(old));
        out.set_len(old + v.len());
    }
}

/// Fills `to` with `v`, which must have the same length.
#[inline(always)]
pub(crate) fn fill(to: &mut [u8], v: &[u8]) {
    assert_eq!(to.len(), v.len());
    // SAFETY: `to` is valid for writes of `v.len()` bytes. It does not overlap `v`, because it is
    // borrowed mutably.
    unsafe { copy(v, to.as_mut_ptr()) }
}

/// Copies `v` to `to`. Up to 32 bytes are copied as two pieces that may overlap.
///
/// # Safety
///
/// `to` must be valid for writes of `v.len()` bytes and must not overlap `v`.
#[inline(always)]
unsafe fn copy(v: &[u8], to: *mut u8) {
    let (from, len) = (v.as_ptr(), v.len());
    // SAFETY: each piece is within the first or the last bytes of `v`, whose length the branch has
    // checked. It is written to the same offset of `to`, for which the caller guarantees as many
    // bytes.
    unsafe {
        match len {
            0 => {}
            1..=3 => {
                *to = *from;
                *to.add(len / 2) = *from.add(len / 2);
                *to.add(len - 1) = *from.add(len - 1);
            }
            4..=7 => two::<4>(from, to, len),
            8..=16 => two::<8>(from, to, len),
            17..=32 => two::<16>(from, to, len),
            _ => ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies the first and the last `N` of `len` bytes.
///
/// # Safety
///
/// `from` and `to` must be valid for `len` bytes, `N <= len <= 2 * N`, without overlap.
#[inline(always)]
unsafe fn two<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: 0..N and len - N..len are within the `len` bytes that the caller guarantees. Both are
    // read before either is written.
    unsafe {
        let (first, last) = (
            ptr::read_unaligned(from.cast::<[u8; N]>()),
            ptr::read_unaligned(from.add(len - N).cast::<[u8; N]>()),
        );
        ptr::write_unaligned(to.cast::<[u8; N]>(), first);
        ptr::write_unaligned(to.add(len - N).cast::<[u8; N]>(), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_what_it_is_given() {
        let source: Vec<u8> = (0..100).collect();
        for len in 0..100 {
            let mut out = vec![7];
            append(&mut out, len as i32, &source[..len]);
            let mut expected = vec![7, 0, 0, 0, len as u8];
            expected.extend_from_slice(&source[..len]);
            assert_eq!(out, expected);
            let mut filled = [7; 100];
            fill(&mut filled[..len], &source[..len]);
            assert_eq!((&filled[..len], &filled[len..]), (&source[..len], &[7; 100][len..]));
            out.reserve(100);
            extend(&mut out, &source[len..]);
            expected.extend_from_slice(&source[len..]);
            assert_eq!(out, expected);
        }
    }
}
