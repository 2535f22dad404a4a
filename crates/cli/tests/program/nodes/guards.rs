//! Loads that are refused because the coordinator would refuse them, or because two nodes or tables
//! are the same.

use super::{on_one_major, refuse, Cluster, HASH};
use crate::common::on_first_and_last_major;
use std::process::Command;

const NODES: [&str; 4] = ["--table", "t", "--route", "nodes"];

/// A third server is the database of the first node or of the coordinator.
fn shared(cluster: &mut Cluster) {
    let host = cluster.world.server.socket_dir().to_str().unwrap().to_owned();
    cluster.world.sql(&format!(
        "CREATE SERVER n2 FOREIGN DATA WRAPPER postgres_fdw
           OPTIONS (host '{host}', port '5432', dbname 'n0');
         CREATE USER MAPPING FOR CURRENT_USER SERVER n2 OPTIONS (user 'postgres')"
    ));
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    let move_to_n2 = "FOR VALUES WITH (MODULUS 4, REMAINDER 2) SERVER n2";
    for table in ["t", "s"] {
        cluster.world.sql(&format!(
            "DROP FOREIGN TABLE {table}_2;
             CREATE FOREIGN TABLE {table}_2 PARTITION OF {table} {move_to_n2}"
        ));
    }
    let rows: String = (0..100).map(|i| format!("{i},x\n")).collect();
    let file = cluster.world.file("rows.csv", rows.as_bytes());
    for (dbname, other) in [("n0", "node n0"), ("postgres", "the coordinator")] {
        cluster.world.sql(&format!("ALTER SERVER n2 OPTIONS (SET dbname '{dbname}')"));
        if dbname == "postgres" {
            cluster.world.sql(
                "CREATE SCHEMA own; CREATE TABLE own.t (a int, b text);
                 ALTER FOREIGN TABLE t_2 OPTIONS (schema_name 'own', table_name 't')",
            );
        }
        for (more, option) in [
            (&["--once"][..], "--once"),
            (&["--once", "--atomic"], "--once"),
            (&["--truncate"], "--truncate"),
        ] {
            let words = [&format!("node n2 is the same database as {other}"), option];
            refuse(cluster, &[&[&file[..]], &NODES[..], more].concat(), 1, &words);
        }
        let plain = [&[&file[..]], &NODES[..], &["--atomic"]].concat();
        assert_eq!(cluster.world.load(&plain).unwrap()["loaded"], 100);
        cluster.node(0, "TRUNCATE t_0, t_2");
        cluster.node(1, "TRUNCATE t_1");
    }
}

/// Two partitions are the same table of a node.
fn one_table(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    cluster.world.sql("ALTER FOREIGN TABLE t_2 OPTIONS (table_name 't_0')");
    let rows: String = (0..100).map(|i| format!("{i},x\n")).collect();
    let file = cluster.world.file("rows.csv", rows.as_bytes());
    let words = ["\"t_0\" and \"public\".\"t_2\"", "table \"public\".\"t_0\" of node n0"];
    refuse(cluster, &[&[&file[..]], &NODES[..], &["--once"]].concat(), 1, &words);
    cluster.world.load(&[&[&file[..]], &NODES[..]].concat()).unwrap();
    let count = "SELECT (SELECT count(*) FROM t_0), (SELECT count(*) FROM t_2)";
    assert_eq!(cluster.node(0, count), cluster.node(0, "SELECT count(*) FROM t_0"));
}

/// If two servers are the same database, or two partitions the same table, options with which the
/// load would wait for itself are refused. Other loads work.
#[test]
fn servers_and_tables_that_are_the_same_are_refused_where_the_load_would_wait_for_itself() {
    on_one_major(|cluster| {
        shared(cluster);
        one_table(cluster);
    });
}

fn of_the_coordinator(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    let file = cluster.world.file("rows.csv", b"1,x\n2,x\n3,x\n4,x\n");
    let plain = [&[&file[..]], &NODES[..]].concat();
    let truncate = [&plain[..], &["--truncate"]].concat();
    cluster.world.sql("ALTER FOREIGN TABLE t_1 OPTIONS (updatable 'FALSE')");
    refuse(cluster, &plain, 1, &["\"t_1\"", "option updatable is false", "can change the option"]);
    cluster.world.sql(
        "ALTER SERVER n1 OPTIONS (updatable 'off'); ALTER FOREIGN TABLE t_1 OPTIONS (DROP updatable)",
    );
    refuse(cluster, &plain, 1, &["\"t_1\"", "option updatable is false"]);
    cluster.world.sql(
        "ALTER FOREIGN TABLE t_1 OPTIONS (updatable 'true', truncatable 'true');
         ALTER SERVER n1 OPTIONS (truncatable 'false'); ALTER SERVER n0 OPTIONS (truncatable 'false')",
    );
    refuse(cluster, &truncate, 1, &["\"t_0\"", "option truncatable is false"]);
    cluster.world.sql("ALTER SERVER n0 OPTIONS (SET truncatable 'true')");
    cluster.world.load(&plain).unwrap();
    cluster.world.load(&truncate).unwrap();
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "4");

    cluster.world.sql(
        "DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN;
         GRANT SELECT, INSERT, DELETE ON t TO clerk;
         GRANT USAGE ON FOREIGN SERVER n0, n1 TO clerk;
         CREATE USER MAPPING FOR clerk SERVER n0 OPTIONS (user 'postgres', password_required 'false');
         CREATE USER MAPPING FOR clerk SERVER n1 OPTIONS (user 'postgres', password_required 'false')",
    );
    let url = cluster.world.server.url("postgres").replace("postgres@", "clerk@");
    let run = |command: &str, arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        let output = program.arg(command).args(arguments).args(["--to", &url]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for command in ["plan", "load"] {
        let (code, said) = run(command, &truncate);
        assert_eq!(code, Some(1), "{command}: {said}");
        assert!(said.contains("the role may not truncate \"public\".\"t\""), "{command}: {said}");
    }
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "4");
    let (code, said) = run("load", &plain);
    assert_eq!(code, Some(0), "{said}");
    cluster.world.sql("GRANT TRUNCATE ON t TO clerk");
    let (code, said) = run("load", &truncate);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "4");
}

