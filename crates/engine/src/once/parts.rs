//! The parts of files that several machines still have to load, and the leases of the machines
//! ([decision](../../../../docs/decisions/0025-leases.md)).
//!
//! A part is a file or a range of one. Its row is deleted in the transaction that completes it. A
//! machine has a part while the row names its load. A machine that stalls must not commit rows of a
//! part that another one has taken over, whatever leases and clocks say, and the others must be
//! able to continue. Three rules ensure this:
//!
//! - If the lease of a machine has expired, another machine sets its load to `stopped`. That waits
//!   for none of its transactions: if one is about to commit, the machine is left alone. The pieces
//!   are read after that is committed, and lanes of a stopped load commit nothing (`record`).
//! - A machine may stall after it has locked the row of its load and before it sends COMMIT, for
//!   example if its process is stopped. So transactions that lock rows of the ledger may be idle
//!   for a limited time ([`super::pause::limit_pause`]), after which the server ends them.
//! - Lanes also lock the rows of their parts, which must name their load, before they commit. So no
//!   machine commits a part whose row was changed or deleted in any other way.

use super::lookup::{known_piece, number};
use super::names::complete_names;
use crate::error::Error;
use crate::input::KnownPiece;
use crate::session::conn::Conn;
use crate::session::transaction::AS_LOGGED_IN;
use crate::source::Span;
use pgsluice_core::scan::Eol;
use serde_json::{json, Value};
use std::time::Duration;

/// The maximum number of parts that are considered when a machine takes some.
const LOOKED_AT: usize = 256;

/// A machine combines files up to 1/`SHARE` of the bytes that no machine has. So the last parts are
/// left to the machines that are free first.
const SHARE: u64 = 8;

/// The class of the advisory locks that transactions with rows hold. These locks identify the
/// sessions of a machine.
const SESSIONS: i32 = 0x7067_736c;

/// A part that this machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedPart {
    pub number: i64,
    /// its row of `sources`
    pub source: i64,
    pub span: Span,
    /// its approximate stored size in bytes
    pub bytes: u64,
    /// its record boundaries must be found, and it must be divided
    pub to_split: bool,
}

impl SharedPart {
    /// Whether it is a whole file.
    pub fn is_whole(&self) -> bool {
        self.span.start == 0 && self.span.end.is_none()
    }
}

/// What is left of the files of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// parts that can be loaded, or are being loaded
    pub open: u64,
    /// why a part could not be loaded
    pub failed: Option<String>,
}

/// The numbers of files or parts, as a parameter.
pub(crate) fn list(numbers: impl Iterator<Item = i64>) -> String {
    Value::from_iter(numbers).to_string()
}

/// The condition that rows of `parts` belong to the files of the parameter `$1`.
const OF_FILES: &str =
    "source IN (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n)";

/// The condition that a machine has the part `p`.
const TAKEN: &str = "EXISTS (SELECT FROM pgsluice_loads.loads l \
    WHERE l.number = p.load AND l.state = 'running')";

/// The condition that the machine that has begun the file of the part `p` is at work: it takes the
/// part if no other machine does.
const IN_HAND: &str = "EXISTS (SELECT FROM pgsluice_loads.sources s \
    JOIN pgsluice_loads.loads l ON l.number = s.load \
    JOIN pgsluice_loads.leases e ON e.load = l.number \
    WHERE s.number = p.source AND l.state = 'running')";

const COLUMNS: &str = "p.number, p.source, p.head_bytes, p.start_byte, p.end_byte, \
    p.records_before, p.lines_before, p.line_end, p.bytes, p.to_split";

fn part(row: &[Option<String>]) -> SharedPart {
    let eol = match row[7].as_deref() {
        Some("lf") => Eol::Nl,
        Some("cr") => Eol::Cr,
        Some("crlf") => Eol::CrNl,
        _ => Eol::Unknown,
    };
    let span = Span {
        head: number(&row[2]),
        start: number(&row[3]),
        end: row[4].as_ref().and_then(|end| end.parse().ok()),
        records: number(&row[5]),
        lines: number(&row[6]),
        eol,
    };
    SharedPart {
        number: number(&row[0]),
        source: number(&row[1]),
        span,
        bytes: number(&row[8]),
        to_split: row[9].as_deref() == Some("t"),
    }
}

fn line_end(eol: Eol) -> Option<&'static str> {
    match eol {
        Eol::Unknown => None,
        Eol::Nl => Some("lf"),
        Eol::Cr => Some("cr"),
        Eol::CrNl => Some("crlf"),
    }
}

