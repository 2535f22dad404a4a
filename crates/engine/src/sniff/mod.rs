//! Detects a file's dialect: delimiter, quote, escape, header, encoding, the lines before and after
//! the table, and the content of its columns. It is a pure function of the bytes of a sample and
//! the settings given.
//!
//! Each finding has evidence in lines of the file. If the sample does not decide a property, there
//! is a [`Doubt`] with the options that would decide it. Nothing is guessed.

mod cell;
mod columns;
mod dialect;
mod layout;
mod reading;
#[cfg(test)]
mod tests;

use crate::frame::{excel_delimiter, first_end, line_end};
use crate::text::{text, Text};
use pgsluice_core::scan::{valid_utf8, Dialect, StrayQuotes};
use std::ops::Range;

pub use crate::input::{other_content, peek, Peek};
pub(crate) use cell::{moment_of, spelling, PartOrder, Spelling};
pub(crate) use dialect::FIXED_WIDTH;

/// The settings that the user has given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// the delimiter
    pub delimiter: Option<u8>,
    /// the quote
    pub quote: Option<u8>,
    /// the escape
    pub escape: Option<u8>,
    /// whether the first record is a header
    pub header: Option<bool>,
    /// the encoding is given
    pub encoding: bool,
    /// the meaning of stray quotes
    pub stray_quotes: Option<StrayQuotes>,
    /// number of lines to skip before anything else; 0 if not given
    pub skip_lines: u64,
}

/// The bytes of the sample.
#[derive(Clone, Copy, Debug)]
struct Sample<'a> {
    bytes: &'a [u8],
    /// true if they are the whole file
    whole: bool,
    /// number of lines of the file before them
    before: u64,
}

impl Sample<'_> {
    /// The line of the byte at `at`.
    fn line_of(&self, at: usize) -> u64 {
        let end = line_end(self.bytes, first_end(self.bytes, &Dialect::csv()));
        self.before + 1 + memchr::memchr_iter(end, &self.bytes[..at]).count() as u64
    }

    /// The sample without its first lines, and without Excel's line that names a delimiter.
    fn after(self, skip_lines: u64, given: &mut Given) -> Self {
        let mut sample = self;
        if let Some((delimiter, length)) = excel_delimiter(self.bytes) {
            given.delimiter.get_or_insert(delimiter);
            if skip_lines == 0 {
                sample.bytes = &sample.bytes[length..];
                sample.before += 1;
            }
        }
        let quote = given.quote.unwrap_or(b'"');
        // By COPY's rule on quotes, no delimiter has to be known.
        let dialect = Dialect { quote, escape: quote, ..Dialect::csv() };
        let end = line_end(self.bytes, first_end(self.bytes, &dialect));
        for _ in 0..skip_lines {
            let at = memchr::memchr(end, sample.bytes);
            sample.bytes = &sample.bytes[at.map_or(sample.bytes.len(), |at| at + 1)..];
            sample.before += 1;
        }
        sample
    }
}

/// The kind of the first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// it has the names of the columns
    Names,
    /// it is a record like the others
    None,
    /// it has another number of fields than the others: a damaged header
    Unfit,
    /// it may be a header or a record
    Unknown,
}

/// A property that the sample does not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// the property
    pub what: &'static str,
    /// the evidence for each candidate
    pub why: String,
    /// options that decide it
    pub candidates: Vec<Setting>,
}

/// A setting and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting(pub &'static str, pub String);

impl Setting {
    /// The setting as the user gives it.
    pub fn text(&self) -> Text {
        let name = Text::setting(self.0);
        match (self.0, self.1.as_str()) {
            ("header", "names") | (_, "") => name,
            ("header", how) => text!("{}={}", name, how),
            (_, "'") => text!("{} \"'\"", name),
            (_, value) if value.bytes().all(|c| c.is_ascii_alphanumeric()) => {
                text!("{} {}", name, value)
            }
            (_, value) => text!("{} '{}'", name, value),
        }
    }
}

/// A detected column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectedColumn {
    /// the name from the header, or c1 and so on
    pub name: String,
    /// the type that `--create` gives the column
    pub sql: &'static str,
    /// remarkable properties; empty if there are none
    pub why: String,
    /// a type for most of its values, or for all of them in another spelling
    pub also: Option<&'static str>,
}

