//! What is wrong with a field or a record.

use std::fmt;

use crate::memory::OutOfMemory;
use crate::scan::BadBytes;

/// Why the core did not encode a field.
///
/// None of these says that the *load* fails: they say that the server has to
/// be asked, or that it would refuse. The server stays the only judge of what
/// is accepted; [`Refusal::Syntax`] and [`Refusal::Range`] exist so that
/// `check` and `convert` can name the fault where there is no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The core does not surely understand the value as the server would.
    Ask,
    /// The server would refuse it: SQLSTATE 22P02, invalid text representation.
    Syntax,
    /// The server would refuse it: SQLSTATE 22003 or 22008, out of range.
    Range,
    /// The server would refuse it: SQLSTATE 22001, too long for the type.
    TooLong,
    /// The server would refuse it: SQLSTATE 23502, NULL in a NOT NULL column.
    Null,
    /// There is no memory to read it: SQLSTATE 53200. This says nothing about the value.
    OutOfMemory,
}

impl From<OutOfMemory> for Refusal {
    fn from(_: OutOfMemory) -> Self {
        Refusal::OutOfMemory
    }
}

/// A record that is not well formed, whatever its columns' types.
///
/// Each kind is one of the errors of the server's `CopyReadLineText`,
/// `CopyReadAttributesCSV`, `CopyReadAttributesText` and `NextCopyFrom`
/// (`src/backend/commands/copyfromparse.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A lone CR outside quotes, where lines end otherwise.
    CarriageReturn,
    /// A LF outside quotes, where lines end otherwise.
    Newline,
    /// The data ends inside a quoted field.
    UnterminatedQuote,
    /// More fields than columns.
    ExtraData,
    /// Fewer fields than columns; the number is the index of the first field
    /// that is missing, in the order of the column list.
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
    /// There is no memory for its fields. This says nothing about the record.
    OutOfMemory,
    /// CSV, where a stray quote is an error; COPY would accept it.
    StrayQuote {
        /// what is wrong
        kind: Stray,
        /// the index of the field
        field: usize,
        /// where in the record, in bytes
        at: usize,
    },
}

/// What makes a quote a stray one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// it stands within a field that does not begin with a quote
    Within,
    /// text follows the quote that closes the field; the place is that of the text
    After,
    /// no quote closes the field on its line, nor is the next quote the end of a field
    Open,
}

impl From<OutOfMemory> for Malformed {
    fn from(_: OutOfMemory) -> Self {
        Malformed::OutOfMemory
    }
}

impl Malformed {
    /// The SQLSTATE that the server gives: `bad_copy_file_format` for most.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Malformed::Encoding(_) => "22021",
            Malformed::TooLong => "54000",
            Malformed::OutOfMemory => "53200",
            _ => "22P04",
        }
    }

    /// The message that the server gives for this fault; only the loader gives it.
    ///
    /// `csv` tells the two formats' wordings apart; `column` names the column
    /// of [`Malformed::MissingData`].
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
