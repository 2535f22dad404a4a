//! The allocator of the library: if memory runs out, a reserve lasts to the end of the call.
//!
//! Rust aborts the process, and with it every session of the server, if an allocation fails that
//! cannot report the failure. All allocations of ours can (`pgsluice_core::memory`). Those of a
//! panic cannot, wherever their memory comes from. If there is no more memory, they are served from
//! memory that was set aside, and so would be a small allocation that was overlooked. The entry
//! that was called then returns that there was no memory.
//!
//! In a server, buffers of [`LARGE`] bytes or more come from a memory context of C
//! (`core_memory.c`), so that the server shows them in `pg_backend_memory_contexts`. Those
//! functions raise no error: they return NULL.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

const SIZE: usize = 256 << 10;

/// The least size of a piece from the server's memory context. It is above the context's limit for
/// pieces that share a block, so that each one is returned to the system at once, and can grow in
/// place.
const LARGE: usize = 16 << 10;
/// `MAXIMUM_ALIGNOF`
const SERVER_ALIGN: usize = 8;

/// C functions for large pieces, like `malloc` and so on. They return NULL if there is no memory.
#[derive(Debug)]
#[repr(C)]
pub struct LargePieces {
    /// `malloc`
    pub alloc: extern "C" fn(usize) -> *mut u8,
    /// `realloc`
    pub realloc: unsafe extern "C" fn(*mut u8, usize) -> *mut u8,
    /// `free`
    pub free: unsafe extern "C" fn(*mut u8),
}

/// NULL: large pieces come from the system, as in tests without a server.
static LARGE_PIECES: AtomicPtr<LargePieces> = AtomicPtr::new(null_mut());

/// From now on large pieces come from these functions.
///
/// # Safety
///
/// It is called before any other function of this library, once in a process, in its only thread;
/// `functions` is valid for as long as the process lives. The functions raise no error, and what
/// they return is aligned to 8 bytes and lives until it is freed.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_large_pieces(functions: *const LargePieces) {
    LARGE_PIECES.store(functions.cast_mut(), Relaxed);
}

/// The functions for a piece of this layout; `None`: the system provides it.
#[inline]
fn server_has(layout: Layout) -> Option<&'static LargePieces> {
    if layout.size() < LARGE || layout.align() > SERVER_ALIGN {
        return None;
    }
    // SAFETY: NULL or valid for ever, as the caller of `pgsluice_large_pieces` has promised.
    unsafe { LARGE_PIECES.load(Relaxed).as_ref() }
}

#[repr(align(64))]
struct Memory(UnsafeCell<[u8; SIZE]>);

// SAFETY: its bytes are reached only through the pieces that `take` hands out, each to one owner.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; SIZE]));
/// The number of bytes that were handed out, times 2^32, plus the number of pieces that were not
/// returned. When all are returned, it starts from zero.
static STATE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static RAN_OUT: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, with the reserve as a fallback.
pub(crate) struct WithReserve;

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

/// Whether memory has run out since the last call of this function.
pub(crate) fn ran_out() -> bool {
    RAN_OUT.take()
}

/// Takes a piece of the reserve; NULL if the reserve is too small.
fn take(layout: Layout) -> *mut u8 {
    if layout.align() > align_of::<Memory>() || !failing::reserve_is_open() {
        return null_mut();
    }
    let mut start = 0;
    let taken = STATE.fetch_update(Relaxed, Relaxed, |state| {
        start = ((state >> 32) as usize).next_multiple_of(layout.align());
        let end = start.checked_add(layout.size()).filter(|end| *end <= SIZE)?;
        Some((end as u64) << 32 | ((state & 0xffff_ffff) + 1))
    });
    if taken.is_err() {
        return null_mut();
    }
    RAN_OUT.set(true);
    // SAFETY: start is within the memory.
    unsafe { MEMORY.0.get().cast::<u8>().add(start) }
}

fn give_back() {
    let _ = STATE.fetch_update(Relaxed, Relaxed, |state| {
        let live = (state & 0xffff_ffff) - 1;
        Some(if live == 0 { 0 } else { state & !0xffff_ffff | live })
    });
}

fn is_reserve(piece: *mut u8) -> bool {
    let start = MEMORY.0.get() as usize;
    (start..start + SIZE).contains(&(piece as usize))
}

/// A simulated lack of memory in this thread, for tests.
#[cfg(any(test, feature = "faults"))]
pub(crate) mod failing {
    use std::cell::Cell;

    thread_local! {
        /// How many allocations still succeed before one fails; `None`: none fails.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
        /// Allocations after the first one that fails succeed again.
        static ONCE: Cell<bool> = const { Cell::new(false) };
        /// How many allocations have failed.
        static FAILED: Cell<usize> = const { Cell::new(0) };
        /// Pieces that were taken and not given back since a test began to count.
        static LIVE: Cell<Option<isize>> = const { Cell::new(None) };
    }

    /// Lets `left` allocations succeed, then makes one fail, or all.
    pub(crate) fn after(left: usize, once: bool) {
        LEFT.set(Some(left));
        ONCE.set(once);
    }

