//! Unusual files, chunk by chunk.

use super::CHUNK;
use crate::frame::Frame;
use crate::input::{Chunk, Layout, Reader};
use crate::options::{FileFormat, InputOptions};
use crate::source::BytesSource;
use crate::testing::computed;
use pgsluice_core::scan::{Dialect, StrayQuotes};
use std::sync::Arc;

/// Returns all chunks of a file that have bytes.
fn chunks(bytes: &[u8], dialect: &Dialect, frame: Frame, set: impl Fn(&mut Reader)) -> Vec<Chunk> {
    let input = InputOptions {
        sources: vec![Arc::new(BytesSource::new("rows", bytes))],
        format: FileFormat::Delimited(dialect.clone()),
        frame,
        ..InputOptions::default()
    };
    let mut reader = Reader::open(&input).unwrap();
    set(&mut reader);
    let next = || reader.next(Vec::new()).unwrap();
    std::iter::from_fn(next).filter(|chunk| !chunk.bytes.is_empty()).collect()
}

fn rows(chunks: &[Chunk]) -> String {
    chunks.iter().map(|chunk| String::from_utf8_lossy(&chunk.bytes)).collect()
}

#[test]
fn a_malformed_record_does_not_hide_the_end_of_the_data() {
    let mut bytes = b"0\tz\n1\ta\rb\n2\tok\n\\.\n".to_vec();
    bytes.extend(b"5\tx\n".repeat(150_000));
    let chunks = chunks(&bytes, &Dialect::text(), Frame::default(), |_| ());
    let layout = Layout::Lines(Dialect::text());
    assert_eq!(chunks.iter().map(|chunk| chunk.count(&layout).records).sum::<u64>(), 3);
}

#[test]
fn comments_take_time_by_their_lines_alone() {
    let strict = Dialect { stray_quotes: StrayQuotes::Literal, ..Dialect::csv() };
    for (record, dialect) in [("1,x\n", &strict), ("1,x\"y\n", &strict), ("1,\"\n\",\n", &strict)] {
        let bytes = format!("{record}# c\n").repeat(20_000);
        let frame = Frame { comment: Some(b'#'), ..Frame::default() };
        let before = computed();
        let chunks = chunks(bytes.as_bytes(), dialect, frame, |_| ());
        let took = computed() - before;
        assert!(took < 500, "{took} ms for {record:?}");
        let length = record.len() as u64 + 4;
        for (i, chunk) in chunks.iter().enumerate() {
            assert_eq!(chunk.bytes, record.as_bytes());
            assert_eq!((chunk.offset, chunk.passed.lines), (i as u64 * length, u64::from(i > 0)));
        }
        assert_eq!(chunks.len(), 20_000);
    }
}

/// Empty lines at the end, and stray quotes at the start of many fields of a line.
#[test]
fn odd_files_take_time_by_their_length_alone() {
    let stray = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
    for (bytes, dialect, records) in [
        ([&b"1\ta"[..], &b"\n".repeat(200_000)].concat(), &Dialect::text(), 1),
        (b"\"a,".repeat(270_000), &stray, 1),
    ] {
        let before = computed();
        let chunks = chunks(&bytes, dialect, Frame::default(), |reader| reader.pass_blank_ends(2));
        let layout = Layout::Lines(dialect.clone());
        let found: u64 = chunks.iter().map(|chunk| chunk.count(&layout).records).sum();
        let took = computed() - before;
        assert_eq!(found, records);
        assert!(took < 2_000, "{took} ms for {records} records");
    }
}

/// A line feed within quotes does not end a line if lines end with CR, and the other way round.
#[test]
fn lines_around_records_end_as_the_first_record_does() {
    let csv = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
    let (head, footer, comment) = (1, 1, Some(b'#'));
    for (bytes, left) in [
        ("title\r1,\"x\ny\"\r2,z\rTotal\r", "1,\"x\ny\"\r2,z\r"),
        ("1,\"x\ny\"\r2,z\r3,\"\n\"\rTotal\r", "2,z\r3,\"\n\"\r"),
        ("title\r# c\r1,\"x\ny\"\r# c\r2,z\rTotal\r", "1,\"x\ny\"\r2,z\r"),
        ("title\n1,\"x\ry\"\n2,z\nTotal\n", "1,\"x\ry\"\n2,z\n"),
        ("1,\"x\ry\"\n2,z\nTotal\n", "2,z\n"),
        ("title\r\n1,\"x\ny\"\r\n2,z\r\nTotal\r\n", "1,\"x\ny\"\r\n2,z\r\n"),
    ] {
        let frame = Frame { skip_lines: head, skip_footer: footer, comment, ..Frame::default() };
        assert_eq!(rows(&chunks(bytes.as_bytes(), &csv, frame, |_| ())), left, "{bytes:?}");
    }
    let only = Frame { comment, ..Frame::default() };
    assert_eq!(rows(&chunks(b"# c\r1,\"x\ny\"\r", &csv, only, |_| ())), "1,\"x\ny\"\r");
}

