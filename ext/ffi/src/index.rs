//! The build of an index for C: rows go in; requests and pages come out.

use crate::datum::{field, plain_field};
use crate::plan::slice;
use pgsluice_core::index_sort::build::{IndexBuild, Step};
use pgsluice_core::index_sort::interrupt::Interrupts;
use pgsluice_core::index_sort::run::Added;
use pgsluice_core::index_sort::shape::{Attribute, IndexShape, Order, MAX_ATTRIBUTES};
use pgsluice_core::index_sort::tuple::Field;
use pgsluice_core::index_sort::BuildFailure;
use pgsluice_core::memory::{Fallible, OutOfMemory};
use pgsluice_core::page::btree;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// One attribute of an index.
#[derive(Debug)]
#[repr(C)]
pub struct IndexAttributeDef {
    /// `attlen`
    pub len: i16,
    /// `attalign` in bytes
    pub align: u8,
    /// `attbyval`
    pub by_value: bool,
    /// 0 signed, 1 unsigned, 2 float, 3 fixed, 4 text, 5 bytea, 6 carried, 7 ranked: [`Order`]
    pub order: u8,
    /// `DESC`
    pub descending: bool,
    /// `NULLS FIRST`
    pub nulls_first: bool,
    /// for ranked values: equal values have equal bytes
    pub exact: bool,
}

/// The rules of an index.
#[derive(Debug)]
#[repr(C)]
pub struct IndexRulesDef {
    /// how many of the attributes are the key
    pub keys: usize,
    /// bytes that the rows in memory may use
    pub memory: usize,
    /// bytes to leave free on a leaf
    pub leaf_free: u16,
    /// reject rows with equal keys
    pub unique: bool,
    /// for that, NULLs are equal
    pub nulls_not_distinct: bool,
    /// report the first row of the table that repeats a key, not the first such key
    pub first_in_table: bool,
    /// report rows with equal keys, and reject none
    pub reports_pairs: bool,
    /// form posting lists
    pub deduplicate: bool,
    /// a ranked value may be compressed in one row and not in another
    pub mixed: bool,
    /// called while rows are sorted: whether the caller wants to stop; or NULL
    pub interrupted: Option<extern "C" fn() -> bool>,
}

/// The result of a call, and what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum IndexStatus {
    /// done; after a step: continue
    Go = 0,
    /// added; flush before the next row
    Full = 1,
    /// not added: only the server's own build accepts this value
    Unfit = 2,
    /// append the bytes to the temporary file
    Write = 3,
    /// supply bytes of the temporary file
    Read = 4,
    /// take the pages
    Pages = 5,
    /// the run is written: more rows may be added
    Add = 6,
    /// the tree is complete
    Done = 7,
    /// two rows have the same key
    Duplicate = 8,
    /// out of memory
    NoMemory = 9,
    /// the temporary file does not hold what was written
    Corrupt = 10,
    /// a bug
    Panic = 11,
    /// not added: a ranked attribute has too many distinct values
    Crowded = 12,
    /// the caller has said that it wants to stop
    Interrupted = 13,
}

/// What a step needs or returns, by its status.
#[derive(Debug)]
#[repr(C)]
pub struct IndexStepDef {
    /// Write: the bytes; Duplicate: an index tuple with the key
    pub bytes: *const u8,
    /// how many
    pub len: usize,
    /// Read: first byte in the file; Duplicate: address of the first row with the key
    pub start: u64,
    /// Read: byte after the last
    pub end: u64,
    /// rows in the tree
    pub rows: u64,
    /// Done: block of the root, 0 if there is none
    pub root: u32,
    /// Done: its level
    pub level: u32,
}

impl From<BuildFailure> for IndexStatus {
    fn from(failure: BuildFailure) -> Self {
        match failure {
            BuildFailure::OutOfMemory => IndexStatus::NoMemory,
            BuildFailure::Corrupt => IndexStatus::Corrupt,
            BuildFailure::Duplicate => IndexStatus::Duplicate,
            BuildFailure::Interrupted => IndexStatus::Interrupted,
        }
    }
}

pub(crate) fn guarded(what: impl FnOnce() -> Result<IndexStatus, BuildFailure>) -> IndexStatus {
    crate::memory::ran_out();
    match catch_unwind(AssertUnwindSafe(what)) {
        Ok(Ok(_)) if crate::memory::ran_out() => IndexStatus::NoMemory,
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.into(),
        Err(_) => IndexStatus::Panic,
    }
}

