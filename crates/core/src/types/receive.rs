//! Reads values in the binary form of their types, as in `FORMAT binary`.
//!
//! The rules are those of the types' receive functions in `src/backend/utils/adt/` (`int4recv`,
//! `date_recv`, `numeric_recv` …). Only values that these functions certainly accept are read.
//! Wrong lengths, values near the ends of a range, and values that a type modifier would change are
//! left to the server.

use super::{numeric, put};
use crate::error::Refusal;
use crate::scan::valid_utf8;
use crate::shape::{Env, Type};
use crate::sink::RowSink;

const MICROS_OF_DAY: i64 = 86_400_000_000;
/// Days from 2000-01-01: `DATETIME_MIN_JULIAN` and `DATE_END_JULIAN` less `POSTGRES_EPOCH_JDATE`.
const DATES: std::ops::Range<i32> = -2_451_545..2_145_031_949;
/// Microseconds from 2000-01-01: `MIN_TIMESTAMP` and `END_TIMESTAMP`.
const TIMESTAMPS: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;
/// `TZDISP_LIMIT` in seconds.
const ZONE_LIMIT: i32 = 57_600;

/// Writes the value whose binary form is `bytes` into the sink.
///
/// Text in the data must be in the server's encoding.
///
/// # Errors
///
/// [`Refusal::Ask`]. The row must be undone, or the server must read the value.
#[inline]
pub fn receive<S: RowSink>(
    ty: &Type,
    bytes: &[u8],
    env: &Env,
    sink: &mut S,
) -> Result<(), Refusal> {
    match ty {
        Type::Int4 => sink.put_i32(i32::from_be_bytes(exactly(bytes)?)),
        Type::Int8 | Type::Money => sink.put_i64(i64::from_be_bytes(exactly(bytes)?)),
        Type::Int2 => sink.put_i16(i16::from_be_bytes(exactly(bytes)?)),
        Type::Bool => sink.put_bool(exactly::<1>(bytes)? != [0]),
        Type::Float8 => sink.put_f64(f64::from_be_bytes(exactly(bytes)?)),
        Type::Float4 => sink.put_f32(f32::from_be_bytes(exactly(bytes)?)),
        Type::Numeric(typmod) => numeric::receive(bytes, *typmod, |n| sink.put_numeric(n))?,
        Type::Text | Type::Varchar(_) | Type::Bpchar(_) | Type::Json | Type::Enum(_) => {
            return put(ty, text(bytes, env)?, env, sink);
        }
        // `jsonb_recv`: a version byte, 1, then the text.
        Type::Jsonb if bytes.first() == Some(&1) => {
            return put(ty, text(&bytes[1..], env)?, env, sink);
        }
        // The input function of `name` cuts a longer value, but its receive function rejects it.
        Type::Name if bytes.len() < 64 => sink.put_name(text(bytes, env)?),
        Type::Bytea => sink.put_bytes(bytes),
        Type::Timestamp(-1) | Type::TimestampTz(-1) => {
            let micros = i64::from_be_bytes(exactly(bytes)?);
            let infinite = micros == i64::MIN || micros == i64::MAX;
            sink.put_i64(ask_unless(infinite || TIMESTAMPS.contains(&micros), micros)?);
        }
        _ => return receive_rarer(ty, bytes, sink),
    }
    Ok(())
}

fn receive_rarer<S: RowSink>(ty: &Type, bytes: &[u8], sink: &mut S) -> Result<(), Refusal> {
    match ty {
        Type::Oid => sink.put_u32(u32::from_be_bytes(exactly(bytes)?)),
        Type::Date => {
            let days = i32::from_be_bytes(exactly(bytes)?);
            let infinite = days == i32::MIN || days == i32::MAX;
            sink.put_i32(ask_unless(infinite || DATES.contains(&days), days)?);
        }
        Type::Time(-1) => {
            let micros = i64::from_be_bytes(exactly(bytes)?);
            sink.put_i64(ask_unless((0..=MICROS_OF_DAY).contains(&micros), micros)?);
        }
        Type::TimeTz(-1) => {
            let (micros, west) = long_and_int(&exactly(bytes)?);
            ask_unless((0..=MICROS_OF_DAY).contains(&micros), ())?;
            // abs() would overflow for the smallest number.
            let near = -ZONE_LIMIT < west && west < ZONE_LIMIT;
            sink.put_timetz(micros, ask_unless(near, west)?);
        }
        Type::Interval(-1) => {
            let [long_int @ .., a, b, c, d] = exactly::<16>(bytes)?;
            let (micros, days) = long_and_int(&long_int);
            sink.put_interval(micros, days, i32::from_be_bytes([a, b, c, d]));
        }
        Type::Uuid => sink.put_uuid(exactly(bytes)?),
        Type::Macaddr => sink.put_macaddr(exactly(bytes)?),
        Type::Macaddr8 => sink.put_macaddr8(exactly(bytes)?),
        _ => return Err(Refusal::Ask),
    }
    Ok(())
}

