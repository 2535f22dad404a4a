//! Builds an index from its first row to its last page, as a state machine that does no I/O.
//!
//! ```text
//! add … add ─ full ─▶ flush ─ Write … ─▶ add … ─▶ finish ─ (Read, Write …) Page … ─▶ Done
//! ```

use super::heap_reader::{HeapFields, HeapSource, Unfit};
use super::key;
use super::merge::{Extent, Merge, MergeStep, BUFFER};
pub use super::run::PageAdded;
use super::run::{self, Added, Collector};
use super::shape::{IndexShape, MAX_ATTRIBUTES, MAX_TUPLE};
use super::tuple::{self, Field, Tid};
use super::BuildFailure;
use crate::memory::{try_push_back, Fallible, OutOfMemory};
use crate::page::btree::Page;
use crate::page::btree_build::Root;
use crate::page::btree_load::TreeLoader;
use std::collections::VecDeque;

/// Most rows that one [`IndexBuild::step`] handles.
pub(super) const ROWS: usize = 4096;
/// Bytes of tuples that [`IndexBuild::sorted`] returns at once: as many as the leaves appended to
/// an index together can hold. Equal keys take less space there.
const SORTED: usize = 8 * BUFFER;

/// The action that the caller of [`IndexBuild::step`] must take before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// nothing
    Go,
    /// append [`IndexBuild::output`] to the temporary file
    Write,
    /// read these bytes of the temporary file and pass them to [`IndexBuild::supply`]
    Read(Extent),
    /// write the pages of [`IndexBuild::take_page`] until there is none
    Pages,
    /// add more rows: the run is written
    Add,
    /// write the metapage with this root: the tree is complete
    Done(Root),
}

#[derive(Debug)]
pub(super) enum BuildPhase {
    /// rows are added
    Collect,
    /// the sorted run is written to the file, from this row on
    Flush(usize),
    /// runs are merged into the last one of the list
    Merge(Merge),
    /// the only run is in memory and is loaded into the tree, from this row on
    LoadRun(usize),
    /// the last merge is loaded into the tree
    LoadMerge(Merge),
    Done(Root),
}

/// An index being built.
#[derive(Debug)]
pub struct IndexBuild {
    pub(super) shape: IndexShape,
    /// the index as if values were ordered by their bytes; set while rows wait for the numbers of
    /// their values
    pub(super) waiting: Option<IndexShape>,
    memory: usize,
    pub(super) collector: Collector,
    pub(super) runs: VecDeque<Extent>,
    /// bytes in the temporary file
    file_end: u64,
    pub(super) phase: BuildPhase,
    /// no more rows follow
    last: bool,
    output: Vec<u8>,
    /// `output` has been handed to the caller
    written: bool,
    pub(super) loader: TreeLoader,
    /// buffer of [`IndexBuild::warm`]: where a dictionary looks for the ranked values of a page
    traces: Vec<u32>,
}

