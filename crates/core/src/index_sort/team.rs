//! Builds one index from rows that several builds have collected. Each sorts its own rows, and one
//! build receives all of them.
//!
//! ```text
//! each: add … add ─ spread ─▶ (all spreads as one) ─ sort_as ─▶ handed ─▶ the one's join ─▶ finish
//! ```
//!
//! Words of different builds can be merged if they have the same layout. So the bits in which any
//! entries differ must be known to all builds before one of them packs its entries. If an entry
//! does not fit into a word, entries are handed over unsorted. If one build has spilled rows, or
//! has rows with index tuples, all builds spill their rows, and one build merges the runs of all.

use super::build::IndexBuild;
use super::merge::Extent;
use super::run::{Collector, Entry, Sorted};
use super::BuildFailure;
use crate::memory::{try_push_back, Fallible};

/// The entries of one or more builds: their number, one of them, and the bits in which they differ.
///
/// In the halves of prefixes, the upper half comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Spread {
    /// the number of entries; if it is 0, all other fields are zero
    pub rows: u64,
    /// the prefix of one entry
    pub prefix: [u64; 2],
    /// the place of that entry
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
    /// The spread of both sets of entries together.
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

/// The rows that a build hands over.
#[derive(Clone, Copy, Debug)]
pub enum Handed<'a> {
    /// sorted words in the common layout
    Words(&'a [u64]),
    /// entries in the order in which they were added
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
    /// The spread of the rows; `None` if they cannot be handed over. That is so if some are
    /// spilled, have index tuples, or have values that this build has numbered.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        let numbered = self.shape.ranked() > 0 && self.waiting.is_none();
        if numbered || !self.runs.is_empty() {
            return None;
        }
        self.collector.spread()
    }

    /// Sorts the rows as words in the common layout of `spread`. `false`: there is no such layout.
    /// The result is the same for every build with the same spread that has rows.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn sort_as(&mut self, spread: &Spread) -> Result<bool, BuildFailure> {
        let collector = &mut self.collector;
        // Set these even if no entry can be packed. After the join, all rows may be sorted again,
        // with other prefixes.
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

    /// The rows to hand over to another build, after [`IndexBuild::sort_as`].
    #[must_use]
    pub fn handed(&self) -> Handed<'_> {
        match &self.collector.sorted {
            Sorted::Packed(packed) => Handed::Words(packed.words()),
            _ => Handed::Entries(&self.collector.entries),
        }
    }

    /// Sets the limit for the bytes of rows from now on.
    pub fn limit(&mut self, bytes: usize) {
        let ranked = self.shape.ranked() > 0;
        self.collector.limit = if ranked { bytes / 2 } else { bytes };
    }

    /// Spills the rows, so that another build can merge them. The next steps write them to the
    /// file. `false`: there are no rows. Ranked values cannot be handed over.
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

    /// The positions of the runs in this build's temporary file.
    pub fn runs(&mut self) -> &[Extent] {
        self.runs.make_contiguous()
    }

    /// Adds a run that another build has spilled. The caller must map its positions, which are not
    /// used in this build's own file, to the file of the other build.
    ///
    /// # Errors
    ///
    /// No memory, the run is empty, or values are ranked.
    pub fn adopt(&mut self, run: Extent) -> Result<(), BuildFailure> {
        if run.start >= run.end || self.shape.ranked() > 0 {
            return Err(BuildFailure::Corrupt);
        }
        Ok(try_push_back(&mut self.runs, run)?)
    }

    /// Adds the rows that another build of the same spread has handed over, after
    /// [`IndexBuild::sort_as`].
    ///
    /// # Errors
    ///
    /// No memory, or the rows are not in the same form as this build's.
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

    /// Three builds of a third of the rows each. The last ones may be empty.
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

    /// Continues to the end of the run or of the tree. `files[n]` has the positions from `n << 48`
    /// on. The build's own file is the first.
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