/// The bytes as an array, if their number is that of the type.
#[inline]
fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Refusal> {
    bytes.try_into().map_err(|_| Refusal::Ask)
}

#[inline]
fn ask_unless<T>(sure: bool, value: T) -> Result<T, Refusal> {
    if sure {
        Ok(value)
    } else {
        Err(Refusal::Ask)
    }
}

/// The text, if the check of `pq_getmsgtext` accepts it.
#[inline]
fn text<'a>(bytes: &'a [u8], env: &Env) -> Result<&'a [u8], Refusal> {
    let valid = if env.single_byte { !bytes.contains(&0) } else { valid_utf8(bytes).is_ok() };
    ask_unless(valid, bytes)
}

fn long_and_int(bytes: &[u8; 12]) -> (i64, i32) {
    let [a, b, c, d, e, f, g, h, int @ ..] = *bytes;
    (i64::from_be_bytes([a, b, c, d, e, f, g, h]), i32::from_be_bytes(int))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::PgCopySink;

    /// Receives a value and sends it again; `None` if only the server can read it.
    fn echo(ty: &Type, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut sink = PgCopySink::new(1);
        sink.begin();
        receive(ty, bytes, &Env::default(), &mut sink).ok()?;
        sink.end();
        Some(sink.bytes()[6..].to_vec())
    }

    #[test]
    fn what_is_accepted_is_unchanged() {
        let sixteen: Vec<u8> = (1..17).collect();
        for (ty, bytes) in [
            (Type::Int2, &[0x80, 0][..]),
            (Type::Int4, &[0xff; 4]),
            (Type::Int8, &[0x7f; 8]),
            (Type::Float8, &[0x7f, 0xf8, 0, 0, 0, 0, 0, 1]),
            (Type::Text, "ž".as_bytes()),
            (Type::Varchar(Some(1)), "ž".as_bytes()),
            (Type::Bytea, &[0, 0xff]),
            (Type::Jsonb, b"\x01[1]"),
            (Type::Uuid, &sixteen),
            (Type::Interval(-1), &sixteen),
            (Type::TimestampTz(-1), &[0x80, 0, 0, 0, 0, 0, 0, 0]),
            (Type::TimeTz(-1), &[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0xe0, 0xff]),
            (Type::Numeric(-1), &[0, 2, 0, 0, 0x40, 0, 0, 1, 0, 5, 0x13, 0x88]),
        ] {
            assert_eq!(echo(&ty, bytes).as_deref(), Some(bytes), "{ty:?}");
            if !matches!(ty, Type::Text | Type::Bytea) {
                let longer = [bytes, b" x"].concat();
                assert_eq!(echo(&ty, &longer), None, "{ty:?}");
            }
        }
    }

    #[test]
    fn what_is_not_sure_is_asked_for() {
        for (ty, bytes) in [
            (Type::Text, &[0xff][..]),
            (Type::Text, b"a\0"),
            (Type::Json, b"{"),
            (Type::Jsonb, b"\x01{"),
            (Type::Jsonb, b"\x02[1]"),
            (Type::Jsonb, b"[1]"),
            (Type::Jsonb, b"\x01\xff"),
            (Type::Jsonb, b""),
            (Type::Name, &[b'x'; 64]),
            (Type::Date, &[0x7f, 0xff, 0xff, 0xfe]),
            (Type::Time(-1), &[0xff; 8]),
            (Type::Time(2), &[0; 8]),
            (Type::TimeTz(-1), &[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0xe1, 0]),
            (Type::TimeTz(-1), &[0, 0, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0x1f, 0]),
            (Type::TimeTz(-1), &[0, 0, 0, 0, 0, 0, 0, 7, 0x80, 0, 0, 0]),
            (Type::Timestamp(-1), &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]),
            (Type::Numeric(-1), &[0, 1, 0, 0, 0, 0, 0, 0, 0x27, 0x10]),
            (Type::Numeric(-1), &[0, 1, 0, 0, 0x12, 0, 0, 0, 0, 1]),
            (Type::Numeric(-1), &[0, 2, 0, 0, 0, 0, 0, 1, 0, 5, 0x13, 0x89]),
            (Type::Numeric(-1), &[0, 9, 0, 0, 0, 0, 0, 0]),
            (Type::Numeric(-1), &[0]),
            (Type::Server, &[]),
        ] {
            assert_eq!(echo(&ty, bytes), None, "{ty:?}");
        }
    }
}
