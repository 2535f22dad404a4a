//! How much of a file was read, and how much memory the rest needs.

use super::InputFile;
use std::sync::atomic::Ordering;

impl InputFile {
    /// Bytes that came from the disk so far.
    pub(in crate::input) fn raw_bytes(&self) -> u64 {
        self.raw_read.load(Ordering::Relaxed)
    }

    /// `target`, or what is left of the file and one byte, which shows that it has grown: small
    /// files need little memory.
    pub(super) fn enough(&self, target: usize) -> usize {
        let (Some((_, opened)), None) = (&self.version, self.compression) else { return target };
        match opened.length.saturating_sub(self.offset + self.held.len() as u64) {
            0 => target,
            left => target.min(usize::try_from(left).map_or(target, |n| self.held.len() + n + 1)),
        }
    }
}
