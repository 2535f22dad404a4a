//! Several files in one COPY, as a trigger that fires once for each statement makes necessary.

use crate::error::Error;
use crate::input::{Chunk, Layout, Part};
use pgsluice_core::scan::{Dialect, Eol, Next, Record, Scanner};

/// What has to stand between the last chunk of a file and the first one of the next, so that
/// one COPY, whose lines end with `eol` so far, takes them for what they are in files of their
/// own. `None` where nothing would do, or that is not sure: a quote is left open, a backslash
/// or `\.` ends the data, the lines end differently.
pub(super) fn between(
    layout: &Layout,
    eol: Eol,
    before: &Chunk,
    next: &Chunk,
) -> Option<&'static [u8]> {
    let dialect = layout.dialect()?;
    let of_next = if next.part == Part::Whole { next.line_end(layout) } else { next.eol };
    let eol = match (eol, of_next) {
        (Eol::Unknown, known) | (known, Eol::Unknown) => known,
        (eol, same) if eol == same => eol,
        _ => return None,
    };
    let end: &'static [u8] = match eol {
        Eol::Nl | Eol::Unknown => b"\n",
        Eol::Cr => b"\r",
        Eol::CrNl => b"\r\n",
    };
    if before.part != Part::Whole {
        return None;
    }
    if is_whole(&before.bytes, dialect, before.eol) {
        return Some(b"");
    }
    // A CR at the end may be half a line end, or a whole one.
    let open = !before.bytes.ends_with(b"\r");
    let ended = || [&before.bytes[..], end].concat();
    (open && is_whole(&ended(), dialect, before.eol)).then_some(end)
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
        "--method copy-text writes CSV anew, and copy-csv text, so that one COPY takes it; or load \
         the files one by one",
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
            last: true,
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
            let found = between(layout, eol, &chunk(before, unknown), &chunk(next, unknown));
            assert_eq!(found, expected, "{} {}", before.escape_ascii(), next.escape_ascii());
        }
    }
}
