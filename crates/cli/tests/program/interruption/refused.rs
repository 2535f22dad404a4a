//! Once rows are under way, the role may not log in any more, as with a password that is valid for
//! minutes only. A load ends with the connections that it has.

use super::ended;
use crate::common::{each_major, wait_until, World};
use std::io::Write;
use std::process::{Child, Command, Stdio};

const ROWS: usize = 40_000;

const LANES: [&str; 4] = ["--method", "lanes", "--lanes", "2"];

/// A world with an empty table of the role `loader`. Each COPY into it waits while a session has
/// the lock 1. `prepared` is the server's `max_prepared_transactions`.
fn world(prepared: &str) -> World {
    let more = [("max_prepared_transactions", prepared)];
    let mut world = World::with(each_major().last().unwrap(), None, &more);
    world.sql(
        "CREATE ROLE loader LOGIN; GRANT CREATE ON SCHEMA public TO loader;
         GRANT CREATE ON DATABASE postgres TO loader; CREATE TABLE t (id int, k int, b text);
         CREATE INDEX t_id ON t (id); CREATE INDEX t_k ON t (k);
         CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
         CREATE TRIGGER waits BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION waits();
         ALTER TABLE t OWNER TO loader",
    );
    world
}

/// Starts a load as `loader`.
fn start(world: &World, arguments: &[&str]) -> Child {
    let url = world.server.url("postgres").replace("postgres@", "loader@");
    Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "--quiet", "--to", &url])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs a load into the table. `loader` may not log in any more once the first COPY has begun.
fn load(world: &mut World, arguments: &[&str]) -> (Option<i32>, String) {
    world.sql("SELECT pg_advisory_lock(1)");
    let child = start(world, &[arguments, &["--table", "t"]].concat());
    world.wait_at_gate();
    world.sql("ALTER ROLE loader NOLOGIN");
    // Only now, since the role is altered when that statement is committed.
    world.open_gate();
    let end = ended(child);
    world.sql("ALTER ROLE loader LOGIN");
    end
}

/// Lanes commit, together or one after another, and their indexes are recreated. If a record is
/// bad, nothing is loaded, and the indexes are recreated, too.
#[test]
fn lanes_need_no_new_connection_after_their_rows() {
    let row = |i: usize| format!("{i},{},some words to fill the row with\n", i % 10);
    let rows = (0..ROWS).map(row).collect::<String>();
    let indexes = "SELECT string_agg(indexdef, '; ' ORDER BY indexname) FROM pg_indexes \
        WHERE tablename = 't'";
    for (prepared, together) in [("4", true), ("0", false)] {
        let mut world = world(prepared);
        let good = world.file("good.csv", rows.as_bytes());
        let bad = world.file("bad.csv", format!("{rows}x,1,y\n").as_bytes());
        let before = world.sql(indexes);
        let mut log = 0;
        for (file, code, count) in [(&bad, 4, 0), (&good, 0, ROWS)] {
            world.log(&mut log);
            let all = [&[file.as_str(), "--indexes", "rebuild"], &LANES[..]].concat();
            let (ended, said) = load(&mut world, &all);
            assert_eq!(ended, Some(code), "{prepared}: {said}");
            let seen = world.log(&mut log);
            assert_eq!(seen.matches("statement: CREATE INDEX").count(), 2, "{prepared}: {said}");
            let prepares = seen.contains("statement: PREPARE TRANSACTION");
            assert_eq!(prepares, together && count > 0, "{prepared}: {said}");
            assert_eq!(world.sql(indexes), before, "{prepared}: {said}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), count.to_string(), "{said}");
        }
    }
}

/// A table that lanes have made is dropped if they fail.
#[test]
fn lanes_need_no_new_connection_to_drop_the_table_that_they_have_made() {
    let mut world = world("4");
    let mut child = start(&world, &[&["-", "--table", "made", "--create"], &LANES[..]].concat());
    let mut input = child.stdin.take().unwrap();
    input.write_all(&b"1\n".repeat(1 << 20)).unwrap();
    let copies = "SELECT count(*) > 0 FROM pg_stat_progress_copy";
    wait_until(|| "no row is under way".into(), || world.sql(copies) == "t");
    world.sql("ALTER ROLE loader NOLOGIN");
    // If the load has ended too early, the checks below show it.
    let _ = input.write_all(b"x\n");
    drop(input);
    let (code, said) = ended(child);
    assert!(code == Some(4) && !said.contains("changed:"), "{said}");
    assert_eq!(world.sql("SELECT to_regclass('made')"), "");
}

/// A load that fails at a rebuilt key is run again to find the record. If there is no connection
/// for that, the error is still that of the key.
#[test]
fn a_duplicate_is_reported_if_there_is_no_connection_to_find_its_record() {
    let mut world = world("4");
    world.sql("ALTER TABLE t ADD PRIMARY KEY (id)");
    let file = world.file("twice.csv", b"1,1,x\n1,2,y\n");
    let (code, said) = load(&mut world, &[&file, "--method", "copy-csv", "--indexes", "rebuild"]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("could not create unique index \"t_pkey\""), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}
