//! Finds the ends of records in a stream, so that it can be cut into chunks that are encoded
//! independently.
//!
//! Nothing is rejected here. The [`super::Scanner`] of a chunk reports a line end of the wrong kind
//! or an unclosed quote.
//!
//! Quotes are counted as in COPY. This is right for every rule on stray quotes as long as each
//! quote opens at the start of a field or closes at its end. [`Cuts::stray`] is set if one does
//! not. If stray quotes then have another meaning than in COPY, the cuts from there on are not
//! valid. The records must be read with a [`super::Scanner`] from the last cut before.

use super::marks::{Carry, Rules};
use super::simd::{Lanes, Swar, BLOCK};
use super::{Characters, Dialect, DotLine, Eol, Format, Next, Processor, Record, Scanner};

/// The cuts in a block of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// the end of the first record that ends in this block; 0 if only now it is known that the
    /// record ended with the block before
    pub first: Option<usize>,
    /// the end of the last one
    pub last: Option<usize>,
    /// the number of lines in the stream up to `last`, as COPY counts them
    pub lines: u64,
    /// the number of records that end in this block
    pub records: u64,
    /// there may be a `\.` that ends the data: only a scan of the chunk shows whether the bytes
    /// after it count
    pub marker: bool,
    /// a quote that opens or closes would be a stray one under rules other than COPY's, or the
    /// block before ended with one; set only if stray quotes are watched
    pub stray: bool,
}

/// Follows a stream block by block.
///
/// A chunk that ends at a cut is scanned by a separate [`super::Scanner`], as if it were the last
/// one. The scanner gets the value of [`Splitter::eol`] at the start of the chunk.
///
/// It uses a few words of memory for any input. If no record ends in a block, [`Cuts::last`] is
/// `None`. The caller then collects more bytes. If the record exceeds the caller's buffer, the
/// caller passes the record on up to the [`Cuts::first`] that ends it.
#[derive(Clone, Debug)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct Splitter {
    rules: Option<Rules>,
    /// cuts can be found, because neither the quote nor the escape is a line end
    cuts: bool,
    characters: Characters,
    /// the last byte, if it may be the first of a two-byte character
    lead: u8,
    processor: Processor,
    csv: bool,
    quote: u8,
    /// an escape other than the quote
    escape: Option<u8>,
    markers: bool,
    eol: Eol,
    carry: Carry,
    /// number of lines ended so far
    lines: u64,
    /// the last byte was a CR that ended the first line, alone or followed by an LF
    first_cr: bool,
    /// the last byte was a backslash
    backslash: bool,
    quotes: Quotes,
}

/// The positions of quotes, checked against the ends of fields.
#[derive(Clone, Copy, Debug)]
struct Quotes {
    /// stray quotes are reported
    watched: bool,
    delimiter: u8,
    /// a quote within quotes is doubled
    doubled: bool,
    /// the last byte; `None` at the start
    last: Option<u8>,
    /// the last byte was a closing quote
    closed: bool,
    /// a quote has properly closed a field; only set byte by byte
    ended: bool,
}

impl Quotes {
    fn new(dialect: &Dialect) -> Self {
        Quotes {
            watched: dialect.strict(),
            delimiter: dialect.delimiter,
            doubled: dialect.escape == dialect.quote,
            last: None,
            closed: false,
            ended: false,
        }
    }

    /// Whether a field may begin after the last byte, if that byte is not within quotes.
    fn begins(&self, ends_with: u8) -> bool {
        self.last.is_none_or(|last| last == self.delimiter || last == ends_with)
    }

    /// Checks one byte for a stray quote. `toggles`: it is a quote that opens (if `hidden`) or
    /// closes.
    fn stray(&mut self, c: u8, toggles: bool, hidden: bool, ends_with: u8) -> bool {
        let twice = self.doubled && toggles;
        let begins = self.begins(ends_with) || self.closed && self.doubled;
        let ends = twice || c == self.delimiter || matches!(c, b'\r' | b'\n');
        let stray = toggles && hidden && !begins || self.closed && !ends;
        self.ended |= self.closed && ends && !twice;
        self.closed = toggles && !hidden;
        self.last = Some(c);
        self.watched && stray
    }

    /// Checks a block that has a quote, or follows a closing quote. `at` returns a mask of the
    /// bytes that equal a given one. `ends` is a mask of the bytes that end records.
    #[inline(always)]
    fn stray_in(
        &mut self,
        toggles: u64,
        hidden: u64,
        (ends, ends_with): (u64, u8),
        at: impl Fn(u8) -> u64,
    ) -> bool {
        let first = self.begins(ends_with) || self.closed && self.doubled;
        let delimiters = at(self.delimiter);
        let closing = toggles & !hidden;
        let after = closing << 1 | u64::from(self.closed);
        let twice = if self.doubled { u64::MAX } else { 0 };
        let begins = (delimiters | ends | closing & twice) << 1 | u64::from(first);
        let stray = toggles & hidden & !begins
            | after & !(delimiters | at(b'\r') | at(b'\n') | toggles & twice);
        self.closed = closing >> 63 != 0;
        stray != 0
    }
}

