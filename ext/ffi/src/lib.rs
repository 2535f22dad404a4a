//! The C interface of the core for the server extension.
//!
//! `pgsluice_core.h` is its other half. The rules of this border:
//!
//! - Rust never calls PostgreSQL, so that `longjmp` never crosses its frames.
//! - Every entry catches panics and answers [`Status::Panic`].
//! - Bytes and tuples live in memory that C hands in; what Rust allocates for
//!   itself is bounded by the size of a slice; what is large is reserved fallibly
//!   when the plan is made, because a failed allocation would abort the backend,
//!   and what is small has a reserve ([`memory`]).

#[cfg(feature = "faults")]
mod faults;
mod form;
mod index;
mod index_page;
mod memory;
mod plan;
mod rank;
mod team;

use std::panic::{catch_unwind, AssertUnwindSafe};

pub use form::{Row, Slice, Status};
pub use index::{IndexAttributeDef, IndexRulesDef, IndexStatus, IndexStepDef};
pub use index_page::{IndexColumnDef, IndexTupleDef};
pub use pgsluice_core::sink::Ask as AskDef;
pub use pgsluice_core::sort::team::Spread as IndexSpreadDef;
pub use plan::{ColumnDef, DialectDef, EnvDef, LabelDef, Plan};
pub use rank::IndexValuesDef;

/// Makes a plan; NULL where it cannot be made. [`pgsluice_plan_free`] frees it.
///
/// # Safety
///
/// All pointers, and those within the structs, are valid for the lengths beside them.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_plan(
    columns: *const ColumnDef,
    ncolumns: usize,
    fields: usize,
    dialect: *const DialectDef,
    env: *const EnvDef,
) -> *mut Plan {
    memory::ran_out();
    let made = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "faults")]
        // SAFETY: the caller's duty, as above.
        let _faults = faults::of(unsafe { plan::slice((*dialect).null, (*dialect).null_len) });
        // SAFETY: the caller's duty, as above.
        let plan =
            unsafe { plan::Plan::new(plan::slice(columns, ncolumns), fields, &*dialect, &*env) };
        let plan = plan.map(Box::new).filter(|_| !memory::ran_out());
        plan.map_or(std::ptr::null_mut(), Box::into_raw)
    }));
    made.unwrap_or(std::ptr::null_mut())
}

/// Frees a plan.
///
/// # Safety
///
/// `plan` is one that [`pgsluice_plan`] made, or NULL, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_plan_free(plan: *mut Plan) {
    if !plan.is_null() {
        // SAFETY: made by Box::into_raw in pgsluice_plan, given back once.
        let plan = unsafe { Box::from_raw(plan) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(plan)));
    }
}

/// Whether the core reads the text of the base type with this `pg_type.oid`.
#[no_mangle]
pub extern "C" fn pgsluice_reads(oid: u32) -> bool {
    catch_unwind(|| plan::reads(oid)).unwrap_or(false)
}

/// How many bytes at the front of `data` are valid UTF-8 without NUL.
///
/// # Safety
///
/// `data` is valid for `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_valid_utf8(data: *const u8, len: usize) -> usize {
    // SAFETY: the caller's duty.
    let data = unsafe { plan::slice(data, len) };
    catch_unwind(|| form::valid_utf8(data)).unwrap_or(0)
}

/// Turns the records at the front of a slice into tuples.
///
/// # Safety
///
/// `plan` is a live plan that no other call uses; `slice` is valid, and so are
/// its `input` (valid UTF-8), `arena` (aligned to 8), `rows` and `asks` for the lengths
/// beside them; they do not overlap.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_form(plan: *mut Plan, slice: *mut Slice) -> Status {
    let formed = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller's duty.
        let (plan, slice) = unsafe { (&mut *plan, &mut *slice) };
        #[cfg(feature = "faults")]
        // SAFETY: the caller's duty.
        let _faults = faults::of(unsafe { plan::slice(slice.input, slice.input_len) });
        // SAFETY: the caller's duty.
        unsafe { form::form(plan, slice) }
    }));
    if memory::ran_out() {
        return Status::Memory;
    }
    formed.unwrap_or(Status::Panic)
}
