//! Ends transactions that lanes have prepared for their common commit, and whose loader is gone.

use super::Report;
use crate::error::Error;
use crate::ledger;
use crate::session::conn::Conn;
use crate::session::prepared::End;
use crate::session::transaction::{status_of, BEGIN};

/// What became of a lane whose first lane is not committed.
const ROLLED_BACK: &str = "rolled back, as the first lane was not committed";

/// Ends the prepared transactions of lanes whose loader is gone. Their names contain the
/// transaction ID of the first lane, which is committed before all others. If it is committed, they
/// must be committed as well; if it is not, none of them is.
pub(super) fn end_prepared(target: &str, report: &mut Report) -> Result<(), Error> {
    let (mut guard, mut conn) = (Conn::open(target)?, Conn::open(target)?);
    let mut loads: Vec<(String, Vec<String>)> = Vec::new();
    for (gid, first) in ledger::prepared(&mut conn)? {
        match loads.iter_mut().find(|(load, _)| *load == first) {
            Some((_, gids)) => gids.push(gid),
            None => loads.push((first, vec![gid])),
        }
    }
    for (first, gids) in loads {
        guard.exec(BEGIN)?;
        // While this session holds the lock, no loader begins to commit the lanes.
        match ledger::lock(&mut guard, &first)? {
            true => end_lanes(&mut conn, &first, gids, report),
            false => report.running.extend(gids),
        }
        guard.exec("COMMIT")?;
    }
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
    let done = match how {
        End::Commit => "committed, as the first lane was",
        End::Rollback => ROLLED_BACK,
    };
    for gid in gids {
        match conn.exec(&how.statement(&gid)) {
            Ok(_) => report.lanes.push(format!("{}: {done}", prepared(&gid))),
            // Another repair has ended it already, or it is the first lane.
            Err(error) if error.sqlstate() == "42704" => {}
            Err(error) => report.prepared.push((prepared(&gid), error)),
        }
    }
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
