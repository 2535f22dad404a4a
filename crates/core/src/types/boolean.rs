//! `boolean`: `boolin` and `parse_bool_with_len` of `src/backend/utils/adt/bool.c`.

use super::text::trim;
use crate::error::Refusal;

/// `boolean`: any unambiguous prefix of true, false, yes, no, on, off, in any case, or 1 or 0. It
/// may have white space around it.
#[inline]
pub fn boolean(text: &[u8]) -> Result<bool, Refusal> {
    match text {
        b"t" | b"true" | b"1" => Ok(true),
        b"f" | b"false" | b"0" => Ok(false),
        _ => spelled(trim(text)),
    }
}

fn spelled(text: &[u8]) -> Result<bool, Refusal> {
    // Each word with its shortest accepted prefix.
    const WORDS: [(&[u8], usize, bool); 8] = [
        (b"true", 1, true),
        (b"false", 1, false),
        (b"yes", 1, true),
        (b"no", 1, false),
        (b"on", 2, true),
        (b"off", 2, false),
        (b"1", 1, true),
        (b"0", 1, false),
    ];
    WORDS
        .iter()
        .find(|(word, least, _)| {
            (*least..=word.len()).contains(&text.len())
                && word[..text.len()].eq_ignore_ascii_case(text)
        })
        .map(|(_, _, value)| *value)
        .ok_or(Refusal::Syntax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        for t in ["t", "TRUE", "tr", "y", "Yes", "on", "1", " true\n"] {
            assert_eq!(boolean(t.as_bytes()), Ok(true), "{t}");
        }
        for f in ["f", "False", "n", "no", "of", "OFF", "0"] {
            assert_eq!(boolean(f.as_bytes()), Ok(false), "{f}");
        }
        for bad in ["", " ", "o", "truex", "10", "yess", "2"] {
            assert_eq!(boolean(bad.as_bytes()), Err(Refusal::Syntax), "{bad}");
        }
    }
}
