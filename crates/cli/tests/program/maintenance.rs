//! Indexes, constraints and triggers that a load takes down, tested through the whole program.
//! Afterwards the catalogs are as before, whatever happened in between.

use crate::common::proxy::{Fate, Proxy};
use crate::common::{each_major, on_each_major, on_first_and_last_major, wait_until, World};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TABLE: &str = "\"Odd Schema\".\"My Table\"";
/// The number of objects that are down. The ledger exists only if something had to be recorded.
const DOWN: &str = "DO $$ BEGIN PERFORM set_config('test.down', '0', false); \
    IF to_regclass('pgsluice_loads.taken_down') IS NOT NULL THEN \
      PERFORM set_config('test.down', count(*)::text, false) \
        FROM pgsluice_loads.taken_down WHERE put_back_at IS NULL; \
    END IF; END $$; SELECT current_setting('test.down')";

fn zoo(world: &mut World) {
    world.sql("DROP SCHEMA IF EXISTS \"Odd Schema\" CASCADE");
    world.sql(include_str!("../../../engine/tests/maintenance/zoo.sql"));
}

fn snapshot(world: &mut World) -> Vec<String> {
    let oid = world.sql(&format!("SELECT '{TABLE}'::regclass::oid"));
    let sql = include_str!("../../../engine/tests/maintenance/snapshot.sql");
    let rows = world.conn.query(sql, &[Some(&oid)]).unwrap();
    rows.into_iter().map(|r| r[0].clone().unwrap()).collect()
}

fn assert_same(before: &[String], after: &[String]) {
    let lost: Vec<_> = before.iter().filter(|l| !after.contains(l)).collect();
    let new: Vec<_> = after.iter().filter(|l| !before.contains(l)).collect();
    assert!(lost.is_empty() && new.is_empty(), "lost: {lost:#?}\nnew: {new:#?}");
}

/// Rows for the zoo's table, from `first` on.
fn rows(first: u32, count: u32) -> Vec<u8> {
    let row = |i: u32| {
        format!(
            "{i},k{},{i},d{},\"[{i},{})\",{{t{}}},2024-01-01 00:00:00+00,{}\n",
            i % 1000,
            i % 7,
            i + 1,
            i % 3,
            i % 1000
        )
    };
    (first..first + count).flat_map(|i| row(i).into_bytes()).collect()
}

/// The number of lines in the log that contain `what`.
fn logged(log: &str, what: &str) -> usize {
    log.lines().filter(|l| l.contains(what)).count()
}

/// If the table is empty, its indexes are rebuilt after the rows. If it has rows, they stay, unless
/// `--indexes rebuild` is given. In each case, the catalogs are the same afterwards.
#[test]
fn an_empty_table_rebuilds_and_one_with_rows_keeps() {
    for installation in each_major() {
        let mut world = World::new(&installation);
        zoo(&mut world);
        let before = snapshot(&mut world);
        let file = world.file("rows", &rows(1, 5000));
        let planned = world.run(&["plan", &file, "--table", TABLE]);
        let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
        assert!(planned.contains("setting   maintenance_work_mem = 96MB\n"), "{planned}");
        let mut log = 0;
        world.log(&mut log);
        let summary = world.load(&[&file, "--table", TABLE]).unwrap();
        assert_eq!(summary["loaded"], 5000);
        assert_eq!(world.sql(&format!("SELECT count(*) FROM {TABLE}")), "5000");
        assert_same(&before, &snapshot(&mut world));
        assert_eq!(world.sql(DOWN), "0");
        let seen = world.log(&mut log);
        assert_eq!(
            logged(&seen, "statement: CREATE UNIQUE INDEX")
                + logged(&seen, "statement: CREATE INDEX"),
            12
        );
        let steps = summary["steps"].to_string();
        assert!(steps.contains("primary key") && steps.contains("recreated in"), "{steps}");
        // The setting is reported, and applies only to the load's transaction.
        assert!(steps.contains("maintenance_work_mem = 96MB"), "{steps}");
        assert_eq!(logged(&seen, "statement: SET LOCAL maintenance_work_mem = '96MB'"), 1);
        assert_eq!(world.sql("SHOW maintenance_work_mem"), "64MB");

        let file = world.file("more", &rows(10_000, 100));
        world.load(&[&file, "--table", TABLE]).unwrap();
        let seen = world.log(&mut log);
        assert_eq!(logged(&seen, "statement: DROP INDEX"), 0);
        assert_eq!(logged(&seen, "statement: ALTER TABLE"), 0);
        assert_same(&before, &snapshot(&mut world));

        // On request, indexes are rebuilt in a table with rows, too, and triggers and foreign keys
        // are taken down.
        let file = world.file("third", &rows(20_000, 100));
        let fired = "SELECT count(*) FROM \"Odd Schema\".fired";
        let fired_before = world.sql(fired);
        let arguments =
            ["--indexes", "rebuild", "--triggers", "off", "--foreign-keys", "revalidate"];
        world.load(&[&[file.as_str(), "--table", TABLE], &arguments[..]].concat()).unwrap();
        let seen = world.log(&mut log);
        assert_eq!(
            logged(&seen, "statement: CREATE UNIQUE INDEX")
                + logged(&seen, "statement: CREATE INDEX"),
            12
        );
        let validated = format!("statement: ALTER TABLE {TABLE} VALIDATE");
        assert_eq!(logged(&seen, &validated), 2);
        assert_eq!(world.sql(fired), fired_before);
        assert_same(&before, &snapshot(&mut world));
    }
}

