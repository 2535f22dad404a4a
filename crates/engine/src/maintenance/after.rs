//! The last step after the rows: ANALYZE.

use crate::error::Error;
use crate::session::conn::Conn;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// How long the load tries to get the lock for ANALYZE. By default, autovacuum runs once a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pauses between two attempts: the first and the longest.
const PAUSES: Range<Duration> = Duration::from_millis(50)..Duration::from_secs(2);

/// The result of ANALYZE or VACUUM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// the statement that ran, if any
    pub statement: Option<String>,
    /// why no statement ran
    pub left: Option<String>,
}

/// The statement that gives the planner its statistics.
struct Statistics {
    statement: String,
    /// the statement that locks the table for it; only for a plain table that the role may lock and
    /// has no children, and not for VACUUM: then the statement may run in a transaction
    lock: Option<String>,
}

/// Runs `ANALYZE` before the commit, so that the rows become visible together with their
/// statistics. The server needs no hint bits for rows of the current transaction. Returns the
/// statement, or `None` if it is left to [`finish`]. This does not wait for locks of other
/// sessions: the holder may be waiting for this transaction, as in CREATE INDEX CONCURRENTLY. If
/// the server reports an error, only this step is rolled back, and the load continues.
///
/// # Errors
///
/// The connection is lost.
pub fn finish_within(
    conn: &mut Conn,
    oid: u32,
    table: &str,
    frozen: bool,
) -> Result<Option<String>, Error> {
    let found = statistics(conn, oid, table, frozen)?;
    let Some(Statistics { statement, lock: Some(lock) }) = found else { return Ok(None) };
    let within = format!(
        "SAVEPOINT pgsluice_analyze; {lock} NOWAIT; {statement}; RELEASE SAVEPOINT pgsluice_analyze"
    );
    match conn.exec(&within) {
        Ok(_) => Ok(Some(statement)),
        Err(error) if error.sqlstate().is_empty() => Err(error),
        Err(_) => {
            conn.exec(
                "ROLLBACK TO SAVEPOINT pgsluice_analyze; RELEASE SAVEPOINT pgsluice_analyze",
            )?;
            Ok(None)
        }
    }
}

/// Runs the statement after the commit, outside a transaction, unless the user has `stopped` the
/// load.
///
/// A session that waits for a lock holds a snapshot, if only of the catalogs. CREATE INDEX
/// CONCURRENTLY, which may hold the lock, waits for such snapshots in turn. So the lock is
/// requested repeatedly with NOWAIT.
///
/// # Errors
///
/// The connection is lost, or the server reports an error. The rows are committed.
pub fn finish(
    conn: &mut Conn,
    oid: u32,
    table: &str,
    frozen: bool,
    stopped: &dyn Fn() -> bool,
) -> Result<Finished, Error> {
    if stopped() {
        return Ok(Finished { statement: None, left: Some("the load was stopped".into()) });
    }
    let Some(Statistics { statement, lock }) = statistics(conn, oid, table, frozen)? else {
        let left = Some("the role may not analyze the table".into());
        return Ok(Finished { statement: None, left });
    };
    let Some(lock) = lock else {
        conn.exec(&statement)?;
        return Ok(Finished { statement: Some(statement), left: None });
    };
    let (start, mut pause) = (Instant::now(), PAUSES.start);
    while let Err(error) = conn.exec(&format!("BEGIN; {lock} NOWAIT; {statement}; COMMIT")) {
        // If this fails, the connection is lost, which `error` reports already.
        let _ = conn.exec("ROLLBACK");
        if error.sqlstate() != "55P03" || stopped() || start.elapsed() > PATIENCE {
            return Err(error);
        }
        thread::sleep(pause);
        pause = PAUSES.end.min(2 * pause);
    }
    Ok(Finished { statement: Some(statement), left: None })
}

/// The statement: `ANALYZE`, or `VACUUM (ANALYZE)` if that is useful. It is useful if the pages are
/// not frozen, the table has an index (index-only scans need visible pages), and autovacuum is off,
/// which would otherwise do it within a minute. `None` if the role has no privilege for either.
fn statistics(
    conn: &mut Conn,
    oid: u32,
    table: &str,
    frozen: bool,
) -> Result<Option<Statistics>, Error> {
    let rows = conn.query(
        "SELECT c.relkind IN ('r', 'p', 'm', 'f') AND (pg_catalog.pg_has_role(c.relowner, 'USAGE') \
           OR pg_catalog.pg_has_role(d.datdba, 'USAGE') \
           OR CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 170000 \
             THEN pg_catalog.has_table_privilege(c.oid, 'MAINTAIN') ELSE false END), \
         c.relkind = 'r' AND c.relhasindex AND (pg_catalog.current_setting('autovacuum') = 'off' \
           OR EXISTS (SELECT FROM pg_catalog.unnest(c.reloptions) AS o \
             WHERE o IN ('autovacuum_enabled=false', 'autovacuum_enabled=off'))), \
         c.relkind = 'r' AND NOT c.relhassubclass \
           AND pg_catalog.has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE') \
         FROM pg_catalog.pg_class c, pg_catalog.pg_database d \
         WHERE c.oid = $1::oid AND d.datname = pg_catalog.current_database()",
        &[Some(&oid.to_string())],
    )?;
    let is = |i: usize| rows.first().is_some_and(|r| r[i].as_deref() == Some("t"));
    let vacuum = is(1) && !frozen;
    let verb = if vacuum { "VACUUM (ANALYZE)" } else { "ANALYZE" };
    let lock = format!("LOCK TABLE ONLY {table} IN SHARE UPDATE EXCLUSIVE MODE");
    Ok(is(0).then(|| Statistics {
        statement: format!("{verb} {table}"),
        lock: (is(2) && !vacuum).then_some(lock),
    }))
}
