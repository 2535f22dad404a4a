//! Forms tuples in the arena from the records of a slice.

use std::ops::Range;

use pgsluice_core::error::{Malformed, Refusal};
use pgsluice_core::row::{self, NoRow};
use pgsluice_core::scan::binary::{Corrupt, Tuples};
use pgsluice_core::scan::{self, Eol, Next, Record, Scanner};
use pgsluice_core::shape::RowShape;
use pgsluice_core::sink::{Ask, HeapPages, HeapSink};

use crate::plan::FormPlan;

/// Why [`form`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// the slice has no further complete record
    More = 0,
    /// no room for another tuple or row: make room and call again
    Full = 1,
    /// the server has to read the record at `consumed`
    Ask = 2,
    /// a line of `\.` has ended the data
    Ended = 3,
    /// a bug: the statement must fail
    Panic = 4,
    /// out of memory: the statement must fail
    Memory = 5,
}

/// A formed tuple, and where it comes from.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Row {
    /// where the tuple begins in the arena
    pub offset: u32,
    /// `t_len`
    pub len: u32,
    /// offset from the tuple's start of the value to fill in; 0: there is none
    pub blank: u32,
    /// where the record begins in the slice
    pub record: u32,
    /// the record's last line, counted from the slice's start, from 1
    pub line: u32,
    /// how many of its values the server has to read: the next ones of the slice's asks
    pub asks: u32,
}

/// Input, memory for the output, and how far forming has got.
#[derive(Debug)]
#[repr(C)]
pub struct Slice {
    /// the bytes, beginning at a record's start
    pub input: *const u8,
    /// how many
    pub input_len: usize,
    /// memory for tuples
    pub arena: *mut u8,
    /// how much
    pub arena_len: usize,
    /// in and out: how much of it is used, a multiple of 8
    pub arena_used: usize,
    /// memory for rows
    pub rows: *mut Row,
    /// how many rows it holds
    pub rows_len: usize,
    /// memory for asks
    pub asks: *mut Ask,
    /// how many asks it holds
    pub asks_len: usize,
    /// out: how many rows were formed
    pub rows_used: usize,
    /// out: bytes of the records that were formed
    pub consumed: usize,
    /// out: lines of the records that were formed
    pub lines: u64,
    /// in and out: [`eol`] of the lines so far
    pub eol: u8,
    /// no bytes follow these
    pub last: bool,
    /// rows go into pages at the arena's start, which must be unused
    pub pack: bool,
    /// for pages: the longest tuple that goes into one
    pub page_longest: u32,
    /// for pages: bytes that stay free in each
    pub page_reserve: u32,
    /// for pages: the most pages, 0: no limit; with a limit, records whose page is not full are
    /// left for the next call if more data may follow
    pub page_limit: u32,
    /// out: number of pages: the full ones, and the last one if all records were formed
    pub pages: usize,
    /// out: how many rows are in them, in order: those with an offset below the end of the pages
    pub paged: usize,
}

/// `enum EolType` of `src/include/commands/copyfrom_internal.h`.
fn eol(code: u8) -> Eol {
    match code {
        1 => Eol::Nl,
        2 => Eol::Cr,
        3 => Eol::CrNl,
        _ => Eol::Unknown,
    }
}

fn eol_code(eol: Eol) -> u8 {
    match eol {
        Eol::Unknown => 0,
        Eol::Nl => 1,
        Eol::Cr => 2,
        Eol::CrNl => 3,
    }
}

/// See [`crate::pgsluice_valid_utf8`].
pub(crate) fn valid_utf8(data: &[u8]) -> usize {
    scan::valid_utf8(data).map_or_else(|bad| bad.offset, |()| data.len())
}

/// See [`crate::pgsluice_form`].
///
/// # Safety
///
/// The same as for that function.
pub(crate) unsafe fn form(plan: &mut FormPlan, slice: &mut Slice) -> Status {
    // SAFETY: the caller's duty; input, arena, rows and asks do not overlap.
    let (input, arena, rows, asks) = unsafe {
        (
            crate::plan::slice(slice.input, slice.input_len),
            std::slice::from_raw_parts_mut(slice.arena, slice.arena_len),
            std::slice::from_raw_parts_mut(slice.rows, slice.rows_len),
            std::slice::from_raw_parts_mut(slice.asks, slice.asks_len),
        )
    };
    let longest = if slice.pack { slice.page_longest as usize } else { 0 };
    let mut pages = HeapPages::new(longest, slice.page_reserve as usize);
    let at = slice.arena_used + pages.start();
    let mut sink = HeapSink::new(&plan.heap, arena, at, asks, &mut plan.scratch);
    slice.rows_used = 0;
    slice.lines = 0;
    let eol_before = slice.eol;
    let page_limit = match slice.page_limit {
        0 => usize::MAX,
        limit => limit as usize,
    };
    let mut out = Out { sink: &mut sink, pages: &mut pages, rows: &mut *rows, page_limit };
    let status = if plan.binary {
        form_binary(&plan.shape, &mut plan.fields, input, &mut out, slice)
    } else {
        let scanner = Scanner::new(input, slice.last, &plan.dialect, eol(slice.eol));
        form_text(&plan.shape, &mut plan.record, input, scanner, &mut out, slice)
    };
    slice.arena_used = sink.position();
    slice.pages = pages.whole();
    slice.paged = pages.rows();
    let goes_on = match status {
        Status::More => !slice.last,
        Status::Full => slice.pages > 0,
        _ => false,
    };
    if slice.page_limit > 0 && goes_on && pages.all() {
        leave_open_page(slice, rows, eol_before);
    } else if matches!(status, Status::More | Status::Ended) && pages.all() {
        slice.pages = pages.begun();
        slice.paged = slice.rows_used;
    }
    status
}