/// Lets one machine at a time plan a load into the table, until the transaction ends.
pub(super) fn plan_alone(conn: &mut Conn, target: u32) -> Result<(), Error> {
    conn.query(
        "SELECT pg_catalog.pg_advisory_xact_lock( \
           pg_catalog.hashtextextended('pgsluice_loads share ' || $1::text, 0))",
        &[Some(&target.to_string())],
    )
    .map(drop)
}

/// Returns those of the files that have parts, and whether a machine is at work on each.
pub(super) fn in_parts(conn: &mut Conn, sources: &str) -> Result<Vec<(i64, bool)>, Error> {
    let rows = conn.query(
        &format!(
            "SELECT p.source, pg_catalog.bool_or({TAKEN} OR {IN_HAND}) \
             FROM pgsluice_loads.parts p WHERE p.{OF_FILES} GROUP BY p.source"
        ),
        &[Some(sources)],
    )?;
    Ok(rows.iter().map(|row| (number(&row[0]), row[1].as_deref() == Some("t"))).collect())
}

/// Adds files as one part each: the number of each, its bytes, and whether it may be divided. A file
/// of which something is loaded is not divided: its pieces may lie across the ends of parts.
pub(super) fn add(conn: &mut Conn, files: &[(i64, u64, bool)]) -> Result<(), Error> {
    for files in files.chunks(super::record::BATCH) {
        let row = |(source, bytes, split): &(i64, u64, bool)| json!([source, bytes, split]);
        let rows = Value::from_iter(files.iter().map(row)).to_string();
        conn.query(
            "INSERT INTO pgsluice_loads.parts (source, start_byte, bytes, to_split) \
             SELECT (f->>0)::bigint, 0, (f->>1)::bigint, (f->>2)::boolean AND NOT EXISTS ( \
               SELECT FROM pgsluice_loads.pieces p WHERE p.source = (f->>0)::bigint) \
             FROM pg_catalog.jsonb_array_elements($1::jsonb) WITH ORDINALITY AS f(f, i) ORDER BY i",
            &[Some(&rows)],
        )?;
    }
    Ok(())
}

/// Drops all parts of files that are loaded without parts from now on. Waits for machines that are
/// about to commit some of them.
pub(super) fn drop_of(conn: &mut Conn, sources: &str) -> Result<(), Error> {
    conn.query(&format!("DELETE FROM pgsluice_loads.parts WHERE {OF_FILES}"), &[Some(sources)])
        .map(drop)
}

/// Makes failed parts of these files available again, unless machines are at work on the files.
pub(super) fn try_again(conn: &mut Conn, sources: &str) -> Result<(), Error> {
    conn.query(
        &format!(
            "UPDATE pgsluice_loads.parts SET error = NULL WHERE {OF_FILES} AND error IS NOT NULL \
               AND NOT EXISTS (SELECT FROM pgsluice_loads.parts p WHERE p.{OF_FILES} AND {TAKEN})"
        ),
        &[Some(sources)],
    )
    .map(drop)
}

/// Begins a lease.
pub(super) fn lease(conn: &mut Conn, load: i64, lease: Duration) -> Result<(), Error> {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let machine = format!("{}, process {}", host.unwrap_or_default(), std::process::id());
    conn.query(
        "INSERT INTO pgsluice_loads.leases (load, machine, expires) VALUES ($1::bigint, $2, \
           pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3::double precision))",
        &[Some(&load.to_string()), Some(&machine), Some(&lease.as_secs_f64().to_string())],
    )
    .map(drop)
}

/// Extends a lease, unless it was ended.
pub(crate) fn prolong(conn: &mut Conn, load: i64, lease: Duration) -> Result<(), Error> {
    conn.query(
        "UPDATE pgsluice_loads.leases SET expires = pg_catalog.clock_timestamp() + \
           pg_catalog.make_interval(secs => $2::double precision) WHERE load = $1::bigint",
        &[Some(&load.to_string()), Some(&lease.as_secs_f64().to_string())],
    )
    .map(drop)
}

