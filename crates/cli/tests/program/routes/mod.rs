//! `--route leaf` sends rows straight to the partitions. The same rows are in the same partitions
//! as after stock COPY.

mod lanes;
mod types;
mod underway;

use crate::common::{on_each_major, on_first_and_last_major, on_last_major, World};
use crate::memory;

/// Creates the table `t`, and `s` like it. Names of their partitions differ only in the first
/// letter.
fn twins(world: &mut World, ddl: &str) {
    for name in ["t", "s"] {
        world.sql(&format!("DROP TABLE IF EXISTS {name} CASCADE"));
        world.sql(&ddl.replace('@', name));
    }
}

/// The rows, with their partitions, that only one of the two tables has.
fn difference(world: &mut World) -> String {
    let rows = |name| {
        format!(
            "(SELECT substr(tableoid::regclass::text, 2) AS in_partition, {name}.* FROM {name})"
        )
    };
    world.difference(&rows("s"), &rows("t"))
}

/// Loads the file straight into partitions, and by stock COPY into the other table; compares both.
fn load(world: &mut World, bytes: &[u8], more: &[&str]) -> serde_json::Value {
    world.stock("COPY s FROM STDIN CSV", bytes).unwrap();
    let file = world.file("rows.csv", bytes);
    let mut all = vec![&*file, "--table", "t", "--route", "leaf"];
    if !more.contains(&"--method") {
        all.extend(["--method", "copy-binary"]);
    }
    all.extend_from_slice(more);
    let summary = world.load(&all).unwrap();
    assert_eq!(difference(world), "", "{summary}");
    summary
}

/// Partitions of several levels, DEFAULT partitions, partitions to which rows cannot be sent
/// directly, and values that the loader leaves to the server.
fn every_partition(world: &mut World) {
    twins(
        world,
        "CREATE TABLE @ (a int, b text, c date) PARTITION BY RANGE (a, c);
         CREATE TABLE @_low PARTITION OF @ FOR VALUES FROM (MINVALUE, MINVALUE) TO (10, '2024-01-01');
         CREATE TABLE @_mid PARTITION OF @ FOR VALUES FROM (10, '2024-01-01') TO (20, MINVALUE)
           PARTITION BY LIST (b);
         CREATE TABLE @_mid_x PARTITION OF @_mid FOR VALUES IN ('x', 'o''neil', NULL);
         CREATE TABLE @_mid_h PARTITION OF @_mid DEFAULT PARTITION BY HASH (b, a);
         CREATE TABLE @_mid_h0 PARTITION OF @_mid_h FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE @_mid_h1 PARTITION OF @_mid_h FOR VALUES WITH (MODULUS 2, REMAINDER 1);
         CREATE TABLE @_trigger PARTITION OF @ FOR VALUES FROM (30, MINVALUE) TO (40, MINVALUE);
         CREATE TABLE @_other (c date, gone int, b text, a int); ALTER TABLE @_other DROP COLUMN gone;
         ALTER TABLE @ ATTACH PARTITION @_other FOR VALUES FROM (40, MINVALUE) TO (50, MAXVALUE);
         CREATE TABLE @_rest PARTITION OF @ DEFAULT",
    );
    world.sql(
        "CREATE OR REPLACE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN RAISE EXCEPTION ''sent to the partition''; END';
         CREATE TRIGGER fires BEFORE INSERT ON t_trigger EXECUTE FUNCTION fires()",
    );
    let mut rows = String::new();
    for i in 0..60_000 {
        let a = if i % 23 == 0 { String::new() } else { (i % 61 - 5).to_string() };
        let b = ["x", "o'neil", "", "ä", "\"\"", "longer than twelve"][i as usize % 6];
        let c = ["2023-12-31", "2024-01-01", "infinity", ""][i as usize % 4];
        rows.push_str(&format!("{a},{b},{c}\n"));
    }
    // Far from the other rows, so that the loader can read their chunks.
    rows.push_str(&"15,x,yesterday\n".repeat(10));
    let summary = load(world, rows.as_bytes(), &[]);
    let (loaded, straight) = (summary["loaded"].as_u64(), summary["to_partitions"].as_u64());
    assert_eq!(loaded, Some(60_010));
    assert!(straight > Some(20_000) && straight < loaded, "{summary}");
    let notes = summary["notes"].to_string();
    assert!(notes.contains("\\\"t_trigger\\\" go through the root"), "{notes}");
    assert!(!notes.contains("refused a row"), "{notes}");
}

