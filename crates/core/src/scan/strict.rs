//! Handles records with stray quotes, if these have another meaning than in COPY.
//!
//! A field is quoted if its first byte is a quote and its closing quote is followed by a delimiter,
//! a line end or the end of the data. Any other quote is stray, that is, an ordinary character. A
//! field with a stray quote ends at the next delimiter or line end. The fields after it are read as
//! usual.
//!
//! The end of a record therefore does not depend on whether a stray quote is an error. A stray
//! quote never changes the meaning of quotes in the next record. The end does not depend on the
//! bytes after the record either: data that are cut off there have the same records.
//!
//! A line end of the wrong kind does not end a record. The exception is a lone LF in data whose
//! lines end in CR LF. [`super::Splitter`] has the same rule.

use super::{naive, Characters, Dialect, Eol, FieldKind, Next, Record, Scanner, MAX_RECORD};
use crate::error::{Malformed, Stray};
use crate::memory::OutOfMemory;

/// The end of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Delimiter,
    /// a line end of this length
    Line(usize),
    Data,
    /// unknown, because more bytes are needed
    More,
}

/// One field.
struct Field {
    end: usize,
    by: By,
    /// the end of its quotes, if it begins with a quote and is closed
    closed: Option<usize>,
    stray: Option<(Stray, usize)>,
    /// a line end of the wrong kind
    fault: Option<Malformed>,
}

/// The fault of a record, and the record's end.
struct Found {
    first: Malformed,
    /// the first line end of the wrong kind, an error with any meaning of stray quotes
    fault: Option<Malformed>,
    strays: u64,
    content: usize,
    end: usize,
    /// number of line ends within quotes: before the field of `first`, and in the whole record
    lines: (u64, u64),
}

/// Scans the record at the scanner's position if it has a stray quote or a line end of the wrong
/// kind. `None` if it has neither: then COPY's own steps apply.
pub(super) fn next(s: &mut Scanner<'_>, record: &mut Record) -> Option<Result<Next, Malformed>> {
    let found = match look(s)? {
        Ok(found) => found,
        Err(next) => return Some(Ok(next)),
    };
    s.refused = Some((found.end, found.lines.1 + 1));
    if found.end - s.position >= MAX_RECORD {
        return Some(Err(Malformed::TooLong));
    }
    if s.eol == Eol::Unknown && found.content < found.end {
        s.eol = match &s.chunk[found.content..found.end] {
            b"\n" => Eol::Nl,
            b"\r" => Eol::Cr,
            _ => Eol::CrNl,
        };
    }
    s.strays += found.strays;
    let all = s.line + found.lines.1 + 1;
    let literal = s.dialect.stray_quotes == super::StrayQuotes::Literal;
    let refused = if literal { found.fault } else { Some(found.first) };
    if let Some(refused) = refused {
        record.line = s.line + found.lines.0 + 1;
        return Some(Err(refused));
    }
    s.refused = None;
    if let Err(error) = put(s, found.content, record) {
        return Some(Err(error.into()));
    }
    record.end = found.end;
    record.line = all;
    s.line = all;
    s.position = found.end;
    Some(Ok(Next::Record))
}

/// Looks for faults in the record at the scanner's position.
fn look(s: &Scanner<'_>) -> Option<Result<Found, Next>> {
    let (mut at, mut index, mut strays) = (s.position, 0, 0);
    let (mut first, mut fault) = (None, None);
    let (mut lines, mut before) = (0, 0);
    let counted = if s.eol == Eol::Nl { b'\n' } else { b'\r' };
    loop {
        let field = field(s, at);
        let stray = field.stray.map(|(kind, place)| {
            strays += 1;
            Malformed::StrayQuote { kind, field: index, at: place - s.position }
        });
        if let (None, Some(wrong)) = (first, stray.or(field.fault)) {
            first = Some(wrong);
            before = lines;
        }
        fault = fault.or(field.fault);
        if let Some(closed) = field.closed {
            lines += memchr::memchr_iter(counted, &s.chunk[at..closed]).count() as u64;
        }
        let end = match field.by {
            By::Delimiter => {
                at = field.end + 1;
                index += 1;
                continue;
            }
            By::More => return first.map(|_| Err(Next::Partial)),
            By::Line(length) => field.end + length,
            By::Data => field.end,
        };
        let (content, lines) = (field.end, (before, lines));
        return first.map(|first| Ok(Found { first, fault, strays, content, end, lines }));
    }
}

