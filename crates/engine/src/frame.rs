//! Lines of a file that are not records: before the header, after the last record, and comments.

use crate::error::Error;
use crate::text::{text, Text};
use pgsluice_core::scan::{Dialect, Eol, Format, Next, Record, Scanner, StrayQuotes};

/// The most lines that are held back as a footer.
pub const MOST_FOOTER: u32 = 1000;

/// Which lines of each file are not records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// this many lines precede the header
    pub skip_lines: u64,
    /// this many lines follow the last record
    pub skip_footer: u32,
    /// lines that begin with this byte are comments, except within quotes
    pub comment: Option<u8>,
    /// an option or an earlier file names the delimiter, so a line such as `sep=;` must not name
    /// another
    pub delimiter_named: bool,
}

impl Frame {
    /// Whether the first line of a text that begins with `bytes` is not a record.
    pub(crate) fn skips_first(&self, bytes: &[u8]) -> bool {
        self.skip_lines > 0 || self.comment.is_some_and(|c| without_mark(bytes).first() == Some(&c))
    }
}

/// Numbers of skipped lines that are not records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// by `--skip-lines`
    pub head: u64,
    /// by `--comment`
    pub comments: u64,
    /// by `--skip-footer`
    pub footer: u64,
    /// empty lines at the end of a file
    pub blank: u64,
}

impl std::ops::AddAssign for Passed {
    fn add_assign(&mut self, other: Passed) {
        self.head += other.head;
        self.comments += other.comments;
        self.footer += other.footer;
        self.blank += other.blank;
    }
}

impl Passed {
    /// The sum of the numbers.
    pub fn lines(&self) -> u64 {
        self.head + self.comments + self.footer + self.blank
    }

    /// Returns a note about these lines, if there are any.
    pub fn note(&self) -> Option<Text> {
        let parts = [
            (self.head, "by `skip-lines`"),
            (self.comments, "by `comment`"),
            (self.footer, "by `skip-footer`"),
            (self.blank, "empty lines at the end"),
        ];
        let parts = parts.into_iter().filter(|(n, _)| *n > 0);
        let said: Vec<Text> = parts.map(|(n, how)| text!("{} {}", n, Text::from(how))).collect();
        (!said.is_empty())
            .then(|| text!("skipped lines that are not records: {}", Text::join(&said, ", ")))
    }
}

/// Checks that no record of this dialect can begin with `comment`.
///
/// # Errors
///
/// A record may begin with it.
pub(crate) fn check_comment(comment: u8, d: &Dialect) -> Result<(), Error> {
    let csv = d.format == Format::Csv;
    let what = match comment {
        b'\r' | b'\n' => "a line end",
        c if c == d.delimiter => "the delimiter",
        c if csv && c == d.quote => "the quote",
        c if csv && c == d.escape => "the escape",
        b'\\' if !csv => "a backslash",
        c if c.is_ascii_alphanumeric() => "a letter or a digit",
        c if d.null.first() == Some(&c) => "the first character of the NULL marker",
        c if d.default.as_ref().is_some_and(|m| m.first() == Some(&c)) => {
            "the first character of the DEFAULT marker"
        }
        _ => return Ok(()),
    };
    Err(Error::usage(text!("`comment` cannot be {}: records may begin with it", what)))
}

/// Returns the delimiter that the first line of a file names, as Excel reads it (`sep=;`), and the
/// length of that line.
pub(crate) fn excel_delimiter(bytes: &[u8]) -> Option<(u8, usize)> {
    let end = bytes.iter().take(16).position(|c| matches!(c, b'\r' | b'\n'))?;
    let line = &bytes[..end];
    let bare = line.strip_prefix(b"\"").and_then(|l| l.strip_suffix(b"\"")).unwrap_or(line);
    let (&delimiter, name) = bare.split_last()?;
    let is = name.eq_ignore_ascii_case(b"sep=")
        && delimiter.is_ascii()
        && !delimiter.is_ascii_alphanumeric()
        && !matches!(delimiter, 0 | b'"');
    let crlf = bytes[end..].starts_with(b"\r\n");
    is.then_some((delimiter, end + 1 + usize::from(crlf)))
}

