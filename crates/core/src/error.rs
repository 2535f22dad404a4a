//! The faults of a field or a record.

use std::fmt;

use crate::memory::OutOfMemory;
use crate::scan::BadBytes;

/// The reason why the core did not encode a field.
///
/// None of these means that the *load* fails. They mean that the server must parse the value, or
/// would reject it. Only the server decides what is accepted. [`Refusal::Syntax`] and
/// [`Refusal::Range`] exist so that `check` and `convert` can name the fault without a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The core may not read the value as the server would.
    Ask,
    /// The server would reject it: SQLSTATE 22P02, invalid text representation.
    Syntax,
    /// The server would reject it: SQLSTATE 22003 or 22008, out of range.
    Range,
    /// The server would reject it: SQLSTATE 22001, too long for the type.
    TooLong,
    /// The server would reject it: SQLSTATE 23502, NULL in a NOT NULL column.
    Null,
    /// There is not enough memory to read it: SQLSTATE 53200. The value may be valid.
    OutOfMemory,
}

impl From<OutOfMemory> for Refusal {
    fn from(_: OutOfMemory) -> Self {
        Refusal::OutOfMemory
    }
}

/// The fault of a malformed record. It does not depend on the types of the columns.
///
/// Each kind is one of the errors of the server's `CopyReadLineText`,
/// `CopyReadAttributesCSV`, `CopyReadAttributesText` and `NextCopyFrom`
/// (`src/backend/commands/copyfromparse.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A CR outside quotes, in data whose lines have another end.
    CarriageReturn,
    /// An LF outside quotes, in data whose lines have another end.
    Newline,
    /// The data ends inside a quoted field.
    UnterminatedQuote,
    /// More fields than columns.
    ExtraData,
    /// Fewer fields than columns. The number is the index of the first missing field, in the order
    /// of the column list.
    MissingData(usize),
    /// Text format up to 17: `\.` followed by something other than the end of line.
    EndMarkerCorrupt,
    /// Text format since 18: `\.` that is not alone on its line.
    EndMarkerNotAlone,
    /// `\.` with a line end that differs from the lines before.
    EndMarkerStyle,
    /// Text format: escapes made a value that is not valid in its encoding.
    Encoding(BadBytes),
    /// The record is longer than [`crate::scan::MAX_RECORD`].
    TooLong,
    /// There is not enough memory for its fields. The record may be well formed.
    OutOfMemory,
    /// CSV with stray quotes as errors. COPY would accept the record.
    StrayQuote {
        /// what is wrong
        kind: Stray,
        /// the index of the field
        field: usize,
        /// the position in the record, in bytes
        at: usize,
    },
}

/// The kind of a stray quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// it is within a field that does not begin with a quote
    Within,
    /// text follows the quote that closes the field; the position is that of the text
    After,
    /// no quote on its line closes the field, and the next quote on a later line does not end it
    /// either
    Open,
}

impl From<OutOfMemory> for Malformed {
    fn from(_: OutOfMemory) -> Self {
        Malformed::OutOfMemory
    }
}

impl Malformed {
    /// The SQLSTATE that the server reports: `bad_copy_file_format` for most.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Malformed::Encoding(_) => "22021",
            Malformed::TooLong => "54000",
            Malformed::OutOfMemory => "53200",
            _ => "22P04",
        }
    }

    /// The server's message for this fault. Only the loader uses it.
    ///
    /// `csv` selects the wording of the format. `column` is the name of the column of
    /// [`Malformed::MissingData`].
    #[allow(clippy::disallowed_macros)]
    pub fn message(&self, csv: bool, column: &str) -> String {
        let kind = if csv { "unquoted" } else { "literal" };
        match self {
            Malformed::CarriageReturn => format!("{kind} carriage return found in data"),
            Malformed::Newline => format!("{kind} newline found in data"),
            Malformed::UnterminatedQuote => "unterminated CSV quoted field".into(),
            Malformed::ExtraData => "extra data after last expected column".into(),
            Malformed::MissingData(_) => format!("missing data for column \"{column}\""),
            Malformed::EndMarkerCorrupt => "end-of-copy marker corrupt".into(),
            Malformed::EndMarkerNotAlone => "end-of-copy marker is not alone on its line".into(),
            Malformed::EndMarkerStyle => {
                "end-of-copy marker does not match previous newline style".into()
            }
            Malformed::Encoding(bad) => bad.message(),
            Malformed::TooLong => "record is longer than the server's limit of 1 GB".into(),
            Malformed::OutOfMemory => "out of memory".into(),
            Malformed::StrayQuote { kind, .. } => match kind {
                Stray::Within => "stray quote within an unquoted field",
                Stray::After => "text after the closing quote of a field",
                Stray::Open => "quoted field is not closed",
            }
            .into(),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(true, "?"))
    }
}
