//! The first bytes of a source, before it is read.

use super::{content, decompress};
use crate::error::Error;
use crate::options::Source;
use pgsluice_core::scan::Dialect;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// How many bytes are read.
const PEEK: usize = 512 << 10;

/// What was read of standard input, which cannot be read a second time.
static AHEAD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Standard input, with what a peek has read of it.
pub(super) fn stdin() -> Box<dyn Read + Send> {
    let ahead = std::mem::take(&mut *AHEAD.lock().unwrap_or_else(PoisonError::into_inner));
    Box::new(Cursor::new(ahead).chain(io::stdin()))
}

/// The first bytes of a source.
#[derive(Debug)]
pub struct Peek {
    /// decompressed, without a byte order mark
    pub bytes: Vec<u8>,
    /// they are all that there is
    pub whole: bool,
}

/// Reads the first bytes of a source. What is read of standard input is kept for its reader.
///
/// # Errors
///
/// The source cannot be read, or is neither CSV nor text.
pub fn peek(source: &Source) -> Result<Peek, Error> {
    let name = source.name();
    let failed = |e: &io::Error| Error::io("read", &name, e);
    let (raw, cut): (Box<dyn Read + Send>, bool) = match source {
        Source::Stdin => {
            let mut ahead = AHEAD.lock().unwrap_or_else(PoisonError::into_inner);
            let missing = PEEK.saturating_sub(ahead.len()) as u64;
            io::stdin().take(missing).read_to_end(&mut ahead).map_err(|e| failed(&e))?;
            let cut = ahead.len() == PEEK;
            (Box::new(Cursor::new(ahead.clone())), cut)
        }
        Source::File(path) => {
            let file = File::open(path).map_err(|e| Error::io("open", &name, &e))?;
            if file.metadata().is_ok_and(|facts| facts.is_dir()) {
                return Err(Error::new(format!("cannot open {name}: it is a folder")));
            }
            (Box::new(file), false)
        }
    };
    let (_, source) =
        decompress::open(raw, &Arc::new(AtomicU64::new(0))).map_err(|e| failed(&e))?;
    let mut bytes = Vec::new();
    // What of standard input is compressed may end anywhere here.
    let read = source.take(PEEK as u64 + 1).read_to_end(&mut bytes);
    if let Err(e) = read {
        if !cut {
            return Err(failed(&e));
        }
    }
    let whole = bytes.len() <= PEEK && !cut;
    bytes.truncate(PEEK);
    if let Some(other) = content::other(&bytes, &Dialect::csv(), true) {
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
