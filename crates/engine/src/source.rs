//! The trait [`Source`], from which records are read, and files, streams and bytes as sources.
//!
//! A source returns its bytes as they are stored, and reports their number, whether they can be
//! read again, and whether they have changed during the read. All else is the same for every source
//! and is done in `input`: decompression by content, the sample for the plan, the second reading
//! that finds the place of an error.

use std::fmt;
use std::fs;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

mod span;

pub use span::Span;
pub(crate) use span::SpanSource;

/// A source of records.
///
/// A source whose reads can fail temporarily, such as an object store, must retry by itself. An
/// error from its reader ends the load, with [`crate::Kind::Failed`]. If the bytes are compressed,
/// only what the decompressor finds counts as [`crate::Kind::Data`].
pub trait Source: fmt::Debug + Send + Sync {
    /// Its name in messages.
    fn name(&self) -> String;

    /// The number of stored bytes, if known.
    ///
    /// # Errors
    ///
    /// It does not exist, or its length cannot be read.
    fn length(&self) -> io::Result<Option<u64>>;

    /// Whether [`Source::open`] can be called again and then returns the same bytes.
    fn can_be_read_again(&self) -> bool;

    /// Opens it for reading from its start.
    ///
    /// # Errors
    ///
    /// It cannot be read, or cannot be read a second time.
    fn open(&self) -> io::Result<Opened>;

    /// A reader of the first bytes, for use before [`Source::open`], which returns them again. It
    /// has at least `most` bytes, if the source has that many. The second value is true if the
    /// source may have more bytes than this reader.
    ///
    /// # Errors
    ///
    /// Those of [`Source::open`]. A source that cannot be read again must override this, or it is
    /// an error.
    fn look(&self, _most: usize) -> io::Result<(Box<dyn Read + Send>, bool)> {
        match self.can_be_read_again() {
            true => Ok((self.open()?.bytes, false)),
            // The load would not get these bytes.
            false => Err(io::Error::other("its first bytes can be read only once")),
        }
    }

    /// The path of the file, if the source is one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Opens it for reading from this stored byte on. A source that can seek should override this.
    ///
    /// # Errors
    ///
    /// Those of [`Source::open`], or it has fewer bytes.
    fn open_at(&self, offset: u64) -> io::Result<Opened> {
        let mut opened = self.open()?;
        let passed = io::copy(&mut opened.bytes.by_ref().take(offset), &mut io::sink())?;
        match passed == offset {
            true => Ok(opened),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The range of the file, if the source is only a part of it.
    #[doc(hidden)]
    fn span(&self) -> Option<&Span> {
        None
    }
}

/// An open source.
pub struct Opened {
    /// the stored bytes
    pub bytes: Box<dyn Read + Send>,
    /// returns the present version, which must not change until the last byte is read; `None` for a
    /// source without versions
    pub version: Option<VersionOf>,
}

/// Returns the version of a source that is being read.
pub type VersionOf = Box<dyn Fn() -> io::Result<Version> + Send>;

/// The version of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// its number of bytes
    pub length: u64,
    /// the time of its last write
    pub written: Option<SystemTime>,
}

impl Version {
    fn of(facts: &fs::Metadata) -> Version {
        Version { length: facts.len(), written: facts.modified().ok() }
    }
}

/// A file. A pipe or a device at that path can be read only once.
#[derive(Clone, Debug)]
pub struct FileSource {
    path: PathBuf,
    /// the open pipe or device, with the bytes that [`Source::look`] has read from it
    stream: Arc<OnceLock<StreamSource>>,
}

impl FileSource {
    /// The file at this path.
    pub fn new(path: impl Into<PathBuf>) -> FileSource {
        FileSource { path: path.into(), stream: Arc::default() }
    }

