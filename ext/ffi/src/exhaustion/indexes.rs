//! Index builds: every order, every algorithm of the sort, runs in a file, pages.

use super::{every_allocation, Gate, Refused};
use crate::index::*;
use crate::index_page::*;
use crate::rank::*;
use crate::IndexValuesDef;
use pgsluice_core::index_sort::build::IndexBuild;
use pgsluice_core::page::btree;

/// One kind of index: its attributes' orders and lengths, its rules, its rows.
#[derive(Clone, Copy)]
pub(super) struct IndexCase {
    pub(super) what: &'static str,
    orders: &'static [(u8, i16)],
    keys: usize,
    memory: usize,
    rows: u64,
    deduplicate: bool,
    unique: bool,
    reports_pairs: bool,
    /// the value of an attribute in a row: a number from which its bytes are made
    value: fn(u64, usize) -> Option<u64>,
    /// the length of text
    width: usize,
}

const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;
const FLOAT: u8 = 2;
const FIXED: u8 = 3;
const TEXT: u8 = 4;
const BYTEA: u8 = 5;
const CARRIED: u8 = 6;
const RANKED: u8 = 7;

fn mixed(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

pub(super) const CASE: IndexCase = IndexCase {
    what: "numbers",
    orders: &[(SIGNED, 8)],
    keys: 1,
    memory: 64 << 20,
    rows: 350,
    deduplicate: false,
    unique: false,
    reports_pairs: false,
    value: |n, _| Some(mixed(n)),
    width: 12,
};

pub(super) const CASES: &[IndexCase] = &[
    CASE,
    IndexCase {
        what: "few numbers",
        orders: &[(SIGNED, 4)],
        value: |n, _| Some(n % 50),
        deduplicate: true,
        ..CASE
    },
    IndexCase { what: "unsigned", orders: &[(UNSIGNED, 4)], ..CASE },
    IndexCase {
        what: "floats",
        orders: &[(FLOAT, 8)],
        value: |n, _| Some((n as f64).to_bits()),
        unique: true,
        ..CASE
    },
    IndexCase { what: "fixed", orders: &[(FIXED, 16)], ..CASE },
    IndexCase { what: "short text", orders: &[(TEXT, -1)], ..CASE },
    IndexCase {
        what: "long text that begins alike",
        orders: &[(TEXT, -1)],
        width: 90,
        value: |n, _| Some(n % 300),
        ..CASE
    },
    IndexCase { what: "bytea", orders: &[(BYTEA, -1)], width: 20, ..CASE },
    IndexCase {
        what: "NULLs",
        orders: &[(SIGNED, 8)],
        value: |n, _| (n % 3 > 0).then_some(n),
        ..CASE
    },
    IndexCase {
        what: "many columns",
        orders: &[(SIGNED, 4), (TEXT, -1), (CARRIED, -1)],
        keys: 2,
        value: |n, at| (n % 7 > 0 || at != 1).then_some(n % 13),
        ..CASE
    },
    IndexCase { what: "carried", orders: &[(SIGNED, 8), (CARRIED, -1)], width: 40, ..CASE },
    IndexCase {
        what: "ranked",
        orders: &[(RANKED, -1)],
        value: |n, _| Some(n % 90),
        deduplicate: true,
        ..CASE
    },
    IndexCase {
        what: "ranked and long",
        orders: &[(RANKED, -1), (SIGNED, 4)],
        keys: 2,
        width: 60,
        ..CASE
    },
    IndexCase { what: "runs", orders: &[(SIGNED, 8)], memory: 64 << 10, rows: 2500, ..CASE },
    IndexCase {
        what: "runs of text",
        orders: &[(TEXT, -1)],
        memory: 64 << 10,
        rows: 600,
        width: 60,
        ..CASE
    },
    IndexCase {
        what: "runs of ranked",
        orders: &[(RANKED, -1)],
        memory: 128 << 10,
        rows: 2500,
        value: |n, _| Some(n % 90),
        ..CASE
    },
    IndexCase {
        what: "pairs",
        value: |n, _| Some(n % 600),
        unique: true,
        reports_pairs: true,
        ..CASE
    },
    IndexCase { what: "wide pages", orders: &[(TEXT, -1)], width: 900, rows: 150, ..CASE },
];

impl IndexCase {
    fn attributes(&self) -> Vec<IndexAttributeDef> {
        let attribute = |&(order, len): &(u8, i16)| IndexAttributeDef {
            len,
            align: if len == -1 { 4 } else { len.clamp(1, 8) as u8 },
            by_value: (1..=8).contains(&len) && order != FIXED,
            order,
            descending: false,
            nulls_first: false,
            exact: true,
        };
        self.orders.iter().map(attribute).collect()
    }

    pub(super) fn open(&self, gate: &mut Gate) -> Result<Build, Refused> {
        let attributes = self.attributes();
        let rules = IndexRulesDef {
            keys: self.keys,
            memory: self.memory,
            leaf_free: 800,
            unique: self.unique,
            nulls_not_distinct: false,
            first_in_table: false,
            reports_pairs: self.reports_pairs,
            deduplicate: self.deduplicate,
            mixed: false,
            interrupted: None,
        };
        // SAFETY: the definitions are valid for the call.
        let made = gate
            .call(|| unsafe { pgsluice_index_new(attributes.as_ptr(), attributes.len(), &rules) });
        if made.is_null() {
            return Err(Refused);
        }
        Ok(Build { made, file: Vec::new() })
    }

    /// The bytes of a value, as a Datum points to it.
    fn image(&self, value: u64, len: i16) -> Vec<u8> {
        if len > 0 {
            return value.to_le_bytes().repeat(2)[..len.max(8) as usize].to_vec();
        }
        let mut text = vec![b'k'; self.width.saturating_sub(8)];
        text.extend(format!("{:08x}", value as u32).bytes());
        let mut image = ((text.len() as u32 + 4) << 2).to_le_bytes().to_vec();
        image.extend(text);
        image
    }

    /// The rows in the form in which C passes them.
    pub(super) fn rows(&self) -> Vec<IndexRow> {
        (0..2 * self.rows).map(|n| self.row(n)).collect()
    }

    fn row(&self, n: u64) -> IndexRow {
        let image = |(at, (_, len)): (usize, &(u8, i16))| {
            (self.value)(n, at).map(|value| self.image(value, *len))
        };
        let images: Vec<Option<Vec<u8>>> = self.orders.iter().enumerate().map(image).collect();
        let datum = |(at, image): (usize, &Option<Vec<u8>>)| match (image, self.orders[at]) {
            (Some(image), (order, 1..=8)) if order != FIXED => {
                u64::from_le_bytes(image[..8].try_into().unwrap()) as usize
            }
            (Some(image), _) => image.as_ptr() as usize,
            (None, _) => 0,
        };
        IndexRow {
            tid: (n / 60) << 16 | (n % 60 + 1),
            values: images.iter().enumerate().map(datum).collect(),
            nulls: images.iter().map(Option::is_none).collect(),
            _images: images,
        }
    }
}

/// A row: a Datum for each attribute, and what they point to.
pub(super) struct IndexRow {
    tid: u64,
    values: Vec<usize>,
    nulls: Vec<bool>,
    _images: Vec<Option<Vec<u8>>>,
}

/// A build and its temporary file.
pub(super) struct Build {
    pub(super) made: *mut IndexBuild,
    pub(super) file: Vec<u8>,
}

/// The result of a build: its pages, its root and level, its pairs of equal keys.
pub(super) type Built = (Vec<(u32, Vec<u8>)>, (u32, u32), Vec<[u64; 2]>);

pub(super) fn checked(status: IndexStatus) -> Result<IndexStatus, Refused> {
    match status {
        IndexStatus::NoMemory => Err(Refused),
        IndexStatus::Panic | IndexStatus::Corrupt => panic!("{status:?}"),
        status => Ok(status),
    }
}

pub(super) fn step() -> IndexStepDef {
    IndexStepDef { bytes: std::ptr::null(), len: 0, start: 0, end: 0, rows: 0, root: 0, level: 0 }
}

pub(super) fn bytes_of(step: &IndexStepDef) -> &[u8] {
    // SAFETY: what a step points to lives until the next call.
    unsafe { crate::plan::slice(step.bytes, step.len) }
}

impl Build {
    pub(super) fn free(self, gate: &mut Gate) {
        // SAFETY: made by `open`, not used again.
        gate.call(|| unsafe { pgsluice_index_free(self.made) });
    }

    /// Adds a row; returns the status.
    pub(super) fn add(&self, gate: &mut Gate, row: &IndexRow) -> Result<IndexStatus, Refused> {
        let (values, nulls) = (row.values.as_ptr(), row.nulls.as_ptr());
        // SAFETY: the build is live; there is a Datum for each attribute, which lives as long as the row.
        checked(
            gate.call(|| unsafe {
                pgsluice_index_add(self.made, row.tid, false, true, values, nulls)
            }),
        )
    }

    /// Calls a function that takes only the build.
    fn plainly(
        &self,
        gate: &mut Gate,
        function: unsafe extern "C" fn(*mut IndexBuild) -> IndexStatus,
    ) -> Result<IndexStatus, Refused> {
        // SAFETY: the build is live.
        checked(gate.call(|| unsafe { function(self.made) }))
    }

    /// Ranks values by the order of their bytes.
    fn rank(&self, gate: &mut Gate, case: &IndexCase) -> Result<(), Refused> {
        self.plainly(gate, pgsluice_index_settle)?;
        for (at, _) in case.orders.iter().enumerate().filter(|(_, order)| order.0 == RANKED) {
            let mut values =
                IndexValuesDef { images: std::ptr::null(), starts: std::ptr::null(), count: 0 };
            // SAFETY: the build is live; the values stay until the next row.
            checked(gate.call(|| unsafe { pgsluice_index_values(self.made, at, &mut values) }))?;
            // SAFETY: that many values start there, each a varlena with its length.
            let image = |id: u32| unsafe {
                let start = values.images.add(*values.starts.add(id as usize) as usize * 8);
                let len = start.cast::<u32>().read_unaligned() >> 2;
                std::slice::from_raw_parts(start.add(4), len as usize - 4)
            };
            let mut order: Vec<u32> = (0..values.count as u32).collect();
            order.sort_by_key(|&id| image(id));
            let equal = vec![false; order.len()];
            // SAFETY: the build is live, and both have an item for each value.
            checked(gate.call(|| unsafe {
                pgsluice_index_rank(self.made, at, order.as_ptr(), equal.as_ptr(), order.len())
            }))?;
        }
        Ok(())
    }

    /// Executes steps up to the end of a run or of the build.
    fn drive(&mut self, gate: &mut Gate, built: &mut Built) -> Result<(), Refused> {
        loop {
            let mut step = step();
            // SAFETY: the build is live.
            let status =
                checked(gate.call(|| unsafe { pgsluice_index_step(self.made, &mut step) }))?;
            let mut pairs = std::ptr::null();
            // SAFETY: the build is live; that many pairs exist until the next call.
            built.2.extend_from_slice(unsafe {
                let count = pgsluice_index_pairs(self.made, &mut pairs);
                crate::plan::slice(pairs, count)
            });
            match status {
                IndexStatus::Write => self.file.extend_from_slice(bytes_of(&step)),
                IndexStatus::Read => {
                    let bytes = &self.file[step.start as usize..step.end as usize];
                    // SAFETY: the build is live.
                    checked(gate.call(|| unsafe {
                        pgsluice_index_supply(self.made, bytes.as_ptr(), bytes.len())
                    }))?;
                }
                IndexStatus::Pages => self.take_pages(gate, built)?,
                IndexStatus::Done => built.1 = (step.root, step.level),
                _ => {}
            }
            if matches!(status, IndexStatus::Add | IndexStatus::Done | IndexStatus::Duplicate) {
                return Ok(());
            }
        }
    }

    fn take_pages(&self, gate: &mut Gate, built: &mut Built) -> Result<(), Refused> {
        loop {
            let (mut page, mut block) = (vec![0; btree::SIZE], 0);
            let made = self.made;
            // SAFETY: the build is live, the page has its size.
            let taken =
                gate.call(|| unsafe { pgsluice_index_page(made, page.as_mut_ptr(), &mut block) });
            if checked(taken)? == IndexStatus::Go {
                return Ok(());
            }
            built.0.push((block, page));
        }
    }

    pub(super) fn finish(&mut self, gate: &mut Gate, case: &IndexCase) -> Result<Built, Refused> {
        let mut built = Built::default();
        self.rank(gate, case)?;
        self.plainly(gate, pgsluice_index_finish)?;
        self.drive(gate, &mut built)?;
        Ok(built)
    }
}

/// Adds rows one by one, writes runs if memory is short, and takes the pages.
fn build(gate: &mut Gate, case: &IndexCase, rows: &[IndexRow]) -> Result<Built, Refused> {
    let mut build = case.open(gate)?;
    let mut all = || {
        let mut built = Built::default();
        for row in rows {
            if build.add(gate, row)? == IndexStatus::Full {
                build.rank(gate, case)?;
                build.plainly(gate, pgsluice_index_flush)?;
                build.drive(gate, &mut built)?;
            }
        }
        build.finish(gate, case)
    };
    let built = all();
    build.free(gate);
    built
}

#[test]
fn index_builds() {
    every_case(1);
}

#[test]
#[ignore = "a minute: the long form of index_builds"]
fn index_builds_of_many_rows() {
    every_case(4);
}

fn every_case(times: u64) {
    for case in CASES {
        let case = &IndexCase { rows: times * case.rows, ..*case };
        let rows = case.rows();
        let allocations = every_allocation(case.what, |gate| build(gate, case, &rows));
        assert!(allocations > 5, "{}: {allocations}", case.what);
    }
}

/// Sorted entries for an index that others can reach, batch after batch.
#[test]
fn sorted_entries() {
    for case in CASES
        .iter()
        .filter(|case| case.orders.iter().all(|order| order.0 != RANKED) && case.memory > 1 << 20)
    {
        let rows = case.rows();
        every_allocation(case.what, |gate| {
            let build = case.open(gate)?;
            let all = |gate: &mut Gate| {
                let mut tuples = Vec::new();
                for (n, row) in rows.iter().enumerate() {
                    if n == rows.len() / 3 || n + 1 == rows.len() {
                        build.plainly(gate, pgsluice_index_sort)?;
                        let mut done = 0;
                        loop {
                            let mut step = step();
                            // SAFETY: the build is live.
                            let sorted = gate.call(|| unsafe {
                                pgsluice_index_sorted(build.made, done, &mut step)
                            });
                            if checked(sorted)? == IndexStatus::Done {
                                break;
                            }
                            tuples.extend_from_slice(bytes_of(&step));
                            done += step.rows as usize;
                        }
                    }
                    build.add(gate, row)?;
                }
                Ok(tuples)
            };
            let tuples = all(gate);
            build.free(gate);
            tuples
        });
    }
}

/// A heap page of rows of one column, each with a header of 24 bytes.
fn heap_page(values: &[Vec<u8>]) -> (Vec<u8>, Vec<u16>) {
    let (mut page, mut at) = (vec![0; 8192], 8192);
    for (n, value) in values.iter().enumerate() {
        let len = 24 + value.len();
        at = (at - len) & !7;
        (page[at + 18], page[at + 20], page[at + 22]) = (1, 2, 24);
        page[at + 24..at + len].copy_from_slice(value);
        let pointer = at as u32 | 1 << 15 | (len as u32) << 17;
        page[24 + 4 * n..28 + 4 * n].copy_from_slice(&pointer.to_le_bytes());
    }
    (page, (1..=values.len() as u16).collect())
}

/// Rows that are read from a table's pages.
#[test]
fn rows_of_a_table() {
    for case in [CASE, CASES[5], CASES[11]] {
        let values: Vec<_> = (0..300u64).map(|n| case.image(mixed(n), case.orders[0].1)).collect();
        let pages: Vec<_> = values.chunks(60).map(heap_page).collect();
        let column = IndexColumnDef {
            len: case.orders[0].1,
            attribute: 0,
            align: if case.orders[0].1 > 0 { 8 } else { 4 },
        };
        every_allocation(case.what, |gate| {
            let mut build = case.open(gate)?;
            // SAFETY: the column is valid for the call.
            let source = gate.call(|| unsafe { pgsluice_index_source_new(&column, 1) });
            let mut all = || {
                if source.is_null() {
                    return Err(Refused);
                }
                for ((page, offsets), block) in pages.iter().zip(0..) {
                    let mut next = 0;
                    // SAFETY: the build and the source are live, so are the pages.
                    let added = gate.call(|| unsafe {
                        pgsluice_index_add_page(
                            build.made,
                            source,
                            page.as_ptr(),
                            block,
                            offsets.as_ptr(),
                            offsets.len(),
                            &mut next,
                        )
                    });
                    assert!(checked(added)? == IndexStatus::Go && next == offsets.len());
                }
                build.finish(gate, &case)
            };
            let built = all();
            // SAFETY: made above, not used again.
            gate.call(|| unsafe { pgsluice_index_source_free(source) });
            build.free(gate);
            built
        });
    }
}