/// A load that is refused leaves the table and its catalogs unchanged, even if it took everything
/// down. The message gives the line, except for a foreign key.
#[test]
fn a_refused_load_changes_nothing_and_names_the_line() {
    let mut world = World::new(each_major().last().unwrap());
    zoo(&mut world);
    world.sql("ALTER TABLE \"Odd Schema\".\"My Table\" DROP CONSTRAINT fk_not_valid");
    let before = snapshot(&mut world);
    let cases = [
        (
            "1,k1,1,,,,,1\n2,k2,2,,,,,2\n1,k3,3,,,,,3\n",
            "duplicate key value violates unique",
            ", line 3,",
        ),
        ("1,k1,1,,,,,1\n2,k2,x,,,,,2\n", "invalid input syntax for type integer", ", line 2,"),
        ("1,k1,1,,,,,123456\n", "violates foreign key constraint", ""),
    ];
    for (bytes, message, line) in cases {
        let file = world.file("bad", bytes.as_bytes());
        let all = ["--indexes", "rebuild", "--triggers", "off", "--foreign-keys", "revalidate"];
        for arguments in [&[][..], &all[..]] {
            let said = world.load(&[&[file.as_str(), "--table", TABLE], arguments].concat());
            let said = said.unwrap_err();
            assert!(said.contains(message) && said.contains(line), "{said}");
            assert_same(&before, &snapshot(&mut world));
            assert_eq!(world.sql(&format!("SELECT count(*) FROM {TABLE}")), "0");
        }
    }
    assert_eq!(world.sql(DOWN), "0");
}

