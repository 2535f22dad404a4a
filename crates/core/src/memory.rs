//! Fallible allocation. Every allocation that the server's extension can reach uses this module.
//!
//! Rust aborts the process when `push`, `extend` or `Box::new` find no memory. In a backend, that
//! would end every session of the server. So memory is reserved fallibly, and [`OutOfMemory`] is an
//! error like any other. `clippy.toml` bans the methods that would abort.

use std::alloc::{alloc, handle_alloc_error, Layout};
use std::collections::{TryReserveError, VecDeque};

/// Memory could not be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl From<TryReserveError> for OutOfMemory {
    #[cold]
    fn from(_: TryReserveError) -> Self {
        OutOfMemory
    }
}

/// Ends the process as Rust does when memory runs out. Only the loader does this, never the
/// extension.
#[cold]
pub fn abort() -> ! {
    handle_alloc_error(Layout::new::<u64>())
}

/// Vectors that grow fallibly, or not at all.
pub trait Fallible<T>: Sized {
    /// An empty vector with room for `len` items.
    ///
    /// # Errors
    ///
    /// No memory.
    fn with_room(len: usize) -> Result<Self, OutOfMemory>;
    /// Makes room for `more` items, and often for more than that.
    ///
    /// # Errors
    ///
    /// No memory. The vector is unchanged. The same applies to the methods below.
    fn reserve_room(&mut self, more: usize) -> Result<(), OutOfMemory>;
    /// Appends an item.
    ///
    /// # Errors
    ///
    /// No memory.
    fn try_push(&mut self, item: T) -> Result<(), OutOfMemory>;
    /// Appends copies of items.
    ///
    /// # Errors
    ///
    /// No memory.
    fn try_extend(&mut self, items: &[T]) -> Result<(), OutOfMemory>
    where
        T: Copy;
    /// Cuts the vector to `len` items, or extends it to `len` items by copies of `item`.
    ///
    /// # Errors
    ///
    /// No memory.
    fn try_resize(&mut self, len: usize, item: T) -> Result<(), OutOfMemory>
    where
        T: Copy;
    /// Appends an item to a vector that has room for it.
    ///
    /// # Panics
    ///
    /// There is no room, which is a bug. The same applies to the methods below.
    fn push_within(&mut self, item: T);
    /// Appends copies of items to a vector that has room for them.
    fn extend_within_room(&mut self, items: &[T])
    where
        T: Copy;
    /// Cuts the vector to `len` items, or extends it within its room by copies of `item`.
    fn resize_within(&mut self, len: usize, item: T)
    where
        T: Copy;
}

/// Panics because the reserved memory is too small, which is a bug.
#[cold]
#[inline(never)]
pub(crate) fn no_room() -> ! {
    panic!("no room was reserved")
}

// Only this code calls the methods that could grow, and only if there is room.
#[allow(clippy::disallowed_methods)]
impl<T> Fallible<T> for Vec<T> {
    #[inline]
    fn with_room(len: usize) -> Result<Self, OutOfMemory> {
        let mut vector = Vec::new();
        vector.try_reserve_exact(len)?;
        Ok(vector)
    }

    #[inline]
    fn reserve_room(&mut self, more: usize) -> Result<(), OutOfMemory> {
        Ok(self.try_reserve(more)?)
    }

    #[inline]
    fn try_push(&mut self, item: T) -> Result<(), OutOfMemory> {
        if self.len() == self.capacity() {
            self.try_reserve(1)?;
        }
        self.push_within(item);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, items: &[T]) -> Result<(), OutOfMemory>
    where
        T: Copy,
    {
        self.try_reserve(items.len())?;
        self.extend_within_room(items);
        Ok(())
    }

    #[inline]
    fn try_resize(&mut self, len: usize, item: T) -> Result<(), OutOfMemory>
    where
        T: Copy,
    {
        self.try_reserve(len.saturating_sub(self.len()))?;
        self.resize_within(len, item);
        Ok(())
    }

    #[inline(always)]
    fn push_within(&mut self, item: T) {
        if self.len() == self.capacity() {
            no_room();
        }
        self.push(item);
    }

    #[inline(always)]
    fn extend_within_room(&mut self, items: &[T])
    where
        T: Copy,
    {
        if items.len() > self.capacity() - self.len() {
            no_room();
        }
        self.extend_from_slice(items);
    }

    #[inline(always)]
    fn resize_within(&mut self, len: usize, item: T)
    where
        T: Copy,
    {
        if len > self.capacity() {
            no_room();
        }
        self.resize(len, item);
    }
}

/// Makes room for `more` items: by doubling, but for no more than `most` items in all if that is
/// enough. So the memory that is reserved stays near a limit of what is used.
///
/// # Errors
///
/// No memory. The vector is unchanged.
#[inline]
pub fn reserve_up_to<T>(vector: &mut Vec<T>, more: usize, most: usize) -> Result<(), OutOfMemory> {
    let len = vector.len();
    if vector.capacity() - len < more {
        vector.try_reserve_exact(len.max(64).min(most.saturating_sub(len)).max(more))?;
    }
    Ok(())
}

/// Appends an item to a queue.
///
/// # Errors
///
/// No memory.
#[allow(clippy::disallowed_methods)] // there is room after try_reserve
pub fn try_push_back<T>(queue: &mut VecDeque<T>, item: T) -> Result<(), OutOfMemory> {
    queue.try_reserve(1)?;
    queue.push_back(item);
    Ok(())
}

/// Moves `item` into newly allocated memory, as `Box::new` does.
///
/// # Errors
///
/// No memory.
pub fn try_box<T>(item: T) -> Result<Box<T>, OutOfMemory> {
    let layout = Layout::new::<T>();
    assert!(layout.size() > 0, "what takes no memory needs no box");
    // SAFETY: the layout's size is not 0.
    let place = unsafe { alloc(layout) }.cast::<T>();
    if place.is_null() {
        return Err(OutOfMemory);
    }
    // SAFETY: `place` has that layout and is from the global allocator, so a box may own and free
    // it. The item is written before the box is made.
    unsafe {
        place.write(item);
        Ok(Box::from_raw(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_reserved_is_an_error() {
        let mut vector = vec![1u64];
        assert_eq!(vector.reserve_room(usize::MAX / 16), Err(OutOfMemory));
        assert_eq!(vector.try_resize(usize::MAX / 16, 0), Err(OutOfMemory));
        assert_eq!(Vec::<u64>::with_room(usize::MAX), Err(OutOfMemory));
        assert_eq!(vector, [1]);
    }

    #[test]
    fn vectors_grow() {
        let mut vector = Vec::with_room(1).unwrap();
        assert_eq!(vector.capacity(), 1);
        for n in 0..100 {
            vector.try_push(n).unwrap();
        }
        vector.try_extend(&[100, 101]).unwrap();
        vector.try_resize(104, 7).unwrap();
        assert_eq!(vector.len(), 104);
        assert_eq!(vector[99..], [99, 100, 101, 7, 7]);
        assert_eq!(*try_box(vector).unwrap(), (0..102).chain([7, 7]).collect::<Vec<_>>());
    }

    #[test]
    #[should_panic(expected = "no room was reserved")]
    fn within_room_nothing_grows() {
        Vec::with_capacity(2).extend_within_room(&[1, 2, 3]);
    }
}
