//! Recasts records in the file's own form. Removes the fields that are left out, writes the NULL
//! marker for a column's own spellings of NULL, and adds fields for values that are not in the file.
//!
//! After this, records have one field for each column. The bytes of all other fields stay the same.
//! A record with a wrong number of fields, or malformed in another way, is found here: the server
//! could no longer find it. Rejects and places in messages refer to the file: they are taken from
//! the chunk as it was read.

use crate::error::Error;
use crate::fields::ValuePart;
use crate::input::{Chunk, Counts, Part};
use crate::options::Options;
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{
    quote_strays, raw_fields, Dialect, Eol, FieldKind, Format, Next, Record, Scanner,
};

/// The most bytes that values which are not in the file may add to a chunk. The chunk itself has
/// 512 kB.
const MOST_ADDED: usize = 2 << 20;

/// How the fields of each record are recast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recast {
    /// how many fields a record of the file has
    fields: usize,
    /// where the value of each column comes from
    columns: Vec<Origin>,
    /// the names of the files
    files: Vec<String>,
}

/// Where the value of a column comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Field(Field),
    Value(Vec<ValuePart>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    index: usize,
    /// what is NULL here, in addition to the marker
    nulls: Vec<Vec<u8>>,
    /// that is also NULL in quotes
    force_null: bool,
}

/// The place of records.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// the index of the file among the sources
    pub file: usize,
    /// the number of lines of the file before them
    pub line: u64,
}

/// Recast records, and the numbers of records and lines before that.
pub type Recasted = (Vec<u8>, Counts);

impl Recast {
    /// Returns how to recast these fields, and the columns that the options set. `None` if records
    /// can be sent as they are.
    pub fn new(fields: &[Option<String>], options: &Options) -> Option<Recast> {
        let target = &options.target;
        let kept = fields.iter().enumerate().filter_map(|(i, column)| Some((i, column.as_ref()?)));
        let field = |(index, column): (usize, &String)| Field {
            index,
            nulls: target.nulls_of(column),
            force_null: target.force_null.has(column),
        };
        let kept: Vec<Field> = kept.map(field).collect();
        let as_is = kept.len() == fields.len() && kept.iter().all(|field| field.nulls.is_empty());
        if as_is && target.fields.set.is_empty() {
            return None;
        }
        let set = target.fields.set.iter().map(|(_, value)| Origin::Value(value.clone()));
        let columns = kept.into_iter().map(Origin::Field).chain(set).collect();
        let files = options.input.sources.iter().map(|source| source.name()).collect();
        Some(Recast { fields: fields.len(), columns, files })
    }

    /// Whether values depend on line numbers.
    pub fn counts_lines(&self) -> bool {
        let line = |from: &Origin| matches!(from, Origin::Value(v) if v.contains(&ValuePart::Line));
        self.columns.iter().any(line)
    }

    /// Returns how many records a chunk may have, so that their added values fit in memory. `None`
    /// if no values are added.
    pub fn most_records(&self) -> Option<usize> {
        // Count the delimiter and two quotes, and count each byte as if it were escaped.
        let field = |length: usize| 3 + 2 * length;
        let part = |part: &ValuePart| match part {
            ValuePart::Text(text) => text.len(),
            ValuePart::File => self.files.iter().map(String::len).max().unwrap_or_default(),
            ValuePart::Line => 20,
        };
        let added = self.columns.iter().filter_map(|from| match from {
            Origin::Value(value) => Some(field(value.iter().map(part).sum())),
            Origin::Field(_) => None,
        });
        let added = added.reduce(usize::saturating_add)?;
        Some((MOST_ADDED / added).max(1))
    }

