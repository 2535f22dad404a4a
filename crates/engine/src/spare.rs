//! Memory that chunks and rows have used and the next ones use again: giving it
//! back to the system costs a page fault for every 4 KiB when it is taken anew.

use std::sync::{Arc, Mutex, PoisonError};

/// Pieces that are kept; more are freed.
const PIECES: usize = 16;

/// The largest piece that is kept, in bytes: that of a long record is freed.
const LARGEST: usize = 2 << 20;

/// Memory that nobody uses, shared by the threads of a load.
#[derive(Clone, Debug, Default)]
pub struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spare {
    /// An empty buffer, with memory where there is some: the last that was given,
    /// which a processor's cache may still hold.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Gives memory to whoever takes it next.
    pub fn give(&self, mut piece: Vec<u8>) {
        piece.clear();
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
        let spare = Spare::default();
        assert_eq!(spare.take().capacity(), 0);
        spare.give(vec![1; 1000]);
        let again = spare.take();
        assert!(again.is_empty() && again.capacity() >= 1000);
        spare.give(Vec::with_capacity(LARGEST + 1));
        assert_eq!(spare.take().capacity(), 0, "too large to be kept");
        (0..2 * PIECES).for_each(|_| spare.give(vec![1]));
        assert_eq!((0..2 * PIECES).filter(|_| spare.take().capacity() > 0).count(), PIECES);
    }
}
