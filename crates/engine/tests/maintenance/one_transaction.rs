//! Objects are taken down and recreated in the load's own transaction.

use crate::cluster::*;
use pgsluice_engine::internals::ledger;
use pgsluice_engine::internals::maintenance::decide;
use pgsluice_engine::internals::maintenance::Request;
use pgsluice_engine::internals::maintenance::{put_back, take_down};
use pgsluice_engine::internals::Conn;
use pgsluice_engine::options::{ForeignKeys, Indexes, Triggers};

const ROWS: &str = "INSERT INTO \"Odd Schema\".\"My Table\" \
    SELECT i, 'k' || i, i, 'd' || i % 7, int4range(i, i + 1), ARRAY['t' || i % 3], \
    timestamptz '2024-01-01 00:00Z' + i * interval '1 min', i \
    FROM generate_series(1, 900) AS i";

/// Indexes, foreign keys and triggers are taken down and put back in one transaction, and the
/// catalogs are as before. A foreign key that is NOT VALID stays.
#[test]
fn everything_comes_back_as_it_was() {
    for server in servers().iter() {
        let (_, mut conn) = zoo(server);
        let oid = oid(&mut conn, TABLE);
        let before = snapshot(&mut conn, oid);
        let ledger = ledger::ensure(&mut conn).unwrap();
        assert_eq!(ledger, ledger::State::Ready);
        conn.exec("BEGIN").unwrap();
        let taken = take_down(&mut conn, oid, &everything(), &ledger).unwrap();
        let left = "SELECT (SELECT count(*) FROM pg_index WHERE indrelid = $1::oid) || ' ' \
            || (SELECT string_agg(conname, ' ') FROM pg_constraint \
                WHERE conrelid = $1::oid AND contype = 'f')";
        let rows = conn.query(left, &[Some(&oid.to_string())]).unwrap();
        // A foreign key that is NOT VALID stays: put back, it would not check the new rows.
        assert_eq!(rows[0][0].as_deref(), Some("0 fk_not_valid"));
        assert_eq!(taken.entry.choices.len(), 13 + 2 + 3, "indexes, foreign keys, triggers");
        conn.exec(ROWS).unwrap();
        let restored = put_back(&mut conn, &taken).unwrap();
        assert_eq!(restored.restored.len(), taken.entry.choices.len());
        conn.exec("COMMIT").unwrap();
        assert_same(&before, &snapshot(&mut conn, oid));
        assert_eq!(still_down(&mut conn), 0);
        assert_eq!(one(&mut conn, "SELECT count(*) FROM pgsluice_loads.taken_down"), "18");
        assert_eq!(one(&mut conn, "SELECT count(*) FROM \"Odd Schema\".fired"), "0");
        assert_eq!(one(&mut conn, &format!("SELECT count(*) FROM {TABLE}")), "900");
    }
}

/// If the transaction is rolled back, the catalogs are as before, and the ledger has no entry.
#[test]
fn a_rollback_leaves_everything_as_it_was() {
    for server in servers().iter() {
        let (_, mut conn) = zoo(server);
        let oid = oid(&mut conn, TABLE);
        let before = snapshot(&mut conn, oid);
        let ledger = ledger::ensure(&mut conn).unwrap();
        conn.exec("BEGIN").unwrap();
        take_down(&mut conn, oid, &everything(), &ledger).unwrap();
        conn.exec("ROLLBACK").unwrap();
        assert_same(&before, &snapshot(&mut conn, oid));
        assert_eq!(one(&mut conn, "SELECT count(*) FROM pgsluice_loads.taken_down"), "0");
    }
}

