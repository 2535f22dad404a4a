//! `money` if `lc_monetary` is C: `cash_in` of `src/backend/utils/adt/cash.c`.

use super::text::trim;
use crate::error::Refusal;

/// `money`, in cents: a minus, a dollar sign, digits with commas anywhere, a point and decimals,
/// rounded to two. Parentheses, trailing signs and amounts near the limits are left to the server.
pub fn money(text: &[u8]) -> Result<i64, Refusal> {
    let text = trim(text);
    let (negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let digits = rest.strip_prefix(b"$").unwrap_or(rest);
    if digits.len() > 40 || !digits.iter().any(u8::is_ascii_digit) {
        return Err(Refusal::Ask);
    }
    let mut cents: i64 = 0;
    let mut decimals = None;
    for c in digits {
        match (c, decimals) {
            (b'0'..=b'9', Some(0 | 1) | None) => {
                let next = cents.checked_mul(10).and_then(|v| v.checked_add(i64::from(c - b'0')));
                cents = next.ok_or(Refusal::Ask)?;
                decimals = decimals.map(|n| n + 1);
            }
            (b'0'..=b'9', Some(n)) => {
                // The third decimal rounds. Further decimals are ignored.
                let up = i64::from(n == 2 && *c >= b'5');
                cents = cents.checked_add(up).ok_or(Refusal::Ask)?;
                decimals = Some(n + 1);
            }
            (b'.', None) => decimals = Some(0),
            (b',', None) => {}
            _ => return Err(Refusal::Ask),
        }
    }
    let missing = 2 - decimals.unwrap_or(0).min(2);
    let cents = cents.checked_mul(10i64.pow(missing)).ok_or(Refusal::Ask)?;
    Ok(if negative { -cents } else { cents })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(money(b"12.34"), Ok(1234));
        assert_eq!(money(b"-$1,234.5"), Ok(-123_450));
        assert_eq!(money(b"$7"), Ok(700));
        assert_eq!(money(b".995"), Ok(100));
        assert_eq!(money(b"0.9949"), Ok(99));
        for unsure in [&b""[..], b"(1)", b"1-", b"1.2.3", b"99999999999999999999", b"$"] {
            assert_eq!(money(unsure), Err(Refusal::Ask), "{unsure:?}");
        }
    }
}
