//! `repair`: puts back what a load took down and a crash left down, and ends
//! what lanes had prepared for their common commit.

mod nodes;
mod table;

pub(crate) use nodes::end_earlier;
pub(crate) use table::{end_nothing, put_back_on};

use crate::error::Error;
use crate::ledger::{self, State};
use crate::maintenance::{put_back_committed, Restored};
use crate::session::conn::{quote_literal, Conn};
use crate::session::transaction::{BEGIN, NO_TIMEOUTS};

/// What was found and done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// objects that are as they were again
    pub put_back: Vec<Restored>,
    /// objects that could not be put back, each with the reason
    pub failed: Vec<(String, Error)>,
    /// tables around which a load is running at this moment
    pub running: Vec<String>,
    /// objects that other roles took down, in words with the role's name
    pub others: Vec<String>,
    /// transactions that were prepared and are now committed or rolled back, in words
    pub lanes: Vec<String>,
    /// transactions that may still be prepared, each with the reason
    pub prepared: Vec<(String, Error)>,
}

/// Puts back everything that this role's loads left down in the database, over
/// as many connections as `workers` says; `nodes` has addresses of nodes that hold instead of the
/// catalog's. Safe to run at any time, twice, and
/// at once: repairs wait for each other, and a load that still runs is left alone.
///
/// # Errors
///
/// The connection fails, or the ledger cannot be read. What cannot be put back
/// is in the report.
pub fn repair(target: &str, workers: usize, nodes: &[(String, String)]) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut guard = Conn::open(target)?;
    // First of all: what is prepared holds its locks on the table.
    end_prepared(target, &mut report)?;
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
    let (entries, others) = ledger::still_down(&mut guard)?;
    report.others = others;
    let open = || Conn::open(target);
    for entry in entries {
        if !ledger::lock(&mut guard, &entry.load)? {
            report.running.push(entry.relation_name);
            continue;
        }
        // The load may have ended between the look and the lock.
        let (now, _) = ledger::still_down(&mut guard)?;
        let Some(entry) = now.into_iter().find(|e| e.load == entry.load) else { continue };
        match put_back_committed(&open, workers, &entry, None) {
            Ok(outcomes) => {
                for (object, outcome) in outcomes {
                    match outcome {
                        Ok(restored) => report.put_back.push(restored),
                        Err(error) => report.failed.push((object, error)),
                    }
                }
            }
            Err(error) => report.failed.push((entry.relation_name, error)),
        }
    }
    guard.exec("COMMIT")?;
    Ok(report)
}

/// Ends the prepared transactions of lanes whose loader is gone. They are named
/// by the first lane's transaction, which is committed before all others: if it
/// is, so must they be; if it is not, none is.
fn end_prepared(target: &str, report: &mut Report) -> Result<(), Error> {
    let (mut guard, mut conn) = (Conn::open(target)?, Conn::open(target)?);
    let rows = conn.exec(ledger::PREPARED)?;
    for row in rows {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let (gid, first) = (text(0), text(1));
        guard.exec(BEGIN)?;
        if !ledger::lock(&mut guard, &first)? {
            report.running.push(gid);
            guard.exec("COMMIT")?;
            continue;
        }
        // Under the lock, nobody commits the first lane any more.
        let status =
            conn.query("SELECT pg_catalog.pg_xact_status($1::text::xid8)", &[Some(&first)])?;
        let (verb, done) = match status[0][0].as_deref() {
            Some("committed") => ("COMMIT", "committed, as the first lane was"),
            Some(_) => ("ROLLBACK", "rolled back, as the first lane was not committed"),
            None => {
                let lost = Error::new("it is no longer known whether its first lane was committed");
                report.prepared.push((format!("prepared transaction {gid}"), lost));
                guard.exec("COMMIT")?;
                continue;
            }
        };
        match conn.exec(&format!("{verb} PREPARED {}", quote_literal(&gid))) {
            Ok(_) => report.lanes.push(format!("prepared transaction {gid}: {done}")),
            // Another repair was faster.
            Err(error) if error.sqlstate() == "42704" => {}
            Err(error) => report.prepared.push((format!("prepared transaction {gid}"), error)),
        }
        guard.exec("COMMIT")?;
    }
    Ok(())
}

fn is_there(conn: &mut Conn) -> Result<bool, Error> {
    let rows = conn.exec("SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'pgsluice_loads'")?;
    Ok(!rows.is_empty())
}
