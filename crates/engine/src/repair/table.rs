//! Recreates objects that earlier loads of a table have left dropped or disabled. A load with
//! `once` does this before its rows, and also if there is nothing new to load.
//!
//! Loads with several connections commit what they drop or disable, and record it before. If such a
//! load is killed, or the server restarts, a scheduler may only run the same command again. So that
//! command recreates the objects, or fails. A load that runs holds an advisory lock
//! (`ledger::lock`): objects that it has dropped or disabled are left to it.

use crate::error::{Error, Kind};
use crate::ledger::{self, LedgerEntry, OthersObject};
use crate::maintenance::put_back_committed;
use crate::once::record::Target;
use crate::once::{begin_transaction, NothingNew};
use crate::options::Options;
use crate::plan::locks::{refuse_to_put_back, to_put_back};
use crate::report::Summary;
use crate::session::conn::Conn;
use crate::session::prepared::refuse_to_wait;
use crate::text::Text;
use crate::watch::Watch;

/// The hint for an object that cannot be recreated.
const AGAIN: &str =
    "put that right; then the same command recreates it, and so does pgsluice repair";

/// Recreates objects that loads of this role have left dropped or disabled on the table. Returns in
/// words what was done. Objects of a load that runs are left to it. If `waiting` is given, this
/// load has nothing else to do: it calls `waiting` and then waits for such a load. `guard` is in a
/// transaction, which holds the locks of these loads until its end.
///
/// # Errors
///
/// An object cannot be recreated, other roles have left objects (if `waiting` is given), or the
/// connection is lost.
pub(crate) fn put_back_on(
    guard: &mut Conn,
    target: &Target,
    options: &Options,
    watch: &Watch,
    waiting: Option<&dyn Fn()>,
) -> Result<Vec<String>, Error> {
    let mut done = Vec::new();
    for LedgerEntry { load, .. } in of_table(guard, target.oid)? {
        if !is_free(guard, &load, watch, waiting)? {
            continue;
        }
        // The load, or a repair, may have ended before this lock was taken.
        let now = of_table(guard, target.oid)?;
        for entry in now.iter().filter(|entry| entry.load == load) {
            refuse_to_put_back(&to_put_back(&target.sql, &entry.choices), options)?;
            refuse_to_wait(guard, target.oid, &target.sql)?;
            done.extend(put_back_entry(entry, options, watch)?);
        }
    }
    if waiting.is_some() {
        for other in of_others(guard, target.oid)? {
            is_free(guard, &other.load, watch, waiting)?;
        }
        if let Some(other) = of_others(guard, target.oid)?.first() {
            let words = &other.words;
            return Err(Error::new(format!("an earlier load dropped or disabled: {words}"))
                .with_hint(other.hint()));
        }
    }
    Ok(done)
}

/// Ends a load that has nothing new to load. If `waiting` is given, waits for loads that run and
/// have dropped or disabled objects.
///
/// # Errors
///
/// As for [`put_back_on`].
pub(crate) fn end_nothing(
    nothing: NothingNew,
    options: &Options,
    watch: &Watch,
    waiting: Option<&dyn Fn()>,
) -> Result<Summary, Error> {
    let NothingNew { mut conn, target, mut summary } = nothing;
    begin_transaction(&mut conn, options)?;
    let done = put_back_on(&mut conn, &target, options, watch, waiting)?;
    conn.exec("COMMIT")?;
    summary.notes.extend(done.into_iter().map(Text::from));
    Ok(summary)
}

fn of_table(guard: &mut Conn, oid: u32) -> Result<Vec<LedgerEntry>, Error> {
    let (mut entries, _) = ledger::still_down(guard)?;
    entries.retain(|entry| entry.relation == oid);
    Ok(entries)
}

fn of_others(guard: &mut Conn, oid: u32) -> Result<Vec<OthersObject>, Error> {
    let (_, mut others) = ledger::still_down(guard)?;
    others.retain(|other| other.relation == oid);
    Ok(others)
}

/// Whether no other session is at work on the objects of a load. If none is, none can begin until
/// the transaction of `guard` ends.
fn is_free(
    guard: &mut Conn,
    load: &str,
    watch: &Watch,
    waiting: Option<&dyn Fn()>,
) -> Result<bool, Error> {
    if ledger::lock(guard, load)? {
        return Ok(true);
    }
    let Some(waiting) = waiting else { return Ok(false) };
    waiting();
    watch.interruptible(guard.canceller(), || ledger::wait(guard, load)).map(|()| true)
}

fn put_back_entry(
    entry: &LedgerEntry,
    options: &Options,
    watch: &Watch,
) -> Result<Vec<String>, Error> {
    let load = &options.target;
    let (open, workers) = (|| watch.connect(&load.url), load.lanes.unwrap_or(1));
    let (timeout, stopped) = (load.lock_timeout.as_deref(), || watch.stop.is_set());
    let outcomes = put_back_committed(&open, workers, entry, timeout, &stopped)?;
    let mut done = Vec::new();
    for (object, outcome) in outcomes {
        let restored = outcome.map_err(|error| cannot(&object, &error))?;
        if !restored.was_back {
            done.push(format!(
                "{}, which an earlier load dropped or disabled, is recreated; writers waited for {:.2} s",
                restored.object, restored.seconds
            ));
        }
    }
    Ok(done)
}

fn cannot(object: &str, error: &Error) -> Error {
    // The cause is not a record of this load.
    let kind = match error.kind() {
        Kind::Data => Kind::Failed,
        kind => kind,
    };
    Error::new(format!(
        "{object}, which an earlier load dropped or disabled, cannot be recreated: {}",
        error.message().plain()
    ))
    .of_kind(kind)
    .with_hint(AGAIN)
}
