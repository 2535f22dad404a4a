//! The scanner byte by byte, in the two steps of the server: first the line,
//! then its attributes.

use super::{DotLine, Eol, Format, Kind, Next, Record, Scanner, Span, MAX_RECORD};
use crate::error::Malformed;

/// Where a line's content ends and where the next line begins.
struct Line {
    content: usize,
    next: usize,
}

enum Found {
    Line(Line),
    Partial,
    End,
}

pub(super) fn next(s: &mut Scanner<'_>, record: &mut Record) -> Result<Next, Malformed> {
    record.clear();
    record.start = s.position;
    record.line = s.line + 1;
    if s.ended || s.position == s.chunk.len() {
        return Ok(Next::End);
    }
    let line = match line(s)? {
        Found::Line(line) => line,
        Found::Partial => return Ok(Next::Partial),
        Found::End => {
            s.ended = true;
            return Ok(Next::End);
        }
    };
    match s.dialect.format {
        Format::Csv => csv_fields(s, line.content, record)?,
        Format::Text => text_fields(s, line.content, record),
    }
    record.line = s.line + 1;
    s.line += 1;
    s.position = line.next;
    record.end = line.next;
    Ok(Next::Record)
}

/// Finds the end of the line at `s.position`, as `CopyReadLineText`.
fn line(s: &mut Scanner<'_>) -> Result<Found, Malformed> {
    let (d, chunk) = (s.dialect, s.chunk);
    let csv = d.format == Format::Csv;
    let escape = (d.escape != d.quote).then_some(d.escape);
    let (mut in_quote, mut escaped) = (false, false);
    let mut quoted_lines = 0;
    let mut i = s.position;
    while i < chunk.len() {
        if i - s.position > MAX_RECORD {
            return Err(Malformed::TooLong);
        }
        let c = chunk[i];
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
            let counted = if matches!(s.eol, Eol::Nl) { b'\n' } else { b'\r' };
            if in_quote && c == counted {
                quoted_lines += 1;
            }
        }
        let plain = !csv || !in_quote;
        match c {
            b'\r' if plain => {
                let Some(followed) = followed_by_newline(s, i) else { return Ok(Found::Partial) };
                return end_at_cr(s, i, followed, quoted_lines);
            }
            b'\n' if plain => {
                if matches!(s.eol, Eol::Cr | Eol::CrNl) {
                    return Err(Malformed::Newline);
                }
                s.eol = Eol::Nl;
                s.line += quoted_lines;
                return Ok(Found::Line(Line { content: i, next: i + 1 }));
            }
            b'\\' if !csv || (i == s.position && d.dot_line == DotLine::Ends) => {
                match chunk.get(i + 1) {
                    None if !s.last => return Ok(Found::Partial),
                    Some(b'.') => match dot(s, i)? {
                        Dot::Ends => return Ok(Found::End),
                        Dot::Partial => return Ok(Found::Partial),
                        Dot::Data => {}
                    },
                    _ => {}
                }
                // In text format a backslash hides the byte after it.
                if !csv {
                    i += 1;
                }
            }
            _ => {}
        }
        i += 1;
    }
    if !s.last {
        return Ok(Found::Partial);
    }
    if in_quote {
        return Err(Malformed::UnterminatedQuote);
    }
    s.line += quoted_lines;
    Ok(Found::Line(Line { content: chunk.len(), next: chunk.len() }))
}

/// Whether LF follows the CR at `i`; `None` where the chunk ends too early to tell.
fn followed_by_newline(s: &Scanner<'_>, i: usize) -> Option<bool> {
    match s.chunk.get(i + 1) {
        Some(c) => Some(*c == b'\n'),
        None if s.last || s.eol == Eol::Cr => Some(false),
        None => None,
    }
}

fn end_at_cr(s: &mut Scanner<'_>, i: usize, nl: bool, lines: u64) -> Result<Found, Malformed> {
    let next = match (s.eol, nl) {
        (Eol::Unknown | Eol::CrNl, true) => {
            s.eol = Eol::CrNl;
            i + 2
        }
        (Eol::Unknown | Eol::Cr, _) => {
            s.eol = Eol::Cr;
            i + 1
        }
        _ => return Err(Malformed::CarriageReturn),
    };
    s.line += lines;
    Ok(Found::Line(Line { content: i, next }))
}

