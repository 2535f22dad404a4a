//! Checks `json` and `jsonb` as text, like the lexer and parser of `src/common/jsonapi.c`, with the
//! checks of `jsonb_in`.
//!
//! It makes one pass without recursion. Most bytes are in strings, which are skipped eight or
//! sixteen at a time.

use crate::error::Refusal;

/// Deeper documents are left to the server, whose limit depends on the size of its stack.
pub(super) const MOST_DEEP: u32 = 128;
/// Longer texts might exceed `JENTRY_OFFLENMASK` in binary form, in which a number of one digit
/// with its comma takes twelve bytes.
const MOST_JSONB: usize = 0x0fff_ffff / 8;
/// Longer numbers and larger exponents might exceed the limits of `numeric`.
const MOST_NUMBER: usize = 1000;
const MOST_EXPONENT: usize = 3;

/// Checks that `text` is valid as `json`.
///
/// # Errors
///
/// [`Refusal::Syntax`] if the server would reject it, [`Refusal::Ask`] if that is not certain.
pub fn json(text: &[u8]) -> Result<(), Refusal> {
    Walk::<false, _> { text, at: 0, visitor: &mut Nobody }.document()
}

/// Checks that `text` is valid as `jsonb`. Unlike in `json`, there may be no `\u0000`, surrogates
/// must be in pairs, and numbers must be valid as `numeric`.
///
/// # Errors
///
/// Those of [`json`].
pub fn jsonb(text: &[u8]) -> Result<(), Refusal> {
    visit_jsonb(text, &mut Nobody)
}

/// Reads a text by the rules of `jsonb`, and passes its values to `visitor`.
#[inline]
pub(super) fn visit_jsonb<V: Visitor>(text: &[u8], visitor: &mut V) -> Result<(), Refusal> {
    if text.len() > MOST_JSONB {
        return Err(Refusal::Ask);
    }
    Walk::<true, V> { text, at: 0, visitor }.document()
}

/// A value without parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    /// a string or a key, and whether it has escapes
    String {
        escapes: bool,
    },
    Number,
    True,
    False,
    Null,
}

/// Receives the values of a document in their order, with each key before its value. After an
/// error, all values received before are void.
pub(super) trait Visitor {
    /// A scalar, with its start and end in the text (for a string, without its quotes).
    fn scalar(&mut self, scalar: Scalar, start: usize, end: usize);
    /// An object or an array begins.
    fn open(&mut self, is_object: bool);
    /// The innermost object or array ends.
    fn close(&mut self);
}

/// A visitor that ignores everything.
struct Nobody;

impl Visitor for Nobody {
    #[inline]
    fn scalar(&mut self, _: Scalar, _: usize, _: usize) {}
    #[inline]
    fn open(&mut self, _: bool) {}
    #[inline]
    fn close(&mut self) {}
}

/// A pass over a document. `JSONB` selects the rules.
struct Walk<'t, const JSONB: bool, V> {
    text: &'t [u8],
    at: usize,
    visitor: &'t mut V,
}