/// Rows that violate a constraint are found when it is put back, and after the rollback nothing has
/// changed.
#[test]
fn violations_are_found_when_constraints_come_back() {
    let bad = [
        ("23505", "INSERT INTO \"Odd Schema\".\"My Table\" (\"Id\", c) VALUES (1, 2), (1, 3)"),
        (
            "23P01",
            "INSERT INTO \"Odd Schema\".\"My Table\" (\"Id\", c, r) \
            VALUES (1, 2, '[1,5)'), (2, 3, '[2,3)')",
        ),
        ("23503", "INSERT INTO \"Odd Schema\".\"My Table\" (\"Id\", p) VALUES (1, 123456)"),
    ];
    let servers = servers();
    let server = servers.last().unwrap();
    for (sqlstate, sql) in bad {
        let (_, mut conn) = zoo(server);
        let oid = oid(&mut conn, TABLE);
        // With it, the foreign key's own check of each row would fail first.
        conn.exec(&format!("ALTER TABLE {TABLE} DROP CONSTRAINT fk_not_valid")).unwrap();
        let before = snapshot(&mut conn, oid);
        let ledger = ledger::ensure(&mut conn).unwrap();
        conn.exec("BEGIN").unwrap();
        let taken = take_down(&mut conn, oid, &everything(), &ledger).unwrap();
        conn.exec(sql).unwrap();
        let error = put_back(&mut conn, &taken).unwrap_err();
        assert_eq!(error.sqlstate(), sqlstate, "{error}");
        assert!(error.hint().is_some(), "{error}");
        conn.exec("ROLLBACK").unwrap();
        assert_same(&before, &snapshot(&mut conn, oid));
    }
}

/// If an index cannot be built, the server's hint is kept. Only if its function lacks something,
/// the hint names the index instead.
#[test]
fn hints_of_the_server_are_kept_unless_they_mislead() {
    let servers = servers();
    let mut conn = Conn::open(&database(servers.last().unwrap())).unwrap();
    conn.exec(
        "CREATE FUNCTION half(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 / 2'; \
         CREATE FUNCTION calls(int) RETURNS int IMMUTABLE LANGUAGE plpgsql \
           AS 'BEGIN RETURN public.half($1); END'; \
         CREATE TABLE wide (a text); ALTER TABLE wide ALTER a SET STORAGE EXTERNAL; \
         CREATE INDEX wide_a ON wide (a); \
         CREATE TABLE called (a int); CREATE INDEX called_a ON called (calls(a))",
    )
    .unwrap();
    let ledger = ledger::ensure(&mut conn).unwrap();
    let long = "INSERT INTO wide SELECT string_agg(md5(i::text), '') \
        FROM generate_series(1, 150) AS i";
    let lacking = "INSERT INTO called VALUES (1); DROP FUNCTION half";
    for (table, sql, sqlstate, hint) in [
        ("wide", long, "54000", "Values larger than 1/3 of a buffer page"),
        ("called", lacking, "42883", "while index public.called_a was recreated; indexes keep"),
    ] {
        let oid = oid(&mut conn, table);
        conn.exec("BEGIN").unwrap();
        let taken = take_down(&mut conn, oid, &everything(), &ledger).unwrap();
        conn.exec(sql).unwrap();
        let error = put_back(&mut conn, &taken).unwrap_err();
        assert_eq!(error.sqlstate(), sqlstate, "{error}");
        assert!(error.hint().is_some_and(|h| h.starts_with(hint)), "{:?}", error.hint());
        conn.exec("ROLLBACK").unwrap();
    }
}

/// Pending deferred checks of constraints that stayed do not prevent putting back indexes.
#[test]
fn pending_trigger_events_are_no_obstacle() {
    for server in servers().iter() {
        let (_, mut conn) = zoo(server);
        let oid = oid(&mut conn, TABLE);
        let before = snapshot(&mut conn, oid);
        let ledger = ledger::ensure(&mut conn).unwrap();
        let request =
            Request { triggers: Triggers::Keep, foreign_keys: ForeignKeys::Keep, ..everything() };
        conn.exec("BEGIN").unwrap();
        let taken = take_down(&mut conn, oid, &request, &ledger).unwrap();
        assert_eq!(taken.entry.choices.len(), 13, "indexes alone");
        conn.exec(ROWS).unwrap();
        put_back(&mut conn, &taken).unwrap();
        conn.exec("COMMIT").unwrap();
        assert_same(&before, &snapshot(&mut conn, oid));
        assert_eq!(one(&mut conn, "SELECT count(*) FROM \"Odd Schema\".fired"), "1800");
    }
}

