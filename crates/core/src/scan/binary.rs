//! PGCOPY: finds tuples and their fields in the stream of `FORMAT binary`.
//!
//! The rules are those of `ReceiveCopyBinaryHeader`, the binary half of `NextCopyFrom` and
//! `CopyReadBinaryAttribute` of `src/backend/commands/copyfromparse.c`. Values are not interpreted.
//! As in the server, a stream may end without its trailer at any start of a tuple, and a single
//! last byte of a field count is ignored.

use std::fmt;
use std::ops::Range;

use super::MAX_RECORD;
use crate::memory::Fallible;

/// Bytes of a header before its extension.
pub const HEADER_LEN: usize = 19;

const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
const WITH_OIDS: u32 = 1 << 16;

/// The reason why a stream is not PGCOPY. The messages are the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// the first 11 bytes are not the signature
    Signature,
    /// the stream ends before the end of the flags
    MissingFlags,
    /// a stream with OIDs, which PostgreSQL wrote before 12
    WithOids,
    /// a flag that changes the format
    CriticalFlags,
    /// the length of the header's extension is missing or negative
    MissingLength,
    /// the stream ends in the header's extension
    WrongLength,
    /// a tuple with another number of fields
    FieldCount {
        /// the number in the stream
        found: i16,
        /// the number of columns to load
        expected: i16,
    },
    /// a negative length other than -1, which is NULL
    FieldSize,
    /// the stream ends within a tuple
    UnexpectedEof,
    /// bytes after the trailer
    AfterTrailer,
    /// a field of 1 GB or more
    TooLong,
    /// there is not enough memory for a tuple's fields, which may be valid
    OutOfMemory,
}

impl Corrupt {
    /// The SQLSTATE that the server reports.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Corrupt::TooLong => "54000",
            Corrupt::OutOfMemory => "53200",
            _ => "22P04",
        }
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Corrupt::Signature => "COPY file signature not recognized",
            Corrupt::MissingFlags => "invalid COPY file header (missing flags)",
            Corrupt::WithOids => "invalid COPY file header (WITH OIDS)",
            Corrupt::CriticalFlags => "unrecognized critical flags in COPY file header",
            Corrupt::MissingLength => "invalid COPY file header (missing length)",
            Corrupt::WrongLength => "invalid COPY file header (wrong length)",
            Corrupt::FieldCount { found, expected } => {
                return write!(f, "row field count is {found}, expected {expected}");
            }
            Corrupt::FieldSize => "invalid field size",
            Corrupt::UnexpectedEof => "unexpected EOF in COPY data",
            Corrupt::AfterTrailer => "received copy data after EOF marker",
            Corrupt::TooLong => "field is longer than the server's limit of 1 GB",
            Corrupt::OutOfMemory => "out of memory",
        })
    }
}

impl std::error::Error for Corrupt {}

/// Reads the header at the start of a stream. `bytes` has [`HEADER_LEN`] bytes, or fewer if the
/// stream ends before. Returns the length of the extension that follows. The caller must skip it,
/// with [`Corrupt::WrongLength`] if the stream ends in it.
///
/// # Errors
///
/// The server's error.
pub fn header(bytes: &[u8]) -> Result<u32, Corrupt> {
    let rest = bytes.strip_prefix(SIGNATURE).ok_or(Corrupt::Signature)?;
    let (flags, rest) = rest.split_first_chunk().ok_or(Corrupt::MissingFlags)?;
    let flags = u32::from_be_bytes(*flags);
    if flags & WITH_OIDS != 0 {
        return Err(Corrupt::WithOids);
    }
    if flags >> 16 != 0 {
        return Err(Corrupt::CriticalFlags);
    }
    let length = rest.first_chunk().map(|b| i32::from_be_bytes(*b));
    length.and_then(|l| u32::try_from(l).ok()).ok_or(Corrupt::MissingLength)
}

/// The size of a field from its length word; `None` for NULL.
fn field_size(size: i32) -> Result<Option<usize>, Corrupt> {
    match usize::try_from(size) {
        Ok(size) if size >= MAX_RECORD => Err(Corrupt::TooLong),
        Ok(size) => Ok(Some(size)),
        Err(_) if size == -1 => Ok(None),
        Err(_) => Err(Corrupt::FieldSize),
    }
}

/// Reads tuples from a chunk in memory.
#[derive(Debug)]
pub struct Tuples<'c> {
    chunk: &'c [u8],
    position: usize,
    columns: i16,
    tuples: u64,
    ended: bool,
}

impl<'c> Tuples<'c> {
    /// Starts at a tuple or at the trailer. The chunk must be the rest of the stream.
    pub fn new(chunk: &'c [u8], columns: i16) -> Self {
        Tuples { chunk, position: 0, columns, tuples: 0, ended: false }
    }

    /// The position of the next tuple.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The line number of the next tuple in COPY's CONTEXT, from 1.
    pub fn line(&self) -> u64 {
        self.tuples + 1
    }

