//! Checks UTF-8 like `pg_utf8_verifystr` (`src/common/wchar.c`): the rules of the standard, and no
//! NUL.

/// The first invalid bytes, as the server reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBytes {
    /// their position
    pub offset: usize,
    bytes: [u8; 4],
    len: u8,
}

impl BadBytes {
    /// The bytes that the server would report (`report_invalid_encoding`): as many as the first one
    /// announces, if the text has them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The server's message: `invalid byte sequence for encoding "UTF8": 0xff`.
    #[allow(clippy::disallowed_macros, clippy::disallowed_methods)] // only the loader gives it
    pub fn message(&self) -> String {
        let bytes: Vec<String> = self.bytes().iter().map(|b| format!("0x{b:02x}")).collect();
        format!("invalid byte sequence for encoding \"UTF8\": {}", bytes.join(" "))
    }
}

/// Checks that `text` is valid UTF-8 without NUL.
///
/// # Errors
///
/// The first invalid bytes.
pub fn valid_utf8(text: &[u8]) -> Result<(), BadBytes> {
    let nul = memchr::memchr(0, text);
    if nul.is_none() && simdutf8::basic::from_utf8(text).is_ok() {
        return Ok(());
    }
    // A NUL is invalid, so only the bytes before it need further checks.
    let head = &text[..nul.unwrap_or(text.len())];
    let offset = match simdutf8::compat::from_utf8(head) {
        Ok(_) => head.len(),
        Err(error) => error.valid_up_to(),
    };
    let announced = match text[offset] {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    let len = announced.min(text.len() - offset);
    let mut bytes = [0; 4];
    bytes[..len].copy_from_slice(&text[offset..offset + len]);
    Err(BadBytes { offset, bytes, len: len as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_first_bad_bytes_as_the_server_does() {
        let bad = |text: &[u8]| {
            let bad = valid_utf8(text).unwrap_err();
            (bad.offset, bad.message().rsplit(": ").next().unwrap().to_string())
        };
        assert_eq!(valid_utf8("aé漢🚂".as_bytes()), Ok(()));
        assert_eq!(bad(b"ab\0c\xff"), (2, "0x00".into()));
        assert_eq!(bad(b"a\xffb\0"), (1, "0xff".into()));
        assert_eq!(bad(b"\xc3("), (0, "0xc3 0x28".into()));
        assert_eq!(bad(b"xy\xe6\xbc"), (2, "0xe6 0xbc".into()));
        assert_eq!(bad(b"\xed\xa0\x80"), (0, "0xed 0xa0 0x80".into()));
        assert_eq!(bad(b"\xf4\x90\x80\x80z"), (0, "0xf4 0x90 0x80 0x80".into()));
    }
}
