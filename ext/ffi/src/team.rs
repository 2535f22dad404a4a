//! Rows of one index that several processes have collected, for C.

use crate::index::{guarded, IndexStatus, IndexStepDef};
use crate::plan::slice;
use pgsluice_core::index_sort::build::IndexBuild;
use pgsluice_core::index_sort::merge::Extent;
use pgsluice_core::index_sort::run::Entry;
use pgsluice_core::index_sort::team::{Handed, Spread};
use pgsluice_core::index_sort::BuildFailure;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Adds the rows of this build to those that `spread` describes. `false`: they cannot be handed
/// over.
///
/// # Safety
///
/// `build` is live and not used by another call; `spread` is valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_spread(
    build: *const IndexBuild,
    spread: *mut Spread,
) -> bool {
    // SAFETY: the caller's duty.
    let (build, spread) = unsafe { (&*build, &mut *spread) };
    let with_own = || build.spread().map(|own| spread.with(own));
    let Ok(Some(both)) = catch_unwind(AssertUnwindSafe(with_own)) else { return false };
    *spread = both;
    true
}

/// Adds the rows that `other` describes to `spread`.
///
/// # Safety
///
/// Both are valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_spread_with(spread: *mut Spread, other: *const Spread) {
    // SAFETY: the caller's duty.
    let (spread, other) = unsafe { (&mut *spread, &*other) };
    // Nothing here can panic.
    *spread = spread.with(*other);
}

/// Sorts the rows in the common layout of all builds, if there is one. In both cases, points
/// `step.bytes` to what is to be handed over, which lives until the next call.
///
/// # Safety
///
/// `build` is live and not used by another call; `spread` and `step` are valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_sort_as(
    build: *mut IndexBuild,
    spread: *const Spread,
    step: *mut IndexStepDef,
) -> IndexStatus {
    guarded(|| {
        // SAFETY: the caller's duty.
        let (build, spread, step) = unsafe { (&mut *build, &*spread, &mut *step) };
        build.sort_as(spread)?;
        (step.bytes, step.len) = match build.handed() {
            Handed::Words(words) => (words.as_ptr().cast(), size_of_val(words)),
            Handed::Entries(entries) => (entries.as_ptr().cast(), size_of_val(entries)),
        };
        Ok(IndexStatus::Go)
    })
}

/// Adds the rows that another build of the same spread has handed over.
///
/// # Safety
///
/// `build` is live and not used by another call; `bytes` is valid for `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_join(
    build: *mut IndexBuild,
    bytes: *const u8,
    len: usize,
) -> IndexStatus {
    guarded(|| {
        // SAFETY: the caller's duty.
        let build = unsafe { &mut *build };
        let (size, align) = match build.handed() {
            Handed::Words(_) => (size_of::<u64>(), align_of::<u64>()),
            Handed::Entries(_) => (size_of::<Entry>(), align_of::<Entry>()),
        };
        if !len.is_multiple_of(size) || !(bytes as usize).is_multiple_of(align) {
            return Err(BuildFailure::Corrupt);
        }
        // SAFETY: `len` bytes are that many items, and they have the items' alignment. Any bytes
        // are valid words, and an entry consists of three words.
        let handed = unsafe {
            match build.handed() {
                Handed::Words(_) => Handed::Words(slice(bytes.cast(), len / size)),
                Handed::Entries(_) => Handed::Entries(slice(bytes.cast(), len / size)),
            }
        };
        build.join(handed)?;
        Ok(IndexStatus::Go)
    })
}

/// From now on, the rows may take up to `bytes` bytes.
///
/// # Safety
///
/// `build` is live and not used by another call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_limit(build: *mut IndexBuild, bytes: usize) {
    // SAFETY: the caller's duty.
    unsafe { &mut *build }.limit(bytes); // sets a number: it cannot panic
}

/// Sorts the rows that were added, to be spilled: the next steps write them. [`IndexStatus::Done`]:
/// there are none.
///
/// # Safety
///
/// `build` is live and not used by another call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_spill(build: *mut IndexBuild) -> IndexStatus {
    // SAFETY: the caller's duty.
    guarded(|| match unsafe { &mut *build }.spill()? {
        true => Ok(IndexStatus::Go),
        false => Ok(IndexStatus::Done),
    })
}

/// Points `step.bytes` to the places of the runs in the temporary file, two words for each: its
/// first byte and the one after its last. They live until the next call.
///
/// # Safety
///
/// `build` is live and not used by another call; `step` is valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_runs(
    build: *mut IndexBuild,
    step: *mut IndexStepDef,
) -> IndexStatus {
    guarded(|| {
        // SAFETY: the caller's duty.
        let (build, step) = unsafe { (&mut *build, &mut *step) };
        let runs = build.runs();
        (step.bytes, step.len) = (runs.as_ptr().cast(), size_of_val(runs));
        Ok(IndexStatus::Go)
    })
}

/// Takes over a run of another build, whose bytes are supplied for these places.
///
/// # Safety
///
/// `build` is live and not used by another call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_adopt(
    build: *mut IndexBuild,
    start: u64,
    end: u64,
) -> IndexStatus {
    // SAFETY: the caller's duty.
    guarded(|| unsafe { &mut *build }.adopt(Extent { start, end }).map(|()| IndexStatus::Go))
}