/// Stops loads of machines whose leases have expired and that are not about to commit. Returns
/// their numbers. The caller must commit this at once.
pub(crate) fn stop_expired(conn: &mut Conn, target: u32, load: i64) -> Result<Vec<i64>, Error> {
    let own = load.to_string();
    let rows = conn.query(
        "WITH expired AS (SELECT l.number FROM pgsluice_loads.loads l \
             JOIN pgsluice_loads.leases e ON e.load = l.number \
             WHERE l.target = $1::oid AND l.state = 'running' AND l.number <> $2::bigint \
               AND e.expires < pg_catalog.clock_timestamp() FOR UPDATE OF l, e SKIP LOCKED), \
           ended AS (DELETE FROM pgsluice_loads.leases e USING expired x WHERE e.load = x.number) \
         UPDATE pgsluice_loads.loads l SET state = 'stopped', ended = pg_catalog.clock_timestamp(), \
           error = 'its lease expired; load ' || $2::text || ' found that' \
         FROM expired x WHERE l.number = x.number RETURNING l.number",
        &[Some(&target.to_string()), Some(&own)],
    )?;
    Ok(rows.iter().map(|row| number(&row[0])).collect())
}

/// Each transaction with rows takes this lock. It identifies the sessions of a stopped machine.
pub(crate) fn mark_session(conn: &mut Conn, load: i64) -> Result<(), Error> {
    conn.query(
        "SELECT pg_catalog.pg_advisory_xact_lock_shared($1::integer, $2::integer)",
        &[Some(&SESSIONS.to_string()), Some(&in_lock(load).to_string())],
    )
    .map(drop)
}

/// Ends sessions of stopped loads: they cannot commit their rows, and sessions that insert the same
/// keys wait for them. Those of other logins are left alone. Call this outside a transaction.
pub(crate) fn end_sessions(conn: &mut Conn, loads: &[i64]) -> Result<(), Error> {
    if loads.is_empty() {
        return Ok(());
    }
    let loads: Vec<String> = loads.iter().map(|load| in_lock(*load).to_string()).collect();
    conn.exec(&format!(
        "{AS_LOGGED_IN}SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_locks k \
           JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid AND a.usename = session_user \
         WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.classid = {SESSIONS}::integer::oid \
           AND k.objid = ANY ('{{{}}}'::oid[]) AND k.database = (SELECT oid \
             FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())",
        loads.join(",")
    ))
    .map(drop)
}

/// A load's number as that of a lock: a much older load with the same one has no sessions left.
fn in_lock(load: i64) -> i32 {
    (load & 0x7fff_ffff) as i32
}

/// Takes parts that no machine has: a file to divide, or a range, or several files of at most
/// `most` bytes together.
pub(crate) fn take(
    conn: &mut Conn,
    load: i64,
    sources: &str,
    most: u64,
) -> Result<Vec<SharedPart>, Error> {
    let free = format!("p.{OF_FILES} AND p.error IS NULL AND NOT {TAKEN}");
    let rows = conn.query(
        &format!("SELECT coalesce(sum(bytes), 0) FROM pgsluice_loads.parts p WHERE {free}"),
        &[Some(sources)],
    )?;
    let most = most.min(number::<u64>(&rows[0][0]) / SHARE);
    let rows = conn.query(
        &format!(
            "SELECT {COLUMNS} FROM pgsluice_loads.parts p WHERE {free} \
             ORDER BY p.source, p.start_byte LIMIT {LOOKED_AT} FOR UPDATE OF p SKIP LOCKED"
        ),
        &[Some(sources)],
    )?;
    let mut taken: Vec<SharedPart> = Vec::new();
    let mut bytes = 0;
    for part in rows.iter().map(|row| part(row)) {
        bytes += part.bytes;
        let alone = !part.is_whole() || part.to_split;
        if !taken.is_empty() && (alone || bytes > most) {
            break;
        }
        taken.push(part);
        if alone {
            break;
        }
    }
    conn.query(
        "UPDATE pgsluice_loads.parts SET load = $2::bigint WHERE number IN \
           (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n)",
        &[Some(&list(taken.iter().map(|part| part.number))), Some(&load.to_string())],
    )?;
    Ok(taken)
}

