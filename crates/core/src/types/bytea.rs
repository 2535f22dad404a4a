//! `bytea`: `byteain` and `hex_decode` of `src/backend/utils/adt/{varlena,encode}.c`.

use super::text::hex_pair;
use crate::error::Refusal;
use crate::memory::Fallible;
use std::borrow::Cow;

/// `bytea` in hex form (`\x…`) or in escape form.
///
/// The server rejects a bad hex digit with a separate SQLSTATE (22023), so that case is left to the
/// server.
pub fn bytea(text: &[u8]) -> Result<Cow<'_, [u8]>, Refusal> {
    if let Some(hex) = text.strip_prefix(b"\\x") {
        return hex_decode(hex).map(Cow::Owned);
    }
    if !text.contains(&b'\\') {
        return Ok(Cow::Borrowed(text));
    }
    unescape(text).map(Cow::Owned)
}

/// Decodes pairs of digits. White space may be between pairs.
fn hex_decode(hex: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut out = Vec::with_room(hex.len() / 2)?;
    let mut rest = hex;
    loop {
        match rest {
            [] => return Ok(out),
            [b' ' | b'\n' | b'\t' | b'\r', after @ ..] => rest = after,
            [a, b, after @ ..] => {
                out.push_within(hex_pair(*a, *b).ok_or(Refusal::Ask)?);
                rest = after;
            }
            [_] => return Err(Refusal::Ask),
        }
    }
}

/// Resolves backslashes. A backslash must precede another one, or three octal digits.
fn unescape(text: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut out = Vec::with_room(text.len())?;
    let mut rest = text;
    loop {
        match rest {
            [] => return Ok(out),
            [b'\\', b'\\', after @ ..] => {
                out.push_within(b'\\');
                rest = after;
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push_within((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            [b'\\', ..] => return Err(Refusal::Syntax),
            [c, after @ ..] => {
                out.push_within(*c);
                rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        assert_eq!(bytea(b"\\x00fF").unwrap().as_ref(), [0, 0xff]);
        assert_eq!(bytea(b"\\x").unwrap().as_ref(), b"");
        assert_eq!(bytea(b"\\x 0a\n0b").unwrap().as_ref(), [10, 11]);
        assert_eq!(bytea(b"a\\\\b\\000\\377").unwrap().as_ref(), b"a\\b\0\xff");
        assert_eq!(bytea(b"plain").unwrap().as_ref(), b"plain");
        assert_eq!(bytea(b"\\x0"), Err(Refusal::Ask));
        assert_eq!(bytea(b"\\x0 a"), Err(Refusal::Ask));
        assert_eq!(bytea(b"\\400"), Err(Refusal::Syntax));
        assert_eq!(bytea(b"a\\"), Err(Refusal::Syntax));
    }
}
