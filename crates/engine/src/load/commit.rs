//! The commit of all lanes.

use crate::error::Error;
use crate::once::record::Recording;
use crate::options::{Method, Options};
use crate::plan::Plan;
use crate::session::conn::Conn;
use crate::session::lane::{Lane, LaneCounts};
use crate::session::transaction;

/// Completes the files of a load with several lanes, after all lanes have committed.
pub(super) fn complete(recording: &Recording, lanes: &mut [Lane]) -> Result<(), Error> {
    let [first, _, ..] = lanes else { return Ok(()) };
    let mut done = || {
        first.conn.exec(&format!("{}; {}", transaction::BEGIN, transaction::NO_TIMEOUTS))?;
        recording.complete(&mut first.conn)?;
        first.end_rejects()?;
        first.conn.exec("COMMIT").map(drop)
    };
    done().map_err(|error: Error| {
        let committed = "all rows are committed, and the files are not marked as complete";
        error.with_changed(committed).with_hint("the same command completes them")
    })
}

/// Records in the transaction of each lane what it has loaded, and commits the lanes one after
/// another. A single lane also completes the files. Returns the number of transactions.
pub(super) fn commit_recorded(
    recording: &Recording,
    lanes: &mut [Lane],
    counts: &LaneCounts,
    plan: &Plan,
) -> Result<u64, Error> {
    let last = lanes.len() == 1;
    // The record counts all rows that nodes have. If a node is open, nothing is recorded.
    let rows = counts.rows + counts.there + counts.open;
    let rows = last.then(|| rows - recording.committed.get());
    lanes.iter_mut().try_for_each(|lane| lane.commit_pieces(rows, last))?;
    Ok(plan.nodes.as_ref().map_or(lanes.len(), |to| to.nodes.len()) as u64)
}

/// Commits the lanes one after another. Returns the number of transactions.
pub(super) fn commit(lanes: &mut [Lane], plan: &Plan, options: &Options) -> Result<u64, Error> {
    if plan.method == Method::Insert {
        // Each row is committed; only now wait until all of them are on disk.
        transaction::await_disk(&mut lanes[0].conn).map_err(|e| lanes[0].stayed(e))?;
        return Ok(lanes[0].counts.rows);
    }
    if let Some(to) = &plan.nodes {
        lanes[0].commit_nodes(options, None)?;
        return Ok(to.nodes.len() as u64);
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
