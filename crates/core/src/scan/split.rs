//! Where records end in a stream, so that it can be cut into chunks that are
//! encoded apart from each other.
//!
//! Nothing is judged here: a line end of the wrong kind or an unclosed quote is
//! found by the [`super::Scanner`] of the chunk it lies in.
//!
//! Quotes are counted as COPY counts them, which is right for any rule as long as each of them
//! opens at the start of a field or closes at its end. [`Cuts::stray`] says that one does not:
//! where stray quotes are something else than to COPY, no cut from there on is one, and the
//! records have to be walked through with a [`super::Scanner`] from the last cut before.

use super::marks::{Carry, Rules};
use super::simd::{Lanes, Swar, BLOCK};
use super::{Characters, Dialect, DotLine, Eol, Format, Next, Processor, Record, Scanner};

/// What a block of the stream holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// where the first record that ends in this block ends; 0 where it turns
    /// out that the block before ended with it
    pub first: Option<usize>,
    /// where the last one ends
    pub last: Option<usize>,
    /// how many lines the stream has up to `last`, as COPY counts them
    pub lines: u64,
    /// there may be a `\.` that ends the data: whether what follows counts is
    /// known when the chunk has been scanned
    pub marker: bool,
    /// there is a quote that opens or closes and, were it not for COPY's rule, would be a stray
    /// one; or the block before ended with one. Never set where nobody looks for it
    pub stray: bool,
}

/// Follows a stream block by block.
///
/// A chunk that ends at a cut is scanned by a [`super::Scanner`] of its own
/// that takes it for the last, and is given what [`Splitter::eol`] was when the
/// chunk began.
///
/// Its memory is a few words whatever comes: where no record ends in a block,
/// [`Cuts::last`] is `None`, and the caller gathers more or, beyond its
/// buffer, lets the record through up to the [`Cuts::first`] that ends it.
#[derive(Clone, Debug)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct Splitter {
    rules: Option<Rules>,
    /// line ends inside quotes can be detected
    cuts: bool,
    characters: Characters,
    /// the last byte, if it may begin a character of two
    lead: u8,
    processor: Processor,
    csv: bool,
    quote: u8,
    /// an escape that is not the quote
    escape: Option<u8>,
    markers: bool,
    eol: Eol,
    carry: Carry,
    /// lines ended so far
    lines: u64,
    /// the last byte was a CR that ended the first line, alone or with a LF
    first_cr: bool,
    /// the last byte was a backslash
    backslash: bool,
    quotes: Quotes,
}

/// Whether quotes are where fields begin and end.
#[derive(Clone, Copy, Debug)]
struct Quotes {
    /// somebody wants to know
    watched: bool,
    delimiter: u8,
    /// a quote within quotes is doubled
    doubled: bool,
    /// the last byte; `None` at the start
    last: Option<u8>,
    /// it was a quote that closes
    closed: bool,
    /// a quote has closed a field as it should; byte by byte only
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

    /// Whether a field may begin after the last byte, if that is not within quotes.
    fn begins(&self, ends_with: u8) -> bool {
        self.last.map_or(true, |last| last == self.delimiter || last == ends_with)
    }

    /// Looks at one byte; `toggles` says that it is a quote that opens, if it is `hidden`, or
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

    /// Looks at a block that has a quote, or comes after one that closes; `at` is a mask of the
    /// bytes that equal one, `ends` of those that end records.
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
    /// At the start of a stream, or of a record in a stream whose lines end in `eol`.
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

    /// The same, but [`Cuts::stray`] is set for stray quotes that are what they are to COPY, too.
    pub fn watching(mut self) -> Self {
        self.quotes.watched = self.csv && self.cuts;
        self
    }

    /// Whether the field in whose quotes the stream is ends as it should: goes on byte by byte,
    /// by [`Splitter::feed_naive`], until that is known.
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

