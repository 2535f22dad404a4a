//! The form of a single value. There are more forms than types for `--create`: also those from
//! which no type is inferred, such as `28/01/2018` or `1,5`. They show where fields end.

use crate::infer::is_uuid;

/// The form of a value, without the blanks around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellKind {
    /// no value
    Empty,
    /// a usual spelling of NULL
    Null,
    Integer,
    /// a number with a point or an exponent
    Decimal,
    /// `1,5`
    Comma,
    /// `1,234,567` or `1.234,5`
    Grouped,
    Bool,
    Date(PartOrder),
    Time,
    Timestamp(PartOrder),
    /// a UUID, a web or e-mail address, an amount of money
    Other,
    /// text with digits
    Code,
    Text,
}

/// The spelling of a value, if a column of numbers would not accept it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// a usual spelling of NULL
    Null,
    /// `1,5` or `1.234,5`
    DecimalComma,
    /// `1,234.5`
    Grouped,
    /// `1,234`
    Either,
    /// a number in the server's form
    Number,
    Other,
}

/// The spelling of a value.
pub(crate) fn spelling(value: &[u8]) -> Spelling {
    let value = value.trim_ascii();
    let last = value.iter().rposition(|c| matches!(c, b',' | b'.'));
    let three = last.is_some_and(|at| value.len() - at == 4);
    match (CellKind::of(value), last.map(|at| value[at])) {
        (CellKind::Null, _) => Spelling::Null,
        (CellKind::Integer | CellKind::Decimal, _) => Spelling::Number,
        (CellKind::Comma, _) if three => Spelling::Either,
        (CellKind::Comma, _) => Spelling::DecimalComma,
        (CellKind::Grouped, Some(b',')) if value.contains(&b'.') => Spelling::DecimalComma,
        (CellKind::Grouped, _) if value.contains(&b',') => Spelling::Grouped,
        _ => Spelling::Other,
    }
}

/// The order of the parts of a date, with or without a time of day, and whether it has a zone.
/// `None` if the value is not a date.
pub(crate) fn moment_of(value: &[u8]) -> Option<(PartOrder, bool)> {
    let value = value.trim_ascii();
    if !value.first()?.is_ascii_digit() {
        return None;
    }
    match moment(value)? {
        CellKind::Date(order) => Some((order, false)),
        CellKind::Timestamp(order) => {
            let time = value.iter().position(|c| matches!(c, b' ' | b'T'))?;
            let zone = value[time + 1..].iter().any(|c| matches!(c, b'+' | b'-' | b'Z' | b'z'));
            Some((order, zone))
        }
        _ => None,
    }
}

/// The order of the parts of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartOrder {
    /// the year is first
    Year,
    /// the day is first: the first number is above 12
    Day,
    /// the month is first: the second number is above 12
    Month,
    /// either the day or the month may be first
    Unknown,
}

/// The usual spellings of NULL. They are compared without regard to case.
pub(super) const NULLS: [&str; 10] =
    ["NA", "N/A", "#N/A", "NULL", "\\N", "None", "nil", "NaN", "-", "?"];

impl CellKind {
    /// The form of a value.
    pub(super) fn of(value: &[u8]) -> CellKind {
        let value = value.trim_ascii();
        if value.is_empty() {
            return CellKind::Empty;
        }
        let first = value[0];
        let digits = value.iter().filter(|c| c.is_ascii_digit()).count();
        if is_null(value) {
            return CellKind::Null;
        }
        // Most values are words.
        if digits == 0 {
            return match value {
                _ if is_bool(value) => CellKind::Bool,
                _ if is_other(value) => CellKind::Other,
                _ => CellKind::Text,
            };
        }
        if first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'.' | b',') {
            if let Some(kind) = number(value).or_else(|| moment(value)) {
                return kind;
            }
        }
        if is_other(value) {
            return CellKind::Other;
        }
        CellKind::Code
    }

    /// Whether the form is specific: not empty and not any text.
    pub(super) fn is_typed(self) -> bool {
        !matches!(self, CellKind::Text | CellKind::Code | CellKind::Empty | CellKind::Null)
    }

    /// Whether there is a value.
    pub(super) fn is_value(self) -> bool {
        !matches!(self, CellKind::Empty | CellKind::Null)
    }

    /// The class of a value. For example, numbers with and without decimals are in one class.
    pub(super) fn class(self) -> Class {
        match self {
            CellKind::Empty | CellKind::Null => Class::None,
            CellKind::Integer | CellKind::Decimal | CellKind::Comma | CellKind::Grouped => {
                Class::Number
            }
            CellKind::Date(_) | CellKind::Timestamp(_) => Class::Date,
            CellKind::Time => Class::Time,
            CellKind::Bool => Class::Bool,
            CellKind::Other => Class::Other,
            CellKind::Code => Class::Code,
            CellKind::Text => Class::Text,
        }
    }
}