/// The loader turns off the role's timeouts for statements and transactions while it loads rows and
/// builds indexes, in its transaction and after lanes.
#[test]
fn timeouts_of_the_role_are_put_aside() {
    let newest = each_major().into_iter().max_by_key(|i| i.version.major);
    let mut world = World::new(&newest.unwrap());
    world.sql("CREATE TABLE t (a int, b int); CREATE INDEX t_b ON t (b)");
    let file = world.file("rows", b"1,2\n3,4\n");
    // Creates the ledger, which has an index, too.
    world.load(&[&file, "--table", "t", "--method", "lanes", "--lanes", "2"]).unwrap();
    world.sql(
        "CREATE FUNCTION calm() RETURNS void LANGUAGE plpgsql AS $$ DECLARE n text; BEGIN
           FOR n IN SELECT name FROM pg_settings WHERE setting <> '0' AND name IN
             ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')
           LOOP RAISE '% is on', n; END LOOP; END $$;
         CREATE FUNCTION at_row() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM calm(); RETURN NEW; END $$;
         CREATE TRIGGER at_row BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION at_row();
         CREATE FUNCTION at_build() RETURNS event_trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM calm(); END $$;
         CREATE EVENT TRIGGER at_build ON ddl_command_start WHEN TAG IN ('CREATE INDEX')
           EXECUTE FUNCTION at_build();
         ALTER ROLE postgres SET statement_timeout = '1h';
         ALTER ROLE postgres SET idle_in_transaction_session_timeout = '1h'",
    );
    if world.major() >= 17 {
        world.sql("ALTER ROLE postgres SET transaction_timeout = '1h'");
    }
    for method in ["copy-csv", "lanes", "staged", "insert-batch"] {
        world.sql("TRUNCATE t");
        let arguments = [&file, "--table", "t", "--method", method, "--lanes", "2"];
        let summary = world.load(&arguments).unwrap();
        assert!(summary["steps"].to_string().contains("t_b recreated"), "{method}: {summary}");
    }
    // A lock_timeout of the role is off, too, while indexes are built after lanes.
    world.sql(
        "ALTER ROLE postgres SET lock_timeout = '1h'; TRUNCATE t;
         CREATE OR REPLACE FUNCTION at_build() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
           IF current_setting('lock_timeout') <> '0' THEN RAISE 'lock_timeout is on'; END IF;
           END $$",
    );
    let arguments = [&file, "--table", "t", "--method", "lanes", "--lanes", "2"];
    let summary = world.load(&arguments).unwrap();
    assert!(summary["steps"].to_string().contains("t_b recreated"), "{summary}");
}

/// Index definitions are recreated exactly, whatever settings the database has for numbers, dates,
/// time zones and intervals. Such settings could drop digits or write an ambiguous zone.
#[test]
fn definitions_are_exact() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "SET TimeZone = 'UTC'; SET extra_float_digits = 1; SET DateStyle = 'ISO';
             CREATE TABLE t (a int, f float8, at timestamptz, d interval, EXCLUDE USING hash (a WITH =)
               WHERE (f < '0.30000000000000004'::float8));
             CREATE INDEX ON t (a) WHERE at > '2020-01-02 03:04:05+00'::timestamptz;
             CREATE UNIQUE INDEX ON t (a) WHERE d < '-1 days +02:03:04'::interval",
        );
        let definitions = "SELECT string_agg(pg_get_indexdef(indexrelid), '; ') || \
            (SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'x') \
            FROM pg_index WHERE indrelid = 't'::regclass";
        let before = world.sql(definitions);
        for (name, value) in [
            ("extra_float_digits", "0"),
            ("DateStyle", "'SQL, DMY'"),
            ("TimeZone", "'Asia/Kolkata'"),
            ("IntervalStyle", "sql_standard"),
        ] {
            world.sql(&format!("ALTER DATABASE postgres SET {name} = {value}"));
        }
        let file = world.file("rows", b"1,2,2020-01-01 00:00:00+00,1\n");
        let summary = world.load(&[&file, "--table", "t"]).unwrap();
        assert_eq!(summary["steps"].to_string().matches("recreated in").count(), 3, "{summary}");
        assert_eq!(world.sql(definitions), before);
    });
}

/// If transactions of the role are read-only by default, indexes are still recreated and sequences
/// moved, and `repair` builds what a crash left down.
#[test]
fn a_role_that_only_reads_by_default() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE t (a serial, b int); CREATE INDEX t_b ON t (b)");
        world.sql("ALTER ROLE postgres SET default_transaction_read_only = on");
        let file = world.file("rows", b"7000,2\n9000,4\n");
        let arguments = [&file, "--table", "t", "--method", "lanes", "--lanes", "2"];
        let summary = world.load(&arguments).unwrap();
        let steps = summary["steps"].to_string();
        assert!(steps.contains("t_b recreated") && steps.contains("t_a_seq moved"), "{steps}");
        assert_eq!(world.sql(DOWN), "0");

        let url = world.server.url("postgres");
        let load = ["load", "-", "--table", "t", "--to", &url, "--method", "lanes", "--lanes", "2"];
        world.sql("TRUNCATE t");
        let mut child = program(&load).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(&b"1,2\n".repeat(1 << 20)).unwrap();
        let index = "SELECT to_regclass('t_b') IS NULL";
        wait_until(|| "nothing is taken down".into(), || world.sql(index) == "t");
        kill(&mut world, child, false);
        assert!(world.repair().contains("recreated"));
        assert_eq!((world.sql(index), world.sql(DOWN)), ("f".into(), "0".into()));
    });
}

