//! Ends transactions that lanes have prepared for their common commit, and whose loader is gone.

use super::Report;
use crate::error::Error;
use crate::ledger::{self, LaneInDoubt};
use crate::session::conn::Conn;
use crate::session::prepared::End;
use crate::session::sequences::behind;
use crate::session::transaction::{status_of, BEGIN, NO_TIMEOUTS};

/// What became of a lane whose first lane is not committed.
const ROLLED_BACK: &str = "rolled back, as the first lane was not committed";

/// The tables into which the prepared lanes of a load have written, partitions last.
const WRITTEN: &str = "SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname) \
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.relkind IN ('r', 'p') AND c.oid IN (SELECT k.relation FROM lanes \
      JOIN pg_catalog.pg_locks x ON x.transactionid = lanes.transaction AND x.pid IS NULL \
      JOIN pg_catalog.pg_locks k \
        ON k.virtualtransaction = x.virtualtransaction AND k.pid IS NULL \
      WHERE lanes.load = $1 AND k.locktype = 'relation' AND k.mode = 'RowExclusiveLock') \
    ORDER BY c.relispartition, c.oid";

/// Ends the prepared transactions of lanes whose loader is gone. Their names contain the
/// transaction ID of the first lane, which is committed before all others. If it is committed, they
/// must be committed as well; if it is not, none of them is. Those of other roles are reported.
pub(super) fn end_prepared(target: &str, report: &mut Report) -> Result<(), Error> {
    let (mut guard, mut conn) = (Conn::open(target)?, Conn::open(target)?);
    let mut loads: Vec<Vec<LaneInDoubt>> = Vec::new();
    for lane in ledger::prepared(&mut conn)? {
        // Any role may name its transactions after the load of another one.
        let same = |other: &LaneInDoubt| (&other.load, &other.role) == (&lane.load, &lane.role);
        match loads.iter_mut().find(|lanes| same(&lanes[0])) {
            Some(lanes) => lanes.push(lane),
            None => loads.push(vec![lane]),
        }
    }
    for lanes in loads {
        let (first, role) = (lanes[0].load.clone(), lanes[0].role.clone());
        let gids = lanes.into_iter().map(|lane| lane.gid).collect();
        // It is idle while a COMMIT PREPARED waits for a standby.
        guard.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
        // While this session holds the lock, no loader begins to commit the lanes.
        match (ledger::lock(&mut guard, &first)?, role) {
            (false, _) => report.running.extend(gids),
            (true, None) => end_lanes(&mut conn, &first, gids, report),
            (true, Some(role)) => report_lanes(&mut conn, &role, gids, report)?,
        }
        guard.exec("COMMIT")?;
    }
    Ok(())
}

/// Reports the lanes of another role that are still prepared.
fn report_lanes(
    conn: &mut Conn,
    role: &str,
    mut gids: Vec<String>,
    report: &mut Report,
) -> Result<(), Error> {
    // The load may have ended before its lock was taken.
    let now = ledger::prepared(conn)?;
    gids.retain(|gid| now.iter().any(|lane| lane.gid == *gid));
    let why = Error::new(format!("it belongs to the role {role}"))
        .with_hint(format!("run pgsluice repair as the role {role}: it ends the transaction"));
    report.prepared.extend(gids.iter().map(|gid| (prepared(gid), why.clone())));
    Ok(())
}

/// Ends all lanes of a load in the same way, or leaves all of them alone.
fn end_lanes(conn: &mut Conn, first: &str, gids: Vec<String>, report: &mut Report) {
    let how = match end_of_first(conn, first, report) {
        Ok(how) => how,
        Err(why) => {
            let left = gids.into_iter().map(|gid| (prepared(&gid), why.clone()));
            report.prepared.extend(left);
            return;
        }
    };
    let (done, tables) = match how {
        End::Commit => ("committed, as the first lane was", written(conn, first)),
        End::Rollback => (ROLLED_BACK, Ok(Vec::new())),
    };
    for gid in gids {
        match conn.exec(&how.statement(&gid)) {
            Ok(_) => report.lanes.push(format!("{}: {done}", prepared(&gid))),
            // Another repair has ended it already, or it is the first lane.
            Err(error) if error.sqlstate() == "42704" => {}
            Err(error) => report.prepared.push((prepared(&gid), error)),
        }
    }
    match tables.and_then(|tables| sequences_behind(conn, &tables)) {
        Ok(found) => report.lanes.extend(found),
        Err(error) => {
            let why = error.message().plain();
            report.lanes.push(format!("sequences were not compared with their keys: {why}"));
        }
    }
}

/// The tables into which the lanes have written: the oid of each, and its name in SQL.
fn written(conn: &mut Conn, first: &str) -> Result<Vec<(u32, String)>, Error> {
    let sql = format!("WITH lanes AS (SELECT * FROM {}) {WRITTEN}", ledger::PREPARED_LANES);
    let rows = conn.query(&sql, &[Some(first)])?;
    let text = |cell: &Option<String>| cell.clone().unwrap_or_default();
    Ok(rows.iter().map(|row| (text(&row[0]).parse().unwrap_or(0), text(&row[1]))).collect())
}

/// In words, the sequences that keys of the committed lanes have passed. The load moves those whose
/// keys no index finds only after the last commit.
fn sequences_behind(conn: &mut Conn, tables: &[(u32, String)]) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for (oid, table) in tables {
        conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
        let of_table = behind(conn, *oid, table);
        conn.exec("ROLLBACK")?;
        for sequence in of_table? {
            // A partition has the sequences of its parents.
            if found.iter().all(|(name, _)| *name != sequence.sequence) {
                found.push((sequence.sequence.clone(), sequence.told()));
            }
        }
    }
    Ok(found.into_iter().map(|(_, told)| told).collect())
}

/// How the first lane has ended. If it is still prepared, rolls it back.
///
/// The server reports a transaction as in progress until it has finished COMMIT PREPARED. It may
/// have written the commit long before that, and wait for a standby. So a transaction in progress
/// counts as not committed only if the server rolls it back.
///
/// # Errors
///
/// The first lane has not ended, its end is no longer known, or the connection is lost.
fn end_of_first(conn: &mut Conn, first: &str, report: &mut Report) -> Result<End, Error> {
    let mut status = status_of(conn, first)?;
    if status.as_deref() == Some("in progress") {
        let gid = format!("pgsluice_{first}_0");
        match conn.exec(&End::Rollback.statement(&gid)) {
            Ok(_) => report.lanes.push(format!("{}: {ROLLED_BACK}", prepared(&gid))),
            // It has ended meanwhile.
            Err(error) if error.sqlstate() == "42704" => {}
            Err(error) => return Err(error),
        }
        status = status_of(conn, first)?;
    }
    match status.as_deref() {
        Some("committed") => Ok(End::Commit),
        Some("aborted") => Ok(End::Rollback),
        Some(_) => Err(Error::new("its first lane has not ended")),
        None => Err(Error::new("it is no longer known whether its first lane was committed")),
    }
}

fn prepared(gid: &str) -> String {
    format!("prepared transaction {gid}")
}