impl Splitter {
    /// A splitter at the start of a stream, or of a record in a stream whose lines end in `eol`.
    pub fn new(dialect: &Dialect, eol: Eol) -> Self {
        let csv = dialect.format == Format::Csv;
        Splitter {
            rules: Rules::new(dialect),
            cuts: !dialect.quotes_with_line_ends(),
            characters: dialect.characters,
            lead: 0,
            processor: Processor::available()[0],
            csv,
            quote: dialect.quote,
            escape: (dialect.escape != dialect.quote).then_some(dialect.escape),
            markers: !csv || dialect.dot_line == DotLine::Ends,
            eol,
            carry: Carry::default(),
            lines: 0,
            first_cr: false,
            backslash: false,
            quotes: Quotes::new(dialect),
        }
    }

    /// The same splitter, but [`Cuts::stray`] is also set if stray quotes have COPY's meaning.
    pub fn watching(mut self) -> Self {
        self.quotes.watched = self.csv && self.cuts;
        self
    }

    /// Whether the current quoted field is closed properly. It reads byte by byte with
    /// [`Splitter::feed_naive`] until this is known; `None` if it stays unknown.
    pub fn field_ends(&mut self, block: &[u8]) -> Option<bool> {
        self.quotes.ended = false;
        block.iter().find_map(|byte| {
            let stray = self.feed_naive(std::slice::from_ref(byte)).stray;
            (stray || self.quotes.ended).then_some(!stray)
        })
    }

    /// Whether a quote is open.
    pub fn in_quote(&self) -> bool {
        self.carry.in_quote != 0
    }

    /// The same splitter with other instructions, so that tests reach every path.
    ///
    /// # Panics
    ///
    /// The machine does not have them.
    pub fn on(mut self, processor: Processor) -> Self {
        assert!(Processor::available().contains(&processor), "the machine has {processor:?}");
        self.processor = processor;
        self
    }

    /// The line end, if it is known.
    pub fn eol(&self) -> Eol {
        self.eol
    }

    /// Reads the next bytes of the stream.
    ///
    /// If the quote or the escape is itself CR or LF, no cut is ever found. Such a stream cannot be
    /// split.
    pub fn feed(&mut self, block: &[u8]) -> Cuts {
        let Some(rules) = self.rules else { return self.feed_naive(block) };
        let mut cuts = Cuts::default();
        let mut from = self.blocks(&rules, block, 0, &mut cuts);
        // The first line determines the line end.
        while self.eol == Eol::Unknown && from < block.len() {
            let passed = from + BLOCK;
            while self.eol == Eol::Unknown && from < block.len().min(passed) {
                self.byte(block[from], from, &mut cuts);
                from += 1;
            }
            from += self.blocks(&rules, block, from, &mut cuts);
        }
        self.rest(block, from, &mut cuts);
        cuts
    }

    /// Calls [`blocks`] for the instructions of the machine.
    fn blocks(&mut self, rules: &Rules, block: &[u8], from: usize, cuts: &mut Cuts) -> usize {
        match self.processor {
            // SAFETY: the processor was found to have AVX-512 and the other features.
            #[cfg(target_arch = "x86_64")]
            Processor::Avx512 => unsafe { blocks_avx512(self, rules, block, from, cuts) },
            // SAFETY: the processor was found to have AVX2 and the other features.
            #[cfg(target_arch = "x86_64")]
            Processor::Avx2 => unsafe { blocks_avx2(self, rules, block, from, cuts) },
            // SAFETY: SSE2 is part of x86-64.
            #[cfg(target_arch = "x86_64")]
            Processor::Sse2 => unsafe {
                blocks::<super::simd::Sse2>(self, rules, block, from, cuts)
            },
            // SAFETY: plain registers need no processor feature.
            Processor::Any => unsafe { blocks::<Swar>(self, rules, block, from, cuts) },
        }
    }

    /// Like [`Splitter::feed`], but byte by byte. `feed` must give the same result.
    pub fn feed_naive(&mut self, block: &[u8]) -> Cuts {
        let mut cuts = Cuts::default();
        if self.cuts {
            self.rest(block, 0, &mut cuts);
        }
        cuts
    }

