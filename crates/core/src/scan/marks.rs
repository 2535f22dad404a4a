//! Masks of a block of 64 bytes: where fields end, what must be resolved, and which line ends are
//! within quotes.

use super::simd::{Lanes, BLOCK};
use super::{Characters, Dialect, Eol, Format};

/// The bytes that the masks mark, and the kind of escapes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) delimiter: u8,
    quote: u8,
    escape: u8,
    class: Class,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// a quote within quotes is doubled
    CsvDoubled,
    /// the escape is not the quote
    CsvEscaped,
    Text,
}

impl Rules {
    /// `None` if a line end is the quote or the escape, if bytes below 128 may be parts of
    /// characters, or if the delimiter may be a digit of an escape (`A` in `\x4A`). Then the naive
    /// scanner is used.
    pub(super) fn new(dialect: &Dialect) -> Option<Self> {
        let class = match dialect.format {
            Format::Text => Class::Text,
            Format::Csv if dialect.quote == dialect.escape => Class::CsvDoubled,
            Format::Csv => Class::CsvEscaped,
        };
        if dialect.quotes_with_line_ends() || dialect.characters != Characters::Ascii {
            return None;
        }
        if class == Class::Text && dialect.delimiter.is_ascii_hexdigit() {
            return None;
        }
        let (delimiter, quote, escape) = (dialect.delimiter, dialect.quote, dialect.escape);
        Some(Rules { delimiter, quote, escape, class })
    }

    /// Three masks: the bytes that end nothing because they are quoted or escaped; the bytes that
    /// quote or escape; and the quotes that open or close.
    ///
    /// # Safety
    ///
    /// The processor has the features that `L` needs.
    #[inline(always)]
    pub(super) unsafe fn hidden<L: Lanes>(
        &self,
        block: &[u8; BLOCK],
        carry: &mut Carry,
    ) -> (u64, u64, u64) {
        // SAFETY: the caller guarantees what `L` needs.
        let eq = |needle| unsafe { L::eq(block, needle) };
        // SAFETY: the caller guarantees what `L` needs.
        let parities = |bits| unsafe { L::parities(bits) };
        match self.class {
            Class::CsvDoubled => {
                let quotes = eq(self.quote);
                (within_quotes(quotes, parities, carry), quotes, quotes)
            }
            Class::CsvEscaped => {
                let (quotes, escapes) = (eq(self.quote), eq(self.escape));
                let toggles = if escapes | carry.escaped == 0 {
                    quotes
                } else {
                    unescaped_quotes(quotes, escapes, carry)
                };
                (within_quotes(toggles, parities, carry), quotes | escapes, toggles)
            }
            Class::Text => {
                let backslashes = eq(b'\\');
                (escaped_by(backslashes, carry), backslashes, 0)
            }
        }
    }
}

/// The state that a block takes over from the block before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carry {
    /// all ones within quotes, otherwise zero
    pub(super) in_quote: u64,
    /// one if the block's first byte is escaped, otherwise zero
    pub(super) escaped: u64,
}

/// The masks of one block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// delimiters and line ends that end a field
    pub(super) ends: u64,
    /// quotes and escapes: the value of a field with one of them is not its raw bytes
    pub(super) inside: u64,
    /// line ends within quotes, of the kind that COPY counts
    pub(super) quoted_lines: u64,
}

impl Marks {
    /// # Safety
    ///
    /// The processor has the features that `L` needs.
    #[inline(always)]
    pub(super) unsafe fn of<L: Lanes>(
        block: &[u8; BLOCK],
        rules: &Rules,
        eol: Eol,
        carry: &mut Carry,
    ) -> Marks {
        // SAFETY: the caller guarantees what `L` needs.
        let eq = |needle| unsafe { L::eq(block, needle) };
        let (lf, cr) = (eq(b'\n'), eq(b'\r'));
        // SAFETY: the caller guarantees what `L` needs.
        let (hidden, inside, _) = unsafe { rules.hidden::<L>(block, carry) };
        let counted = if eol == Eol::Nl { lf } else { cr };
        Marks {
            ends: (eq(rules.delimiter) | lf | cr) & !hidden,
            inside,
            quoted_lines: if rules.class == Class::Text { 0 } else { counted & hidden },
        }
    }
}

/// The bytes from each opening quote to the last one before its closing quote.
#[inline(always)]
fn within_quotes(toggles: u64, parities: impl Fn(u64) -> u64, carry: &mut Carry) -> u64 {
    if toggles == 0 {
        return carry.in_quote;
    }
    let quoted = parities(toggles) ^ carry.in_quote;
    carry.in_quote = ((quoted as i64) >> 63) as u64;
    quoted
}

/// The quotes that open or close, without those that are escaped within quotes.
fn unescaped_quotes(quotes: u64, escapes: u64, carry: &mut Carry) -> u64 {
    let mut in_quote = carry.in_quote != 0;
    let mut escaped = carry.escaped;
    let mut pending = 0;
    let mut toggles = 0;
    let mut bits = quotes | escapes;
    while bits != 0 {
        let bit = bits & bits.wrapping_neg();
        bits ^= bit;
        let hidden = escaped & bit != 0;
        if quotes & bit != 0 {
            if !hidden {
                toggles |= bit;
                in_quote = !in_quote;
            }
        } else if in_quote && !hidden {
            escaped = bit << 1;
            pending = bit >> 63;
        }
    }
    carry.escaped = pending;
    toggles
}

/// The bytes after an odd number of backslashes.
///
/// An addition carries through runs of backslashes, and so distinguishes odd from even lengths
/// without a loop. The method is that of simdjson (Langdale and Lemire, "Parsing gigabytes of JSON
/// per second", 2019).
#[inline(always)]
pub(super) fn escaped_by(backslashes: u64, carry: &mut Carry) -> u64 {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    if backslashes == 0 {
        return std::mem::take(&mut carry.escaped);
    }
    let escaping = backslashes & !carry.escaped;
    let behind = (escaping << 1) | ODD;
    let runs = behind.wrapping_sub(escaping) ^ ODD;
    let escaped = runs ^ (backslashes | carry.escaped);
    carry.escaped = (runs & backslashes) >> 63;
    escaped
}