    /// Recasts a chunk of whole records. Also returns the numbers of records and lines before that.
    ///
    /// # Errors
    ///
    /// The first malformed record, with its last line.
    pub fn chunk(
        &self,
        chunk: &Chunk,
        dialect: &Dialect,
    ) -> Result<(Chunk, Counts), (Malformed, u64)> {
        debug_assert_eq!(chunk.part, Part::Whole);
        let at = At { file: chunk.file, line: chunk.line };
        let (bytes, counts) = self.records(&chunk.bytes, chunk.stray, chunk.eol, dialect, at)?;
        Ok((Chunk { bytes, stray: false, ..*chunk }, counts))
    }

    /// Like [`Recast::chunk`], for records of a chunk.
    ///
    /// # Errors
    ///
    /// As for [`Recast::chunk`].
    pub fn records(
        &self,
        bytes: &[u8],
        stray: bool,
        eol: Eol,
        dialect: &Dialect,
        at: At,
    ) -> Result<Recasted, (Malformed, u64)> {
        // Whether a quote is a stray one may depend on the fields after it.
        let quoted = stray.then(|| quote_strays(bytes, dialect, eol)).flatten();
        let bytes = quoted.as_deref().unwrap_or(bytes);
        let mut scanner = Scanner::new(bytes, true, dialect, eol);
        let (mut record, mut raw) = (Record::default(), Vec::new());
        let (mut out, mut records) = (Vec::with_capacity(bytes.len()), 0);
        loop {
            let at = At { line: at.line + scanner.lines() + 1, ..at };
            match scanner.next(&mut record) {
                Ok(Next::Record) => {}
                Ok(_) => break,
                Err(fault) => return Err((fault, record.line)),
            }
            if record.len() != self.fields {
                return Err((wrong_number(record.len(), self.fields), record.line));
            }
            let whole = &bytes[record.start..record.end];
            raw_fields(whole, dialect, &mut raw);
            if let (true, Some(last)) = (scanner.ended(), raw.last_mut()) {
                // The marker of the end of the data may follow directly after the last field.
                last.end -= 2;
            }
            for (i, from) in self.columns.iter().enumerate() {
                if i > 0 {
                    out.push(dialect.delimiter);
                }
                match from {
                    Origin::Field(field) => {
                        let own = &whole[raw[field.index].clone()];
                        let null = !field.nulls.is_empty()
                            && field.is_null(own, record.field(bytes, field.index));
                        out.extend_from_slice(if null { &dialect.null } else { own });
                    }
                    Origin::Value(value) => self.put(value, at, dialect, &mut out),
                }
            }
            let rest = &whole[raw.last().map_or(0, |last| last.end)..];
            if rest != b"\\" {
                out.extend_from_slice(rest);
            }
            records += 1;
        }
        let counts = Counts { records, lines: scanner.lines() };
        out.extend_from_slice(&bytes[scanner.position()..]);
        Ok((out, counts))
    }

    /// Writes a value that is not in the file as a field.
    fn put(&self, value: &[ValuePart], at: At, dialect: &Dialect, out: &mut Vec<u8>) {
        let mut text = String::new();
        for piece in value {
            match piece {
                ValuePart::Text(piece) => text.push_str(piece),
                ValuePart::File => {
                    text.push_str(self.files.get(at.file).map_or("", String::as_str))
                }
                ValuePart::Line => text.push_str(&at.line.to_string()),
            }
        }
        match dialect.format {
            Format::Csv => in_quotes(text.as_bytes(), dialect, out),
            Format::Text => escaped(text.as_bytes(), dialect, out),
        }
    }

    /// Returns the line of a chunk for a line of the recast chunk: the last one of the same record.
    pub fn line_before(&self, chunk: &Chunk, recast: &Chunk, dialect: &Dialect, line: u64) -> u64 {
        let layout = crate::input::Layout::Lines(dialect.clone());
        let (index, ..) = recast.record_of_line(&layout, line);
        let (_, _, end) = chunk.record_at(&layout, index);
        chunk.lines_to(&layout, end)
    }
}

