//! Sorts entries that are already in groups of equal keys.
//!
//! Tables are often filled user by user, or day by day, so that rows with the same key are
//! adjacent. Then it is enough to sort the groups. Their rows stay in place.

use super::run::Entry;
use super::BuildFailure;
use crate::memory::Fallible;

/// Fewest rows in a group, on average, for which groups are worth their memory.
const FEWEST: usize = 8;

/// Adjacent entries with the same prefix.
#[derive(Clone, Copy, Debug)]
struct Group {
    prefix: u128,
    /// index of the first entry
    start: usize,
    /// number of entries in all earlier groups, in sorted order
    before: usize,
}

/// The order of the groups of a run.
#[derive(Debug)]
pub struct Grouped {
    groups: Vec<Group>,
}

impl Grouped {
    /// Sorts the groups of `entries` by prefix, then place.
    ///
    /// `None`: there are too many groups, or the places do not ascend. In the second case, groups
    /// with one prefix may have to be interleaved.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn sorted(entries: &[Entry]) -> Result<Option<Self>, BuildFailure> {
        let mut groups: Vec<Group> = Vec::new();
        let mut place = 0;
        for (start, entry) in entries.iter().enumerate() {
            if entry.place < place {
                return Ok(None);
            }
            place = entry.place;
            if groups.last().is_some_and(|group| group.prefix == entry.prefix()) {
                continue;
            }
            // The first entries show for most runs without groups that they have none.
            if groups.len() > start / FEWEST + 64 {
                return Ok(None);
            }
            groups.try_push(Group { prefix: entry.prefix(), start, before: 0 })?;
        }
        // Until the groups are sorted, this is the number of rows of each group.
        let mut end = entries.len();
        for group in groups.iter_mut().rev() {
            group.before = end - group.start;
            end = group.start;
        }
        groups.sort_unstable_by_key(|group| (group.prefix, group.start));
        let mut before = 0;
        for group in &mut groups {
            before += std::mem::replace(&mut group.before, before);
        }
        Ok(Some(Self { groups }))
    }

    /// The group of the entry at position `at` in the order.
    #[must_use]
    pub fn find(&self, at: usize) -> usize {
        self.groups.partition_point(|group| group.before <= at).saturating_sub(1)
    }

    /// The index of the entry at position `at` in the order. `group` is the group of the entry
    /// before, and is set to the group of this one.
    #[must_use]
    #[inline]
    pub fn entry(&self, at: usize, group: &mut usize) -> usize {
        if self.groups.get(*group + 1).is_some_and(|next| next.before <= at) {
            *group += 1;
        }
        let group = &self.groups[*group];
        group.start + (at - group.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_in_order_and_their_rows_as_they_were() {
        for (count, size, keys) in
            [(10_000_u64, 50, 40), (9_999, 9, 2000), (64, 64, 1), (5000, 31, 7)]
        {
            let entries: Vec<Entry> = (0..count)
                .map(|n| Entry::new(u128::from((n / size * 7919) % keys) << 70, n * 4))
                .collect();
            let grouped = Grouped::sorted(&entries).unwrap().unwrap();
            let mut expected = entries.clone();
            expected.sort_by_key(|entry| (entry.prefix(), entry.place));
            for from in [0, count as usize / 3, count as usize - 1] {
                let mut group = grouped.find(from);
                for (at, entry) in expected.iter().enumerate().skip(from) {
                    assert_eq!(entries[grouped.entry(at, &mut group)], *entry);
                }
            }
        }
    }

    #[test]
    fn what_has_no_groups_is_not_grouped() {
        let mixed: Vec<Entry> =
            (0..10_000).map(|n| Entry::new(n * 7919 % 1009, n as u64)).collect();
        assert!(Grouped::sorted(&mixed).unwrap().is_none());
        let back: Vec<Entry> =
            (0..10_000).map(|n| Entry::new(n / 100, 20_000 - n as u64)).collect();
        assert!(Grouped::sorted(&back).unwrap().is_none());
    }
}
