//! What the triggers of a table see during a load, and what they need.

use crate::common::{on_first_and_last_major, World};
use crate::deferred::a_day_of_the_server;

/// An AFTER ROW trigger sees all rows of its file, as after one COPY, also if only the server reads
/// some values.
#[test]
fn after_row_triggers_see_the_whole_file() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE TABLE t (a int PRIMARY KEY, p int, d date); CREATE TABLE seen (n bigint); \
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql \
               AS 'BEGIN INSERT INTO seen SELECT count(*) FROM t; RETURN NULL; END'; \
             CREATE TRIGGER see AFTER INSERT ON t FOR EACH ROW WHEN (NEW.a % 40000 = 0) \
               EXECUTE FUNCTION see()",
        );
        let bytes = a_day_of_the_server();
        let file = world.file("rows.csv", &bytes);
        assert_eq!(world.load(&[&file, "--table", "t"]).unwrap()["loaded"], 120_000);
        let seen = "SELECT count(*) || ' ' || min(n) FROM seen";
        assert_eq!(world.sql(seen), "3 120000");
        // The same if it is one of several files.
        world.sql("TRUNCATE t, seen");
        let empty = world.file("empty.csv", b"");
        world.load(&[&file, &empty, "--table", "t"]).unwrap();
        assert_eq!(world.sql(seen), "3 120000");
        // The files of a pipe cannot be read again, so `staged` would move rows on chunk by chunk.
        world.sql("TRUNCATE t, seen");
        let staged = ["load", "-", "--table", "t", "--quiet", "--method", "staged"];
        assert!(world.run_with(&staged, &bytes).status.success());
        assert_eq!(world.sql(seen), "3 120000");
        // Rows that are sent to partitions directly would be one COPY for each.
        world.sql(
            "TRUNCATE seen; DROP TABLE t; CREATE TABLE t (a int PRIMARY KEY, p int, d date) \
               PARTITION BY RANGE (a); \
             CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (50000); \
             CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (50000) TO (200000); \
             CREATE TRIGGER see AFTER INSERT ON t FOR EACH ROW WHEN (NEW.a % 40000 = 0) \
               EXECUTE FUNCTION see()",
        );
        let plain = String::from_utf8(bytes).unwrap().replace("January 8, 1999", "1999-01-08");
        let file = world.file("plain.csv", plain.as_bytes());
        world.load(&[&file, "--table", "t", "--method", "copy-binary"]).unwrap();
        assert_eq!(world.sql(seen), "3 120000");
        // The same if only a partition has the trigger.
        world.sql(
            "TRUNCATE t, seen; DROP TRIGGER see ON t; \
             CREATE TRIGGER see AFTER INSERT ON t1 FOR EACH ROW WHEN (NEW.a % 40000 = 0) \
               EXECUTE FUNCTION see()",
        );
        world.load(&[&file, "--table", "t", "--method", "copy-binary"]).unwrap();
        assert_eq!(world.sql(seen), "2 120000");
    });
}

/// The key of an empty table is not dropped for the load if the function of a row trigger has ON
/// CONFLICT. If triggers are turned off, it is.
#[test]
fn a_key_that_a_trigger_needs_is_kept() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        if world.major() < 19 {
            // Later versions have no literals in which each backslash is an escape.
            world.sql("ALTER DATABASE postgres SET standard_conforming_strings = off");
        }
        world.sql(
            "CREATE TABLE t (a int PRIMARY KEY, b text); \
             CREATE FUNCTION first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               IF NEW.a > 0 THEN \
                 INSERT INTO t VALUES (-(NEW.a % 10), 'x') ON CONFLICT (a) DO NOTHING; \
               END IF; RETURN NEW; END $$; \
             CREATE TRIGGER first BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION first()",
        );
        let file = world.file(
            "rows.csv",
            &(1..=1000).flat_map(|a| format!("{a},y\n").into_bytes()).collect::<Vec<u8>>(),
        );
        let plan = world.run(&["plan", &file, "--table", "t"]);
        let said = String::from_utf8_lossy(&plan.stdout).into_owned();
        assert!(said.contains("the trigger first may need it for ON CONFLICT"), "{said}");
        world.load(&[&file, "--table", "t"]).unwrap();
        assert_eq!(world.sql("SELECT count(*) || ' ' || min(a) FROM t"), "1010 -9");
        world.sql("TRUNCATE t");
        let plan = world.run(&["plan", &file, "--table", "t", "--triggers", "off"]);
        let said = String::from_utf8_lossy(&plan.stdout).into_owned();
        assert!(said.contains("rebuild primary key"), "{said}");
    });
}
