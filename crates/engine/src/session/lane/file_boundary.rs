//! The boundary between two files that go in one COPY, which a statement trigger needs.

use crate::error::Error;
use crate::input::{Chunk, Layout, Part};
use pgsluice_core::scan::{Dialect, Eol, Next, Record, Scanner, Splitter};

/// A record that passes in pieces, as far as it has passed.
#[derive(Debug)]
pub(super) struct LongRecord {
    splitter: Splitter,
    /// its line end has passed
    whole: bool,
    /// the last byte was a CR: half a line end, or a whole one
    cr: bool,
    /// `\.` has passed, which may end the data
    marker: bool,
}

impl LongRecord {
    /// Passes a piece; the first one of a record begins anew.
    pub fn pass(long: &mut Option<LongRecord>, dialect: &Dialect, piece: &Chunk) {
        if piece.offset == piece.start {
            *long = None;
        }
        let long = long.get_or_insert_with(|| LongRecord {
            splitter: Splitter::new(dialect, piece.eol),
            whole: false,
            cr: false,
            marker: false,
        });
        let cuts = long.splitter.feed(&piece.bytes);
        long.whole = cuts.last == Some(piece.bytes.len());
        long.cr = piece.bytes.ends_with(b"\r");
        long.marker |= cuts.marker;
    }

    /// What has to stand behind it, where that is sure; `end` is a line end.
    fn behind(&self, end: &'static [u8]) -> Option<&'static [u8]> {
        if self.whole {
            return (!self.marker).then_some(b"");
        }
        let cuts = self.splitter.clone().feed(end);
        let ends = cuts.last == Some(end.len()) && !self.cr && !self.marker;
        ends.then_some(end)
    }
}

/// What has to stand between the last chunk of a file and the first one of the next, so that
/// one COPY, whose lines end with `eol` so far, takes them for what they are in files of their
/// own. `None` where nothing would do, or that is not sure: a quote is left open, a backslash
/// or `\.` ends the data, the lines end differently.
pub(super) fn between(
    layout: &Layout,
    eol: Eol,
    before: &Chunk,
    long: Option<&LongRecord>,
    next: &Chunk,
) -> Option<&'static [u8]> {
    let dialect = layout.dialect()?;
    let long = long.filter(|_| before.part != Part::Whole);
    let of_long = long.map_or(Eol::Unknown, |long| long.splitter.eol());
    let of_next = if next.part == Part::Whole { next.line_end(layout) } else { next.eol };
    let eol = same(same(eol, of_long)?, of_next)?;
    let end = eol.bytes().unwrap_or(b"\n");
    if before.part != Part::Whole {
        return long?.behind(end);
    }
    if is_whole(&before.bytes, dialect, before.eol) {
        return Some(b"");
    }
    // A CR at the end may be half a line end, or a whole one.
    let open = !before.bytes.ends_with(b"\r");
    let ended = || [&before.bytes[..], end].concat();
    (open && is_whole(&ended(), dialect, before.eol)).then_some(end)
}

/// What lines end with, by one who may know and another.
fn same(eol: Eol, other: Eol) -> Option<Eol> {
    match (eol, other) {
        (Eol::Unknown, known) | (known, Eol::Unknown) => Some(known),
        (eol, other) => (eol == other).then_some(eol),
    }
}

/// Whether these bytes are records that all have their ends.
fn is_whole(bytes: &[u8], dialect: &Dialect, eol: Eol) -> bool {
    let mut scanner = Scanner::new(bytes, false, dialect, eol);
    let mut record = Record::default();
    loop {
        match scanner.next(&mut record) {
            Ok(Next::Record) => {}
            Ok(Next::End) => return !scanner.ended(),
            Ok(Next::Partial) | Err(_) => return false,
        }
    }
}

