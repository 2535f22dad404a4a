//! Builds of several processes: rows are handed over in memory and as runs of a file.

use super::indexes::{bytes_of, checked, step, Build, Built, IndexCase, IndexRow, CASE, CASES};
use super::{every_allocation, Gate, Refused};
use crate::index::*;
use crate::team::*;
use crate::IndexSpreadDef;

/// Two builds make one index. Their rows are handed over in memory and as runs of a file.
#[test]
fn teams() {
    for case in [CASE, CASES[5], CASES[6]] {
        let rows = case.rows();
        every_allocation(case.what, |gate| {
            let mut leader = case.open(gate)?;
            let worker = case.open(gate);
            let built = worker.and_then(|worker| {
                let built = together(gate, &case, &rows, &mut leader, &worker);
                worker.free(gate);
                built
            });
            leader.free(gate);
            built
        });
    }
}

fn together(
    gate: &mut Gate,
    case: &IndexCase,
    rows: &[IndexRow],
    leader: &mut Build,
    worker: &Build,
) -> Result<Built, Refused> {
    for (n, row) in rows.iter().enumerate() {
        let build = if n % 2 == 0 { &*leader } else { worker };
        build.add(gate, row)?;
    }
    let mut spread = IndexSpreadDef::default();
    let mut whole = true;
    for build in [leader.made, worker.made] {
        // SAFETY: the build is live.
        whole &= gate.call(|| unsafe { pgsluice_index_spread(build, &mut spread) });
    }
    if whole {
        let mut handed = step();
        for build in [leader.made, worker.made] {
            handed = step();
            // SAFETY: the build is live.
            checked(gate.call(|| unsafe { pgsluice_index_sort_as(build, &spread, &mut handed) }))?;
        }
        // SAFETY: both builds are live; the worker's rows stay until its next call.
        let join = || unsafe { pgsluice_index_join(leader.made, handed.bytes, handed.len) };
        checked(gate.call(join))?;
    } else {
        let mut runs = Vec::new();
        for build in [leader.made, worker.made] {
            // SAFETY: the build is live.
            checked(gate.call(|| unsafe { pgsluice_index_spill(build) }))?;
            loop {
                let mut step = step();
                // SAFETY: the build is live.
                let status =
                    checked(gate.call(|| unsafe { pgsluice_index_step(build, &mut step) }))?;
                match status {
                    IndexStatus::Write => runs.extend_from_slice(bytes_of(&step)),
                    IndexStatus::Go => {}
                    _ => break,
                }
            }
            if build == leader.made {
                leader.file = std::mem::take(&mut runs);
            }
        }
        let start = leader.file.len() as u64;
        leader.file.extend_from_slice(&runs);
        let end = leader.file.len() as u64;
        // SAFETY: the build is live.
        checked(gate.call(|| unsafe { pgsluice_index_adopt(leader.made, start, end) }))?;
    }
    leader.finish(gate, case)
}
