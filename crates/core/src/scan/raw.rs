//! Finds the raw fields of a record, with their quotes and escapes, so that some can be left out
//! without a change to the bytes of the others.

use super::{naive, strict, Characters, Dialect, Format, MAX_FIELDS};
use std::ops::Range;

/// The fields of a record, split like COPY splits them. The last one ends at the line end, or
/// before a backslash that ends the data, which means nothing.
///
/// `record` is one whole record, with or without its line end. It must be well formed, and must not
/// have quotes with another meaning than in COPY ([`super::quote_strays`]).
#[allow(clippy::disallowed_methods)] // only the loader sends records
pub fn raw_fields(record: &[u8], dialect: &Dialect, fields: &mut Vec<Range<usize>>) {
    fields.clear();
    let csv = dialect.format == Format::Csv;
    let special = if csv { dialect.quote } else { b'\\' };
    if dialect.characters == Characters::Ascii && memchr::memchr(special, record).is_none() {
        // Without quotes and escapes, these bytes can only be the record's line end.
        let end = memchr::memchr2(b'\r', b'\n', record).unwrap_or(record.len());
        let mut start = 0;
        for at in memchr::memchr_iter(dialect.delimiter, &record[..end]).take(MAX_FIELDS - 1) {
            fields.push(start..at);
            start = at + 1;
        }
        fields.push(start..end);
        return;
    }
    let mut at = 0;
    while fields.len() < MAX_FIELDS {
        let start = at;
        let ends = if csv { quoted_end } else { escaped_end };
        at = ends(record, dialect, at);
        fields.push(start..at);
        if record.get(at) != Some(&dialect.delimiter) {
            return;
        }
        at += 1;
    }
}

fn quoted_end(record: &[u8], d: &Dialect, mut at: usize) -> usize {
    while let Some(c) = record.get(at).filter(|c| **c != d.delimiter) {
        if *c == d.quote {
            at = strict::closing(d, record, at + 1).unwrap_or(record.len());
        } else if matches!(*c, b'\r' | b'\n') {
            return at;
        } else {
            at += d.characters.width(record, at);
        }
    }
    at
}

fn escaped_end(record: &[u8], d: &Dialect, mut at: usize) -> usize {
    while let Some(c) = record.get(at).filter(|c| **c != d.delimiter) {
        if matches!(*c, b'\r' | b'\n') {
            return at;
        } else if *c != b'\\' {
            at += d.characters.width(record, at);
        } else if at + 1 == record.len() {
            return at;
        } else if d.characters.width(record, at + 1) == 2 {
            at += 3;
        } else {
            at += 1 + naive::text_escape(&record[at + 1..]).1;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::super::{Eol, FieldKind, Next, Record, Scanner};
    use super::*;

    fn next(seed: &mut u64) -> usize {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 33) as usize
    }

    /// Each raw field by itself is a record of one field, with the same value as in its record.
    #[test]
    fn a_raw_field_alone_means_what_it_means_in_its_record() {
        let escaped = Dialect { escape: b'\\', ..Dialect::csv() };
        let capital = Dialect { delimiter: b'A', ..Dialect::text() };
        let sjis = Dialect { delimiter: b'|', ..Dialect::csv() }.in_encoding("SJIS");
        let gbk = Dialect { delimiter: b'|', ..Dialect::text() }.in_encoding("GBK");
        let dialects = [Dialect::csv(), escaped, sjis, Dialect::text(), capital, gbk];
        let (mut seed, mut seen) = (7, 0);
        for turn in 0..90_000 {
            let dialect = &dialects[turn % dialects.len()];
            let bytes = b"\"\"\\,,\t\tA|.xb1aN\x81\x8e \n";
            let chunk: Vec<u8> =
                (0..next(&mut seed) % 14).map(|_| bytes[next(&mut seed) % bytes.len()]).collect();
            let mut record = Record::default();
            let mut scanner = Scanner::new(&chunk, true, dialect, Eol::Nl);
            if scanner.next_naive(&mut record) != Ok(Next::Record) {
                continue;
            }
            let mut fields = Vec::new();
            raw_fields(&chunk[..record.end], dialect, &mut fields);
            let said = chunk.escape_ascii();
            assert_eq!(fields.len(), record.len(), "{said}: {fields:?}");
            for (i, field) in fields.iter().enumerate() {
                let (kind, value) = record.field(&chunk, i);
                let alone = [&chunk[field.clone()], b"\n"].concat();
                let mut one = Record::default();
                let found = Scanner::new(&alone, true, dialect, Eol::Nl).next_naive(&mut one);
                assert_eq!((found, one.len()), (Ok(Next::Record), 1), "{said}: {field:?}");
                assert_eq!(one.field(&alone, 0), (kind, value), "{said}: {field:?}");
                seen += usize::from(matches!(kind, FieldKind::Quoted | FieldKind::Plain) && i > 0);
            }
        }
        assert!(seen > 20_000, "{seen}");
    }
}
