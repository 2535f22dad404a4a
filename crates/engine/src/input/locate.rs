//! Where a record is that is known by its number alone.

use super::{Counts, Layout, Part, Reader};
use crate::options::{InputOptions, Source};
use std::path::PathBuf;

/// Whether all sources can be read a second time: a pipe cannot.
pub fn can_be_read_again(input: &InputOptions) -> bool {
    let is_file = |path: &PathBuf| path.metadata().is_ok_and(|facts| facts.is_file());
    input.sources.iter().all(|source| matches!(source, Source::File(path) if is_file(path)))
}

/// The last line and the byte offset of record `record` (from 1) of a source,
/// which is read anew. `None` where it cannot be read a second time.
pub fn locate(
    input: &InputOptions,
    layout: &Layout,
    source: usize,
    record: u64,
) -> Option<(u64, u64)> {
    let Source::File(path) = input.sources.get(source)? else { return None };
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let sources = vec![input.sources[source].clone()];
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
