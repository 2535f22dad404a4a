//! `numeric`: `numeric_in`, `set_var_from_str`, `round_var` and `apply_typmod`
//! of `src/backend/utils/adt/numeric.c`.
//!
//! Left to the server: the forms that PostgreSQL 16 added (hexadecimal, octal, binary,
//! underscores), and numbers so long, or with exponents so large, that they might exceed the limits
//! of the type.

use super::text::trim;
use crate::error::Refusal;
use crate::sink::Numeric;

/// Decimal digits in one digit of base 10000.
const DEC_DIGITS: i32 = 4;
/// Much less than `NUMERIC_DSCALE_MAX` (16383) and `NUMERIC_WEIGHT_MAX` (32767 · 4 digits).
const MOST_EXPONENT: i32 = 2000;
const MOST_DIGITS: usize = 8000;
/// Much less than `NUMERIC_DSCALE_MASK`.
const MOST_RECEIVED_SCALE: u16 = 1000;
/// Digits of base 10000 that are kept on the stack.
const ON_STACK: usize = 32;
/// Digits of base 10000 of the longest number, with room for a carry and for the digits at either
/// end.
const MOST_ON_STACK: usize = MOST_DIGITS / DEC_DIGITS as usize + 3;
/// The most digits that a sink receives.
pub(crate) const MOST_STORED: usize = MOST_ON_STACK;

/// The display scale that `numeric_send` writes for the infinities, because it reads their header
/// as that of a short number.
const INFINITE_DSCALE: u16 = 0x20;

const NAN: Numeric<'static> = special(Numeric::NAN, 0);
const PLUS_INFINITY: Numeric<'static> = special(Numeric::PLUS_INFINITY, INFINITE_DSCALE);
const MINUS_INFINITY: Numeric<'static> = special(Numeric::MINUS_INFINITY, INFINITE_DSCALE);

const fn special(sign: u16, dscale: u16) -> Numeric<'static> {
    Numeric { digits: &[], weight: 0, sign, dscale }
}