/// By default, a table with rows keeps its indexes, since others may be using it. Those of an empty
/// table are rebuilt, unless other sessions use it or no session may be locked out.
#[test]
fn the_rule_looks_at_rows_and_at_other_sessions() {
    let servers = servers();
    let server = servers.last().unwrap();
    let (url, mut conn) = zoo(server);
    let oid = oid(&mut conn, TABLE);
    let auto = Request {
        indexes: Indexes::Auto,
        triggers: Triggers::Keep,
        foreign_keys: ForeignKeys::Keep,
        ..everything()
    };
    let down = |conn: &mut Conn, new_rows| {
        let around = read(conn, oid);
        decide(&around, &Request { new_rows, ..auto }).down().count()
    };
    assert_eq!(down(&mut conn, None), 13, "empty");
    conn.exec(ROWS).unwrap();
    assert_eq!(down(&mut conn, Some(1e9)), 0, "never analyzed");
    conn.exec(&format!("ANALYZE {TABLE}")).unwrap();
    assert_eq!(down(&mut conn, None), 0, "nobody knows how many rows come");
    assert_eq!(down(&mut conn, Some(100.0)), 0);
    assert_eq!(down(&mut conn, Some(1000.0)), 0, "a rebuild would lock others out");
    conn.exec(&format!("DELETE FROM {TABLE}")).unwrap();
    assert_eq!(down(&mut conn, Some(1.0)), 13, "empty again");
    let around = read(&mut conn, oid);
    assert!(!decide(&around, &Request { no_lock_out: true, ..auto }).any_down());

    let mut other = Conn::open(&url).unwrap();
    other.exec(&format!("BEGIN; SELECT FROM {TABLE}")).unwrap();
    let ledger = ledger::ensure(&mut conn).unwrap();
    conn.exec("BEGIN").unwrap();
    let taken = take_down(&mut conn, oid, &auto, &ledger).unwrap();
    assert!(taken.entry.choices.is_empty());
    let lines = taken.decision.lines();
    assert!(lines.iter().all(|l| l.ends_with("other sessions are using the table")), "{lines:?}");
    conn.exec("COMMIT").unwrap();
    conn.exec("SET lock_timeout = '50ms'; BEGIN").unwrap();
    let asked = Request { indexes: Indexes::Rebuild, ..auto };
    let error = take_down(&mut conn, oid, &asked, &ledger).unwrap_err();
    assert_eq!(error.sqlstate(), "55P03", "asked for by name, it waits and then fails");
}

/// If the server refuses to drop indexes, which were to be rebuilt by default, they stay.
#[test]
fn an_event_trigger_that_forbids_it_keeps_the_indexes() {
    let servers = servers();
    let server = servers.last().unwrap();
    let (_, mut conn) = zoo(server);
    let oid = oid(&mut conn, TABLE);
    let ledger = ledger::ensure(&mut conn).unwrap();
    conn.exec(
        "CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS \
         $$BEGIN RAISE EXCEPTION 'not here'; END$$; \
         CREATE EVENT TRIGGER forbid ON sql_drop EXECUTE FUNCTION forbid()",
    )
    .unwrap();
    let auto = Request {
        indexes: Indexes::Auto,
        triggers: Triggers::Keep,
        foreign_keys: ForeignKeys::Keep,
        ..everything()
    };
    conn.exec("BEGIN").unwrap();
    let taken = take_down(&mut conn, oid, &auto, &ledger).unwrap();
    conn.exec("COMMIT").unwrap();
    assert!(taken.entry.choices.is_empty());
    assert!(taken.decision.lines()[0].ends_with("not here"), "{:?}", taken.decision.lines());
    assert_eq!(one(&mut conn, "SELECT count(*) FROM pgsluice_loads.taken_down"), "0");
}