    /// The same with less than the machine has, so that tests reach every path.
    ///
    /// # Panics
    ///
    /// The machine does not have it.
    pub fn on(mut self, processor: Processor) -> Self {
        assert!(Processor::available().contains(&processor), "the machine has {processor:?}");
        self.processor = processor;
        self
    }

    /// What lines end with, as far as it is known.
    pub fn eol(&self) -> Eol {
        self.eol
    }

    /// The next bytes of the stream.
    ///
    /// Where the quote or the escape is itself CR or LF, no cut is ever found:
    /// such a stream has to be taken as one.
    pub fn feed(&mut self, block: &[u8]) -> Cuts {
        let Some(rules) = self.rules else { return self.feed_naive(block) };
        let mut cuts = Cuts::default();
        let mut from = self.blocks(&rules, block, 0, &mut cuts);
        // The first line tells what lines end with.
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

    /// [`blocks`], by what the machine has.
    fn blocks(&mut self, rules: &Rules, block: &[u8], from: usize, cuts: &mut Cuts) -> usize {
        match self.processor {
            // SAFETY: the processor was found to have AVX2 and its companions.
            #[cfg(target_arch = "x86_64")]
            Processor::Avx2 => unsafe { blocks_avx2(self, rules, block, from, cuts) },
            // SAFETY: SSE2 is part of x86-64.
            #[cfg(target_arch = "x86_64")]
            Processor::Sse2 => unsafe {
                blocks::<super::simd::Sse2>(self, rules, block, from, cuts)
            },
            // SAFETY: plain registers need nothing.
            Processor::Any => unsafe { blocks::<Swar>(self, rules, block, from, cuts) },
        }
    }

    /// As [`Splitter::feed`], byte by byte: the twin that it must equal.
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
    }

    /// The byte at `at` of the block, by the first half of `CopyReadLineText`.
    fn byte(&mut self, c: u8, at: usize, cuts: &mut Cuts) {
        if self.characters.joins(self.lead, c) {
            self.lead = 0;
            self.backslash = false;
            // No delimiter, whatever it equals.
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

    /// Whether `c` stands within quotes, an opening one counted in.
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

    /// Whether `c` stands behind a backslash that is not itself escaped.
    fn escaped(&mut self, c: u8) -> bool {
        let escaped = self.carry.escaped != 0;
        self.carry.escaped = u64::from(c == b'\\' && !escaped);
        escaped
    }
}

/// Where the last record ends that `bytes` have whole, and what lines end with: by the
/// [`Scanner`], which every rule on quotes has, from the start of a record.
///
/// `last` and `eol` are those of [`Scanner::new`].
pub fn whole_records(bytes: &[u8], last: bool, dialect: &Dialect, eol: Eol) -> (usize, Eol) {
    let mut scanner = Scanner::new(bytes, last, dialect, eol);
    let mut record = Record::default();
    loop {
        match scanner.next(&mut record) {
            Ok(Next::Record) => {}
            // What follows the end of the data does not count.
            Ok(Next::End) if scanner.ended() => return (bytes.len(), scanner.eol()),
            Ok(_) => break,
            Err(_) if scanner.skip_record().is_none() => break,
            Err(_) => {}
        }
    }
    (scanner.position(), scanner.eol())
}

/// Takes whole blocks of 64 bytes from `from` on; gives how many bytes that were. While
/// nobody knows what ends a line, it stops before the block that has the first line's end.
///
/// # Safety
///
/// The processor has what `L` needs.
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
        // SAFETY: as the caller answers.
        let eq = |needle| unsafe { L::eq(block, needle) };
        let before = carry;
        // SAFETY: as the caller answers.
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
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
unsafe fn blocks_avx2(
    s: &mut Splitter,
    rules: &Rules,
    bytes: &[u8],
    from: usize,
    cuts: &mut Cuts,
) -> usize {
    // SAFETY: as the caller answers.
    unsafe { blocks::<super::simd::Avx2>(s, rules, bytes, from, cuts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until the first line has ended, which may take many blocks, nobody knows what ends one.
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