/// Reads a `numeric` and passes the value to `put`. The digits live only during that call.
///
/// `typmod` is `pg_attribute.atttypmod`, -1 for none.
#[inline]
pub fn numeric(text: &[u8], typmod: i32, put: impl FnOnce(Numeric<'_>)) -> Result<(), Refusal> {
    let limits = Limits::of(typmod);
    let Some(decimal) = Decimal::read(text)? else {
        return word(trim(text), limits).map(put);
    };
    let (low, high) = decimal.span();
    let count = usize::try_from((high - low).div_euclid(DEC_DIGITS) + 3).unwrap_or(0);
    if count <= ON_STACK {
        put(decimal.value(&mut [0; ON_STACK][..count], limits)?);
        Ok(())
    } else {
        long(decimal, count, limits, put)
    }
}

/// Reads a number of many digits, whose buffer would enlarge the stack frame of every call.
#[cold]
#[inline(never)]
fn long(
    decimal: Decimal<'_>,
    count: usize,
    limits: Option<Limits>,
    put: impl FnOnce(Numeric<'_>),
) -> Result<(), Refusal> {
    let mut room = [0; MOST_ON_STACK];
    put(decimal.value(&mut room[..count], limits)?);
    Ok(())
}

/// Reads a `numeric` from its binary form (`numeric_recv`) and passes the value to `put`.
///
/// # Errors
///
/// [`Refusal::Ask`], also if digits would be rounded or cut off, and for values that are not
/// finite.
pub fn receive(bytes: &[u8], typmod: i32, put: impl FnOnce(Numeric<'_>)) -> Result<(), Refusal> {
    let (head, digits) = bytes.split_first_chunk::<8>().ok_or(Refusal::Ask)?;
    let word = |i: usize| u16::from_be_bytes([head[2 * i], head[2 * i + 1]]);
    let (count, sign, mut dscale) = (usize::from(word(0)), word(2), word(3));
    let mut room = [0; ON_STACK];
    if count > ON_STACK
        || digits.len() != 2 * count
        || dscale > MOST_RECEIVED_SCALE
        || ![Numeric::POSITIVE, Numeric::NEGATIVE].contains(&sign)
    {
        return Err(Refusal::Ask);
    }
    for (to, from) in room.iter_mut().zip(digits.chunks_exact(2)) {
        *to = i16::from_be_bytes([from[0], from[1]]);
        if !(0..10_000).contains(to) {
            return Err(Refusal::Ask);
        }
    }
    let mut weight = i32::from(word(1) as i16);
    let digits = strip(&room[..count], &mut weight);
    // The number of decimal digits that dscale would hide.
    let hidden = (digits.len() as i32 - 1 - weight) * DEC_DIGITS - i32::from(dscale);
    let unit = [1, 10, 100, 1000].get(hidden.max(0) as usize).ok_or(Refusal::Ask)?;
    if digits.last().is_some_and(|last| last % unit != 0) {
        return Err(Refusal::Ask);
    }
    if let Some(limits) = Limits::of(typmod) {
        if limits.scale < i32::from(dscale) {
            return Err(Refusal::Ask);
        }
        dscale = limits.scale as u16;
        within(digits, weight, limits)?;
    }
    let sign = if digits.is_empty() { Numeric::POSITIVE } else { sign };
    put(Numeric { digits, weight: weight as i16, sign, dscale });
    Ok(())
}

/// The limits of a typmod.
#[derive(Clone, Copy, Debug)]
struct Limits {
    scale: i32,
    /// decimal digits before the point; may be negative
    most: i32,
}

impl Limits {
    /// Reads `numeric_typmod_precision` and `numeric_typmod_scale`. The scale is a signed number of
    /// 11 bits.
    fn of(typmod: i32) -> Option<Limits> {
        const VARHDRSZ: i32 = 4;
        if typmod < VARHDRSZ {
            return None;
        }
        let bits = typmod - VARHDRSZ;
        let precision = (bits >> 16) & 0xffff;
        let scale = ((bits & 0x7ff) ^ 1024) - 1024;
        Some(Limits { scale, most: precision - scale })
    }
}

/// The parts of a number in its text.
#[derive(Clone, Copy, Debug)]
struct Decimal<'t> {
    negative: bool,
    /// digits before and after the point
    whole: &'t [u8],
    fraction: &'t [u8],
    exponent: i32,
}

impl<'t> Decimal<'t> {
    /// `None` if the text does not begin like a number.
    #[inline]
    fn read(text: &'t [u8]) -> Result<Option<Self>, Refusal> {
        let text = trim(text);
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        let (whole, mut rest) = split_digits(rest);
        let mut fraction: &[u8] = &[];
        if let [b'.', after @ ..] = rest {
            (fraction, rest) = split_digits(after);
        }
        if whole.is_empty() && fraction.is_empty() {
            return Ok(None);
        }
        if whole.len() + fraction.len() > MOST_DIGITS {
            return Err(Refusal::Ask);
        }
        let mut exponent = 0;
        if let [b'e' | b'E', after @ ..] = rest {
            (exponent, rest) = read_exponent(after)?;
        }
        match rest {
            [] => Ok(Some(Decimal { negative, whole, fraction, exponent })),
            // 0x… and 1_000 are valid since PostgreSQL 16.
            [b'_' | b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..] => Err(Refusal::Ask),
            _ => Err(Refusal::Syntax),
        }
    }

    /// The power of ten of the last digit, and that of the first digit plus one.
    fn span(&self) -> (i32, i32) {
        let last = self.exponent - self.fraction.len() as i32;
        (last, self.exponent + self.whole.len() as i32)
    }

    /// The value, rounded to the limits' scale. Its digits are written to `room`, which must be
    /// zero and have room for at least one digit more than the number.
    #[inline]
    fn value<'r>(
        &self,
        room: &'r mut [i16],
        limits: Option<Limits>,
    ) -> Result<Numeric<'r>, Refusal> {
        let (low, high) = self.span();
        let mut dscale = (-low).max(0);
        // This is the weight of room[1]. room[0] is reserved for the carry.
        let mut weight = (high - 1).div_euclid(DEC_DIGITS);
        // The number of decimal digits still missing from the digit of base 10000, and its value so
        // far.
        let mut lacks = (high - 1).rem_euclid(DEC_DIGITS) + 1;
        let (mut at, mut digit) = (1, 0);
        for c in self.whole.iter().chain(self.fraction) {
            digit = digit * 10 + i16::from(c - b'0');
            lacks -= 1;
            if lacks == 0 {
                room[at] = digit;
                (at, digit, lacks) = (at + 1, 0, DEC_DIGITS);
            }
        }
        if lacks < DEC_DIGITS {
            room[at] = digit * [1, 10, 100, 1000][lacks as usize];
        }
        weight += 1;
        if let Some(limits) = limits {
            dscale = limits.scale.max(0);
            if limits.scale < -low {
                round(room, weight, limits.scale);
            }
        }
        let used = strip(room, &mut weight);
        if let Some(limits) = limits {
            within(used, weight, limits)?;
        }
        let sign = match self.negative && !used.is_empty() {
            true => Numeric::NEGATIVE,
            false => Numeric::POSITIVE,
        };
        Ok(Numeric { digits: used, weight: weight as i16, sign, dscale: dscale as u16 })
    }
}

