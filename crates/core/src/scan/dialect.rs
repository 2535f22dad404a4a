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

impl Eol {
    /// The line end itself, where it is known.
    pub fn bytes(self) -> Option<&'static [u8]> {
        match self {
            Eol::Unknown => None,
            Eol::Nl => Some(b"\n"),
            Eol::Cr => Some(b"\r"),
            Eol::CrNl => Some(b"\r\n"),
        }
    }
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

/// Which bytes below 128 are characters of their own, in the encoding of the data.
///
/// The server converts before it looks for delimiters; what is scanned here is not converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Characters {
    /// all: UTF-8, and every encoding that a database may have
    Ascii,
    /// SJIS, SHIFT_JIS_2004: all but the second one of two that are a character; half-width
    /// katakana are above 127 and have no second byte
    Sjis,
    /// BIG5, GBK, GB18030, UHC: all but those behind a byte above 127
    Pairs,
}

impl Characters {
    /// Those of the encoding that the server calls by this name (`pg_encname_tbl` of
    /// `src/common/encnames.c`). JOHAB, too, has such characters, and the server refuses them.
    #[allow(clippy::disallowed_methods)] // only the loader names encodings
    pub fn of(encoding: &str) -> Self {
        let letters = encoding.chars().filter(char::is_ascii_alphanumeric);
        match letters.collect::<String>().to_ascii_lowercase().as_str() {
            "sjis" | "shiftjis" | "shiftjis2004" | "mskanji" | "win932" | "windows932" => {
                Characters::Sjis
            }
            "big5" | "gbk" | "gb18030" | "uhc" | "win936" | "win949" | "win950" | "windows936"
            | "windows949" | "windows950" => Characters::Pairs,
            _ => Characters::Ascii,
        }
    }

    /// Whether `next` belongs to the character that begins with `byte`: `pg_sjis_mblen` and its
    /// like of `src/common/wchar.c`. One of GB18030 that has four bytes counts as two pairs.
    #[inline]
    pub fn joins(self, byte: u8, next: u8) -> bool {
        // What is less is no second byte in any of them: the server refuses the first one.
        const LEAST: u8 = 0x30;
        let leads = match self {
            Characters::Ascii => false,
            Characters::Sjis => byte >= 0x80 && !(0xa1..=0xdf).contains(&byte),
            Characters::Pairs => byte >= 0x80,
        };
        leads && next >= LEAST
    }

    /// How many bytes at `at` have to be taken together: 1 or 2.
    #[inline]
    pub(super) fn width(self, text: &[u8], at: usize) -> usize {
        match text.get(at..) {
            Some([byte, next, ..]) if self.joins(*byte, *next) => 2,
            _ => 1,
        }
    }
}

/// What a quote means in CSV that is not where the form has one: a field is quoted where a quote
/// is its first byte and another one its last. Text format has no quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrayQuotes {
    /// what it means to COPY: each quote opens or closes, wherever it stands
    Copy,
    /// the record is malformed
    Error,
    /// a character like any other
    Literal,
}

/// COPY's options on the form of the file, validated as the server validates them
/// (`ProcessCopyOptions`, `src/backend/commands/copy.c`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
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
    /// or the file has another encoding: only the server can check them
    pub utf8: bool,
    /// the encoding of the data, as far as it matters here
    pub characters: Characters,
    /// csv: what a stray quote means
    pub stray_quotes: StrayQuotes,
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
            characters: Characters::Ascii,
            stray_quotes: StrayQuotes::Copy,
        }
    }

    /// COPY's defaults for `FORMAT text`, as of PostgreSQL 18.
    #[allow(clippy::disallowed_methods)] // the extension states every option
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
            characters: Characters::Ascii,
            stray_quotes: StrayQuotes::Copy,
        }
    }

    /// The same file as PostgreSQL `major` reads it in text format into a
    /// database whose encoding is UTF-8 or is not. In CSV, where a line of `\.`
    /// is silently the end up to 17, what it means stays the caller's choice.
    pub fn on_server(mut self, major: u32, utf8: bool) -> Self {
        self.utf8 &= utf8;
        if self.format == Format::Text {
            self.dot_line = DotLine::of(Format::Text, major);
        }
        self
    }

    /// The same for data in the encoding that the server calls by this name.
    pub fn in_encoding(mut self, encoding: &str) -> Self {
        self.utf8 = false;
        self.characters = Characters::of(encoding);
        self
    }

    /// CSV: a quote opens at the start of a field only. Where the quote itself ends lines, COPY's
    /// rule is the only one.
    pub fn strict(&self) -> bool {
        self.format == Format::Csv
            && self.stray_quotes != StrayQuotes::Copy
            && !self.quotes_with_line_ends()
    }

    /// CSV: the quote or the escape is itself a byte that ends lines.
    pub(super) fn quotes_with_line_ends(&self) -> bool {
        let line_end = |c| c == b'\r' || c == b'\n';
        self.format == Format::Csv && (line_end(self.quote) || line_end(self.escape))
    }
}