/// The shape of an index; `None` if it is not possible.
fn shape_of(
    defs: &[IndexAttributeDef],
    rules: &IndexRulesDef,
) -> Result<Option<IndexShape>, OutOfMemory> {
    let order = |order| {
        Some(match order {
            0 => Order::Signed,
            1 => Order::Unsigned,
            2 => Order::Float,
            3 => Order::Fixed,
            4 => Order::Text,
            5 => Order::Bytea,
            6 => Order::Carried,
            7 => Order::Ranked,
            _ => return None,
        })
    };
    let attribute = |def: &IndexAttributeDef| {
        Some(Attribute {
            len: def.len,
            align: def.align,
            by_value: def.by_value,
            order: order(def.order)?,
            descending: def.descending,
            nulls_first: def.nulls_first,
            exact: def.exact,
        })
    };
    let mut attributes = Vec::with_room(defs.len())?;
    for def in defs {
        let Some(attribute) = attribute(def) else { return Ok(None) };
        attributes.push_within(attribute);
    }
    let Some(mut shape) = IndexShape::new(attributes, rules.keys) else { return Ok(None) };
    shape.unique = rules.unique;
    shape.nulls_not_distinct = rules.nulls_not_distinct;
    shape.first_in_table = rules.first_in_table;
    shape.reports_pairs = rules.reports_pairs;
    shape.deduplicate &= rules.deduplicate;
    shape.mixed = rules.mixed;
    shape.leaf_free = rules.leaf_free;
    shape.interrupts = Interrupts(rules.interrupted);
    Ok(Some(shape))
}

/// Begins a build; NULL if that is not possible. [`pgsluice_index_free`] frees it.
///
/// # Safety
///
/// `attributes` is valid for `count` items, `rules` is valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_new(
    attributes: *const IndexAttributeDef,
    count: usize,
    rules: *const IndexRulesDef,
) -> *mut IndexBuild {
    crate::hand_out(|| {
        // SAFETY: the caller's duty.
        let (attributes, rules) = unsafe { (slice(attributes, count), &*rules) };
        let Some(shape) = shape_of(attributes, rules)? else { return Ok(None) };
        IndexBuild::new(shape, rules.memory).map(Some)
    })
}

/// Frees a build.
///
/// # Safety
///
/// `build` is one that [`pgsluice_index_new`] made, or NULL, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_free(build: *mut IndexBuild) {
    // SAFETY: the caller's duty.
    unsafe { crate::free(build) }
}

/// Adds a row with address `tid` (block number << 16 | offset number). `stored`: its values are as
/// `index_form_tuple` stores them, or their storage is plain. If not, a value that may be stored
/// otherwise is not accepted.
///
/// # Safety
///
/// `build` is live and not used by another call; `values` and `nulls` have an item for each
/// attribute; a value that is not NULL is a Datum of its attribute.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_add(
    build: *mut IndexBuild,
    tid: u64,
    dead: bool,
    stored: bool,
    values: *const usize,
    nulls: *const bool,
) -> IndexStatus {
    guarded(|| {
        // SAFETY: the caller's duty.
        let build = unsafe { &mut *build };
        let count = build.shape().attributes().len();
        // SAFETY: the caller's duty: an item for each attribute.
        let (values, nulls) = unsafe { (slice(values, count), slice(nulls, count)) };
        // One column is by far the most common, and rows wait only with one.
        if count == 1 {
            // SAFETY: the caller's duty: a Datum of the attribute.
            return match unsafe { plain_field(build.shape(), 0, values[0], nulls[0], stored) } {
                Ok(field) => add_one(build, tid, dead, field),
                Err(status) => Ok(status),
            };
        }
        // SAFETY: the caller's duty.
        unsafe {
            match count {
                ..=FEW => add_fields::<FEW>(build, tid, dead, stored, values, nulls),
                _ => add_fields::<MAX_ATTRIBUTES>(build, tid, dead, stored, values, nulls),
            }
        }
    })
}

/// Adds a row of one column. Its value needs no number as long as the row can wait with others.
#[inline]
fn add_one(
    build: &mut IndexBuild,
    tid: u64,
    dead: bool,
    field: Option<Field>,
) -> Result<IndexStatus, BuildFailure> {
    if let Some(added) = build.add_waiting(tid, dead, field)? {
        return Ok(added.into());
    }
    if !build.settle()? {
        return Ok(IndexStatus::Crowded);
    }
    let field = match field {
        Some(field) => match build.shape_mut().intern(0, field)? {
            None => return Ok(IndexStatus::Crowded),
            interned => interned,
        },
        None => None,
    };
    Ok(build.add(tid, dead, |_| field)?.into())
}

/// Few columns are the common case. Setting up fields for the most columns possible would take
/// longer than a row.
const FEW: usize = 4;

