//! The common parts of the types of date and time: the calendar, and the pieces of ISO text, read
//! as `ParseDateTime` and `DecodeDateTime` of `src/backend/utils/adt/datetime.c` read them under
//! every `DateStyle`.

use super::text::two_digits;
use crate::error::Refusal;

pub(super) const MICROS_PER_SECOND: i64 = 1_000_000;
pub(super) const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;
/// `MIN_TIMESTAMP` and `END_TIMESTAMP` of `src/include/datatype/timestamp.h`.
const MIN_TIMESTAMP: i64 = -211_813_488_000_000_000;
const END_TIMESTAMP: i64 = 9_223_371_331_200_000_000;
/// 24 November 4714 BC, Julian day 0, in days since 2000-01-01.
const MIN_DATE: i64 = -2_451_545;
/// 1 January 5874898.
const END_DATE: i64 = 2_147_483_494 - 2_451_545;

/// A written date, which may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Civil {
    year: i32,
    month: u32,
    day: u32,
}

impl Civil {
    /// `YYYY-MM-DD` at the start of `text`, with a year of four to seven digits, and the remaining
    /// text.
    #[inline]
    pub(super) fn prefix(text: &[u8]) -> Option<(Civil, &[u8])> {
        if let [a, b, c, d, b'-', e, f, b'-', g, h, rest @ ..] = text {
            let year = two_digits(&[*a, *b])? * 100 + two_digits(&[*c, *d])?;
            let (month, day) = (two_digits(&[*e, *f])?, two_digits(&[*g, *h])?);
            // With a third digit for the day, it would be another date.
            if rest.first().is_some_and(|c| c.is_ascii_digit() || *c == b'-') {
                return None;
            }
            return Some((Civil { year: year as i32, month, day }, rest));
        }
        let long = text.iter().position(|c| !c.is_ascii_digit())?;
        let (Some(head), true) = (long.checked_sub(4), (5..=7).contains(&long)) else {
            return None;
        };
        let (civil, rest) = Civil::prefix(&text[head..])?;
        let above = text[..head].iter().fold(0, |v, c| v * 10 + i32::from(c - b'0'));
        Some((Civil { year: civil.year + above * 10_000, ..civil }, rest))
    }

    /// The same date as a year BC.
    pub(super) fn before_christ(self) -> Result<Civil, Refusal> {
        // There is no year zero. It must be rejected here, because 1 - 0 would be a valid year.
        if self.year == 0 {
            return Err(Refusal::Range);
        }
        Ok(Civil { year: 1 - self.year, ..self })
    }

    /// Days since 2000-01-01. `bc`: the year has been converted by [`Civil::before_christ`].
    #[inline]
    pub(super) fn days(self, bc: bool) -> Result<i64, Refusal> {
        const DAYS: [u32; 13] = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let Civil { year, month, day } = self;
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let last = DAYS.get(month as usize).map_or(0, |d| d + u32::from(leap && month == 2));
        if day < 1 || day > last || (year <= 0 && !bc) {
            return Err(Refusal::Range);
        }
        // In years that begin in March, the leap day is at the end. They are counted from 4801 BC,
        // which is a multiple of 400 years and before all valid dates.
        let Ok(years) = u32::try_from(year - i32::from(month <= 2) + 4800) else {
            return Err(Refusal::Range);
        };
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let days = i64::from(365 * years) + i64::from(years / 4 + years / 400 + of_year);
        // -4800-03-01 to 2000-01-01
        Ok(days - i64::from(years / 100) - 2_483_589)
    }
}

/// `days` as a `date`, if it is in range.
pub(super) fn date_in_range(days: i64) -> Result<i32, Refusal> {
    if (MIN_DATE..END_DATE).contains(&days) {
        i32::try_from(days).map_err(|_| Refusal::Range)
    } else {
        Err(Refusal::Range)
    }
}

/// The timestamp of `days` and `micros`, if it is in range.
#[inline]
pub(super) fn timestamp_in_range(days: i64, micros: i64) -> Result<i64, Refusal> {
    days.checked_mul(MICROS_PER_DAY)
        .and_then(|d| d.checked_add(micros))
        .filter(|t| (MIN_TIMESTAMP..END_TIMESTAMP).contains(t))
        .ok_or(Refusal::Range)
}

