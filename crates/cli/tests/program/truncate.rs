//! `--truncate`: the table has only the new rows, and other tables keep theirs.

use crate::common::{each_major, left_out, wait_until, World};
use crate::methods::with_extension;
use std::process::Output;

const LANES: [&str; 3] = ["--truncate", "--method", "lanes"];

fn world() -> World {
    World::new(each_major().last().unwrap())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// With lanes, rows are deleted. If foreign keys would delete or change rows of other tables, the
/// load is refused, and no hint names lanes.
#[test]
fn other_tables_keep_their_rows() {
    let mut world = world();
    let file = world.file("rows.csv", b"3\n4\n");
    for action in ["CASCADE", "SET NULL", "SET DEFAULT"] {
        world.sql(&format!(
            "DROP TABLE IF EXISTS c, p; CREATE TABLE p (id int PRIMARY KEY);
             INSERT INTO p VALUES (1), (2);
             CREATE TABLE c (pid int DEFAULT 2 REFERENCES p ON DELETE {action});
             INSERT INTO c VALUES (1)"
        ));
        for command in ["plan", "load"] {
            let base = [command, &file, "--table", "p"];
            let output = world.run(&[&base[..], &LANES].concat());
            let told = said(&output);
            assert_eq!(output.status.code(), Some(1), "{action}: {told}");
            assert!(told.contains("cannot be emptied by DELETE"), "{action}: {told}");
            let told = said(&world.run(&[&base[..], &LANES[..1]].concat()));
            assert!(told.contains("cannot be truncated"), "{action}: {told}");
            assert!(told.contains("TRUNCATE ... CASCADE") && !told.contains("lanes"), "{told}");
        }
        let left = "SELECT (SELECT count(*) FROM p) || ' ' || sum(pid) FROM c";
        assert_eq!(world.sql(left), "2 1", "{action}");
    }
    // Without an action, the server refuses to delete rows that others refer to.
    world.sql("DROP TABLE c; CREATE TABLE c (pid int REFERENCES p)");
    let base = ["load", &file, "--table", "p"];
    let told = said(&world.run(&[&base[..], &LANES[..1]].concat()));
    assert!(told.contains("--method lanes deletes its rows instead"), "{told}");
    assert_eq!(world.load(&[&base[1..], &LANES].concat()).unwrap()["loaded"], 2);
    assert_eq!(world.sql("SELECT count(*) || ' ' || min(id) FROM p"), "2 3");
}

/// A foreign key that is NOT ENFORCED changes no rows when rows are deleted. It forbids TRUNCATE only
/// where the server looks for it: if the table has a trigger.
#[test]
fn keys_that_are_not_enforced_forbid_what_the_server_forbids() {
    let newest = each_major().into_iter().max_by_key(|i| i.version.major).unwrap();
    if newest.version.major < 18 {
        return left_out("foreign keys that are not enforced, which came with PostgreSQL 18");
    }
    let mut world = World::new(&newest);
    world.sql(
        "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1), (2);
         CREATE TABLE c (pid int REFERENCES p ON DELETE CASCADE NOT ENFORCED);
         INSERT INTO c VALUES (1)",
    );
    let file = world.file("rows.csv", b"3\n4\n");
    let trigger = "CREATE TRIGGER g BEFORE UPDATE ON p FOR EACH ROW \
         EXECUTE FUNCTION suppress_redundant_updates_trigger()";
    for (more, forbidden) in [("", false), (trigger, true)] {
        world.sql(more);
        assert_eq!(world.conn.exec("BEGIN; TRUNCATE p").is_err(), forbidden);
        world.sql("ROLLBACK");
        match world.load(&[&file, "--table", "p", LANES[0]]) {
            Ok(summary) => assert!(!forbidden && summary["loaded"] == 2, "{summary}"),
            Err(told) => assert!(forbidden && told.contains("cannot be truncated"), "{told}"),
        }
        let lanes = [&[file.as_str(), "--table", "p"], &LANES[..]].concat();
        assert_eq!(world.load(&lanes).unwrap()["loaded"], 2);
        let left = "SELECT (SELECT count(*) || ' ' || min(id) FROM p) || ' ' || count(*) FROM c";
        assert_eq!(world.sql(left), "2 3 1");
    }
}

/// With lanes, a trigger or a rule may keep rows that should be deleted. The load then fails, and
/// adds no row to them.
#[test]
fn rows_that_a_trigger_or_a_rule_keeps_are_an_error() {
    let mut world = world();
    world.sql(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE FUNCTION let() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
    );
    let file = world.file("rows.csv", b"3\n4\n");
    let trigger = "CREATE TRIGGER g BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION";
    for (object, table, kept) in [
        (format!("{trigger} keep()"), "", true),
        ("CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING".into(), "", true),
        (format!("{trigger} let()"), "", false),
        (format!("{trigger} keep()").replace("ON t", "ON t1"), "PARTITION BY LIST (a)", true),
    ] {
        world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (a int) {table}"));
        if !table.is_empty() {
            world.sql("CREATE TABLE t1 PARTITION OF t DEFAULT");
        }
        world.sql(&format!("INSERT INTO t VALUES (7); {object}"));
        let loaded = world.load(&[&[file.as_str(), "--table", "t"], &LANES[..]].concat());
        if kept {
            let told = loaded.unwrap_err();
            assert!(told.contains("DELETE has left rows in \"public\".\"t\""), "{object}: {told}");
        } else {
            assert_eq!(loaded.unwrap()["loaded"], 2, "{object}");
        }
        let left = if kept { "7" } else { "3 4" };
        let rows = "SELECT string_agg(a::text, ' ' ORDER BY a) FROM t";
        assert_eq!(world.sql(rows), left, "{object}");
    }
}

/// A partitioned table with a foreign key to itself is truncated, as the server allows it.
#[test]
fn a_partitioned_table_that_refers_to_itself_is_truncated() {
    let mut world = world();
    world.sql(
        "CREATE TABLE t (a int PRIMARY KEY, up int REFERENCES t) PARTITION BY RANGE (a);
         CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
         INSERT INTO t VALUES (1, NULL), (2, 1)",
    );
    let file = world.file("rows.csv", b"3,\n4,3\n5,4\n");
    let summary = world.load(&[&file, "--table", "t", "--truncate"]).unwrap();
    assert_eq!((&summary["loaded"], world.sql("SELECT min(a) FROM t").as_str()), (&3.into(), "3"));
    // Those of other tables still count.
    world.sql("CREATE TABLE c (a int REFERENCES t)");
    let told = world.load(&[&file, "--table", "t", "--truncate"]).unwrap_err();
    assert!(told.contains("cannot be truncated"), "{told}");
}

/// A load that waits for a partitioned table holds no lock of its partitions. The session that it
/// waits for may need them, and each would wait for the other.
#[test]
fn partitions_are_not_locked_before_their_table() {
    let mut world = world();
    world.sql(
        "CREATE TABLE p (a int) PARTITION BY RANGE (a);
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    );
    let file = world.file("rows.csv", b"1\n2\n");
    world.sql("BEGIN; LOCK TABLE ONLY p IN ACCESS SHARE MODE");
    let load = world.start(&["load", &file, "--table", "p", "--truncate", "--quiet"]);
    let waits = "SELECT count(*) FROM pg_locks WHERE relation = 'p'::regclass AND NOT granted";
    wait_until(|| "no load waits for the table".into(), || world.sql(waits) == "1");
    let held = "SELECT count(*) FROM pg_locks WHERE relation = 'p1'::regclass";
    assert_eq!(world.sql(held), "0");
    world.sql("COMMIT");
    let output = load.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) FROM p"), "2");
}