/// Where rows are put.
struct Out<'s, 'a> {
    sink: &'s mut HeapSink<'a>,
    pages: &'s mut HeapPages,
    rows: &'s mut [Row],
    page_limit: usize,
}

impl Out<'_, '_> {
    /// Keeps the row that the sink has completed. If it did not fit, returns why.
    #[inline]
    fn keep(&mut self, slice: &mut Slice, record: usize, line: u64) -> Option<Status> {
        let Some(formed) = self.sink.pack(self.pages) else {
            // A tuple that does not fit into an empty arena is left to the server.
            let empty = slice.rows_used == 0 && slice.arena_used == 0;
            return Some(if empty { Status::Ask } else { Status::Full });
        };
        self.rows[slice.rows_used] = Row {
            offset: formed.offset as u32,
            len: formed.len as u32,
            blank: formed.blank as u32,
            record: record as u32,
            line: line as u32,
            asks: formed.asks as u32,
        };
        slice.rows_used += 1;
        None
    }

    /// Whether there are as many rows or pages as were requested.
    #[inline]
    fn is_full(&self, slice: &Slice) -> bool {
        slice.rows_used == self.rows.len() || self.pages.whole() >= self.page_limit
    }
}

/// The status for a record that has not become a row.
#[cold]
fn without_row(no_row: NoRow) -> Status {
    match no_row {
        NoRow::Value(_, Refusal::OutOfMemory) => Status::Memory,
        _ => Status::Ask,
    }
}

/// [`form`] for csv and text.
fn form_text(
    shape: &RowShape,
    record: &mut Record,
    input: &[u8],
    mut scanner: Scanner<'_>,
    out: &mut Out<'_, '_>,
    slice: &mut Slice,
) -> Status {
    loop {
        slice.consumed = scanner.position();
        slice.lines = scanner.lines();
        slice.eol = eol_code(scanner.eol());
        if out.is_full(slice) {
            return Status::Full;
        }
        match scanner.try_next(record) {
            // After a record that `\.` ends, a file has more data, and a client has none: the
            // server decides.
            Ok(Next::Record) if scanner.ended() => return Status::Ask,
            Ok(Next::Record) => {}
            Ok(Next::Partial) => return Status::More,
            Ok(Next::End) if scanner.ended() => return Status::Ended,
            Ok(Next::End) => return Status::More,
            Err(Malformed::OutOfMemory) => return Status::Memory,
            Err(_) => return Status::Ask,
        }
        if let Err(no_row) = row::put(shape, input, record, out.sink) {
            return without_row(no_row);
        }
        if let Some(status) = out.keep(slice, record.start, record.line) {
            return status;
        }
    }
}

/// [`form`] for `FORMAT binary`, after the header. What is not a complete tuple of the right shape,
/// the trailer included, is left to the server.
fn form_binary(
    shape: &RowShape,
    fields: &mut Vec<Option<Range<usize>>>,
    input: &[u8],
    out: &mut Out<'_, '_>,
    slice: &mut Slice,
) -> Status {
    let mut tuples = Tuples::new(input, shape.fields as i16);
    loop {
        slice.consumed = tuples.position();
        slice.lines = tuples.line() - 1;
        if out.is_full(slice) {
            return Status::Full;
        }
        match tuples.next(fields) {
            Ok(true) => {}
            Ok(false) if input.len() - slice.consumed < 2 => return Status::More,
            Err(Corrupt::UnexpectedEof) => return Status::More,
            Err(Corrupt::OutOfMemory) => return Status::Memory,
            Ok(false) | Err(_) => return Status::Ask,
        }
        if let Err(no_row) = row::put_binary(shape, input, fields, out.sink) {
            return without_row(no_row);
        }
        let record = slice.consumed;
        if let Some(status) = out.keep(slice, record, tuples.line() - 1) {
            return status;
        }
    }
}

/// Leaves the records whose page is not full to the next call. If that is all of them, the line
/// end is again that of the lines before: as long as none is known, the lines within quotes are
/// counted in another way.
fn leave_open_page(slice: &mut Slice, rows: &[Row], eol_before: u8) {
    if slice.paged == slice.rows_used {
        return;
    }
    if slice.paged == 0 {
        slice.eol = eol_before;
    }
    (slice.consumed, slice.lines) = match slice.paged {
        0 => (0, 0),
        n => (rows[n].record as usize, u64::from(rows[n - 1].line)),
    };
    slice.rows_used = slice.paged;
}