    /// Lets all allocations succeed again; returns how many have failed.
    pub(crate) fn no_more() -> usize {
        LEFT.set(None);
        FAILED.take()
    }

    /// As [`no_more`]; also returns how many would still have succeeded before one fails.
    #[cfg(test)]
    pub(crate) fn stop() -> (Option<usize>, usize) {
        (LEFT.take(), no_more())
    }

    /// Whether the system has memory for the next allocation.
    pub(super) fn has_more() -> bool {
        match LEFT.get() {
            None => true,
            Some(0) => {
                FAILED.set(FAILED.get() + 1);
                if ONCE.get() {
                    LEFT.set(None);
                }
                false
            }
            Some(left) => {
                LEFT.set(Some(left - 1));
                true
            }
        }
    }

    /// Counts pieces from `from` on, or stops counting; returns how many were not given back.
    #[cfg(test)]
    pub(crate) fn count(from: Option<isize>) -> isize {
        LIVE.replace(from).unwrap_or(0)
    }

    pub(super) fn counted(pieces: isize) {
        if let Some(live) = LIVE.get() {
            LIVE.set(Some(live + pieces));
        }
    }

    /// Whether the reserve may be used. In unit tests only panics may use it, so that an allocation
    /// that is not fallible aborts the test.
    pub(super) fn reserve_is_open() -> bool {
        !cfg!(test) || std::thread::panicking()
    }
}

#[cfg(not(any(test, feature = "faults")))]
mod failing {
    pub(super) const fn has_more() -> bool {
        true
    }
    pub(super) const fn counted(_pieces: isize) {}
    pub(super) const fn reserve_is_open() -> bool {
        true
    }
}

/// A piece that is not from the reserve, or NULL.
#[inline]
fn give(layout: Layout, zeroed: bool) -> *mut u8 {
    if !failing::has_more() {
        return null_mut();
    }
    match server_has(layout) {
        Some(server) => {
            let piece = (server.alloc)(layout.size());
            if zeroed && !piece.is_null() {
                // SAFETY: the piece has that size.
                unsafe { piece.write_bytes(0, layout.size()) };
            }
            piece
        }
        // SAFETY: the size is not 0: the duty of the allocator's caller.
        None if zeroed => unsafe { System.alloc_zeroed(layout) },
        // SAFETY: as above.
        None => unsafe { System.alloc(layout) },
    }
}

/// Changes the size of a piece that is not from the reserve; NULL: the piece is unchanged.
///
/// # Safety
///
/// `piece` is from [`give`] with the layout `from`; `to` differs in its size, which is not 0.
#[inline]
unsafe fn resize(piece: *mut u8, from: Layout, to: Layout) -> *mut u8 {
    match (server_has(from), server_has(to)) {
        (Some(server), Some(_)) if failing::has_more() => {
            // SAFETY: the piece is the server's.
            unsafe { (server.realloc)(piece, to.size()) }
        }
        (None, None) if failing::has_more() => {
            // SAFETY: the piece is the system's.
            unsafe { System.realloc(piece, from, to.size()) }
        }
        (Some(_), Some(_)) | (None, None) => null_mut(),
        _ => {
            let moved = give(to, false);
            if !moved.is_null() {
                failing::counted(1);
                // SAFETY: both have that many bytes and do not overlap; the old piece is given back once.
                unsafe {
                    moved.copy_from_nonoverlapping(piece, from.size().min(to.size()));
                    ALLOCATOR.dealloc(piece, from);
                }
            }
            moved
        }
    }
}

// SAFETY: a piece is the system's, the server's or the reserve's, as its layout and its place show,
// and each is returned to where it is from.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut piece = give(layout, false);
        if piece.is_null() {
            piece = take(layout);
        }
        failing::counted(isize::from(!piece.is_null()));
        piece
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let mut piece = give(layout, true);
        if piece.is_null() {
            piece = take(layout);
            if !piece.is_null() {
                // SAFETY: the piece has that size.
                unsafe { piece.write_bytes(0, layout.size()) };
            }
        }
        failing::counted(isize::from(!piece.is_null()));
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        failing::counted(-1);
        if is_reserve(piece) {
            give_back();
        } else if let Some(server) = server_has(layout) {
            // SAFETY: the piece is the server's.
            unsafe { (server.free)(piece) };
        } else {
            // SAFETY: the piece is the system's.
            unsafe { System.dealloc(piece, layout) };
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return null_mut();
        };
        if !is_reserve(piece) {
            // SAFETY: the caller's duty.
            let other = unsafe { resize(piece, layout, wanted) };
            if !other.is_null() {
                return other;
            }
        }
        let other = take(wanted);
        if !other.is_null() {
            failing::counted(1);
            // SAFETY: both have that many bytes and do not overlap; the old piece is given back once.
            unsafe {
                other.copy_from_nonoverlapping(piece, layout.size().min(size));
                self.dealloc(piece, layout);
            }
        }
        other
    }
}
