//! The steps after the rows: moving sequences past loaded keys, and ANALYZE.

use super::{rows, search_path};
use crate::error::Error;
use crate::session::conn::{quote_ident, quote_literal, Conn};
use serde::Deserialize;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// Up to this many steps, a sequence is moved by nextval, which cannot undo the draws of other
/// sessions. For more steps setval is used: no session draws as many numbers between the read and
/// the setval.
const DRAWN: i128 = 1000;

/// How long the load tries to get the lock for ANALYZE. By default, autovacuum runs once a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pauses between two attempts: the first and the longest.
const PAUSES: Range<Duration> = Duration::from_millis(50)..Duration::from_secs(2);

#[derive(Debug, Deserialize)]
struct Sequence {
    name: String,
    column: String,
    increment: i64,
    least: i64,
    greatest: i64,
    may_move: bool,
    may_read: bool,
}

/// A sequence that was behind a loaded key, or may still be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// quoted and qualified
    pub sequence: String,
    /// the column that the sequence is for
    pub column: String,
    /// the key that the sequence must pass, if the role may read it
    pub key: Option<i128>,
    /// why the sequence was not moved, if it was not
    pub left: Option<String>,
}

/// Moves the sequences of `columns`, which the file supplied, past the keys that the table `oid`
/// now has; never back. `table` is its name in SQL. Call this last before the commit: sequences do
/// not roll back. A skipped number does no harm, but a row with a key ahead of its sequence does.
///
/// # Errors
///
/// The connection is lost, or the server reports an error.
pub fn sequences(
    conn: &mut Conn,
    oid: u32,
    table: &str,
    columns: &[String],
) -> Result<Vec<Moved>, Error> {
    let list: Vec<String> = columns.iter().map(|c| quote_literal(c)).collect();
    let sql = include_str!("sequences.sql")
        .replace("$2::text[]", &format!("ARRAY[{}]::text[]", list.join(", ")));
    let path = search_path(conn, "pg_catalog")?;
    let found = rows::<Sequence>(conn, &sql, oid)?;
    search_path(conn, &path)?;
    let mut all = Vec::new();
    for sequence in found {
        all.extend(pass(conn, table, &sequence)?);
    }
    Ok(all)
}

/// Moves one sequence, if it is behind the farthest key in its direction.
fn pass(conn: &mut Conn, table: &str, sequence: &Sequence) -> Result<Option<Moved>, Error> {
    let moved = |key, left: Option<&str>| {
        Ok(Some(Moved {
            sequence: sequence.name.clone(),
            column: sequence.column.clone(),
            key,
            left: left.map(str::to_string),
        }))
    };
    if !sequence.may_read {
        return moved(None, Some("the role cannot see all keys"));
    }
    let step = i128::from(sequence.increment);
    let farthest = if step > 0 { "max" } else { "min" };
    let column = quote_ident(&sequence.column);
    // The column may be numeric. Only the whole part can be equal to a number of the sequence.
    let rows =
        conn.exec(&format!("SELECT pg_catalog.trunc({farthest}({column})::numeric) FROM {table}"))?;
    let Some(key) = rows[0][0].as_deref().and_then(|k| k.parse::<i128>().ok()) else {
        return Ok(None);
    };
    if !sequence.may_move {
        return moved(Some(key), Some("the role may not move it"));
    }
    let rows = conn.exec(&format!("SELECT last_value, is_called FROM {}", sequence.name))?;
    let last: i128 = rows[0][0].as_deref().and_then(|v| v.parse().ok()).unwrap_or_default();
    let called = rows[0][1].as_deref() == Some("t");
    let ahead = if step > 0 { key - last } else { last - key };
    if ahead < 0 || (ahead == 0 && called) {
        return Ok(None);
    }
    // Move by whole steps, so that a sequence that counts by tens keeps its last digit.
    let steps = (ahead + step.abs() - 1) / step.abs();
    let target = last + steps * step;
    if target > i128::from(sequence.greatest) || target < i128::from(sequence.least) {
        return moved(Some(key), Some("it ends before that key"));
    }
    let draws = steps + i128::from(!called);
    let name = quote_literal(&sequence.name);
    if draws <= DRAWN {
        let draw = format!("SELECT max(pg_catalog.nextval({name}::regclass)) FROM pg_catalog.generate_series(1, {draws})");
        conn.exec(&draw)?;
    } else {
        conn.exec(&format!("SELECT pg_catalog.setval({name}::regclass, {target})"))?;
    }
    moved(Some(key), None)
}

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
    conn.exec("SAVEPOINT pgsluice_analyze")?;
    match conn.exec(&format!("{lock} NOWAIT; {statement}")) {
        Ok(_) => {
            conn.exec("RELEASE SAVEPOINT pgsluice_analyze")?;
            Ok(Some(statement))
        }
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