#[inline]
fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Reads the exponent after the `e`. Returns it and the remaining text.
fn read_exponent(text: &[u8]) -> Result<(i32, &[u8]), Refusal> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (digits, rest) = split_digits(text);
    if digits.is_empty() {
        // strtol, which PostgreSQL 15 uses, would accept a second sign or spaces.
        return Err(Refusal::Ask);
    }
    if digits.len() > 6 {
        return Err(Refusal::Ask);
    }
    let value = digits.iter().fold(0, |v, c| v * 10 + i32::from(c - b'0'));
    if value > MOST_EXPONENT {
        return Err(Refusal::Ask);
    }
    Ok((if negative { -value } else { value }, rest))
}

/// Rounds to `scale` decimal digits after the point (before it if negative), half away from zero.
/// `weight` is the weight of `room[0]`, which must be 0 and may take a carry.
fn round(room: &mut [i16], weight: i32, scale: i32) {
    // Number of decimal digits that are kept, from the start of `room`.
    let keep = (weight + 1) * DEC_DIGITS + scale;
    if keep < 0 {
        room.fill(0);
        return;
    }
    let at = (keep / DEC_DIGITS) as usize;
    if at >= room.len() {
        return;
    }
    let unit = [10_000, 1000, 100, 10][(keep % DEC_DIGITS) as usize];
    let rest = room[at] % unit;
    let up = rest >= unit / 2;
    room[at] -= rest;
    room[at + 1..].fill(0);
    if !up {
        return;
    }
    // A unit of 10000 is added to the digit before.
    let mut carry_to = at;
    let mut add = unit;
    if unit == 10_000 {
        match at.checked_sub(1) {
            Some(before) => carry_to = before,
            None => return,
        }
        add = 1;
    }
    loop {
        room[carry_to] += add;
        if room[carry_to] < 10_000 || carry_to == 0 {
            return;
        }
        room[carry_to] -= 10_000;
        carry_to -= 1;
        add = 1;
    }
}

/// `strip_var`: removes the zeros at both ends. The weight of zero is 0.
fn strip<'r>(room: &'r [i16], weight: &mut i32) -> &'r [i16] {
    let Some(first) = room.iter().position(|d| *d != 0) else {
        *weight = 0;
        return &[];
    };
    let last = room.iter().rposition(|d| *d != 0).unwrap_or(first);
    *weight -= first as i32;
    &room[first..=last]
}

/// The check of `apply_typmod` for the number of decimal digits before the point.
fn within(digits: &[i16], weight: i32, limits: Limits) -> Result<(), Refusal> {
    let Some(first) = digits.first() else {
        return Ok(());
    };
    let leading = match first {
        1000.. => 4,
        100.. => 3,
        10.. => 2,
        _ => 1,
    };
    if weight * DEC_DIGITS + leading > limits.most {
        Err(Refusal::Range)
    } else {
        Ok(())
    }
}