/// Before lanes load rows, they commit that an index is down. If the load fails in between, the
/// index comes back.
#[test]
fn lanes_that_never_get_to_their_rows_put_everything_back() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b int); CREATE INDEX t_b ON t (b)");
    let file = world.file("rows", b"1,2\n3,4\n");
    let load = ["load", &file, "--table", "t", "--method", "lanes", "--lanes", "2", "--to"];
    let index = "SELECT to_regclass('t_b') IS NULL";
    for (statement, pass, fate, rows) in [
        ("LOCK TABLE ONLY", 1, Fate::CutBefore, 0),
        ("COMMIT", 0, Fate::CutBefore, 0),
        // This COMMIT has succeeded, so the load goes on.
        ("COMMIT", 0, Fate::CutAfter, 2),
    ] {
        // Creates the ledger.
        world.load(&load[1..8]).unwrap();
        world.sql("TRUNCATE t");
        let proxy = Proxy::start(&world, statement, pass, fate, false);
        let target = proxy.target();
        let output = program(&[&load[..], &[&target]].concat()).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(proxy.sprung() && output.status.success() == (rows > 0), "{said}");
        assert!(said.contains("connection lost") == (rows == 0), "{said}");
        assert!(!said.contains("changed:"), "{said}");
        assert_eq!((world.sql(index), world.sql(DOWN)), ("f".into(), "0".into()), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), rows.to_string());
    }
}

/// If the file supplies keys, sequences are moved past them, for serial and for identity columns.
/// The table is analyzed.
#[test]
fn sequences_are_moved_and_statistics_made() {
    let mut world = World::new(each_major().first().unwrap());
    world.sql("CREATE TABLE t (id serial PRIMARY KEY, i bigint GENERATED BY DEFAULT AS IDENTITY)");
    let file = world.file("keys", b"7,5000000\n3,2\n");
    world.load(&[&file, "--table", "t"]).unwrap();
    assert_eq!(world.sql("INSERT INTO t DEFAULT VALUES RETURNING id || ' ' || i"), "8 5000001");
    assert_eq!(world.sql("SELECT reltuples FROM pg_class WHERE relname = 't'"), "2");
}

/// With rejects, an index that may refuse a value stays in place, so that the bad record is
/// found. Other indexes are rebuilt, and so is any index on request.
#[test]
fn what_an_index_refuses_is_rejected() {
    let mut world = World::new(each_major().last().unwrap());
    let long = world.sql("SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i");
    let file = world.file("keys.csv", format!("1,x\n2,{long}\n0,y\n").as_bytes());
    let rejects = world.path("keys.rejects");
    let table = "DROP TABLE IF EXISTS k; CREATE TABLE k (a int, b text); CREATE INDEX ON k (a); \
        CREATE INDEX ON k (b); CREATE INDEX ON k ((10 / a)); CREATE INDEX ON k (a) WHERE 1 / a < 2";
    let load = ["--table", "k", "--on-error", "reject", "--reject-file", &rejects];
    for method in ["auto", "copy-fresh", "staged", "lanes"] {
        world.sql(table);
        let summary = world.load(&[&[&file, "--method", method], &load[..]].concat()).unwrap();
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&1.into(), &2.into()), "{method}");
        let steps = summary["steps"].to_string();
        assert!(steps.contains("index public.k_a_idx recreated"), "{method}: {steps}");
        let side = std::fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
        assert!(side.contains("54000") && side.contains("22012"), "{method}: {side}");
        std::fs::remove_file(&rejects).unwrap();
        std::fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    }
    world.sql(table);
    let said = world.load(&[&[&file, "--indexes", "rebuild"], &load[..]].concat()).unwrap_err();
    assert!(said.contains("was recreated; --indexes keep leaves it in place"), "{said}");
}