/// A table that inherits from the loaded one is not emptied, also if the loaded one is foreign, and
/// is not locked while indexes of an empty parent are dropped.
#[test]
fn children_are_neither_emptied_nor_locked() {
    let mut world = World::new(&each_major().remove(0));
    world.sql(
        "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER s FOREIGN DATA WRAPPER none; \
         CREATE FOREIGN TABLE f (a int) SERVER s; CREATE TABLE of_f () INHERITS (f); \
         CREATE TABLE p (a int PRIMARY KEY); CREATE INDEX ON p (a); \
         CREATE TABLE of_p () INHERITS (p); \
         INSERT INTO of_p VALUES (7)",
    );
    world.sql("BEGIN; LOCK TABLE of_p IN ROW EXCLUSIVE MODE");
    let file = world.file("rows.csv", b"1\n2\n");
    let plan = world.run(&["plan", &file, "--table", "f", "--truncate"]);
    let said = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(said.contains("TRUNCATE TABLE ONLY \"public\".\"f\""), "{plan:?}");
    for more in [&["--indexes", "rebuild"][..], &["--truncate"]] {
        let of = [&file, "--table", "p", "--lock-timeout", "5s"];
        let summary = world.load(&[&of[..], more].concat()).unwrap();
        let steps = summary["steps"].to_string();
        assert!(steps.contains("index public.p_a_idx recreated"), "{more:?} {steps}");
    }
    world.sql("COMMIT");
    assert_eq!(world.sql("SELECT count(*) || ' ' || sum(a) FROM p"), "3 10");
}

