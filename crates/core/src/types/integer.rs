//! `smallint`, `integer`, `bigint`: `pg_strtoint16`, `pg_strtoint32`,
//! `pg_strtoint64` of `src/backend/utils/adt/numutils.c`.
//!
//! Read here: an optional sign and decimal digits. Surrounding white space,
//! and the hexadecimal, octal and binary forms and underscores that PostgreSQL
//! 16 added, are left to the server.

use crate::error::Refusal;

/// `smallint`.
pub fn int2(text: &[u8]) -> Result<i16, Refusal> {
    i16::try_from(int8(text)?).map_err(|_| Refusal::Range)
}

/// `integer`.
#[inline]
pub fn int4(text: &[u8]) -> Result<i32, Refusal> {
    i32::try_from(int8(text)?).map_err(|_| Refusal::Range)
}

/// `bigint`.
#[inline]
pub fn int8(text: &[u8]) -> Result<i64, Refusal> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return Err(Refusal::Syntax);
    }
    // Negative, so that the smallest value needs no case of its own.
    let mut value: i64 = 0;
    for c in digits {
        let digit = c.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Refusal::Ask);
        }
        let next = value.checked_mul(10).and_then(|v| v.checked_sub(i64::from(digit)));
        value = next.ok_or(Refusal::Ask)?;
    }
    if negative {
        Ok(value)
    } else {
        value.checked_neg().ok_or(Refusal::Range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(int8(b"-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(int8(b"9223372036854775807"), Ok(i64::MAX));
        assert_eq!(int8(b"9223372036854775808"), Err(Refusal::Range));
        assert_eq!(int4(b"+2147483647"), Ok(i32::MAX));
        assert_eq!(int4(b"2147483648"), Err(Refusal::Range));
        assert_eq!(int2(b"-32768"), Ok(i16::MIN));
        assert_eq!(int4(b""), Err(Refusal::Syntax));
        assert_eq!(int4(b"1_000"), Err(Refusal::Ask));
    }
}