/// The loader or the server is killed at some moment. The table has all rows or none, and after
/// `repair` the catalogs are as before.
#[test]
fn killed_at_any_moment() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        zoo(&mut world);
        world.sql("CREATE ROLE dummy");
        let before = snapshot(&mut world);
        let count = 20_000;
        let file = world.file("rows", &rows(1, count));
        let url = world.server.url("postgres");
        let mut outcomes = [0, 0];
        // If all kills come too late, more follow at the load's very beginning.
        for round in 0..60_u64 {
            if round >= 10 && outcomes[0] > 0 {
                break;
            }
            world.sql(&format!("TRUNCATE {TABLE}"));
            let how = ["--indexes", "rebuild", "--triggers", "off", "--foreign-keys", "revalidate"];
            let load =
                [&["load", &file, "--table", TABLE, "--to", &url, "--quiet"], &how[..]].concat();
            let after = if round < 10 { 15 + 90 * round } else { 0 };
            kill_during(&mut world, &load, Duration::from_millis(after), round % 2 == 1);
            let output = world.run(&["repair"]);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            // This waits for a backend that has not noticed yet that its client is gone.
            let rows: u32 = world.sql(&format!("SELECT count(*) FROM {TABLE}")).parse().unwrap();
            assert!(rows == 0 || rows == count, "{rows} rows");
            outcomes[usize::from(rows > 0)] += 1;
            assert_same(&before, &snapshot(&mut world));
        }
        assert!(outcomes[0] > 0, "no kill came in time: {outcomes:?}");
    });
}

/// What lanes take down is down for all sessions until the lanes have ended. So of the indexes,
/// they take down only those that cannot refuse a row, and recreate them even if the load fails.
#[test]
fn lanes_rebuild_what_cannot_refuse_a_row() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE TABLE l (id int PRIMARY KEY, a int, b text, c timestamptz); \
             CREATE INDEX l_a ON l (a); CREATE INDEX l_c ON l (c DESC) WITH (fillfactor = 50); \
             CREATE INDEX l_b ON l (b); COMMENT ON INDEX l_a IS 'of a'",
        );
        let defs =
            "SELECT string_agg(indexdef || coalesce(obj_description(indexname::regclass), ''), \
            '; ' ORDER BY indexname) FROM pg_indexes WHERE tablename = 'l'";
        let before = world.sql(defs);
        let row = |i: u32| format!("{i},{},text {i},2024-01-01 00:00:00+00\n", i % 100);
        let good: String = (1..200_000).map(row).collect();
        let mut log = 0;
        world.log(&mut log);
        let file = world.file("good", good.as_bytes());
        let arguments = ["--table", "l", "--method", "lanes", "--lanes", "2"];
        let summary = world.load(&[&[file.as_str()], &arguments[..]].concat()).unwrap();
        assert_eq!(summary["loaded"], 199_999);
        let seen = world.log(&mut log);
        assert_eq!(logged(&seen, "statement: CREATE INDEX"), 2);
        assert_eq!(logged(&seen, "statement: CREATE UNIQUE INDEX"), 0);
        assert_eq!(world.sql(defs), before);
        assert_eq!(world.sql(DOWN), "0");

        world.sql("TRUNCATE l");
        let file = world.file("bad", format!("{good}1,x,bad,2024-01-01 00:00:00+00\n").as_bytes());
        let said = world.load(&[&[file.as_str()], &arguments[..]].concat()).unwrap_err();
        assert!(said.contains("invalid input syntax"), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM l"), "0");
        assert_eq!(world.sql(defs), before);
        assert_eq!(world.sql(DOWN), "0");
    });
}

