//! Sorts rows whose keys begin with the same bytes, by the bytes that follow.
//!
//! Many entries may have the same prefix, for example addresses (`https://www.…`). Then the next
//! sixteen bytes of the encoded keys replace the prefix until the entries are sorted by them, then
//! the next sixteen. After the end of the keys, it is the row's place. This needs no memory, and it
//! reads each row once for sixteen bytes.

use super::interrupt;
use super::key;
use super::radix::{self, SMALL};
use super::run::{row, Entry};
use super::shape::IndexShape;
use super::BuildFailure;
use crate::memory::Fallible;
use std::cmp::Ordering;

/// Number of row comparisons between two checks for an interrupt.
const COMPARISONS: u32 = 1024;

/// Sorts the entries of rows, whose tuples are in `arena`, by key and place. `varying` has a bit
/// set at every position at which two prefixes differ. The sort may be left: see
/// [`interrupt::unless_left`].
///
/// # Errors
///
/// No memory, or interrupted. The entries cannot be used any more.
pub fn sort(
    entries: &mut [Entry],
    arena: &[u8],
    varying: u128,
    shape: &IndexShape,
) -> Result<(), BuildFailure> {
    let mut asked = 0_u32;
    let mut compare = |a: &Entry, b: &Entry| {
        asked = asked.wrapping_add(1);
        if asked.is_multiple_of(COMPARISONS) {
            shape.interrupts.check().unwrap_or_else(|failure| interrupt::leave(failure));
        }
        if a.stored().is_none() && b.stored().is_none() {
            return a.place.cmp(&b.place);
        }
        let order = row(arena, a).compare(&row(arena, b), shape);
        order.unwrap_or_else(|failure| interrupt::leave(failure))
    };
    radix::sort(entries, varying, shape.interrupts, &mut compare)?;
    let complete = key::is_complete(shape);
    for group in entries.chunk_by_mut(same).filter(|group| group.len() > SMALL) {
        if complete && group.iter().all(|entry| entry.stored().is_some()) {
            by_more(group, arena, shape, &mut compare)?;
        } else {
            group.sort_unstable_by(&mut compare);
        }
    }
    Ok(())
}

fn same(a: &Entry, b: &Entry) -> bool {
    a.prefix() == b.prefix()
}

/// Sorts entries with the same prefix, all of which have tuples.
fn by_more(
    group: &mut [Entry],
    arena: &[u8],
    shape: &IndexShape,
    compare: &mut impl FnMut(&Entry, &Entry) -> Ordering,
) -> Result<(), BuildFailure> {
    let prefix = group[0].prefix();
    // The ranges that are still to be sorted, with the number of equal bytes at the start of their
    // keys. A recursion could be as deep as the keys are long, if one key is the beginning of
    // another.
    let mut parts = Vec::new();
    parts.try_push((0..group.len(), key::BYTES))?;
    while let Some((range, skip)) = parts.pop() {
        shape.interrupts.check()?;
        let mut at = range.start;
        let part = &mut group[range];
        let (varying, ended) = take_next(part, arena, shape, skip);
        radix::sort(part, varying, shape.interrupts, compare)?;
        if ended {
            continue;
        }
        for tied in part.chunk_by(same) {
            if tied.len() > SMALL {
                parts.try_push((at..at + tied.len(), skip + key::BYTES))?;
            }
            at += tied.len();
        }
    }
    for entry in group {
        *entry = Entry::new(prefix, entry.place);
    }
    Ok(())
}

/// Replaces the prefixes by the bytes after the first `skip` bytes of the keys, which are equal.
/// Returns the bits in which they differ, and whether the keys have ended and the rows' places are
/// used instead.
fn take_next(part: &mut [Entry], arena: &[u8], shape: &IndexShape, skip: usize) -> (u128, bool) {
    let (mut first, mut varying, mut ended) = (None, 0, false);
    for entry in part {
        let row = row(arena, entry);
        let next = key::after(shape, row.tuple, skip);
        // No key is the beginning of another, so either all keys end here or none.
        ended = next.is_none();
        let next = next.unwrap_or(row.place.into());
        varying |= next ^ *first.get_or_insert(next);
        *entry = Entry::new(next, entry.place);
    }
    (varying, ended)
}

#[cfg(test)]
mod tests {
    use super::super::run::Collector;
    use super::super::shape::{Attribute, Order};
    use super::super::tuple::{self, Field};
    use super::*;

    fn attribute(order: Order, descending: bool) -> Attribute {
        let (len, by_value) = match order {
            Order::Signed | Order::Float => (8, true),
            _ => (-1, false),
        };
        let (align, nulls_first) = (if by_value { 8 } else { 4 }, descending);
        Attribute { len, align, by_value, order, descending, nulls_first, exact: true }
    }

