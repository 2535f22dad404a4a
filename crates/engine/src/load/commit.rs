//! The commit of all lanes.

use super::Job;
use crate::error::Error;
use crate::once::record::Recording;
use crate::options::Method;
use crate::plan::Plan;
use crate::session::conn::Conn;
use crate::session::lane::{Lane, LaneCounts};
use crate::session::sequences::{by_speed, farthest, pass_key};
use crate::session::spare_connection::SpareConnection;
use crate::session::transaction;
use crate::session::two_phase::{PreparedLanes, EMPTIED};
use crate::sniff::counted;

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
/// another. A single lane also completes the files. The recording counts the transactions.
pub(super) fn commit_recorded(
    recording: &Recording,
    lanes: &mut [Lane],
    counts: &LaneCounts,
) -> Result<(), Error> {
    let last = lanes.len() == 1;
    // The record counts all rows that nodes have. If a node is open, nothing is recorded.
    let rows = counts.rows + counts.there + counts.open;
    let rows = last.then(|| rows - recording.committed.rows.get());
    lanes.iter_mut().try_for_each(|lane| lane.commit_pieces(rows, true))
}

/// Commits the lanes, and adds to `steps` what was done before that. Returns the number of
/// transactions.
pub(super) fn commit(
    job: &Job<'_>,
    lanes: &mut [Lane],
    plan: &Plan,
    spare: &mut SpareConnection,
    steps: &mut Vec<String>,
) -> Result<u64, Error> {
    let Job { options, watch, .. } = *job;
    let url = &options.target.url;
    if plan.method == Method::Insert {
        // Each row is committed; only now wait until all of them are on disk.
        transaction::await_disk(&mut lanes[0].conn).map_err(|e| lanes[0].stayed(e))?;
        return Ok(lanes[0].counts.rows);
    }
    if let Some(to) = &plan.nodes {
        lanes[0].commit_nodes(options, None)?;
        return Ok(to.nodes.len() as u64);
    }
    let behind = pass_keys(lanes, plan, steps)?;
    let emptied = plan.lanes > 1 && plan.before.iter().any(|s| s.starts_with("DELETE"));
    if plan.two_phase {
        let mut conns: Vec<&mut Conn> = lanes.iter_mut().map(|lane| &mut lane.conn).collect();
        let mut guard = spare.take(url)?;
        let done = PreparedLanes::prepare(&mut conns, &mut guard, url).and_then(|prepared| {
            prepared.commit(&mut conns, url, emptied).map_err(|e| naming(e, &behind))
        });
        // This releases the lock: `repair` may end what is left.
        let _ = guard.exec("ROLLBACK");
        spare.keep(guard);
        done?;
        return Ok(lanes.len() as u64);
    }
    let mut committed = 0;
    for (i, lane) in lanes.iter_mut().enumerate() {
        transaction::commit(&mut lane.conn, url, watch)
            .map_err(|e| naming(not_all(e, i, committed, emptied), &behind))?;
        committed += lane.counts.rows;
    }
    Ok(lanes.len() as u64)
}

/// Moves sequences past the keys of all lanes before any of them is committed: between the commits,
/// other sessions may draw numbers, or the loader may be killed. Adds to `steps` what was moved.
/// Returns the names of the sequences that can be moved only after the commits, because no index
/// finds the farthest key, or because the role has not the privileges.
///
/// Only lanes with rows take part, since they hold a lock of the table: another lane could wait for
/// DDL that waits for them. One of them moves the sequences for all: the next one could wait for
/// DDL on a sequence that waits for the first.
fn pass_keys(
    lanes: &mut [Lane],
    plan: &Plan,
    steps: &mut Vec<String>,
) -> Result<Vec<String>, Error> {
    let mut conns: Vec<&mut Conn> = lanes
        .iter_mut()
        .filter(|lane| plan.lanes > 1 && lane.counts.rows > 0)
        .map(|lane| &mut lane.conn)
        .collect();
    if conns.is_empty() {
        return Ok(Vec::new());
    }
    let (quick, slow) = by_speed(conns[0], plan.oid, &plan.columns)?;
    for sequence in &quick {
        let mut all: Option<i128> = None;
        for conn in &mut conns {
            if let Some(key) = farthest(conn, &plan.table, sequence)? {
                all = Some(all.map_or(key, |other| sequence.farther(key, other)));
            }
        }
        if let Some(key) = all {
            steps.extend(pass_key(conns[0], sequence, key)?.map(|moved| moved.told()));
        }
    }
    Ok(slow)
}

/// The error of a commit after which `lanes` lanes with `rows` rows are committed.
fn not_all(error: Error, lanes: usize, rows: u64, emptied: bool) -> Error {
    let perhaps = error.changed().map(|changed| format!("; {changed}"));
    match (lanes, perhaps) {
        (0, Some(_)) if emptied => error
            .with_changed("perhaps: the table was emptied, and has the rows of this transaction"),
        (0, _) => error,
        (_, perhaps) => {
            let before = if emptied { EMPTIED } else { "" };
            let lanes = counted(lanes, "lane");
            let perhaps = perhaps.unwrap_or_default();
            error.with_changed(format!(
                "{before}{rows} rows, which {lanes} had committed before{perhaps}"
            ))
        }
    }
}

/// Adds to the error of a commit the sequences whose keys may be committed and that were not moved.
fn naming(error: Error, behind: &[String]) -> Error {
    let Some(changed) = error.changed().map(str::to_owned) else { return error };
    if behind.is_empty() {
        return error;
    }
    let behind = behind.join(", ");
    error.with_changed(format!("{changed}; not moved past the keys: sequence {behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error between two commits says that the rows from before the load are gone, how many new
    /// ones stay, and which sequences may be behind them.
    #[test]
    fn an_error_between_two_commits_says_all_that_is_changed() {
        let changed = |error: Error| error.changed().map(str::to_owned);
        let fault = || Error::new("x");
        assert_eq!(changed(naming(not_all(fault(), 0, 0, true), &["s".into()])), None);
        let told = not_all(fault(), 1, 5, true);
        let all = "the table was emptied; 5 rows, which 1 lane had committed before";
        assert_eq!(told.changed(), Some(all));
        let told = changed(naming(told, &["s".into(), "r".into()]));
        assert_eq!(told, Some(format!("{all}; not moved past the keys: sequence s, r")));
        let unknown = fault().with_changed("perhaps: the rows of this transaction");
        let told = changed(not_all(unknown.clone(), 2, 7, false));
        let all =
            "7 rows, which 2 lanes had committed before; perhaps: the rows of this transaction";
        assert_eq!(told.as_deref(), Some(all));
        let told = changed(not_all(unknown, 0, 0, true)).unwrap();
        assert!(told.starts_with("perhaps: the table was emptied"), "{told}");
    }
}
