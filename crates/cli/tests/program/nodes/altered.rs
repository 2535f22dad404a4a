//! DDL on a node after the plan has compared its tables with the partitions.

use super::{on_one_major, Cluster, HASH};
use crate::common::wait_until;

fn altered(cluster: &mut Cluster) {
    cluster.twins("a int, at timestamp", "HASH (a)", &HASH);
    let rows: String = (0..100).map(|i| format!("{i},2020-07-01 12:00:00\n")).collect();
    let file = cluster.world.file("rows.csv", rows.as_bytes());
    let none: &[&str] = &[];
    for more in [none, &["--truncate"], &["--once"], &["--once", "--atomic"]] {
        // The plan sees the type before this. The load waits for this transaction.
        cluster.node(1, "BEGIN; ALTER TABLE t_1 ALTER at TYPE timestamptz");
        let load = ["load", &file, "--quiet", "--table", "t", "--route", "nodes"];
        let child = cluster.world.start(&[&load[..], more].concat());
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        wait_until(|| "nothing waits".into(), || cluster.world.sql(waits) == "1");
        cluster.node(1, "COMMIT");
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{more:?}: {said}");
        let differs = "node n1: column at of table \"public\".\"t_1\" has the type timestamp with";
        assert!(said.contains(differs) && said.contains("alike"), "{more:?}: {said}");
        let left = "SELECT (SELECT count(*) FROM t_0) + (SELECT count(*) FROM t_2)";
        assert_eq!(cluster.node(0, left), "0", "{more:?}: {said}");
        assert_eq!(cluster.node(1, "SELECT count(*) FROM t_1"), "0", "{more:?}: {said}");
        cluster.node(1, "ALTER TABLE t_1 ALTER at TYPE timestamp");
    }
    cluster.load(&rows);
}

/// A column of a table on a node gets another type after the plan has compared it, and before its
/// first rows. The load fails and names the column; it does not send rows in the form of the old
/// type, which would alter them.
#[test]
fn a_table_that_is_altered_on_a_node_gets_no_other_values() {
    on_one_major(altered);
}