/// Returns the line end of the first record of a text that begins with `bytes`. Within quotes, line
/// ends of both kinds are part of a value.
pub(crate) fn first_end(bytes: &[u8], dialect: &Dialect) -> Eol {
    let mut scanner = Scanner::new(without_mark(bytes), false, dialect, Eol::Unknown);
    // The load reports a malformed record.
    let _ = scanner.next(&mut Record::default());
    scanner.eol()
}

/// As [`first_end`], if the first line is not a record. Whatever stray quotes mean in a record, they
/// hide no line end there.
pub(crate) fn first_end_of_skipped(bytes: &[u8], dialect: &Dialect) -> Eol {
    first_end(bytes, &Dialect { stray_quotes: StrayQuotes::Literal, ..dialect.clone() })
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Returns the last byte of the line ends of a text that begins with a line that is not a record.
/// `eol` is the line end, if it is known.
pub(crate) fn end_of_skipped(bytes: &[u8], eol: Eol, dialect: &Dialect) -> u8 {
    match eol {
        Eol::Unknown => line_end(bytes, first_end_of_skipped(bytes, dialect)),
        eol => line_end(bytes, eol),
    }
}

/// Returns the last byte of these line ends. If they are not known, the result is CR only if `bytes`
/// has a CR and no LF.
pub(crate) fn line_end(bytes: &[u8], eol: Eol) -> u8 {
    match eol {
        Eol::Nl | Eol::CrNl => b'\n',
        Eol::Cr => b'\r',
        Eol::Unknown if memchr::memchr(b'\n', bytes).is_some() => b'\n',
        Eol::Unknown if memchr::memchr(b'\r', bytes).is_some() => b'\r',
        Eol::Unknown => b'\n',
    }
}

/// Finds the next byte from `from` on that begins a line and is `comment`. If `at_start`, the first
/// of the bytes begins a line.
pub(crate) fn candidate(bytes: &[u8], from: usize, comment: u8, at_start: bool) -> Option<usize> {
    let begins = |at: usize| match at {
        0 => at_start,
        _ => matches!(bytes[at - 1], b'\r' | b'\n'),
    };
    memchr::memchr_iter(comment, bytes.get(from..)?).map(|at| from + at).find(|at| begins(*at))
}

/// Finds the first comment where a record could begin. Returns its offset and the line end. `bytes`
/// must begin with a record or a comment. The [`Scanner`] has every rule on quotes.
pub(crate) fn first_comment(
    bytes: &[u8],
    last: bool,
    dialect: &Dialect,
    eol: Eol,
    comment: u8,
) -> Option<(usize, Eol)> {
    candidate(bytes, 0, comment, true)?;
    let (mut scanner, mut record) = (Scanner::new(bytes, last, dialect, eol), Record::default());
    loop {
        let at = scanner.position();
        if bytes.get(at) == Some(&comment) {
            return Some((at, scanner.eol()));
        }
        match scanner.next(&mut record) {
            Ok(Next::Record) => {}
            Err(_) if scanner.skip_record().is_some_and(|(from, to)| from < to) => {}
            _ => return None,
        }
    }
}

/// Returns the records of `bytes`, which must begin with a record or a comment, without comments.
pub(crate) fn without_comments(
    mut bytes: &[u8],
    last: bool,
    dialect: &Dialect,
    comment: u8,
) -> Vec<u8> {
    let mut records = Vec::with_capacity(bytes.len());
    while let Some((at, eol)) = first_comment(bytes, last, dialect, Eol::Unknown, comment) {
        records.extend_from_slice(&bytes[..at]);
        bytes = &bytes[at..];
        let end = memchr::memchr(end_of_skipped(bytes, eol, dialect), bytes);
        bytes = &bytes[end.map_or(bytes.len(), |end| end + 1)..];
    }
    records.extend_from_slice(bytes);
    records
}

/// Returns where the empty lines at the end of these whole records begin, and how many there are.
/// In `text`, a line end after a backslash is part of the value.
pub(crate) fn blank_end(bytes: &[u8], text: bool) -> (usize, u64) {
    let is_end = |c: &u8| matches!(c, b'\r' | b'\n');
    let (mut end, mut lines) = (bytes.len(), 0);
    // It is the same byte before each of these lines.
    if text && bytes.iter().rev().find(|c| !is_end(c)) == Some(&b'\\') {
        return (end, lines);
    }
    loop {
        let start = match &bytes[..end] {
            [.., b'\r', b'\n'] => end - 2,
            [.., b'\r' | b'\n'] => end - 1,
            _ => return (end, lines),
        };
        if !bytes[..start].last().is_none_or(is_end) {
            return (end, lines);
        }
        end = start;
        lines += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_excel_names_a_delimiter() {
        for (bytes, found) in [
            (&b"sep=;\na;b\n"[..], Some((b';', 6))),
            (b"SEP=\t\r\na\tb\r\n", Some((b'\t', 7))),
            (b"\"sep=|\"\rx", Some((b'|', 8))),
            (b"sep=,\n", Some((b',', 6))),
            (b"sep=;;\n", None),
            (b"sep=a\n", None),
            (b"sep=\n", None),
            (b"sep=;", None),
            (b"separator=;\n", None),
            (b"", None),
        ] {
            assert_eq!(excel_delimiter(bytes), found, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn comments_are_lines_outside_quotes() {
        let csv = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
        for (bytes, records) in [
            ("# a\n1,x\n#b\n#\"c\n2,y\n", "1,x\n2,y\n"),
            ("1,\"x\n# no\ny\"\n# yes", "1,\"x\n# no\ny\"\n"),
            ("1,#x\r\n#\r\n2,y", "1,#x\r\n2,y"),
            ("1,x\"y\n#\"\n2,\"z\n#\"\n", "1,x\"y\n2,\"z\n#\"\n"),
            ("1\r#\r2\r", "1\r2\r"),
            ("a,b\n", "a,b\n"),
        ] {
            let found = without_comments(bytes.as_bytes(), true, &csv, b'#');
            assert_eq!(String::from_utf8(found).unwrap(), records, "{bytes:?}");
        }
        let text = without_comments(b"1\\\n# no\n# yes\n2\n", true, &Dialect::text(), b'#');
        assert_eq!(text, b"1\\\n# no\n2\n");
    }

    #[test]
    fn empty_lines_end_a_file() {
        for (bytes, text, left) in [
            (&b"1,a\n\n\n"[..], false, (4, 2)),
            (b"1,a\r\n\r\n", false, (5, 1)),
            (b"1,a\r\r\r", false, (4, 2)),
            (b"1,a", false, (3, 0)),
            (b"\n\n", false, (0, 2)),
            (b"1\tb\\\n\n", true, (6, 0)),
            (b"1\tb\n\n", true, (4, 1)),
        ] {
            assert_eq!(blank_end(bytes, text), left, "{}", bytes.escape_ascii());
        }
    }

    /// The rule for one line at a time.
    fn is_blank_end(before: &[u8], text: bool) -> bool {
        let is_end = |c: &&u8| matches!(**c, b'\r' | b'\n');
        let hidden = text && before.iter().rev().find(|c| !is_end(c)) == Some(&b'\\');
        before.last().is_none_or(|c| is_end(&c)) && !hidden
    }

    #[test]
    fn each_empty_line_follows_the_same_rule() {
        const BYTES: &[u8] = b"\n\r\\a";
        for (n, text) in (0..BYTES.len().pow(6)).flat_map(|n| [(n, false), (n, true)]) {
            let whole: Vec<u8> = (0..6).map(|i| BYTES[n / BYTES.len().pow(i) % 4]).collect();
            let (mut end, mut lines) = (whole.len(), 0);
            loop {
                let length = match &whole[..end] {
                    [.., b'\r', b'\n'] => 2,
                    [.., b'\r' | b'\n'] => 1,
                    _ => break,
                };
                if !is_blank_end(&whole[..end - length], text) {
                    break;
                }
                end -= length;
                lines += 1;
            }
            assert_eq!(blank_end(&whole, text), (end, lines), "{}", whole.escape_ascii());
        }
    }

    #[test]
    fn what_a_record_may_begin_with_is_no_comment() {
        let (csv, text) = (Dialect::csv(), Dialect::text());
        assert!(check_comment(b'#', &csv).is_ok() && check_comment(b'%', &text).is_ok());
        let marked = Dialect { null: b"#N/A".to_vec(), ..Dialect::csv() };
        for (comment, dialect) in
            [(b',', &csv), (b'"', &csv), (b'1', &csv), (b'\\', &text), (b'#', &marked)]
        {
            assert!(check_comment(comment, dialect).is_err(), "{}", comment.escape_ascii());
        }
    }
}
