//! The commit of all lanes.

use crate::error::Error;
use crate::options::{Method, Options};
use crate::plan::Plan;
use crate::session::conn::Conn;
use crate::session::lane::Lane;
use crate::session::transaction;

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