/// Returns the pieces of each of these parts that are already loaded.
pub(super) fn known(conn: &mut Conn, parts: &[SharedPart]) -> Result<Vec<Vec<KnownPiece>>, Error> {
    let row = |(i, part): (usize, &SharedPart)| json!({ "i": i, "source": part.source, "from": part.span.start, "to": part.span.end });
    let rows = Value::from_iter(parts.iter().enumerate().map(row)).to_string();
    let found = conn.query(
        "SELECT k.i, p.start_byte, p.end_byte, p.records, p.lines, pg_catalog.encode(p.hash, 'hex') \
         FROM pg_catalog.jsonb_to_recordset($1::jsonb) \
             AS k(i integer, source bigint, \"from\" bigint, \"to\" bigint) \
           JOIN pgsluice_loads.pieces p ON p.source = k.source AND p.start_byte >= k.\"from\" \
             AND (k.\"to\" IS NULL OR p.start_byte < k.\"to\") \
         ORDER BY k.i, p.start_byte",
        &[Some(&rows)],
    )?;
    let mut known = vec![Vec::new(); parts.len()];
    for row in found {
        let place = known.get_mut(number::<usize>(&row[0]));
        place.ok_or_else(|| Error::defect("no such part"))?.push(known_piece(&row[1..])?);
    }
    Ok(known)
}

/// Gives up all parts of a load. Returns how many it had.
pub(crate) fn give_back(conn: &mut Conn, load: i64) -> Result<u64, Error> {
    conn.query_counted(
        "UPDATE pgsluice_loads.parts SET load = NULL WHERE load = $1::bigint",
        &[Some(&load.to_string())],
    )
    .map(|(_, parts)| parts)
}

/// Records why some of these parts cannot be loaded. No machine takes them while others are at
/// work.
pub(crate) fn fail(conn: &mut Conn, load: i64, parts: &str, error: &str) -> Result<(), Error> {
    conn.query(
        "UPDATE pgsluice_loads.parts SET error = $3 WHERE load = $2::bigint AND number IN \
           (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n)",
        &[Some(parts), Some(&load.to_string()), Some(error)],
    )
    .map(drop)
}

/// Returns what is left of the files `sources` and of `others`, which are other names of the same
/// bytes. Parts of `others` count only while a machine is at work on them, also those that failed.
pub(crate) fn left(conn: &mut Conn, sources: &str, others: &str) -> Result<Left, Error> {
    let rows = conn.query(
        &format!(
            "SELECT count(*) FILTER (WHERE CASE WHEN p.{OF_FILES} THEN p.error IS NULL \
                 ELSE {TAKEN} OR {IN_HAND} END), \
               pg_catalog.min(p.error) FILTER (WHERE p.{OF_FILES}) FROM pgsluice_loads.parts p \
             WHERE p.source IN (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text( \
               $1::jsonb || $2::jsonb) n)"
        ),
        &[Some(sources), Some(others)],
    )?;
    Ok(Left { open: number(&rows[0][0]), failed: rows[0][1].clone() })
}

/// Prevents others from taking over the parts of a load until the transaction ends. Returns whether
/// the load still has all of them.
pub(super) fn hold(conn: &mut Conn, load: i64, parts: &[i64]) -> Result<bool, Error> {
    let rows = conn.query(
        "SELECT FROM pgsluice_loads.parts WHERE load = $2::bigint AND number IN \
           (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) FOR SHARE",
        &[Some(&list(parts.iter().copied())), Some(&load.to_string())],
    )?;
    Ok(rows.len() == parts.len())
}

/// Completes parts, and files that have no other part left. Returns whether the load still had all
/// of the parts. Machines that complete parts of the same file do so one after another.
pub(super) fn complete(conn: &mut Conn, load: i64, parts: &[i64]) -> Result<bool, Error> {
    let rows = conn.query(
        "DELETE FROM pgsluice_loads.parts WHERE load = $2::bigint AND number IN \
           (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) \
         RETURNING source",
        &[Some(&list(parts.iter().copied())), Some(&load.to_string())],
    )?;
    let sources = list(rows.iter().map(|row| number(&row[0])));
    conn.query(
        "SELECT FROM pgsluice_loads.sources WHERE number IN \
           (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) \
         ORDER BY number FOR NO KEY UPDATE",
        &[Some(&sources)],
    )?;
    conn.query(
        "UPDATE pgsluice_loads.sources s SET state = 'complete', \
           completed = pg_catalog.clock_timestamp() \
         WHERE s.state = 'loading' AND s.number IN \
             (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) \
           AND NOT EXISTS (SELECT FROM pgsluice_loads.parts p WHERE p.source = s.number)",
        &[Some(&sources)],
    )?;
    complete_names(conn, &sources)?;
    Ok(rows.len() == parts.len())
}