/// See [`CellKind::class`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    None,
    Number,
    Date,
    Time,
    Bool,
    Other,
    Code,
    Text,
}

/// Whether the value is a usual spelling of NULL.
pub(super) fn is_null(value: &[u8]) -> bool {
    value.len() <= 4 && NULLS.iter().any(|null| value.eq_ignore_ascii_case(null.as_bytes()))
}

fn is_bool(value: &[u8]) -> bool {
    ["true", "false"].iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes()))
}

fn is_other(value: &[u8]) -> bool {
    let web = value.starts_with(b"http://") || value.starts_with(b"https://");
    web || is_address(value) || is_uuid(value) || is_money(value)
}

fn is_address(value: &[u8]) -> bool {
    let Some(at) = value.iter().position(|c| *c == b'@') else { return false };
    let allowed = |c: &u8| c.is_ascii_alphanumeric() || b"._+-@".contains(c);
    at > 0 && value[at..].contains(&b'.') && value.iter().all(allowed)
}

fn is_money(value: &[u8]) -> bool {
    let signs: [&[u8]; 4] = [b"$", b"\xe2\x82\xac", b"\xc2\xa3", b"\xc2\xa5"];
    let rest = signs.iter().find_map(|sign| {
        value.strip_prefix(*sign).or_else(|| value.strip_suffix(*sign)).map(<[u8]>::trim_ascii)
    });
    rest.is_some_and(|rest| number(rest).is_some())
}

/// The kind of a number, if the value is one.
fn number(value: &[u8]) -> Option<CellKind> {
    let unsigned = value.strip_prefix(b"-").or_else(|| value.strip_prefix(b"+")).unwrap_or(value);
    if unsigned.iter().all(u8::is_ascii_digit) {
        return (!unsigned.is_empty()).then_some(CellKind::Integer);
    }
    let (mantissa, exponent) = match unsigned.iter().position(|c| matches!(c, b'e' | b'E')) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    if let Some(exponent) = exponent {
        let digits = exponent.strip_prefix(b"-").or_else(|| exponent.strip_prefix(b"+"));
        let digits = digits.unwrap_or(exponent);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
    }
    let marks = |mark: u8| mantissa.iter().filter(|c| **c == mark).count();
    let allowed = mantissa.iter().all(|c| c.is_ascii_digit() || matches!(c, b'.' | b','));
    if !allowed || !mantissa.iter().any(u8::is_ascii_digit) {
        return None;
    }
    match (marks(b'.'), marks(b',')) {
        (0 | 1, 0) => Some(CellKind::Decimal),
        (0, 1) => Some(CellKind::Comma),
        _ if exponent.is_some() => None,
        (1, 1) => {
            let first = mantissa.iter().find(|c| matches!(c, b'.' | b',')).copied()?;
            grouped(mantissa, first).then_some(CellKind::Grouped)
        }
        (0 | 1, _) => grouped(mantissa, b',').then_some(CellKind::Grouped),
        (_, 0 | 1) => grouped(mantissa, b'.').then_some(CellKind::Grouped),
        _ => None,
    }
}

/// Whether `mark` is before each group of three digits of the whole number.
fn grouped(mantissa: &[u8], mark: u8) -> bool {
    let other = if mark == b',' { b'.' } else { b',' };
    let end = mantissa.iter().position(|c| *c == other).unwrap_or(mantissa.len());
    let mut groups = mantissa[..end].split(|c| *c == mark);
    let first = groups.next().unwrap_or_default();
    (1..=3).contains(&first.len())
        && groups.all(|group| group.len() == 3)
        && !mantissa[end..].contains(&mark)
}

/// The kind of a date, a time of day or both, if the value is one.
fn moment(value: &[u8]) -> Option<CellKind> {
    let end = value.iter().position(|c| matches!(c, b' ' | b'T')).unwrap_or(value.len());
    match (date(&value[..end]), value.get(end + 1..)) {
        (Some(order), None) => Some(CellKind::Date(order)),
        (Some(order), Some(rest)) => is_time(rest).then_some(CellKind::Timestamp(order)),
        (None, _) => is_time(value).then_some(CellKind::Time),
    }
}

