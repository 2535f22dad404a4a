//! Resolves quotes and escapes of one field into scratch, which must have room for the bytes of the
//! field.

use super::naive;
use super::simd::{Lanes, BLOCK};
use super::{valid_utf8, Dialect};
use crate::memory::Fallible;

/// Appends the inside of a quoted field, with one quote for each doubled quote.
///
/// Returns false and leaves `out` unchanged if a quote is not doubled: then the field has more than
/// one quoted part.
///
/// # Safety
///
/// The processor has the features that `L` needs.
#[inline(always)]
pub(super) unsafe fn halve<L: Lanes>(inside: &[u8], quote: u8, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let mut from = 0;
    let mut base = 0;
    // A quote at the end of a block, whose second half is in the next block.
    let mut half = 0;
    while base < inside.len() {
        let rest = &inside[base..];
        let mut tail = [!quote; BLOCK];
        let block = match rest.first_chunk::<BLOCK>() {
            Some(block) => block,
            None => {
                tail[..rest.len()].copy_from_slice(rest);
                &tail
            }
        };
        // SAFETY: the caller guarantees what `L` needs.
        let mut quotes = unsafe { L::eq(block, quote) };
        if quotes & half != half {
            break;
        }
        quotes ^= half;
        half = 0;
        while quotes != 0 {
            let bit = quotes & quotes.wrapping_neg();
            let at = base + bit.trailing_zeros() as usize;
            append(out, inside, from, at + 1);
            from = at + 2;
            let second = bit << 1;
            if second == 0 {
                half = 1;
                quotes = 0;
            } else if quotes & second == 0 {
                out.truncate(start);
                return false;
            } else {
                quotes &= !(bit | second);
            }
        }
        base += BLOCK;
    }
    if half != 0 || base < inside.len() {
        out.truncate(start);
        return false;
    }
    append(out, inside, from, inside.len());
    true
}

/// Appends `bytes[from..to]`, or nothing if `from` is greater than `to`.
#[inline(always)]
fn append(out: &mut Vec<u8>, bytes: &[u8], from: usize, to: usize) {
    const STEP: usize = 32;
    let Some(len) = to.checked_sub(from) else { return };
    let room = out.capacity() - out.len();
    if len <= STEP && bytes.len() - from >= STEP && room >= STEP {
        // SAFETY: at least 32 bytes can be read from `from` on, and `out` has spare room for 32
        // bytes. They do not overlap, because `out` is borrowed mutably. `len` is at most 32, so
        // all bytes up to the new length are initialized and within the capacity.
        unsafe {
            let end = out.as_mut_ptr().add(out.len());
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), end, STEP);
            out.set_len(out.len() + len);
        }
    } else {
        out.extend_within_room(&bytes[from..to]);
    }
}

/// Appends the value of any CSV field. Returns whether it has a quote.
///
/// `None` if a quote is not closed.
pub(super) fn csv(dialect: &Dialect, raw: &[u8], out: &mut Vec<u8>) -> Option<bool> {
    let mut quoted = false;
    let mut i = 0;
    while let Some(at) = memchr::memchr(dialect.quote, &raw[i..]) {
        quoted = true;
        out.extend_within_room(&raw[i..i + at]);
        i = naive::csv_quoted(dialect, raw, i + at + 1, out).ok()?;
    }
    out.extend_within_room(&raw[i..]);
    Some(quoted)
}

/// Like [`csv`], for a field with quotes. `None` if they do not enclose the field.
pub(super) fn enclosed(dialect: &Dialect, raw: &[u8], out: &mut Vec<u8>) -> Option<bool> {
    if raw.first() != Some(&dialect.quote) {
        // Outside quotes, an escape other than the quote is an ordinary character.
        out.extend_within_room(raw);
        return memchr::memchr(dialect.quote, raw).is_none().then_some(false);
    }
    (naive::csv_quoted(dialect, raw, 1, out).ok()? == raw.len()).then_some(true)
}

/// Appends the value of a field in text format.
///
/// `None` if it contains `\.`, or if escapes make it invalid UTF-8.
pub(super) fn text(raw: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    let mut beyond_ascii = false;
    let mut i = 0;
    while let Some(at) = memchr::memchr(b'\\', &raw[i..]) {
        out.extend_within_room(&raw[i..i + at]);
        let escape = &raw[i + at + 1..];
        if escape.first().is_none_or(|c| *c == b'.') {
            return None;
        }
        let (value, used) = naive::text_escape(escape);
        beyond_ascii |= value == 0 || (used > 1 && value > 127);
        out.push_within(value);
        i += at + 1 + used;
    }
    out.extend_within_room(&raw[i..]);
    if beyond_ascii && valid_utf8(&out[start..]).is_err() {
        return None;
    }
    Some(())
}
