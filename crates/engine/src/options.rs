//! The options of a load, validated as far as possible without a server.

use crate::error::Error;
use crate::fields::names;
use crate::source::Source;
use pgsluice_core::scan::{Dialect, DotLine, Format, StrayQuotes};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

mod combined;
mod objects;
mod once;

pub use crate::expression::Expression;
pub use crate::fields::{pair, pieces, FieldOptions};
pub use crate::frame::{Frame, MOST_FOOTER};
pub use crate::reject::{Existing, Limit};
pub use objects::{ColumnSet, ForeignKeys, Indexes, Route, Triggers};
pub use once::{OnceOptions, ShareOptions};

/// What the first line of each file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// data
    None,
    /// the names of the columns, in the file's own order
    Names,
    /// any content, which is skipped
    Ignore,
    /// the names of the columns in the table's order; otherwise the load fails
    Match,
}

/// The form of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// CSV or text
    Delimited(Dialect),
    /// PGCOPY
    Binary,
}

/// How the files are read.
#[derive(Clone, Debug)]
pub struct InputOptions {
    /// in the order in which they are loaded
    pub sources: Vec<Arc<dyn Source>>,
    /// notes for the user on how the sources were found
    pub notes: Vec<String>,
    /// csv, text or binary
    pub format: FileFormat,
    /// what the first line is
    pub header: Header,
    /// the encoding by its name on the server; `None` for UTF-8
    pub encoding: Option<String>,
    /// number of records to skip at the start of the input, after the header
    pub skip: u64,
    /// maximum number of records to read, without those that are skipped
    pub limit: Option<u64>,
    /// without a header: the first line is data even if it looks like one
    pub first_is_data: bool,
    /// the lines of each file that are not records
    pub frame: Frame,
}

impl Default for InputOptions {
    /// No source, and CSV in UTF-8 with COPY's defaults.
    fn default() -> InputOptions {
        InputOptions {
            sources: Vec::new(),
            notes: Vec::new(),
            format: FileFormat::Delimited(Dialect::csv()),
            header: Header::None,
            encoding: None,
            skip: 0,
            limit: None,
            first_is_data: false,
            frame: Frame::default(),
        }
    }
}

impl InputOptions {
    /// The rules of CSV or of the text format, in the files' encoding.
    pub fn dialect(&self) -> Option<Dialect> {
        let FileFormat::Delimited(dialect) = &self.format else { return None };
        Some(match &self.encoding {
            Some(encoding) => dialect.clone().in_encoding(encoding),
            None => dialect.clone(),
        })
    }
}

/// A write path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Method {
    Auto,
    Insert,
    InsertBatch,
    CopyCsv,
    CopyText,
    CopyBinary,
    CopyFresh,
    Unlogged,
    UnloggedLogged,
    Lanes,
    Staged,
    Extension,
}

impl Method {
    /// All methods, each with its name, what it does, and what it gives up.
    pub const ALL: [(Method, &'static str, &'static str, &'static str); 12] = [
        (
            Method::Auto,
            "auto",
            "the fastest method that is durable and all or nothing",
            "what the plan says",
        ),
        (
            Method::Insert,
            "insert",
            "one INSERT and one commit for each row",
            "speed, and all or nothing: rows before a bad one stay",
        ),
        (Method::InsertBatch, "insert-batch", "INSERT of many rows at a time", "speed"),
        (Method::CopyCsv, "copy-csv", "COPY of CSV; a CSV file is sent as it is", "nothing"),
        (Method::CopyText, "copy-text", "COPY of the text format", "nothing"),
        (
            Method::CopyBinary,
            "copy-binary",
            "COPY of binary rows, encoded by the loader where it is certain of the values",
            "nothing",
        ),
        (
            Method::CopyFresh,
            "copy-fresh",
            "TRUNCATE and COPY with FREEZE in one transaction",
            "concurrent access to the table; rows are visible to older snapshots",
        ),
        (
            Method::Unlogged,
            "unlogged",
            "sets the table UNLOGGED and leaves it so",
            "durability: a crash empties the table, and replicas do not have it",
        ),
        (
            Method::UnloggedLogged,
            "unlogged-logged",
            "sets the table UNLOGGED for the load, and LOGGED after it",
            "concurrent access to the table; it is written twice",
        ),
        (
            Method::Lanes,
            "lanes",
            "several connections at once",
            "the order of the rows; a single commit, if the server does not allow two-phase commit",
        ),
        (
            Method::Staged,
            "staged",
            "raw text into a landing table, then INSERT ... SELECT with conversion",
            "speed: rows are written twice",
        ),
        (
            Method::Extension,
            "extension",
            "COPY through the server's extension pgsluice",
            "nothing; needs the extension in the database",
        ),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Method::ALL.iter().find(|m| m.0 == self).map_or("", |m| m.1)
    }

    /// What it gives up.
    pub fn cost(self) -> &'static str {
        Method::ALL.iter().find(|m| m.0 == self).map_or("", |m| m.3)
    }