/// From 17 on, the server builds indexes without the search_path. An index whose function may need
/// it is kept, so that the rows are loaded as by COPY; the plan says why.
#[test]
fn an_index_that_may_need_the_search_path_is_kept() {
    for installation in each_major() {
        let mut world = World::new(&installation);
        let function = |name: &str, rest: &str| {
            format!("CREATE FUNCTION {name}(int) RETURNS int IMMUTABLE LANGUAGE {rest};")
        };
        let setup = [
            function("half", "plpgsql AS 'BEGIN RETURN $1 / 2; END'"),
            function("calls", "plpgsql AS 'BEGIN RETURN half($1); END'"),
            function("parsed", "sql RETURN calls($1)"),
            function("fixed", "plpgsql SET search_path = public AS 'BEGIN RETURN half($1); END'"),
            function("plain", "sql RETURN $1 / 2"),
            "CREATE OPERATOR &&& (RIGHTARG = int, FUNCTION = calls);".into(),
            "CREATE TABLE t (a int)".into(),
        ];
        world.sql(&setup.concat());
        let indexes = [
            ("t_calls", "(calls(a))", true),
            ("t_parsed", "(parsed(a))", true),
            ("t_operator", "((&&& a))", true),
            ("t_where", "(a) WHERE calls(a) > 0", true),
            ("t_fixed", "(fixed(a))", false),
            ("t_plain", "(plain(a))", false),
        ];
        for (name, of, _) in indexes {
            world.sql(&format!("CREATE INDEX {name} ON t {of}"));
        }
        let file = world.file("rows.csv", b"1\n2\n3\n");
        let plan = world.run(&["plan", &file, "--table", "t"]);
        let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
        for more in [&[][..], &["--truncate"]] {
            let summary = world.load(&[&[file.as_str(), "--table", "t"], more].concat()).unwrap();
            let steps = summary["steps"].to_string();
            for (name, _, needs) in indexes {
                let kept = needs && world.major() >= 17;
                let said = format!("keep index public.{name}: the server builds it without the");
                assert_eq!(plan.contains(&said), kept, "{name}: {plan}");
                let rebuilt = steps.contains(&format!("index public.{name} recreated"));
                assert_eq!(rebuilt, !kept, "{name} {more:?}: {steps}");
            }
            assert_eq!(world.sql("SELECT count(*) || ' ' || sum(a) FROM t"), "3 6");
        }
    }
}

/// Tables with the shape of those in which TimescaleDB lists hypertables, and Citus distributed
/// tables.
const LISTS: &str = "CREATE SCHEMA _timescaledb_catalog;
     CREATE TABLE _timescaledb_catalog.hypertable (schema_name name, table_name name);
     SET allow_system_table_mods = on;
     CREATE TABLE pg_catalog.pg_dist_partition (logicalrel regclass);
     RESET allow_system_table_mods";

