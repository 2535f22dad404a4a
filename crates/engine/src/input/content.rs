//! Detects files that are neither CSV nor text by their first bytes.

use super::peek::first_bytes;
use crate::error::Error;
use crate::options::FileFormat;
use crate::source::Source;
use pgsluice_core::scan::binary::{self, HEADER_LEN};
use pgsluice_core::scan::Dialect;

/// Signatures, and what such files are. A file must also have a byte that [`is_binary`] looks for,
/// which no line of text has. So letters alone are not enough.
const SIGNATURES: [(&[u8], &str); 21] = [
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow IPC"),
    (b"FEA1", "Feather"),
    (b"ORC", "ORC"),
    (b"Obj\x01", "Avro"),
    (b"PK\x03\x04", "a zip archive (.xlsx and .ods files are zip archives)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\xd0\xcf\x11\xe0", "an old Excel or Word file"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"\x89HDF\r\n", "HDF5"),
    (b"PGDMP", "an archive of pg_dump"),
    (b"RDX", "R's .RData"),
    (b"\x7fELF", "a program"),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
];

/// The offset of the signature in the header of the first file of a tar archive.
const TAR: usize = 257;

/// Control characters that delimit fields in some files. Detection tries them.
const CONTROL_DELIMITERS: [u8; 2] = [0x01, 0x1f];

/// Number of bytes that are examined.
const HEAD: usize = 1024;

/// Why the content of a file is wrong, and what to do about it.
pub(super) struct WrongContent {
    /// for example "is Parquet"
    pub what: String,
    /// a hint
    pub hint: &'static str,
}

/// Returns what a file is, if its first bytes show that it is certainly not of this format. With
/// `preamble`, any text may precede the header.
///
/// # Errors
///
/// It cannot be read.
pub fn other_content(
    source: &dyn Source,
    format: &FileFormat,
    utf8: bool,
    preamble: bool,
) -> Result<Option<String>, Error> {
    let (head, _) = first_bytes(source, HEAD)?;
    Ok(match format {
        FileFormat::Binary => {
            let head = &head[..head.len().min(HEADER_LEN)];
            binary::header(head).err().map(|_| "is not in COPY's binary format".into())
        }
        FileFormat::Delimited(dialect) if preamble => {
            no_text(&head, dialect, utf8).map(|other| other.what)
        }
        FileFormat::Delimited(dialect) => other(&head, dialect, utf8).map(|other| other.what),
    })
}

/// Returns what the file is, if it is certainly neither CSV nor text. UTF-16 is detected only if
/// the file should be in UTF-8 (`utf8`).
pub(super) fn other(bytes: &[u8], dialect: &Dialect, utf8: bool) -> Option<WrongContent> {
    no_text(bytes, dialect, utf8).or_else(|| other_text(bytes, dialect))
}

/// Like [`other`], for a file in UTF-8 whose dialect is not known yet.
pub(super) fn other_than_csv(bytes: &[u8]) -> Option<WrongContent> {
    by_signature(bytes, &CONTROL_DELIMITERS, true).or_else(|| other_text(bytes, &Dialect::csv()))
}

fn is(what: &str, hint: &'static str) -> Option<WrongContent> {
    Some(WrongContent { what: format!("is {what}"), hint })
}

/// Like [`other`], but any text may precede the header.
pub(super) fn no_text(bytes: &[u8], dialect: &Dialect, utf8: bool) -> Option<WrongContent> {
    by_signature(bytes, &[dialect.delimiter, dialect.quote], utf8)
}

/// Like [`no_text`]. `marks` are the bytes that delimit and quote fields.
fn by_signature(bytes: &[u8], marks: &[u8], utf8: bool) -> Option<WrongContent> {
    let head = &bytes[..bytes.len().min(HEAD)];
    if head.starts_with(b"PGCOPY\n\xff\r\n\0") {
        return is("in COPY's binary format", "`format` binary reads it");
    }
    let found = SIGNATURES.iter().find(|(signature, _)| head.starts_with(signature));
    if let Some((_, what)) = found.filter(|_| is_binary(head, marks)) {
        return is(what, "convert it to CSV first; the loader reads CSV, COPY's text format and COPY's binary format");
    }
    if head.get(TAR..).is_some_and(|rest| rest.starts_with(b"ustar")) && is_binary(head, marks) {
        return is("a tar archive", "unpack it first: tar -xf");
    }
    if head.starts_with(b"%PDF-") {
        return is("a PDF document", "convert its tables to CSV first");
    }
    if utf8 && is_utf16(head) {
        return is("UTF-16, which PostgreSQL does not support", UTF16);
    }
    None
}