impl Field {
    /// Whether a field is one of the spellings of NULL; `own` are its bytes in the file. As with
    /// COPY's marker, the bytes before escapes are resolved count. A field in quotes is a value,
    /// unless `force_null` is set.
    fn is_null(&self, own: &[u8], (kind, value): (FieldKind, &[u8])) -> bool {
        let text = match kind {
            FieldKind::Plain => own,
            FieldKind::Quoted if self.force_null => value,
            _ => return false,
        };
        self.nulls.iter().any(|null| null == text)
    }
}

fn in_quotes(text: &[u8], dialect: &Dialect, out: &mut Vec<u8>) {
    out.push(dialect.quote);
    for byte in text {
        if *byte == dialect.quote || *byte == dialect.escape {
            out.push(dialect.escape);
        }
        out.push(*byte);
    }
    out.push(dialect.quote);
}

/// Writes a field of the text format that is not a marker.
fn escaped(text: &[u8], dialect: &Dialect, out: &mut Vec<u8>) {
    let start = out.len();
    for byte in text {
        match byte {
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            byte if *byte == b'\\' || *byte == dialect.delimiter => out.extend([b'\\', *byte]),
            byte => out.push(*byte),
        }
    }
    let markers = [Some(&dialect.null), dialect.default.as_ref()];
    let is_marker = markers.into_iter().flatten().any(|marker| marker[..] == out[start..]);
    if let (true, Some(first)) = (is_marker, text.first()) {
        // COPY compares the marker before it resolves escapes.
        out.truncate(start);
        out.extend_from_slice(format!("\\x{first:02x}").as_bytes());
        let none = Dialect { null: vec![b'\n'], default: None, ..dialect.clone() };
        escaped(&text[1..], &none, out);
    }
}

/// Returns the fault of a record with this number of fields.
pub fn wrong_number(found: usize, wanted: usize) -> Malformed {
    if found > wanted {
        Malformed::ExtraData
    } else {
        Malformed::MissingData(found)
    }
}

