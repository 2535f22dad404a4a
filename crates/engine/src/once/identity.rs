//! How a file is recognised: first by name, size and time, then by content if necessary.

use crate::error::Error;
use crate::input::{Reader, StoppableRead};
use crate::options::InputOptions;
use crate::source::Source;
use crate::text::text;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The number of bytes at each end of a file that are hashed, to find files that may have the same
/// content.
pub(super) const END: u64 = 64 << 10;

/// The hash of a stream, whose bytes cannot be read beforehand: an empty `bytea`.
const NONE: &str = "\\x";

/// The number of bytes in one read.
const BLOCK: usize = 1 << 20;

/// The metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// the path, without symbolic links
    pub name: String,
    /// bytes as they are stored
    pub size: u64,
    /// time of the last change, in nanoseconds since 1970
    pub modified: i64,
    /// it can be read only once, and only its name is available before that
    pub stream: bool,
}

/// The hashes of the two ends of a file as it is stored, and of what precedes its records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    pub head: String,
    pub tail: String,
    /// of the decompressed header; `None` if it does not count or cannot be read
    pub header: Option<String>,
}

/// The hash of the header of a source, and of a line before the header that names the delimiter.
pub(super) fn header_of(input: &InputOptions, source: &Arc<dyn Source>) -> Option<String> {
    let input = InputOptions { sources: vec![source.clone()], ..input.clone() };
    // If the file cannot be read, the load reports it later.
    let head = Reader::open(&input).ok()?.head()?;
    Some(format!("\\x{}", blake3::hash(&head).to_hex()))
}

impl Seen {
    /// Reads the metadata of a source. `name` is the name of a stream.
    ///
    /// # Errors
    ///
    /// The source is a stream and `name` is missing, or it is a file and `name` is given, or its
    /// metadata cannot be read.
    pub fn of(source: &dyn Source, name: Option<&str>) -> Result<Seen, Error> {
        let failed = |e: io::Error| Error::io("open", &source.name(), &e);
        let Some(path) = source.path().filter(|_| source.can_be_read_again()) else {
            // Report a file that does not exist before anything else.
            source.length().map_err(failed)?;
            let named =
                name.map(|name| Seen { name: name.to_owned(), size: 0, modified: 0, stream: true });
            return named.ok_or_else(|| {
                Error::usage(format!("{} is not a regular file", source.name()))
                    .with_hint("`once` recognises a stream by the name that `source-name` gives it")
            });
        };
        if name.is_some() {
            return Err(Error::usage(text!(
                "{} is a file: `source-name` is for a stream",
                source.name()
            ))
            .with_hint("a file is recognised by its path and its content"));
        }
        let path = path.canonicalize().map_err(failed)?;
        let facts = path.metadata().map_err(failed)?;
        // Times before 1970 are negative. The product wraps around, so that times that lie
        // centuries apart may get the same number.
        let modified = facts.mtime().wrapping_mul(1_000_000_000).wrapping_add(facts.mtime_nsec());
        let Some(name) = path.to_str() else {
            return Err(Error::new(format!("{}: the name is not UTF-8", source.name()))
                .with_hint("`once` records names in the database"));
        };
        // Files of /proc and of some FUSE mounts report no size, and perhaps no new time either:
        // nothing shows whether they have changed.
        let empty = || File::open(&path)?.read(&mut [0]).map(|bytes| bytes == 0);
        if facts.len() == 0 && !empty().map_err(failed)? {
            return Err(Error::usage(text!(
                "{} reports no size, by which `once` recognises a file",
                source.name()
            ))
            .with_hint("load it as a stream: -, a pipe and `source-name`"));
        }
        Ok(Seen { name: name.to_owned(), size: facts.len(), modified, stream: false })
    }

    /// Hashes both ends. [`header_of`] hashes the header.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn ends(&self) -> Result<Ends, Error> {
        if self.stream {
            return Ok(Ends { head: NONE.into(), tail: NONE.into(), header: None });
        }
        let ends = || {
            let mut file = File::open(&self.name)?;
            let head = hash(&mut file, END)?;
            file.seek(SeekFrom::Start(self.size.saturating_sub(END)))?;
            Ok(Ends { head, tail: hash(&mut file, END)?, header: None })
        };
        ends().map_err(|e: io::Error| Error::io("read", &self.name, &e))
    }
}

impl Seen {
    /// Whether the file begins with the bytes of an earlier file of this `size`, whose first bytes
    /// have the hash `head`.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn begins_as(&self, size: u64, head: &str) -> Result<bool, Error> {
        let own = File::open(&self.name).and_then(|mut file| hash(&mut file, size.min(END)));
        own.map(|own| own == head).map_err(|e| Error::io("read", &self.name, &e))
    }
}

/// Checks the name of a stream, as it is recorded. Names of files begin with a slash.
///
/// # Errors
///
/// The name is empty, or could be the name of a file.
pub(super) fn check_stream_name(name: &str) -> Result<(), Error> {
    match name.is_empty() || name.starts_with('/') || name.contains('\0') {
        true => Err(Error::usage(format!("\"{name}\" cannot be the name of a stream"))
            .with_hint("a name for `source-name` is not empty and does not begin with a slash")),
        false => Ok(()),
    }
}

/// Whether two files have the same bytes as they are stored.
///
/// # Errors
///
/// One of them cannot be read, or `stopped` returns true.
pub(super) fn same(a: &str, b: &str, stopped: &(dyn Fn() -> bool + Sync)) -> Result<bool, Error> {
    let whole = |name: &str| {
        let stream = File::open(Path::new(name)).map(|stream| StoppableRead { stream, stopped });
        let hash = stream.and_then(|stream| hash(stream, u64::MAX));
        hash.map_err(|e| Error::io("read", name, &e))
    };
    Ok(whole(a)? == whole(b)?)
}

/// The hash of at most `most` bytes from the stream's position, in the input format of `bytea`.
fn hash(stream: impl Read, most: u64) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut source = stream.take(most);
    let mut block = vec![0; BLOCK.min(usize::try_from(most).unwrap_or(BLOCK))];
    loop {
        match source.read(&mut block) {
            Ok(0) => return Ok(format!("\\x{}", hasher.finalize().to_hex())),
            Ok(n) => {
                hasher.update(&block[..n]);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