    fn rest(&mut self, block: &[u8], from: usize, cuts: &mut Cuts) {
        for (i, c) in block.iter().enumerate().skip(from) {
            self.byte(*c, i, cuts);
        }
    }

    fn end(&self, at: usize, cuts: &mut Cuts) {
        cuts.first = cuts.first.or(Some(at));
        cuts.last = Some(at);
        cuts.lines = self.lines;
        cuts.records += 1;
    }

    /// Reads the byte at `at` of the block, by the first half of `CopyReadLineText`.
    fn byte(&mut self, c: u8, at: usize, cuts: &mut Cuts) {
        if self.characters.joins(self.lead, c) {
            self.lead = 0;
            self.backslash = false;
            // The second byte of a character is never a delimiter.
            self.quotes.last = Some(u8::MAX);
            return;
        }
        self.lead = c;
        cuts.marker |= self.markers && self.backslash && c == b'.';
        self.backslash = c == b'\\';
        if std::mem::take(&mut self.first_cr) {
            self.lines += 1;
            if c == b'\n' {
                self.eol = Eol::CrNl;
                self.quotes.last = Some(c);
                self.end(at + 1, cuts);
                return;
            }
            self.eol = Eol::Cr;
            self.end(at, cuts);
        }
        let before = self.in_quote();
        let hidden = if self.csv { self.quoted(c) } else { self.escaped(c) };
        let ends_with = if self.eol == Eol::Cr { b'\r' } else { b'\n' };
        cuts.stray |= self.quotes.stray(c, self.in_quote() != before, hidden, ends_with);
        let counted = if self.eol == Eol::Nl { b'\n' } else { b'\r' };
        if hidden {
            self.lines += u64::from(self.csv && c == counted);
            return;
        }
        match (c, self.eol) {
            (b'\r', Eol::Unknown) => self.first_cr = true,
            (b'\n', Eol::Unknown | Eol::Nl | Eol::CrNl) | (b'\r', Eol::Cr) => {
                if self.eol == Eol::Unknown {
                    self.eol = Eol::Nl;
                }
                self.lines += 1;
                self.end(at + 1, cuts);
            }
            _ => {}
        }
    }

    /// Whether `c` is within quotes, including the opening one.
    fn quoted(&mut self, c: u8) -> bool {
        let mut in_quote = self.carry.in_quote != 0;
        let escaped = self.carry.escaped != 0;
        self.carry.escaped = 0;
        if Some(c) == self.escape {
            self.carry.escaped = u64::from(in_quote && !escaped);
        }
        if c == self.quote && !escaped {
            in_quote = !in_quote;
        }
        self.carry.in_quote = if in_quote { u64::MAX } else { 0 };
        in_quote
    }

    /// Whether `c` follows a backslash that is not itself escaped.
    fn escaped(&mut self, c: u8) -> bool {
        let escaped = self.carry.escaped != 0;
        self.carry.escaped = u64::from(c == b'\\' && !escaped);
        escaped
    }
}

/// The end of the last complete record in `bytes`, and the line end. It uses a [`Scanner`], which
/// supports every rule on quotes. `bytes` must begin at the start of a record.
///
/// `last` and `eol` are those of [`Scanner::new`].
pub fn whole_records(bytes: &[u8], last: bool, dialect: &Dialect, eol: Eol) -> (usize, Eol) {
    let mut scanner = Scanner::new(bytes, last, dialect, eol);
    let mut record = Record::default();
    loop {
        match scanner.next(&mut record) {
            Ok(Next::Record) => {}
            // Bytes after the end of the data do not count.
            Ok(Next::End) if scanner.ended() => return (bytes.len(), scanner.eol()),
            Ok(_) => break,
            Err(_) if scanner.skip_record().is_none() => break,
            Err(_) => {}
        }
    }
    (scanner.position(), scanner.eol())
}

