//! Reads the first bytes of a source before the source itself is read.

use super::file::unreadable;
use super::{content, decompress};
use crate::error::Error;
use crate::source::Source;
use std::io::{self, Read};
use std::sync::Arc;

/// Number of bytes that are read.
const PEEK: usize = 512 << 10;

/// The most stored bytes of a stream that are read for its first bytes. Blocks are shorter: lz4 has
/// the longest ones, of 4 MB.
const MOST_STORED: usize = 8 << 20;

/// The first bytes of a source.
#[derive(Debug)]
pub struct Peek {
    /// decompressed, without a byte order mark
    pub bytes: Vec<u8>,
    /// they are the whole source
    pub whole: bool,
}

/// Reads the first bytes of a source. If it is a stream, its reader reads them again.
///
/// # Errors
///
/// The source cannot be read, or is neither CSV nor text.
pub fn peek(source: &dyn Source) -> Result<Peek, Error> {
    let (name, (mut bytes, whole)) = (source.name(), first_bytes(source, PEEK)?);
    if let Some(other) = content::other_than_csv(&bytes) {
        return Err(
            Error::data(format!("{name} {}, and not CSV", other.what)).with_hint(other.hint)
        );
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        let message = format!("{name} is UTF-16, which no server reads");
        return Err(Error::data(message).with_hint(content::UTF16));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    Ok(Peek { bytes, whole })
}

/// Returns the first `most` bytes of a source, decompressed, and whether they are the whole source.
///
/// # Errors
///
/// The source cannot be read.
pub(super) fn first_bytes(source: &dyn Source, most: usize) -> Result<(Vec<u8>, bool), Error> {
    let name = source.name();
    let mut stored = most;
    loop {
        let (raw, cut) = source.look(stored).map_err(|e| Error::io("open", &name, &e))?;
        let (compression, plain) =
            decompress::open(raw, &Arc::default()).map_err(|e| Error::io("read", &name, &e))?;
        let mut bytes = Vec::new();
        let read = plain.take(most as u64 + 1).read_to_end(&mut bytes);
        // A compressed stream that was cut off may end anywhere, also within its first block.
        if cut && bytes.len() < most && stored < MOST_STORED {
            stored *= 2;
            continue;
        }
        if cut && bytes.is_empty() {
            let message = format!("its first {} MB decompress to nothing", MOST_STORED >> 20);
            return Err(unreadable(&name, compression, &io::Error::other(message)));
        }
        if let (Err(e), false) = (read, cut) {
            return Err(unreadable(&name, compression, &e));
        }
        let whole = bytes.len() <= most && !cut;
        bytes.truncate(most);
        return Ok((bytes, whole));
    }
}

#[cfg(all(test, feature = "gzip"))]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::source::StreamSource;

    /// A stream whose first bytes decompress to nothing is damaged, and not empty.
    #[test]
    fn a_stream_that_decompresses_to_nothing_is_an_error() {
        // The name in the header has no end.
        let mut bytes = b"\x1f\x8b\x08\x08\0\0\0\0\0\x03".to_vec();
        bytes.resize(MOST_STORED + 1, b'x');
        let stream = StreamSource::new("pipe", io::Cursor::new(bytes));
        let error = peek(&stream).unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert_eq!(error.message(), "cannot read pipe: its first 8 MB decompress to nothing");
        assert!(error.hint().is_some_and(|hint| hint.contains("gzip; is it whole?")));
    }
}
