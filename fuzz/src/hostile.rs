//! Files that are as nasty as COPY's rules allow, and nastier.

use pgsluice_core::scan::{Characters, Dialect, DotLine, Format, StrayQuotes};

use crate::rng::Random;

/// A file, the options of its COPY, and how many columns it is loaded into.
#[derive(Clone, Debug)]
pub struct ReadCase {
    /// COPY's options
    pub dialect: Dialect,
    /// the bytes: valid UTF-8 without NUL
    pub data: Vec<u8>,
    /// the relation's columns
    pub columns: usize,
    /// bit `i`: FORCE_NULL holds for column `i` (csv only)
    pub force_null: u8,
    /// bit `i`: FORCE_NOT_NULL holds for column `i` (csv only)
    pub force_not_null: u8,
}

impl ReadCase {
    /// A case that PostgreSQL `major` accepts the options of.
    pub fn new(rng: &mut Random, major: u32) -> Self {
        let format = if rng.once_in(3) { Format::Text } else { Format::Csv };
        let dialect = dialect(rng, format, major);
        let columns = 1 + rng.below(4);
        let data = file(rng, &dialect, columns);
        let mut force = || if format == Format::Csv { rng.bits() as u8 & 0x0f } else { 0 };
        ReadCase { dialect, data, columns, force_null: force(), force_not_null: force() }
    }

    /// A case whose nasty bytes lie around the end of a buffer of the server's
    /// (`RAW_BUF_SIZE`, 64 kB), behind one long record.
    pub fn at_border(rng: &mut Random, major: u32) -> Self {
        const BUFFER: usize = 1 << 16;
        let mut case = ReadCase::new(rng, major);
        let ends: [&[u8]; 3] = [b"\r\n", b"\r", b"\n"];
        let found = ends.iter().find(|end| case.data.windows(end.len()).any(|w| w == **end));
        let end = found.unwrap_or(&ends[2]);
        let others = vec![case.dialect.delimiter; case.columns - 1];
        let before = rng.below(case.data.len() + 2);
        let filler = vec![b'w'; BUFFER.saturating_sub(before + others.len() + end.len())];
        case.data = [&filler[..], &others, end, &case.data].concat();
        case
    }

    /// The columns `c0`, `c1` … whose bits are set, with commas between them.
    pub fn forced(&self, bits: u8) -> String {
        let forced = (0..self.columns).filter(|i| bits >> i & 1 == 1);
        forced.map(|i| format!("c{i}")).collect::<Vec<_>>().join(",")
    }

    /// COPY's own options, in parentheses.
    pub fn options(&self) -> String {
        let d = &self.dialect;
        let text = |bytes: &[u8]| {
            let hex: String = bytes.iter().map(|b| format!("\\x{b:02x}")).collect();
            format!("E'{hex}'")
        };
        let mut list =
            vec![format!("DELIMITER {}", text(&[d.delimiter])), format!("NULL {}", text(&d.null))];
        if let Some(default) = &d.default {
            list.push(format!("DEFAULT {}", text(default)));
        }
        if d.format == Format::Csv {
            let (quote, escape) = (text(&[d.quote]), text(&[d.escape]));
            list.push(format!("FORMAT csv, QUOTE {quote}, ESCAPE {escape}"));
            for (name, bits) in [("NULL", self.force_null), ("NOT_NULL", self.force_not_null)] {
                let forced = self.forced(bits);
                if !forced.is_empty() {
                    list.push(format!("FORCE_{name} ({forced})"));
                }
            }
        }
        format!("({})", list.join(", "))
    }
}

/// Options that the server accepts together.
pub fn dialect(rng: &mut Random, format: Format, major: u32) -> Dialect {
    let default = (major >= 16 && rng.once_in(4)).then(|| b"D!".to_vec());
    let dot_line = DotLine::of(format, major);
    if format == Format::Text {
        let nulls: [&[u8]; 5] = [b"\\N", b"", b"NULL", b"\\.", b"\\x41"];
        let (delimiter, null) = (rng.pick(b"\t\t,|;%A"), rng.pick(&nulls).to_vec());
        return Dialect { delimiter, null, default, dot_line, ..Dialect::text() };
    }
    let nulls: [&[u8]; 6] = [b"", b"", b"NULL", b"\\N", b"a", b" "];
    loop {
        let (delimiter, quote) = (rng.pick(b",,,;\t|a\\"), rng.pick(b"\"\"\"\"'~\\\r\n"));
        let escape = if rng.once_in(2) { quote } else { rng.pick(b"\\\\x,'~\r\n\"") };
        let null = rng.pick(&nulls).to_vec();
        let marked = |c: u8| null.contains(&c) || default.iter().flatten().any(|d| *d == c);
        // Up to 17 a quote that is the backslash toggles twice where the server
        // looks for `\.` at the end of its buffer: what it does is by chance.
        let by_chance = quote == b'\\' && major < 18;
        if delimiter != quote && !marked(delimiter) && !marked(quote) && !by_chance {
            let format = Format::Csv;
            return Dialect {
                format,
                delimiter,
                quote,
                escape,
                null,
                default,
                dot_line,
                utf8: true,
                characters: Characters::Ascii,
                stray_quotes: StrayQuotes::Copy,
            };
        }
    }
}

