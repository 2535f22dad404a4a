//! Drops a file from the kernel's page cache. The advice to the kernel affects no other program on
//! the machine and needs no special rights. The kernel may ignore it, so the result is checked.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use rustix::fs::{fadvise, Advice};
use rustix::io::{preadv2, Errno, ReadWriteFlags};

/// Drops a file from the page cache.
pub fn drop_file(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    // The kernel drops only pages that are on disk already.
    file.sync_all()?;
    // Another processor may hold on to a page for a moment, and the check may bring a page back.
    let last = file.metadata()?.len().saturating_sub(1);
    let mut dropped = false;
    for _ in 0..20 {
        fadvise(&file, 0, None, Advice::DontNeed)?;
        dropped = !cached(&file, last)? && !cached(&file, 0)?;
        if dropped {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    ensure!(dropped, "the page cache cannot be dropped here: {} is still in it", path.display());
    // Drop the pages that the check has brought back.
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}

/// Whether a read at this offset would be served from the cache.
fn cached(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = [0];
    let mut buffers = [io::IoSliceMut::new(&mut byte)];
    match preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT) {
        Ok(read) => Ok(read > 0),
        Err(Errno::AGAIN) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_file_is_read_from_the_disk_again() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 8 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        assert!(cached(&file, 0).unwrap(), "what was just written is in the cache");
        match drop_file(&path) {
            // Check the last byte: a read of the first ones makes the kernel read ahead.
            Ok(()) => assert!(!cached(&file, (8 << 20) - 1).unwrap()),
            Err(e) => assert!(format!("{e:#}").contains("cannot be dropped here"), "{e:#}"),
        }
    }
}
