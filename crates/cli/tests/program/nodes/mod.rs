//! `--route nodes` sends rows straight to the servers that have the partitions. The same rows are
//! on the same nodes as after stock COPY through the coordinator. The nodes are databases of one
//! server; in `faults` and `network`, each is a separate server.

mod altered;
mod atomic;
mod faults;
mod guards;
mod lengths;
mod lost_commits;
mod network;
mod recorded;
mod rejects;
mod servers;

use crate::common::{each_major, left_out, on_first_and_last_major, World};
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::Installation;

/// A coordinator and two nodes.
struct Cluster {
    world: World,
    nodes: [Conn; 2],
}

impl Cluster {
    /// Returns `None` if the server has no `postgres_fdw`.
    fn new(installation: &Installation) -> Option<Cluster> {
        let mut world = World::new(installation);
        if world.conn.exec("CREATE EXTENSION postgres_fdw").is_err() {
            left_out(&format!("PostgreSQL {}: it has no postgres_fdw", world.major()));
            return None;
        }
        let host = world.server.socket_dir().to_str().unwrap().to_owned();
        for name in ["n0", "n1"] {
            world.sql(&format!("CREATE DATABASE {name}"));
            world.sql(&format!(
                "CREATE SERVER {name} FOREIGN DATA WRAPPER postgres_fdw
                   OPTIONS (host '{host}', port '5432', dbname '{name}')"
            ));
            world.sql(&format!(
                "CREATE USER MAPPING FOR CURRENT_USER SERVER {name} OPTIONS (user 'postgres')"
            ));
        }
        let nodes = Cluster::nodes_of(&world);
        Some(Cluster { world, nodes })
    }

    fn nodes_of(world: &World) -> [Conn; 2] {
        ["n0", "n1"].map(|name| Conn::open(&world.server.url(name)).unwrap())
    }

    /// Connects again after the server was stopped.
    fn connect(&mut self) {
        self.nodes = Cluster::nodes_of(&self.world);
    }

