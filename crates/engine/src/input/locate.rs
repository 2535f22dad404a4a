//! Finds the place of a record that is known only by its number.

use super::{Counts, Layout, Part, Reader};
use crate::options::InputOptions;

/// Whether all sources can be read a second time. A pipe cannot.
pub fn can_be_read_again(input: &InputOptions) -> bool {
    input.sources.iter().all(|source| source.can_be_read_again())
}

/// Reads a source again, and returns the last line and the byte offset of record `record` (from 1).
/// `None` if the source cannot be read a second time or has no such record.
pub fn locate(
    input: &InputOptions,
    layout: &Layout,
    source: usize,
    record: u64,
) -> Option<(u64, u64)> {
    let sources = vec![input.sources.get(source)?.clone()];
    if !sources[0].can_be_read_again() {
        return None;
    }
    let again = InputOptions { sources, skip: 0, limit: None, ..input.clone() };
    let mut reader = Reader::open(&again).ok()?;
    reader.read_as(layout);
    let mut before = Counts::default();
    let mut free = Vec::new();
    while let Some(chunk) = reader.next(free).ok()? {
        before += chunk.passed;
        let counts = chunk.count(layout);
        if chunk.part == Part::Whole {
            if before.records + counts.records >= record {
                let index = record - before.records - 1;
                let (_, start, end) = chunk.record_at(layout, index);
                let line = before.lines + chunk.lines_to(layout, end);
                return Some((line, chunk.offset + start as u64));
            }
        } else if chunk.part == Part::LastPiece && before.records + 1 == record {
            return Some((before.lines + counts.lines, chunk.start));
        }
        before += counts;
        free = chunk.bytes;
    }
    None
}