impl<const JSONB: bool, V: Visitor> Walk<'_, JSONB, V> {
    /// The next byte after white space; 0 at the end, because no document contains it.
    #[inline]
    fn next(&mut self) -> u8 {
        loop {
            match self.text.get(self.at) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                Some(c) => return *c,
                None => return 0,
            }
        }
    }

    fn document(mut self) -> Result<(), Refusal> {
        // One bit for each open brace or bracket, with the innermost as the lowest: 1 for an
        // object.
        let mut open: u128 = 0;
        let mut depth = 0;
        loop {
            // A value must follow.
            let opened = self.next();
            match opened {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    if depth == MOST_DEEP {
                        return Err(Refusal::Ask);
                    }
                    self.at += 1;
                    let is_object = opened == b'{';
                    self.visitor.open(is_object);
                    let closes = self.next() == if is_object { b'}' } else { b']' };
                    if !closes {
                        open = open << 1 | u128::from(is_object);
                        depth += 1;
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                    self.visitor.close();
                }
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.word(b"true", Scalar::True)?,
                b'f' => self.word(b"false", Scalar::False)?,
                b'n' => self.word(b"null", Scalar::Null)?,
                _ => return Err(Refusal::Syntax),
            }
            // A value has ended. Its containers may end, too.
            loop {
                let c = self.next();
                if depth == 0 {
                    let ended = self.at == self.text.len();
                    return if ended { Ok(()) } else { Err(Refusal::Syntax) };
                }
                self.at += 1;
                match (c, open & 1 == 1) {
                    (b',', true) => {
                        self.key()?;
                        break;
                    }
                    (b',', false) => break,
                    (b'}', true) | (b']', false) => {
                        open >>= 1;
                        depth -= 1;
                        self.visitor.close();
                    }
                    _ => return Err(Refusal::Syntax),
                }
            }
        }
    }

    /// Reads a key and its colon.
    #[inline]
    fn key(&mut self) -> Result<(), Refusal> {
        if self.next() != b'"' {
            return Err(Refusal::Syntax);
        }
        self.string()?;
        if self.next() != b':' {
            return Err(Refusal::Syntax);
        }
        self.at += 1;
        Ok(())
    }

    fn word(&mut self, word: &[u8], scalar: Scalar) -> Result<(), Refusal> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Refusal::Syntax);
        }
        self.visitor.scalar(scalar, self.at, self.at + word.len());
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<(), Refusal> {
        let start = self.at;
        if self.text[self.at] == b'-' {
            self.at += 1;
        }
        if self.text.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else if self.digits() == 0 {
            return Err(Refusal::Syntax);
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return Err(Refusal::Syntax);
            }
        }
        let mut exponent = 0;
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            exponent = self.digits();
            if exponent == 0 {
                return Err(Refusal::Syntax);
            }
        }
        if JSONB && (exponent > MOST_EXPONENT || self.at - start > MOST_NUMBER) {
            return Err(Refusal::Ask);
        }
        self.visitor.scalar(Scalar::Number, start, self.at);
        Ok(())
    }

    /// Reads a string from its opening quote on.
    #[inline]
    fn string(&mut self) -> Result<(), Refusal> {
        self.at += 1;
        let start = self.at;
        let mut escapes = false;
        loop {
            self.at += plain(&self.text[self.at..]);
            match self.text.get(self.at) {
                Some(b'"') => {
                    self.visitor.scalar(Scalar::String { escapes }, start, self.at);
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    escapes = true;
                    self.escape()?;
                }
                _ => return Err(Refusal::Syntax),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Refusal> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => self.unicode(),
            _ => Err(Refusal::Syntax),
        }
    }

    /// Reads `\uXXXX`, or for `jsonb` two of them if they are a pair.
    fn unicode(&mut self) -> Result<(), Refusal> {
        let unit = self.unit()?;
        if !JSONB {
            return Ok(());
        }
        match unit {
            // The server has a separate SQLSTATE for it: 22P05.
            0 => Err(Refusal::Ask),
            0xd800..=0xdbff => {
                if !self.text[self.at..].starts_with(b"\\u") {
                    return Err(Refusal::Syntax);
                }
                match self.unit()? {
                    0xdc00..=0xdfff => Ok(()),
                    _ => Err(Refusal::Syntax),
                }
            }
            0xdc00..=0xdfff => Err(Refusal::Syntax),
            _ => Ok(()),
        }
    }

    fn unit(&mut self) -> Result<u32, Refusal> {
        let digits = self.text.get(self.at + 2..self.at + 6).ok_or(Refusal::Syntax)?;
        self.at += 6;
        digits.iter().try_fold(0, |v, c| {
            let digit = super::text::hex_digit(*c).ok_or(Refusal::Syntax)?;
            Ok(v << 4 | u32::from(digit))
        })
    }
}

/// The number of bytes before a quote, a backslash or a control character.
#[inline]
pub(super) fn plain(text: &[u8]) -> usize {
    let mut at = 0;
    #[cfg(target_arch = "x86_64")]
    while let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
        let found = stops_of_16(block);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += 16;
    }
    while let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let found = stops_of_8(u64::from_le_bytes(*block));
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + plain_naive(&text[at..])
}