/// What lists the table `t` there, and the extension.
const LISTED: [(&str, &str); 2] = [
    ("INSERT INTO _timescaledb_catalog.hypertable VALUES ('public', 't')", "timescaledb"),
    ("INSERT INTO pg_catalog.pg_dist_partition VALUES ('t')", "citus"),
];

/// An empty table with indexes, and another one with a row of it.
fn chunked(world: &mut World) {
    world.sql(
        "DELETE FROM _timescaledb_catalog.hypertable; DELETE FROM pg_catalog.pg_dist_partition;
         DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (a int PRIMARY KEY, b int);
         CREATE INDEX t_b ON t (b); CREATE TABLE chunk () INHERITS (t);
         INSERT INTO chunk VALUES (7, 7)",
    );
}

/// The rows of a hypertable and of a distributed table are in other tables. So it does not count as
/// empty: its indexes are kept, and `--truncate` empties the other tables, too.
#[test]
fn a_table_whose_rows_are_in_other_tables_is_not_empty() {
    let mut world = world();
    world.sql(LISTS);
    let (file, more) = (world.file("rows.csv", b"1,1\n2,2\n"), world.file("more.csv", b"3,3\n"));
    let indexes = "SELECT string_agg(indexrelid::text, ' ' ORDER BY indexrelid) FROM pg_index \
        WHERE indrelid = 't'::regclass";
    let rows = "SELECT string_agg(a::text, ' ' ORDER BY a) FROM t";
    for (list, extension) in LISTED {
        chunked(&mut world);
        world.sql(list);
        let before = world.sql(indexes);
        let planned = world.run(&["plan", &file, "--table", "t"]);
        let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
        let kept = format!("keep index public.t_b: it belongs to the extension {extension}");
        assert!(planned.contains(&kept), "{planned}");
        world.load(&[&file, "--table", "t"]).unwrap();
        world.load(&[&more, "--table", "t", "--indexes", "rebuild"]).unwrap();
        assert_eq!(world.sql(rows), "1 2 3 7", "{extension}");
        for method in ["auto", "lanes"] {
            world.sql("DELETE FROM chunk; INSERT INTO chunk VALUES (7, 7)");
            let emptied = ["--table", "t", "--truncate", "--method", method];
            world.load(&[&[file.as_str()], &emptied[..]].concat()).unwrap();
            assert_eq!(world.sql(rows), "1 2", "{extension} {method}");
        }
        assert_eq!(world.sql(indexes), before, "{extension}");
        for method in ["copy-fresh", "unlogged", "unlogged-logged"] {
            let emptied = ["--table", "t", "--truncate", "--method", method];
            let told = world.load(&[&[more.as_str()], &emptied[..]].concat()).unwrap_err();
            let why = format!("{extension} keeps the rows of this one in other tables");
            assert!(told.contains("does not work on") && told.contains(&why), "{told}");
        }
        assert_eq!(world.sql(rows), "1 2", "{extension}");
    }
}

/// A load by the server's extension does not lock and truncate such a table either.
#[test]
fn a_table_whose_rows_are_in_other_tables_is_not_locked_for_the_load() {
    let installation = each_major().pop().unwrap();
    let Some(installation) = with_extension(&installation) else {
        return left_out("loads through the extension, which has not been built");
    };
    let mut world = World::new(&installation);
    world.sql("CREATE EXTENSION pgsluice");
    world.sql(LISTS);
    let line = |a: usize| format!("{a},{a}\n").into_bytes();
    let file = world.file("rows.csv", &(0..500_000).flat_map(line).collect::<Vec<u8>>());
    let planned = |world: &World| {
        let plan = world.run(&["plan", &file, "--table", "t"]);
        String::from_utf8_lossy(&plan.stdout).into_owned()
    };
    chunked(&mut world);
    let plan = planned(&world);
    assert!(plan.contains("TRUNCATE TABLE ONLY \"public\".\"t\""), "{plan}");
    for (list, extension) in LISTED {
        chunked(&mut world);
        world.sql(list);
        let plan = planned(&world);
        assert!(!plan.contains("TRUNCATE"), "{extension}: {plan}");
    }
}
