//! Functions that the tests of several modules share.

use crate::index_sort::shape::{Attribute, IndexShape, Order};

/// Unordered numbers, the same in each run: xorshift64.
pub fn random() -> impl FnMut() -> u64 {
    let mut state = 88_172_645_463_325_252_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// An index on one bigint.
pub fn bigint_index() -> IndexShape {
    let attribute = Attribute {
        len: 8,
        align: 8,
        by_value: true,
        order: Order::Signed,
        descending: false,
        nulls_first: false,
        exact: true,
    };
    IndexShape::new(vec![attribute], 1).unwrap()
}
