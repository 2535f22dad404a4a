//! Merges spilled runs. Each of the `k` runs has a buffer of fixed size.

use super::run::{self, RunRow, ENTRY};
use super::shape::{IndexShape, MAX_TUPLE};
use super::BuildFailure;
use crate::memory::Fallible;
use std::cmp::Ordering;

/// Bytes of a run that are in memory during a merge.
pub const BUFFER: usize = 64 * 1024;
const _: () = assert!(BUFFER >= 2 * (ENTRY + MAX_TUPLE));

/// The position of a run in the temporary file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Extent {
    /// first byte
    pub start: u64,
    /// byte after the last
    pub end: u64,
}

/// A spilled run while it is read.
#[derive(Debug)]
struct Source {
    rest: Extent,
    buffer: Vec<u8>,
    at: usize,
    /// bytes of the current row; 0 if the run is at its end
    size: usize,
}

impl Source {
    fn row(&self) -> Result<RunRow<'_>, BuildFailure> {
        run::unspill(&self.buffer[self.at..])?.map(|(row, _)| row).ok_or(BuildFailure::Corrupt)
    }

    /// Moves to the next row. `false`: the buffer must be filled first.
    #[inline]
    fn advance(&mut self, shape: &IndexShape) -> Result<bool, BuildFailure> {
        self.at += self.size;
        self.size = 0;
        match run::unspill(&self.buffer[self.at..])? {
            Some((_, size)) => {
                self.size = size;
                if shape.ranked() > 0 {
                    run::rank_spilled(shape, &mut self.buffer[self.at..]);
                }
            }
            None if self.rest.start < self.rest.end => return Ok(false),
            None if self.at < self.buffer.len() => return Err(BuildFailure::Corrupt),
            None => {}
        }
        Ok(true)
    }
}

/// The result of a step of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeStep {
    /// there is a current row
    RunRow,
    /// these bytes of the file must be passed to [`Merge::supply`]
    Read(Extent),
    /// all runs are at their ends
    End,
}

/// A merge of runs, with a tree of losers.
#[derive(Debug)]
pub struct Merge {
    sources: Vec<Source>,
    /// `tree[0]` is the winner; the others are the losers of their matches
    tree: Vec<usize>,
    /// the source that waits for bytes
    waiting: Option<usize>,
    /// sources whose first row has been read
    begun: usize,
}

impl Merge {
    /// A merge of these runs. There must be at least two, and none may be empty.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(runs: &[Extent]) -> Result<Self, BuildFailure> {
        let mut sources = Vec::with_room(runs.len())?;
        for &rest in runs {
            let buffer = Vec::with_room(BUFFER)?;
            sources.push_within(Source { rest, buffer, at: 0, size: 0 });
        }
        let tree = Vec::with_room(runs.len())?;
        Ok(Self { sources, tree, waiting: None, begun: 0 })
    }

    /// Supplies the bytes that were requested.
    ///
    /// # Errors
    ///
    /// There are not as many bytes as requested.
    pub fn supply(&mut self, bytes: &[u8]) -> Result<(), BuildFailure> {
        let source = self.waiting.and_then(|index| self.sources.get_mut(index));
        let source = source.ok_or(BuildFailure::Corrupt)?;
        source.buffer.drain(..source.at);
        source.at = 0;
        if bytes.is_empty() || source.buffer.len() + bytes.len() > BUFFER {
            return Err(BuildFailure::Corrupt);
        }
        source.buffer.extend_within_room(bytes);
        source.rest.start += bytes.len() as u64;
        Ok(())
    }

    /// Moves to the next row.
    ///
    /// # Errors
    ///
    /// No memory, or the runs are damaged.
    #[inline]
    pub fn advance(&mut self, shape: &IndexShape) -> Result<MergeStep, BuildFailure> {
        if self.begun < self.sources.len() {
            return self.begin(shape);
        }
        let winner = self.waiting.take().unwrap_or(self.tree[0]);
        if let Some(read) = self.step(winner, shape)? {
            return Ok(read);
        }
        self.replay(winner, shape)?;
        Ok(self.state())
    }

    /// The current row.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn row(&self) -> Result<RunRow<'_>, BuildFailure> {
        self.sources[self.tree[0]].row()
    }

    fn state(&self) -> MergeStep {
        if self.sources[self.tree[0]].size == 0 {
            MergeStep::End
        } else {
            MergeStep::RunRow
        }
    }

    fn step(
        &mut self,
        index: usize,
        shape: &IndexShape,
    ) -> Result<Option<MergeStep>, BuildFailure> {
        let source = &mut self.sources[index];
        if source.advance(shape)? {
            return Ok(None);
        }
        let kept = (source.buffer.len() - source.at) as u64;
        let end = source.rest.end.min(source.rest.start + BUFFER as u64 - kept);
        self.waiting = Some(index);
        Ok(Some(MergeStep::Read(Extent { start: source.rest.start, end })))
    }

    /// Reads the first row of each source, then plays all matches.
    fn begin(&mut self, shape: &IndexShape) -> Result<MergeStep, BuildFailure> {
        while self.begun < self.sources.len() {
            if let Some(read) = self.step(self.begun, shape)? {
                return Ok(read);
            }
            self.begun += 1;
        }
        self.waiting = None;
        let count = self.sources.len();
        self.tree.resize_within(count, usize::MAX);
        for index in (0..count).rev() {
            self.replay(index, shape)?;
        }
        Ok(self.state())
    }

    /// Plays the matches of source `index` up to the root. At first, nodes are free (`usize::MAX`).
    /// The first source to reach a free node waits there for its opponent.
    #[inline]
    fn replay(&mut self, index: usize, shape: &IndexShape) -> Result<(), BuildFailure> {
        let mut winner = index;
        let mut node = (index + self.sources.len()) / 2;
        while node > 0 {
            let other = self.tree[node];
            if other == usize::MAX {
                self.tree[node] = winner;
                return Ok(());
            }
            if self.order(other, winner, shape)?.is_lt() {
                self.tree[node] = winner;
                winner = other;
            }
            node /= 2;
        }
        self.tree[0] = winner;
        Ok(())
    }

    /// Compares the rows of two sources. A source at its end sorts after all others.
    #[inline]
    fn order(&self, a: usize, b: usize, shape: &IndexShape) -> Result<Ordering, BuildFailure> {
        let (a, b) = (&self.sources[a], &self.sources[b]);
        match (a.size, b.size) {
            (0, _) => Ok(Ordering::Greater),
            (_, 0) => Ok(Ordering::Less),
            _ => a.row()?.compare(&b.row()?, shape),
        }
    }
}