/// A file of some lines in the dialect; most have `columns` fields.
pub fn file(rng: &mut Random, dialect: &Dialect, columns: usize) -> Vec<u8> {
    let eol = rng.pick(&[&b"\n"[..], b"\n", b"\r\n", b"\r"]);
    let wild = if rng.once_in(3) { 8 } else { 60 };
    let mut out = Vec::new();
    let lines = rng.below(6);
    for line in 0..lines {
        let fields = if rng.once_in(wild) { rng.below(6) } else { columns };
        for i in 0..fields {
            if i > 0 {
                out.push(dialect.delimiter);
            }
            field(rng, dialect, wild, eol, &mut out);
        }
        let last = line + 1 == lines;
        if rng.once_in(20) {
            out.extend_from_slice(b"\\.");
        }
        if rng.once_in(wild * 2) {
            out.extend_from_slice(rng.pick(&[&b"\n"[..], b"\r\n", b"\r", b"\n\r", b"\\"]));
        } else if !(last && rng.once_in(3)) {
            out.extend_from_slice(eol);
        }
    }
    if rng.once_in(12) {
        let ends: [&[u8]; 8] =
            [b"\\.\n", b"\\.\r\n", b"\\.", b"\\.\r", b"\\.\nz\n", b"\\", b"\n", b"\\.x\n"];
        out.extend_from_slice(rng.pick(&ends));
    }
    out
}

fn field(rng: &mut Random, dialect: &Dialect, wild: usize, eol: &[u8], out: &mut Vec<u8>) {
    match rng.below(8) {
        0 => out.extend_from_slice(&dialect.null),
        1 => out.extend_from_slice(dialect.default.as_deref().unwrap_or(b"D!")),
        2 | 3 if dialect.format == Format::Csv => quoted(rng, dialect, wild, eol, out),
        _ => plain(rng, dialect, wild, out),
    }
}

/// Bytes that need no quotes, and sometimes ones that would.
fn plain(rng: &mut Random, dialect: &Dialect, wild: usize, out: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        if dialect.format == Format::Csv && rng.once_in(wild) {
            let nasty: [&[u8]; 4] = [&[dialect.quote], &[dialect.escape], b"\\.", b"\r"];
            out.extend_from_slice(rng.pick(&nasty));
        } else if dialect.format == Format::Text && rng.once_in(3) {
            escape(rng, dialect, wild, out);
        } else {
            word(rng, out);
        }
    }
}

/// A text escape; one in `wild` yields bytes that may be refused.
fn escape(rng: &mut Random, dialect: &Dialect, wild: usize, out: &mut Vec<u8>) {
    let good: [&[u8]; 18] = [
        b"\\n",
        b"\\t",
        b"\\\\",
        b"\\b",
        b"\\f",
        b"\\r",
        b"\\v",
        b"\\101",
        b"\\x41",
        b"\\x4A",
        b"\\xA",
        b"\\x4",
        b"\\7",
        b"\\xg",
        b"\\q",
        b"\\\n",
        b"\\1019",
        b"\\xc3\\xa9",
    ];
    let bad: [&[u8]; 6] = [b"\\xff", b"\\0", b"\\x0", b"\\303\\050", b"\\.", b"\\400"];
    if rng.once_in(wild) {
        out.extend_from_slice(rng.pick(&bad));
    } else if rng.once_in(8) {
        out.extend_from_slice(&[b'\\', dialect.delimiter]);
    } else {
        out.extend_from_slice(rng.pick(&good));
    }
}

/// A quoted field, its quotes escaped except where something goes wrong.
fn quoted(rng: &mut Random, dialect: &Dialect, wild: usize, eol: &[u8], out: &mut Vec<u8>) {
    let (quote, escape) = (dialect.quote, dialect.escape);
    if rng.once_in(6) {
        word(rng, out);
    }
    out.push(quote);
    for _ in 0..rng.below(6) {
        match rng.below(8) {
            0 => out.push(dialect.delimiter),
            1 => out.extend_from_slice(eol),
            2 | 3 => out.extend_from_slice(&[escape, quote]),
            4 => out.extend_from_slice(&[escape, escape]),
            5 if rng.once_in(wild) => out.push(rng.pick(&[quote, escape, b'\n', b'\r'])),
            6 if rng.once_in(3) => out.extend_from_slice(&dialect.null),
            _ => word(rng, out),
        }
    }
    if !rng.once_in(wild) {
        out.push(quote);
    }
    if rng.once_in(6) {
        word(rng, out);
    }
}

fn word(rng: &mut Random, out: &mut Vec<u8>) {
    let words = ["a", "b", "x", " ", ".", "0", "N", "é", "漢", "'", "~", "NULL", "D!"];
    match rng.below(12) {
        0 => out.extend(std::iter::repeat_n(b'w', rng.below(150))),
        _ => out.extend_from_slice(rng.pick(&words).as_bytes()),
    }
}
