//! The commit of all lanes.

use crate::error::Error;
use crate::once::record::Recording;
use crate::options::{Method, Options};
use crate::plan::Plan;
use crate::reject::Amount;
use crate::session::conn::Conn;
use crate::session::lane::{Lane, LaneCounts};
use crate::session::transaction;

/// Records what the lanes have loaded in the transactions that are to be committed. The only one
/// completes the files, too.
pub(super) fn record(
    recording: &Recording,
    lanes: &mut [Lane],
    counts: &LaneCounts,
    rejected: Amount,
) -> Result<(), Error> {
    if let [lane] = lanes {
        let before = recording.committed.get();
        lane.record(Some(counts.rows - before), rejected.records)?;
        return recording.complete(&mut lane.conn);
    }
    lanes.iter_mut().try_for_each(|lane| lane.record(None, 0))
}

/// Completes the files of several lanes when all of them have committed.
pub(super) fn complete(recording: &Recording, lanes: &mut [Lane]) -> Result<(), Error> {
    let [first, _, ..] = lanes else { return Ok(()) };
    let conn = &mut first.conn;
    let mut done = || {
        conn.exec(&format!("{}; {}", transaction::BEGIN, transaction::NO_TIMEOUTS))?;
        recording.complete(conn)?;
        conn.exec("COMMIT").map(drop)
    };
    done().map_err(|error: Error| {
        let committed = "all rows are committed, and the files are not marked as complete";
        error.with_changed(committed).with_hint("the same command completes them")
    })
}

/// Commits the lanes one after another; gives the number of transactions.
pub(super) fn commit(lanes: &mut [Lane], plan: &Plan, options: &Options) -> Result<u64, Error> {
    if plan.method == Method::Insert {
        // Each row is committed; only now all of them are waited for.
        transaction::await_disk(&mut lanes[0].conn).map_err(|e| lanes[0].stayed(e))?;
        return Ok(lanes[0].counts.rows);
    }
    if plan.two_phase {
        let mut conns: Vec<&mut Conn> = lanes.iter_mut().map(|lane| &mut lane.conn).collect();
        transaction::commit_prepared(&mut conns, &options.target.url)?;
        return Ok(lanes.len() as u64);
    }
    let mut committed = 0;
    for (i, lane) in lanes.iter_mut().enumerate() {
        transaction::commit(&mut lane.conn, &options.target.url).map_err(|e| {
            let changed = format!("{committed} rows, which {i} lanes had committed before");
            if i == 0 {
                e
            } else {
                e.with_changed(changed)
            }
        })?;
        committed += lane.counts.rows;
    }
    Ok(lanes.len() as u64)
}