/// Rows are in the same partitions as after stock COPY: over several levels, in DEFAULT partitions,
/// and with rows that must go through the root.
#[test]
fn rows_are_in_the_partitions_that_stock_copy_takes() {
    on_each_major(|installation| every_partition(&mut World::new(installation)));
}

/// A hash partition with the smallest modulus is itself partitioned.
fn nested_hash(world: &mut World) {
    twins(
        world,
        "CREATE TABLE @ (a int, b text) PARTITION BY HASH (a);
         CREATE TABLE @_0 PARTITION OF @ FOR VALUES WITH (MODULUS 8, REMAINDER 0);
         CREATE TABLE @_4 PARTITION OF @ FOR VALUES WITH (MODULUS 8, REMAINDER 4);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES WITH (MODULUS 2, REMAINDER 1)
           PARTITION BY HASH (b);
         CREATE TABLE @_1_0 PARTITION OF @_1 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE @_1_1 PARTITION OF @_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
         CREATE TABLE @_2 PARTITION OF @ FOR VALUES WITH (MODULUS 4, REMAINDER 2)",
    );
    let rows: String = (0..5_000).map(|i| format!("{i},{}\n", i % 7)).collect();
    let summary = load(world, rows.as_bytes(), &[]);
    assert_eq!(summary["to_partitions"], 5_000, "{summary}");
}

/// If a hash partition with a smaller modulus is itself partitioned, rows still go straight to the
/// right partitions.
#[test]
fn hash_partitions_of_another_modulus_that_are_partitioned_get_their_rows_straight() {
    on_first_and_last_major(|installation| nested_hash(&mut World::new(installation)));
}

