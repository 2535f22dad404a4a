//! Finds where a record ends and its line end begins.

use pgsluice_core::scan::{Dialect, Eol, Format, Next, Record, Scanner, Splitter};
use std::io::{self, Write};

/// How many bytes at the end of a record that is too long for memory determine how it ends: at
/// least as many as a run of backslashes has.
pub(super) const TAIL: u64 = 64;

/// Separates a record from its line end, if it has one.
pub(super) fn parts<'b>(bytes: &'b [u8], dialect: &Dialect) -> (&'b [u8], &'b [u8]) {
    let length = match bytes {
        [.., b'\r', b'\n'] => 2,
        [.., b'\r' | b'\n'] => 1,
        _ => 0,
    };
    let (content, end) = bytes.split_at(bytes.len() - length);
    if !escapes_what_follows(content, dialect) {
        (content, end)
    } else if end.is_empty() {
        // COPY ignores a backslash at the end of the data.
        (&content[..content.len() - 1], end)
    } else {
        // The first byte of the apparent line end belongs to the value.
        bytes.split_at(content.len() + 1)
    }
}

/// Whether the text format reads the bytes after these as part of the same record.
fn escapes_what_follows(content: &[u8], dialect: &Dialect) -> bool {
    if dialect.format != Format::Text || !content.ends_with(b"\\") {
        return false;
    }
    let line = [content, b"\n"].concat();
    let mut scanner = Scanner::new(&line, false, dialect, Eol::Nl);
    // A record with another line end is malformed, and ends there.
    scanner.next(&mut Record::default()) == Ok(Next::Partial)
}

/// Whether a record of lines by these rules may leave a quote open. If a quote can open only at the
/// start of a field, the next record does not close an open quote; its own line ends it.
pub(super) fn may_stay_open(dialect: Option<&Dialect>) -> bool {
    dialect.is_some_and(|d| d.format == Format::Csv && !d.strict())
}

/// Finds out, while a record is written, whether it leaves a quote open.
pub(super) struct Quotes<W> {
    out: W,
    splitter: Option<Splitter>,
}

impl<W: Write> Quotes<W> {
    /// Begins a record of lines by these rules, which end with `eol`.
    pub fn new(out: W, dialect: Option<&Dialect>, eol: Eol) -> Self {
        let csv = dialect.filter(|dialect| may_stay_open(Some(dialect)));
        Quotes { out, splitter: csv.map(|dialect| Splitter::new(dialect, eol)) }
    }

    /// Whether a line end after these last bytes would belong to a value.
    pub fn ends_open(self, bytes: &[u8]) -> bool {
        let Some(mut splitter) = self.splitter else { return false };
        splitter.feed(bytes);
        let end = splitter.eol().bytes().unwrap_or(b"\n");
        splitter.feed(end).last.is_none()
    }
}

impl<W: Write> Write for Quotes<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        if let Some(splitter) = &mut self.splitter {
            splitter.feed(&bytes[..written]);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_that_is_left_open_is_seen() {
        let backslash = Dialect { escape: b'\\', ..Dialect::csv() };
        let (csv, text) = (Dialect::csv(), Dialect::text());
        let cases: [(&[u8], &Dialect, bool); 9] = [
            (b"1,\"x\n", &csv, true),
            (b"1,\"x", &csv, true),
            (b"1,\"x\"\n", &csv, false),
            (b"1,\"x\"\"\n", &csv, true),
            (b"1,x\r\n", &csv, false),
            (b"1,x\r", &csv, false),
            (b"1,\"x\\\"\n", &backslash, true),
            (b"1,\"x\\\"\"", &backslash, false),
            (b"1\t\"x\\\n", &text, false),
        ];
        for (bytes, dialect, open) in cases {
            for eol in [Eol::Unknown, Eol::Nl, Eol::CrNl] {
                let mut quotes = Quotes::new(io::sink(), Some(dialect), eol);
                quotes.write_all(&bytes[..2]).unwrap();
                assert_eq!(quotes.ends_open(&bytes[2..]), open, "{} {eol:?}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn the_end_of_a_record_is_told_from_a_value_that_looks_like_one() {
        let sjis = Dialect::text().in_encoding("SJIS");
        let (csv, text) = (Dialect::csv(), Dialect::text());
        type Pair = (&'static [u8], &'static [u8]);
        let cases: [(&[u8], &Dialect, Pair); 10] = [
            (b"a\r\n", &text, (b"a", b"\r\n")),
            (b"a\\\r\n", &text, (b"a\\\r", b"\n")),
            (b"a", &text, (b"a", b"")),
            (b"a\\\\\n", &text, (b"a\\\\", b"\n")),
            (b"a\\\n", &text, (b"a\\\n", b"")),
            (b"a\\\\\\\r", &text, (b"a\\\\\\\r", b"")),
            (b"a\\", &text, (b"a", b"")),
            (b"a\\\\", &text, (b"a\\\\", b"")),
            // The second byte of a character.
            (b"\x95\\\n", &sjis, (b"\x95\\", b"\n")),
            (b"a\\\n", &csv, (b"a\\", b"\n")),
        ];
        for (bytes, dialect, expected) in cases {
            assert_eq!(parts(bytes, dialect), expected, "{}", bytes.escape_ascii());
        }
    }
}
