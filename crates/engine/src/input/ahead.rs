//! Looks ahead in a source. The bytes that were looked at are read again in their turn.

use super::decompress::Compression;
use super::file::unreadable;
use crate::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of bytes in each read.
const BLOCK: usize = 256 << 10;

/// Reads a source. Bytes that [`Ahead::look`] has shown are kept in files without names and read
/// again from there.
pub(super) struct Ahead {
    source: Box<dyn Read + Send>,
    /// the bytes that [`Ahead::look`] has shown; the file that is read next is the last one
    kept: Vec<File>,
}

impl Ahead {
    pub fn new(source: Box<dyn Read + Send>) -> Ahead {
        Ahead { source, kept: Vec::new() }
    }

    /// Passes the next bytes to `seen`, block by block, until it returns `true` or the source ends.
    /// The bytes are read again afterwards. `name` and `compression` are those of the source.
    ///
    /// # Errors
    ///
    /// The source cannot be read, or the bytes cannot be kept.
    pub fn look(
        &mut self,
        name: &str,
        compression: Option<Compression>,
        mut seen: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Error> {
        let failed = |e: io::Error| not_kept(name, &e);
        let mut file = nameless().map_err(failed)?;
        let mut block = vec![0; BLOCK];
        loop {
            let n = match self.read(&mut block) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(unreadable(name, compression, &e)),
            };
            file.write_all(&block[..n]).map_err(failed)?;
            if n == 0 || seen(&block[..n]) {
                break;
            }
        }
        file.rewind().map_err(failed)?;
        self.kept.push(file);
        Ok(())
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(file) = self.kept.last_mut() {
            let n = file.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            self.kept.pop();
        }
        self.source.read(buffer)
    }
}

/// The error if bytes of this source cannot be written to the folder for temporary files.
fn not_kept(name: &str, e: &io::Error) -> Error {
    let folder = std::env::temp_dir();
    Error::io(&format!("keep the next bytes of {name} in"), &folder.display().to_string(), e)
        .with_hint("set TMPDIR to a folder with room; `stray-quotes` copy needs none")
}

/// Creates a file in the folder for temporary files and removes its name.
fn nameless() -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("pgsluice-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_read_again_in_its_order() {
        let bytes: Vec<u8> = (0..3 * BLOCK).map(|i| (i / 1000) as u8).collect();
        let mut ahead = Ahead::new(Box::new(io::Cursor::new(bytes.clone())));
        let mut read = vec![0; 5];
        ahead.read_exact(&mut read).unwrap();
        ahead.look("f", None, |_| true).unwrap();
        let (mut more, mut shown) = (vec![0; 7], 0);
        ahead.read_exact(&mut more).unwrap();
        ahead
            .look("f", None, |block| {
                shown += block.len();
                shown > 2 * BLOCK
            })
            .unwrap();
        read.extend(more);
        ahead.read_to_end(&mut read).unwrap();
        assert_eq!((read, ahead.kept.len()), (bytes, 0));
    }
}