impl IndexBuild {
    /// A build that holds about `memory` bytes of rows.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(mut shape: IndexShape, memory: usize) -> Result<Self, OutOfMemory> {
        // The values to be ranked may use half of the memory.
        let rows = if shape.ranked() > 0 { memory / 2 } else { memory };
        shape.open_dictionaries(memory - rows)?;
        Ok(Self {
            waiting: shape.by_bytes()?,
            shape,
            memory,
            collector: Collector::new(rows),
            runs: VecDeque::new(),
            file_end: 0,
            phase: BuildPhase::Collect,
            last: false,
            output: Vec::new(),
            written: false,
            loader: TreeLoader::default(),
            traces: Vec::new(),
        })
    }

    /// The index.
    #[must_use]
    pub fn shape(&self) -> &IndexShape {
        &self.shape
    }

    /// The index, for interning and ranking values.
    pub fn shape_mut(&mut self) -> &mut IndexShape {
        &mut self.shape
    }

    /// Adds a row whose ranked values are interned. [`IndexBuild::settle`] must have been called.
    /// After [`Added::Full`], call [`IndexBuild::flush`].
    ///
    /// # Errors
    ///
    /// No memory.
    #[inline]
    pub fn add<'a>(
        &mut self,
        tid: Tid,
        dead: bool,
        field: impl Fn(usize) -> Option<Field<'a>>,
    ) -> Result<Added, BuildFailure> {
        debug_assert!(self.waiting.is_none(), "rows are settled first");
        self.collector.add(&self.shape, tid, dead, field)
    }

    /// Adds the rows of a heap page from `offsets[*next]` on. `next` is moved past the rows that
    /// were added.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn add_page(
        &mut self,
        source: &HeapSource,
        page: &[u8],
        block: u32,
        offsets: &[u16],
        next: &mut usize,
    ) -> Result<PageAdded, BuildFailure> {
        let tid = |offset: u16| Tid::from(block) << 16 | Tid::from(offset);
        let tuple = |index: usize| (tid(offsets[index]), HeapSource::tuple(page, offsets[index]));
        self.add_tuples(source, offsets.len(), tuple, next)
    }

    /// Adds rows of a table from row `*next` to row `count` - 1. `next` is moved past the rows that
    /// were added. `tuple` returns the tid and the bytes of a row.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn add_tuples<'a>(
        &mut self,
        source: &HeapSource,
        count: usize,
        tuple: impl Fn(usize) -> (Tid, Option<&'a [u8]>),
        next: &mut usize,
    ) -> Result<PageAdded, BuildFailure> {
        let mut fields: HeapFields = [None; MAX_ATTRIBUTES];
        if self.shape.ranked() > 0 && self.waiting.is_none() {
            self.warm(source, (*next..count).filter_map(|index| tuple(index).1))?;
        }
        while *next < count {
            let (tid, bytes) = tuple(*next);
            let read = bytes
                .ok_or(Unfit)
                .and_then(|tuple| source.read(self.shape.attributes(), tuple, &mut fields));
            if read == Err(Unfit) {
                return Ok(PageAdded::Unfit);
            }
            let added = match self.add_waiting(tid, false, fields[0])? {
                Some(added) => added,
                None => {
                    let room = self.settle()?;
                    if !room || self.shape.ranked() > 0 && !self.intern(&mut fields)? {
                        return Ok(PageAdded::Crowded);
                    }
                    self.collector.add(&self.shape, tid, false, |index| fields[index])?
                }
            };
            if added == Added::TooLarge {
                return Ok(PageAdded::Unfit);
            }
            *next += 1;
            if added == Added::Full {
                return Ok(PageAdded::Full);
            }
        }
        Ok(PageAdded::All)
    }

    /// Looks up all ranked values of some rows together, before each of them is interned.
    #[allow(clippy::disallowed_methods)] // the iterator's clone takes no memory
    fn warm<'a>(
        &mut self,
        source: &HeapSource,
        tuples: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<(), BuildFailure> {
        let attributes = self.shape.attributes();
        let mut fields: HeapFields = [None; MAX_ATTRIBUTES];
        for index in 0..self.shape.key().len() {
            let Some(dictionary) = self.shape.dictionary(index) else { continue };
            self.traces.clear();
            for tuple in tuples.clone() {
                if source.read(attributes, tuple, &mut fields).is_ok() {
                    let trace = fields[index].and_then(|field| dictionary.trace(field));
                    if let Some(trace) = trace {
                        self.traces.try_push(trace)?;
                    }
                }
            }
            dictionary.warm(&mut self.traces);
        }
        Ok(())
    }

    /// Replaces ranked values by their numbers. `false`: there are too many values.
    fn intern(&mut self, fields: &mut HeapFields) -> Result<bool, BuildFailure> {
        let count = self.shape.attributes().len();
        for (index, slot) in fields[..count].iter_mut().enumerate() {
            if let Some(field) = *slot {
                let Some(field) = self.shape.intern(index, field)? else { return Ok(false) };
                *slot = Some(field);
            }
        }
        Ok(true)
    }

    /// Sorts the rows, which must be settled and ranked. The next steps write them to the file.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn flush(&mut self) -> Result<(), BuildFailure> {
        self.collector.sort(&self.shape)?;
        self.output.try_reserve_exact(BUFFER)?;
        let run = Extent { start: self.file_end, end: self.file_end };
        try_push_back(&mut self.runs, run)?;
        self.phase = BuildPhase::Flush(0);
        Ok(())
    }

    /// Sorts the rows, whose values must be ranked, for [`IndexBuild::sorted`]. No pages are built.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn sort(&mut self) -> Result<(), BuildFailure> {
        self.collector.sort(&self.shape)
    }

    /// Puts the index tuples of the sorted rows from row `from` on into [`IndexBuild::output`].
    /// Returns their number; 0 after the last row.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn sorted(&mut self, from: usize) -> Result<usize, BuildFailure> {
        self.output.clear();
        let mut count = 0;
        for row in self.collector.rows(from) {
            let start = self.output.len();
            if start >= SORTED {
                break;
            }
            self.output.try_reserve(MAX_TUPLE)?;
            if row.tuple.is_empty() {
                key::decode(&self.shape, row.prefix, &mut self.output);
            } else {
                self.output.extend_within_room(row.tuple);
            }
            self.output[start..start + 6].copy_from_slice(&tuple::tid_bytes(row.tid()));
            count += 1;
        }
        Ok(count)
    }

    /// Removes the rows but keeps the ranked values.
    pub fn clear(&mut self) {
        self.collector.clear();
    }

    /// Ends the input. All rows must be settled and ranked. The next steps produce the pages.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn finish(&mut self) -> Result<(), BuildFailure> {
        self.last = true;
        if self.runs.is_empty() {
            self.collector.sort(&self.shape)?;
            self.phase = BuildPhase::LoadRun(0);
            Ok(())
        } else if self.collector.is_empty() {
            self.next_merge()
        } else {
            self.flush()
        }
    }

    /// The loader, which receives the rows in their order.
    #[must_use]
    pub fn loader(&self) -> &TreeLoader {
        &self.loader
    }

    /// The bytes to write to the temporary file.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Supplies the bytes that [`Step::Read`] requested.
    ///
    /// # Errors
    ///
    /// The bytes are not those requested.
    pub fn supply(&mut self, bytes: &[u8]) -> Result<(), BuildFailure> {
        match &mut self.phase {
            BuildPhase::Merge(merge) | BuildPhase::LoadMerge(merge) => merge.supply(bytes),
            _ => Err(BuildFailure::Corrupt),
        }
    }

    /// The next finished page and its block number. Pass the page to [`IndexBuild::reuse`] after
    /// use.
    pub fn take_page(&mut self) -> Option<(u32, Page)> {
        self.loader.builder().take_finished()
    }

    /// Returns a page for reuse.
    pub fn reuse(&mut self, page: Page) {
        self.loader.builder().reuse(page);
    }

    /// Continues the build by at most a few thousand rows.
    ///
    /// # Errors
    ///
    /// See [`BuildFailure`]. The build cannot be continued after that.
    pub fn step(&mut self) -> Result<Step, BuildFailure> {
        self.loader.forget_pairs();
        if std::mem::take(&mut self.written) {
            self.output.clear();
        }
        match std::mem::replace(&mut self.phase, BuildPhase::Collect) {
            BuildPhase::Collect => Ok(Step::Add),
            BuildPhase::Flush(from) => self.step_flush(from),
            BuildPhase::Merge(merge) => self.step_merge(merge),
            BuildPhase::LoadRun(from) => self.step_load_run(from),
            BuildPhase::LoadMerge(merge) => self.step_load_merge(merge),
            BuildPhase::Done(root) => {
                self.phase = BuildPhase::Done(root);
                Ok(Step::Done(root))
            }
        }
    }

    fn step_flush(&mut self, from: usize) -> Result<Step, BuildFailure> {
        let mut at = from;
        for row in self.collector.rows(from) {
            run::spill(&self.shape, &row, &mut self.output)?;
            at += 1;
            if self.output.len() >= BUFFER {
                break;
            }
        }
        if self.output.is_empty() {
            if self.last {
                self.collector.release();
                self.next_merge()?;
                return Ok(Step::Go);
            }
            self.collector.clear();
            return Ok(Step::Add);
        }
        self.phase = BuildPhase::Flush(at);
        Ok(self.write())
    }

    /// Hands the output to the caller as a part of the last run.
    fn write(&mut self) -> Step {
        self.written = true;
        self.file_end += self.output.len() as u64;
        if let Some(run) = self.runs.back_mut() {
            run.end = self.file_end;
        }
        Step::Write
    }

    /// Begins the next merge: of the oldest runs into one, or of all remaining runs into the tree.
    fn next_merge(&mut self) -> Result<(), BuildFailure> {
        let most = (self.memory / BUFFER).clamp(4, 512);
        let count = self.runs.len();
        let last = count <= most;
        // Read only as few runs twice as necessary.
        let now = if last { count } else { most.min(count - most + 1) };
        let mut runs = Vec::with_room(now)?;
        for run in self.runs.drain(..now) {
            runs.push_within(run);
        }
        let merge = Merge::new(&runs)?;
        self.phase = if last {
            BuildPhase::LoadMerge(merge)
        } else {
            let run = Extent { start: self.file_end, end: self.file_end };
            try_push_back(&mut self.runs, run)?;
            BuildPhase::Merge(merge)
        };
        Ok(())
    }

    fn step_merge(&mut self, mut merge: Merge) -> Result<Step, BuildFailure> {
        while self.output.len() < BUFFER {
            match merge.advance(&self.shape)? {
                MergeStep::RunRow => run::spill(&self.shape, &merge.row()?, &mut self.output)?,
                MergeStep::Read(extent) => {
                    self.phase = BuildPhase::Merge(merge);
                    return Ok(Step::Read(extent));
                }
                MergeStep::End => break,
            }
        }
        if self.output.is_empty() {
            self.next_merge()?;
            return Ok(Step::Go);
        }
        self.phase = BuildPhase::Merge(merge);
        Ok(self.write())
    }

    fn step_load_merge(&mut self, mut merge: Merge) -> Result<Step, BuildFailure> {
        let mut step = self.pages();
        // Report finished pages first. If the runs follow one another in key order, every step ends
        // with a read before ROWS rows, so pages must not wait for a full step.
        let rows = if step == Step::Go { ROWS } else { 0 };
        for _ in 0..rows {
            match merge.advance(&self.shape)? {
                MergeStep::RunRow => self.loader.add(&self.shape, &merge.row()?)?,
                MergeStep::Read(extent) => {
                    step = Step::Read(extent);
                    break;
                }
                MergeStep::End => return self.complete(),
            }
        }
        self.phase = BuildPhase::LoadMerge(merge);
        Ok(step)
    }

    pub(super) fn pages(&mut self) -> Step {
        if self.loader.builder().has_finished() {
            Step::Pages
        } else {
            Step::Go
        }
    }

    pub(super) fn complete(&mut self) -> Result<Step, BuildFailure> {
        let root = self.loader.finish(&self.shape)?;
        self.phase = BuildPhase::Done(root);
        Ok(self.pages())
    }
}
