//! The scanner byte by byte, in the two steps of the server: first the line, then its attributes.

use super::{
    strict, valid_utf8, Dialect, DotLine, Eol, FieldKind, Format, Next, Record, Scanner, MAX_RECORD,
};
use crate::error::Malformed;
use crate::memory::Fallible;

/// The end of a line's content, and the start of the next line.
struct Line {
    content: usize,
    next: usize,
    /// a `\.` after the content ended the data
    ended: bool,
}

impl Line {
    fn found(content: usize, next: usize) -> Found {
        Found::Line(Line { content, next, ended: false })
    }
}

enum Found {
    Line(Line),
    Partial,
    End,
}

pub(super) fn next(s: &mut Scanner<'_>, record: &mut Record) -> Result<Next, Malformed> {
    record.clear();
    record.start = s.position;
    record.end = s.position;
    record.line = s.line + 1;
    if s.ended || s.position == s.chunk.len() {
        return Ok(Next::End);
    }
    if s.strict {
        if let Some(next) = strict::next(s, record) {
            return next;
        }
    }
    let line = match line(s, &mut record.line)? {
        Found::Line(line) => line,
        Found::Partial => return Ok(Next::Partial),
        Found::End => {
            s.ended = true;
            return Ok(Next::End);
        }
    };
    record.end = line.next;
    record.room(line.content - s.position)?;
    match s.dialect.format {
        Format::Csv => csv_fields(s, line.content, record)?,
        Format::Text => text_fields(s, line.content, record)?,
    }
    s.line = record.line;
    s.position = line.next;
    s.ended = line.ended;
    Ok(Next::Record)
}

/// Finds the end of the line at `s.position`, like `CopyReadLineText`. Line ends within quotes are
/// added to `lines`.
fn line(s: &mut Scanner<'_>, lines: &mut u64) -> Result<Found, Malformed> {
    let (d, chunk) = (s.dialect, s.chunk);
    let csv = d.format == Format::Csv;
    let escape = (d.escape != d.quote).then_some(d.escape);
    let (mut in_quote, mut escaped) = (false, false);
    let mut i = s.position;
    while i < chunk.len() {
        if i - s.position >= MAX_RECORD {
            return Err(Malformed::TooLong);
        }
        let c = chunk[i];
        if d.characters.width(chunk, i) == 2 {
            escaped = false;
            i += 2;
            continue;
        }
        if csv {
            if in_quote && Some(c) == escape {
                escaped = !escaped;
            }
            if c == d.quote && !escaped {
                in_quote = !in_quote;
            }
            if Some(c) != escape {
                escaped = false;
            }
            let counted = if s.eol == Eol::Nl { b'\n' } else { b'\r' };
            *lines += u64::from(in_quote && c == counted);
        }
        let plain = !csv || !in_quote;
        match c {
            b'\r' if plain => {
                let Some(followed) = followed_by_newline(s, i) else { return Ok(Found::Partial) };
                return end_at_cr(s, i, followed);
            }
            b'\n' if plain => {
                if matches!(s.eol, Eol::Cr | Eol::CrNl) {
                    return Err(Malformed::Newline);
                }
                s.eol = Eol::Nl;
                return Ok(Line::found(i, i + 1));
            }
            b'\\' if !csv || (i == s.position && d.dot_line == DotLine::Ends) => {
                match chunk.get(i + 1) {
                    None if !s.last => return Ok(Found::Partial),
                    Some(b'.') => match dot(s, i)? {
                        Dot::Ends(_) if i == s.position => return Ok(Found::End),
                        Dot::Ends(next) => {
                            return Ok(Found::Line(Line { content: i, next, ended: true }))
                        }
                        Dot::Partial => return Ok(Found::Partial),
                        Dot::Data => {}
                    },
                    _ => {}
                }
                // In text format, a backslash hides the character after it.
                if !csv {
                    i += d.characters.width(chunk, i + 1);
                }
            }
            _ => {}
        }
        i += 1;
    }
    // If the data end within quotes, the split into fields reports it.
    Ok(if s.last { Line::found(chunk.len(), chunk.len()) } else { Found::Partial })
}

/// Whether an LF follows the CR at `i`; `None` if the chunk ends before that is known.
fn followed_by_newline(s: &Scanner<'_>, i: usize) -> Option<bool> {
    match s.chunk.get(i + 1) {
        Some(c) => Some(*c == b'\n'),
        None if s.last || s.eol == Eol::Cr => Some(false),
        None => None,
    }
}

fn end_at_cr(s: &mut Scanner<'_>, i: usize, nl: bool) -> Result<Found, Malformed> {
    match (s.eol, nl) {
        (Eol::Unknown | Eol::CrNl, true) => {
            s.eol = Eol::CrNl;
            Ok(Line::found(i, i + 2))
        }
        (Eol::Unknown | Eol::Cr, _) => {
            s.eol = Eol::Cr;
            Ok(Line::found(i, i + 1))
        }
        _ => Err(Malformed::CarriageReturn),
    }
}

enum Dot {
    /// the data end; the offset of the bytes that follow
    Ends(usize),
    Data,
    Partial,
}

