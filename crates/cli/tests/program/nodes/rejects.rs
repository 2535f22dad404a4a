//! Rejects with `--route nodes`: the same records, positions and reasons as on a partitioned table
//! without nodes, and the same rows as by stock COPY of the good records.

use super::servers::{held, kill, on_servers, Servers};
use super::{on_one_major, Cluster};
use crate::common::proxy::{Fate, Proxy};
use crate::common::{on_first_and_last_major, signal, Signal};
use serde_json::Value;
use std::fs;

const COLUMNS: &str = "a int, b text NOT NULL CONSTRAINT b_ok CHECK (b <> 'bad'), c timestamptz, \
    d varchar(5), e int";

const LEAVES: [(&str, &str, usize); 2] = [
    ("low", "FOR VALUES FROM (0) TO (100000)", 0),
    ("high", "FOR VALUES FROM (100000) TO (200000)", 1),
];

/// Constraints and a trigger of each leaf, which make it refuse more than its types do.
const MORE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS ref (e int PRIMARY KEY); INSERT INTO ref VALUES (1) ON CONFLICT DO NOTHING;
     ALTER TABLE LEAF ADD CONSTRAINT e_refers FOREIGN KEY (e) REFERENCES ref",
    "ALTER TABLE LEAF ADD CONSTRAINT LEAF_key UNIQUE (a);
     CREATE OR REPLACE FUNCTION choosy() RETURNS trigger LANGUAGE plpgsql AS
       'BEGIN IF NEW.b = ''trigger'' THEN RAISE ''not this one''; END IF; RETURN NEW; END';
     CREATE TRIGGER choosy BEFORE INSERT ON LEAF FOR EACH ROW EXECUTE FUNCTION choosy()",
];

/// Records that some server refuses, each for a different reason.
const BAD: [&[u8]; 14] = [
    b"seven,x,,,1",
    b"300000,x,,,1",
    b",x,,,1",
    b"7,,,,1",
    b"7,bad,,,1",
    b"7,x,2024-13-01,,1",
    b"7,x,,too long,1",
    b"7,x",
    b"7,x,,,1,2",
    b"7,\xff,,,1",
    b"99999999999,x,,,1",
    b"8,\"two\nlines\",,,2",
    b"100007,trigger,,,1",
    // An earlier record has this key.
    b"100000,again,,,1",
];

/// Good records with bad ones between them. One record of a hundred has a value that only a server
/// reads.
fn mixed(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..count {
        let a = if i % 2 == 0 { 100_000 + i } else { i };
        let c = if i % 100 == 9 { "Jan 8 1999 04:05 PST" } else { "2024-01-02 03:04:05+02" };
        bytes.extend_from_slice(format!("{a},words of {i},{c},abc,1\n").as_bytes());
        if i % 1_000 > 950 {
            bytes.extend_from_slice(BAD[i % BAD.len()]);
            bytes.push(b'\n');
        }
    }
    bytes
}

impl Cluster {
    /// Creates the table `t` on nodes, and `s` and `g` like it with all partitions on the
    /// coordinator.
    fn judged(&mut self) {
        self.twins(COLUMNS, "RANGE (a)", &LEAVES);
        for name in ["s", "g"] {
            self.world.sql(&format!("DROP TABLE IF EXISTS {name} CASCADE"));
            self.world.sql(&format!("CREATE TABLE {name} ({COLUMNS}) PARTITION BY RANGE (a)"));
            for (suffix, bound, node) in LEAVES {
                let leaf = format!("{name}_{suffix}");
                self.world.sql(&format!("CREATE TABLE {leaf} PARTITION OF {name} {bound}"));
                self.world.sql(&MORE[node].replace("LEAF", &leaf));
            }
        }
        for (suffix, _, node) in LEAVES {
            self.node(node, &MORE[node].replace("LEAF", &format!("t_{suffix}")));
        }
    }
}

/// The reject file's records and the reasons, in the order of the input.
fn kept(path: &str) -> Vec<(Vec<u8>, Value)> {
    let reasons = fs::read_to_string(format!("{path}.jsonl")).unwrap();
    let bytes = fs::read(path).unwrap();
    let mut at = 0;
    let mut all: Vec<(Vec<u8>, Value)> = reasons
        .lines()
        .map(|line| {
            let named = line.replace("\\\"s\\\"", "\\\"t\\\"").replace("\\\"s_", "\\\"t_");
            let reason: Value = serde_json::from_str(&named).unwrap();
            let length = reason["length"].as_u64().unwrap() as usize;
            let record = bytes[at..at + length].to_vec();
            at += length;
            (record, reason)
        })
        .collect();
    assert_eq!(at, bytes.len(), "{path}");
    all.sort_by_key(|(_, reason)| reason["record"].as_u64());
    all
}

/// Removes a reject file and its reasons; returns the path.
fn fresh(cluster: &Cluster, name: &str) -> String {
    let path = cluster.world.path(name);
    for old in [path.clone(), format!("{path}.jsonl")] {
        let _ = fs::remove_file(old);
    }
    path
}

