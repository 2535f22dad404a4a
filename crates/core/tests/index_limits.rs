//! Limits of the index build.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use pgsluice_core::index_sort::build::IndexBuild;
use pgsluice_core::index_sort::run::Added;
use pgsluice_core::index_sort::shape::{Attribute, IndexShape, Order};
use pgsluice_core::index_sort::tuple::Field;

/// A tuple that is larger than a third of a page is refused as too large; a smaller one is stored.
#[test]
fn a_tuple_larger_than_a_third_of_a_page_is_not_taken() {
    let text = Attribute {
        len: -1,
        align: 4,
        by_value: false,
        order: Order::Text,
        descending: false,
        nulls_first: false,
        exact: true,
    };
    let shape = IndexShape::new(vec![text; 6], 6).unwrap();
    let value = vec![b'x'; 500];
    let mut build = IndexBuild::new(shape, 1 << 20).unwrap();
    let wide = build.add(5, false, |_| Some(Field::Bytes(&value)));
    assert_eq!(wide, Ok(Added::TooLarge));
    let narrow = build.add(5, false, |index| (index < 5).then_some(Field::Bytes(&value)));
    assert_eq!(narrow, Ok(Added::Stored));
}
