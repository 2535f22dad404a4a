//! Ends long work when the caller wants it: a server's cancel must not wait until millions of rows
//! are sorted.

use super::BuildFailure;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// A callback that returns true if the caller wants the work to end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interrupts(pub Option<extern "C" fn() -> bool>);

impl Interrupts {
    /// Checks for an interrupt.
    ///
    /// # Errors
    ///
    /// The caller wants the work to end.
    #[inline]
    pub fn check(self) -> Result<(), BuildFailure> {
        match self.0 {
            Some(wanted) if wanted() => Err(BuildFailure::Interrupted),
            _ => Ok(()),
        }
    }
}

/// [`leave`] was called because memory ran out.
struct WithoutMemory;
/// [`leave`] was called because the caller wants the work to end.
struct Ended;

/// Leaves a sort from within a comparison that has no answer. Any answer would let the sort go on,
/// and answers that fit no order might make it panic. All elements are still there afterwards.
///
/// This is a panic, so it needs a little memory that must not be refused. The extension has
/// reserved some.
///
/// # Panics
///
/// The failure is not one that a comparison can have.
#[allow(clippy::disallowed_methods)] // a box of an empty type takes no memory
pub fn leave(failure: BuildFailure) -> ! {
    match failure {
        BuildFailure::OutOfMemory => resume_unwind(Box::new(WithoutMemory)),
        BuildFailure::Interrupted => resume_unwind(Box::new(Ended)),
        BuildFailure::Corrupt | BuildFailure::Duplicate => {
            panic!("no failure of a comparison: {failure:?}")
        }
    }
}

/// Does work that [`leave`] may leave.
///
/// # Errors
///
/// The work was left, or it failed.
pub fn unless_left(work: impl FnOnce() -> Result<(), BuildFailure>) -> Result<(), BuildFailure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|thrown| {
        if thrown.is::<WithoutMemory>() {
            Err(BuildFailure::OutOfMemory)
        } else if thrown.is::<Ended>() {
            Err(BuildFailure::Interrupted)
        } else {
            resume_unwind(thrown)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index_sort::build::IndexBuild;
    use crate::index_sort::shape::{Attribute, IndexShape, Order};
    use crate::index_sort::tuple::Field;

    extern "C" fn at_once() -> bool {
        true
    }

    fn build(len: i16, order: Order) -> IndexBuild {
        let attribute = Attribute {
            len,
            align: 8,
            by_value: len == 8,
            order,
            descending: false,
            nulls_first: false,
            exact: true,
        };
        let mut shape = IndexShape::new(vec![attribute], 1).unwrap();
        shape.interrupts = Interrupts(Some(at_once));
        IndexBuild::new(shape, 1 << 26).unwrap()
    }

    /// Adds many values and sorts them.
    fn sort(len: i16, order: Order, value: fn(u64) -> String) -> Result<(), BuildFailure> {
        let mut build = build(len, order);
        let shape = build.waiting.clone().unwrap_or_else(|| build.shape().clone());
        for n in 0..20_000 {
            let value = value(n);
            let field = if len == 8 {
                Field::Word(value.parse().unwrap())
            } else {
                Field::Bytes(value.as_bytes())
            };
            build.collector.add(&shape, n + 1, false, |_| Some(field)).unwrap();
        }
        build.settle().and_then(|_| build.finish())
    }

    #[test]
    fn a_sort_of_many_rows_is_left() {
        // As words, of which nearly all have the same upper bits.
        let words = |n: u64| (if n < 12 { 1_u64 << (40 + n) } else { n * 7919 % 5003 }).to_string();
        assert_eq!(sort(8, Order::Signed, words), Err(BuildFailure::Interrupted));
        // By their bytes, and by comparisons if the bytes are equal.
        let bytes = |n: u64| format!("{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        assert_eq!(sort(16, Order::Fixed, bytes), Err(BuildFailure::Interrupted));
        let long = |n: u64| format!("they begin with the same bytes {}", n * 7919 % 10_007);
        assert_eq!(sort(-1, Order::Text, long), Err(BuildFailure::Interrupted));
        // While sorted values get their numbers.
        let numbered = |n: u64| format!("{n:012}");
        assert_eq!(sort(-1, Order::Ranked, numbered), Err(BuildFailure::Interrupted));
    }

    #[test]
    fn other_panics_stay_panics() {
        assert_eq!(
            unless_left(|| leave(BuildFailure::OutOfMemory)),
            Err(BuildFailure::OutOfMemory)
        );
        let thrown = catch_unwind(|| unless_left(|| resume_unwind(Box::new("another"))));
        assert_eq!(*thrown.unwrap_err().downcast::<&str>().unwrap(), "another");
    }
}
