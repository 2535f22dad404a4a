//! Large buffers of the library's come from the functions that C has set, and go back to them.
//!
//! Without the usual harness: nothing may have a large buffer before the functions are set.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pgsluice_ffi::{pgsluice_large_pieces, LargePieces};

const LARGE: usize = 16 << 10;
/// Before each piece lies its size.
const HEADER: usize = 16;
/// Above this there is no memory.
const MOST: usize = 1 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static RESIZED: AtomicUsize = AtomicUsize::new(0);

static PIECES: LargePieces = LargePieces { alloc, realloc, free };

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size + HEADER, HEADER).unwrap()
}

extern "C" fn alloc(size: usize) -> *mut u8 {
    assert!(size >= LARGE);
    if size > MOST {
        return null_mut();
    }
    LIVE.fetch_add(1, Relaxed);
    // SAFETY: the size is not 0, and a header fits in front.
    unsafe {
        let block = System.alloc(layout(size));
        block.cast::<usize>().write(size);
        block.add(HEADER)
    }
}

unsafe extern "C" fn realloc(piece: *mut u8, size: usize) -> *mut u8 {
    let other = alloc(size);
    if !other.is_null() {
        RESIZED.fetch_add(1, Relaxed);
        // SAFETY: both have that many bytes; the old one is freed once.
        unsafe {
            let old = piece.sub(HEADER).cast::<usize>().read();
            other.copy_from_nonoverlapping(piece, old.min(size));
            free(piece);
        }
    }
    other
}

unsafe extern "C" fn free(piece: *mut u8) {
    LIVE.fetch_sub(1, Relaxed);
    // SAFETY: `alloc` gave it.
    unsafe {
        let block = piece.sub(HEADER);
        System.dealloc(block, layout(block.cast::<usize>().read()));
    }
}

fn main() {
    // SAFETY: they live for good and do as they should; no large buffer is there yet.
    unsafe { pgsluice_large_pieces(&PIECES) };
    let live = || LIVE.load(Relaxed);

    // It grows from the system's memory into these functions', and within it.
    let mut bytes: Vec<u8> = Vec::with_capacity(100);
    bytes.extend_from_slice(b"the first");
    assert_eq!(live(), 0);
    bytes.reserve_exact(LARGE);
    assert_eq!((live(), RESIZED.load(Relaxed)), (1, 0));
    bytes.resize(4 * LARGE, 7);
    assert!(live() == 1 && RESIZED.load(Relaxed) > 0);
    assert!(bytes.starts_with(b"the first") && bytes.ends_with(&[7; 100]));

    let zeroed = vec![0u8; LARGE];
    assert!(live() == 2 && zeroed.iter().all(|&byte| byte == 0));
    drop(zeroed);
    assert_eq!(live(), 1);

    // Where there is no memory a buffer stays as it was, whichever side it is on.
    assert!(bytes.try_reserve_exact(MOST).is_err());
    assert!(live() == 1 && bytes.starts_with(b"the first") && bytes.ends_with(&[7; 100]));
    let mut little = vec![3u8; 100];
    assert!(little.try_reserve_exact(MOST).is_err());
    assert!(live() == 1 && little == [3; 100]);

    // And back.
    bytes.truncate(9);
    bytes.shrink_to_fit();
    assert_eq!(live(), 0);
    assert_eq!(bytes, b"the first");
}