    fn node(&mut self, node: usize, sql: &str) -> String {
        let rows = self.nodes[node].exec(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        rows.first().and_then(|row| row.first()?.clone()).unwrap_or_default()
    }

    /// Creates the tables `t` and `s` with these columns. `leaves` has the name suffix, bound and
    /// node of each partition.
    fn twins(&mut self, columns: &str, by: &str, leaves: &[(&str, &str, usize)]) {
        for name in ["t", "s"] {
            self.world.sql(&format!("DROP TABLE IF EXISTS {name} CASCADE"));
            self.world.sql(&format!("CREATE TABLE {name} ({columns}) PARTITION BY {by}"));
            for (suffix, bound, node) in leaves {
                let leaf = format!("{name}_{suffix}");
                self.node(
                    *node,
                    &format!("DROP TABLE IF EXISTS {leaf}; CREATE TABLE {leaf} ({columns})"),
                );
                self.world.sql(&format!(
                    "CREATE FOREIGN TABLE {leaf} PARTITION OF {name} {bound} SERVER n{node}"
                ));
            }
        }
    }

    /// Loads straight to the nodes, and by stock COPY through the coordinator into the other table;
    /// compares both.
    fn load(&mut self, rows: &str) -> serde_json::Value {
        self.world.stock("COPY s FROM STDIN CSV", rows.as_bytes()).unwrap();
        let summary = self.straight(rows).unwrap();
        let rows = |name| {
            format!("(SELECT substr(tableoid::regclass::text, 2) AS leaf, {name}.* FROM {name})")
        };
        assert_eq!(self.world.difference(&rows("s"), &rows("t")), "");
        summary
    }

    fn straight(&mut self, rows: &str) -> Result<serde_json::Value, String> {
        let file = self.world.file("rows.csv", rows.as_bytes());
        self.world.load(&[&file, "--table", "t", "--route", "nodes"])
    }

    /// Runs a load that must fail with these words and leave no row.
    fn fails(&mut self, rows: &str, words: &[&str]) {
        let said = self.straight(rows).unwrap_err();
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        for node in 0..2 {
            let tables =
                "SELECT string_agg('(SELECT count(*) FROM ' || oid::regclass || ')', ' + ')
                FROM pg_class WHERE relname LIKE 't\\_%' AND relkind = 'r'";
            let count = self.node(node, tables);
            assert_eq!(self.node(node, &format!("SELECT {count}")), "0", "{said}");
        }
    }
}

/// Runs the test on the first major version that has `postgres_fdw`.
fn on_one_major(test: impl Fn(&mut Cluster)) {
    if let Some(mut cluster) = each_major().iter().find_map(Cluster::new) {
        test(&mut cluster);
    }
}

const HASH: [(&str, &str, usize); 3] = [
    ("0", "FOR VALUES WITH (MODULUS 4, REMAINDER 0)", 0),
    ("1", "FOR VALUES WITH (MODULUS 2, REMAINDER 1)", 1),
    ("2", "FOR VALUES WITH (MODULUS 4, REMAINDER 2)", 0),
];

/// Partitions by hash, range and list, several on a node, NULLs, a DEFAULT partition, and columns
/// that have another order and name on the node.
fn same_rows_on_the_same_nodes(cluster: &mut Cluster) {
    let columns = "a bigint, b text, c timestamptz, d numeric";
    cluster.twins(columns, "HASH (a, b)", &HASH);
    let row = |i: usize| {
        let a = if i.is_multiple_of(19) { String::new() } else { (i * 7919 % 10_007).to_string() };
        let b = ["x", "\"a, b\"", "", "\"\"", "ä\u{1f600}"][i % 5];
        format!("{a},{b},2024-01-0{} 03:04:05+02,{}.5\n", 1 + i % 9, i % 97)
    };
    let rows: String = (0..4_000).map(row).collect();
    let mut log = 0;
    cluster.world.log(&mut log);
    let summary = cluster.load(&rows);
    assert_eq!(summary["to_partitions"], 4_000, "{summary}");
    assert_eq!(summary["transactions"], 2, "{summary}");
    let given_up = "a single commit: if a node fails while the nodes commit, the others' rows stay";
    assert_eq!(summary["gives_up"], given_up);
    let said = cluster.world.log(&mut log);
    assert!(said.contains("SELECT (satisfies_hash_partition("), "nobody asked");

    let range = [
        ("low", "FOR VALUES FROM (MINVALUE) TO (100)", 0),
        ("high", "FOR VALUES FROM (100) TO (5000)", 1),
        ("rest", "DEFAULT", 1),
    ];
    cluster.twins("a bigint, b text, c timestamptz, d numeric", "RANGE (a)", &range);
    cluster.node(
        1,
        "DROP TABLE t_high; CREATE TABLE t_high (d numeric, \"C d\" timestamptz, b text, a bigint, more int)",
    );
    cluster.world.sql("ALTER FOREIGN TABLE t_high ALTER c OPTIONS (column_name 'C d')");
    cluster.load(&rows);
    let said = cluster.world.log(&mut log);
    assert!(said.contains("WITH (FORMAT binary) WHERE ("), "the nodes check nothing");

    let list = [
        ("x", "FOR VALUES IN ('x', 'ä\u{1f600}')", 0),
        ("none", "FOR VALUES IN (NULL, '', 'a, b')", 1),
    ];
    cluster.twins(columns, "LIST (b)", &list);
    cluster.load(&rows);
}

/// With `--route nodes`, the same rows are in the same partitions as after stock COPY through the
/// coordinator: by hash, range and list, with NULLs, a DEFAULT partition, and other orders and
/// names of columns.
#[test]
fn the_nodes_have_the_rows_that_copy_through_the_coordinator_gives_them() {
    on_first_and_last_major(|installation| {
        if let Some(mut cluster) = Cluster::new(installation) {
            same_rows_on_the_same_nodes(&mut cluster);
        }
    });
}

fn errors(cluster: &mut Cluster) {
    let leaves =
        [("low", "FOR VALUES FROM (0) TO (100)", 0), ("high", "FOR VALUES FROM (100) TO (200)", 1)];
    cluster.twins("a int, b text NOT NULL CHECK (b <> 'bad')", "RANGE (a)", &leaves);
    let good: String = (0..200).map(|i| format!("{i},x\n")).collect();
    let with = |row: &str| format!("{good}{row}\n{good}");
    cluster.fails(&with("500,x"), &["rows.csv, line 201", "no partition", "column a", "500"]);
    cluster.fails(&with(",x"), &["rows.csv, line 201", "no partition"]);
    cluster.fails(&with("seven,x"), &["rows.csv, line 201", "column a", "invalid", "seven"]);
    cluster.fails(&with("7,"), &["rows.csv, line 201", "column b", "NULL"]);
    cluster.fails(&with("7,x,y"), &["rows.csv, line 201"]);
    cluster.fails(&with("7,\"x"), &["rows.csv", "quote"]);
    // Errors that only the node can find.
    cluster.fails(&with("107,bad"), &["node n1", "rows.csv, line 201", "check constraint"]);
    cluster.node(1, "ALTER TABLE t_high ADD UNIQUE (a, b)");
    cluster.fails(&with("107,y"), &["node n1", "rows.csv, line 302", "duplicate key"]);
    cluster.node(
        1,
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER nothing BEFORE INSERT ON t_high FOR EACH ROW EXECUTE FUNCTION nothing()",
    );
    cluster.fails(&good, &["node n1", "took 0 of 100 rows"]);
    cluster.node(1, "DROP TRIGGER nothing ON t_high; SELECT 1");
    cluster.load(&good);
}

/// A bad record, or a row that a node refuses or discards, fails the load. The message gives the
/// node and the line, and no row stays on any node.
#[test]
fn an_error_on_one_node_leaves_no_row_on_any() {
    on_one_major(errors);
}

/// A node refuses a row after more input than the loader keeps in memory. One node has one
/// partition, the other several.
fn late_errors(cluster: &mut Cluster) {
    let leaves = [
        ("x", "FOR VALUES IN ('x')", 1),
        ("y", "FOR VALUES IN ('y')", 0),
        ("z", "FOR VALUES IN ('z')", 0),
    ];
    cluster.twins("a int, k text, b text", "LIST (k)", &leaves);
    cluster.node(1, "CREATE UNIQUE INDEX ON t_x (a)");
    cluster.node(0, "CREATE UNIQUE INDEX ON t_y (a)");
    let long = "b".repeat(10_000);
    let key = |i: usize| ["x", "y", "x", "z"][i % 4];
    let good: String = (0..7_000).map(|i| format!("{i},{},{long}\n", key(i))).collect();
    for (twice, node) in [("4,x", "n1"), ("6998,x", "n1"), ("6997,y", "n0")] {
        let words = [&format!("node {node}"), "rows.csv, line 7002", "duplicate key"];
        cluster.fails(&format!("{good}7000,x,{long}\n{twice},\n8,z,\n"), &words);
    }
    cluster.load(&good);
}

/// If a node refuses a row after more input than the loader keeps in memory, the message still
/// gives the node and the line.
#[test]
fn an_error_after_many_rows_has_its_place() {
    on_one_major(late_errors);
}

fn differences(cluster: &mut Cluster) {
    let columns = "a int NOT NULL, b varchar(9) CHECK (b <> 'bad')";
    let row = "1,x\n";
    let cases: [(&str, &[&str]); 8] = [
        ("ALTER TABLE t_1 DROP b", &["node n1", "\"t_1\"", "no column b"]),
        ("ALTER TABLE t_1 ALTER b TYPE varchar(8)", &["column b", "varying(8)", "varying(9)"]),
        ("ALTER TABLE t_1 ALTER a DROP NOT NULL", &["node n1", "column a", "accepts NULL"]),
        ("ALTER TABLE t_1 RENAME TO u_1", &["node n1", "no table \"public\".\"t_1\""]),
        ("ALTER TABLE t_1 DROP CONSTRAINT t_1_b_check", &["lacks the constraint CHECK"]),
        ("DROP TABLE t_1; CREATE VIEW t_1 AS SELECT 1 AS a, 'x'::varchar(9) AS b", &["no table"]),
        (
            "ALTER TABLE t_1 DROP b; ALTER TABLE t_1 ADD b varchar(9) GENERATED ALWAYS AS ('x') STORED",
            &["column b", "generated"],
        ),
        ("DROP ROLE IF EXISTS loader; CREATE ROLE loader LOGIN", &["column a", "may not insert"]),
    ];
    for (change, words) in cases {
        cluster.node(
            1,
            "DROP TABLE IF EXISTS u_1; DO 'BEGIN DROP VIEW t_1; EXCEPTION WHEN OTHERS THEN END'",
        );
        cluster.twins(columns, "HASH (a)", &HASH);
        cluster.node(1, change);
        if change.contains("loader") {
            cluster
                .world
                .sql("ALTER USER MAPPING FOR CURRENT_USER SERVER n1 OPTIONS (SET user 'loader')");
        }
        let said = cluster.straight(row).unwrap_err();
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    }
    cluster
        .world
        .sql("ALTER USER MAPPING FOR CURRENT_USER SERVER n1 OPTIONS (SET user 'postgres')");
    cluster.load(row);
    // A node that is down; at the end, one without a host.
    cluster.node(0, "TRUNCATE t_0, t_2");
    cluster.node(1, "TRUNCATE t_1");
    cluster.world.sql("ALTER SERVER n1 OPTIONS (SET port '5499')");
    cluster.fails("1,x\n2,x\n3,x\n4,x\n", &["node n1", "connect"]);
    // `--node` takes precedence over the catalog.
    let file = cluster.world.file("rows.csv", b"1,x\n2,x\n3,x\n4,x\n");
    let nodes = ["--table", "t", "--route", "nodes"];
    let n1 = cluster.world.server.url("n1");
    let said = cluster
        .world
        .load(&[&[&file[..]], &nodes[..], &["--node", &format!("n2={n1}")]].concat())
        .unwrap_err();
    assert!(said.contains("--node n2") && said.contains("its nodes are n0, n1"), "{said}");
    cluster
        .world
        .load(&[&[&file[..]], &nodes[..], &["--node", &format!("n1={n1}")]].concat())
        .unwrap();
    let count = "SELECT (SELECT count(*) FROM t_0) + (SELECT count(*) FROM t_2)";
    let on_0: u64 = cluster.node(0, count).parse().unwrap();
    let on_1: u64 = cluster.node(1, "SELECT count(*) FROM t_1").parse().unwrap();
    assert_eq!(on_0 + on_1, 4);
    cluster.node(0, "TRUNCATE t_0, t_2");
    cluster.node(1, "TRUNCATE t_1");
    let secret = format!("n1={}", n1.replace("postgres@", "postgres:secret@"));
    let secret = [&["load", &file][..], &nodes[..], &["--node", &secret]].concat();
    let output = cluster.world.run(&secret);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = cluster.world.run(&["load", &file, "--table", "t", "--node", "n1=x"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    cluster.world.sql("ALTER SERVER n1 OPTIONS (SET port '5432', DROP host)");
    cluster.fails(row, &["node n1", "host"]);
}

/// If a table on a node differs from its partition, or the node cannot be reached, the load fails
/// before the first row. `--node` overrides how a node is reached, but must not contain a password.
#[test]
fn a_node_that_differs_from_its_partition_is_found_before_the_first_row() {
    on_one_major(differences);
}

/// Options that nodes do not support, how the message names them, and words of the hint.
const NOT_ON_NODES: [(&[&str], &str, &str); 14] = [
    (
        &["--once", "--on-error", "reject", "--reject-file", "x"],
        "--on-error reject with --once and without --atomic",
        "with --atomic, the rejects are recorded",
    ),
    (&["--once", "--on-change", "append"], "--on-change append", "add --atomic"),
    (&["--once", "--commit-every", "1MB"], "--commit-every", "one transaction on each node"),
    (&["--create"], "--create", "create the partitioned table"),
    (&["--where", "a > 0"], "--where", "filter the records before the load"),
    (&["--encoding", "LATIN1"], "--encoding", "--route root"),
    (&["--default", "D"], "--default", "--route root"),
    (&["--format", "binary"], "--format binary", "--route root"),
    (&["--lanes", "2"], "--lanes", "one connection"),
    (&["--expr", "a=?::int + 1"], "--expr", "--route root"),
    (&["--indexes", "rebuild"], "--indexes rebuild", "drop the indexes on the nodes"),
    (&["--triggers", "off"], "--triggers off", "--route root"),
    (&["--foreign-keys", "revalidate"], "--foreign-keys revalidate", "--route root"),
    (&["--method", "copy-csv"], "--method copy-csv", "copy-binary"),
];

/// `plan` and `load` refuse with the same words and a hint, and no row reaches a node.
fn refuse(cluster: &mut Cluster, arguments: &[&str], code: i32, words: &[&str]) {
    for command in ["plan", "load"] {
        let output = cluster.world.run(&[&[command], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(said.contains("hint: "), "{arguments:?}: {said}");
        assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "0", "{arguments:?}");
    }
}

fn refused(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    let file = cluster.world.file("few.csv", b"1,x\n");
    let nodes = ["--table", "t", "--route", "nodes"];
    let guide = include_str!("../../../../../docs/guide/nodes.md");
    let guide = guide.split("## Not yet").nth(1).unwrap();
    for (more, option, hint) in NOT_ON_NODES {
        // The options are refused before the file is opened or the server is asked.
        let all = [&["none.csv"], &nodes[..], more].concat();
        let said = format!("--route nodes does not support {option}");
        refuse(cluster, &all, 2, &[&said, hint]);
        let option = option.split(" with").next().unwrap();
        assert!(guide.contains(&format!("`{option}`")), "{option} is not in the guide");
    }
    let output = cluster.world.run(&[&["plan", &file, "--truncate"], &nodes[..]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("the tables on the nodes are truncated"), "{said}");
    assert!(said.contains("lock      ACCESS EXCLUSIVE on"), "{said}");
    let output = cluster.world.run(&[&["plan", &file], &nodes[..]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("straight to 3 tables on 2 nodes: n0, n1"), "{said}");
    assert!(said.contains("commit one after another"), "{said}");
    of_tables(cluster, &file);
}

/// Tables that cannot be loaded are refused when the plan is made.
fn of_tables(cluster: &mut Cluster, file: &str) {
    let nodes = [file, "--table", "t", "--route", "nodes"];
    cluster.world.sql("CREATE TABLE plain (a int, b text)");
    let plain = [file, "--table", "plain", "--route", "nodes"];
    refuse(cluster, &plain, 1, &["\"plain\"", "not partitioned"]);
    cluster.world.sql("ALTER TABLE t ALTER b SET DEFAULT 'x'");
    let part = [&nodes[..], &["--columns", "a"]].concat();
    let one = cluster.world.file("one.csv", b"1\n");
    let part = [&[one.as_str()], &part[1..]].concat();
    refuse(cluster, &part, 1, &["column b is not in the input, and has a default"]);
    cluster.world.sql(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER seen AFTER INSERT ON t EXECUTE FUNCTION see()",
    );
    refuse(cluster, &nodes, 1, &["its trigger seen fires on this server"]);
    cluster.world.sql("DROP TRIGGER seen ON t");
    cluster.node(1, "ALTER TABLE t_1 SET UNLOGGED");
    let once = [&nodes[..], &["--once"]].concat();
    refuse(cluster, &once, 1, &["of node n1 is UNLOGGED"]);
    cluster.node(1, "ALTER TABLE t_1 SET LOGGED; ALTER TABLE t_1 ALTER b TYPE varchar(7)");
    refuse(cluster, &nodes, 1, &["node n1", "column b", "varying(7)"]);
    cluster.node(1, "ALTER TABLE t_1 ALTER b TYPE text");
    cluster.world.sql(
        "ALTER TABLE t DETACH PARTITION t_0; DROP FOREIGN TABLE t_0;
        CREATE TABLE t_0 PARTITION OF t FOR VALUES WITH (MODULUS 4, REMAINDER 0)",
    );
    refuse(cluster, &nodes, 1, &["t_0", "not a foreign table"]);
    cluster.twins("a int, b tsvector", "HASH (a)", &HASH);
    refuse(cluster, &nodes, 1, &["only the server reads the type of column b"]);
    cluster.twins("a int, b text", "HASH ((a + 1))", &HASH);
    refuse(cluster, &nodes, 1, &["--route nodes cannot load"]);
}

/// With `--truncate`, old rows are deleted in the same transactions that load new ones.
fn truncated(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    cluster.load("1,x\n2,x\n3,x\n4,x\n");
    let file = cluster.world.file("rows.csv", b"5,y\n6,y\n7,y\n8,y\n9,y\n");
    let all = [&file[..], "--table", "t", "--route", "nodes", "--truncate", "--atomic"];
    cluster.world.load(&all).unwrap();
    assert_eq!(cluster.world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "5 6 7 8 9");
    let bad = cluster.world.file("bad.csv", b"10,z\nx,z\n");
    let empty = cluster.world.file("empty.csv", b"");
    for file in [bad, empty] {
        let all = [&file[..], "--table", "t", "--route", "nodes", "--truncate"];
        cluster.world.load(&all).unwrap_err();
        assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "5", "{file}");
    }
    cluster.node(
        1,
        "CREATE TABLE refers (a int); ALTER TABLE t_1 ADD PRIMARY KEY (a); \
        ALTER TABLE refers ADD FOREIGN KEY (a) REFERENCES t_1; SELECT 1",
    );
    let said = cluster.world.load(&all).unwrap_err();
    assert!(said.contains("node n1: cannot truncate"), "{said}");
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "5");
}

/// `--truncate` empties the table on its nodes, in the transactions of the load. If the load fails
/// or has no row, the old rows stay.
#[test]
fn a_truncated_table_is_emptied_on_its_nodes() {
    on_one_major(truncated);
}

/// Options and tables that `--route nodes` does not support are refused with a hint by `plan` and
/// `load`, before anything is touched. The guide lists each of these options.
#[test]
fn what_nodes_cannot_do_is_refused_before_anything_is_touched() {
    on_one_major(refused);
}

fn guide(cluster: &mut Cluster) {
    cluster
        .world
        .sql("CREATE TABLE votes (username text, link text, score int) PARTITION BY HASH (link)");
    for node in 0..2 {
        cluster.node(node, "CREATE TABLE v (username text, link text, score int)");
        cluster.world.sql(&format!(
            "CREATE FOREIGN TABLE v{node} PARTITION OF votes FOR VALUES WITH (MODULUS 2, REMAINDER {node})
               SERVER n{node} OPTIONS (table_name 'v')"
        ));
    }
    let file = cluster.world.file("votes.csv", b"a,b,1\nc,d,2\n");
    let url = cluster.world.server.url("postgres");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/nodes.md");
    let text = std::fs::read_to_string(page).unwrap();
    let examples: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("    pgsluice ")).collect();
    assert_eq!(examples.len(), 7);
    for example in examples {
        let words = example.split(' ').map(|word| match word {
            "\"$COORDINATOR\"" => &url,
            "votes.csv" => &file,
            word => word,
        });
        let program = env!("CARGO_BIN_EXE_pgsluice");
        let output = std::process::Command::new(program).args(words).output().unwrap();
        assert!(output.status.success(), "{example}: {output:?}");
    }
    assert_eq!(cluster.world.sql("SELECT sum(score) FROM votes"), "12");
}

/// Every example of docs/guide/nodes.md runs as it is.
#[test]
fn the_examples_of_the_guide_about_nodes_run() {
    on_one_major(guide);
}
