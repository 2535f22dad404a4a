//! Ranges of a source that an earlier load has loaded. They are checked by hash and skipped.
//!
//! The offsets are those of the decompressed stream. A range begins and ends where records do, so a
//! chunk is cut at both ends of it. The sizes of chunks may differ from those of the earlier load.

use super::chunk::{Chunk, Counts, Part};
use super::decompress;
use super::file::unreadable;
use super::reader::Reader;
use super::records::Layout;
use crate::error::Error;
use crate::options::InputOptions;
use crate::source::Source;
use blake3::{Hash, Hasher};
use pgsluice_core::scan::Eol;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

/// Number of bytes that are read and hashed at a time.
const BLOCK: usize = 1 << 20;

/// A range that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPiece {
    /// its bytes in the decompressed stream
    pub bytes: Range<u64>,
    /// its records and lines
    pub counts: Counts,
    /// the hash of the bytes
    pub hash: Hash,
}

/// The result of a comparison with the known ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    /// the source has other bytes in `bytes`, the range with this index; those before it have the
    /// same bytes
    Differs { pieces: usize, bytes: Range<u64> },
    /// the source ends before the end of the range with this index: the ranges before it have the
    /// same bytes, and `more` bytes follow the last of these
    Ended { pieces: usize, more: u64 },
    /// all ranges have the same bytes; this many bytes follow the last one
    Same(u64),
}

/// A stream whose reads are errors once `stopped` returns true.
pub struct StoppableRead<'s, R> {
    /// the bytes
    pub stream: R,
    /// whether the user has stopped the load
    pub stopped: &'s (dyn Fn() -> bool + Sync),
}

impl<R: Read> Read for StoppableRead<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match (self.stopped)() {
            true => Err(io::Error::other("stopped")),
            false => self.stream.read(buffer),
        }
    }
}

/// Compares a source with its known ranges, which must be in order. Does not look at records.
///
/// # Errors
///
/// The source cannot be read or is damaged, or `stopped` returns true.
pub fn compare(
    source: &dyn Source,
    known: &[KnownPiece],
    stopped: &(dyn Fn() -> bool + Sync),
) -> Result<Compared, Error> {
    let name = source.name();
    let failed = |e: io::Error| Error::io("read", &name, &e);
    let bytes = source.open().map_err(failed)?.bytes;
    let (compression, stream) = decompress::open(bytes, &Arc::default()).map_err(failed)?;
    let failed = |e: io::Error| unreadable(&name, compression, &e);
    let mut stream = StoppableRead { stream, stopped };
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    for (pieces, piece) in known.iter().enumerate() {
        let gap = piece.bytes.start.saturating_sub(at);
        let passed = take(&mut stream, gap, &mut block, |_| ()).map_err(failed)?;
        let length = piece.bytes.end - piece.bytes.start;
        let mut hasher = Hasher::new();
        let mut hash = |bytes: &[u8]| {
            hasher.update(bytes);
        };
        let hashed = take(&mut stream, length, &mut block, &mut hash).map_err(failed)?;
        if passed < gap || hashed < length {
            return Ok(Compared::Ended { pieces, more: passed + hashed });
        }
        if hasher.finalize() != piece.hash {
            return Ok(Compared::Differs { pieces, bytes: piece.bytes.clone() });
        }
        at = piece.bytes.end;
    }
    let more = take(&mut stream, u64::MAX, &mut block, |_| ()).map_err(failed)?;
    Ok(Compared::Same(more))
}