/// Rounds to `precision` decimals of a second, half away from zero:
/// `AdjustTimestampForTypmod`, `AdjustTimeForTypmod`.
#[inline]
pub(super) fn round_to(micros: i64, precision: i32) -> i64 {
    const SCALES: [i64; 6] = [1_000_000, 100_000, 10_000, 1000, 100, 10];
    match usize::try_from(precision).ok().and_then(|p| SCALES.get(p)) {
        Some(scale) if micros >= 0 => (micros + scale / 2) / scale * scale,
        Some(scale) => -((scale / 2 - micros) / scale * scale),
        None => micros,
    }
}

/// A written time of day, which may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    hour: u32,
    minute: u32,
    second: u32,
    micros: u32,
}

impl Clock {
    /// This time with the fraction of a second at the start of `text`, and the remaining text.
    #[inline]
    pub(super) fn with_fraction(self, text: &[u8]) -> Option<(Clock, &[u8])> {
        let (micros, rest) = match text {
            [b'.', digits @ ..] => fraction(digits)?,
            _ => (self.micros, text),
        };
        // A digit here would be part of the number before.
        match rest.first() {
            Some(b'0'..=b'9' | b':' | b'.') => None,
            _ => Some((Clock { micros, ..self }, rest)),
        }
    }

    /// `HH:MM`, `HH:MM:SS` or `HH:MM:SS.f…` at the start of `text`, and the remaining text.
    #[inline]
    pub(super) fn prefix(text: &[u8]) -> Option<(Clock, &[u8])> {
        let [a, b, b':', c, d, rest @ ..] = text else {
            return None;
        };
        let (hour, minute) = (two_digits(&[*a, *b])?, two_digits(&[*c, *d])?);
        let clock = Clock { hour, minute, second: 0, micros: 0 };
        match rest {
            [b':', e, f, rest @ ..] => {
                Clock { second: two_digits(&[*e, *f])?, ..clock }.with_fraction(rest)
            }
            // With a point here, it would be MM:SS.f.
            [b'0'..=b'9' | b':' | b'.', ..] => None,
            _ => Some((clock, rest)),
        }
    }

    /// Microseconds since midnight. 24:00:00 and a leap second are allowed.
    #[inline]
    pub(super) fn micros(self) -> Result<i64, Refusal> {
        let seconds = i64::from(self.hour * 3600 + self.minute * 60 + self.second);
        let micros = seconds * MICROS_PER_SECOND + i64::from(self.micros);
        if self.minute > 59 || self.second > 60 || micros > MICROS_PER_DAY {
            return Err(Refusal::Range);
        }
        Ok(micros)
    }
}

/// Reads the usual form, `YYYY-MM-DD HH:MM:SS`, or with a `T`, at the start of `text`, eight bytes
/// at a time. The text after it may still belong to the seconds.
#[inline]
pub(super) fn date_and_time(text: &[u8]) -> Option<(Civil, Clock)> {
    let (date, rest) = text.split_first_chunk::<8>()?;
    let (time, rest) = rest.split_first_chunk::<8>()?;
    let [b':', s, t, ..] = rest else {
        return None;
    };
    let mut time = *time;
    if time[2] == b'T' {
        time[2] = b' ';
    }
    let date = digit_pairs(*date, *b"0000-00-")?;
    let time = digit_pairs(time, *b"00 00:00")?;
    let byte = |word: u64, at: u32| (word >> (8 * at)) as u8;
    let (century, year, month) = (byte(date, 0), byte(date, 2), byte(date, 5));
    let civil = Civil {
        year: i32::from(century) * 100 + i32::from(year),
        month: u32::from(month),
        day: u32::from(byte(time, 0)),
    };
    let clock = Clock {
        hour: u32::from(byte(time, 3)),
        minute: u32::from(byte(time, 6)),
        second: two_digits(&[*s, *t])?,
        micros: 0,
    };
    Some((civil, clock))
}

/// Each byte of the result is the number of two digits: that of `text` at this position and the
/// next one. `None` unless `text` has digits where `form` has `0`, and the same bytes elsewhere.
#[inline]
fn digit_pairs(text: [u8; 8], form: [u8; 8]) -> Option<u64> {
    // If a byte is too large, adding this sets its high bit.
    let most = u64::from_le_bytes(form.map(|c| if c == b'0' { 0x76 } else { 0x7f }));
    let digits = u64::from_le_bytes(text) ^ u64::from_le_bytes(form);
    let above = (digits | digits.wrapping_add(most)) & 0x8080_8080_8080_8080;
    (above == 0).then(|| digits * 10 + (digits >> 8))
}

