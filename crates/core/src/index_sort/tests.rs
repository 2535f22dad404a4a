//! The build of an index returns its pages as they are finished, in any arrangement of its runs,
//! and keeps to its memory.

use super::build::{IndexBuild, Step};
use super::run::{Added, Collector, ENTRY};
use super::shape::{Attribute, IndexShape, Order};
use super::tuple::Field;
use crate::testing::bigint_index;

/// A build and its temporary file.
struct Driven {
    build: IndexBuild,
    file: Vec<u8>,
    /// the number of all pages, and the largest number of pages returned at once
    pages: usize,
    most: usize,
}

impl Driven {
    /// Continues until rows are needed or the index is finished.
    fn drive(&mut self) {
        loop {
            match self.build.step().unwrap() {
                Step::Go => {}
                Step::Write => self.file.extend_from_slice(self.build.output()),
                Step::Read(extent) => {
                    let bytes = &self.file[extent.start as usize..extent.end as usize];
                    self.build.supply(bytes).unwrap();
                }
                Step::Pages => {
                    let before = self.pages;
                    while let Some((_, page)) = self.build.take_page() {
                        self.pages += 1;
                        self.build.reuse(page);
                    }
                    self.most = self.most.max(self.pages - before);
                }
                Step::Add | Step::Done(_) => return,
            }
        }
    }
}

/// Ascending keys: the runs follow one another, so that one run is read after every few thousand
/// rows.
#[test]
fn pages_do_not_gather_while_runs_are_read() {
    let build = IndexBuild::new(bigint_index(), 1 << 18).unwrap();
    let mut driven = Driven { build, file: Vec::new(), pages: 0, most: 0 };
    for n in 0..60_000 {
        if driven.build.add(n + 1, false, |_| Some(Field::Word(n))).unwrap() == Added::Full {
            driven.build.flush().unwrap();
            driven.drive();
        }
    }
    driven.build.finish().unwrap();
    driven.drive();
    assert!(!driven.file.is_empty() && driven.pages > 150, "{} pages", driven.pages);
    assert!(driven.most < 30, "{} of {} pages at once", driven.most, driven.pages);
}

/// Memory for tuples grows by doubling, but not far beyond the limit.
#[test]
fn reserved_memory_stays_near_the_limit() {
    const LIMIT: usize = 1 << 20;
    let text = Attribute {
        len: -1,
        align: 4,
        by_value: false,
        order: Order::Text,
        descending: false,
        nulls_first: false,
        exact: true,
    };
    let shape = IndexShape::new(vec![text], 1).unwrap();
    for width in (100..2400).step_by(100) {
        let value = vec![b'x'; width];
        let mut collector = Collector::new(LIMIT);
        let mut add = || collector.add(&shape, 1, false, |_| Some(Field::Bytes(&value)));
        while add().unwrap() != Added::Full {}
        let reserved = collector.arena.capacity() + collector.entries.capacity() * ENTRY;
        assert!(reserved < LIMIT / 5 * 7, "{reserved} bytes for values of {width} bytes");
    }
}
