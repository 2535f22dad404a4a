//! COPY's options for the form of the file.

/// The two formats with delimiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `FORMAT csv`
    Csv,
    /// `FORMAT text`
    Text,
}

/// The end of a line. COPY takes it from the first line, and all other lines must have the same.
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
    /// The bytes of the line end, if it is known.
    pub fn bytes(self) -> Option<&'static [u8]> {
        match self {
            Eol::Unknown => None,
            Eol::Nl => Some(b"\n"),
            Eol::Cr => Some(b"\r"),
            Eol::CrNl => Some(b"\r\n"),
        }
    }
}

/// The meaning of `\.`, which depends on the format and on the server's version.
///
/// Bytes after the end of the data are dropped, as the server drops what a client still sends. (For
/// a *file* that the server reads itself, a server up to 17 continues with the next line if `\.`
/// came after a record.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotLine {
    /// Up to 17. CSV: a line of `\.` ends the data. Text: `\.` before a line end ends the data, and
    /// the bytes before it on its line are still a record.
    Ends,
    /// Text since 18: the same, but an error unless `\.` is alone on its line.
    Alone,
    /// CSV since 18: data.
    IsData,
}

impl DotLine {
    /// The meaning of `\.` to PostgreSQL `major`.
    pub fn of(format: Format, major: u32) -> Self {
        match format {
            _ if major < 18 => DotLine::Ends,
            Format::Csv => DotLine::IsData,
            Format::Text => DotLine::Alone,
        }
    }
}

/// The bytes below 128 that are characters by themselves in the encoding of the data.
///
/// The server converts the data before it looks for delimiters. The data scanned here are not
/// converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Characters {
    /// all: UTF-8 and every encoding that a database may have
    Ascii,
    /// SJIS, SHIFT_JIS_2004: all except the second byte of a two-byte character; half-width
    /// katakana are above 127 and have no second byte
    Sjis,
    /// BIG5, GBK, GB18030, UHC: all except those after a byte above 127
    Pairs,
}

impl Characters {
    /// The value for an encoding, by the server's name for it (`pg_encname_tbl` of
    /// `src/common/encnames.c`). JOHAB has two-byte characters, too, but the server rejects them.
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

    /// Whether `next` belongs to the character that begins with `byte`, like `pg_sjis_mblen` and
    /// similar functions of `src/common/wchar.c`. A four-byte character of GB18030 counts as two
    /// pairs.
    #[inline]
    pub fn joins(self, byte: u8, next: u8) -> bool {
        // In none of these encodings is a second byte less than this. The server rejects the first
        // byte in that case.
        const LEAST: u8 = 0x30;
        let leads = match self {
            Characters::Ascii => false,
            Characters::Sjis => byte >= 0x80 && !(0xa1..=0xdf).contains(&byte),
            Characters::Pairs => byte >= 0x80,
        };
        leads && next >= LEAST
    }

    /// The number of bytes at `at` that belong together: 1 or 2.
    #[inline]
    pub(super) fn width(self, text: &[u8], at: usize) -> usize {
        match text.get(at..) {
            Some([byte, next, ..]) if self.joins(*byte, *next) => 2,
            _ => 1,
        }
    }
}

/// The meaning of a stray quote in CSV. A field is quoted if a quote is its first byte and another
/// one its last. Any other quote is stray. Text format has no quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrayQuotes {
    /// as in COPY: each quote opens or closes, wherever it is
    Copy,
    /// the record is malformed
    Error,
    /// a character like any other
    Literal,
}

/// COPY's options for the form of the file, validated like those of the server
/// (`ProcessCopyOptions`, `src/backend/commands/copy.c`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct Dialect {
    /// csv or text
    pub format: Format,
    /// one byte, not CR, LF or the quote; in text, not a byte that an escape uses
    pub delimiter: u8,
    /// csv: the quote; any byte except the delimiter, even CR or LF
    pub quote: u8,
    /// csv: the escape within quotes; the quote itself by default
    pub escape: u8,
    /// the marker of NULL, without CR, LF, delimiter or quote
    pub null: Vec<u8>,
    /// the marker of a column's default (PostgreSQL 16), if any
    pub default: Option<Vec<u8>>,
    /// the meaning of `\.`
    pub dot_line: DotLine,
    /// text: values with escapes are checked to be UTF-8. False if the database or the file has
    /// another encoding: only the server can check that
    pub utf8: bool,
    /// the encoding of the data, as far as the scanner needs it
    pub characters: Characters,
    /// csv: the meaning of a stray quote
    pub stray_quotes: StrayQuotes,
}

impl Dialect {
    /// COPY's defaults for `FORMAT csv`, as in PostgreSQL 18.
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

    /// COPY's defaults for `FORMAT text`, as in PostgreSQL 18.
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

    /// The dialect in which PostgreSQL `major` reads the same file in text format, into a database
    /// whose encoding is UTF-8 or not. In CSV, up to 17, a line of `\.` ends the data silently, so
    /// the caller still chooses its meaning.
    pub fn on_server(mut self, major: u32, utf8: bool) -> Self {
        self.utf8 &= utf8;
        if self.format == Format::Text {
            self.dot_line = DotLine::of(Format::Text, major);
        }
        self
    }

    /// The same dialect, for data in the encoding of this name (the server's).
    pub fn in_encoding(mut self, encoding: &str) -> Self {
        self.utf8 = false;
        self.characters = Characters::of(encoding);
        self
    }

    /// CSV: whether a quote opens only at the start of a field. If the quote itself ends lines,
    /// only COPY's rule is possible.
    pub fn strict(&self) -> bool {
        self.format == Format::Csv
            && self.stray_quotes != StrayQuotes::Copy
            && !self.quotes_with_line_ends()
    }

    /// CSV: whether the quote or the escape is itself a byte that ends lines.
    pub(super) fn quotes_with_line_ends(&self) -> bool {
        let line_end = |c| c == b'\r' || c == b'\n';
        self.format == Format::Csv && (line_end(self.quote) || line_end(self.escape))
    }
}