fn other_text(bytes: &[u8], dialect: &Dialect) -> Option<WrongContent> {
    let head = &bytes[..bytes.len().min(HEAD)];
    if dialect.delimiter != b',' || dialect.quote != b'"' {
        return None;
    }
    let start = head.iter().position(|c| !c.is_ascii_whitespace()).unwrap_or(head.len());
    let text = &head[start..];
    let begins = |tag: &[u8]| text.get(..tag.len()).is_some_and(|t| t.eq_ignore_ascii_case(tag));
    if begins(b"<!doctype html") || begins(b"<html") {
        return is("an HTML page", "was it downloaded from an address that needs a login?");
    }
    if begins(b"<?xml") {
        return is("XML", "write it as CSV first");
    }
    if text.starts_with(b"--\n-- PostgreSQL database dump") {
        return is("a script of pg_dump", "psql -f runs it");
    }
    if is_json(text) {
        return is(
            "JSON",
            "write it as CSV first; lines of JSON go whole into one column by \
             `delimiter` '\\x01' `quote` '\\x02'",
        );
    }
    None
}

/// The hint for UTF-16.
pub(super) const UTF16: &str = "convert it first: iconv -f UTF-16 -t UTF-8";

/// Whether there are control characters that no text has, except for `marks`.
fn is_binary(head: &[u8], marks: &[u8]) -> bool {
    head.iter().any(|c| matches!(c, 0..=8 | 14..=26 | 28..=31) && !marks.contains(c))
}

/// Whether about every other byte at the start is zero, and no other byte is.
fn is_utf16(head: &[u8]) -> bool {
    let head = &head[..head.len().min(256) & !1];
    let zeros = |at: usize| head.chunks_exact(2).filter(|pair| pair[at] == 0).count();
    let (first, second, half) = (zeros(0), zeros(1), head.len() / 2);
    half >= 4 && (first == 0 && second * 10 >= half * 9 || second == 0 && first * 10 >= half * 9)
}

/// Whether a JSON document begins here: an object, or an array of objects, arrays or strings.
fn is_json(text: &[u8]) -> bool {
    let Some((open, rest)) = text.split_first() else { return false };
    let next = rest.iter().find(|c| !c.is_ascii_whitespace());
    match open {
        b'{' => matches!(next, Some(b'"')),
        b'[' => matches!(next, Some(b'{' | b'[' | b'"')),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_formats_are_found_by_their_first_bytes() {
        let csv = Dialect::csv();
        let what = |bytes: &[u8]| other(bytes, &csv, true).map_or(String::new(), |o| o.what);
        for (bytes, name) in [
            (&b"PAR1\x15\x04\x15\x10"[..], "Parquet"),
            (b"ARROW1\0\0\xff\xff", "Arrow"),
            (b"PK\x03\x04\x14\0", "zip"),
            (b"\x7fELF\x02\x01", "program"),
            (b"\x89PNG\r\n\x1a\n", "PNG"),
            (b"\x80\x04\x95\0", "pickle"),
            (b"%PDF-1.7\n", "PDF"),
            (b"PGCOPY\n\xff\r\n\0\0\0", "COPY's binary format"),
            (b"i\x00d\x00,\x00a\x00\n\x001\x00,\x002\x00", "UTF-16"),
            (b"\x00i\x00d\x00,\x00a\x00\n\x001\x00,\x002", "UTF-16"),
            (b"{\"a\": 1}\n{\"a\": 2}\n", "JSON"),
            (b"[\n  {\"a\": 1}\n]\n", "JSON"),
            (b"\n<!DOCTYPE html><html>", "HTML"),
            (b"7z\xbc\xaf\x27\x1c\0\x04", "7z archive"),
            (&[&b"a.csv"[..], &[0; 252], b"ustar  \0"].concat(), "tar archive"),
            (b"--\n-- PostgreSQL database dump\n--\n", "script of pg_dump"),
        ] {
            assert!(what(bytes).contains(name), "{name}: {}", what(bytes));
        }
        for bytes in [
            &b"PAR1,PAR2\n1,2\n"[..],
            b"ORC,ELF\n1,2\n",
            b"{1,2},x\n",
            b"\"{\"\"a\"\":1}\",1\n",
            b"[1],[2]\n",
            b"RDX2,b\n",
            b"--\n1,2\n",
            b"\xc3\xa9,b\n",
            b"\0\0\0\0",
            b"",
        ] {
            assert_eq!(what(bytes), "", "{bytes:?}");
        }
        // If neither commas nor quotes have a meaning, lines of JSON are values.
        let whole = Dialect { delimiter: 1, quote: 2, ..Dialect::csv() };
        assert!(other(b"{\"a\": 1}\n", &whole, true).is_none());
        // A control character that is the delimiter may occur in text.
        for delimiter in [1, 0x1f] {
            let unusual = Dialect { delimiter, ..Dialect::csv() };
            let row = [b"ORCL", &[delimiter][..], b"12.5\n"].concat();
            assert!(other(&row, &unusual, true).is_none());
            assert!(other(&[&row[..], b"\0"].concat(), &unusual, true).is_some());
            assert!(other_than_csv(&row).is_none());
        }
    }
}
