//! `interval`: `interval_in` and `DecodeInterval`, `DecodeISO8601Interval` of
//! `src/backend/utils/adt/{timestamp,datetime}.c`.
//!
//! This module reads whole numbers with units from the largest to the smallest and a time at the
//! end, which the server writes in the `postgres` style, and ISO 8601 with designators. Fractions
//! of units other than the second, and all other forms, are left to the server.

use super::calendar::{fraction, round_to, MICROS_PER_SECOND};
use super::text::two_digits;
use crate::error::Refusal;

/// An interval's three parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// microseconds
    pub micros: i64,
    /// days
    pub days: i32,
    /// months
    pub months: i32,
}

/// `interval`; `typmod` is that of `pg_attribute.atttypmod`.
pub fn interval(text: &[u8], typmod: i32) -> Result<Interval, Refusal> {
    const FULL_RANGE: i32 = 0x7fff; // INTERVAL_FULL_RANGE
    let precision = match typmod {
        ..=-1 => -1,
        _ if typmod >> 16 == FULL_RANGE => typmod & 0xffff,
        // The type has only some of the fields. Only the server can cut off the others.
        _ => return Err(Refusal::Ask),
    };
    let read = match text {
        [b'P', rest @ ..] => iso8601(rest),
        _ => words(text),
    };
    let value = read.ok_or(Refusal::Ask)?;
    Ok(Interval { micros: round_to(value.micros, precision), ..value })
}

/// The units, the largest first. Each may occur once.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Unit {
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
}

impl Interval {
    fn add(&mut self, unit: Unit, count: i64) -> Option<()> {
        let (months, days, seconds) = match unit {
            Unit::Year => (12, 0, 0),
            Unit::Month => (1, 0, 0),
            Unit::Week => (0, 7, 0),
            Unit::Day => (0, 1, 0),
            Unit::Hour => (0, 0, 3600),
            Unit::Minute => (0, 0, 60),
            Unit::Second => (0, 0, 1),
        };
        let small = i32::try_from(count).ok()?;
        self.months = self.months.checked_add(small.checked_mul(months)?)?;
        self.days = self.days.checked_add(small.checked_mul(days)?)?;
        self.micros = self.micros.checked_add(count.checked_mul(seconds * MICROS_PER_SECOND)?)?;
        Some(())
    }
}

/// An optional sign and one to nine digits, and the remaining text.
fn whole(text: &[u8]) -> Option<(i64, bool, &[u8])> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let end = digits.iter().position(|c| !c.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 || end > 9 {
        return None;
    }
    let value = digits[..end].iter().fold(0, |v, c| v * 10 + i64::from(c - b'0'));
    Some((if negative { -value } else { value }, negative, &digits[end..]))
}

/// `1 year 2 mons -3 days +04:05:06.789`
fn words(text: &[u8]) -> Option<Interval> {
    let mut value = Interval::default();
    let mut before: Option<Unit> = None;
    let mut rest = text;
    // In the sql_standard style, a minus at the very start may apply to all quantities.
    let mut quantities = 0;
    let starts_negative = text.first() == Some(&b'-');
    let mut later_sign = false;
    loop {
        later_sign |= quantities > 0 && matches!(rest.first(), Some(b'-' | b'+'));
        quantities += 1;
        let (count, negative, after) = whole(rest)?;
        if after.first() == Some(&b':') {
            if before >= Some(Unit::Hour) {
                return None;
            }
            value.micros = clock(count.abs(), after)? * if negative { -1 } else { 1 };
            break;
        }
        let after = after.strip_prefix(b" ")?;
        let end = after.iter().position(|c| *c == b' ').unwrap_or(after.len());
        let unit = named(&after[..end])?;
        if before >= Some(unit) {
            return None;
        }
        before = Some(unit);
        value.add(unit, count)?;
        match after.get(end + 1..) {
            Some(next) if !next.is_empty() => rest = next,
            Some(_) => return None,
            None if end == after.len() => break,
            None => return None,
        }
    }
    if starts_negative && quantities > 1 && !later_sign {
        return None;
    }
    Some(value)
}

fn named(word: &[u8]) -> Option<Unit> {
    Some(match word {
        b"year" | b"years" => Unit::Year,
        b"mon" | b"mons" | b"month" | b"months" => Unit::Month,
        b"week" | b"weeks" => Unit::Week,
        b"day" | b"days" => Unit::Day,
        b"hour" | b"hours" => Unit::Hour,
        b"min" | b"mins" | b"minute" | b"minutes" => Unit::Minute,
        b"sec" | b"secs" | b"second" | b"seconds" => Unit::Second,
        _ => return None,
    })
}