fn date(value: &[u8]) -> Option<PartOrder> {
    let mark = *value.iter().find(|c| !c.is_ascii_digit())?;
    if !matches!(mark, b'-' | b'/' | b'.') {
        return None;
    }
    let mut parts = value.split(|c| *c == mark);
    let parts = [parts.next()?, parts.next()?, parts.next()?, parts.next().unwrap_or_default()];
    let [a, b, c, []] = parts else { return None };
    let numeric = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    if !numeric(a) || !numeric(b) || !numeric(c) || value.len() > 10 {
        return None;
    }
    let number = |part: &[u8]| part.iter().fold(0u32, |n, d| n * 10 + u32::from(d - b'0'));
    let (first, second) = (number(a), number(b));
    if a.len() == 4 {
        return ((1..=12).contains(&second) && (1..=31).contains(&number(c)))
            .then_some(PartOrder::Year);
    }
    let year = c.len() == 4 || (a.len(), b.len(), c.len()) == (2, 2, 2);
    if !year || a.len() > 2 || b.len() > 2 || first == 0 || second == 0 {
        return None;
    }
    match (first, second) {
        (13..=31, 1..=12) => Some(PartOrder::Day),
        (1..=12, 13..=31) => Some(PartOrder::Month),
        (1..=12, 1..=12) => Some(PartOrder::Unknown),
        _ => None,
    }
}

/// Whether the value is a time of day: `9:05`, `10:00:00.5`, `10:00 PM`, `10:00:00+02`, `10:00Z`.
fn is_time(value: &[u8]) -> bool {
    let end = value.iter().position(|c| !matches!(c, b'0'..=b'9' | b':' | b'.'));
    let (clock, zone) = value.split_at(end.unwrap_or(value.len()));
    let mut parts = clock.split(|c| *c == b':');
    let (Some(hour), Some(minute), second) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let pair = |part: &[u8]| part.len() == 2 && part.iter().all(u8::is_ascii_digit);
    let whole = |part: &[u8]| {
        let mut parts = part.splitn(2, |c| *c == b'.');
        pair(parts.next().unwrap_or_default())
            && parts
                .next()
                .is_none_or(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit))
    };
    let zone = zone.trim_ascii();
    let suffix = zone.is_empty()
        || ["am", "pm", "z", "utc"].iter().any(|word| zone.eq_ignore_ascii_case(word.as_bytes()))
        || (matches!(zone[0], b'+' | b'-')
            && zone.len() > 1
            && zone[1..].iter().all(|c| c.is_ascii_digit() || *c == b':'));
    (1..=2).contains(&hour.len())
        && hour.iter().all(u8::is_ascii_digit)
        && pair(minute)
        && second.is_none_or(whole)
        && parts.next().is_none()
        && suffix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_form_that_people_see_in_them() {
        for (value, kind) in [
            ("", CellKind::Empty),
            ("  ", CellKind::Empty),
            ("n/a", CellKind::Null),
            ("\\N", CellKind::Null),
            ("-", CellKind::Null),
            ("007", CellKind::Integer),
            ("-12", CellKind::Integer),
            ("1.5", CellKind::Decimal),
            (".5", CellKind::Decimal),
            ("1e-05", CellKind::Decimal),
            ("1,5", CellKind::Comma),
            ("1,234,567", CellKind::Grouped),
            ("1.234,50", CellKind::Grouped),
            ("1,23,4", CellKind::Code),
            ("true", CellKind::Bool),
            ("2024-02-29", CellKind::Date(PartOrder::Year)),
            ("28/01/2018", CellKind::Date(PartOrder::Day)),
            ("01/28/2018", CellKind::Date(PartOrder::Month)),
            ("01.02.2018", CellKind::Date(PartOrder::Unknown)),
            ("31.12.99", CellKind::Date(PartOrder::Day)),
            ("1.2.3", CellKind::Code),
            ("192.168.1.1", CellKind::Code),
            ("2024-01-02 10:00:00+02", CellKind::Timestamp(PartOrder::Year)),
            ("28/01/2018 9:05", CellKind::Timestamp(PartOrder::Day)),
            ("00:15", CellKind::Time),
            ("10:00 PM", CellKind::Time),
            ("10:00:0", CellKind::Code),
            ("$74.69", CellKind::Other),
            ("a@b.org", CellKind::Other),
            ("https://x.org/1", CellKind::Other),
            ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", CellKind::Other),
            ("MG-8769", CellKind::Code),
            ("5 pipes", CellKind::Code),
            ("x", CellKind::Text),
            ("1;2", CellKind::Code),
        ] {
            assert_eq!(CellKind::of(value.as_bytes()), kind, "{value:?}");
        }
    }
}
