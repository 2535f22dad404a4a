//! The records that nodes have of files survive a crash of the node. A record that cannot be
//! trusted is an error, and files with the same records but different headers or names are
//! distinguished.

use super::servers::{on_servers, Servers, ROWS};
use super::{on_one_major, Cluster, HASH};

const ONCE: &[&str] = &["--once"];
const BOTH: &[&str] = &["--once", "--atomic"];

/// A node whose role does not wait for the disk. Its WAL is written only on other occasions.
fn unflushed(servers: &mut Servers) {
    servers.nodes[1].sql("ALTER ROLE postgres SET synchronous_commit = off");
    servers.nodes[1].restart_with(&[("wal_writer_delay", "10s")]);
    for only_forgotten in [false, true] {
        let file = servers.file();
        if only_forgotten {
            servers.run(&file, ONCE).loaded("before it is forgotten");
            servers.expect(&file);
        }
        servers.nodes[1].sql("CHECKPOINT");
        if only_forgotten {
            let forget = ["loads", "forget", &file, "--table", "t"];
            assert_eq!(servers.coordinator.run(&forget).status.code(), Some(0));
        } else {
            assert_eq!(servers.run(&file, ONCE).loaded("no crash yet"), ROWS);
        }
        servers.kill(1, true);
        servers.nodes[1].restart_with(&[("wal_writer_delay", "10s")]);
        let expected = if only_forgotten { ROWS } else { 0 };
        assert_eq!(servers.run(&file, ONCE).loaded("after the crash"), expected);
        servers.has_all(&format!("only forgotten: {only_forgotten}"));
    }
}

/// Even with synchronous_commit = off for the node's role, what a load or `loads forget` has
/// recorded on the node survives a crash.
#[test]
fn a_node_that_does_not_wait_for_its_disk_keeps_what_it_has_recorded() {
    on_servers(unflushed);
}

impl Cluster {
    /// Runs a load of the table `t` that must fail with these words and a hint, and add no row.
    fn refuses(&mut self, file: &str, more: &[&str], words: &[&str]) {
        let before = self.world.sql("SELECT count(*) FROM t");
        let said = self.load_nodes(file, more).unwrap_err();
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(said.contains("hint: "), "{said}");
        assert_eq!(self.world.sql("SELECT count(*) FROM t"), before, "{said}");
    }

    fn load_nodes(&mut self, file: &str, more: &[&str]) -> Result<serde_json::Value, String> {
        let all = [file, "--table", "t", "--route", "nodes"];
        self.world.load(&[&all[..], more].concat())
    }

    fn loads(&mut self, file: &str, more: &[&str], rows: usize) {
        let summary = self.load_nodes(file, more).unwrap();
        assert_eq!(summary["loaded"], rows, "{summary}");
    }

    /// Removes the coordinator's record, as if it had died before writing it.
    fn open_again(&mut self) {
        self.world.sql("DELETE FROM pgsluice_loads.sources");
    }

    fn slices(&mut self) -> String {
        self.node(1, "SELECT count(*) FROM pgsluice_loads.slices")
    }
}

fn of_others(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    let rows: String = (0..100).map(|i| format!("{i},x\n")).collect();
    let file = cluster.world.file("rows.csv", rows.as_bytes());
    cluster.loads(&file, ONCE, 100);
    cluster.open_again();
    let other = "ALTER SCHEMA pgsluice_loads OWNER TO other";
    let own = "ALTER SCHEMA pgsluice_loads OWNER TO postgres";
    cluster.node(1, "DROP ROLE IF EXISTS other; CREATE ROLE other");
    cluster.node(1, other);
    let words = ["node n1", "pgsluice_loads", "belongs to other"];
    cluster.refuses(&file, BOTH, &words);
    cluster.refuses(&file, ONCE, &words);
    cluster.node(1, own);
    cluster.loads(&file, BOTH, 0);
    cluster.node(1, other);
    let forget = ["loads", "forget", &file, "--table", "t"];
    let output = cluster.world.run(&forget);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert_eq!(cluster.slices(), "1");
    cluster.node(1, own);
    assert_eq!(cluster.world.run(&forget).status.code(), Some(0));
    assert_eq!(cluster.slices(), "0");
    cluster.loads(&file, ONCE, 100);
}