/// Divides a part: its `first` bytes, up to the start of `rest`, become a separate part that others
/// can take. Returns whether the load still had the part.
pub(crate) fn split_off(
    conn: &mut Conn,
    load: i64,
    part: i64,
    first: &Span,
    rest: &Span,
) -> Result<bool, Error> {
    let bytes = rest.start - first.start;
    let text = |n: u64| n.to_string();
    let moved = conn.query(
        "UPDATE pgsluice_loads.parts SET head_bytes = $3::bigint, start_byte = $4::bigint, \
           records_before = $5::bigint, lines_before = $6::bigint, line_end = $7, \
           bytes = greatest(bytes - $8::bigint, 0) \
         WHERE number = $1::bigint AND load = $2::bigint RETURNING source",
        &[
            Some(&part.to_string()),
            Some(&load.to_string()),
            Some(&text(rest.head)),
            Some(&text(rest.start)),
            Some(&text(rest.records)),
            Some(&text(rest.lines)),
            line_end(rest.eol),
            Some(&text(bytes)),
        ],
    )?;
    let Some(source) = moved.first().and_then(|row| row[0].clone()) else { return Ok(false) };
    conn.query(
        "INSERT INTO pgsluice_loads.parts (source, head_bytes, start_byte, end_byte, \
           records_before, lines_before, line_end, bytes, to_split) \
         VALUES ($1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7, \
           $8::bigint, false)",
        &[
            Some(&source),
            Some(&text(first.head)),
            Some(&text(first.start)),
            Some(&text(rest.start)),
            Some(&text(first.records)),
            Some(&text(first.lines)),
            line_end(first.eol),
            Some(&text(bytes)),
        ],
    )?;
    Ok(true)
}

/// Records that the part is not to be divided further. Returns whether the load still had it.
pub(crate) fn not_split(conn: &mut Conn, load: i64, part: i64) -> Result<bool, Error> {
    let rows = conn.query(
        "UPDATE pgsluice_loads.parts SET to_split = false \
         WHERE number = $1::bigint AND load = $2::bigint RETURNING number",
        &[Some(&part.to_string()), Some(&load.to_string())],
    )?;
    Ok(rows.len() == 1)
}

/// Ends the load of a machine: gives up its parts and its lease. Returns whether it was the last
/// one at work on this table.
pub(crate) fn end(
    conn: &mut Conn,
    target: u32,
    load: i64,
    error: Option<&str>,
) -> Result<bool, Error> {
    // Of two machines that end at the same time, one must be the last: lock, so that they end in
    // turn.
    conn.query(
        "SELECT pg_catalog.pg_advisory_xact_lock( \
           pg_catalog.hashtextextended('pgsluice_loads share end ' || $1::text, 0))",
        &[Some(&target.to_string())],
    )?;
    let own = load.to_string();
    give_back(conn, load)?;
    conn.query("DELETE FROM pgsluice_loads.leases WHERE load = $1::bigint", &[Some(&own)])?;
    conn.query(
        "UPDATE pgsluice_loads.loads SET state = CASE WHEN $2::text IS NULL THEN 'complete' \
           ELSE 'stopped' END, error = $2, ended = pg_catalog.clock_timestamp() \
         WHERE number = $1::bigint AND state = 'running'",
        &[Some(&own), error],
    )?;
    let rows = conn.query(
        "SELECT count(*) FROM pgsluice_loads.loads l JOIN pgsluice_loads.leases e ON e.load = l.number \
         WHERE l.target = $1::oid AND l.state = 'running' \
           AND e.expires > pg_catalog.clock_timestamp()",
        &[Some(&target.to_string())],
    )?;
    Ok(number::<u64>(&rows[0][0]) == 0)
}

/// Returns why the load was stopped; `None` if it runs.
pub(crate) fn stopped(conn: &mut Conn, load: i64) -> Result<Option<String>, Error> {
    let rows = conn.query(
        "SELECT coalesce(error, '') FROM pgsluice_loads.loads \
         WHERE number = $1::bigint AND state <> 'running'",
        &[Some(&load.to_string())],
    )?;
    Ok(rows.first().map(|row| row[0].clone().unwrap_or_default()))
}

/// Returns how many transactions a load has committed.
pub(crate) fn commits(conn: &mut Conn, load: i64) -> Result<u64, Error> {
    let rows = conn.query(
        "SELECT count(*) FROM pgsluice_loads.commits WHERE load = $1::bigint",
        &[Some(&load.to_string())],
    )?;
    Ok(number(&rows[0][0]))
}