fn rejecting<'a>(file: &'a str, table: &'a str, rejects: &'a str) -> Vec<&'a str> {
    let limit = ["--reject-limit", "none"];
    let to = [file, "--table", table, "--on-error", "reject", "--reject-file", rejects];
    [&to[..], &limit].concat()
}

/// Checks that a load to nodes gives the same rejects as a load without nodes, and the same rows as
/// stock COPY of the good records.
fn same_rejects(cluster: &mut Cluster, bytes: &[u8], more: &[&str]) -> Vec<(Vec<u8>, Value)> {
    cluster.judged();
    let file = cluster.world.file("mixed.csv", bytes);
    let (plain, straight) = (fresh(cluster, "plain.bad"), fresh(cluster, "nodes.bad"));
    let by_root = [&rejecting(&file, "s", &plain)[..], &["--route", "root"]].concat();
    let expected = cluster.world.load(&by_root).unwrap();
    let to_nodes = [&rejecting(&file, "t", &straight)[..], &["--route", "nodes"], more].concat();
    let summary = cluster.world.load(&to_nodes).unwrap();
    for key in ["read", "loaded", "rejected", "rejected_lines"] {
        assert_eq!(summary[key], expected[key], "{key}, {more:?}: {summary}");
    }
    let (expected, found) = (kept(&plain), kept(&straight));
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found, expected, "{more:?}");
    }
    assert_eq!(found.len(), expected.len(), "{more:?}");
    let mut good = Vec::new();
    let mut at = 0;
    for (_, reason) in &found {
        let place = |key: &str| reason[key].as_u64().unwrap() as usize;
        good.extend_from_slice(&bytes[at..place("offset")]);
        at = place("offset") + place("length");
    }
    good.extend_from_slice(&bytes[at..]);
    cluster.world.stock("COPY g FROM STDIN CSV", &good).unwrap();
    for other in ["s", "g"] {
        let rows = |name| {
            format!("(SELECT substr(tableoid::regclass::text, 2) AS leaf, {name}.* FROM {name})")
        };
        assert_eq!(cluster.world.difference(&rows(other), &rows("t")), "", "{more:?}");
    }
    found
}

fn as_without_nodes(cluster: &mut Cluster) {
    // One bad record of each kind, between good ones.
    for bad in BAD {
        let good = b"100000,x,,,1\n1,x,2024-01-02,abc,1\n";
        let bytes = [&good[..], bad, b"\n2,y,,,\n"].concat();
        let found = same_rejects(cluster, &bytes, &[]);
        assert_eq!(found.len(), 1, "{}", String::from_utf8_lossy(bad));
        assert_eq!(found[0].1["line"], 3);
    }
    // A quote that is never closed.
    assert_eq!(same_rejects(cluster, b"1,x,,,1\n2,\"y,,,1\n3,z,,,1\n", &[]).len(), 1);
    let bytes = mixed(20_000);
    for more in [&[][..], &["--atomic"], &["--atomic", "--once"]] {
        let found = same_rejects(cluster, &bytes, more);
        assert_eq!(found.len(), 49 * 20, "{more:?}");
    }
    let ledger = "SELECT sum(read) || ' ' || sum(loaded) || ' ' || sum(rejected)
        FROM pgsluice_loads.commits";
    assert_eq!(cluster.world.sql(ledger), "20980 20000 980");
    assert_eq!(cluster.world.sql("SELECT count(*) FROM pgsluice_loads.reject_files"), "0");
}

/// With `--route nodes`, the rejects are those of a load without nodes, and the rows those of stock
/// COPY of the good records. No row of the ledger is left over.
#[test]
fn rejects_of_nodes_are_those_of_a_table_without_nodes() {
    on_first_and_last_major(|installation| {
        if let Some(mut cluster) = Cluster::new(installation) {
            as_without_nodes(&mut cluster);
        }
    });
}

fn limits(cluster: &mut Cluster) {
    cluster.judged();
    let file = cluster.world.file("mixed.csv", &mixed(2_000));
    let rejects = fresh(cluster, "limit.bad");
    let all = ["--table", "t", "--route", "nodes", "--on-error", "reject"];
    let all = [&all[..], &["--reject-file", &rejects, "--reject-limit", "50"]].concat();
    for more in [&[][..], &["--atomic"]] {
        fresh(cluster, "limit.bad");
        let said = cluster.world.load(&[&[&file[..]], &all[..], more].concat()).unwrap_err();
        assert!(said.contains("more than the limit of 50"), "{said}");
        assert!(kept(&rejects).len() > 50, "{said}");
        assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "0", "{said}");
    }
    // An error that is not the fault of a record ends the load.
    fresh(cluster, "limit.bad");
    cluster.node(
        1,
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER nothing BEFORE INSERT ON t_high FOR EACH ROW EXECUTE FUNCTION nothing()",
    );
    let few = cluster.world.file("few.csv", b"100000,x,,,1\n1,x,,,1\n");
    let said = cluster.world.load(&[&[&few[..]], &all[..]].concat()).unwrap_err();
    assert!(said.contains("node n1") && said.contains("took 0 of 1 rows"), "{said}");
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "0");
    assert!(fs::metadata(&rejects).is_err(), "no record was rejected");
    // The plan says what happens.
    let said = cluster.world.run(&[&["plan", &few], &all[..]].concat());
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("each COPY to a node is within a savepoint"), "{said}");
}