/// Reads whole blocks of 64 bytes from `from` on, and returns the number of bytes. As long as the
/// line end is unknown, it stops before the block with the end of the first line.
///
/// # Safety
///
/// The processor has the features that `L` needs.
#[inline(always)]
unsafe fn blocks<L: Lanes>(
    s: &mut Splitter,
    rules: &Rules,
    bytes: &[u8],
    from: usize,
    cuts: &mut Cuts,
) -> usize {
    let (ends_with, counted) = match s.eol {
        Eol::Nl => (b'\n', b'\n'),
        Eol::CrNl => (b'\n', b'\r'),
        Eol::Cr | Eol::Unknown => (b'\r', b'\r'),
    };
    let unknown = s.eol == Eol::Unknown;
    let (mut carry, mut lines, mut at) = (s.carry, s.lines, from);
    let mut backslash = u64::from(s.backslash);
    let mut quotes = s.quotes;
    while let Some(block) = bytes[at..].first_chunk::<BLOCK>() {
        // SAFETY: the caller guarantees what `L` needs.
        let eq = |needle| unsafe { L::eq(block, needle) };
        let before = carry;
        // SAFETY: the caller guarantees what `L` needs.
        let (hidden, _, toggles) = unsafe { rules.hidden::<L>(block, &mut carry) };
        let ends = eq(ends_with) & !hidden;
        if unknown && (s.first_cr || (ends | (eq(b'\n') & !hidden)) != 0) {
            carry = before;
            break;
        }
        let quoted = if s.csv { eq(counted) & hidden } else { 0 };
        if quotes.watched && (toggles != 0 || quotes.closed) {
            quotes.last = if at > 0 { Some(bytes[at - 1]) } else { quotes.last };
            cuts.stray |= quotes.stray_in(toggles, hidden, (ends, ends_with), eq);
        }
        if s.markers {
            let backslashes = eq(b'\\');
            if backslashes | backslash != 0 {
                cuts.marker |= (backslashes << 1 | backslash) & eq(b'.') != 0;
                backslash = backslashes >> 63;
            }
        }
        if ends != 0 {
            cuts.first = cuts.first.or(Some(at + ends.trailing_zeros() as usize + 1));
            let last = 63 - ends.leading_zeros();
            let before = quoted & ((1 << last) - 1);
            cuts.last = Some(at + last as usize + 1);
            cuts.lines = lines + u64::from(ends.count_ones() + before.count_ones());
            cuts.records += u64::from(ends.count_ones());
        }
        lines += u64::from(ends.count_ones() + quoted.count_ones());
        at += BLOCK;
    }
    s.carry = carry;
    s.lines = lines;
    s.quotes = quotes;
    if at > from {
        s.quotes.last = Some(bytes[at - 1]);
        s.backslash = bytes[at - 1] == b'\\';
    }
    at - from
}

/// [`blocks`], compiled for AVX2.
///
/// # Safety
///
/// [`super::simd::has_avx2`] holds.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,pclmulqdq")]
unsafe fn blocks_avx2(
    s: &mut Splitter,
    rules: &Rules,
    bytes: &[u8],
    from: usize,
    cuts: &mut Cuts,
) -> usize {
    // SAFETY: the caller guarantees AVX2 and the other features.
    unsafe { blocks::<super::simd::Avx2>(s, rules, bytes, from, cuts) }
}

/// [`blocks`], compiled for AVX-512.
///
/// # Safety
///
/// [`super::simd::has_avx512`] holds.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,pclmulqdq")]
unsafe fn blocks_avx512(
    s: &mut Splitter,
    rules: &Rules,
    bytes: &[u8],
    from: usize,
    cuts: &mut Cuts,
) -> usize {
    // SAFETY: the caller guarantees AVX-512 and the other features.
    unsafe { blocks::<super::simd::Avx512>(s, rules, bytes, from, cuts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line end is unknown until the first line has ended, which may take many blocks.
    #[test]
    fn first_lines_of_any_length_are_cut_alike() {
        let escaped = Dialect { escape: b'\\', ..Dialect::csv() };
        let old = Dialect { dot_line: DotLine::Ends, ..Dialect::csv() };
        let within: [&[u8]; 7] = [b"", b"\"", b"\"\r\n\"", b"\\\r", b"\\.", b"\"\\\"\r", b"\r\"\""];
        for dialect in [Dialect::csv(), old, escaped, Dialect::text()] {
            for (within, end) in within.iter().flat_map(|w| ["\n", "\r", "\r\n"].map(|e| (*w, e))) {
                for (at, length) in
                    [0, 61, 62, 63, 64].into_iter().flat_map(|a| [0, 62, 128].map(|l| (a, l)))
                {
                    let (before, behind, end) =
                        (&[b'x'; 64][..at], &[b'x'; 128][..length], end.as_bytes());
                    let line = [before, within, behind, end, b"y\"", end, b"z\"", end].concat();
                    for split in [0, 62, 63, 64, 65, 128] {
                        alike(&dialect, &line, split.min(line.len()));
                    }
                }
            }
        }
    }

    fn alike(dialect: &Dialect, data: &[u8], split: usize) {
        for processor in Processor::available() {
            let mut fast = Splitter::new(dialect, Eol::Unknown).on(*processor);
            let mut naive = Splitter::new(dialect, Eol::Unknown);
            for piece in [&data[..split], &data[split..]] {
                let (cuts, expected) = (fast.feed(piece), naive.feed_naive(piece));
                assert_eq!(cuts, expected, "{processor:?} {split} {}", data.escape_ascii());
            }
            assert_eq!(fast.eol(), naive.eol());
        }
    }
}