/// The detected dialect.
#[derive(Clone, Debug)]
pub struct Detected {
    /// the delimiter
    pub delimiter: u8,
    /// the quote
    pub quote: u8,
    /// the escape
    pub escape: u8,
    /// the kind of the first record
    pub head: Head,
    /// lines before the header
    pub skip_lines: u64,
    /// lines after the last record
    pub skip_footer: u64,
    /// true if the bytes are UTF-8
    pub utf8: bool,
    /// the line end
    pub eol: &'static str,
    /// the spelling of NULL, if it has no other meaning
    pub null: Option<String>,
    /// the order of dates, if some value shows it and no value contradicts it
    pub date_style: Option<&'static str>,
    /// some records have stray quotes
    pub strays: bool,
    /// some lines among the records begin with `#` and are not records
    pub comments: bool,
    /// the columns
    pub columns: Vec<DetectedColumn>,
    /// number of records in the sample
    pub records: usize,
    /// true if these are all records
    pub whole: bool,
    /// evidence by name of the property
    pub evidence: Vec<(&'static str, String)>,
    /// the properties that are not decided
    pub doubts: Vec<Doubt>,
}

impl Detected {
    /// The evidence for a property.
    pub fn why(&self, property: &str) -> Option<&str> {
        self.evidence.iter().find(|(name, _)| *name == property).map(|(_, why)| why.as_str())
    }
}

/// A number with a noun.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A byte in the form of an option's value.
pub fn option(byte: u8) -> String {
    match byte {
        b'\t' => "\\t".into(),
        0x20..=0x7e => char::from(byte).into(),
        _ => format!("\\x{byte:02x}"),
    }
}

/// Detects the dialect of a file from its first bytes, which may be all. They must not include a
/// byte order mark.
pub fn sniff(sample: &[u8], whole: bool, given: &Given) -> Detected {
    // The last line may be incomplete.
    let end = match memchr::memrchr2(b'\n', b'\r', sample) {
        Some(at) if !whole => at + 1,
        _ => sample.len(),
    };
    let mut given = given.clone();
    let sample = Sample { bytes: &sample[..end], whole, before: 0 };
    let sample = sample.after(given.skip_lines, &mut given);
    let choice = dialect::choose(sample, &given);
    let reading = &choice.reading.entire(sample);
    let layout = layout::find(sample, reading, &given);
    let names = match layout.first.checked_sub(1).filter(|_| layout.head == Head::Names) {
        Some(at) => reading.values(sample, &reading.rows[at]),
        None => Vec::new(),
    };
    let found = columns::find(sample, reading, &layout, &names);
    let mut detected = Detected {
        delimiter: reading.dialect.delimiter,
        quote: reading.dialect.quote,
        escape: reading.dialect.escape,
        head: layout.head,
        skip_lines: layout.before,
        skip_footer: layout.after,
        utf8: true,
        eol: "LF",
        null: found.null.as_ref().map(|(null, _)| null.clone()),
        date_style: found
            .date_style
            .as_ref()
            .map(|(style, _)| *style)
            .filter(|_| found.dates.is_empty()),
        strays: reading.stray > 0.0,
        comments: false,
        columns: found.columns,
        records: reading.rows[layout.first.min(layout.end)..layout.end]
            .iter()
            .filter(|row| !row.is_blank())
            .count(),
        whole: reading.whole,
        evidence: layout.evidence,
        doubts: choice.doubts,
    };
    detected.skip_lines += sample.before * u64::from(given.skip_lines > 0);
    detected.comments(sample, reading, layout.first.min(layout.end)..layout.end);
    detected.doubts.extend(layout.doubts);
    detected.dialect_evidence(sample, reading, &choice.others);
    detected.encoding(sample, &given);
    detected.line_ends(sample.bytes);
    let more = found.null.map(|(_, why)| ("null", why));
    detected.evidence.extend(more);
    detected.evidence.extend(found.nulls.into_iter().map(|why| ("nulls", why)));
    detected.evidence.extend(found.date_style.map(|(_, why)| ("date-style", why)));
    detected.evidence.extend(found.dates.into_iter().map(|why| ("dates", why)));
    detected.doubts = merged(detected.doubts);
    detected
}

/// One doubt for each property, with all the evidence.
fn merged(doubts: Vec<Doubt>) -> Vec<Doubt> {
    let mut all: Vec<Doubt> = Vec::new();
    for doubt in doubts {
        let Some(same) = all.iter_mut().find(|known| known.what == doubt.what) else {
            all.push(doubt);
            continue;
        };
        same.why = format!("{}; {}", same.why, doubt.why);
        for candidate in doubt.candidates {
            if !same.candidates.contains(&candidate) {
                same.candidates.push(candidate);
            }
        }
    }
    all
}

impl Detected {
    /// Adds the evidence for delimiter, quote and escape.
    fn dialect_evidence(
        &mut self,
        sample: Sample<'_>,
        reading: &reading::Reading,
        others: &[String],
    ) {
        let rows = || reading.rows.iter().filter(|row| !row.is_blank());
        let mut why = format!(
            "{} of {} records have {}",
            reading.fitting(),
            reading.records(),
            counted(reading.width, "field")
        );
        let off = rows().find(|row| row.width != reading.width && row.line > self.skip_lines);
        if let Some(row) = off {
            why += &format!("; line {} has {}", row.line, row.width);
        }
        if !others.is_empty() {
            why += &format!("; {}", others.join("; "));
        }
        self.evidence.push(("delimiter", why));
        let quoted = rows().find(|row| row.quoted.contains(&true));
        self.evidence.push(match quoted {
            Some(row) => (
                "quote",
                match reading.quoted {
                    1 => format!("1 field is in quotes, in line {}", row.line),
                    n => format!("{n} fields are in quotes, the first in line {}", row.line),
                },
            ),
            None => ("quote", "no field is in quotes".into()),
        });
        if let Some(row) = rows().find(|row| row.stray) {
            let number = rows().filter(|row| row.stray).count();
            let why = match number {
                1 => format!("1 record has stray quotes, in line {}", row.line),
                n => format!("{n} records have stray quotes, the first in line {}", row.line),
            };
            self.evidence.push(("stray-quotes", why));
        }
        if self.escape != self.quote {
            let pair = [self.escape, self.quote];
            let at = memchr::memmem::find(sample.bytes, &pair).unwrap_or_default();
            let why = format!("as in line {}", sample.line_of(at));
            self.evidence.push(("escape", why));
        }
    }

