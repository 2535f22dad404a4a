//! Reads the rows of a sorted run in their order.

use super::packed::Unpacked;
use super::run::{row, Collector, Entry, RunRow, Sorted};
use super::BuildFailure;

/// An iterator over these rows.
#[derive(Debug)]
pub struct RunRows<'a> {
    collector: &'a Collector,
    at: usize,
    order: Order<'a>,
}

/// The source of the entries.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one at a time, on the stack
enum Order<'a> {
    Entries,
    Packed(Unpacked<'a>),
    /// the group of the previous entry
    Grouped(usize),
}

impl<'a> RunRows<'a> {
    /// The rows in order, from index `from` on.
    pub(super) fn new(collector: &'a Collector, from: usize) -> Self {
        let order = match &collector.sorted {
            Sorted::Entries => Order::Entries,
            Sorted::Packed(packed) => Order::Packed(Unpacked::new(packed, from)),
            Sorted::Grouped(grouped) => Order::Grouped(grouped.find(from)),
        };
        Self { collector, at: from, order }
    }
}

impl<'a> Iterator for RunRows<'a> {
    type Item = RunRow<'a>;

    #[inline]
    fn next(&mut self) -> Option<RunRow<'a>> {
        let collector = self.collector;
        let at = self.at;
        self.at += 1;
        let entry = match (&mut self.order, &collector.sorted) {
            (Order::Packed(unpacked), _) => unpacked.next()?,
            (Order::Grouped(group), Sorted::Grouped(grouped)) if at < collector.entries.len() => {
                collector.entries[grouped.entry(at, group)]
            }
            _ => *collector.entries.get(at)?,
        };
        Some(row(&collector.arena, &entry))
    }
}

/// A receiver of the rows of a run, in their order.
pub trait Taker {
    /// Takes a row.
    ///
    /// # Errors
    ///
    /// The row cannot be taken.
    fn take(&mut self, entry: &Entry) -> Result<(), BuildFailure>;

    /// Takes a row whose prefix is that of the row before, if its place is all that is needed.
    /// `false`: call [`Taker::take`] instead.
    fn take_same(&mut self, place: u64) -> bool;
}