/// A foreign table that is not updatable or not truncatable is refused, as the coordinator would,
/// and so is `--truncate` for a role without the TRUNCATE privilege.
#[test]
fn what_the_coordinator_would_not_write_to_or_truncate_is_refused() {
    on_one_major(of_the_coordinator);
}

/// Domains of the same name that differ on a node: in a constraint, or in what they are made of.
fn domains(cluster: &mut Cluster) {
    let both = "CREATE DOMAIN email AS text; CREATE DOMAIN moment AS timestamp";
    cluster.world.sql(both);
    cluster.node(0, both);
    cluster.node(1, both);
    cluster.twins("a int, b email, c moment[]", "HASH (a)", &HASH);
    let rows: String = (0..100).map(|i| format!("{i},x{i},{{2024-01-01}}\n")).collect();
    cluster.load(&rows);
    let file = cluster.world.file("rows.csv", rows.as_bytes());
    let load = [&[&file[..]], &NODES[..]].concat();
    cluster.node(0, "TRUNCATE t_0, t_2");
    cluster.node(1, "TRUNCATE t_1");
    cluster.world.sql("ALTER DOMAIN email ADD CHECK (VALUE <> 'nobody')");
    refuse(cluster, &load, 1, &["column b", "has a domain", "nobody"]);
    cluster.world.sql("ALTER DOMAIN email DROP CONSTRAINT email_check");
    let other = "DROP DOMAIN moment CASCADE; CREATE DOMAIN moment AS timestamptz; \
        ALTER TABLE t_1 ADD c moment[]";
    cluster.node(1, other);
    refuse(cluster, &load, 1, &["column c", "timestamp with time zone"]);
}

#[test]
fn domains_are_compared() {
    on_one_major(domains);
}

/// A sequence whose keys are on nodes is not moved, and the load says so; with `--truncate` it does
/// not wait for itself. Triggers for TRUNCATE would not fire.
fn sequences_and_truncates(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    cluster
        .world
        .sql("CREATE SEQUENCE s_a OWNED BY t.a; ALTER TABLE t ALTER a SET DEFAULT nextval('s_a')");
    let rows: String = (0..100).map(|i| format!("{i},x\n")).collect();
    let file = cluster.world.file("rows.csv", rows.as_bytes());
    let load = [&[&file[..]], &NODES[..]].concat();
    for more in [&[][..], &["--truncate"]] {
        let summary = cluster.world.load(&[&load[..], more].concat()).unwrap();
        let steps = summary["steps"].to_string();
        assert!(steps.contains("s_a not moved: the keys are on nodes"), "{more:?}: {steps}");
    }
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "100");
    cluster.node(0, "TRUNCATE t_0, t_2");
    cluster.node(1, "TRUNCATE t_1");
    cluster.world.sql(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''kept''; END';
         CREATE TRIGGER keep BEFORE TRUNCATE ON t EXECUTE FUNCTION keep()",
    );
    refuse(cluster, &[&load[..], &["--truncate"]].concat(), 1, &["triggers for TRUNCATE", "keep"]);
}

#[test]
fn sequences_and_truncates_of_nodes() {
    on_one_major(sequences_and_truncates);
}

/// Options that are set on one server, and words of the error.
const PROTECTING: [(&str, &str, &str); 4] = [
    ("channel_binding", "require", "channel binding required"),
    ("requirepeer", "somebody else", "requirepeer specifies"),
    ("gssencmode", "require", "GSSAPI"),
    // The loader's libpq may be older than that of the server.
    ("require_auth", "password", "auth"),
];

fn protected(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    let file = cluster.world.file("rows.csv", b"1,x\n2,x\n3,x\n4,x\n");
    let load = [&[&file[..]], &NODES[..]].concat();
    for (option, value, words) in PROTECTING {
        let add = format!("ALTER SERVER n1 OPTIONS (ADD {option} '{value}')");
        if cluster.world.conn.exec(&add).is_err() {
            // A server before 16 does not have the option.
            assert_eq!(option, "require_auth");
            continue;
        }
        let said = cluster.world.load(&load).unwrap_err();
        assert!(said.contains("node n1: ") && said.contains(words), "{option}: {said}");
        cluster.world.sql(&format!("ALTER SERVER n1 OPTIONS (DROP {option})"));
    }
    assert_eq!(cluster.world.load(&load).unwrap()["loaded"], 4);
}

/// Options of a foreign server that protect the password apply to the loader's connections, too, or
/// are an error.
#[test]
fn options_that_protect_the_password_are_used() {
    on_first_and_last_major(|installation| {
        if let Some(mut cluster) = Cluster::new(installation) {
            protected(&mut cluster);
        }
    });
}
