//! The folder for data and servers. One runner claims it, measures its size, and removes it at the
//! end.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::server::{self, Binaries};

/// The folder of one run. One runner at a time holds it and removes it at the end.
#[derive(Debug)]
pub struct Work {
    /// Its path.
    pub dir: PathBuf,
    _lock: File,
}

impl Work {
    /// Claims the folder, then ends and removes what a killed runner has left in it.
    pub fn claim(dir: &Path, binaries: &Binaries) -> Result<Self> {
        binaries.make_dir(dir)?;
        let lock = File::create(dir.join("lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| anyhow::anyhow!("another benchmark runs in {}", dir.display()))?;
        server::end_leftovers(dir)?;
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                server::remove_dir(&path)?;
            } else if path.file_name().is_some_and(|n| n != "lock") {
                fs::remove_file(&path)?;
            }
        }
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = server::remove_dir(&self.dir);
    }
}

/// Bytes of all files below a folder. Files that disappear meanwhile count as zero.
pub fn bytes_below(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let Ok(entry) = entry else { continue };
        bytes += match entry.metadata() {
            Ok(data) if data.is_dir() => bytes_below(&entry.path()).unwrap_or(0),
            Ok(data) => data.len(),
            Err(_) => 0,
        };
    }
    Ok(bytes)
}
