//! Sequences and statistics, after the rows are loaded.

use crate::cluster::*;
use pgsluice_engine::internals::maintenance::{finish, finish_within, sequences};
use pgsluice_engine::internals::Conn;

/// Moves the sequences of a column past its keys; returns the next number of `draw`.
fn next_after(conn: &mut Conn, table: &str, column: &str, draw: &str) -> String {
    let oid = oid(conn, table);
    conn.exec("BEGIN").unwrap();
    sequences(conn, oid, table, &[column.to_string()]).unwrap();
    conn.exec("COMMIT").unwrap();
    one(conn, &format!("SELECT nextval('{draw}')"))
}

/// Sequences are moved past the greatest key, in their direction and by their increment, and never
/// back. If a sequence ends before the key, it is left, and the reason is reported.
#[test]
fn sequences_pass_the_keys_and_never_go_back() {
    for server in servers().iter() {
        let mut conn = Conn::open(&database(server)).unwrap();
        conn.exec(
            "CREATE TABLE s (id serial, other int, small smallserial); \
             CREATE TABLE i (id bigint GENERATED ALWAYS AS IDENTITY); \
             CREATE SEQUENCE tens START 7 INCREMENT 10; \
             CREATE TABLE t (id int DEFAULT nextval('tens')); \
             CREATE SEQUENCE down INCREMENT -1; \
             CREATE TABLE d (id int DEFAULT nextval('down')); \
             CREATE TABLE \"Big Table\" (\"Id\" bigserial)",
        )
        .unwrap();
        let next = |conn: &mut Conn, sql: &str, table, column, draw| {
            conn.exec(sql).unwrap();
            next_after(conn, table, column, draw)
        };
        let c = &mut conn;
        assert_eq!(next(c, "SELECT 1", "s", "id", "s_id_seq"), "1", "an empty table moves nothing");
        assert_eq!(next(c, "INSERT INTO s (id) VALUES (5)", "s", "id", "s_id_seq"), "6");
        assert_eq!(
            next(c, "INSERT INTO s (id) VALUES (3)", "s", "id", "s_id_seq"),
            "7",
            "not back"
        );
        assert_eq!(next(c, "INSERT INTO s (id) VALUES (99999)", "s", "id", "s_id_seq"), "100000");
        assert_eq!(next(c, "SELECT 1", "s", "other", "s_id_seq"), "100001", "no key was supplied");
        let key = "INSERT INTO i OVERRIDING SYSTEM VALUE VALUES (1)";
        assert_eq!(next(c, key, "i", "id", "i_id_seq"), "2");
        assert_eq!(next(c, "INSERT INTO t VALUES (7)", "t", "id", "tens"), "17");
        assert_eq!(next(c, "INSERT INTO t VALUES (123456)", "t", "id", "tens"), "123467");
        assert_eq!(next(c, "INSERT INTO d VALUES (-500)", "d", "id", "down"), "-501");
        let key = "INSERT INTO \"Big Table\" VALUES (41)";
        assert_eq!(next(c, key, "\"Big Table\"", "Id", "\"Big Table_Id_seq\""), "42");

        c.exec("ALTER TABLE s ALTER small TYPE int; INSERT INTO s (small) VALUES (40000)").unwrap();
        let table = oid(c, "s");
        let moved = sequences(c, table, "s", &["small".into()]).unwrap();
        assert_eq!(moved[0].left.as_deref(), Some("it ends before that key"));
    }
}

/// After the commit, ANALYZE runs. If autovacuum is off for a table with an index and its rows are
/// not frozen, VACUUM (ANALYZE) runs instead.
#[test]
fn statistics_are_there_and_vacuum_runs_where_nothing_else_would() {
    for server in servers().iter() {
        let mut conn = Conn::open(&database(server)).unwrap();
        conn.exec(
            "CREATE TABLE a (id int PRIMARY KEY); \
             CREATE TABLE b (id int PRIMARY KEY) WITH (autovacuum_enabled = off); \
             INSERT INTO a SELECT generate_series(1, 1000); \
             INSERT INTO b SELECT generate_series(1, 1000)",
        )
        .unwrap();
        let (a, b) = (oid(&mut conn, "a"), oid(&mut conn, "b"));
        let said = |f: pgsluice_engine::internals::maintenance::Finished| f.statement.unwrap();
        assert_eq!(said(finish(&mut conn, a, "a", false, &|| false).unwrap()), "ANALYZE a");
        assert_eq!(said(finish(&mut conn, b, "b", true, &|| false).unwrap()), "ANALYZE b");
        assert_eq!(
            said(finish(&mut conn, b, "b", false, &|| false).unwrap()),
            "VACUUM (ANALYZE) b"
        );
        let facts =
            "SELECT string_agg(reltuples || ' ' || (relallvisible > 0), ', ' ORDER BY relname) \
            FROM pg_class WHERE relname IN ('a', 'b')";
        assert_eq!(one(&mut conn, facts), "1000 false, 1000 true");
    }
}

/// ANALYZE runs in the transaction, before the commit. If another session has the lock that it
/// needs, it does not wait, and the transaction goes on.
#[test]
fn statistics_are_made_before_the_commit() {
    for server in servers().iter() {
        let url = database(server);
        let (mut conn, mut other) = (Conn::open(&url).unwrap(), Conn::open(&url).unwrap());
        conn.exec(
            "CREATE TABLE a (id int PRIMARY KEY); \
             CREATE TABLE b (id int PRIMARY KEY) WITH (autovacuum_enabled = off); \
             CREATE TABLE c (id int) PARTITION BY LIST (id)",
        )
        .unwrap();
        let within = |conn: &mut Conn, table| {
            let oid = oid(conn, table);
            finish_within(conn, oid, table, false).unwrap()
        };
        conn.exec("BEGIN; INSERT INTO a SELECT generate_series(1, 1000)").unwrap();
        assert_eq!(within(&mut conn, "a").as_deref(), Some("ANALYZE a"));
        assert_eq!((within(&mut conn, "b"), within(&mut conn, "c")), (None, None));
        conn.exec("COMMIT").unwrap();
        let known = "SELECT reltuples || ' ' || (SELECT count(*) FROM pg_stats \
            WHERE tablename = 'a') FROM pg_class WHERE relname = 'a'";
        assert_eq!(one(&mut conn, known), "1000 1");

        other.exec("BEGIN; LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE").unwrap();
        conn.exec("BEGIN; INSERT INTO a SELECT generate_series(1001, 2000)").unwrap();
        assert_eq!(within(&mut conn, "a"), None);
        conn.exec("COMMIT").unwrap();
        assert_eq!(one(&mut conn, "SELECT count(*) FROM a"), "2000");
    }
}
