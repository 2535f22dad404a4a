//! `date`, `time`, `timetz`, `timestamp`, `timestamptz` in ISO form: `date_in`,
//! `time_in`, `timetz_in`, `timestamp_in` and `timestamptz_in` of
//! `src/backend/utils/adt/{date,timestamp}.c`.
//!
//! Bad syntax is never reported here. These types have a separate SQLSTATE for it (22007), and many
//! forms that only the server can read.

use super::calendar::{
    date_and_time, date_in_range, infinity, round_to, timestamp_in_range, zone, Civil, Clock,
    MICROS_PER_SECOND,
};
use crate::error::Refusal;
use crate::shape::Env;

/// `date`: days since 2000-01-01; the smallest and the largest `i32` are the infinities.
#[inline]
pub fn date(text: &[u8]) -> Result<i32, Refusal> {
    match Civil::prefix(text) {
        Some((civil, [])) => date_in_range(civil.days(false)?),
        Some((civil, b" BC")) => date_in_range(civil.before_christ()?.days(true)?),
        Some(_) => Err(Refusal::Ask),
        None => match infinity(text) {
            Some(true) => Ok(i32::MAX),
            Some(false) => Ok(i32::MIN),
            None => Err(Refusal::Ask),
        },
    }
}

/// `time(p)`: microseconds since midnight.
pub fn time(text: &[u8], precision: i32) -> Result<i64, Refusal> {
    match Clock::prefix(text) {
        Some((clock, [])) => Ok(round_to(clock.micros()?, precision)),
        _ => Err(Refusal::Ask),
    }
}

/// `timetz(p)`: microseconds since midnight, and seconds west of UTC.
pub fn timetz(text: &[u8], precision: i32, env: &Env) -> Result<(i64, i32), Refusal> {
    let (clock, rest) = Clock::prefix(text).ok_or(Refusal::Ask)?;
    let east = match zone(rest)? {
        Some(east) => east,
        None if env.utc => 0,
        None => return Err(Refusal::Ask),
    };
    Ok((round_to(clock.micros()?, precision), -east))
}

/// The parts of a timestamp's text.
struct Moment {
    days: i64,
    micros: i64,
    /// seconds east of UTC, if given
    east: Option<i32>,
}

#[inline]
fn moment(text: &[u8]) -> Result<Moment, Refusal> {
    // BC ends in C, and so may a zone: UTC.
    let usual = date_and_time(text).filter(|_| !text.ends_with(b"BC"));
    let Some((civil, clock)) = usual else {
        return any_moment(text);
    };
    let (clock, rest) = clock.with_fraction(&text[19..]).ok_or(Refusal::Ask)?;
    let east = zone(rest)?;
    Ok(Moment { days: civil.days(false)?, micros: clock.micros()?, east })
}

/// Reads the rarer forms: without time or seconds, with other years, or BC.
fn any_moment(text: &[u8]) -> Result<Moment, Refusal> {
    let (civil, rest) = Civil::prefix(text).ok_or(Refusal::Ask)?;
    let (rest, bc) = match rest {
        [rest @ .., b' ', b'B', b'C'] => (rest, true),
        _ => (rest, false),
    };
    let (micros, east) = match rest {
        [] => (Ok(0), None),
        [b' ' | b'T', rest @ ..] => {
            let (clock, rest) = Clock::prefix(rest).ok_or(Refusal::Ask)?;
            (clock.micros(), zone(rest)?)
        }
        _ => return Err(Refusal::Ask),
    };
    let civil = if bc { civil.before_christ()? } else { civil };
    Ok(Moment { days: civil.days(bc)?, micros: micros?, east })
}

fn infinite(text: &[u8]) -> Result<i64, Refusal> {
    match infinity(text) {
        Some(true) => Ok(i64::MAX),
        Some(false) => Ok(i64::MIN),
        None => Err(Refusal::Ask),
    }
}

#[inline]
fn rounded(days: i64, micros: i64, precision: i32) -> Result<i64, Refusal> {
    let exact = timestamp_in_range(days, micros)?;
    let rounded = round_to(exact, precision);
    // The text form may round up to just after the end of the range; the wire form may not.
    timestamp_in_range(0, rounded).map_err(|_| Refusal::Ask)
}

/// `timestamp(p)`: microseconds since 2000-01-01. A zone in the text is ignored, as in the server.
#[inline]
pub fn timestamp(text: &[u8], precision: i32) -> Result<i64, Refusal> {
    match moment(text) {
        Ok(m) => rounded(m.days, m.micros, precision),
        Err(Refusal::Ask) => infinite(text),
        Err(refusal) => Err(refusal),
    }
}