/// Reads up to `most` bytes. Returns how many there were.
fn take(
    stream: &mut dyn Read,
    most: u64,
    block: &mut [u8],
    mut each: impl FnMut(&[u8]),
) -> io::Result<u64> {
    let mut taken = 0;
    while taken < most {
        let room = usize::try_from(most - taken).unwrap_or(usize::MAX).min(block.len());
        match stream.read(&mut block[..room]) {
            Ok(0) => break,
            Ok(n) => {
                each(&block[..n]);
                taken += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(taken)
}

/// Returns where the first record begins that is in none of the known ranges of a source, whose
/// bytes are those of the ranges. What is between and after them may be comments, a footer and the
/// like, and then it has no records.
///
/// # Errors
///
/// The source cannot be read, or its ranges do not begin and end where its records do, or `stopped`
/// returns true.
pub fn outside(
    input: &InputOptions,
    source: &Arc<dyn Source>,
    known: &[KnownPiece],
    stopped: &(dyn Fn() -> bool + Sync),
) -> Result<Option<u64>, Error> {
    let input = InputOptions { sources: vec![source.clone()], notes: Vec::new(), ..input.clone() };
    let mut reader = Reader::open(&input)?;
    reader.pass_blank_ends(reader.width());
    reader.know(&[known.to_vec()], &[false], &Arc::default())?;
    let mut free = Vec::new();
    while let Some(chunk) = reader.next(free)? {
        if stopped() {
            return Err(Error::cancelled());
        }
        if !chunk.bytes.is_empty() {
            return Ok(Some(chunk.offset));
        }
        free = chunk.bytes;
    }
    Ok(None)
}

/// The hint for a source that has changed where an incomplete load has loaded it.
pub const CORRECTION: &str = "undo the change; then correct bad records without changing their \
    length, or use `on-error` reject without `share`; under another name, all of its records are loaded, \
    also those that are committed";

/// Returns the error for a source that has changed where it was loaded.
pub fn changed(name: &str, bytes: &Range<u64>) -> Error {
    Error::new(format!(
        "{name} has changed since it was loaded: bytes {} to {} are not the same",
        bytes.start, bytes.end
    ))
    .with_hint(CORRECTION)
}

/// Skips the known ranges of one source while it is read.
#[derive(Debug, Default)]
pub(super) struct KnownRanges {
    left: VecDeque<KnownPiece>,
    /// the hash of the first range up to this offset; most files never need these 2 kB
    begun: Option<Box<(Hasher, u64)>>,
    /// the end of the last range, if the source must not have bytes outside of them
    whole: Option<u64>,
}

impl KnownRanges {
    pub fn new(known: &[KnownPiece]) -> KnownRanges {
        KnownRanges { left: known.iter().cloned().collect(), ..KnownRanges::default() }
    }

    /// Declares that the ranges are all that the source had.
    pub fn whole(mut self) -> KnownRanges {
        self.whole = Some(self.left.back().map_or(0, |last| last.bytes.end));
        self
    }

    /// Checks that the chunk is empty, if the source must not have bytes outside of the ranges.
    pub fn check_rest(&self, name: &str, chunk: &Chunk) -> Result<(), Error> {
        match self.whole {
            Some(end) if !chunk.bytes.is_empty() => Err(Error::new(format!(
                "{name} has more bytes than when it was loaded: records follow byte {}, and it ended at byte {end}",
                chunk.offset
            ))
            .with_hint("`on-change` append loads the rest; other content needs another name")),
            _ => Ok(()),
        }
    }

    /// Returns the first range that was not read to its end. At the end of the source, it is
    /// missing.
    pub fn missing(&self) -> Option<&Range<u64>> {
        self.left.front().map(|piece| &piece.bytes)
    }

    /// Skips the known ranges at the start of the chunk. If another one follows within the chunk,
    /// returns the bytes from there on as a second chunk.
    pub fn pass(
        &mut self,
        name: &str,
        chunk: &mut Chunk,
        layout: &Layout,
    ) -> Result<Option<Chunk>, Error> {
        while let Some(next) = self.left.front() {
            let end = chunk.offset + chunk.bytes.len() as u64;
            let at = self.begun.as_deref().map_or(next.bytes.start, |(_, at)| *at);
            if chunk.bytes.is_empty() || at >= end {
                return Ok(None);
            }
            if at > chunk.offset {
                let length = (at - chunk.offset) as usize;
                if record_end(chunk, length, layout) != Some(length) {
                    return Err(changed(name, &next.bytes));
                }
                return Ok(Some(split(chunk, length, layout)));
            }
            if at < chunk.offset {
                return Err(changed(name, &next.bytes));
            }
            let to = end.min(next.bytes.end);
            let length = (to - at) as usize;
            let whole = to == next.bytes.end;
            let Some(passed) = (match whole {
                true => record_end(chunk, length, layout),
                false => Some(length),
            }) else {
                return Err(changed(name, &next.bytes));
            };
            let (mut hasher, _) = self.begun.take().map_or_else(|| (Hasher::new(), at), |b| *b);
            hasher.update(&chunk.bytes[..length]);
            drop_first(chunk, passed, layout);
            if !whole {
                self.begun = Some(Box::new((hasher, to)));
            } else if hasher.finalize() != next.hash {
                return Err(changed(name, &next.bytes));
            } else {
                chunk.known += next.counts;
                self.left.pop_front();
            }
        }
        Ok(None)
    }
}

/// Checks that a record ends `length` bytes into the chunk, and returns where. A change outside the
/// ranges may have moved the ends of records: by an open quote, or by bytes after a last line
/// without a line end. If only that line end was added, no record has changed, and it is included.
fn record_end(chunk: &Chunk, length: usize, layout: &Layout) -> Option<usize> {
    if length == chunk.bytes.len() {
        return Some(length);
    }
    let mut records = chunk.records(layout);
    while records.position() < length && records.next().is_some() {}
    let end = records.position();
    let line_end = [&b""[..], b"\n", b"\r\n", b"\r"].contains(&chunk.bytes.get(length..end)?);
    let same = end == length || !chunk.bytes[..length].ends_with(b"\r");
    (chunk.part == Part::Whole && line_end && same).then_some(end)
}

/// Removes the first bytes of a chunk.
fn drop_first(chunk: &mut Chunk, length: usize, layout: &Layout) {
    if chunk.eol == Eol::Unknown && length < chunk.bytes.len() {
        chunk.eol = chunk.line_end(layout);
    }
    chunk.bytes.drain(..length);
    chunk.offset += length as u64;
    if chunk.bytes.is_empty() {
        // No part of a record in pieces is left that could be counted again.
        chunk.part = Part::Whole;
        chunk.damaged = None;
    }
}

/// Splits a chunk after its first bytes. Returns the rest.
fn split(chunk: &mut Chunk, length: usize, layout: &Layout) -> Chunk {
    let eol = chunk.line_end(layout);
    let offset = chunk.offset + length as u64;
    let rest = Chunk {
        offset,
        start: offset,
        eol,
        passed: Counts::default(),
        known: Counts::default(),
        bytes: chunk.bytes.split_off(length),
        ..*chunk
    };
    chunk.last = false;
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::BytesSource;
    use pgsluice_core::scan::Dialect;

    fn piece(data: &[u8], bytes: Range<usize>) -> KnownPiece {
        let part = &data[bytes.clone()];
        let lines = memchr::memchr_iter(b'\n', part).count() as u64;
        KnownPiece {
            bytes: bytes.start as u64..bytes.end as u64,
            counts: Counts { records: lines, lines },
            hash: blake3::hash(part),
        }
    }

    /// Returns the rest of the data, with the offset and the number of records before each part.
    fn left(data: &[u8], known: &[KnownPiece]) -> Result<Vec<(u64, u64, Vec<u8>)>, Error> {
        let input = InputOptions {
            sources: vec![Arc::new(BytesSource::new("rows", data))],
            ..InputOptions::default()
        };
        let mut reader = Reader::open(&input)?;
        reader.know(&[known.to_vec()], &[false], &Arc::default())?;
        let layout = Layout::Lines(Dialect::csv());
        let (mut found, mut before) = (Vec::new(), Counts::default());
        while let Some(chunk) = reader.next(Vec::new())? {
            before += chunk.passed;
            before += chunk.known;
            if !chunk.bytes.is_empty() {
                found.push((chunk.offset, before.records, chunk.bytes.clone()));
            }
            before += chunk.count(&layout);
        }
        Ok(found)
    }

    #[test]
    fn known_ranges_are_passed_over_wherever_chunks_end() {
        let lines = |n: std::ops::Range<u32>| -> Vec<u8> {
            n.flat_map(|i| format!("{i:06},some text\n").into_bytes()).collect()
        };
        let data = lines(0..200_000);
        let size = 17;
        for cuts in [
            vec![0..3, 3..5],
            vec![5..6, 6..90_000, 150_000..150_001],
            vec![0..1, 199_999..200_000],
        ] {
            let known: Vec<_> =
                cuts.iter().map(|c| piece(&data, c.start * size..c.end * size)).collect();
            let mut rest = Vec::new();
            for (offset, before, bytes) in left(&data, &known).unwrap() {
                assert_eq!(offset, before * size as u64);
                assert!(data[offset as usize..].starts_with(&bytes));
                rest.extend(bytes);
            }
            let mut expected = Vec::new();
            let mut at = 0;
            for cut in &cuts {
                expected.extend(lines(at as u32..cut.start as u32));
                at = cut.end;
            }
            expected.extend(lines(at as u32..200_000));
            assert!(rest == expected, "{cuts:?}");
        }
        assert_eq!(left(&data, &[piece(&data, 0..data.len())]).unwrap(), []);
    }

    #[test]
    fn other_bytes_are_an_error() {
        let data = b"a,1\nb,2\nc,3\n".to_vec();
        let mut other = data.clone();
        other[5] = b';';
        let known = [piece(&data, 0..4), piece(&data, 4..8)];
        let ended = |pieces, more| Compared::Ended { pieces, more };
        for (now, differs, compared) in [
            (other.as_slice(), 4..8, Compared::Differs { pieces: 1, bytes: 4..8 }),
            (&data[..4], 4..8, ended(1, 0)),
            (&data[..6], 4..8, ended(1, 2)),
            (&b""[..], 0..4, ended(0, 0)),
        ] {
            let source = BytesSource::new("rows", now);
            assert_eq!(compare(&source, &known, &|| false).unwrap(), compared);
            let said = left(now, &known).unwrap_err().to_string();
            let bytes = format!("bytes {} to {}", differs.start, differs.end);
            assert!(said.contains(&bytes), "{said}");
        }
        // The bytes are the same, but the records are not.
        let open = b"z,\"\na,1\nb,2\n\"\n".to_vec();
        assert!(left(&open, &[piece(&open, 4..8)]).is_err());
        let grown = b"a,1\nb,23\n".to_vec();
        assert!(left(&grown, &[piece(&grown, 0..7)]).is_err());
        let source = BytesSource::new("rows", data.as_slice());
        assert_eq!(compare(&source, &known, &|| false).unwrap(), Compared::Same(4));
    }
}
