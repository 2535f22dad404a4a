//! Rows of one index that several builds have collected: each sorts its own, one gets them all.
//!
//! ```text
//! each: add … add ─ spread ─▶ (all spreads as one) ─ sort_as ─▶ handed ─▶ the one's join ─▶ finish
//! ```
//!
//! Words of different builds can be merged if they have the same layout, so all must know in which
//! bits the entries of all differ before anyone packs his. Where an entry does not fit into a word,
//! entries are handed over as they came. Where one has spilled rows, or rows with tuples of their
//! own, all spill what they have, and the one merges the runs of all.

use super::build::IndexBuild;
use super::merge::Extent;
use super::run::{Collector, Entry, Sorted};
use super::BuildFailure;
use crate::memory::{try_push_back, Fallible};

/// Entries of one or more builds: how many, one of them, and in which bits they differ.
///
/// Halves of prefixes are upper first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Spread {
    /// how many; without any, all else is zero
    pub rows: u64,
    /// the prefix of one of them
    pub prefix: [u64; 2],
    /// its place
    pub place: u64,
    /// bits in which prefixes differ
    pub varying_prefix: [u64; 2],
    /// bits in which places differ
    pub varying_place: u64,
}

fn halves(word: u128) -> [u64; 2] {
    [(word >> 64) as u64, word as u64]
}

fn whole(halves: [u64; 2]) -> u128 {
    u128::from(halves[0]) << 64 | u128::from(halves[1])
}

impl Spread {
    /// That of the entries of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        if self.rows == 0 || other.rows == 0 {
            return if self.rows == 0 { other } else { self };
        }
        let differ = |at: usize| {
            self.varying_prefix[at] | other.varying_prefix[at] | self.prefix[at] ^ other.prefix[at]
        };
        Self {
            rows: self.rows.saturating_add(other.rows),
            varying_prefix: [differ(0), differ(1)],
            varying_place: self.varying_place | other.varying_place | self.place ^ other.place,
            ..self
        }
    }
}

