//! Rows of a table, in the form in which they are on its pages, for the build of an index.

use crate::index::{guarded, IndexStatus};
use crate::plan::slice;
use pgsluice_core::index_sort::build::{IndexBuild, PageAdded};
use pgsluice_core::index_sort::heap_reader::{HeapSource, StoredColumn};
use pgsluice_core::memory::Fallible;
use pgsluice_core::page::btree;

/// One column of a table from which an index is built.
#[derive(Debug)]
#[repr(C)]
pub struct IndexColumnDef {
    /// `attlen`
    pub len: i16,
    /// its attribute of the index, or -1
    pub attribute: i16,
    /// `attalign` in bytes
    pub align: u8,
}

/// How the pages of a table are read for an index: the first `count` columns. NULL if that is not
/// possible. [`pgsluice_index_source_free`] frees it.
///
/// # Safety
///
/// `columns` is valid for `count` items.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_source_new(
    columns: *const IndexColumnDef,
    count: usize,
) -> *mut HeapSource {
    crate::hand_out(|| {
        // SAFETY: the caller's duty.
        let columns = unsafe { slice(columns, count) };
        let column = |def: &IndexColumnDef| StoredColumn {
            len: def.len,
            align: def.align,
            attribute: usize::try_from(def.attribute).ok(),
        };
        let mut read = Vec::with_room(columns.len())?;
        for def in columns {
            read.push_within(column(def));
        }
        Ok(HeapSource::new(read))
    })
}

/// Frees what [`pgsluice_index_source_new`] made.
///
/// # Safety
///
/// `source` is one that [`pgsluice_index_source_new`] made, or NULL, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_source_free(source: *mut HeapSource) {
    // SAFETY: the caller's duty.
    unsafe { crate::free(source) }
}

/// Adds rows of a heap page, from `offsets[*next]` on, and moves `next` past those that were added.
/// Each tuple has all the columns of the source. `Full` and `Unfit` refer to `offsets[*next]`, if
/// there is one.
///
/// # Safety
///
/// `build` is live and not used by another call, `source` is live; `page` is valid for 8192 bytes,
/// `offsets` for `count` items, and `next`.
#[no_mangle]
pub unsafe extern "C" fn pgsluice_index_add_page(
    build: *mut IndexBuild,
    source: *const HeapSource,
    page: *const u8,
    block: u32,
    offsets: *const u16,
    count: usize,
    next: *mut usize,
) -> IndexStatus {
    guarded(|| {
        // SAFETY: the caller's duty.
        let (build, source, next) = unsafe { (&mut *build, &*source, &mut *next) };
        // SAFETY: the caller's duty.
        let (page, offsets) = unsafe { (slice(page, btree::SIZE), slice(offsets, count)) };
        build.add_page(source, page, block, offsets, next).map(IndexStatus::from)
    })
}

impl From<PageAdded> for IndexStatus {
    fn from(added: PageAdded) -> Self {
        match added {
            PageAdded::All => IndexStatus::Go,
            PageAdded::Full => IndexStatus::Full,
            PageAdded::Unfit => IndexStatus::Unfit,
            PageAdded::Crowded => IndexStatus::Crowded,
        }
    }
}
