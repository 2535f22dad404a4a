//! Rows that are much longer than their records.

use super::{on_one_major, Cluster, HASH};

/// More than 8 MB of rows from one chunk: padding in a chunk of the usual size, and many short
/// values after a long one, which makes a longer chunk.
fn long_rows(cluster: &mut Cluster) {
    cluster.twins("a int, b char(255)", "HASH (a)", &HASH);
    let rows: String = (100_000..133_000).map(|a| format!("{a},ABCDEFGH\n")).collect();
    cluster.load(&rows);
    let numbers: String = (0..20).map(|i| format!("n{i} numeric, ")).collect();
    cluster.twins(&format!("a int, {numbers}b text"), "HASH (a)", &HASH);
    let row = |a: usize, b: &str| format!("{a}{},{b}\n", ",1".repeat(20));
    let short: String = (1..23_000).map(|a| row(a, "")).collect();
    cluster.load(&(row(0, &"b".repeat(2_200_000)) + &short));
}

/// Rows are sent to the nodes even if they take many times the bytes of their records: by the
/// padding of `char(n)`, or by short values.
#[test]
fn rows_may_be_much_longer_than_their_records() {
    on_one_major(long_rows);
}
