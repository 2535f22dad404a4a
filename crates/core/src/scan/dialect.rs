//! COPY's options on the form of the file.

/// The two formats with delimiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `FORMAT csv`
    Csv,
    /// `FORMAT text`
    Text,
}

/// What ends a line. COPY takes it from the first line and holds the rest to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eol {
    /// no line has ended yet
    Unknown,
    /// LF
    Nl,
    /// CR
    Cr,
    /// CR LF
    CrNl,
}

/// What `\.` means, which depends on the format and on the server's version.
///
/// What follows the end of the data is dropped, as the server drops what a
/// client still sends. (Of a *file* that it reads itself, a server up to 17
/// goes on with the next line if `\.` stood behind a record.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotLine {
    /// Up to 17. CSV: a line of `\.` ends the data. Text: `\.` before a line
    /// end ends the data, and what precedes it on its line is a record still.
    Ends,
    /// Text since 18: as before, but refused unless `\.` is alone on its line.
    Alone,
    /// CSV since 18: data like any other.
    IsData,
}

impl DotLine {
    /// What `\.` means to PostgreSQL `major`.
    pub fn of(format: Format, major: u32) -> Self {
        match format {
            _ if major < 18 => DotLine::Ends,
            Format::Csv => DotLine::IsData,
            Format::Text => DotLine::Alone,
        }
    }
}

/// COPY's options on the form of the file, validated as the server validates them
/// (`ProcessCopyOptions`, `src/backend/commands/copy.c`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// csv or text
    pub format: Format,
    /// one byte, neither CR nor LF nor the quote; in text none that an escape uses
    pub delimiter: u8,
    /// csv: the quote; any byte but the delimiter, CR and LF not excepted
    pub quote: u8,
    /// csv: the escape within quotes; the quote itself by default
    pub escape: u8,
    /// the marker of NULL, without CR, LF, delimiter and quote
    pub null: Vec<u8>,
    /// the marker of a column's default (PostgreSQL 16), if there is one
    pub default: Option<Vec<u8>>,
    /// what `\.` means
    pub dot_line: DotLine,
    /// text: what escapes make is checked to be UTF-8. Not set where the database
    /// has another encoding, whose bytes they are: only the server can check them
    pub utf8: bool,
}

impl Dialect {
    /// COPY's defaults for `FORMAT csv`, as of PostgreSQL 18.
    pub fn csv() -> Self {
        Dialect {
            format: Format::Csv,
            delimiter: b',',
            quote: b'"',
            escape: b'"',
            null: Vec::new(),
            default: None,
            dot_line: DotLine::IsData,
            utf8: true,
        }
    }

    /// COPY's defaults for `FORMAT text`, as of PostgreSQL 18.
    pub fn text() -> Self {
        Dialect {
            format: Format::Text,
            delimiter: b'\t',
            quote: b'"',
            escape: b'"',
            null: b"\\N".to_vec(),
            default: None,
            dot_line: DotLine::Alone,
            utf8: true,
        }
    }

    /// The same file as PostgreSQL `major` reads it in text format into a
    /// database whose encoding is UTF-8 or is not. In CSV, where a line of `\.`
    /// is silently the end up to 17, what it means stays the caller's choice.
    pub fn on_server(mut self, major: u32, utf8: bool) -> Self {
        self.utf8 = utf8;
        if self.format == Format::Text {
            self.dot_line = DotLine::of(Format::Text, major);
        }
        self
    }
}
