//! Where records come from: the trait [`Source`], and files, streams and bytes as sources.
//!
//! A source gives bytes as they are stored, and says how many there are, whether they can be read
//! again, and whether they have changed while they were read. All else is the same for every
//! source and happens in `input`: decompression by content, the sample from which a plan is made,
//! the second reading that places an error.

use std::fmt;
use std::fs;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

mod span;

pub use span::Span;
pub(crate) use span::SpanSource;

/// Something that records are read from.
///
/// A source whose reads can fail for a while, such as an object store, tries again by itself: an
/// error from its reader ends the load.
pub trait Source: fmt::Debug + Send + Sync {
    /// How messages name it.
    fn name(&self) -> String;

    /// How many bytes are stored, if that is known.
    ///
    /// # Errors
    ///
    /// It does not exist, or cannot be looked at.
    fn length(&self) -> io::Result<Option<u64>>;

    /// Whether [`Source::open`] can be called again and gives the same bytes.
    fn can_be_read_again(&self) -> bool;

    /// Begins to read at its start.
    ///
    /// # Errors
    ///
    /// It cannot be read, or not a second time.
    fn open(&self) -> io::Result<Opened>;

    /// A reader of the first bytes, before [`Source::open`], which gives them again: at least
    /// `most` bytes, if there are that many. The second value says that there may be more than
    /// this reader gives.
    ///
    /// # Errors
    ///
    /// As [`Source::open`].
    fn look(&self, _most: usize) -> io::Result<(Box<dyn Read + Send>, bool)> {
        Ok((self.open()?.bytes, false))
    }

    /// The file that it is, if it is one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Begins to read at this byte, as it is stored. A source that can go there at once should.
    ///
    /// # Errors
    ///
    /// As [`Source::open`], or it has fewer bytes.
    fn open_at(&self, offset: u64) -> io::Result<Opened> {
        let mut opened = self.open()?;
        let passed = io::copy(&mut opened.bytes.by_ref().take(offset), &mut io::sink())?;
        match passed == offset {
            true => Ok(opened),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Which range of a file it is, if it is not all of one.
    #[doc(hidden)]
    fn span(&self) -> Option<&Span> {
        None
    }
}

/// A source that is being read.
pub struct Opened {
    /// the bytes as they are stored
    pub bytes: Box<dyn Read + Send>,
    /// the version of what is read, when asked: it must not change until the last byte is read.
    /// `None` for a source without versions
    pub version: Option<VersionOf>,
}

/// Asks for the version of a source that is being read.
pub type VersionOf = Box<dyn Fn() -> io::Result<Version> + Send>;

/// Which version of a source is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// how many bytes it has
    pub length: u64,
    /// when it was last written
    pub written: Option<SystemTime>,
}

impl Version {
    fn of(facts: &fs::Metadata) -> Version {
        Version { length: facts.len(), written: facts.modified().ok() }
    }
}

/// A file. A pipe or a device in its place is read once.
#[derive(Clone, Debug)]
pub struct FileSource(PathBuf);

impl FileSource {
    /// The file of this name.
    pub fn new(path: impl Into<PathBuf>) -> FileSource {
        FileSource(path.into())
    }
}

impl Source for FileSource {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn length(&self) -> io::Result<Option<u64>> {
        Ok(Some(self.0.metadata()?.len()))
    }

    fn can_be_read_again(&self) -> bool {
        self.0.metadata().is_ok_and(|facts| facts.is_file())
    }

    fn open(&self) -> io::Result<Opened> {
        self.open_at(0)
    }

    fn open_at(&self, offset: u64) -> io::Result<Opened> {
        let mut file = fs::File::open(&self.0)?;
        if offset > 0 {
            file.seek(SeekFrom::Start(offset))?;
        }
        let facts = file.metadata()?;
        if facts.is_dir() {
            return Err(io::Error::other("it is a folder"));
        }
        let own = file.try_clone()?;
        let version = move || own.metadata().map(|facts| Version::of(&facts));
        let version = facts.is_file().then(|| Box::new(version) as VersionOf);
        Ok(Opened { bytes: Box::new(file), version })
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.0)
    }
}

/// A stream, which can be read only once.
pub struct StreamSource {
    name: String,
    state: Mutex<Stream>,
}

struct Stream {
    /// what [`Source::look`] has read
    ahead: Vec<u8>,
    /// `None` when it has been opened
    rest: Option<Box<dyn Read + Send>>,
}