/// Handles the `\.` at `i`. As in the server, the end of the data counts as a NUL.
fn dot(s: &Scanner<'_>, i: usize) -> Result<Dot, Malformed> {
    let csv = s.dialect.format == Format::Csv;
    let or_data = |kind| if csv { Ok(Dot::Data) } else { Err(kind) };
    let corrupt = match s.dialect.dot_line {
        DotLine::Ends => Malformed::EndMarkerCorrupt,
        DotLine::Alone | DotLine::IsData => Malformed::EndMarkerNotAlone,
    };
    let at = |at: usize| match s.chunk.get(at) {
        None if s.last => Some(0),
        c => c.copied(),
    };
    let mut end = i + 2;
    if s.eol == Eol::CrNl {
        match at(end) {
            None => return Ok(Dot::Partial),
            Some(b'\r') => end += 1,
            Some(b'\n') => return or_data(Malformed::EndMarkerStyle),
            Some(_) => return or_data(corrupt),
        }
    }
    let alone = i == s.position || s.dialect.dot_line == DotLine::Ends;
    match (at(end), s.eol) {
        (None, _) => Ok(Dot::Partial),
        (Some(b'\n'), Eol::Cr) | (Some(b'\r'), Eol::Nl | Eol::CrNl) => {
            Err(Malformed::EndMarkerStyle)
        }
        (Some(b'\n' | b'\r'), _) if alone => Ok(Dot::Ends(end + 1)),
        (Some(b'\n' | b'\r'), _) => Err(Malformed::EndMarkerNotAlone),
        (Some(_), _) => or_data(corrupt),
    }
}

/// Splits the line into fields, like `CopyReadAttributesCSV`.
fn csv_fields(s: &mut Scanner<'_>, end: usize, record: &mut Record) -> Result<(), Malformed> {
    let (d, chunk) = (s.dialect, s.chunk);
    let mut i = s.position;
    loop {
        let start = i;
        let scratch = record.scratch.len();
        let (mut quoted, mut stray) = (false, false);
        while i < end && chunk[i] != d.delimiter {
            if chunk[i] == d.quote {
                quoted = true;
                stray |= i > start;
                i = csv_quoted(d, &chunk[..end], i + 1, &mut record.scratch)?;
            } else {
                stray |= quoted;
                i = take(d, &chunk[..end], i, &mut record.scratch);
            }
        }
        s.strays += u64::from(stray);
        let kind = if quoted {
            d.kind_of_quoted(&record.scratch[scratch..])
        } else {
            d.kind_of_raw(&chunk[start..i])
        };
        record.push_scratch(scratch, kind)?;
        if i == end {
            return Ok(());
        }
        i += 1;
    }
}

/// Resolves the bytes after an opening quote in `line` into `scratch`, which must have room for
/// them. Returns the offset after the closing quote.
pub(super) fn csv_quoted(
    dialect: &Dialect,
    line: &[u8],
    mut i: usize,
    scratch: &mut Vec<u8>,
) -> Result<usize, Malformed> {
    let (quote, escape) = (dialect.quote, dialect.escape);
    while i < line.len() {
        let c = line[i];
        let next = line.get(i + 1);
        if c == escape && next.is_some_and(|n| *n == escape || *n == quote) {
            scratch.push_within(line[i + 1]);
            i += 2;
        } else if c == quote {
            return Ok(i + 1);
        } else {
            i = take(dialect, line, i, scratch);
        }
    }
    Err(Malformed::UnterminatedQuote)
}

/// Appends the character at `i`. Returns the offset after it.
fn take(dialect: &Dialect, line: &[u8], i: usize, scratch: &mut Vec<u8>) -> usize {
    let next = i + dialect.characters.width(line, i);
    scratch.extend_within_room(&line[i..next]);
    next
}

/// Splits the line into fields, like `CopyReadAttributesText`.
fn text_fields(s: &Scanner<'_>, end: usize, record: &mut Record) -> Result<(), Malformed> {
    let (d, chunk) = (s.dialect, &s.chunk[..end]);
    let mut i = s.position;
    loop {
        let start = i;
        let scratch = record.scratch.len();
        let mut beyond_ascii = false;
        while i < end && chunk[i] != d.delimiter {
            if chunk[i] != b'\\' {
                i = take(d, chunk, i, &mut record.scratch);
            } else if i + 1 == end {
                break;
            } else if d.characters.width(chunk, i + 1) == 2 {
                i = take(d, chunk, i + 1, &mut record.scratch);
            } else {
                let (value, used) = text_escape(&chunk[i + 1..]);
                beyond_ascii |= value == 0 || (used > 1 && value > 127);
                record.scratch.push_within(value);
                i += 1 + used;
            }
        }
        match d.kind_of_raw(&chunk[start..i]) {
            FieldKind::Plain => {
                if beyond_ascii && d.utf8 {
                    valid_utf8(&record.scratch[scratch..]).map_err(Malformed::Encoding)?;
                }
                record.push_scratch(scratch, FieldKind::Plain)?;
            }
            marker => record.push(start, i, marker)?,
        }
        // A backslash that ends the data escapes nothing and is dropped.
        if i == end || chunk[i] == b'\\' {
            return Ok(());
        }
        i += 1;
    }
}

/// The byte that an escape means, and the number of bytes that it takes after the backslash.
pub(super) fn text_escape(rest: &[u8]) -> (u8, usize) {
    let digit = |at: usize, radix| rest.get(at).and_then(|c| char::from(*c).to_digit(radix));
    match rest[0] {
        b'0'..=b'7' => {
            let mut value = 0;
            let mut used = 0;
            while used < 3 {
                let Some(octal) = digit(used, 8) else { break };
                value = value << 3 | octal;
                used += 1;
            }
            (value as u8, used)
        }
        b'x' => match (digit(1, 16), digit(2, 16)) {
            (Some(high), Some(low)) => ((high << 4 | low) as u8, 3),
            (Some(only), None) => (only as u8, 2),
            (None, _) => (b'x', 1),
        },
        b'b' => (8, 1),
        b'f' => (12, 1),
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'v' => (11, 1),
        other => (other, 1),
    }
}