    /// Whether it locks the table exclusively from the start.
    pub fn exclusive(self) -> bool {
        matches!(self, Method::CopyFresh | Method::Unlogged | Method::UnloggedLogged)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(s: &str) -> Result<Method, String> {
        let found = Method::ALL.iter().find(|m| m.1 == s).map(|m| m.0);
        found.ok_or_else(|| format!("there is no method {s:?}; `pgsluice methods` lists them"))
    }
}

/// Whether the load creates the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// the table must exist
    No,
    /// the table is created with inferred types; a value that does not fit fails the load
    Typed,
    /// the table is created with types inferred from the whole input; doubtful columns are text
    TextOnDoubt,
}

/// What to do in the database.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// a URL, or libpq's keywords and values; empty for libpq's defaults
    pub url: String,
    /// the table's name, parsed as in SQL
    pub table: String,
    /// the columns of the fields, in the file's order; `None` leaves a field out
    pub columns: Option<Vec<Option<String>>>,
    /// other options for the fields
    pub fields: FieldOptions,
    /// a condition on the rows, as in COPY's WHERE
    pub filter: Option<String>,
    /// the write path
    pub method: Method,
    /// where the rows of a partitioned table go
    pub route: Route,
    /// with `nodes`: all of them commit, or none
    pub atomic: bool,
    /// with `nodes`: addresses to use in place of the catalog's, by the name of the server
    pub nodes: Vec<(String, String)>,
    /// connections for `lanes`; `None` for as many as there are cores
    pub lanes: Option<usize>,
    /// the landing table of `staged` is not UNLOGGED
    pub logged_landing: bool,
    /// empty the table first
    pub truncate: bool,
    /// it is not an error if a truncated or created table stays empty
    pub allow_empty: bool,
    /// whether to create the table
    pub create: Create,
    /// with `create`: order the columns by width
    pub pack_columns: bool,
    /// columns whose quoted NULL marker is NULL
    pub force_null: ColumnSet,
    /// columns whose NULL marker is a value
    pub force_not_null: ColumnSet,
    /// `DateStyle` of the session
    pub date_style: Option<String>,
    /// `TimeZone` of the session
    pub time_zone: Option<String>,
    /// how long to wait for a lock, as PostgreSQL writes it: `10s`
    pub lock_timeout: Option<String>,
    /// do not take locks that block readers or writers of other sessions
    pub no_lock_out: bool,
    /// lanes may record dropped or disabled objects in the schema `pgsluice_loads`
    pub ledger: bool,
    /// run ANALYZE after the load; otherwise that is left to autovacuum
    pub analyze: bool,
    /// what to do with indexes and the constraints that they back
    pub indexes: Indexes,
    /// what to do with users' triggers
    pub triggers: Triggers,
    /// what to do with the table's foreign keys
    pub foreign_keys: ForeignKeys,
}

