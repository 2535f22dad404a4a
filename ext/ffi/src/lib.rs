//! The C interface of the core for the server extension.
//!
//! `pgsluice_core.h` is its other half. The rules of this border:
//!
//! - Rust never calls PostgreSQL, so `longjmp` never crosses its frames. It calls back two kinds of
//!   C functions, which raise no error: those for [large buffers](memory::LargePieces), and the one
//!   that says whether to stop a sort.
//! - Every entry in which anything could panic catches the panic and returns [`Status::Panic`], or
//!   NULL.
//! - Bytes and tuples are in memory that C passes in. What Rust allocates itself is bounded: by the
//!   size of a slice, or by the memory of an index build.
//! - Every allocation can fail, and the failure is returned as [`Status::Memory`], or NULL.
//!   Otherwise Rust would abort the backend, and with it every session of the server
//!   (`pgsluice_core::memory`; the lints of `clippy.toml` ban what would abort). A panic needs a
//!   little memory that cannot be refused; some is set aside for it ([`memory`]).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)
)]

mod datum;
#[cfg(test)]
mod exhaustion;
#[cfg(feature = "faults")]
mod faults;
mod form;
mod index;
mod index_page;
mod memory;
mod plan;
mod rank;
mod team;

use pgsluice_core::memory::{try_box, OutOfMemory};
use std::panic::{catch_unwind, AssertUnwindSafe};

pub use form::{Row, Slice, Status};
pub use index::{IndexAttributeDef, IndexRulesDef, IndexStatus, IndexStepDef};
pub use index_page::IndexColumnDef;
pub use memory::{pgsluice_large_pieces, LargePieces};
pub use pgsluice_core::index_sort::team::Spread as IndexSpreadDef;
pub use pgsluice_core::sink::Ask as AskDef;
pub use plan::{ColumnDef, DialectDef, EnvDef, FormPlan, LabelDef};
pub use rank::IndexValuesDef;

/// Makes panics go to the server's log as they are. Rust's own hook may add a backtrace, for which
/// there might be no memory.
#[cfg(not(test))]
#[allow(clippy::disallowed_methods)] // a box of nothing needs no memory
fn report_panics() {
    use std::io::Write;
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let _ = writeln!(std::io::stderr(), "pgsluice: {panic}");
        }));
    });
}

/// Makes an object that C owns. NULL: it cannot be made, memory is lacking, or making it panicked.
fn hand_out<T>(make: impl FnOnce() -> Result<Option<T>, OutOfMemory>) -> *mut T {
    #[cfg(not(test))]
    report_panics();
    memory::ran_out();
    let made = catch_unwind(AssertUnwindSafe(|| make()?.map(try_box).transpose()));
    match made {
        Ok(Ok(Some(made))) if !memory::ran_out() => Box::into_raw(made),
        _ => std::ptr::null_mut(),
    }
}

/// Frees an object that [`hand_out`] made.
///
/// # Safety
///
/// `made` is from [`hand_out`], or NULL, and is not used again.
unsafe fn free<T>(made: *mut T) {
    if !made.is_null() {
        // SAFETY: made by Box::into_raw, given back once.
        let made = unsafe { Box::from_raw(made) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(made)));
    }
}

/// Makes a plan; NULL if that is not possible. [`pgsluice_plan_free`] frees it.
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
) -> *mut FormPlan {
    hand_out(|| {
        #[cfg(feature = "faults")]
        // SAFETY: the caller's duty, as above.
        let _faults = faults::of(unsafe { plan::slice((*dialect).null, (*dialect).null_len) });
        // SAFETY: the caller's duty, as above.
        unsafe {
            plan::FormPlan::new(plan::slice(columns, ncolumns), fields, &*dialect, &*env).map(Some)
        }
    })
}

/// Frees a plan.
///
/// # Safety
///
/// `plan` is one that [`pgsluice_plan`] made, or NULL, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_plan_free(plan: *mut FormPlan) {
    // SAFETY: the caller's duty.
    unsafe { free(plan) }
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
pub unsafe extern "C" fn pgsluice_form(plan: *mut FormPlan, slice: *mut Slice) -> Status {
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