    type Value = Option<Vec<u8>>;

    fn field<'a>(attribute: &Attribute, value: &'a Value) -> Option<Field<'a>> {
        let bytes = value.as_deref()?;
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &b| word << 8 | u64::from(b));
        Some(if attribute.by_value { Field::Word(word(bytes)) } else { Field::Bytes(bytes) })
    }

    /// Compares the order of the collector with that of rows sorted by comparing tuples.
    fn check(attributes: Vec<Attribute>, keys: usize, count: u64, value: fn(u64, usize) -> Value) {
        let shape = IndexShape::new(attributes, keys).unwrap();
        let mut collector = Collector::new(1 << 30);
        let mut naive = Vec::new();
        for n in 0..count {
            // Tids in no order.
            let tid = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            let row: Vec<Value> = (0..shape.attributes().len()).map(|at| value(n, at)).collect();
            let field = |at: usize| field(&shape.attributes()[at], &row[at]);
            collector.add(&shape, tid, n % 7 == 0, field).unwrap();
            let mut formed = Vec::with_capacity(8192);
            tuple::form(&shape, shape.attributes().len(), field, &mut formed);
            naive.push((formed, tid, key::encode(&shape, field).prefix));
        }
        naive.sort_by(|a, b| tuple::compare(&shape, &a.0, &b.0).0.then(a.1.cmp(&b.1)));
        collector.sort(&shape).unwrap();
        assert_eq!(collector.len(), naive.len());
        for (row, (formed, tid, prefix)) in collector.rows(0).zip(&naive) {
            assert_eq!((row.tid(), row.prefix), (*tid, *prefix));
            let mut scratch = Vec::new();
            let whole = row.tuple(&shape, &mut scratch).unwrap();
            assert_eq!(&whole[6..], &formed[6..]);
        }
    }

    /// Checks each kind of text: alone in both directions, before and after others, with NULLs.
    fn check_text(count: u64, value: fn(u64, usize) -> Value) {
        let (up, down) = (attribute(Order::Text, false), attribute(Order::Text, true));
        check(vec![up], 1, count, value);
        check(vec![down], 1, count, value);
        check(vec![up, attribute(Order::Signed, true), down], 3, count, value);
        check(vec![attribute(Order::Float, false), down], 2, count, value);
        check(vec![up, Attribute { order: Order::Carried, ..up }], 1, count, value);
        // Keys that cannot be compared by bytes alone.
        check(vec![attribute(Order::Bytea, false), up], 2, count, value);
        check(vec![up, attribute(Order::Bytea, true)], 2, count, value);
    }

    fn mixed(n: u64) -> u64 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
    }

    #[test]
    fn keys_that_begin_alike() {
        let addresses = |n: u64, at: usize| {
            let hosts =
                ["https://www.example.com/path/", "https://www.example.com/", "http://a.org/"];
            let host = hosts[(n % 3) as usize];
            (!n.is_multiple_of(101))
                .then(|| format!("{host}{}", mixed(n + at as u64) % 3000).into_bytes())
        };
        check_text(20_000, addresses);
        let long =
            |n: u64, _| Some(format!("{}{}", "long ".repeat(150), mixed(n) % 1000).into_bytes());
        check_text(3000, long);
    }

    #[test]
    fn keys_that_are_beginnings_of_one_another() {
        check_text(8000, |n: u64, _| Some(vec![b'a'; (mixed(n) % 2600) as usize / 3]));
        // As long as a key can be, with more rows at every depth than are compared directly.
        let deep = |n: u64, _| Some(vec![b'a'; n.min(2690) as usize]);
        check(vec![attribute(Order::Text, false)], 1, 3000, deep);
        check(vec![attribute(Order::Text, true)], 1, 3000, deep);
        // Their ends are on either side of a boundary of sixteen bytes.
        check_text(6000, |n: u64, _| Some(vec![b'b'; 12 + (mixed(n) % 24) as usize]));
    }

    #[test]
    fn keys_that_are_equal() {
        check_text(4000, |n: u64, _| Some(vec![b'c'; 30 + 20 * (n % 3) as usize]));
        let floats = vec![attribute(Order::Float, false)];
        let zeros = |n: u64, _| Some([0.0_f64, -0.0][(n % 2) as usize].to_be_bytes().to_vec());
        check(floats, 1, 1000, zeros);
    }

    #[test]
    fn zeros_at_the_end() {
        let zeros =
            |n: u64, _| Some([&b"the same bytes"[..], &vec![0; mixed(n) as usize % 50]].concat());
        check(vec![attribute(Order::Bytea, false)], 1, 3000, zeros);
        check(vec![attribute(Order::Bytea, true)], 1, 3000, zeros);
    }
}
