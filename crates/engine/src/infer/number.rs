//! Numbers in their written form: which types return a value unchanged, and whether a column of
//! numbers holds measurements.
//!
//! A number here has at most a minus sign before it, no leading zero, and digits after its point:
//! `007`, `+1` and `5.` are codes and stay text. A number with an exponent may be a code, too
//! (`1E5`, `2310009E13`), and so may `inf`. These count as numbers only in a column whose other
//! values are obviously measurements: see [`NumberColumn::measures`].

use std::fmt::Write as _;

/// The largest exponent, positive or negative, for which `numeric` is used.
const LARGEST: i32 = 400;

/// The words that are values of a double.
const WORDS: [&[u8]; 8] =
    [b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"-inf", b"Inf", b"-Inf"];

/// How many of [`WORDS`] are written as by the server. The others may be names.
const SERVERS: usize = 3;

/// A number in its written form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: Option<Exponent>,
    negative: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exponent {
    value: i32,
    /// true if it has a sign, which programs print and people rarely write
    signed: bool,
}

impl<'a> Number<'a> {
    fn read(text: &'a [u8]) -> Option<Number<'a>> {
        let (negative, digits) = match text.strip_prefix(b"-") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let end = digits.iter().position(|c| matches!(c, b'e' | b'E'));
        let (mantissa, exponent) = match end {
            Some(at) => (&digits[..at], Some(Exponent::read(&digits[at + 1..])?)),
            None => (digits, None),
        };
        let (whole, fraction) = match mantissa.iter().position(|c| *c == b'.') {
            Some(at) if at + 1 < mantissa.len() => (&mantissa[..at], &mantissa[at + 1..]),
            Some(_) => return None,
            None => (mantissa, &mantissa[..0]),
        };
        let are_digits = whole.iter().chain(fraction).all(u8::is_ascii_digit);
        let padded = whole.len() > 1 && whole[0] == b'0';
        let empty = whole.is_empty() && fraction.is_empty();
        (are_digits && !padded && !empty).then_some(Number { whole, fraction, exponent, negative })
    }

    fn is_negative_zero(&self) -> bool {
        self.negative && self.whole.iter().chain(self.fraction).all(|c| *c == b'0')
    }

    fn is_plain(&self) -> bool {
        self.exponent.is_none() && !self.is_negative_zero()
    }

    /// Whether the shortest text of the double has the same digits and decimals. `1.50` has one
    /// decimal more.
    fn is_as_printed(&self) -> bool {
        self.exponent.is_some() || self.fraction == b"0" || self.fraction.last() != Some(&b'0')
    }

    /// The digits without leading and trailing zeros, and the position of the point relative to the
    /// first.
    fn decimal(&self) -> (Vec<u8>, i32) {
        let all: Vec<u8> = [self.whole, self.fraction].concat();
        let zeros = all.iter().take_while(|c| **c == b'0').count();
        let end = all.iter().rposition(|c| *c != b'0').map_or(zeros, |last| last + 1);
        let point = self.whole.len() as i32 - zeros as i32;
        let exponent = self.exponent.map_or(0, |e| e.value);
        match end > zeros {
            true => (all[zeros..end].to_vec(), point + exponent),
            false => (Vec::new(), 0),
        }
    }
}

impl Exponent {
    fn read(text: &[u8]) -> Option<Exponent> {
        let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let value = std::str::from_utf8(text).ok()?.parse().ok()?;
        // No double has an exponent of five digits.
        let signed = digits.len() < text.len();
        (-9999..=9999).contains(&value).then_some(Exponent { value, signed })
    }
}

/// Whether an integer type returns the value unchanged.
pub(super) fn is_integer(text: &[u8]) -> bool {
    Number::read(text).is_some_and(|n| n.is_plain() && n.fraction.is_empty())
}

/// Whether `numeric` returns the value unchanged: with all digits, including trailing zeros. It has
/// no negative zero.
pub(super) fn fits_numeric(text: &[u8]) -> bool {
    match Number::read(text) {
        Some(n) if n.is_negative_zero() => false,
        Some(n) => n.exponent.is_none_or(|e| (-LARGEST..=LARGEST).contains(&e.value)),
        None => WORDS.contains(&text),
    }
}

/// Whether `double precision` returns the value unchanged: its shortest text is the same decimal
/// number.
pub(super) fn fits_float(text: &[u8]) -> bool {
    let Some(number) = Number::read(text) else { return WORDS.contains(&text) };
    let value = std::str::from_utf8(text).ok().and_then(|t| t.parse::<f64>().ok());
    let Some(value) = value.filter(|v| v.is_finite()) else { return false };
    number.is_as_printed()
        && printed(value.abs()) == Some(number.decimal())
        && is_inside(&number, value)
}

/// The decimal number that the server prints for a double: the shortest that is read as that
/// double. Of two that are equally near, it is the even one.
fn printed(value: f64) -> Option<(Vec<u8>, i32)> {
    let (mut text, mut exact) = (String::new(), String::new());
    write!(text, "{value:e}").ok()?;
    let (mut digits, point) = Number::read(text.as_bytes())?.decimal();
    // A value that is midway between two numbers of 17 digits has far fewer than 60 digits.
    write!(exact, "{value:.60e}").ok()?;
    let (all, _) = Number::read(exact.as_bytes())?.decimal();
    if all.len() == digits.len() + 1 && all.last() == Some(&b'5') {
        let mut even = all[..digits.len()].to_vec();
        let last = even.last_mut()?;
        // A last digit of 9 cannot occur here: the number rounded up would be shorter.
        *last += (*last - b'0') % 2;
        // Below a power of two, doubles are closer to each other.
        let text = format!("0.{}e{point}", String::from_utf8_lossy(&even));
        if text.parse() == Ok(value) {
            digits = even;
        }
    }
    Some((digits, point))
}

/// Whether the number is strictly between the midpoints to the doubles before and after this one.
/// At a midpoint, the server prints another digit.
fn is_inside(number: &Number, value: f64) -> bool {
    let (mut digits, point) = number.decimal();
    if digits.is_empty() {
        return true;
    }
    let reads = |digits: &[u8], more: char| {
        let digits = String::from_utf8_lossy(digits);
        let tail: String = std::iter::repeat_n(more, 25).collect();
        format!("0.{digits}{tail}1e{point}").parse::<f64>() == Ok(value.abs())
    };
    let above = reads(&digits, '0');
    if let Some(last) = digits.last_mut() {
        // The last digit is not a zero.
        *last -= 1;
    }
    above && reads(&digits, '9')
}

/// Whether the value is a number only in a column whose other values are measurements.
pub(super) fn needs_measures(text: &[u8]) -> bool {
    match Number::read(text) {
        Some(number) => !number.is_plain(),
        None => WORDS[SERVERS..].contains(&text),
    }
}

/// The properties of all numbers of a column together.
#[derive(Clone, Debug, Default)]
pub(super) struct NumberColumn {
    /// a fraction has another number of decimals than two, which money has
    fractions: bool,
    /// an exponent in the form that programs print
    exponent: Option<i32>,
    /// another such exponent with another value
    exponents: bool,
    /// a value is a number only in a column of measurements
    needs: bool,
    /// a value has a form that only a double prints
    floats: bool,
}

impl NumberColumn {
    /// Reads a value.
    pub fn see(&mut self, text: &[u8]) {
        self.needs |= needs_measures(text);
        let Some(number) = Number::read(text) else {
            self.floats |= WORDS.contains(&text);
            return;
        };
        self.floats |= !number.is_plain();
        let Some(exponent) = number.exponent else {
            self.fractions |= number.is_plain() && !matches!(number.fraction.len(), 0 | 2);
            return;
        };
        if exponent.signed || !number.fraction.is_empty() {
            self.exponents |= self.exponent.is_some_and(|other| other != exponent.value);
            self.exponent = Some(exponent.value);
        }
    }