/// Adds a row of up to `MOST` columns.
///
/// # Safety
///
/// As for [`pgsluice_index_add`].
#[inline]
unsafe fn add_fields<const MOST: usize>(
    build: &mut IndexBuild,
    tid: u64,
    dead: bool,
    stored: bool,
    values: &[usize],
    nulls: &[bool],
) -> Result<IndexStatus, BuildFailure> {
    let mut fields: [Option<Field>; MOST] = [None; MOST];
    for (index, (value, null)) in values.iter().zip(nulls).enumerate() {
        // SAFETY: the caller's duty: a Datum of the attribute.
        match unsafe { field(build.shape_mut(), index, *value, *null, stored)? } {
            Ok(field) => fields[index] = field,
            Err(status) => return Ok(status),
        }
    }
    Ok(build.add(tid, dead, |index| fields[index])?.into())
}

impl From<Added> for IndexStatus {
    fn from(added: Added) -> Self {
        match added {
            Added::Stored => IndexStatus::Go,
            Added::Full => IndexStatus::Full,
            Added::TooLarge => IndexStatus::Unfit,
        }
    }
}

/// Sorts the rows that were added; the next steps write them to the temporary file.
///
/// # Safety
///
/// `build` is live and not used by another call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_flush(build: *mut IndexBuild) -> IndexStatus {
    // SAFETY: the caller's duty.
    guarded(|| unsafe { &mut *build }.flush().map(|()| IndexStatus::Go))
}

/// No more rows follow: the next steps return the pages.
///
/// # Safety
///
/// `build` is live and not used by another call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_finish(build: *mut IndexBuild) -> IndexStatus {
    // SAFETY: the caller's duty.
    guarded(|| unsafe { &mut *build }.finish().map(|()| IndexStatus::Go))
}

/// Continues the work, for some thousand rows.
///
/// # Safety
///
/// `build` is live and not used by another call; `step` is valid. What `step.bytes` points to lives
/// until the next call.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_step(
    build: *mut IndexBuild,
    step: *mut IndexStepDef,
) -> IndexStatus {
    guarded(|| {
        // SAFETY: the caller's duty.
        let (build, out) = unsafe { (&mut *build, &mut *step) };
        let done = build.step();
        out.rows = build.loader().rows();
        let mut give = |bytes: &[u8]| (out.bytes, out.len) = (bytes.as_ptr(), bytes.len());
        Ok(match done {
            Ok(Step::Go) => IndexStatus::Go,
            Ok(Step::Write) => {
                give(build.output());
                IndexStatus::Write
            }
            Ok(Step::Read(extent)) => {
                (out.start, out.end) = (extent.start, extent.end);
                IndexStatus::Read
            }
            Ok(Step::Pages) => IndexStatus::Pages,
            Ok(Step::Add) => IndexStatus::Add,
            Ok(Step::Done(root)) => {
                (out.root, out.level) = root.unwrap_or((btree::NONE, 0));
                IndexStatus::Done
            }
            Err(failure) => {
                let (tuple, earlier) = build.loader().duplicate();
                give(tuple);
                out.start = earlier;
                failure.into()
            }
        })
    })
}

/// Points `pairs` to the adjacent rows with equal keys that the last step has found, two addresses
/// for each pair. Returns how many pairs there are. They live until the next call.
///
/// # Safety
///
/// `build` is live and not used by another call; `pairs` is valid.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_pairs(
    build: *const IndexBuild,
    pairs: *mut *const [u64; 2],
) -> usize {
    // SAFETY: the caller's duty.
    let (found, out) = unsafe { ((*build).loader().pairs(), &mut *pairs) };
    // Nothing here can panic.
    *out = found.as_ptr();
    found.len()
}

/// Supplies the bytes that a step has requested.
///
/// # Safety
///
/// `build` is live and not used by another call; `bytes` is valid for `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_supply(
    build: *mut IndexBuild,
    bytes: *const u8,
    len: usize,
) -> IndexStatus {
    // SAFETY: the caller's duty.
    let (build, bytes) = unsafe { (&mut *build, slice(bytes, len)) };
    guarded(|| build.supply(bytes).map(|()| IndexStatus::Go))
}

/// Copies the next finished page to `page` and its number to `block`, and returns
/// [`IndexStatus::Pages`]; [`IndexStatus::Go`]: there is none.
///
/// # Safety
///
/// `build` is live and not used by another call; `page` is valid for 8192 bytes, and `block`.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_page(
    build: *mut IndexBuild,
    page: *mut u8,
    block: *mut u32,
) -> IndexStatus {
    // SAFETY: the caller's duty.
    let (build, page, block) =
        unsafe { (&mut *build, std::slice::from_raw_parts_mut(page, btree::SIZE), &mut *block) };
    guarded(|| {
        let Some((number, formed)) = build.take_page() else { return Ok(IndexStatus::Go) };
        page.copy_from_slice(formed.bytes());
        *block = number;
        build.reuse(formed);
        Ok(IndexStatus::Pages)
    })
}