/// If the schema of a node's ledger belongs to another role, loads and `loads forget` fail. They do
/// not take the file for a new one.
#[test]
fn slices_that_cannot_be_trusted_are_an_error_and_no_reason_to_load_rows_again() {
    on_one_major(of_others);
}

/// Files whose records have the same bytes, but a different header or name.
fn same_records(cluster: &mut Cluster) {
    cluster.twins("a int, b int", "HASH (a)", &HASH);
    let rows: String = (0..100).map(|i| format!("{i},{}\n", i + 1)).collect();
    let one = cluster.world.file("one.csv", format!("a,b\n{rows}").as_bytes());
    let two = cluster.world.file("two.csv", format!("b,a\n{rows}").as_bytes());
    cluster.loads(&one, &["--once", "--header"], 100);
    let words = ["two.csv from", "one.csv", "differs only in its name, its header", "--atomic"];
    cluster.refuses(&two, &["--once", "--header"], &words);
    cluster.loads(&two, &["--once", "--atomic", "--header"], 100);
    cluster.loads(&two, &["--once", "--header"], 0);
    assert_eq!(cluster.world.sql("SELECT sum(a) - sum(b) FROM t"), "0");
    // Streams are distinguished by their names.
    let stream = |cluster: &Cluster, name: &str, code: i32| {
        let all =
            ["load", "-", "--table", "t", "--route", "nodes", "--once", "--source-name", name];
        let output = cluster.world.run_with(&all, b"1000,1\n1001,1\n1002,1\n1003,1\n");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    };
    stream(cluster, "first", 0);
    stream(cluster, "first", 0);
    let said = stream(cluster, "second", 1);
    assert!(said.contains("of second from first"), "{said}");
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t WHERE a >= 1000"), "4");
}

/// If two files or streams have the same records but a different header or name, the second is
/// refused without `--atomic`. With it, it is loaded as a separate file.
#[test]
fn files_with_the_same_records_and_other_headers_are_distinguished() {
    on_one_major(same_records);
}

fn grown(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    let rows = |n: std::ops::Range<usize>| -> String { n.map(|i| format!("{i},x\n")).collect() };
    let file = cluster.world.file("rows.csv", rows(0..100).as_bytes());
    cluster.loads(&file, ONCE, 100);
    let append = ["--once", "--atomic", "--on-change", "append"];
    for end in [200, 300] {
        cluster.world.file("rows.csv", rows(0..end).as_bytes());
        cluster.loads(&file, &append, 100);
        cluster.loads(&file, ONCE, 0);
    }
    cluster.world.stock("COPY s FROM STDIN CSV", rows(0..300).as_bytes()).unwrap();
    assert_eq!(cluster.world.difference("s", "t"), "");
    // Now not all nodes are known to have the file as it was before.
    cluster.open_again();
    cluster.refuses(&file, &append, &["has grown before all nodes had it", "loads forget"]);
    cluster.refuses(&file, ONCE, &["has grown before all nodes had it", "loads forget"]);
    cluster.world.file("rows.csv", rows(0..100).as_bytes());
    cluster.loads(&file, ONCE, 0);
    cluster.world.file("rows.csv", rows(1..400).as_bytes());
    cluster.refuses(&file, &append, &["has changed since it was loaded"]);
}

/// With `--once`, `--atomic` and `--on-change append`, only what was added to a file is loaded. If
/// not all nodes had the file before, the load is refused.
#[test]
fn what_was_added_to_a_file_is_loaded_on_all_nodes_or_none() {
    on_one_major(grown);
}
