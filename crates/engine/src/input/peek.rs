//! Reads the first bytes of a source before the source itself is read.

use super::{content, decompress};
use crate::error::Error;
use crate::source::Source;
use std::io::{self, Read};
use std::sync::Arc;

/// Number of bytes that are read.
const PEEK: usize = 512 << 10;

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
    let (raw, cut) = source.look(most).map_err(|e| Error::io("open", &name, &e))?;
    let failed = |e: &io::Error| Error::io("read", &name, e);
    let (_, plain) = decompress::open(raw, &Arc::default()).map_err(|e| failed(&e))?;
    let mut bytes = Vec::new();
    let read = plain.take(most as u64 + 1).read_to_end(&mut bytes);
    // A compressed stream that was cut off may end anywhere.
    if let (Err(e), false) = (read, cut) {
        return Err(failed(&e));
    }
    let whole = bytes.len() <= most && !cut;
    bytes.truncate(most);
    Ok((bytes, whole))
}
