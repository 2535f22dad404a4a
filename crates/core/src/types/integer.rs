//! `smallint`, `integer`, `bigint`, `oid`: `pg_strtoint16`, `pg_strtoint32`,
//! `pg_strtoint64` and `uint32in_subr` of `src/backend/utils/adt/numutils.c`.
//!
//! This module reads white space, a sign, decimal digits, white space. The hexadecimal, octal and
//! binary forms and the underscores that PostgreSQL 16 added are left to the server.

use super::text::trim;
use crate::error::Refusal;

/// `smallint`.
#[inline]
pub fn int2(text: &[u8]) -> Result<i16, Refusal> {
    match plain(text).map(i16::try_from) {
        Some(Ok(value)) => Ok(value),
        _ => integer(text, i64::from(i16::MIN), i64::from(i16::MAX)).map(|v| v as i16),
    }
}

/// `integer`.
#[inline]
pub fn int4(text: &[u8]) -> Result<i32, Refusal> {
    match plain(text).map(i32::try_from) {
        Some(Ok(value)) => Ok(value),
        _ => integer(text, i64::from(i32::MIN), i64::from(i32::MAX)).map(|v| v as i32),
    }
}

/// `bigint`.
#[inline]
pub fn int8(text: &[u8]) -> Result<i64, Refusal> {
    match plain(text) {
        Some(value) => Ok(value),
        None => integer(text, i64::MIN, i64::MAX),
    }
}

/// One to nineteen digits after an optional minus, and nothing else.
#[inline]
pub(super) fn plain(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let (first, eights) = digits.split_at((digits.len() - 1) % 8 + 1);
    // Nineteen digits fit into `value`, but not always into an `i64`.
    let mut value = eight_digits(led_by_zeros(first))?;
    for eight in eights.chunks_exact(8) {
        let word = eight.try_into().map_or(0, u64::from_le_bytes);
        value = value * 100_000_000 + eight_digits(word)?;
    }
    let value = i64::try_from(value).ok()?;
    Some(if negative { -value } else { value })
}

/// One to eight bytes after enough `0` to fill a word. The first byte is the lowest. A loop over
/// the bytes would end at another position for each number, which the processor cannot predict.
#[inline(always)]
fn led_by_zeros(digits: &[u8]) -> u64 {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    let len = digits.len();
    let four = |at: usize| match digits[at..].first_chunk() {
        Some(chunk) => u64::from(u32::from_le_bytes(*chunk)),
        None => 0,
    };
    let one = |at: usize| u64::from(digits[at]) << (8 * at);
    // Pieces that overlap have the same bits there.
    let word = if len >= 4 {
        four(0) | four(len - 4) << (8 * (len - 4))
    } else {
        one(0) | one(len / 2) | one(len - 1)
    };
    let lead = 8 * (8 - len);
    word << lead | (ZEROS & !(u64::MAX << lead))
}

/// The number of eight ASCII digits, of which the first is the lowest byte.
#[inline]
fn eight_digits(word: u64) -> Option<u64> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let digits = word ^ (LOW * 0x30);
    // A byte above 9 sets its high bit, before or after the addition.
    if (digits | digits.wrapping_add(LOW * 0x76)) & (LOW * 0x80) != 0 {
        return None;
    }
    // Combine adjacent digits: into pairs, then fours, then all eight.
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// Reads an integer within `min..=max`. The three types differ only in their range.
fn integer(text: &[u8], min: i64, max: i64) -> Result<i64, Refusal> {
    let text = trim(text);
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if !digits.first().is_some_and(u8::is_ascii_digit) {
        // An underscore or a letter cannot begin a number in any version.
        return Err(Refusal::Syntax);
    }
    if let [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..] = digits {
        return Err(Refusal::Ask);
    }
    // Compute the negative value, so that the smallest value is no special case.
    let mut value: i64 = 0;
    for (at, c) in digits.iter().enumerate() {
        let digit = c.wrapping_sub(b'0');
        if digit > 9 {
            // If the digits also overflow, versions differ in which error they report.
            let sure = *c != b'_' && value > min / 10 && at < 18;
            return Err(if sure { Refusal::Syntax } else { Refusal::Ask });
        }
        match value.checked_mul(10).and_then(|v| v.checked_sub(i64::from(digit))) {
            Some(next) => value = next,
            None if digits.iter().all(u8::is_ascii_digit) => return Err(Refusal::Range),
            None => return Err(Refusal::Ask),
        }
    }
    let value = if negative { Some(value) } else { value.checked_neg() };
    value.filter(|v| (min..=max).contains(v)).ok_or(Refusal::Range)
}

/// `oid`.
///
/// Left to the server: signs, which `strtoul` wraps around, and a leading zero, which PostgreSQL 16
/// and later read as an octal number.
pub fn oid(text: &[u8]) -> Result<u32, Refusal> {
    let text = trim(text);
    match text {
        [] => return Err(Refusal::Syntax),
        [b'0'] => return Ok(0),
        [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => {}
        _ => return Err(Refusal::Ask),
    }
    if text.len() > 19 {
        return Err(Refusal::Ask);
    }
    let value = text.iter().fold(0u64, |v, c| v * 10 + u64::from(c - b'0'));
    u32::try_from(value).map_err(|_| Refusal::Range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(int8(b"-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(int8(b"9223372036854775807"), Ok(i64::MAX));
        assert_eq!(int8(b"9223372036854775808"), Err(Refusal::Range));
        assert_eq!(int8(b"99999999999999999999"), Err(Refusal::Range));
        assert_eq!(int4(b"+2147483647"), Ok(i32::MAX));
        assert_eq!(int4(b"2147483648"), Err(Refusal::Range));
        assert_eq!(int4(b"-2147483648"), Ok(i32::MIN));
        assert_eq!(int2(b"-32768"), Ok(i16::MIN));
        assert_eq!(int2(b"32768"), Err(Refusal::Range));
        assert_eq!(oid(b"4294967295"), Ok(u32::MAX));
        assert_eq!(oid(b"4294967296"), Err(Refusal::Range));
    }

    #[test]
    fn the_fast_way_equals_the_slow_one() {
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let mut text = ((state as i64) >> (state % 64)).to_string().into_bytes();
            if state >> 60 == 0 {
                let at = (state >> 20) as usize % text.len();
                text[at] = b"/: x\xb0\xff.-"[(state >> 40) as usize % 8];
            }
            if let Some(value) = plain(&text) {
                assert_eq!(integer(&text, i64::MIN, i64::MAX), Ok(value), "{text:?}");
            } else {
                let fits = text.len() <= 19 && integer(&text, i64::MIN, i64::MAX).is_ok();
                assert!(!fits || text.contains(&b' '), "{text:?}");
            }
        }
    }

    #[test]
    fn what_is_sure_and_what_is_not() {
        assert_eq!(int4(b" 7\t"), Ok(7));
        assert_eq!(int4(b"-0"), Ok(0));
        for nothing in [&b""[..], b" ", b"-", b"+-1", b"x", b"1 2", b"1.0"] {
            assert_eq!(int4(nothing), Err(Refusal::Syntax), "{nothing:?}");
        }
        for unsure in [&b"1_000"[..], b"0x1", b"0o7", b"99999999999999999999x"] {
            assert_eq!(int4(unsure), Err(Refusal::Ask), "{unsure:?}");
        }
        assert_eq!(oid(b"010"), Err(Refusal::Ask));
        assert_eq!(oid(b"-1"), Err(Refusal::Ask));
    }
}