/// `:MM:SS[.f…]` to the end of the text, after the hours.
fn clock(hours: i64, text: &[u8]) -> Option<i64> {
    let [b':', a, b, b':', c, d, rest @ ..] = text else {
        return None;
    };
    let (minutes, seconds) = (two_digits(&[*a, *b])?, two_digits(&[*c, *d])?);
    if minutes > 59 || seconds > 59 {
        return None;
    }
    let micros = match rest {
        [] => 0,
        [b'.', digits @ ..] => match fraction(digits)? {
            (micros, []) => micros,
            _ => return None,
        },
        _ => return None,
    };
    let seconds = hours * 3600 + i64::from(minutes * 60 + seconds);
    Some(seconds * MICROS_PER_SECOND + i64::from(micros))
}

/// `1Y2M3W4DT5H6M7.8S`, after the `P`.
fn iso8601(text: &[u8]) -> Option<Interval> {
    let mut value = Interval::default();
    let mut before: Option<Unit> = None;
    let mut in_time = false;
    let mut rest = text;
    while !rest.is_empty() {
        if let [b'T', after @ ..] = rest {
            if in_time || after.is_empty() {
                return None;
            }
            in_time = true;
            rest = after;
        }
        if rest.first() == Some(&b'+') {
            return None; // accepted since PostgreSQL 16
        }
        let (count, negative, after) = whole(rest)?;
        let (micros, after) = match after {
            [b'.', digits @ ..] if digits.len() <= 7 => fraction(digits)?,
            [b'.', ..] => return None,
            _ => (0, after),
        };
        let (unit, after) = match (after, in_time) {
            ([b'Y', after @ ..], false) => (Unit::Year, after),
            ([b'M', after @ ..], false) => (Unit::Month, after),
            ([b'W', after @ ..], false) => (Unit::Week, after),
            ([b'D', after @ ..], false) => (Unit::Day, after),
            ([b'H', after @ ..], true) => (Unit::Hour, after),
            ([b'M', after @ ..], true) => (Unit::Minute, after),
            ([b'S', after @ ..], true) => (Unit::Second, after),
            _ => return None,
        };
        if before >= Some(unit) || (micros != 0 && unit != Unit::Second) {
            return None;
        }
        before = Some(unit);
        value.add(unit, count)?;
        value.micros += if negative { -i64::from(micros) } else { i64::from(micros) };
        rest = after;
    }
    before.map(|_| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(i64, i32, i32), Refusal> {
        interval(text.as_bytes(), -1).map(|i| (i.micros, i.days, i.months))
    }

    #[test]
    fn the_servers_own_output() {
        assert_eq!(read("1 year 2 mons -3 days +04:05:06.789"), Ok((14_706_789_000, -3, 14)));
        assert_eq!(read("00:00:00"), Ok((0, 0, 0)));
        assert_eq!(read("-00:00:01.5"), Ok((-1_500_000, 0, 0)));
        assert_eq!(read("-1 days +02:03:00"), Ok((7_380_000_000, -1, 0)));
        assert_eq!(read("100:00:00"), Ok((360_000_000_000, 0, 0)));
        assert_eq!(read("2 weeks"), Ok((0, 14, 0)));
        assert_eq!(read("P1Y2M3DT4H5M6.5S"), Ok((14_706_500_000, 3, 14)));
        assert_eq!(read("PT0S"), Ok((0, 0, 0)));
        assert_eq!(read("PT-6.5S"), Ok((-6_500_000, 0, 0)));
    }

    #[test]
    fn what_is_left_to_the_server() {
        for unsure in [
            "",
            "1",
            "1 day ago",
            "-1 day 02:00:00",
            "1 day 1 day",
            "1.5 days",
            "P",
            "PT",
            "P1S",
            "P+1Y",
            "1 hour 00:01:00",
            "infinity",
            "1-2",
            "@ 1 day",
            "1 day ",
            "9999999999 days",
            "200000000 years",
        ] {
            assert_eq!(read(unsure), Err(Refusal::Ask), "{unsure}");
        }
    }

    #[test]
    fn a_precision_rounds() {
        let to_one = (0x7fff << 16) | 1;
        assert_eq!(interval(b"00:00:00.15", to_one).unwrap().micros, 200_000);
        assert_eq!(interval(b"00:00:00", 4 << 16), Err(Refusal::Ask));
    }
}