/// The rows are in the table, by one COPY too many.
pub(super) fn fired_twice() -> Error {
    Error::new(
        "the rows took more than one COPY, and a trigger that fires once for each statement has \
         fired more than once; rolled back",
    )
    .with_hint(
        "use `method` copy-text for CSV or copy-csv for text, which need only one COPY, or load the files one by one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Counts;

    fn chunk(bytes: &[u8], eol: Eol) -> Chunk {
        Chunk {
            sequence: 0,
            file: 0,
            offset: 0,
            start: 0,
            eol,
            part: Part::Whole,
            stray: false,
            damaged: None,
            last: true,
            line: 0,
            passed: Counts::default(),
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn files_are_joined_only_where_their_records_stay_what_they_are() {
        let (csv, text) = (Layout::Lines(Dialect::csv()), Layout::Lines(Dialect::text()));
        let unknown = Eol::Unknown;
        type Files = (&'static [u8], &'static [u8], Option<&'static [u8]>);
        let cases: [(&Layout, Eol, Files); 15] = [
            (&csv, Eol::Nl, (b"1\n2\n", b"3\n", Some(b""))),
            (&csv, Eol::Nl, (b"1\n2", b"3\n", Some(b"\n"))),
            (&csv, unknown, (b"1", b"2\r\n", Some(b"\r\n"))),
            (&csv, Eol::CrNl, (b"1", b"2", Some(b"\r\n"))),
            (&csv, unknown, (b"1", b"2", Some(b"\n"))),
            (&csv, Eol::Nl, (b"1\n2\n", b"3\r\n", None)),
            (&csv, Eol::Nl, (b"1\n\"2", b"3\"\n", None)),
            (&csv, Eol::Cr, (b"1\r", b"2\r", None)),
            (&csv, Eol::Cr, (b"1\r2\r", b"3\r", Some(b""))),
            (&text, Eol::Nl, (b"1\n2", b"3\n", Some(b"\n"))),
            // A newline that belongs to the value, and none.
            (&text, Eol::Nl, (b"1\n2\\\n", b"3\n", Some(b"\n"))),
            (&text, Eol::Nl, (b"1\n2\\\\\n", b"3\n", Some(b""))),
            (&text, Eol::Nl, (b"1\n2\\", b"3\n", None)),
            (&text, Eol::Nl, (b"1\n2\\\\", b"3\n", Some(b"\n"))),
            (&text, Eol::Nl, (b"1\n\\.\n", b"3\n", None)),
        ];
        for (layout, eol, (before, next, expected)) in cases {
            let found = between(layout, eol, &chunk(before, unknown), None, &chunk(next, unknown));
            assert_eq!(found, expected, "{} {}", before.escape_ascii(), next.escape_ascii());
        }
    }

    #[test]
    fn a_record_in_pieces_is_joined_where_its_end_is_sure() {
        let (csv, text) = (Layout::Lines(Dialect::csv()), Layout::Lines(Dialect::text()));
        type Files = ([&'static [u8]; 2], &'static [u8], Option<&'static [u8]>);
        let cases: [(&Layout, Files); 12] = [
            (&csv, ([b"1", b"1\n"], b"2\n", Some(b""))),
            (&csv, ([b"1", b"1"], b"2\r\n", Some(b"\r\n"))),
            (&csv, ([b"\"1\n", b"1\""], b"2\n", Some(b"\n"))),
            (&csv, ([b"\"1", b"\"\r\n"], b"2", Some(b""))),
            (&csv, ([b"1", b"1\r"], b"2\n", None)),
            (&csv, ([b"1", b"1\n"], b"2\r\n", None)),
            (&csv, ([b"1,\"1", b"1\n"], b"2\n", None)),
            (&csv, ([b"1\"", b"1\""], b"2\"\n", Some(b"\n"))),
            (&text, ([b"1", b"\\\\"], b"2\n", Some(b"\n"))),
            (&text, ([b"1", b"\\"], b"2\n", None)),
            (&text, ([b"1", b"\\\n"], b"2\n", Some(b"\n"))),
            (&text, ([b"1\\", b".\n"], b"2\n", None)),
        ];
        for (layout, ([first, last], next, expected)) in cases {
            let (mut long, mut before) = (None, chunk(first, Eol::Unknown));
            for (offset, bytes, part) in [(0, first, Part::Piece), (1, last, Part::LastPiece)] {
                before = Chunk { offset, part, ..chunk(bytes, Eol::Unknown) };
                LongRecord::pass(&mut long, layout.dialect().unwrap(), &before);
            }
            let next = chunk(next, Eol::Unknown);
            let found = between(layout, Eol::Unknown, &before, long.as_ref(), &next);
            assert_eq!(found, expected, "{} {}", first.escape_ascii(), last.escape_ascii());
        }
    }
}