/// Adds the fields of the record up to `content` to `record`.
fn put(s: &Scanner<'_>, content: usize, record: &mut Record) -> Result<(), OutOfMemory> {
    let mut at = s.position;
    record.room(content - at)?;
    loop {
        let field = field(s, at);
        if field.closed.is_some() {
            let start = record.scratch.len();
            let whole = &s.chunk[..field.end];
            // `field` has found the closing quote, so this cannot fail.
            let _ = naive::csv_quoted(s.dialect, whole, at + 1, &mut record.scratch);
            let kind = s.dialect.kind_of_quoted(&record.scratch[start..]);
            record.push_scratch(start, kind)?;
        } else {
            record.push(at, field.end, s.dialect.kind_of_raw(&s.chunk[at..field.end]))?;
        }
        if field.end >= content {
            return Ok(());
        }
        at = field.end + 1;
    }
}

/// Reads the field that begins at `start`.
fn field(s: &Scanner<'_>, start: usize) -> Field {
    let (d, chunk) = (s.dialect, s.chunk);
    let mut stray = None;
    if chunk.get(start) == Some(&d.quote) {
        let after = closing(d, chunk, start + 1);
        let ends = match after.map(|after| chunk.get(after)) {
            None | Some(None) if !s.last => {
                let (end, by) = (chunk.len(), By::More);
                return Field { end, by, closed: None, stray: None, fault: None };
            }
            None => false,
            Some(None) => true,
            Some(Some(c)) => *c == d.delimiter || matches!(c, b'\r' | b'\n'),
        };
        match after.filter(|_| ends) {
            Some(after) => {
                // Either the field ends here, or a line end of the wrong kind follows.
                return Field { closed: Some(after), ..plain(s, after, None) };
            }
            None => stray = Some(kind(s, start, after)),
        }
    }
    plain(s, start, stray)
}

/// The fault of the quote that opens the field at `start`. `after` is the offset after the next
/// quote.
fn kind(s: &Scanner<'_>, start: usize, after: Option<usize>) -> (Stray, usize) {
    // The line may be much longer, and may have many such fields.
    let on_its_line = |after: usize| {
        let passed = &s.chunk[start..after];
        let end = match s.eol {
            Eol::Nl | Eol::CrNl => memchr::memchr(b'\n', passed),
            Eol::Cr => memchr::memchr(b'\r', passed),
            Eol::Unknown => memchr::memchr2(b'\r', b'\n', passed),
        };
        end.is_none()
    };
    match after.filter(|after| on_its_line(*after)) {
        Some(after) => (Stray::After, after),
        None => (Stray::Open, start),
    }
}

/// The offset after the next quote that is neither escaped nor an escape.
pub(super) fn closing(d: &Dialect, chunk: &[u8], mut i: usize) -> Option<usize> {
    while i < chunk.len() {
        if d.characters == Characters::Ascii {
            i += memchr::memchr2(d.quote, d.escape, &chunk[i..])?;
        }
        let c = chunk[i];
        let next = chunk.get(i + 1);
        if c == d.escape && next.is_some_and(|n| *n == d.escape || *n == d.quote) {
            i += 2;
        } else if c == d.quote {
            return Some(i + 1);
        } else {
            i += d.characters.width(chunk, i);
        }
    }
    None
}

/// Reads the bytes from `at` to the end of a field, with quotes as ordinary characters.
fn plain(s: &Scanner<'_>, at: usize, stray: Option<(Stray, usize)>) -> Field {
    let (d, chunk) = (s.dialect, s.chunk);
    let mut field = Field { end: at, by: By::More, closed: None, stray, fault: None };
    while let Some(c) = chunk.get(field.end) {
        let next = chunk.get(field.end + 1);
        field.by = match (c, s.eol) {
            (c, _) if *c == d.delimiter => By::Delimiter,
            (b'\n', Eol::CrNl) => {
                field.fault = field.fault.or(Some(Malformed::Newline));
                By::Line(1)
            }
            (b'\n', Eol::Nl | Eol::Unknown) => By::Line(1),
            (b'\r', Eol::Cr) => By::Line(1),
            (b'\r', Eol::CrNl | Eol::Unknown) if next == Some(&b'\n') => By::Line(2),
            (b'\r', Eol::CrNl | Eol::Unknown) if next.is_none() && !s.last => By::More,
            (b'\r', Eol::Unknown) => By::Line(1),
            (b'\r', _) => {
                field.fault = field.fault.or(Some(Malformed::CarriageReturn));
                field.end += 1;
                continue;
            }
            (b'\n', _) => {
                field.fault = field.fault.or(Some(Malformed::Newline));
                field.end += 1;
                continue;
            }
            (c, _) if *c == d.quote => {
                field.stray = field.stray.or(Some((Stray::Within, field.end)));
                field.end += 1;
                continue;
            }
            _ => {
                field.end += d.characters.width(chunk, field.end);
                continue;
            }
        };
        return field;
    }
    field.end = field.end.min(chunk.len());
    field.by = if s.last { By::Data } else { By::More };
    field
}

