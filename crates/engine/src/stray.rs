//! Messages about a stray quote: what COPY would do with it, and what the user may have meant.

use crate::error::{shown, Error, Place, ServerSays};
use crate::text::{text, Text};
use pgsluice_core::error::{Malformed, Stray};
use pgsluice_core::scan::{Dialect, StrayQuotes};

/// Returns what COPY would do with the record; `None` for any other fault.
pub fn detail(fault: Malformed) -> Option<&'static str> {
    let Malformed::StrayQuote { kind, .. } = fault else { return None };
    Some(detail_of(kind))
}

fn detail_of(kind: Stray) -> &'static str {
    match kind {
        Stray::Within => {
            "COPY would open quotes inside the field there and read on to the next quote, across line ends"
        }
        Stray::After => "COPY would drop the quotes and add the text to the value",
        Stray::Open => "COPY would read on to the next quote, across line ends",
    }
}

/// Whether an error is about a stray quote.
pub fn is_one(error: &Error) -> bool {
    let detail = error.server().and_then(|server| server.detail.as_deref());
    let kinds = [Stray::Within, Stray::After, Stray::Open];
    let details = kinds.map(detail_of);
    detail.is_some_and(|detail| details.contains(&detail))
}

/// Returns the hint for a stray quote.
pub fn hint(fault: Malformed, record: &[u8], dialect: &Dialect) -> Option<Text> {
    let Malformed::StrayQuote { kind, at, .. } = fault else { return None };
    let before = &record[..at.min(record.len())];
    let quote = char::from(dialect.quote);
    let start = before.iter().rposition(|b| *b == dialect.delimiter).map_or(0, |at| at + 1);
    let spaces = !before[start..].is_empty() && before[start..].iter().all(|b| *b == b' ');
    let escaped = [b'\\', dialect.quote];
    let backslash = match kind {
        Stray::After => before.ends_with(&escaped),
        _ => before.ends_with(b"\\"),
    };
    let options = Text::from(
        "`stray-quotes` literal keeps such quotes as they are, and copy does as COPY does",
    );
    Some(match kind {
        _ if backslash && dialect.escape != b'\\' => {
            text!("`escape` '\\' reads \\{} as a quote within a value; {}", quote, options)
        }
        Stray::Within if spaces => {
            text!(
                "a space stands before the quote, which opens at the start of a field only; {}",
                options
            )
        }
        Stray::Open => text!("is the quote at its end missing? {}", options),
        _ => text!(
            "a quote within quotes is written {}{}; {}",
            char::from(dialect.escape),
            quote,
            options
        ),
    })
}

/// Returns the error for a record that is passed on in pieces and has a stray quote.
pub fn too_long(place: Place) -> Error {
    Error::data("a record that does not fit in memory has a stray quote").at(place).with_hint(
        "is a quote left open there? `stray-quotes` copy reads it as COPY does, and \
             `on-error` reject keeps the record in a file",
    )
}

/// Returns the note about fields with stray quotes at the end of a load, if there were any.
pub fn note(fields: u64, dialect: Option<&Dialect>) -> Option<String> {
    let what = match dialect?.stray_quotes {
        StrayQuotes::Error => "their records were rejected",
        StrayQuotes::Literal => "they are characters of the values",
        StrayQuotes::Copy => "COPY drops them, and what they enclose may be several lines",
    };
    let plural = if fields == 1 { "field has" } else { "fields have" };
    (fields > 0).then(|| format!("{fields} {plural} stray quotes: {what}"))
}

/// Adds a hint, the value and COPY's behavior to an error about a stray quote in `record`. Other
/// errors stay unchanged.
pub fn explained(error: Error, fault: Malformed, record: &[u8], dialect: &Dialect) -> Error {
    let Some(hint) = hint(fault, record, dialect) else { return error };
    let mut place = error.place().cloned().unwrap_or_default();
    place.value = Some(shown(record.trim_ascii_end()));
    let detail = detail(fault).map(str::to_owned);
    let says = ServerSays { sqlstate: fault.sqlstate().into(), detail, ..ServerSays::default() };
    error.with_hint(hint).at(place).with_server(says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgsluice_core::scan::{Eol, Record, Scanner};

    #[test]
    fn the_hint_says_what_is_probably_meant() {
        let dialect = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
        let cases: [(&[u8], &str); 5] = [
            (b"1,\"H. \\\"Barney\\\" E\"\n", "escape '\\'"),
            (b"1, \"USA\"\n", "a space stands before the quote"),
            (b"1,5\" pipe\n", "is written \"\""),
            (b"1,\"5\" pipe\"\n", "is written \"\""),
            (b"1,\"abc\n", "is the quote at its end missing?"),
        ];
        for (line, expected) in cases {
            let mut scanner = Scanner::new(line, true, &dialect, Eol::Unknown);
            let fault = scanner.next(&mut Record::default()).unwrap_err();
            let hint = hint(fault, line, &dialect).unwrap();
            assert!(hint.contains(expected), "{}: {hint:?}", line.escape_ascii());
            assert!(detail(fault).is_some());
        }
    }
}
