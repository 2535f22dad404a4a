//! `bit(n)` and `bit varying(n)`: `bit_in` and `varbit_in` of
//! `src/backend/utils/adt/varbit.c`.

use super::text::hex_digit;
use crate::error::Refusal;
use crate::memory::Fallible;

/// The written digits of a bit string.
struct Digits<'t> {
    text: &'t [u8],
    /// hexadecimal (`x…`), not binary (`b…` or no prefix)
    hex: bool,
}

impl<'t> Digits<'t> {
    fn of(text: &'t [u8]) -> Self {
        match text {
            [b'x' | b'X', rest @ ..] => Digits { text: rest, hex: true },
            [b'b' | b'B', rest @ ..] => Digits { text: rest, hex: false },
            _ => Digits { text, hex: false },
        }
    }

    fn bits(&self) -> Result<u32, Refusal> {
        const MOST: usize = 1 << 28; // well within VARBITMAXLEN
        if self.text.len() > MOST {
            return Err(Refusal::Ask);
        }
        Ok(self.text.len() as u32 * if self.hex { 4 } else { 1 })
    }

    fn pack(&self) -> Result<Vec<u8>, Refusal> {
        let (per_byte, width) = if self.hex { (2, 4) } else { (8, 1) };
        let pack_byte = |chunk: &[u8]| -> Result<u8, Refusal> {
            chunk.iter().enumerate().try_fold(0u8, |byte, (at, c)| {
                let digit = hex_digit(*c).filter(|d| self.hex || *d < 2).ok_or(Refusal::Syntax)?;
                Ok(byte | digit << (8 - width * (at + 1)))
            })
        };
        let mut packed = Vec::with_room(self.text.len().div_ceil(per_byte))?;
        for chunk in self.text.chunks(per_byte) {
            packed.push_within(pack_byte(chunk)?);
        }
        Ok(packed)
    }
}

/// `bit(length)`: exactly this number of bits. The server rejects another length with a separate
/// SQLSTATE (22026), so that case is left to the server.
pub fn bit(text: &[u8], length: Option<u32>) -> Result<(u32, Vec<u8>), Refusal> {
    let digits = Digits::of(text);
    let bits = digits.bits()?;
    if length.is_some_and(|n| n != bits) {
        return Err(Refusal::Ask);
    }
    Ok((bits, digits.pack()?))
}

/// `bit varying(limit)`.
pub fn varbit(text: &[u8], limit: Option<u32>) -> Result<(u32, Vec<u8>), Refusal> {
    let digits = Digits::of(text);
    let bits = digits.bits()?;
    if limit.is_some_and(|n| bits > n) {
        return Err(Refusal::TooLong);
    }
    Ok((bits, digits.pack()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(bit(b"1011", Some(4)), Ok((4, vec![0xb0])));
        assert_eq!(bit(b"B101", None), Ok((3, vec![0xa0])));
        assert_eq!(varbit(b"xA5f", None), Ok((12, vec![0xa5, 0xf0])));
        assert_eq!(varbit(b"", Some(3)), Ok((0, vec![])));
        assert_eq!(varbit(b"101010101", None), Ok((9, vec![0xaa, 0x80])));
        assert_eq!(bit(b"10", Some(3)), Err(Refusal::Ask));
        assert_eq!(varbit(b"1011", Some(3)), Err(Refusal::TooLong));
        assert_eq!(varbit(b"1012", None), Err(Refusal::Syntax));
        assert_eq!(varbit(b"xg", None), Err(Refusal::Syntax));
        assert_eq!(varbit(b" 1", None), Err(Refusal::Syntax));
    }
}
