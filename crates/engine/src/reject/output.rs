//! A file of rejects that is written at its end, with a running hash of its content.

use blake3::Hasher;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// The number of bytes that are read and hashed at a time.
const BLOCK: usize = 256 << 10;

/// A file that is written at its end.
#[derive(Debug)]
pub(super) struct Output {
    file: BufWriter<File>,
    hasher: Hasher,
    /// number of bytes that the hash covers
    pub bytes: u64,
}

impl Output {
    /// Creates an output for a file whose present content is not hashed.
    pub fn new(file: File) -> Output {
        Output { file: BufWriter::new(file), hasher: Hasher::new(), bytes: 0 }
    }

    /// Reads and hashes the first bytes of a file: `most` of them, or all if there are fewer.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read_in(mut file: File, most: u64) -> io::Result<Output> {
        file.rewind()?;
        let (mut hasher, mut bytes) = (Hasher::new(), 0);
        let mut block = vec![0; BLOCK];
        let mut begin = (&file).take(most);
        loop {
            match begin.read(&mut block) {
                Ok(0) => break,
                Ok(n) => {
                    hasher.update(&block[..n]);
                    bytes += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Output { file: BufWriter::new(file), hasher, bytes })
    }

    /// Removes what follows the hashed bytes.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn cut(&mut self) -> io::Result<()> {
        self.file.get_ref().set_len(self.bytes)?;
        self.file.seek(SeekFrom::Start(self.bytes)).map(drop)
    }

    /// Returns the first bytes of the file, at most `most`.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn head(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.file.get_mut();
        file.rewind()?;
        file.take(most).read_to_end(&mut bytes)?;
        self.file.seek(SeekFrom::Start(self.bytes))?;
        Ok(bytes)
    }

    /// Whether the last line of the file lacks its end. All bytes must be in the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn is_cut_off(&self) -> io::Result<bool> {
        let mut last = [b'\n'];
        if let Some(at) = self.length()?.checked_sub(1) {
            self.file.get_ref().read_exact_at(&mut last, at)?;
        }
        Ok(!matches!(last, [b'\n' | b'\r']))
    }

    /// Ends the last line of the file, so that the next one does not continue it.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn end_line(&mut self) -> io::Result<()> {
        if self.is_cut_off()? {
            self.write_all(b"\n")?;
            self.sync()?;
        }
        Ok(())
    }

    /// The hash in the input format of `bytea`.
    pub fn hash(&self) -> String {
        format!("\\x{}", self.hasher.finalize().to_hex())
    }

    /// Makes the file durable.
    ///
    /// # Errors
    ///
    /// The disk is full, or fails.
    pub fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }

    /// The size of the file in bytes, with bytes that other programs have written.
    ///
    /// # Errors
    ///
    /// The size cannot be read.
    pub fn length(&self) -> io::Result<u64> {
        Ok(self.file.get_ref().metadata()?.len())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