/// If rejects exceed `--reject-limit`, the load fails and no node keeps a row. An error that is not
/// the fault of a record is not rejected, but ends the load.
#[test]
fn too_many_rejects_of_nodes_leave_no_row() {
    on_one_major(limits);
}

/// Writes a file in which the coordinator refuses some records and a node refuses others; returns
/// its path and the bad records.
fn some_bad(servers: &mut Servers) -> (String, Vec<String>) {
    let file = servers.file();
    let good = fs::read_to_string(&file).unwrap();
    let (mut bytes, mut bad) = (String::new(), Vec::new());
    for (i, line) in good.lines().enumerate() {
        bytes += &format!("{line}\n");
        if i % 400 == 7 {
            let record = if i % 800 == 7 { format!("x{i},y\n") } else { format!("{i},bad\n") };
            bytes += &record;
            bad.push(record);
        }
    }
    fs::write(&file, bytes).unwrap();
    bad.sort();
    (file, bad)
}

/// All rows are on the nodes, and the reject file has exactly the bad records.
fn exact(servers: &mut Servers, rejects: &str, bad: &[String], what: &str) {
    servers.has_all(what);
    let mut records: Vec<String> =
        kept(rejects).into_iter().map(|(record, _)| String::from_utf8(record).unwrap()).collect();
    records.sort();
    assert_eq!(records, bad, "{what}");
    let open = "SELECT (SELECT count(*) FROM pgsluice_loads.reject_files) || ' ' ||
        (SELECT count(*) FROM pgsluice_loads.sources WHERE state <> 'complete')";
    assert_eq!(servers.coordinator.sql(open), "0 0", "{what}");
}

fn killed(servers: &mut Servers) {
    for (leaf, node) in [(0, 0), (1, 1), (2, 0), (3, 2)] {
        let check = format!("ALTER TABLE t_{leaf} ADD CHECK (b <> 'bad')");
        servers.nodes[node].sql(&check);
    }
    let rejects = servers.coordinator.path("killed.bad");
    let all = ["--once", "--atomic", "--on-error", "reject", "--reject-file", &rejects];
    let remove = || {
        for old in [rejects.clone(), format!("{rejects}.jsonl")] {
            let _ = fs::remove_file(old);
        }
    };
    let (file, bad) = some_bad(servers);
    assert_eq!(servers.run(&file, &all).code, Some(3));
    exact(servers, &rejects, &bad, "nothing fails");
    // Whether the load is committed at this statement, on all nodes and in the ledger.
    for (statement, committed) in [
        ("COPY ", false),
        ("SET CONSTRAINTS", false),
        ("PREPARE TRANSACTION", false),
        ("COMMIT PREPARED", true),
    ] {
        for loader in [false, true] {
            let what = format!("at {statement:?}, the loader is killed: {loader}");
            remove();
            let (file, bad) = some_bad(servers);
            let proxy = Proxy::start(&servers.nodes[1], statement, 0, Fate::Hold, false);
            servers.through(1, &proxy);
            let mut load = servers.start(&file, &all);
            held(&proxy, &mut load);
            match loader {
                true => assert!(signal(load.id(), Signal::SIGKILL)),
                false => servers.kill(1, true),
            }
            let code = load.wait().unwrap().code();
            assert!(loader || matches!(code, Some(1 | 5)), "{what}: {code:?}");
            if !loader {
                servers.nodes[1].restart_with(&[]);
            }
            servers.directly(1);
            let again = servers.run(&file, &all);
            let expected = if committed { Some(0) } else { Some(3) };
            assert_eq!(again.code, expected, "{what}: {again:?}");
            exact(servers, &rejects, &bad, &what);
        }
    }
    // The coordinator dies at its COMMIT, which is the decision.
    remove();
    let (file, bad) = some_bad(servers);
    let proxy = Proxy::start(&servers.coordinator, "COMMIT\0", 2, Fate::Hold, false);
    let mut load = servers.load(&proxy.target(), &file, &all).spawn().unwrap();
    held(&proxy, &mut load);
    kill(&mut servers.coordinator, true);
    load.wait().unwrap();
    servers.coordinator.restart_with(&[]);
    let again = servers.run(&file, &all);
    assert_eq!(again.code, Some(3), "{again:?}");
    exact(servers, &rejects, &bad, "the coordinator is killed");
}

/// With `--once` and `--atomic`, a node, the loader or the coordinator is killed at some step.
/// After the same command, all rows are loaded and the reject file has exactly the bad records.
#[test]
fn rejects_of_nodes_are_exact_whoever_dies() {
    on_servers(killed);
}