    /// Whether the column obviously has measurements: there are fractions with another number of
    /// decimals than two, or exponents of several sizes in the form that programs print (`1e-05`,
    /// `2.5e3`; not `1E5`, which may be a code).
    pub fn measures(&self) -> bool {
        self.fractions || self.exponents
    }

    /// Whether its values count as numbers.
    pub fn may_be_numbers(&self) -> bool {
        !self.needs || self.measures()
    }

    /// Whether a double is preferred to a numeric.
    pub fn prefers_float(&self) -> bool {
        self.floats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_gives_back_what_is_its_shortest_text() {
        for good in [
            "0.0811466840860277",
            "9.03999971342273e-05",
            "1e-300",
            "5e-324",
            "2.9802322387695312e-08",
            "1.7976931348623157e308",
            ".4",
            "-.5",
            "-0",
            "0.0",
            "3.0",
            "1.50e3",
            "9007199254740992",
            "NaN",
            "-inf",
        ] {
            assert!(fits_float(good.as_bytes()), "{good}");
        }
        for bad in [
            "1.50",
            "0.08114668408602771234",
            "9007199254740993",
            "1e400",
            "1e-400",
            "4.9e-324",
            "2.9802322387695313e-08",
            "007",
            "+1",
            "5.",
            ".",
            "-",
            "1e",
            "e5",
            "0x10",
            "1_000",
            "NAN",
            "",
        ] {
            assert!(!fits_float(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn numeric_takes_every_digit_and_no_negative_zero() {
        for good in ["1.50", "0.08114668408602771234", ".4", "1e400", "1.5E-5", "-1", "Infinity"] {
            assert!(fits_numeric(good.as_bytes()), "{good}");
        }
        for bad in ["-0", "-0.0", "-0e5", "1e401", "1e-20000", "5.", "00.5", "1e99999999999"] {
            assert!(!fits_numeric(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn columns_of_measurements_have_fractions_or_exponents_of_several_sizes() {
        for (values, numbers) in [
            (&["1E5", "2E5"][..], false),
            (&["1E5", "2310009E13", "7"], false),
            (&["1.50", "2.25", "1e3"], false),
            (&["1", "2", "1e+05"], false),
            (&["1", "-0"], false),
            (&["1", "inf"], false),
            (&["NaN", "1"], true),
            (&["1.5", "1e3"], true),
            (&["0.125", "1E5"], true),
            (&["1e-05", "2e-07"], true),
            (&["1.5e3", "2.5e4", "1E5"], true),
            (&["0.5", "-0", "inf"], true),
        ] {
            let mut column = NumberColumn::default();
            values.iter().for_each(|v| column.see(v.as_bytes()));
            assert_eq!(column.may_be_numbers(), numbers, "{values:?}");
        }
    }
}
