//! `varchar(n)`, `char(n)`, `name`: `varchar_input`, `bpchar_input` and `namein` of
//! `src/backend/utils/adt/{varchar,name}.c`. Also helpers for reading text that other types use.

use crate::error::Refusal;
use crate::sink::RowSink;

/// The bytes that `isspace` accepts in every locale.
#[inline]
pub(super) fn is_space(c: u8) -> bool {
    matches!(c, b' ' | b'\t'..=b'\r')
}

/// `text` without the white space around it.
#[inline]
pub(super) fn trim(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text {
        if !is_space(*first) {
            break;
        }
        text = rest;
    }
    while let [rest @ .., last] = text {
        if !is_space(*last) {
            break;
        }
        text = rest;
    }
    text
}

/// The value of each hexadecimal digit; 0xff for other bytes.
const HEX: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut digit = 0;
    while digit < 16 {
        table[b"0123456789abcdef"[digit] as usize] = digit as u8;
        table[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    table
};

/// The value of one hexadecimal digit.
#[inline]
pub(super) fn hex_digit(c: u8) -> Option<u8> {
    Some(HEX[usize::from(c)]).filter(|digit| *digit < 16)
}

/// The value of two hexadecimal digits.
#[inline]
pub(super) fn hex_pair(a: u8, b: u8) -> Option<u8> {
    let (high, low) = (HEX[usize::from(a)], HEX[usize::from(b)]);
    ((high | low) < 16).then_some(high << 4 | low)
}

/// The value of two decimal digits, which must be all of `text`.
#[inline]
pub(super) fn two_digits(text: &[u8]) -> Option<u32> {
    match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9'] => Some(u32::from(a - b'0') * 10 + u32::from(b - b'0')),
        _ => None,
    }
}

/// The number of characters in `text`, which must be valid UTF-8.
#[inline]
fn characters(text: &[u8]) -> usize {
    text.iter().filter(|c| (**c as i8) >= -64).count()
}

/// Cuts `text` to `limit` characters, if all further characters are spaces.
fn clip(text: &[u8], limit: usize) -> Result<&[u8], Refusal> {
    let mut starts = text.iter().enumerate().filter(|(_, c)| (**c as i8) >= -64).map(|(i, _)| i);
    let end = starts.nth(limit).unwrap_or(text.len());
    let (kept, cut) = text.split_at(end);
    if cut.iter().all(|c| *c == b' ') {
        Ok(kept)
    } else {
        Err(Refusal::TooLong)
    }
}

/// `varchar(limit)`.
#[inline]
pub fn varchar(text: &[u8], limit: Option<u32>) -> Result<&[u8], Refusal> {
    match limit {
        Some(limit) if text.len() > limit as usize => clip(text, limit as usize),
        _ => Ok(text),
    }
}

/// `char(length)`: padded with spaces to `length` characters.
#[inline]
pub fn bpchar<S: RowSink>(text: &[u8], length: Option<u32>, sink: &mut S) -> Result<(), Refusal> {
    let Some(length) = length.map(|n| n as usize) else {
        sink.put_bytes(text);
        return Ok(());
    };
    let count = characters(text);
    if count >= length {
        sink.put_bytes(clip(text, length)?);
    } else {
        sink.put_padded(text, length - count);
    }
    Ok(())
}

/// `name`: at most 63 bytes. Longer ASCII is cut. Longer text with other characters is left to the
/// server, because a cut might divide a character.
pub fn name(text: &[u8]) -> Result<&[u8], Refusal> {
    const MOST: usize = 63; // NAMEDATALEN - 1
    if text.len() <= MOST {
        Ok(text)
    } else if text.is_ascii() {
        Ok(&text[..MOST])
    } else {
        Err(Refusal::Ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::PgCopySink;

    #[test]
    fn limits_count_characters_and_let_spaces_go() {
        assert_eq!(varchar("äöü".as_bytes(), Some(3)), Ok("äöü".as_bytes()));
        assert_eq!(varchar("äöü  ".as_bytes(), Some(4)), Ok("äöü ".as_bytes()));
        assert_eq!(varchar("äöü".as_bytes(), Some(2)), Err(Refusal::TooLong));
        assert_eq!(varchar(b"abc \t", Some(3)), Err(Refusal::TooLong));
        assert_eq!(varchar(b"", Some(1)), Ok(&b""[..]));
    }

    #[test]
    fn char_is_padded_in_characters() {
        let mut sink = PgCopySink::new(1);
        bpchar("ä".as_bytes(), Some(3), &mut sink).unwrap();
        assert_eq!(sink.bytes(), b"\0\0\0\x04\xc3\xa4  ");
        assert_eq!(bpchar(b"abcd", Some(3), &mut sink), Err(Refusal::TooLong));
    }

    #[test]
    fn padding_is_bounded() {
        let mut sink = PgCopySink::new(1).within(100);
        for (length, full) in [(90, false), (91, false), (1 << 30, true)] {
            sink.clear();
            bpchar(b"a", Some(length), &mut sink).unwrap();
            assert_eq!(sink.is_full(), full, "{length}");
        }
        assert!(sink.bytes().len() < 100);
    }

    #[test]
    fn long_names() {
        assert_eq!(name(&[b'x'; 70]).map(<[u8]>::len), Ok(63));
        assert_eq!(name("ä".repeat(40).as_bytes()), Err(Refusal::Ask));
    }
}
