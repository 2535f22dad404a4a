//! Sorts entries by their bytes, in place.
//!
//! The most significant byte comes first ("American flag"): count the bytes, swap the entries into
//! their buckets, and continue in each bucket with the next byte that varies. Small buckets are
//! sorted by comparison. Bytes that are the same in all entries, according to `varying`, cost
//! nothing.

use super::interrupt::Interrupts;
use super::run::Entry;
use super::BuildFailure;
use std::cmp::Ordering;

/// Buckets of this size or less are sorted by comparison.
pub const SMALL: usize = 96;

/// Sorts `entries` by `prefix`, and those with equal prefixes by `compare`. More than [`SMALL`]
/// entries with the same prefix are left unordered.
///
/// `varying` has a bit set at every position at which two prefixes differ.
///
/// # Errors
///
/// Interrupted. All entries are still there, in any order.
pub fn sort(
    entries: &mut [Entry],
    varying: u128,
    interrupts: Interrupts,
    compare: &mut impl FnMut(&Entry, &Entry) -> Ordering,
) -> Result<(), BuildFailure> {
    let mut digits = [0; 16];
    let mut count = 0;
    for shift in (0..128).step_by(8).rev().filter(|shift| varying >> shift & 0xFF != 0) {
        digits[count] = shift;
        count += 1;
    }
    by_digits(entries, &digits[..count], interrupts, compare)
}

fn by_digits(
    entries: &mut [Entry],
    digits: &[u32],
    interrupts: Interrupts,
    compare: &mut impl FnMut(&Entry, &Entry) -> Ordering,
) -> Result<(), BuildFailure> {
    if entries.len() <= SMALL {
        entries.sort_unstable_by(|a, b| a.prefix().cmp(&b.prefix()).then_with(|| compare(a, b)));
        return Ok(());
    }
    let [shift, digits @ ..] = digits else { return Ok(()) };
    interrupts.check()?;
    let shift = *shift;
    let counts = count(entries, shift);
    if counts.iter().all(|&n| n == 0 || n == entries.len()) {
        return by_digits(entries, digits, interrupts, compare);
    }
    permute(entries, shift, &counts);
    let mut rest = entries;
    for n in counts {
        let (bucket, after) = rest.split_at_mut(n);
        if n > 1 {
            by_digits(bucket, digits, interrupts, compare)?;
        }
        rest = after;
    }
    Ok(())
}

#[inline]
fn digit(entry: &Entry, shift: u32) -> usize {
    (entry.prefix() >> shift) as usize & 0xFF
}

fn count(entries: &[Entry], shift: u32) -> [usize; 256] {
    let mut counts = [0; 256];
    for entry in entries {
        counts[digit(entry, shift)] += 1;
    }
    counts
}

/// Swaps every entry into its bucket.
fn permute(entries: &mut [Entry], shift: u32, counts: &[usize; 256]) {
    let mut next = [0; 256];
    let mut end = [0; 256];
    let mut start = 0;
    for (bucket, &n) in counts.iter().enumerate() {
        next[bucket] = start;
        start += n;
        end[bucket] = start;
    }
    for bucket in 0..256 {
        while next[bucket] < end[bucket] {
            let at = next[bucket];
            let mut held = entries[at];
            let mut to = digit(&held, shift);
            while to != bucket {
                std::mem::swap(&mut held, &mut entries[next[to]]);
                next[to] += 1;
                to = digit(&held, shift);
            }
            entries[at] = held;
            next[bucket] += 1;
        }
    }
}