/// What to do with rejected records, if they must not stop the load.
#[derive(Clone, Debug)]
pub struct RejectOptions {
    /// the file for their original bytes
    pub file: PathBuf,
    /// what to do if that file exists
    pub existing: Existing,
    /// how many rejects the load accepts
    pub limit: Limit,
}

impl TargetOptions {
    /// A table of a database, with defaults for everything else.
    pub fn new(url: &str, table: &str) -> TargetOptions {
        TargetOptions {
            url: url.into(),
            table: table.into(),
            columns: None,
            fields: FieldOptions::default(),
            filter: None,
            method: Method::Auto,
            route: Route::Auto,
            atomic: false,
            nodes: Vec::new(),
            lanes: None,
            logged_landing: false,
            truncate: false,
            allow_empty: false,
            create: Create::No,
            pack_columns: false,
            force_null: ColumnSet::None,
            force_not_null: ColumnSet::None,
            date_style: None,
            time_zone: None,
            lock_timeout: None,
            no_lock_out: false,
            ledger: true,
            analyze: true,
            indexes: Indexes::default(),
            triggers: Triggers::default(),
            foreign_keys: ForeignKeys::default(),
        }
    }

    /// Returns the additional spellings of NULL for a column. In a column of `force_not_null`, such
    /// a text is a value, as COPY's marker is there.
    pub(crate) fn nulls_of(&self, column: &str) -> Vec<Vec<u8>> {
        let of = |name: &Option<String>| name.as_ref().is_none_or(|name| names(name, column));
        let forced = self.force_not_null.has(column);
        let all = self.fields.nulls.iter().filter(|(name, _)| !forced && of(name));
        all.map(|(_, text)| text.clone().into_bytes()).collect()
    }
}

/// All options of a load.
#[derive(Clone, Debug)]
pub struct Options {
    /// how the files are read
    pub input: InputOptions,
    /// what happens in the database
    pub target: TargetOptions,
    /// where rejected records are written; `None` if the first one stops the load
    pub rejects: Option<RejectOptions>,
    /// loads each source once, and records what is loaded; `None` if nothing is recorded
    pub once: Option<OnceOptions>,
}

/// COPY's options for the form of a file, as the user gave them.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct DialectOptions {
    pub delimiter: Option<String>,
    pub quote: Option<String>,
    pub escape: Option<String>,
    pub null: Option<String>,
    pub default: Option<String>,
    pub stray_quotes: Option<StrayQuotes>,
}

impl DialectOptions {
    /// The dialect, checked against the rules of the server's `ProcessCopyOptions`.
    ///
    /// # Errors
    ///
    /// The server would reject these options.
    pub fn dialect(&self, format: Format) -> Result<Dialect, Error> {
        let csv = format == Format::Csv;
        let mut d = if csv { Dialect::csv() } else { Dialect::text() };
        if let Some(byte) = one_byte("delimiter", self.delimiter.as_deref())? {
            d.delimiter = byte;
        }
        let of_csv = self.quote.is_some() || self.escape.is_some() || self.stray_quotes.is_some();
        if !csv && of_csv {
            return Err(Error::usage(
                "quote, escape and stray-quotes are options of the csv format alone",
            ));
        }
        if let Some(byte) = one_byte("quote", self.quote.as_deref())? {
            d.quote = byte;
            d.escape = byte;
        }
        if let Some(byte) = one_byte("escape", self.escape.as_deref())? {
            d.escape = byte;
        }
        if let Some(null) = &self.null {
            d.null = null.clone().into_bytes();
        }
        d.default = self.default.clone().map(String::into_bytes);
        if csv {
            // This program reads the file by its own rules. Where such a line is passed through to
            // the server, the code there handles it.
            d.dot_line = DotLine::IsData;
            d.stray_quotes = self.stray_quotes.unwrap_or(StrayQuotes::Error);
        }
        check(&d)?;
        Ok(d)
    }
}