/// A bit for each of 16 bytes, set if it is a quote, a backslash or a control character.
#[cfg(target_arch = "x86_64")]
#[inline]
fn stops_of_16(block: &[u8; 16]) -> u32 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi8,
    };
    // SAFETY: SSE2 is part of x86-64, and `block` has the 16 bytes that are loaded.
    unsafe {
        let bytes = _mm_loadu_si128(block.as_ptr().cast());
        let quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
        let backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
        let control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
        _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, backslash), control)) as u32
    }
}

/// The lowest high bit that is set belongs to the first of 8 bytes that is a quote, a backslash or
/// a control character.
#[inline]
fn stops_of_8(word: u64) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The high bit of a byte is set if the byte was zero before the subtraction, or less than a
    // space. Bits set by borrows are above the first such byte.
    let quote = word ^ (LOW * b'"' as u64);
    let backslash = word ^ (LOW * b'\\' as u64);
    let found = (quote.wrapping_sub(LOW) & !quote)
        | (backslash.wrapping_sub(LOW) & !backslash)
        | (word.wrapping_sub(LOW * 0x20) & !word);
    found & HIGH
}

fn plain_naive(text: &[u8]) -> usize {
    let stops = |c: &u8| *c == b'"' || *c == b'\\' || *c < 0x20;
    text.iter().position(stops).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    #[test]
    fn plain_equals_its_naive_twin() {
        let mut random = random();
        for _ in 0..200_000 {
            let state = random();
            let alphabet = [b'"', b'\\', 0x1f, 0x20, b'!', b'#', 0x5b, 0x5d, 0x7f, 0x80, 0xff, 1];
            let text: Vec<u8> = (0..state % 40)
                .map(|n| match state.rotate_right(n as u32 * 3) & 31 {
                    i @ 0..=11 => alphabet[i as usize],
                    _ => b'a',
                })
                .collect();
            assert_eq!(plain(&text), plain_naive(&text), "{text:?}");
        }
    }

    #[test]
    fn what_both_take() {
        for good in [
            "1",
            " [ ] ",
            "{}",
            "\"\"",
            "null",
            "[1,2,{\"a\":[true,false,null]}]",
            "-0.5e+10",
            "{\"a\":1,\"a\":2}",
            "\"\\ud83d\\ude00 \\n\u{7f}\"",
            "[[],{}]",
            "0",
        ] {
            assert_eq!(json(good.as_bytes()), Ok(()), "{good}");
            assert_eq!(jsonb(good.as_bytes()), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_neither_takes() {
        for bad in [
            "",
            " ",
            "[1,]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e",
            "nul",
            "nullx",
            "tru",
            "\"a",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u12",
            "[1 2]",
            "{} {}",
            "]",
            "[}",
            "{]",
            "'a'",
            "[1",
            "{\"a\":1",
            "NaN",
            "1a",
            "\"\\",
        ] {
            assert_eq!(json(bad.as_bytes()), Err(Refusal::Syntax), "{bad}");
            assert_eq!(jsonb(bad.as_bytes()), Err(Refusal::Syntax), "{bad}");
        }
    }

    #[test]
    fn where_they_differ() {
        let differ: [(&str, Result<(), Refusal>); 7] = [
            ("\"\\u0000\"", Err(Refusal::Ask)),
            ("\"\\ud800\"", Err(Refusal::Syntax)),
            ("\"\\ud800x\"", Err(Refusal::Syntax)),
            ("\"\\ud800\\n\"", Err(Refusal::Syntax)),
            ("\"\\udc00\"", Err(Refusal::Syntax)),
            ("\"\\ud800\\ud800\"", Err(Refusal::Syntax)),
            ("1e5000", Err(Refusal::Ask)),
        ];
        for (text, expected) in differ {
            assert_eq!(json(text.as_bytes()), Ok(()), "{text}");
            assert_eq!(jsonb(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(json(deep(128).as_bytes()), Ok(()));
        assert_eq!(json(deep(129).as_bytes()), Err(Refusal::Ask));
        assert_eq!(json("{\"a\":".repeat(100).as_bytes()), Err(Refusal::Syntax));
    }
}