/// The digits after the point of a second, as microseconds. They are rounded through a double, like
/// in `ParseFractionalSecond`.
#[inline]
pub(super) fn fraction(text: &[u8]) -> Option<(u32, &[u8])> {
    const MOST: usize = 20;
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    match digits.len() {
        1..=6 => {
            let value = digits.iter().fold(0, |v, c| v * 10 + u32::from(c - b'0'));
            Some((value * 10u32.pow(6 - digits.len() as u32), rest))
        }
        7..=MOST => {
            let mut point = *b".00000000000000000000";
            point[1..=digits.len()].copy_from_slice(digits);
            let value: f64 = std::str::from_utf8(&point).ok()?.parse().ok()?;
            Some(((value * 1e6).round_ties_even() as u32, rest))
        }
        _ => None,
    }
}

/// The offset from UTC in `text`, in seconds east; `None` if it has none.
#[inline]
pub(super) fn zone(text: &[u8]) -> Result<Option<i32>, Refusal> {
    let text = match text {
        [] => return Ok(None),
        b"Z" | b" UTC" | b"+00" => return Ok(Some(0)),
        [b' ', signed @ ..] => signed,
        _ => text,
    };
    let (west, digits) = match text {
        [b'+', rest @ ..] => (false, rest),
        [b'-', rest @ ..] => (true, rest),
        _ => return Err(Refusal::Ask),
    };
    let (hours, minutes, seconds) = match digits {
        [a, b] => ([*a, *b], *b"00", *b"00"),
        [a, b, c, d] | [a, b, b':', c, d] => ([*a, *b], [*c, *d], *b"00"),
        [a, b, b':', c, d, b':', e, f] => ([*a, *b], [*c, *d], [*e, *f]),
        _ => return Err(Refusal::Ask),
    };
    let pair = |two: [u8; 2], most| two_digits(&two).filter(|v| *v <= most).ok_or(Refusal::Ask);
    let offset = pair(hours, 15)? * 3600 + pair(minutes, 59)? * 60 + pair(seconds, 59)?;
    Ok(Some(if west { -(offset as i32) } else { offset as i32 }))
}

/// `infinity` (true) and `-infinity` (false), in any case.
#[inline]
pub(super) fn infinity(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"infinity") {
        Some(true)
    } else if text.eq_ignore_ascii_case(b"-infinity") {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next day, computed only from the rules of the Gregorian calendar.
    fn next(Civil { year, month, day }: Civil) -> Civil {
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let last = match month {
            2 => 28 + u32::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        match (day < last, month < 12) {
            (true, _) => Civil { year, month, day: day + 1 },
            (false, true) => Civil { year, month: month + 1, day: 1 },
            (false, false) => Civil { year: year + 1, month: 1, day: 1 },
        }
    }

    #[test]
    fn days_count_up_by_one_through_a_thousand_years() {
        let mut date = Civil { year: 1600, month: 1, day: 1 };
        let mut days = date.days(false).unwrap();
        while date.year < 2600 {
            date = next(date);
            days += 1;
            assert_eq!(date.days(false), Ok(days), "{date:?}");
        }
        assert_eq!(Civil { year: 2000, month: 1, day: 1 }.days(false), Ok(0));
        assert_eq!(Civil { year: -4713, month: 11, day: 24 }.days(true), Ok(MIN_DATE));
        assert_eq!(Civil { year: 5_874_898, month: 1, day: 1 }.days(false), Ok(END_DATE));
    }

    #[test]
    fn rounding_is_away_from_zero() {
        assert_eq!(round_to(500_000, 0), 1_000_000);
        assert_eq!(round_to(-500_000, 0), -1_000_000);
        assert_eq!(round_to(-499_999, 0), 0);
        assert_eq!(round_to(1_234_565, 5), 1_234_570);
        assert_eq!(round_to(1_234_565, 6), 1_234_565);
        assert_eq!(round_to(1_234_565, -1), 1_234_565);
    }
}
