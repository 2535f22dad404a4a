//! One server for each major version, shared by the tests of this program.

pub use crate::support::each_major;
use pgsluice_engine::internals::facts::TableObjects;
use pgsluice_engine::internals::ledger;
use pgsluice_engine::internals::maintenance::{Course, Request};
use pgsluice_engine::internals::Conn;
use pgsluice_engine::options::{ForeignKeys, Indexes, Triggers};
use pgsluice_pgserver::{Installation, Server, ServerOptions};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The table of `zoo.sql`.
pub const TABLE: &str = "\"Odd Schema\".\"My Table\"";

/// Starts a separate server, which is removed when it is dropped.
pub fn start(installation: &Installation, settings: &[(&str, &str)]) -> Server {
    // On a slow machine, autovacuum would run in the middle of a test.
    let usual = [("wal_level", "logical"), ("autovacuum_naptime", "1d")];
    let all = usual.iter().chain(settings).map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let options = ServerOptions {
        pg_bin: Some(installation.bin.clone()),
        settings: all,
        ..ServerOptions::default()
    };
    Server::start(options).unwrap()
}

/// The shared servers, one for each major version. They run while a test holds them; none is left
/// when the last test has ended.
pub fn servers() -> Arc<Vec<Server>> {
    static SHARED: Mutex<Weak<Vec<Server>>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
    shared.upgrade().unwrap_or_else(|| {
        let all = each_major();
        let started = Arc::new(all.iter().map(|i| start(i, &[("fsync", "off")])).collect());
        *shared = Arc::downgrade(&started);
        started
    })
}

/// Creates a database in a server; returns its URL.
pub fn database(server: &Server) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("around_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Conn::open(&server.url("postgres")).unwrap().exec(&format!("CREATE DATABASE {name}")).unwrap();
    server.url(&name)
}

/// A database with the zoo in it.
pub fn zoo(server: &Server) -> (String, Conn) {
    let url = database(server);
    let mut conn = Conn::open(&url).unwrap();
    conn.exec(include_str!("zoo.sql")).unwrap();
    (url, conn)
}

pub fn oid(conn: &mut Conn, table: &str) -> u32 {
    let rows = conn.query("SELECT $1::regclass::oid", &[Some(table)]).unwrap();
    rows[0][0].as_ref().unwrap().parse().unwrap()
}

pub fn one(conn: &mut Conn, sql: &str) -> String {
    conn.exec(sql).unwrap()[0][0].clone().unwrap_or_default()
}

/// Everything that the catalogs say about the table and the objects around it.
pub fn snapshot(conn: &mut Conn, oid: u32) -> Vec<String> {
    let rows = conn.query(include_str!("snapshot.sql"), &[Some(&oid.to_string())]).unwrap();
    let lines: Vec<String> = rows.into_iter().map(|r| r[0].clone().unwrap()).collect();
    assert!(lines.len() > 5, "the snapshot sees something");
    lines
}

/// Fails with the lines that differ.
pub fn assert_same(before: &[String], after: &[String]) {
    let lost: Vec<_> = before.iter().filter(|l| !after.contains(l)).collect();
    let new: Vec<_> = after.iter().filter(|l| !before.contains(l)).collect();
    assert!(lost.is_empty() && new.is_empty(), "lost: {lost:#?}\nnew: {new:#?}");
    assert_eq!(before.len(), after.len());
}

/// A request to take down everything, in one transaction.
pub fn everything() -> Request {
    Request {
        indexes: Indexes::Rebuild,
        triggers: Triggers::Off,
        foreign_keys: ForeignKeys::Revalidate,
        rejects: false,
        course: Course::OneTransaction,
        truncates: false,
        locked: false,
        no_lock_out: false,
        private: false,
        new_rows: None,
    }
}

pub fn read(conn: &mut Conn, oid: u32) -> TableObjects {
    conn.exec("BEGIN").unwrap();
    let around = TableObjects::read(conn, oid).unwrap();
    conn.exec("COMMIT").unwrap();
    around
}

pub fn still_down(conn: &mut Conn) -> usize {
    ledger::still_down(conn).unwrap().0.iter().map(|e| e.choices.len()).sum()
}