/// With COPY's rule on quotes, a stray quote opens quotes in a record, and not in a line before the
/// records.
#[test]
fn quotes_of_skipped_lines_hide_no_line_end() {
    for (bytes, left, skip_lines) in [
        ("5\" tubes\n1,\"a\rb\"\n2,c\nTotal\n", "1,\"a\rb\"\n2,c\n", 1),
        ("5\" tubes\r1,\"a\nb\"\r2,c\rTotal\r", "1,\"a\nb\"\r2,c\r", 1),
        ("# 5\" tubes\n1,\"a\rb\"\n2,c\nTotal\n", "1,\"a\rb\"\n2,c\n", 0),
        ("1,5\" x\ny\" z\r# 5\"\r2,c\rTotal\r", "1,5\" x\ny\" z\r2,c\r", 0),
    ] {
        let comment = Some(b'#');
        let frame = Frame { skip_lines, skip_footer: 1, comment, ..Frame::default() };
        let found = rows(&chunks(bytes.as_bytes(), &Dialect::csv(), frame, |_| ()));
        assert_eq!(found, left, "{bytes:?}");
    }
}

/// The cutter is lost after a stray quote in a record that is longer than a chunk. The stray quote of
/// the next such record is marked, too.
#[test]
fn stray_quotes_of_long_records_stay_marked() {
    let csv = Dialect { stray_quotes: StrayQuotes::Literal, ..Dialect::csv() };
    let long = "x".repeat(600 << 10);
    let mut bytes = format!("1,5\" pipe,{long}\n2,6\",{long}\n").into_bytes();
    bytes.extend(b"3,a,b\n".repeat(300_000));
    let chunks = chunks(&bytes, &csv, Frame::default(), |_| ());
    let layout = Layout::Lines(csv);
    assert!(chunks[0].bytes.ends_with(b"x\n") && chunks[1].bytes.starts_with(b"2,6\","));
    assert_eq!(chunks.iter().map(|chunk| chunk.strays(&layout)).sum::<u64>(), 2);
    assert!(rows(&chunks).as_bytes() == bytes);
}

/// Chunks have whole records, wherever they are cut. Nothing is lost, and stray quotes stay marked.
#[test]
fn chunks_have_no_more_records_than_the_reader_asks_for() {
    let csv = Dialect { stray_quotes: StrayQuotes::Literal, ..Dialect::csv() };
    let mut bytes = b"1\n".repeat(100_000);
    bytes.extend(b"2,\"\n\n\"\n3\"\n".repeat(50_000));
    bytes.extend(b"\n".repeat(5_000));
    let limit = |reader: &mut Reader| {
        reader.limit_chunks(2_000);
        reader.pass_blank_ends(2);
    };
    let chunks = chunks(&bytes, &csv, Frame::default(), limit);
    let layout = Layout::Lines(csv);
    let (mut offset, mut strays) = (0, 0);
    for chunk in &chunks {
        assert_eq!(chunk.offset, offset);
        offset += chunk.bytes.len() as u64;
        strays += chunk.strays(&layout);
        let records = chunk.count(&layout).records;
        assert!(records <= 2_000 && (records > 1_000 || chunk.last), "{records}");
    }
    assert_eq!(rows(&chunks).as_bytes(), &bytes[..bytes.len() - 5_000]);
    assert_eq!(strays, 50_000);
}

/// A long record makes a long chunk, and so do empty lines that may be the last ones of the file.
#[test]
fn a_long_chunk_has_no_more_records_than_fit_in_another() {
    let empty = |lines: usize| "\n".repeat(lines);
    let long = "x".repeat(2_200_000);
    for (bytes, passed) in [
        (format!("1,a\n{}2,b\n", empty(600_000)), 0),
        (format!("1,a\n{}2,b\n", empty(4_500_000)), 0),
        (format!("1,{long}\n{}", "7,\n".repeat(600_000)), 0),
        (format!("1,a\n{}", empty(600_000)), 600_000),
    ] {
        let (csv, bytes) = (Dialect::csv(), bytes.as_bytes());
        let chunks = chunks(bytes, &csv, Frame::default(), |reader| reader.pass_blank_ends(2));
        let layout = Layout::Lines(csv);
        let most = chunks.iter().map(|chunk| chunk.count(&layout).records).max();
        assert!(most <= Some(CHUNK as u64), "{most:?} of {} bytes", bytes.len());
        assert!(rows(&chunks).as_bytes() == &bytes[..bytes.len() - passed], "{}", bytes.len());
    }
}