/// Parses an option of one byte. The escapes `\t`, `\v`, `\f`, `\b`, `\n`, `\r`, `\\` and `\xHH`
/// are resolved.
///
/// # Errors
///
/// The value is not one ASCII byte, or is NUL.
pub fn one_byte(option: &str, text: Option<&str>) -> Result<Option<u8>, Error> {
    let Some(text) = text else { return Ok(None) };
    let byte = match text.as_bytes() {
        [byte] => Some(*byte),
        b"\\t" => Some(b'\t'),
        b"\\v" => Some(0x0b),
        b"\\f" => Some(0x0c),
        b"\\b" => Some(0x08),
        b"\\n" => Some(b'\n'),
        b"\\r" => Some(b'\r'),
        b"\\\\" => Some(b'\\'),
        [b'\\', b'x', hex @ ..] if hex.len() == 2 => u8::from_str_radix(&text[2..], 16).ok(),
        _ => None,
    };
    match byte {
        Some(byte) if byte.is_ascii() && byte != 0 => Ok(Some(byte)),
        _ => {
            let message = format!("{option} must be a single one-byte character, not {text:?}");
            let error = Error::usage(message);
            let word = text.to_ascii_lowercase();
            Err(match WORDS.iter().find(|(name, _)| *name == word) {
                Some((name, byte)) => error.with_hint(format!("a {name} is written '{byte}'")),
                None => error,
            })
        }
    }
}

/// The names that people use for common delimiters.
const WORDS: [(&str, &str); 5] =
    [("tab", "\\t"), ("comma", ","), ("semicolon", ";"), ("pipe", "|"), ("space", " ")];

/// Checks a dialect against the rules of the server's `ProcessCopyOptions`.
pub(crate) fn check(d: &Dialect) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::usage(message.to_owned()));
    let line_end = |bytes: &[u8]| bytes.iter().any(|b| matches!(b, b'\r' | b'\n'));
    let markers = [("NULL", Some(&d.null)), ("DEFAULT", d.default.as_ref())];
    if matches!(d.delimiter, b'\r' | b'\n') {
        return refuse("delimiter cannot be newline or carriage return");
    }
    if d.format == Format::Text {
        let taken = b"\\.abcdefghijklmnopqrstuvwxyz0123456789";
        if taken.contains(&d.delimiter) {
            return refuse(&format!("delimiter cannot be \"{}\"", char::from(d.delimiter)));
        }
    } else if d.delimiter == d.quote {
        return refuse("delimiter and quote must be different");
    }
    for (name, marker) in markers {
        let Some(marker) = marker else { continue };
        if line_end(marker) {
            return refuse(&format!("the {name} marker cannot have newline or carriage return"));
        }
        if marker.contains(&d.delimiter) {
            return refuse(&format!("delimiter must not appear in the {name} marker"));
        }
        if d.format == Format::Csv && marker.contains(&d.quote) {
            return refuse(&format!("quote must not appear in the {name} marker"));
        }
    }
    if d.default.as_ref() == Some(&d.null) {
        return refuse("the NULL marker and the DEFAULT marker must be different");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_held_to_the_servers_rules() {
        let with = |delimiter: &str, null: &str, format| {
            let options = DialectOptions {
                delimiter: Some(delimiter.into()),
                null: Some(null.into()),
                ..DialectOptions::default()
            };
            options.dialect(format).map(|d| d.delimiter).map_err(|e| e.message().to_string())
        };
        assert_eq!(with("\\t", "x", Format::Csv), Ok(b'\t'));
        assert_eq!(with("\\x1f", "x", Format::Text), Ok(0x1f));
        assert!(with("ab", "x", Format::Csv).is_err());
        let tab = one_byte("delimiter", Some("TAB")).unwrap_err();
        assert_eq!(tab.hint().map(crate::text::Text::plain), Some("a tab is written '\\t'"));
        assert!(with("\\x00", "x", Format::Csv).is_err());
        assert!(with("a", "x", Format::Text).is_err());
        assert!(with("\"", "x", Format::Csv).is_err());
        assert!(with(",", "a,b", Format::Csv).is_err());
        assert!(with("\\n", "x", Format::Csv).is_err());
    }
}
