//! Ranked values of an index, and its rows in order if no index is built, for C.

use crate::index::{guarded, IndexStatus, IndexStepDef};
use crate::plan::slice;
use pgsluice_core::index_sort::build::IndexBuild;
use pgsluice_core::index_sort::BuildFailure;

/// The distinct values of a ranked attribute.
#[derive(Debug)]
#[repr(C)]
pub struct IndexValuesDef {
    /// each as a Datum points to it, or the eight bytes of a Datum; aligned to eight bytes
    pub images: *const u8,
    /// where each begins in `images`, in units of eight bytes
    pub starts: *const u32,
    /// how many there are
    pub count: usize,
}

/// Returns the distinct values of a ranked attribute; they stay where they are until the next row
/// is added. [`IndexStatus::Go`]: the attribute is ranked.
///
/// # Safety
///
/// `build` is live and not used by another call; `values` is valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_values(
    build: *const IndexBuild,
    attribute: usize,
    values: *mut IndexValuesDef,
) -> IndexStatus {
    // SAFETY: the caller's duty.
    let (build, values) = unsafe { (&*build, &mut *values) };
    guarded(|| {
        let dictionary = build.shape().dictionary(attribute).ok_or(BuildFailure::Corrupt)?;
        let (images, starts) = dictionary.values();
        // The allocator aligns to sixteen bytes, but no type guarantees that.
        if !images.is_empty() && !(images.as_ptr() as usize).is_multiple_of(8) {
            return Ok(IndexStatus::Panic);
        }
        *values = IndexValuesDef {
            images: images.as_ptr(),
            starts: starts.as_ptr(),
            count: starts.len(),
        };
        Ok(IndexStatus::Go)
    })
}

/// Numbers the values of all rows that were added; called before [`pgsluice_index_values`].
/// [`IndexStatus::Crowded`]: there are too many values.
///
/// # Safety
///
/// `build` is live and not used by another call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_settle(build: *mut IndexBuild) -> IndexStatus {
    // SAFETY: the caller's duty.
    guarded(|| match unsafe { &mut *build }.settle()? {
        true => Ok(IndexStatus::Go),
        false => Ok(IndexStatus::Crowded),
    })
}

/// Takes the order of all values of a ranked attribute: their numbers in ascending order, and
/// whether each value is equal to the one before it.
///
/// # Safety
///
/// `build` is live and not used by another call; `order` and `equal` are valid for `count` items.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_rank(
    build: *mut IndexBuild,
    attribute: usize,
    order: *const u32,
    equal: *const bool,
    count: usize,
) -> IndexStatus {
    // SAFETY: the caller's duty.
    let (build, order, equal) = unsafe { (&mut *build, slice(order, count), slice(equal, count)) };
    guarded(|| {
        let dictionary =
            build.shape_mut().dictionary_mut(attribute).ok_or(BuildFailure::Corrupt)?;
        dictionary.rank(order, equal)?;
        Ok(IndexStatus::Go)
    })
}

/// Sorts the rows that were added, for [`pgsluice_index_sorted`]; nothing is built.
///
/// # Safety
///
/// `build` is live and not used by another call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_sort(build: *mut IndexBuild) -> IndexStatus {
    // SAFETY: the caller's duty.
    guarded(|| unsafe { &mut *build }.sort().map(|()| IndexStatus::Go))
}

/// Returns index tuples of `step.rows` sorted rows, from row `from` on, in `step.bytes`, until the
/// next call; [`IndexStatus::Done`]: there are none, and all rows are removed.
///
/// # Safety
///
/// `build` is live and not used by another call; `step` is valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_sorted(
    build: *mut IndexBuild,
    from: usize,
    step: *mut IndexStepDef,
) -> IndexStatus {
    guarded(|| {
        // SAFETY: the caller's duty.
        let (build, step) = unsafe { (&mut *build, &mut *step) };
        step.rows = build.sorted(from)? as u64;
        if step.rows == 0 {
            build.clear();
            return Ok(IndexStatus::Done);
        }
        (step.bytes, step.len) = (build.output().as_ptr(), build.output().len());
        Ok(IndexStatus::Go)
    })
}