/// Reads NaN and the infinities.
fn word(text: &[u8], limits: Option<Limits>) -> Result<Numeric<'static>, Refusal> {
    if text.eq_ignore_ascii_case(b"nan") {
        return Ok(NAN);
    }
    let (negative, word) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if word.eq_ignore_ascii_case(b"infinity") || word.eq_ignore_ascii_case(b"inf") {
        return match (limits, negative) {
            (Some(_), _) => Err(Refusal::Range),
            (None, true) => Ok(MINUS_INFINITY),
            (None, false) => Ok(PLUS_INFINITY),
        };
    }
    Err(Refusal::Syntax)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, typmod: i32) -> Result<(Vec<i16>, i16, u16, u16), Refusal> {
        let mut got = None;
        numeric(text.as_bytes(), typmod, |n| {
            got = Some((n.digits.to_vec(), n.weight, n.sign, n.dscale));
        })?;
        Ok(got.unwrap())
    }

    fn typmod(precision: i32, scale: i32) -> i32 {
        ((precision << 16) | (scale & 0x7ff)) + 4
    }

    #[test]
    fn digits_weight_and_scale() {
        assert_eq!(read("0", -1), Ok((vec![], 0, 0, 0)));
        assert_eq!(read("-0.00", -1), Ok((vec![], 0, 0, 2)));
        assert_eq!(read("1", -1), Ok((vec![1], 0, 0, 0)));
        assert_eq!(read("12345.678", -1), Ok((vec![1, 2345, 6780], 1, 0, 3)));
        assert_eq!(read("-.00001", -1), Ok((vec![1000], -2, 0x4000, 5)));
        assert_eq!(read("1e5", -1), Ok((vec![10], 1, 0, 0)));
        assert_eq!(read("1.5e-3", -1), Ok((vec![15], -1, 0, 4)));
        assert_eq!(read("000123000", -1), Ok((vec![12, 3000], 1, 0, 0)));
    }

    #[test]
    fn typmods_round_half_away_from_zero_and_limit() {
        assert_eq!(read("1.005", typmod(5, 2)), Ok((vec![1, 100], 0, 0, 2)));
        assert_eq!(read("-1.005", typmod(5, 2)), Ok((vec![1, 100], 0, 0x4000, 2)));
        assert_eq!(read("9.995", typmod(4, 2)), Ok((vec![10], 0, 0, 2)));
        assert_eq!(read("99.995", typmod(4, 2)), Err(Refusal::Range));
        assert_eq!(read("9999.5", typmod(5, 0)), Ok((vec![1], 1, 0, 0)));
        assert_eq!(read("12345", typmod(3, -2)), Ok((vec![1, 2300], 1, 0, 0)));
        assert_eq!(read("0.05", typmod(2, 3)), Ok((vec![500], -1, 0, 3)));
        assert_eq!(read("0.4", typmod(2, 3)), Err(Refusal::Range));
        assert_eq!(read("49", typmod(1, -2)), Ok((vec![], 0, 0, 0)));
        assert_eq!(read("50", typmod(1, -2)), Ok((vec![100], 0, 0, 0)));
        assert_eq!(read("5000", typmod(1, -4)), Ok((vec![1], 1, 0, 0)));
        assert_eq!(read("inf", typmod(1, 0)), Err(Refusal::Range));
    }

    #[test]
    fn what_is_no_number() {
        for bad in ["", " ", ".", "-", "1.2.3", "abc", "1 2", "+NaN", "-"] {
            assert_eq!(read(bad, -1), Err(Refusal::Syntax), "{bad}");
        }
        for unsure in ["1_0", "0x1F", "1e99999", "1e", "1e--5"] {
            assert_eq!(read(unsure, -1), Err(Refusal::Ask), "{unsure}");
        }
    }
}