/// Errors, with their lines, and rejects are those of COPY into the root.
fn refused(world: &mut World) {
    twins(
        world,
        "CREATE TABLE @ (a int, b int) PARTITION BY LIST (a);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES IN (1);
         CREATE TABLE @_2 (a int, b int, CHECK (b <> 7777), CHECK (b <> 8889));
         ALTER TABLE @ ATTACH PARTITION @_2 FOR VALUES IN (2)",
    );
    let rows: String = (0..20_000)
        .map(|i| if i == 12_345 { "3,1\n".into() } else { format!("{},{i}\n", 1 + i % 2) })
        .collect();
    let file = world.file("bad.csv", rows.as_bytes());
    let said = |world: &World, route: &str, more: &[&str]| {
        let mut all = vec![&*file, "--table", "t", "--method", "copy-binary", "--route", route];
        all.extend_from_slice(more);
        world.load(&all)
    };
    let by_root = said(world, "root", &[]).unwrap_err();
    let by_leaf = said(world, "leaf", &[]).unwrap_err();
    assert!(by_root.contains("line 7778") && by_root.contains("t_2_b_check"), "{by_root}");
    assert_eq!(by_leaf, by_root);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");

    let kept = |world: &World, route: &str| {
        let rejects = world.path(&format!("rejects-{route}"));
        let summary = said(world, route, &["--on-error", "reject", "--reject-file", &rejects]);
        let summary = summary.unwrap();
        let told = std::fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
        (summary["rejected"].as_u64(), std::fs::read(rejects).unwrap(), told)
    };
    let by_root = kept(world, "root");
    world.sql("TRUNCATE t");
    let by_leaf = kept(world, "leaf");
    assert_eq!(by_leaf, by_root);
    assert_eq!(by_leaf.0, Some(3), "{by_leaf:?}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "19997");
}

/// Errors, with their lines, and rejects are those of COPY into the root.
#[test]
fn an_error_has_the_line_and_the_words_of_copy_into_the_root() {
    on_first_and_last_major(|installation| refused(&mut World::new(installation)));
}

/// If rows cannot go straight to partitions, the plan says why, and that they go through the root.
fn through_the_root(world: &mut World) {
    let table = "CREATE TABLE @ (a int, b text) PARTITION BY LIST (a);
        CREATE TABLE @_1 PARTITION OF @ FOR VALUES IN (1);
        CREATE TABLE @_2 PARTITION OF @ FOR VALUES IN (2)";
    let cases: [(&str, &[&str], &str); 8] = [
        ("", &["--method", "copy-csv"], "the method is copy-csv"),
        (
            "ALTER TABLE t ADD PRIMARY KEY (a); ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES t",
            &[],
            "rows may refer to rows of other partitions",
        ),
        (
            "ALTER TABLE t ADD id serial",
            &["--columns", "a,b", "--method", "copy-binary"],
            "the default of column id depends",
        ),
        ("", &["--where", "a > 0"], "--where is a condition"),
        (
            "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER n AFTER INSERT ON t EXECUTE FUNCTION nothing()",
            &["--method", "copy-binary"],
            "a statement trigger of the table",
        ),
        ("ALTER TABLE t_1 ALTER b SET DEFAULT 'x'; ALTER TABLE t_2 ALTER b SET DEFAULT 'y'",
            &["--columns", "a,-", "--method", "copy-binary"], "column b may get another value"),
        ("ALTER TABLE t ADD c point", &["--columns", "a,c"], "only the server reads"),
        ("ALTER TABLE t DROP b; ALTER TABLE t ADD b text", &["--columns", "b,-"], "column a of the key is not in the input"),
    ];
    let file = world.file("few.csv", b"1,\n2,\n");
    for (change, more, why) in cases {
        twins(world, table);
        world.sql(change);
        let mut all = vec!["plan", &file, "--table", "t", "--route", "leaf"];
        all.extend_from_slice(more);
        let output = world.run(&all);
        let said = String::from_utf8(output.stdout).unwrap();
        let route = said.lines().find(|line| line.starts_with("route ")).unwrap_or_default();
        assert!(route.contains("through the root") && route.contains(why), "{why}: {said}");
    }
    twins(world, table);
    let output = world.run(&["plan", &file, "--table", "t", "--route", "leaf"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("route     straight to 2 partitions"), "{said}");
    // Without the option, this plan has no route.
    let output = world.run(&["plan", &file, "--table", "t"]);
    assert!(!String::from_utf8(output.stdout).unwrap().contains("route "));
}

/// With `--once`, rows that went straight to partitions are recorded like any others.
fn recorded(world: &mut World) {
    twins(
        world,
        "CREATE TABLE @ (a int, b int) PARTITION BY HASH (a);
         CREATE TABLE @_0 PARTITION OF @ FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    );
    let rows: String = (0..5_000).map(|i| format!("{i},{i}\n")).collect();
    let summary = load(world, rows.as_bytes(), &["--once"]);
    assert_eq!(summary["to_partitions"], 5_000, "{summary}");
    let file = world.path("rows.csv");
    let again = world.load(&[&file, "--table", "t", "--route", "leaf", "--once"]).unwrap();
    assert_eq!((&again["loaded"], &again["files_known"]), (&0.into(), &1.into()), "{again}");
    assert_eq!(difference(world), "");
}

/// With `--once`, rows that went straight to partitions are recorded, and a second load loads
/// nothing.
#[test]
fn what_went_straight_to_partitions_is_loaded_once() {
    on_last_major(|installation| recorded(&mut World::new(installation)));
}

/// If rows cannot go straight to partitions, the plan says why, and that they go through the root.
#[test]
fn a_plan_says_why_rows_go_through_the_root() {
    on_last_major(|installation| through_the_root(&mut World::new(installation)));
}

/// Without `--route`, rows go straight to partitions where this was measured to be faster: with
/// indexes and for enough rows.
fn auto(world: &mut World) {
    twins(world, "CREATE TABLE @ (a int, b text) PARTITION BY HASH (a)");
    for i in 0..4 {
        for table in ["t", "s"] {
            world.sql(&format!(
                "CREATE TABLE {table}_{i} PARTITION OF {table} FOR VALUES WITH (MODULUS 4, REMAINDER {i})"
            ));
        }
    }
    let text = "x".repeat(1_000);
    let rows: String = (0..34_000).map(|i| format!("{},{text}\n", i * 7919 % 34_001)).collect();
    let (file, few) = (world.file("rows.csv", rows.as_bytes()), world.file("few.csv", b"1,x\n"));
    let plan = |world: &World, more: &[&str]| {
        let output =
            world.run(&[&["plan", "--table", "t", "--method", "copy-binary"], more].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().contains("route     straight to 4 partitions")
    };
    assert!(!plan(world, &[&file]), "without an index");
    world.sql("CREATE INDEX ON t (a)");
    assert!(plan(world, &[&file]));
    assert!(!plan(world, &[&few]), "few rows");
    assert!(!plan(world, &[&file, "--on-error", "reject", "--reject-file", "bad"]), "rejects");
    assert!(!plan(world, &[&file, "--route", "root"]), "asked for");
    world.stock("COPY s FROM STDIN CSV", rows.as_bytes()).unwrap();
    let summary = world.load(&["--table", "t", "--method", "copy-binary", &file]).unwrap();
    assert_eq!(summary["to_partitions"], 34_000, "{summary}");
    assert_eq!(difference(world), "");
    world.sql(
        "CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE TRIGGER same BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION same()",
    );
    assert!(!plan(world, &[&file]), "a row trigger");
}

/// Without `--route`, rows go straight to partitions if these have indexes and there are enough
/// rows, but not with rejects or row triggers.
#[test]
fn partitions_with_indexes_are_loaded_one_by_one_without_being_asked() {
    on_last_major(|installation| auto(&mut World::new(installation)));
}

/// Rows of partitions that the load has truncated are frozen, and errors are those of COPY into the
/// root.
fn frozen(world: &mut World) {
    twins(
        world,
        "CREATE TABLE @ (a int, b int CHECK (b <> 7777), PRIMARY KEY (a)) PARTITION BY RANGE (a);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES FROM (0) TO (5000);
         CREATE TABLE @_2 PARTITION OF @ FOR VALUES FROM (5000) TO (20000)",
    );
    let good: String = (0..10_000).map(|i| format!("{},1\n", i * 7919 % 10_000)).collect();
    let mut log = 0;
    load(world, good.as_bytes(), &[]);
    assert!(!world.log(&mut log).contains("FREEZE"), "rows of leaves that had some are frozen");
    world.sql("TRUNCATE s");
    let summary = load(world, good.as_bytes(), &["--truncate"]);
    assert_eq!(summary["to_partitions"], 10_000, "{summary}");
    let said = world.log(&mut log);
    assert_eq!(said.matches("FROM STDIN WITH (FORMAT binary, FREEZE)").count(), 2, "{said}");
    // No VACUUM has run. Since PostgreSQL 16, a table is extended by more pages than have rows.
    for leaf in ["t_1", "t_2"] {
        world.sql(&format!("ANALYZE {leaf}"));
        let pages = format!(
            "SELECT (SELECT relallvisible FROM pg_class WHERE oid = '{leaf}'::regclass)
               = (SELECT count(DISTINCT (ctid::text::point)[0]) FROM {leaf})"
        );
        assert_eq!(world.sql(&pages), "t", "pages of {leaf} are not visible to all");
    }
    for (rows, words) in [
        (format!("{good}11000,7777\n12000,1\n"), "line 10001"),
        (format!("{good}30000,1\n"), "line 10001"),
        (format!("{good}5,1\n"), "duplicate key"),
    ] {
        let file = world.file("bad.csv", rows.as_bytes());
        let said = |world: &World, route| {
            world
                .load(&[
                    &file,
                    "--table",
                    "t",
                    "--truncate",
                    "--method",
                    "copy-binary",
                    "--route",
                    route,
                ])
                .unwrap_err()
        };
        let by_root = said(world, "root");
        assert!(by_root.contains(words), "{by_root}");
        assert_eq!(said(world, "leaf"), by_root);
        assert_eq!(difference(world), "", "{words}");
    }
    // With savepoints, or with input that cannot be read again, rows are not frozen.
    world.log(&mut log);
    let rejects = world.path("rejected.csv");
    world.sql("TRUNCATE s");
    load(
        world,
        good.as_bytes(),
        &["--truncate", "--on-error", "reject", "--reject-file", &rejects],
    );
    let stream =
        ["load", "-", "--table", "t", "--truncate", "--route", "leaf", "--method", "copy-binary"];
    assert!(world.run_with(&stream, good.as_bytes()).status.success());
    assert_eq!(difference(world), "");
    assert!(!world.log(&mut log).contains("FREEZE"));
}

/// Rows of partitions that the load has truncated are written frozen, except with rejects or
/// standard input. Errors are those of COPY into the root.
#[test]
fn rows_of_partitions_that_the_load_has_emptied_are_frozen() {
    on_first_and_last_major(|installation| frozen(&mut World::new(installation)));
}

/// Rows that take more than ten times the bytes of their text. They are gathered before they are
/// sent.
fn padded(world: &mut World) {
    world.sql(
        "CREATE TABLE t (a int, b char(200)) PARTITION BY HASH (a);
         CREATE TABLE t_0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE t_1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    );
    let ended = memory::load(world, &["--route", "leaf", "--method", "copy-binary"], |out| {
        (1_000_000..2_600_000).try_for_each(|a| writeln!(out, "{a},abcdefgh"))
    });
    ended.loaded("padded rows for partitions", memory::PROMISED);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1600000");
}

/// Rows with long padding are sent to their partitions within the promised bound of memory.
#[test]
fn padded_rows_are_gathered_within_the_bound_of_memory() {
    on_last_major(|installation| padded(&mut World::new(installation)));
}
