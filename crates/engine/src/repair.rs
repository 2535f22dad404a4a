//! `repair`: recreates objects that a load has left dropped or disabled after a crash, and ends
//! transactions that lanes had prepared for their common commit.

mod lanes;
mod nodes;
mod table;

pub(crate) use nodes::end_earlier;
pub(crate) use table::{end_nothing, put_back_on};

use crate::error::Error;
use crate::ledger::{self, State};
use crate::maintenance::{put_back_committed, Restored};
use crate::session::conn::Conn;
use crate::session::prepared::refuse_to_wait;
use crate::session::transaction::{refuse_read_only, BEGIN, NO_TIMEOUTS};
use std::collections::HashSet;

/// The hint for objects whose table is locked by a prepared transaction.
const WHEN_ENDED: &str = "when that transaction has ended, run pgsluice repair again";

/// What `repair` has found and done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// objects that are recreated
    pub put_back: Vec<Restored>,
    /// objects that could not be recreated, each with the reason; or several, separated by commas,
    /// with one reason
    pub failed: Vec<(String, Error)>,
    /// tables for which a load is running
    pub running: Vec<String>,
    /// objects that ended loads of other roles have left dropped or disabled, in words with the
    /// role's name, each with the reason why they still are
    pub others: Vec<(String, Error)>,
    /// transactions that were prepared and are now committed or rolled back, and the sequences that
    /// are behind the keys of committed ones, in words
    pub lanes: Vec<String>,
    /// transactions that may still be prepared, each with the reason
    pub prepared: Vec<(String, Error)>,
}

/// Recreates everything that this role's loads have left dropped or disabled in the database, over
/// `workers` connections. `nodes` has addresses of nodes to use in place of the catalog's. It is
/// safe to run this at any time, repeatedly, and several times at once: repairs wait for each
/// other, and a load that still runs is left alone.
///
/// # Errors
///
/// The connection fails, the server is read-only by default, or the ledger cannot be read. Objects
/// that cannot be recreated are in the report.
pub fn repair(target: &str, workers: usize, nodes: &[(String, String)]) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut guard = Conn::open(target)?;
    refuse_read_only(&mut guard)?;
    // Do this first: prepared transactions hold locks on the table.
    lanes::end_prepared(target, &mut report)?;
    nodes::end_on_nodes(&mut Conn::open(target)?, nodes, None, &mut report)?;
    match ledger::state(&mut guard)? {
        State::Ready => {}
        State::Missing => return Ok(report),
        State::Unusable(_) if !is_there(&mut guard)? => return Ok(report),
        State::Unusable(why) => {
            return Err(Error::new(format!("cannot read pgsluice_loads.taken_down: {why}"))
                .with_hint("run repair as the role that ran the load"));
        }
    }
    guard.exec(&format!(
        "{BEGIN}; {NO_TIMEOUTS}; SELECT \
         pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgsluice_loads repair'))"
    ))?;
    let (entries, _) = ledger::still_down(&mut guard)?;
    let open = || Conn::open(target);
    for entry in entries {
        if !ledger::lock(&mut guard, &entry.load)? {
            report.running.push(entry.relation_name);
            continue;
        }
        // The load may have ended before this lock was taken.
        let (now, _) = ledger::still_down(&mut guard)?;
        let Some(entry) = now.into_iter().find(|e| e.load == entry.load) else { continue };
        // This session would wait for lanes that stay prepared, and all writers behind it.
        let free = refuse_to_wait(&mut guard, entry.relation, &entry.relation_name)
            .map_err(|error| error.with_hint(WHEN_ENDED));
        let work = || put_back_committed(&open, workers, &entry, None, &|| false);
        match free.and_then(|()| work()) {
            Ok(outcomes) => {
                for (object, outcome) in outcomes {
                    match outcome {
                        Ok(restored) => report.put_back.push(restored),
                        Err(error) => report.failed.push((object, error)),
                    }
                }
            }
            Err(error) => report.failed.push((entry.objects(), error)),
        }
    }
    report_others(&mut guard, &mut report)?;
    guard.exec("COMMIT")?;
    Ok(report)
}

/// Adds to the report what loads of other roles have dropped or disabled. A load that still runs
/// recreates it.
fn report_others(guard: &mut Conn, report: &mut Report) -> Result<(), Error> {
    let (mut free, running) = (HashSet::new(), &mut report.running);
    for other in ledger::still_down(guard)?.1 {
        if ledger::lock(guard, &other.load)? {
            free.insert(other.load);
        } else if !running.contains(&other.relation_name) {
            running.push(other.relation_name);
        }
    }
    // A load may have ended before its lock was taken.
    let (_, others) = ledger::still_down(guard)?;
    let left = others.into_iter().filter(|other| free.contains(&other.load));
    report.others.extend(left.map(|other| {
        let error = Error::new("only the role that dropped or disabled it can recreate it");
        let error = error.with_hint(other.hint());
        (other.words, error)
    }));
    Ok(())
}

fn is_there(conn: &mut Conn) -> Result<bool, Error> {
    let rows = conn.exec("SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'pgsluice_loads'")?;
    Ok(!rows.is_empty())
}