impl StreamSource {
    /// What this reader gives, under a name for messages.
    pub fn new(name: impl Into<String>, reader: impl Read + Send + 'static) -> StreamSource {
        let state = Stream { ahead: Vec::new(), rest: Some(Box::new(reader)) };
        StreamSource { name: name.into(), state: Mutex::new(state) }
    }

    fn opened() -> io::Error {
        io::Error::other("a stream can be read only once")
    }
}

/// Standard input, whose name is `-`. The process has one: all callers share what was read of it.
pub fn stdin() -> Arc<dyn Source> {
    static STDIN: OnceLock<Arc<StreamSource>> = OnceLock::new();
    STDIN.get_or_init(|| Arc::new(StreamSource::new("-", io::stdin()))).clone()
}

impl fmt::Debug for StreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamSource").field(&self.name).finish()
    }
}

impl Source for StreamSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn length(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn can_be_read_again(&self) -> bool {
        false
    }

    fn open(&self) -> io::Result<Opened> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = state.rest.take().ok_or_else(StreamSource::opened)?;
        let ahead = std::mem::take(&mut state.ahead);
        Ok(Opened { bytes: Box::new(Cursor::new(ahead).chain(rest)), version: None })
    }

    fn look(&self, most: usize) -> io::Result<(Box<dyn Read + Send>, bool)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Stream { ahead, rest } = &mut *state;
        let rest = rest.as_mut().ok_or_else(StreamSource::opened)?;
        let missing = most.saturating_sub(ahead.len()) as u64;
        rest.take(missing).read_to_end(ahead)?;
        let more = ahead.len() >= most;
        Ok((Box::new(Cursor::new(ahead.clone())), more))
    }
}

/// Bytes in memory.
#[derive(Clone)]
pub struct BytesSource {
    name: String,
    bytes: Arc<[u8]>,
}

impl BytesSource {
    /// These bytes, under a name for messages.
    pub fn new(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> BytesSource {
        BytesSource { name: name.into(), bytes: bytes.into() }
    }
}

impl fmt::Debug for BytesSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BytesSource({:?}, {} bytes)", self.name, self.bytes.len())
    }
}

impl Source for BytesSource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn length(&self) -> io::Result<Option<u64>> {
        Ok(Some(self.bytes.len() as u64))
    }

    fn can_be_read_again(&self) -> bool {
        true
    }

    fn open(&self) -> io::Result<Opened> {
        Ok(Opened { bytes: Box::new(Cursor::new(self.bytes.clone())), version: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut reader: Box<dyn Read + Send>) -> Vec<u8> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_looked_at_is_read_again() {
        let stream = StreamSource::new("pipe", Cursor::new(b"some bytes".to_vec()));
        for (most, seen, more) in [(4, "some", true), (2, "some", true), (99, "some bytes", false)]
        {
            let (reader, there_is_more) = stream.look(most).unwrap();
            assert_eq!((all(reader), there_is_more), (seen.into(), more), "{most}");
        }
        assert_eq!(all(stream.open().unwrap().bytes), b"some bytes");
        assert_eq!(stream.open().err().unwrap().to_string(), "a stream can be read only once");
        assert!(stream.look(1).is_err() && !stream.can_be_read_again());
    }

    #[test]
    fn bytes_are_read_as_often_as_wanted() {
        let bytes = BytesSource::new("rows", *b"a,b\n");
        assert_eq!(bytes.length().unwrap(), Some(4));
        for _ in 0..2 {
            assert_eq!(all(bytes.look(1).unwrap().0), b"a,b\n");
            assert_eq!(all(bytes.open().unwrap().bytes), b"a,b\n");
        }
    }

    #[test]
    fn a_file_that_is_written_to_has_another_version() {
        let path = std::env::temp_dir().join(format!("pgsluice-source-{}", std::process::id()));
        fs::write(&path, b"a,b\n").unwrap();
        let source = FileSource::new(&path);
        let version = source.open().unwrap().version.unwrap();
        let before = version().unwrap();
        assert_eq!((before.length, version().unwrap()), (4, before));
        fs::write(&path, b"a,b\nc,d\n").unwrap();
        assert_ne!(version().unwrap(), before);
        fs::remove_file(&path).unwrap();
        assert!(source.open().is_err() && source.length().is_err() && !source.can_be_read_again());
    }
}
