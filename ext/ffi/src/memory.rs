//! The allocator of the library: where memory runs out, a reserve lasts to the end of the call.
//!
//! Rust aborts the process when an allocation fails that cannot say so, and with it every
//! connection of the server. What is large is reserved fallibly. What is small comes, when there is
//! no more, from memory that was set aside, and the entry that was called answers that there was none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const SIZE: usize = 256 << 10;

#[repr(align(64))]
struct Memory(UnsafeCell<[u8; SIZE]>);

// SAFETY: its bytes are reached through the pieces that `take` hands out, each to one owner.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; SIZE]));
/// Bytes that were handed out, times 2^32, and pieces that have not come back. When all have, it
/// begins anew.
static STATE: AtomicU64 = AtomicU64::new(0);
static RAN_OUT: AtomicBool = AtomicBool::new(false);

/// The system's allocator, and the reserve behind it.
pub(crate) struct WithReserve;

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

/// Whether memory has run out since this was asked last.
pub(crate) fn ran_out() -> bool {
    RAN_OUT.swap(false, Relaxed)
}

/// A piece of the reserve, or NULL where it is too small.
fn take(layout: Layout) -> *mut u8 {
    let mut start = 0;
    let taken = STATE.fetch_update(Relaxed, Relaxed, |state| {
        start = ((state >> 32) as usize).next_multiple_of(layout.align());
        let end = start.checked_add(layout.size()).filter(|end| *end <= SIZE)?;
        Some((end as u64) << 32 | ((state & 0xffff_ffff) + 1))
    });
    if taken.is_err() || layout.align() > 64 {
        return std::ptr::null_mut();
    }
    RAN_OUT.store(true, Relaxed);
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

#[cfg(any(test, feature = "faults"))]
thread_local! {
    /// So many allocations of this thread still succeed; less than 0: all.
    static LEFT: std::cell::Cell<isize> = const { std::cell::Cell::new(-1) };
    /// How many have not.
    static FAILED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The system seems to have no more memory for this thread.
#[cfg(feature = "faults")]
pub(crate) fn fail_from_now() {
    LEFT.set(0);
}

/// It has some again.
#[cfg(feature = "faults")]
pub(crate) fn fail_no_more() {
    LEFT.set(-1);
}

/// Whether the system is to be asked; tests make it seem to have no more.
fn system_has_more() -> bool {
    #[cfg(any(test, feature = "faults"))]
    {
        let left = LEFT.get();
        if left == 0 {
            FAILED.set(FAILED.get() + 1);
            return false;
        }
        LEFT.set(left - 1);
    }
    true
}

// SAFETY: pieces are the system's or the reserve's, and each goes back to where it is from.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if system_has_more() {
            // SAFETY: the caller's duty.
            let piece = unsafe { System.alloc(layout) };
            if !piece.is_null() {
                return piece;
            }
        }
        take(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if system_has_more() {
            // SAFETY: the caller's duty.
            let piece = unsafe { System.alloc_zeroed(layout) };
            if !piece.is_null() {
                return piece;
            }
        }
        let piece = take(layout);
        if !piece.is_null() {
            // SAFETY: it has that size.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if is_reserve(piece) {
            give_back();
        } else {
            // SAFETY: it is the system's.
            unsafe { System.dealloc(piece, layout) };
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let ours = is_reserve(piece);
        if !ours && system_has_more() {
            // SAFETY: the caller's duty; it is the system's.
            let grown = unsafe { System.realloc(piece, layout, size) };
            if !grown.is_null() {
                return grown;
            }
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return std::ptr::null_mut();
        };
        let grown = take(wanted);
        if !grown.is_null() {
            // SAFETY: both have that many bytes and do not overlap; the old piece is given back once.
            unsafe {
                grown.copy_from_nonoverlapping(piece, layout.size().min(size));
                self.dealloc(piece, layout);
            }
        }
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{ColumnDef, DialectDef, EnvDef, LabelDef};
    use crate::{pgsluice_form, pgsluice_plan, pgsluice_plan_free, AskDef, Row, Slice, Status};

    fn column(type_oid: u32, source: i32, len: i16, align: u8) -> ColumnDef {
        ColumnDef {
            type_oid,
            typmod: -1,
            source,
            labels: std::ptr::null(),
            nlabels: 0,
            given: std::ptr::null(),
            given_len: 0,
            len,
            align,
            element_align: 4,
            packable: len < 0,
            not_null: false,
            force_null: false,
            force_not_null: false,
        }
    }

    /// Whether memory has run out is one flag of the process.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// int4, text, numeric, timestamptz, int4[], an enum and a default.
    fn plan() -> *mut crate::Plan {
        let labels = [LabelDef { label: b"sad".as_ptr(), len: 3, oid: 7 }];
        let mut columns = [
            column(23, 0, 4, 4),
            column(25, 1, -1, 4),
            column(1700, 2, -1, 4),
            column(1184, 3, 8, 8),
            column(1007, 4, -1, 4),
            column(0, 5, 4, 4),
            column(25, crate::plan::FROM_GIVEN, -1, 4),
        ];
        columns[5].labels = labels.as_ptr();
        columns[5].nlabels = 1;
        columns[6].given = b"default".as_ptr();
        columns[6].given_len = 7;
        let dialect = DialectDef {
            null: b"".as_ptr(),
            null_len: 0,
            default: std::ptr::null(),
            default_len: 0,
            binary: false,
            csv: true,
            dot_ends: true,
            delimiter: b',',
            quote: b'"',
            escape: b'"',
        };
        let env = EnvDef { utc: true, date_order: 0, money_c: true, single_byte: false };
        // SAFETY: all pointers are valid for the call.
        unsafe { pgsluice_plan(columns.as_ptr(), columns.len(), 6, &dialect, &env) }
    }

    /// Forms the data from memory that ends where the data ends.
    fn form(plan: *mut crate::Plan, data: &[u8]) -> (Status, usize) {
        let mut formed = (Status::Panic, 0);
        form_with(plan, data, |call| formed = call());
        formed
    }

    fn form_with(
        plan: *mut crate::Plan,
        data: &[u8],
        within: impl FnOnce(&mut dyn FnMut() -> (Status, usize)),
    ) {
        let input = data.to_vec().into_boxed_slice();
        let mut arena = vec![0u64; 4096].into_boxed_slice();
        let mut rows: Vec<Row> = Vec::with_capacity(64);
        let mut asks: Vec<AskDef> = Vec::with_capacity(256);
        let mut slice = Slice {
            input: input.as_ptr(),
            input_len: input.len(),
            arena: arena.as_mut_ptr().cast(),
            arena_len: 4096 * 8,
            arena_used: 0,
            rows: rows.as_mut_ptr(),
            rows_len: 64,
            asks: asks.as_mut_ptr(),
            asks_len: 256,
            rows_used: 0,
            consumed: 0,
            lines: 0,
            eol: 0,
            last: true,
            pack: false,
            page_longest: 0,
            page_reserve: 0,
            page_limit: 0,
            pages: 0,
            paged: 0,
        };
        within(&mut || {
            // SAFETY: as the struct says.
            let status = unsafe { pgsluice_form(plan, &mut slice) };
            (status, slice.rows_used)
        });
        assert!(slice.consumed <= input.len() && slice.rows_used <= 64);
    }

    const GOOD: &[u8] =
        b"1,\"a \"\"b\"\"\",12.50,2024-02-29 12:00:00+00,\"{1,NULL,3}\",sad\n2,,,,,\n";

    /// Each allocation fails once, and all after it: an answer, never an abort.
    #[test]
    fn memory_runs_out_anywhere() {
        let _alone = ONE_AT_A_TIME.lock();
        let mut answers = [0; 3];
        for left in 0.. {
            LEFT.set(left);
            let plan = plan();
            LEFT.set(-1);
            let spent = FAILED.take() > 0;
            answers[usize::from(!plan.is_null())] += 1;
            // SAFETY: made above, or NULL.
            unsafe { pgsluice_plan_free(plan) };
            if !spent {
                break;
            }
        }
        assert!(answers[0] > 5 && answers[1] == 1, "{answers:?}");
        let whole = plan();
        assert_eq!(form(whole, GOOD), (Status::More, 2));
        // SAFETY: made above.
        unsafe { pgsluice_plan_free(whole) };
    }

    /// The same while rows are formed, by a plan that has formed none.
    #[test]
    fn memory_runs_out_while_rows_are_formed() {
        let _alone = ONE_AT_A_TIME.lock();
        for left in 0.. {
            let plan = plan();
            let data = GOOD.repeat(3);
            let mut formed = (Status::Panic, 0);
            let mut spent = false;
            // The test's own allocations come first.
            form_with(plan, &data, |call| {
                LEFT.set(left);
                formed = call();
                LEFT.set(-1);
                spent = FAILED.take() > 0;
            });
            // SAFETY: made above.
            unsafe { pgsluice_plan_free(plan) };
            if !spent {
                assert_eq!(formed, (Status::More, 6));
                break;
            }
            assert_eq!(formed.0, Status::Memory);
        }
    }

    /// Random bytes read nothing beyond their end: what a memory checker watches.
    #[test]
    fn random_bytes() {
        let _alone = ONE_AT_A_TIME.lock();
        let plan = plan();
        let mut seed = 12345u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % below
        };
        for _ in 0..2000 {
            let mut data = GOOD.repeat(1 + random(3));
            for _ in 0..random(6) {
                let at = random(data.len());
                match random(3) {
                    0 => data[at] = b"\",\n\r{}x0-."[random(10)],
                    1 => data.truncate(at),
                    _ => drop(data.remove(at)),
                }
                if data.is_empty() {
                    data.push(b',');
                }
            }
            let (status, _) = form(plan, &data);
            assert_ne!(status, Status::Panic, "{:?}", String::from_utf8_lossy(&data));
        }
        // SAFETY: made above.
        unsafe { pgsluice_plan_free(plan) };
    }
}