/// The loader or the server is killed during a load by lanes, which commit that something is down
/// before they load rows. The table has all rows or none, and after `repair` everything is back.
#[test]
fn lanes_killed_at_any_moment() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(
        "CREATE TABLE l (id int PRIMARY KEY, a int, c timestamptz); \
         CREATE INDEX l_a ON l (a); CREATE INDEX l_c ON l (c); \
         CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
         CREATE TRIGGER fires AFTER INSERT ON l FOR EACH ROW EXECUTE FUNCTION fire(); \
         ALTER TABLE l ENABLE ALWAYS TRIGGER fires",
    );
    let facts = "SELECT (SELECT string_agg(indexdef, '; ' ORDER BY indexname) FROM pg_indexes \
        WHERE tablename = 'l') || (SELECT string_agg(tgenabled::text, '') FROM pg_trigger \
        WHERE tgrelid = 'l'::regclass)";
    let before = world.sql(facts);
    let row = |i: u32| format!("{i},{},2024-01-01 00:00:00+00\n", i % 100);
    let rows = (0..300_000).map(row).collect::<String>();
    let file = world.file("rows", rows.as_bytes());
    let url = world.server.url("postgres");
    for round in 0..10_u64 {
        world.sql("TRUNCATE l");
        let how = ["--method", "lanes", "--lanes", "2", "--triggers", "off"];
        // While standard input stays open, there is time to see that something is down.
        let sure = round < 2;
        let input = if sure { "-" } else { &file };
        let load = [&["load", input, "--table", "l", "--to", &url, "--quiet"], &how[..]].concat();
        if sure {
            let mut child = program(&load).stdin(Stdio::piped()).spawn().unwrap();
            child.stdin.as_mut().unwrap().write_all(rows.as_bytes()).unwrap();
            wait_until(|| "nothing is taken down".into(), || world.sql(facts) != before);
            kill(&mut world, child, round == 1);
        } else {
            kill_during(&mut world, &load, Duration::from_millis(80 * round), round % 2 == 1);
        }
        let said = world.repair();
        assert!(said.contains("recreated") || !sure, "{said}");
        assert_eq!(world.sql(facts), before);
        let rows = world.sql("SELECT count(*) FROM l");
        assert!(rows == "0" || rows == "300000", "{rows} rows");
        assert_eq!(world.sql("SELECT count(*) FROM pg_prepared_xacts"), "0");
    }
}

/// When the program ends, nothing of the load runs in the server, and the summary has a separate
/// time for ANALYZE. With `--no-analyze`, there is none.
#[test]
fn analyze_is_done_when_the_program_ends() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE many (a int, b text)");
    let bytes: Vec<u8> = (0..150_000).flat_map(|i| format!("{i},x\n").into_bytes()).collect();
    let file = world.file("many.csv", &bytes);
    let summary = world.load(&[&file, "--table", "many"]).unwrap();
    let known = "SELECT reltuples FROM pg_class WHERE relname = 'many'";
    assert_eq!(world.sql(known), "150000");
    let running =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%ANALYZE%' AND state <> 'idle' AND pid <> pg_backend_pid()";
    assert_eq!(world.sql(running), "0");
    let seconds = |phase: &str| summary["seconds"][phase].as_f64().unwrap();
    let phases = ["open", "inspect", "load", "finish", "analyze"];
    let sum: f64 = phases.into_iter().map(seconds).sum();
    assert!(seconds("analyze") > 0.0 && sum <= seconds("total") + 1e-6, "{summary}");
    assert!(summary["steps"].to_string().contains("ANALYZE"), "{summary}");

    world.sql("CREATE TABLE left_alone (a int, b text)");
    let summary = world.load(&[&file, "--table", "left_alone", "--no-analyze"]).unwrap();
    assert!(!summary["steps"].to_string().contains("ANALYZE"), "{summary}");
}

/// Starts the program. After some time, kills it, or kills and restarts its server.
fn kill_during(world: &mut World, arguments: &[&str], after: Duration, the_server: bool) {
    let child = program(arguments).spawn().unwrap();
    std::thread::sleep(after);
    kill(world, child, the_server);
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    command.args(arguments).stderr(Stdio::null());
    command
}

/// Kills the program, or kills and restarts its server; waits until the program has ended.
fn kill(world: &mut World, mut child: Child, the_server: bool) {
    if the_server {
        world.server.kill9().unwrap();
        world.server.restart().unwrap();
        let url = world.server.url("postgres");
        world.conn = pgsluice_engine::internals::Conn::open(&url).unwrap();
    } else {
        child.kill().unwrap();
    }
    child.wait().unwrap();
}