/// Converts `bytes` to a form that COPY reads with the same values as literal stray quotes have:
/// fields with a stray quote are put in quotes. Other records stay unchanged. `None` if no record
/// has a stray quote.
///
/// `bytes` and `eol` are those of a whole chunk without malformed records.
#[allow(clippy::disallowed_methods)] // only the loader sends records
pub fn quote_strays(bytes: &[u8], dialect: &Dialect, eol: Eol) -> Option<Vec<u8>> {
    if !dialect.strict() {
        return None;
    }
    let mut scanner = Scanner::new(bytes, true, dialect, eol);
    let (mut record, mut out, mut from) = (Record::default(), Vec::new(), 0);
    loop {
        let strays = scanner.strays();
        match scanner.next(&mut record) {
            Ok(Next::Record) => {}
            Err(_) if scanner.skip_record().is_some_and(|(from, to)| from < to) => continue,
            _ => break,
        }
        if scanner.strays() == strays {
            continue;
        }
        out.extend_from_slice(&bytes[from..record.start]);
        for i in 0..record.len() {
            if i > 0 {
                out.push(dialect.delimiter);
            }
            let (kind, value) = record.field(bytes, i);
            let quoted = matches!(kind, FieldKind::Quoted | FieldKind::QuotedNull);
            if quoted || value.contains(&dialect.quote) {
                in_quotes(dialect, value, &mut out);
            } else {
                out.extend_from_slice(value);
            }
        }
        let whole = &bytes[record.start..record.end];
        let end = scanner.eol().bytes().filter(|end| whole.ends_with(end));
        out.extend_from_slice(end.unwrap_or_default());
        from = record.end;
    }
    (from > 0).then(|| {
        out.extend_from_slice(&bytes[from..]);
        out
    })
}

/// Appends a value in quotes.
#[allow(clippy::disallowed_methods)]
fn in_quotes(d: &Dialect, value: &[u8], out: &mut Vec<u8>) {
    out.push(d.quote);
    let mut at = 0;
    while at < value.len() {
        let next = at + d.characters.width(value, at);
        if value[at] == d.quote || value[at] == d.escape {
            out.push(d.escape);
        }
        out.extend_from_slice(&value[at..next]);
        at = next;
    }
    out.push(d.quote);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::StrayQuotes;

    /// The first line end after a quote that opens a field decides whether the next quote is on the
    /// same line.
    fn by_the_line(s: &Scanner<'_>, start: usize) -> (Stray, usize) {
        let is_end = |c: &u8| match s.eol {
            Eol::Nl | Eol::CrNl => *c == b'\n',
            Eol::Cr => *c == b'\r',
            Eol::Unknown => matches!(c, b'\r' | b'\n'),
        };
        let line = s.chunk[start..].iter().position(is_end).map_or(s.chunk.len(), |at| start + at);
        match closing(s.dialect, s.chunk, start + 1) {
            Some(after) if after < line => (Stray::After, after),
            _ => (Stray::Open, start),
        }
    }

    #[test]
    fn the_next_line_end_tells_the_kind_of_a_stray_quote() {
        const BYTES: &[u8] = b"\"\\,a\r\n";
        let csv = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
        let escaped = Dialect { escape: b'\\', ..csv.clone() };
        let ends = [Eol::Unknown, Eol::Nl, Eol::Cr, Eol::CrNl];
        let mut seen = [0, 0];
        for n in 0..BYTES.len().pow(5) {
            let data: Vec<u8> = (0..5).map(|i| BYTES[n / BYTES.len().pow(i) % 6]).collect();
            for (dialect, eol) in ends.iter().flat_map(|eol| [(&csv, *eol), (&escaped, *eol)]) {
                for (start, last) in (0..5).flat_map(|start| [(start, false), (start, true)]) {
                    let s = Scanner::new(&data, last, dialect, eol);
                    let stray = field(&s, start).stray.filter(|(kind, _)| *kind != Stray::Within);
                    let Some(stray) = stray else { continue };
                    let expected = by_the_line(&s, start);
                    assert_eq!(stray, expected, "{start} {eol:?} {}", data.escape_ascii());
                    seen[usize::from(stray.0 == Stray::After)] += 1;
                }
            }
        }
        assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
    }
}