/// Returns the error for a record that is too long to be held, which cannot be recast.
pub fn too_long() -> Error {
    Error::new("a record is too long to be held in memory, which options on fields need")
        .with_hint("load the file without `null` COLUMN=TEXT, `set` and fields that are left out")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{pieces, FieldOptions};
    use crate::options::{ColumnSet, FileFormat, Header, InputOptions, TargetOptions};
    use crate::source::{stdin, FileSource};

    fn recast(fields: &str, dialect: &Dialect, bytes: &[u8]) -> Result<String, (Malformed, u64)> {
        with(fields, FieldOptions::default(), dialect, bytes)
    }

    fn with(
        fields: &str,
        wanted: FieldOptions,
        dialect: &Dialect,
        bytes: &[u8],
    ) -> Result<String, (Malformed, u64)> {
        let input = InputOptions {
            sources: vec![stdin(), std::sync::Arc::new(FileSource::new("b"))],
            notes: Vec::new(),
            format: FileFormat::Delimited(dialect.clone()),
            header: Header::None,
            encoding: None,
            skip: 0,
            limit: None,
            first_is_data: false,
            frame: crate::frame::Frame::default(),
        };
        let mut target = TargetOptions::new("", "t");
        target.fields = wanted;
        target.force_null = ColumnSet::Named(vec!["f".into()]);
        let options = Options { input, target, rejects: None, once: None };
        let fields: Vec<_> = fields.chars().map(|c| (c != '-').then(|| c.to_string())).collect();
        let recast = Recast::new(&fields, &options).unwrap();
        let at = At { file: 1, line: 7 };
        let crlf = bytes.windows(2).any(|pair| pair == b"\r\n");
        let eol = if crlf { Eol::CrNl } else { Eol::Nl };
        let (out, _) = recast.records(bytes, true, eol, dialect, at)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn what_is_null_in_one_column_gets_the_marker() {
        let csv = Dialect { null: b"NULL".to_vec(), ..Dialect::csv() };
        let text = Dialect::text();
        let spelled = |nulls: &[(Option<&str>, &str)]| FieldOptions {
            nulls: nulls.iter().map(|(c, n)| (c.map(str::to_owned), n.to_string())).collect(),
            ..FieldOptions::default()
        };
        let some = [(Some("b"), "-"), (Some("b"), ""), (Some("f"), "-")];
        let all = [(None, "-"), (Some("b"), "n/a")];
        for (fields, nulls, dialect, bytes, expected) in [
            (
                "abf",
                &some[..],
                &csv,
                "-,-,-\n,,\n\"-\",\"-\",\"-\"\n",
                "-,NULL,NULL\n,NULL,\n\"-\",\"-\",NULL\n",
            ),
            ("-bf", &all, &csv, "-,n/a,n/a\n-,-,x\n", "NULL,n/a\nNULL,x\n"),
            ("ab", &some, &text, "-\t-\n\\-\t\\-\n\t\n", "-\t\\N\n\\-\t\\-\n\t\\N\n"),
        ] {
            let found = with(fields, spelled(nulls), dialect, bytes.as_bytes());
            assert_eq!(found.as_deref(), Ok(expected));
        }
    }

    #[test]
    fn values_that_are_not_in_the_file_are_fields() {
        let set = |value: &str| FieldOptions {
            set: vec![("s".into(), pieces(value))],
            ..FieldOptions::default()
        };
        let csv = Dialect::csv();
        let text = Dialect { null: b"NULL".to_vec(), ..Dialect::text() };
        for (value, dialect, bytes, expected) in [
            ("{file}:{line}", &csv, "1,\"\n\"\n2,\n", "1,\"\n\",\"b:8\"\n2,,\"b:10\"\n"),
            ("a\"b,\n", &csv, "1,2", "1,2,\"a\"\"b,\n\""),
            ("", &csv, "1,2\n", "1,2,\"\"\n"),
            (
                "a\t\\\n{line}",
                &text,
                "1\t2\\\n\n3\t4\\",
                "1\t2\\\n\ta\\t\\\\\\n8\n3\t4\ta\\t\\\\\\n9",
            ),
            ("NULL", &text, "1\t2\n", "1\t2\t\\x4eULL\n"),
        ] {
            let found = with("ab", set(value), dialect, bytes.as_bytes());
            assert_eq!(found.as_deref(), Ok(expected), "{value:?}");
        }
    }

    #[test]
    fn the_bytes_of_the_fields_that_stay_are_not_touched() {
        let (csv, text) = (Dialect::csv(), Dialect::text());
        let strict = pgsluice_core::scan::StrayQuotes::Literal;
        let literal = Dialect { stray_quotes: strict, ..Dialect::csv() };
        let older = Dialect::text().on_server(17, true);
        for (fields, dialect, bytes, expected) in [
            ("a-c", &csv, "1,\"x,\n\",\"3 \"\"\"\r\n4,,\r\n", "1,\"3 \"\"\"\r\n4,\r\n"),
            ("-b", &csv, "1,2\n3,\"4\n\"", "2\n\"4\n\""),
            ("a--", &csv, "1,2,3\n,,\n", "1\n\n"),
            ("a-c", &text, "1\t\\\t\t\\N\n\\\\\tx\ty\\", "1\t\\N\n\\\\\ty"),
            ("a-", &text, "1\t2\\\n", "1"),
            ("a-", &text, "1\t2\n\\.\nrest", "1\n\\.\nrest"),
            ("a-", &older, "1\t2\\.\nrest", "1\\.\nrest"),
            ("a-c", &literal, "5\" x,\"y,\"z\"\n", "\"5\"\" x\",\"z\"\n"),
        ] {
            assert_eq!(recast(fields, dialect, bytes.as_bytes()).as_deref(), Ok(expected));
        }
        assert_eq!(recast("a-", &csv, b"1,2\n3\n"), Err((Malformed::MissingData(1), 2)));
        assert_eq!(recast("a-", &csv, b"1,\"\n\",3\n"), Err((Malformed::ExtraData, 2)));
    }
}
