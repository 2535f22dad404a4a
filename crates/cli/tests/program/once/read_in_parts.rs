//! A file that is read in small parts, with something that happens before each of them.

use pgsluice_engine::{FileSource, Opened, Source};
use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

type Before = Arc<dyn Fn() + Send + Sync>;

/// A file that is read in parts of at most 64 kB.
pub struct FileInParts {
    file: FileSource,
    before: Before,
}

impl FileInParts {
    /// The file of this name; `before` is called before each part is read.
    pub fn new(path: &str, before: impl Fn() + Send + Sync + 'static) -> FileInParts {
        FileInParts { file: FileSource::new(path), before: Arc::new(before) }
    }
}

impl fmt::Debug for FileInParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

struct Parts(Box<dyn Read + Send>, Before);

impl Read for Parts {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (self.1)();
        let most = buffer.len().min(64 << 10);
        self.0.read(&mut buffer[..most])
    }
}

impl Source for FileInParts {
    fn name(&self) -> String {
        self.file.name()
    }

    fn length(&self) -> io::Result<Option<u64>> {
        self.file.length()
    }

    fn can_be_read_again(&self) -> bool {
        true
    }

    fn open(&self) -> io::Result<Opened> {
        let Opened { bytes, version } = self.file.open()?;
        Ok(Opened { bytes: Box::new(Parts(bytes, self.before.clone())), version })
    }

    fn path(&self) -> Option<&Path> {
        self.file.path()
    }
}
