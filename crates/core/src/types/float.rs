//! `real` and `double precision`: `float4in_internal` and `float8in_internal` of
//! `src/backend/utils/adt/float.c`, which are `strtof` and `strtod` with additional checks.
//!
//! Hexadecimal floats, and NaN with a sign or a payload, are left to the server, because C
//! libraries differ there.

use super::text::{is_space, trim};
use crate::error::Refusal;

/// The common operations of both types.
trait Float: std::str::FromStr + PartialEq + Copy {
    const ZERO: Self;
    const NAN: Self;
    const INFINITY: Self;
    fn negated(self) -> Self;
    fn finite(self) -> bool;
}

macro_rules! float {
    ($t:ty) => {
        impl Float for $t {
            const ZERO: Self = 0.0;
            const NAN: Self = <$t>::NAN;
            const INFINITY: Self = <$t>::INFINITY;
            fn negated(self) -> Self {
                -self
            }
            fn finite(self) -> bool {
                self.is_finite()
            }
        }
    };
}
float!(f32);
float!(f64);

/// `real`, rounded only once from the decimal digits.
pub fn float4(text: &[u8]) -> Result<f32, Refusal> {
    float(text)
}

/// `double precision`.
pub fn float8(text: &[u8]) -> Result<f64, Refusal> {
    float(text)
}

/// The longest number that is read here. Rust ignores the last digits of an exponent of more than
/// 65,536, which only more digits than that can make up for.
const LONGEST: usize = 1000;

#[inline]
fn float<F: Float>(text: &[u8]) -> Result<F, Refusal> {
    if text.len() > LONGEST {
        return Err(Refusal::Ask);
    }
    plain(text).map_or_else(|| any(text), Ok)
}

/// A finite number other than zero, if `text` is one in the simplest form.
#[inline]
fn plain<F: Float>(text: &[u8]) -> Option<F> {
    // For numbers of these bytes, Rust and strtod give the same result.
    let is_plain = |c: &u8| matches!(c, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
    if !text.iter().all(is_plain) {
        return None;
    }
    let value: F = std::str::from_utf8(text).ok()?.parse().ok()?;
    (value.finite() && value != F::ZERO).then_some(value)
}

fn any<F: Float>(text: &[u8]) -> Result<F, Refusal> {
    let trimmed = trim(text);
    let number = Decimal::prefix(trimmed);
    if number.len == 0 {
        return word(trimmed);
    }
    if matches!(trimmed.get(number.len), Some(b'x' | b'X')) {
        return Err(Refusal::Ask);
    }
    let prefix = std::str::from_utf8(&trimmed[..number.len]).map_err(|_| Refusal::Ask)?;
    let value: F = prefix.parse().map_err(|_| Refusal::Ask)?;
    // strtod reports ERANGE here, and the server then rejects zero and infinity.
    let in_range = value.finite() && (value != F::ZERO || number.is_zero);
    match (number.len == trimmed.len(), in_range) {
        (true, true) => Ok(value),
        (_, false) => Err(Refusal::Range),
        (false, true) => Err(Refusal::Syntax),
    }
}

/// The longest prefix that `strtod` reads as a decimal number.
struct Decimal {
    /// 0 for none
    len: usize,
    /// all digits of the mantissa are zeros
    is_zero: bool,
}

impl Decimal {
    #[inline]
    fn prefix(text: &[u8]) -> Decimal {
        let digits = |from: usize| {
            text[from..].iter().position(|c| !c.is_ascii_digit()).map_or(text.len(), |n| from + n)
        };
        let start = usize::from(matches!(text.first(), Some(b'+' | b'-')));
        let mut end = digits(start);
        let mut count = end - start;
        if text.get(end) == Some(&b'.') {
            let fraction = digits(end + 1);
            count += fraction - end - 1;
            if count > 0 {
                end = fraction;
            }
        }
        if count == 0 {
            return Decimal { len: 0, is_zero: false };
        }
        let is_zero = !text[start..end].iter().any(|c| matches!(c, b'1'..=b'9'));
        if matches!(text.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
            let exponent = end + 1 + sign;
            if exponent < text.len() && digits(exponent) > exponent {
                end = digits(exponent);
            }
        }
        Decimal { len: end, is_zero }
    }
}

/// Reads infinity and NaN. Reports other words that are not a number in any C library.
fn word<F: Float>(text: &[u8]) -> Result<F, Refusal> {
    let (negative, word) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"infinity") {
        return Ok(if negative { F::INFINITY.negated() } else { F::INFINITY });
    }
    if text.eq_ignore_ascii_case(b"nan") {
        return Ok(F::NAN);
    }
    match word.first() {
        Some(b'i' | b'I' | b'n' | b'N') => Err(Refusal::Ask),
        Some(c) if is_space(*c) || c.is_ascii() => Err(Refusal::Syntax),
        Some(_) => Err(Refusal::Ask),
        None => Err(Refusal::Syntax),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strtod_reads() {
        assert_eq!(float8(b"1e5"), Ok(1e5));
        assert_eq!(float8(b" -.5 "), Ok(-0.5));
        assert_eq!(float8(b"5."), Ok(5.0));
        assert_eq!(float8(b"0e-999"), Ok(0.0));
        assert_eq!(float8(b"-0").map(f64::to_bits), Ok((-0.0f64).to_bits()));
        assert_eq!(float8(b"-iNF"), Ok(f64::NEG_INFINITY));
        assert!(float8(b"NaN").unwrap().is_nan());
        for bad in [&b""[..], b".", b"-", b"1e", b"1x2", b"e5", b"1 2", b"xyz", b"1e+"] {
            assert!(
                matches!(float8(bad), Err(Refusal::Syntax | Refusal::Ask)),
                "{bad:?}: {:?}",
                float8(bad)
            );
        }
        assert_eq!(float8(b"0x1p3"), Err(Refusal::Ask));
        assert_eq!(float8(b"-nan"), Err(Refusal::Ask));
    }

    /// Rust reads `e-700000` as `e-70000`.
    #[test]
    fn exponents_of_many_digits_are_left_to_the_server() {
        let zeros = "0".repeat(70_000);
        for long in [format!("1{zeros}e-700000"), format!("0.{zeros}1e700000")] {
            assert!(long.parse::<f64>().is_ok_and(|value| value != 0.0 && value.is_finite()));
            assert_eq!(float8(long.as_bytes()), Err(Refusal::Ask));
        }
    }

    #[test]
    fn the_range_of_each() {
        assert_eq!(float8(b"1e309"), Err(Refusal::Range));
        assert_eq!(float8(b"1e-400"), Err(Refusal::Range));
        assert_eq!(float8(b"5e-324"), Ok(5e-324));
        assert_eq!(float4(b"1e39"), Err(Refusal::Range));
        assert_eq!(float4(b"1e-50"), Err(Refusal::Range));
        assert_eq!(float4(b"16777217.0000001"), Ok(16777218.0));
    }
}
