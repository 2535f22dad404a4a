//! Files that are out of the ordinary, chunk by chunk.

use crate::frame::Frame;
use crate::input::{Chunk, Layout, Reader};
use crate::options::{FileFormat, InputOptions};
use crate::source::BytesSource;
use pgsluice_core::scan::Dialect;
use std::sync::Arc;

/// All chunks of a file with records.
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

#[test]
fn a_malformed_record_does_not_hide_the_end_of_the_data() {
    let mut bytes = b"0\tz\n1\ta\rb\n2\tok\n\\.\n".to_vec();
    bytes.extend(b"5\tx\n".repeat(150_000));
    let chunks = chunks(&bytes, &Dialect::text(), Frame::default(), |_| ());
    let layout = Layout::Lines(Dialect::text());
    assert_eq!(chunks.iter().map(|chunk| chunk.count(&layout).records).sum::<u64>(), 3);
}