    /// Whether lines among the records begin with `#`, but no record does.
    fn comments(&mut self, sample: Sample<'_>, reading: &reading::Reading, of: Range<usize>) {
        let begins = |row: &&reading::SampleRow| sample.bytes[row.start..row.end].starts_with(b"#");
        let rows = reading.rows[of].iter().filter(begins);
        let lines: Vec<_> = rows.map(|row| (row.width == reading.width, row.line)).collect();
        if let (Some((_, first)), true) = (lines.first(), lines.iter().all(|(fits, _)| !fits)) {
            self.comments = true;
            let why =
                format!("lines that are no records begin with '#', the first is line {first}");
            self.evidence.push(("comment", why));
        }
    }

    /// Checks whether the bytes are UTF-8. The bytes do not show which other encoding they have.
    fn encoding(&mut self, sample: Sample<'_>, given: &Given) {
        let bytes = sample.bytes;
        if bytes.is_ascii() {
            self.evidence.push(("encoding", "all bytes are ASCII".into()));
            return;
        }
        let bad = match valid_utf8(bytes) {
            Ok(()) => None,
            // The sample ends within a character.
            Err(bad) if !sample.whole && bad.offset + 4 > bytes.len() => None,
            Err(bad) => Some(bad.offset),
        };
        let Some(at) = bad else {
            self.evidence.push(("encoding", "all bytes are UTF-8".into()));
            return;
        };
        self.utf8 = false;
        let line = sample.line_of(at);
        let why = format!("line {line} has byte 0x{:02x}, which is not UTF-8", bytes[at]);
        if !given.encoding {
            let names = ["WIN1252", "LATIN1", "WIN1250", "WIN1251"];
            let candidates = names.iter().map(|name| Setting("encoding", (*name).into())).collect();
            self.doubts.push(Doubt { what: "encoding", why: why.clone(), candidates });
        }
        self.evidence.push(("encoding", why));
    }

    fn line_ends(&mut self, sample: &[u8]) {
        let pairs = memchr::memmem::find_iter(sample, b"\r\n").count();
        let feeds = memchr::memchr_iter(b'\n', sample).count() - pairs;
        let returns = memchr::memchr_iter(b'\r', sample).count() - pairs;
        let counts = [("CR LF", pairs), ("LF", feeds), ("CR", returns)];
        let most = counts.iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 0);
        self.eol = most.map_or("LF", |(name, _)| name);
        let shown: Vec<String> = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let shown = if shown.is_empty() { "none".into() } else { shown.join(", ") };
        self.evidence.push(("line-ends", shown));
    }
}
