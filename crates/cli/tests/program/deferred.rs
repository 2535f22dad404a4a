//! Deferred constraints, in methods that have more to do between the last row and the commit.

use crate::common::{on_first_and_last_major, wait_until, World};
use std::fs;
use std::process::{Command, Stdio};

/// Rows `a,text`, enough for each of several lanes to get some.
fn rows() -> Vec<u8> {
    (0..100_000).flat_map(|a| format!("{a},{}\n", "x".repeat(60)).into_bytes()).collect()
}

/// Deferred constraints are checked before any lane commits, with two-phase commit and without
/// it.
#[test]
fn lanes_are_heard_before_the_first_commit() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        // The trigger lets one lane pass, which would be the first to commit.
        world.sql(
            "CREATE TABLE t (a int, b text); CREATE FUNCTION one() RETURNS trigger LANGUAGE plpgsql \
               AS $$ BEGIN IF NOT pg_try_advisory_lock(1) THEN RAISE 'one is enough'; END IF; \
               RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER one AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED \
               FOR EACH ROW WHEN (NEW.a % 100 = 0) EXECUTE FUNCTION one()",
        );
        let file = world.file("rows.csv", &rows());
        // More lanes than the server's max_prepared_transactions, and fewer.
        for lanes in ["5", "3"] {
            let arguments = [&file, "--table", "t", "--method", "lanes", "--lanes", lanes];
            let said = world.load(&arguments).unwrap_err();
            assert!(said.contains("one is enough") && !said.contains("changed:"), "{said}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{lanes} lanes");
        }
    });
}

/// If two lanes have the same deferred key, each waits for the other when the key is checked. The
/// load must detect this and fail.
#[test]
fn lanes_with_the_same_deferred_key_end_with_an_error() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE t (a int UNIQUE DEFERRABLE INITIALLY DEFERRED, b text)");
        let file = world.file("twice.csv", &[rows(), rows()].concat());
        let said = world.path("said");
        let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["load", &file, "--table", "t", "--method", "lanes", "--lanes", "2", "--quiet"])
            .args(["--to", &world.server.url("postgres")])
            .stdin(Stdio::null())
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let mut ended = None;
        wait_until(
            || "the lanes wait for one another".into(),
            || {
                ended = child.try_wait().unwrap();
                ended.is_some()
            },
        );
        let said = fs::read_to_string(said).unwrap();
        assert_eq!(ended.unwrap().code(), Some(4), "{said}");
        assert!(said.contains("another lane") || said.contains("duplicate key"), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    });
}

/// The server refuses to alter a table with pending deferred checks. `unlogged-logged` must run
/// them first, and a violation leaves the table as it was.
#[test]
fn unlogged_logged_does_not_wait_with_them() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE TABLE p (a int PRIMARY KEY); INSERT INTO p VALUES (1), (2); \
             CREATE TABLE t (a int REFERENCES p DEFERRABLE INITIALLY DEFERRED, b text)",
        );
        let arguments = ["--table", "t", "--method", "unlogged-logged", "--truncate"];
        let good = world.file("good.csv", b"1,x\n2,y\n");
        world.load(&[&[good.as_str()], &arguments[..]].concat()).unwrap();
        let bad = world.file("bad.csv", b"1,x\n3,y\n");
        let said = world.load(&[&[bad.as_str()], &arguments[..]].concat()).unwrap_err();
        assert!(said.contains("violates foreign key constraint"), "{said}");
        let left =
            "SELECT count(*) || ' ' || min(relpersistence) FROM t, pg_class WHERE relname = 't'";
        assert_eq!(world.sql(left), "2 p");
    });
}

/// Deferred constraints are checked before a sequence is moved past the keys: it would not roll
/// back with the rows, and later rows would get no number.
#[test]
fn sequences_are_not_moved_for_rows_that_are_refused() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE TABLE p (a int PRIMARY KEY); INSERT INTO p VALUES (1); \
             CREATE TABLE t (id serial PRIMARY KEY, \
               parent int REFERENCES p DEFERRABLE INITIALLY DEFERRED, b text); \
             INSERT INTO t VALUES (0, 1, '')",
        );
        let row = |id| format!("{id},1,{}\n", "x".repeat(60)).into_bytes();
        let good = (1..30_000).flat_map(row).collect::<Vec<u8>>();
        let file = world.file("rows.csv", &[b"2147483647,99,x\n", &good[..]].concat());
        let cases = [
            &[][..],
            &["--once"],
            &["--once", "--commit-every", "256kB"],
            &["--method", "lanes", "--lanes", "2"],
        ];
        for more in cases {
            world.sql("DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
            let said = world.load(&[&[file.as_str(), "--table", "t"], more].concat()).unwrap_err();
            assert!(said.contains("violates foreign key constraint"), "{more:?}: {said}");
            assert!(!said.contains("changed:"), "{more:?}: {said}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), "1", "{more:?}");
            let moved = world.sql("SELECT last_value || ' ' || is_called FROM t_id_seq");
            assert_eq!(moved, "1 false", "{more:?}");
        }
    });
}

/// Rows may refer to later rows of the file, also if only the server reads some values of a file
/// whose columns are typed.
#[test]
fn rows_refer_to_later_rows_of_the_file() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE t (a int PRIMARY KEY, p int REFERENCES t, d date)");
        let file = world.file("rows.csv", &a_day_of_the_server());
        assert_eq!(world.load(&[&file, "--table", "t"]).unwrap()["loaded"], 120_000);
        // The same if it is one of several files.
        world.sql("TRUNCATE t");
        let empty = world.file("empty.csv", b"");
        assert_eq!(world.load(&[&file, &empty, "--table", "t"]).unwrap()["loaded"], 120_000);
        // The same for a partition whose partitioned table refers to itself.
        world.sql(
            "CREATE TABLE parent (a int PRIMARY KEY, p int REFERENCES parent, d date) \
               PARTITION BY RANGE (a); \
             CREATE TABLE leaf PARTITION OF parent FOR VALUES FROM (0) TO (200000)",
        );
        let lanes = [&file, "--table", "leaf", "--method", "lanes", "--lanes", "2"];
        let summary = world.load(&lanes).unwrap();
        assert_eq!((&summary["loaded"], &summary["lanes"]), (&120_000.into(), &1.into()));
    });
}

/// Rows `a,p,d`: `p` refers from the last row to the first, and so on. One day in the middle is
/// written in a way that only the server reads.
pub fn a_day_of_the_server() -> Vec<u8> {
    let row = |a: usize| {
        let day = if a == 60_000 { "January 8, 1999" } else { "1999-01-08" };
        format!("{a},{},\"{day}\"\n", 119_999 - a).into_bytes()
    };
    (0..120_000).flat_map(row).collect()
}