enum Dot {
    Ends,
    Data,
    Partial,
}

/// Judges the `\.` at `i`.
fn dot(s: &Scanner<'_>, i: usize) -> Result<Dot, Malformed> {
    let csv = s.dialect.format == Format::Csv;
    let rest = &s.chunk[i + 2..];
    let alone = i == s.position;
    let wrong = |kind| if csv { Ok(Dot::Data) } else { Err(kind) };
    let (end, style) = match rest {
        [] if s.last => (true, true),
        [] => return Ok(Dot::Partial),
        [b'\n', ..] => (true, matches!(s.eol, Eol::Unknown | Eol::Nl)),
        [b'\r'] if !s.last && s.eol != Eol::Cr => return Ok(Dot::Partial),
        [b'\r', b'\n', ..] => (true, matches!(s.eol, Eol::Unknown | Eol::CrNl)),
        [b'\r', ..] => (true, matches!(s.eol, Eol::Unknown | Eol::Cr)),
        _ => (false, true),
    };
    match (end && alone, style) {
        (true, true) => Ok(Dot::Ends),
        (true, false) => wrong(Malformed::EndMarkerStyle),
        (false, _) => wrong(Malformed::EndMarkerCorrupt),
    }
}

fn marker(s: &Scanner<'_>, raw: &[u8]) -> Option<Kind> {
    if raw == s.dialect.null {
        return Some(Kind::Null);
    }
    (s.dialect.default.as_deref() == Some(raw)).then_some(Kind::Default)
}

/// Splits the line into fields, as `CopyReadAttributesCSV`.
fn csv_fields(s: &Scanner<'_>, end: usize, record: &mut Record) -> Result<(), Malformed> {
    let (d, chunk) = (s.dialect, s.chunk);
    let mut i = s.position;
    loop {
        let raw_start = i;
        let scratch_start = record.scratch.len();
        let mut quoted = false;
        while i < end && chunk[i] != d.delimiter {
            if chunk[i] != d.quote {
                record.scratch.push(chunk[i]);
                i += 1;
                continue;
            }
            quoted = true;
            i += 1;
            loop {
                if i == end {
                    return Err(Malformed::UnterminatedQuote);
                }
                let c = chunk[i];
                let next = chunk[..end].get(i + 1);
                if c == d.escape && next.is_some_and(|n| *n == d.escape || *n == d.quote) {
                    record.scratch.push(chunk[i + 1]);
                    i += 2;
                } else if c == d.quote {
                    i += 1;
                    break;
                } else {
                    record.scratch.push(c);
                    i += 1;
                }
            }
        }
        let kind = if quoted { Kind::Quoted } else { Kind::Plain };
        let kind = if quoted { kind } else { marker(s, &chunk[raw_start..i]).unwrap_or(kind) };
        push(record, scratch_start, kind);
        if i == end {
            return Ok(());
        }
        i += 1;
    }
}

/// Splits the line into fields, as `CopyReadAttributesText`.
fn text_fields(s: &Scanner<'_>, end: usize, record: &mut Record) {
    let (d, chunk) = (s.dialect, &s.chunk[..end]);
    let mut i = s.position;
    loop {
        let raw_start = i;
        let scratch_start = record.scratch.len();
        while i < end && chunk[i] != d.delimiter {
            if chunk[i] != b'\\' || i + 1 == end {
                record.scratch.push(chunk[i]);
                i += 1;
                continue;
            }
            let (value, used) = text_escape(&chunk[i + 1..]);
            record.scratch.push(value);
            i += 1 + used;
        }
        let kind = marker(s, &chunk[raw_start..i]).unwrap_or(Kind::Plain);
        push(record, scratch_start, kind);
        if i == end {
            return;
        }
        i += 1;
    }
}

/// The byte that an escape stands for, and how many bytes after the backslash it takes.
fn text_escape(rest: &[u8]) -> (u8, usize) {
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

fn push(record: &mut Record, scratch_start: usize, kind: Kind) {
    let end = record.scratch.len() as u32;
    record.spans.push(Span { start: scratch_start as u32, end, kind, scratch: true });
}