/// `timestamptz(p)`: microseconds since 2000-01-01 UTC. A text without a zone is read only if the
/// session's zone is UTC.
#[inline]
pub fn timestamptz(text: &[u8], precision: i32, env: &Env) -> Result<i64, Refusal> {
    let m = match moment(text) {
        Ok(m) => m,
        Err(Refusal::Ask) => return infinite(text),
        Err(refusal) => return Err(refusal),
    };
    let east = match m.east {
        Some(east) => east,
        None if env.utc => 0,
        None => return Err(Refusal::Ask),
    };
    rounded(m.days, m.micros - i64::from(east) * MICROS_PER_SECOND, precision)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTC: Env = Env {
        utc: true,
        date_order: crate::shape::DateOrder::Mdy,
        money_c: true,
        single_byte: false,
    };
    const DAY: i64 = 86_400_000_000;

    #[test]
    fn dates() {
        assert_eq!(date(b"2000-01-01"), Ok(0));
        assert_eq!(date(b"1999-12-31"), Ok(-1));
        assert_eq!(date(b"2000-02-29"), Ok(59));
        assert_eq!(date(b"4714-11-24 BC"), Ok(-2_451_545));
        assert_eq!(date(b"5874897-12-31"), Ok(2_145_031_948));
        assert_eq!(date(b"-infinity"), Ok(i32::MIN));
        for beyond in ["4714-11-23 BC", "5874898-01-01", "2023-02-29", "0000-01-01", "2024-13-01"] {
            assert_eq!(date(beyond.as_bytes()), Err(Refusal::Range), "{beyond}");
        }
        for unsure in ["", "20240101", "2024-1-1", "01/02/2024", "2024-01-011", "now", "x"] {
            assert_eq!(date(unsure.as_bytes()), Err(Refusal::Ask), "{unsure}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(time(b"24:00:00", -1), Ok(DAY));
        assert_eq!(time(b"23:59:60", -1), Ok(DAY));
        assert_eq!(time(b"23:59:60.1", -1), Err(Refusal::Range));
        assert_eq!(time(b"01:02", -1), Ok(3_720_000_000));
        assert_eq!(time(b"00:00:00.12345678", -1), Ok(123_457));
        assert_eq!(time(b"23:59:59.9999999", -1), Ok(DAY));
        assert_eq!(time(b"00:00:00.15", 1), Ok(200_000));
        assert_eq!(time(b"25:00:00", -1), Err(Refusal::Range));
        assert_eq!(time(b"12:32.5", -1), Err(Refusal::Ask)); // MM:SS.f
        assert_eq!(timetz(b"00:00:00+05:30", -1, &Env::default()), Ok((0, -19_800)));
        assert_eq!(timetz(b"00:00:00", -1, &Env::default()), Err(Refusal::Ask));
    }

    #[test]
    fn timestamps() {
        assert_eq!(timestamp(b"2000-01-01 00:00:00", -1), Ok(0));
        assert_eq!(timestamp(b"2000-01-01T00:00:01.5+09", -1), Ok(1_500_000));
        assert_eq!(timestamp(b"1999-12-31 24:00:00", -1), Ok(0));
        assert_eq!(timestamp(b"infinity", 3), Ok(i64::MAX));
        assert_eq!(timestamp(b"294276-12-31 23:59:59.999999", -1), Ok(9_223_371_331_199_999_999));
        assert_eq!(timestamp(b"294276-12-31 23:59:59.999999", 0), Err(Refusal::Ask));
        assert_eq!(timestamp(b"294277-01-01", -1), Err(Refusal::Range));
        let tz = |text: &str| timestamptz(text.as_bytes(), -1, &Env::default());
        assert_eq!(tz("2000-01-01T00:00:00Z"), Ok(0));
        assert_eq!(tz("2000-01-01 00:00:00 UTC"), Ok(0));
        assert_eq!(tz("2000-01-01 01:00:00 +0100"), Ok(0));
        assert_eq!(tz("1999-12-31 18:30:00-05:30"), Ok(0));
        assert_eq!(tz("2000-01-01 00:00:00"), Err(Refusal::Ask));
        assert_eq!(tz("2000-01-01 00:00:00+16"), Err(Refusal::Ask));
        assert_eq!(timestamptz(b"2000-01-01", -1, &UTC), Ok(0));
    }
}