    /// Opens a pipe or a device, unless it is open; `None` for other files.
    fn stream(&self) -> io::Result<Option<&StreamSource>> {
        if let Some(stream) = self.stream.get() {
            return Ok(Some(stream));
        }
        let facts = self.path.metadata()?;
        if facts.is_file() || facts.is_dir() {
            return Ok(None);
        }
        let stream = StreamSource::new(self.name(), fs::File::open(&self.path)?);
        Ok(Some(self.stream.get_or_init(|| stream)))
    }
}

impl Source for FileSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn length(&self) -> io::Result<Option<u64>> {
        let facts = self.path.metadata()?;
        Ok(facts.is_file().then_some(facts.len()))
    }

    fn can_be_read_again(&self) -> bool {
        self.path.metadata().is_ok_and(|facts| facts.is_file())
    }

    fn open(&self) -> io::Result<Opened> {
        self.open_at(0)
    }

    fn look(&self, most: usize) -> io::Result<(Box<dyn Read + Send>, bool)> {
        match self.stream()? {
            Some(stream) => stream.look(most),
            None => Ok((self.open()?.bytes, false)),
        }
    }

    fn open_at(&self, offset: u64) -> io::Result<Opened> {
        if let Some(stream) = self.stream()? {
            return stream.open_at(offset);
        }
        let mut file = fs::File::open(&self.path)?;
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
        Some(&self.path)
    }
}

/// A stream, which can be read only once.
pub struct StreamSource {
    name: String,
    state: Mutex<Stream>,
}

struct Stream {
    /// the bytes that [`Source::look`] has read
    ahead: Vec<u8>,
    /// `None` after it has been opened
    rest: Option<Box<dyn Read + Send>>,
}

impl StreamSource {
    /// The bytes of `reader`, with a name for messages.
    pub fn new(name: impl Into<String>, reader: impl Read + Send + 'static) -> StreamSource {
        let state = Stream { ahead: Vec::new(), rest: Some(Box::new(reader)) };
        StreamSource { name: name.into(), state: Mutex::new(state) }
    }

    fn opened() -> io::Error {
        io::Error::other("a stream can be read only once")
    }
}

/// Standard input, with the name `-`. There is only one: all callers share the bytes read from it.
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
    /// These bytes, with a name for messages.
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

    /// A named pipe is opened once, and the bytes that were looked at are read again. Its length is
    /// not known.
    #[test]
    fn a_pipe_at_a_path_is_a_stream() {
        let path = std::env::temp_dir().join(format!("pgsluice-pipe-{}", std::process::id()));
        let rights = nix::sys::stat::Mode::from_bits_truncate(0o600);
        nix::unistd::mkfifo(&path, rights).unwrap();
        let to = path.clone();
        let writer = std::thread::spawn(move || fs::write(to, b"some bytes"));
        let source = FileSource::new(&path);
        assert_eq!(source.length().unwrap(), None);
        let (reader, more) = source.clone().look(4).unwrap();
        assert_eq!((all(reader), more), (b"some".to_vec(), true));
        assert_eq!(all(source.open().unwrap().bytes), b"some bytes");
        assert!(source.open().is_err() && source.look(1).is_err() && !source.can_be_read_again());
        writer.join().unwrap().unwrap();
        fs::remove_file(&path).unwrap();
    }

    /// A source that can be read only once and does not keep its first bytes cannot be looked at.
    #[test]
    fn a_look_that_would_take_bytes_from_the_load_is_an_error() {
        #[derive(Debug)]
        struct Unkept;
        impl Source for Unkept {
            fn name(&self) -> String {
                "unkept".into()
            }
            fn length(&self) -> io::Result<Option<u64>> {
                Ok(None)
            }
            fn can_be_read_again(&self) -> bool {
                false
            }
            fn open(&self) -> io::Result<Opened> {
                Ok(Opened { bytes: Box::new(Cursor::new(b"a,b\n")), version: None })
            }
        }
        assert!(Unkept.look(1).is_err());
        assert_eq!(all(Unkept.open().unwrap().bytes), b"a,b\n");
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
