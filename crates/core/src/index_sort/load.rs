//! Loads the rows of a build's only run into the pages of the index.

use super::build::{BuildPhase, IndexBuild, Step, ROWS};
use super::rows::Taker;
use super::run::{row, Entry, RunRow, Sorted};
use super::shape::IndexShape;
use super::BuildFailure;
use crate::page::btree_load::TreeLoader;

/// Forms pages from rows whose whole keys are in their entries. Equal keys become posting lists.
struct Deduplicated<'a> {
    shape: &'a IndexShape,
    loader: &'a mut TreeLoader,
}

impl Taker for Deduplicated<'_> {
    #[inline]
    fn take(&mut self, entry: &Entry) -> Result<(), BuildFailure> {
        self.loader.add(self.shape, &row(&[], entry))
    }

    #[inline]
    fn take_same(&mut self, place: u64) -> bool {
        self.loader.add_same(RunRow { prefix: 0, place, tuple: &[] }.tid())
    }
}

impl IndexBuild {
    /// Loads some rows, from row `from` on.
    pub(super) fn step_load_run(&mut self, from: usize) -> Result<Step, BuildFailure> {
        let end = (from + ROWS).min(self.collector.len());
        match &self.collector.sorted {
            Sorted::Packed(packed) if self.shape.deduplicate && !self.shape.unique => {
                let mut to = Deduplicated { shape: &self.shape, loader: &mut self.loader };
                packed.give(from..end, &mut to)?;
            }
            _ => {
                for row in self.collector.rows(from).take(ROWS) {
                    self.loader.add(&self.shape, &row)?;
                }
            }
        }
        if end == self.collector.len() {
            return self.complete();
        }
        self.phase = BuildPhase::LoadRun(end);
        Ok(self.pages())
    }
}
