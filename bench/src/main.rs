//! Rebuilds the published loading benchmarks of the field, side by side.
fn main() {}