    /// Reads the fields of the next tuple, with `None` for NULL. Returns false at the end.
    ///
    /// # Errors
    ///
    /// The server's error. `fields` then holds the fields before the faulty one.
    pub fn next(&mut self, fields: &mut Vec<Option<Range<usize>>>) -> Result<bool, Corrupt> {
        fields.clear();
        let rest = &self.chunk[self.position..];
        let Some((count, _)) = rest.split_first_chunk().filter(|_| !self.ended) else {
            return Ok(false);
        };
        let count = i16::from_be_bytes(*count);
        let mut at = self.position + 2;
        if count == -1 {
            if at < self.chunk.len() {
                return Err(Corrupt::AfterTrailer);
            }
            self.ended = true;
            return Ok(false);
        }
        if count != self.columns {
            return Err(Corrupt::FieldCount { found: count, expected: self.columns });
        }
        fields.reserve_room(usize::from(count.unsigned_abs())).map_err(|_| Corrupt::OutOfMemory)?;
        for _ in 0..count {
            let size = self.chunk[at..].first_chunk().ok_or(Corrupt::UnexpectedEof)?;
            at += 4;
            let Some(size) = field_size(i32::from_be_bytes(*size))? else {
                fields.push_within(None);
                continue;
            };
            if size > self.chunk.len() - at {
                return Err(Corrupt::UnexpectedEof);
            }
            fields.push_within(Some(at..at + size));
            at += size;
        }
        self.position = at;
        self.tuples += 1;
        Ok(true)
    }
}

/// The tuple ends in a block of a binary stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TupleCuts {
    /// the end of the first tuple that ends in this block
    pub first: Option<usize>,
    /// the end of the last one; in an ended stream, the trailer follows it
    pub last: Option<usize>,
    /// the number of tuples in the stream so far
    pub tuples: u64,
    /// the trailer has been read
    pub ended: bool,
}

/// The kind of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// the number of fields of a tuple, or the trailer
    Count,
    /// the length of a field
    Size,
    /// this many bytes of a field
    Value(usize),
    Nothing,
}

/// Follows a binary stream after its header, block by block. It uses a few words of memory, however
/// long a field is.
#[derive(Clone, Debug)]
#[allow(clippy::disallowed_methods)] // only the loader clones it
pub struct TupleSplitter {
    columns: i16,
    expect: Expect,
    /// further fields of the tuple, without the current one
    left: i16,
    /// the bytes of a number that is split between two blocks
    number: [u8; 4],
    have: usize,
    tuples: u64,
}

impl TupleSplitter {
    /// Starts at a tuple.
    pub fn new(columns: i16) -> Self {
        let expect = Expect::Count;
        TupleSplitter { columns, expect, left: 0, number: [0; 4], have: 0, tuples: 0 }
    }

    /// The line number of the current tuple in COPY's CONTEXT, from 1.
    pub fn line(&self) -> u64 {
        self.tuples + 1
    }

    /// The index of the current column, within a tuple.
    pub fn column(&self) -> Option<usize> {
        let begun = matches!(self.expect, Expect::Size | Expect::Value(_));
        begun.then(|| (self.columns - self.left - 1) as usize)
    }

    /// Reads the next bytes of the stream. The second value is the server's error. Cuts before the
    /// error are valid. After an error, no more bytes may be fed.
    pub fn feed(&mut self, block: &[u8]) -> (TupleCuts, Result<(), Corrupt>) {
        let mut cuts = TupleCuts::default();
        let followed = self.follow(block, &mut cuts);
        cuts.tuples = self.tuples;
        cuts.ended = self.expect == Expect::Nothing;
        (cuts, followed)
    }

    fn follow(&mut self, block: &[u8], cuts: &mut TupleCuts) -> Result<(), Corrupt> {
        let mut at = 0;
        loop {
            match self.expect {
                Expect::Count => {
                    let Some(count) = self.number::<2>(block, &mut at) else { break };
                    let found = i16::from_be_bytes(count);
                    if found == -1 {
                        self.expect = Expect::Nothing;
                        continue;
                    }
                    if found != self.columns {
                        return Err(Corrupt::FieldCount { found, expected: self.columns });
                    }
                    self.left = found;
                    self.next_field(at, cuts);
                }
                Expect::Size => {
                    let Some(size) = self.number::<4>(block, &mut at) else { break };
                    match field_size(i32::from_be_bytes(size))? {
                        Some(size) => self.expect = Expect::Value(size),
                        None => self.next_field(at, cuts),
                    }
                }
                Expect::Value(size) => {
                    let there = size.min(block.len() - at);
                    at += there;
                    self.expect = Expect::Value(size - there);
                    if there < size {
                        break;
                    }
                    self.next_field(at, cuts);
                }
                Expect::Nothing if at < block.len() => return Err(Corrupt::AfterTrailer),
                Expect::Nothing => break,
            }
        }
        Ok(())
    }

    /// Ends the stream.
    ///
    /// # Errors
    ///
    /// [`Corrupt::UnexpectedEof`] within a tuple.
    pub fn finish(&self) -> Result<(), Corrupt> {
        match self.expect {
            Expect::Count | Expect::Nothing => Ok(()),
            Expect::Size | Expect::Value(_) => Err(Corrupt::UnexpectedEof),
        }
    }

    fn next_field(&mut self, at: usize, cuts: &mut TupleCuts) {
        if self.left > 0 {
            self.left -= 1;
            self.expect = Expect::Size;
            return;
        }
        self.expect = Expect::Count;
        self.tuples += 1;
        cuts.first = cuts.first.or(Some(at));
        cuts.last = Some(at);
    }

    /// The bytes of a number, after its last byte has been read.
    fn number<const N: usize>(&mut self, block: &[u8], at: &mut usize) -> Option<[u8; N]> {
        let there = (N - self.have).min(block.len() - *at);
        self.number[self.have..self.have + there].copy_from_slice(&block[*at..*at + there]);
        *at += there;
        self.have = (self.have + there) % N;
        if there == 0 || self.have > 0 {
            return None;
        }
        self.number.first_chunk().copied()
    }
}
