//! `uuid`: `string_to_uuid` of `src/backend/utils/adt/uuid.c`.

use super::text::hex_pair;
use crate::error::Refusal;

/// `uuid`: 32 hexadecimal digits. A hyphen may follow each group of four digits, and braces may
/// enclose all.
pub fn uuid(text: &[u8]) -> Result<[u8; 16], Refusal> {
    let mut rest = match text {
        [b'{', inner @ .., b'}'] => inner,
        _ => text,
    };
    let mut value = [0; 16];
    for (at, byte) in value.iter_mut().enumerate() {
        let [a, b, after @ ..] = rest else {
            return Err(Refusal::Syntax);
        };
        *byte = hex_pair(*a, *b).ok_or(Refusal::Syntax)?;
        rest = match after {
            [b'-', after @ ..] if at % 2 == 1 && at < 15 => after,
            _ => after,
        };
    }
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(Refusal::Syntax)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let expected = Ok(*b"\xa0\xee\xbc\x99\x9c\x0b\x4e\xf8\xbb\x6d\x6b\xb9\xbd\x38\x0a\x11");
        for text in [
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}",
            "a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
        ] {
            assert_eq!(uuid(text.as_bytes()), expected, "{text}");
        }
        for bad in [
            "",
            "{a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0eebc999c0b4ef8bb6d6bb9bd380a11-",
            "a0-eebc999c0b4ef8bb6d6bb9bd380a11",
            " a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0eebc999c0b4ef8bb6d6bb9bd380a1g",
        ] {
            assert_eq!(uuid(bad.as_bytes()), Err(Refusal::Syntax), "{bad}");
        }
    }
}
