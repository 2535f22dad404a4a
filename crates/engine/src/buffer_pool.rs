//! A pool of buffers for chunks and rows. Memory that went back to the system would cost a page
//! fault for every 4 KiB when it is allocated again.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers in the pool; more are freed.
const PIECES: usize = 16;

/// The largest buffer that is kept, in bytes: that of a long record is freed.
const LARGEST: usize = 2 << 20;

/// Free buffers, shared by the threads of a load.
#[derive(Clone, Debug, Default)]
pub struct BufferPool(Arc<Mutex<Vec<Vec<u8>>>>);

impl BufferPool {
    /// An empty buffer, with memory if the pool has some: the last one returned, which may still
    /// be in a processor's cache.
    pub fn take(&self) -> Vec<u8> {
        let mut piece = self.take_used();
        piece.clear();
        piece
    }

    /// The same, with the bytes that it had when it was returned. They may be overwritten; a buffer
    /// that grows would first be filled with zeros.
    pub fn take_used(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool.
    pub fn give(&self, piece: Vec<u8>) {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pieces.len() < PIECES && (1..=LARGEST).contains(&piece.capacity()) {
            pieces.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_was_given_emptied_and_keeps_no_more_than_is_said() {
        let pool = BufferPool::default();
        assert_eq!(pool.take().capacity(), 0);
        pool.give(vec![1; 1000]);
        let again = pool.take_used();
        assert_eq!(again, [1; 1000]);
        pool.give(again);
        let again = pool.take();
        assert!(again.is_empty() && again.capacity() >= 1000);
        pool.give(Vec::with_capacity(LARGEST + 1));
        assert_eq!(pool.take().capacity(), 0, "too large to be kept");
        (0..2 * PIECES).for_each(|_| pool.give(vec![1]));
        assert_eq!((0..2 * PIECES).filter(|_| pool.take().capacity() > 0).count(), PIECES);
    }
}
