//! After the rows: sequences moved past loaded keys, statistics, visibility.

use super::{rows, search_path};
use crate::error::Error;
use crate::session::conn::{quote_ident, quote_literal, Conn};
use serde::Deserialize;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// Below so many steps a sequence is moved by drawing from it, which cannot
/// undo what another session draws at the same time; no session draws more
/// than that in the moment between reading the sequence and setting it.
const DRAWN: i128 = 1000;

/// How long the lock for ANALYZE is asked for: by default, autovacuum comes once a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two times: the first pause, and the longest.
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

/// A sequence that stood before a loaded key, or may do so still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// quoted and qualified
    pub sequence: String,
    /// the column that it serves
    pub column: String,
    /// the key that it had to pass, where the role may see it
    pub key: Option<i128>,
    /// why it was left where it was, if it was
    pub left: Option<String>,
}

/// Moves the sequences behind `columns`, which the file supplied, past the keys
/// that the table `oid` (as SQL names it: `table`) now holds; never back. To be
/// called as the last thing before the commit: sequences do not roll back, and
/// a number skipped is no harm, while a row with a key ahead of its sequence is.
///
/// # Errors
///
/// The connection is lost, or the server refuses.
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

/// Moves one sequence, if it stands before the key farthest in its direction.
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
    // The column may be numeric: only its whole part can collide.
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
    // As many steps as pass the key, so that a sequence that counts by tens
    // keeps its last digit.
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

/// What was done for the planner and for the first reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// the statement that ran, if one did
    pub statement: Option<String>,
    /// why none did
    pub left: Option<String>,
}

/// How the planner gets its statistics.
struct Statistics {
    statement: String,
    /// what locks the table for it, where the statement may run in a transaction and needs
    /// no other table: it is a plain one, the role may lock it, and it is not VACUUM
    lock: Option<String>,
}

/// `ANALYZE` before the commit, so that the rows appear with their statistics; the server
/// knows its own transaction's rows without a hint bit for each of them. Gives the statement,
/// or `None` where it is left for [`finish`]. Another's lock is not waited for: its holder may
/// be waiting for this transaction, as CREATE INDEX CONCURRENTLY does. What the server refuses
/// is undone and costs the load nothing.
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

/// The same after the commit, outside a transaction, unless the user has `stopped` the load.
///
/// A lock that is waited for is waited for with a snapshot in hand, if only of the catalogs,
/// and for that CREATE INDEX CONCURRENTLY waits in turn, which may have the lock. So it is
/// asked for again and again.
///
/// # Errors
///
/// The connection is lost, or the server refuses; the rows are committed.
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
        // Its failure means a lost connection, which the error says already.
        let _ = conn.exec("ROLLBACK");
        if error.sqlstate() != "55P03" || stopped() || start.elapsed() > PATIENCE {
            return Err(error);
        }
        thread::sleep(pause);
        pause = PAUSES.end.min(2 * pause);
    }
    Ok(Finished { statement: Some(statement), left: None })
}

/// `ANALYZE`, or `VACUUM (ANALYZE)` where it pays: the pages are not frozen, an
/// index could answer queries alone if they were known to be visible, and the
/// server's autovacuum, which would see to it within a minute, is off. `None` where
/// the role has no right to either.
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