/// What a build has to give.
#[derive(Clone, Copy, Debug)]
pub enum Handed<'a> {
    /// sorted words, in the layout that all have agreed on
    Words(&'a [u64]),
    /// entries as they came
    Entries(&'a [Entry]),
}

impl Collector {
    fn spread(&self) -> Option<Spread> {
        if !self.arena.is_empty() {
            return None;
        }
        let Some(first) = self.entries.first() else { return Some(Spread::default()) };
        Some(Spread {
            rows: self.entries.len() as u64,
            prefix: halves(first.prefix()),
            place: first.place,
            varying_prefix: halves(self.varying_prefix),
            varying_place: self.varying_place,
        })
    }
}

impl IndexBuild {
    /// The spread of the rows that are there; `None` if others cannot have them: some are spilled,
    /// have tuples of their own, or have values that were numbered by this build.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        let numbered = self.shape.ranked() > 0 && self.waiting.is_none();
        if numbered || !self.runs.is_empty() {
            return None;
        }
        self.collector.spread()
    }

    /// Sorts the rows as words in the layout of all that `spread` says. `false`: there is none, and
    /// so it is for every build of the same spread that has rows.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn sort_as(&mut self, spread: &Spread) -> Result<bool, BuildFailure> {
        let collector = &mut self.collector;
        // Also of what will be sorted again, by other prefixes, when all is together.
        collector.varying_prefix = whole(spread.varying_prefix);
        collector.varying_place = spread.varying_place;
        let packed = super::packed::Packed::sorted(
            &collector.entries,
            collector.varying_prefix,
            collector.varying_place,
            self.shape.interrupts,
        )?;
        let Some(packed) = packed else { return Ok(false) };
        collector.entries = Vec::new();
        collector.sorted = Sorted::Packed(packed);
        Ok(true)
    }

    /// What there is to be handed to another build, after [`IndexBuild::sort_as`].
    #[must_use]
    pub fn handed(&self) -> Handed<'_> {
        match &self.collector.sorted {
            Sorted::Packed(packed) => Handed::Words(packed.words()),
            _ => Handed::Entries(&self.collector.entries),
        }
    }

    /// Takes at most so many bytes of rows from now on.
    pub fn limit(&mut self, bytes: usize) {
        let ranked = self.shape.ranked() > 0;
        self.collector.limit = if ranked { bytes / 2 } else { bytes };
    }

    /// Spills the rows that are there, for another build to merge; the next steps write them out.
    /// `false`: there are none. Ranked values cannot be handed over.
    ///
    /// # Errors
    ///
    /// No memory; or values are ranked.
    pub fn spill(&mut self) -> Result<bool, BuildFailure> {
        if self.shape.ranked() > 0 {
            return Err(BuildFailure::Corrupt);
        }
        if self.collector.is_empty() {
            return Ok(false);
        }
        self.flush()?;
        Ok(true)
    }

    /// Where the runs are in this build's temporary file.
    pub fn runs(&mut self) -> &[Extent] {
        self.runs.make_contiguous()
    }

    /// Takes a run that another build has spilled; the bytes at these places, which are no places of
    /// this build's own file, are that build's.
    ///
    /// # Errors
    ///
    /// No memory; or there is no such run.
    pub fn adopt(&mut self, run: Extent) -> Result<(), BuildFailure> {
        if run.start >= run.end || self.shape.ranked() > 0 {
            return Err(BuildFailure::Corrupt);
        }
        Ok(try_push_back(&mut self.runs, run)?)
    }

    /// Takes what another build of the same spread has handed over, after [`IndexBuild::sort_as`].
    ///
    /// # Errors
    ///
    /// No memory; or it is not what this build has itself.
    pub fn join(&mut self, handed: Handed<'_>) -> Result<(), BuildFailure> {
        let collector = &mut self.collector;
        match (&mut collector.sorted, handed) {
            (Sorted::Packed(packed), Handed::Words(words)) => packed.merge(words),
            (Sorted::Entries, Handed::Entries(entries)) => {
                collector.entries.try_reserve_exact(entries.len())?;
                collector.entries.extend_within_room(entries);
                Ok(())
            }
            _ => Err(BuildFailure::Corrupt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index_sort::build::Step;
    use crate::index_sort::tuple::{Field, Tid};
    use crate::testing::bigint_index;

    /// A build of the rows with these numbers.
    fn build(rows: impl Iterator<Item = u64>, value: fn(u64) -> u64) -> IndexBuild {
        let mut build = IndexBuild::new(bigint_index(), 1 << 26).unwrap();
        for row in rows {
            let field = |_| Some(Field::Word(value(row)));
            build.add((row + 1) as Tid, row % 5 == 0, field).unwrap();
        }
        build
    }

    fn sorted(build: &IndexBuild) -> Vec<(u128, u64)> {
        build.collector.rows(0).map(|row| (row.prefix, row.place)).collect()
    }

    /// Three builds of a third of the rows each, the last of which may be empty.
    fn as_a_team(count: u64, value: fn(u64) -> u64) -> (bool, Vec<(u128, u64)>) {
        let third = count.div_ceil(3);
        let range = |n: u64| (n * third).min(count)..((n + 1) * third).min(count);
        let mut builds: Vec<_> = (0..3).map(|n| build(range(n), value)).collect();
        let spread = builds
            .iter()
            .map(|build| build.spread().unwrap())
            .fold(Spread::default(), Spread::with);
        assert_eq!(spread.rows, count);
        let mut packed = false;
        for build in builds.iter_mut().filter(|build| !build.collector.is_empty()) {
            packed = build.sort_as(&spread).unwrap();
        }
        let (one, others) = builds.split_first_mut().unwrap();
        for other in others.iter().filter(|build| !build.collector.is_empty()) {
            one.join(other.handed()).unwrap();
        }
        one.finish().unwrap();
        assert_eq!(one.collector.len() as u64, count);
        (packed, sorted(one))
    }

    #[test]
    fn a_team_has_the_rows_of_one() {
        let values: [fn(u64) -> u64; 4] = [
            |n| n,
            |n| n.wrapping_mul(7919) % 1000,
            |n| n / 70 * 97 % 1009,
            |n| (n << 9) ^ (n % 3),
        ];
        for value in values {
            for count in [1, 2, 4, 10_000] {
                let mut alone = build(0..count, value);
                alone.finish().unwrap();
                assert_eq!(as_a_team(count, value), (true, sorted(&alone)));
            }
        }
        let wide: fn(u64) -> u64 = |n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut alone = build(0..10_000, wide);
        alone.finish().unwrap();
        assert_eq!(as_a_team(10_000, wide), (false, sorted(&alone)));
    }

    /// Goes on to the end of the run or of the tree; places from `n << 48` on are in `files[n]`, and
    /// the build's own file is the first.
    fn drive(build: &mut IndexBuild, files: &mut [Vec<u8>]) -> Vec<Vec<u8>> {
        let mut pages = Vec::new();
        loop {
            match build.step().unwrap() {
                Step::Go => {}
                Step::Write => files[0].extend_from_slice(build.output()),
                Step::Read(Extent { start, end }) => {
                    let at = (start & 0xFFFF_FFFF_FFFF) as usize;
                    let bytes = &files[(start >> 48) as usize][at..at + (end - start) as usize];
                    build.supply(bytes).unwrap();
                }
                Step::Pages => {
                    pages.extend(std::iter::from_fn(|| {
                        let (_, page) = build.take_page()?;
                        Some(page.bytes().to_vec())
                    }));
                }
                Step::Add | Step::Done(_) => return pages,
            }
        }
    }

    #[test]
    fn runs_of_others_are_merged() {
        let value: fn(u64) -> u64 = |n| n.wrapping_mul(7919) % 3000;
        let mut alone = build(0..9000, value);
        alone.finish().unwrap();
        let expected = drive(&mut alone, &mut [Vec::new()]);
        let mut one = build(0..3000, value);
        let mut files = vec![Vec::new()];
        for n in 1..3 {
            let mut other = build(n * 3000..(n + 1) * 3000, value);
            let mut file = [Vec::new()];
            assert!(other.spill().unwrap());
            drive(&mut other, &mut file);
            assert!(!other.spill().unwrap());
            for run in other.runs() {
                one.adopt(Extent { start: n << 48 | run.start, end: n << 48 | run.end }).unwrap();
            }
            files.extend(file);
        }
        one.finish().unwrap();
        assert_eq!(drive(&mut one, &mut files), expected);
        assert!(one.adopt(Extent { start: 7, end: 7 }).is_err());
    }

    #[test]
    fn what_cannot_be_handed_over_is_not() {
        let mut build = build(0..10, |n| n);
        assert!(build.join(Handed::Words(&[1])).is_err());
        build.flush().unwrap();
        assert_eq!(build.spread(), None);
    }
}
