//! The bytes of a file that were read and not yet passed on.
//!
//! Bytes are removed at the front. The others move only if more is read, or if they are fewer than
//! the removed bytes. So the time for many short pieces grows only with the size of these pieces.
//!
//! Reading needs memory that has been written. A buffer that is used again keeps its old bytes after
//! those that are held, so that only memory that was never used is filled with zeros.

use std::ops::{Deref, DerefMut};

#[derive(Default)]
pub(super) struct HeldBytes {
    bytes: Vec<u8>,
    /// how many of the bytes were removed
    taken: usize,
    /// where the held bytes end
    end: usize,
}

impl HeldBytes {
    /// Removes the first bytes.
    pub fn pass(&mut self, length: usize) {
        self.taken += length;
        debug_assert!(self.taken <= self.end);
    }

    /// Removes the first bytes and returns them. `free` is memory to use, whatever is in it.
    pub fn take(&mut self, length: usize, mut free: Vec<u8>) -> Vec<u8> {
        if length < self.len() / 2 {
            // Do not use `free` here. The caller shrinks the memory of short chunks. A large buffer
            // that was shrunk is too small for the next chunk.
            let bytes = self[..length].to_vec();
            self.pass(length);
            return bytes;
        }
        let left = &self[length..];
        if free.len() < left.len() {
            free.clear();
            free.extend_from_slice(left);
        } else {
            free[..left.len()].copy_from_slice(left);
        }
        self.end = left.len();
        let mut bytes = std::mem::replace(&mut self.bytes, free);
        bytes.truncate(self.taken + length);
        bytes.drain(..std::mem::take(&mut self.taken));
        bytes
    }

    /// Grows to `length` bytes; the new ones may be any. `length` must be greater than the current
    /// length.
    pub fn grow(&mut self, length: usize) {
        self.bytes.copy_within(self.taken..self.end, 0);
        self.taken = 0;
        self.end = length;
        if self.bytes.len() < length {
            self.bytes.reserve_exact(length - self.bytes.len());
            self.bytes.resize(length, 0);
        }
    }

    /// Drops the bytes after the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.end = self.end.min(self.taken + length);
    }
}

impl Deref for HeldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.taken..self.end]
    }
}

impl DerefMut for HeldBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.taken..self.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_and_what_is_left_are_the_bytes() {
        let mut held = HeldBytes::default();
        held.grow(10);
        held.copy_from_slice(b"0123456789");
        assert_eq!(held.take(2, b"xyz".to_vec()), b"01");
        held.pass(1);
        assert_eq!(held.take(5, Vec::new()), b"34567");
        assert_eq!(&held[..], b"89");
        held.pass(1);
        held.grow(3);
        held[1..].copy_from_slice(b"ab");
        held.truncate(2);
        assert_eq!(&held[..], b"9a");
        assert_eq!(held.take(2, Vec::new()), b"9a");
        assert!(held.is_empty());
    }
}
