//! What earlier loads of a table have left down, put back by a load with `once`: before its rows, and also when nothing is
//! new.
//!
//! Loads by several connections commit what they have down, and record it first. If such a load is killed, or
//! the server restarts, a scheduler runs the same command again and nothing else. So that command puts it
//! back, or fails. A load that runs holds an advisory lock (`ledger::lock`): what it has down is its own.

use crate::error::{Error, Kind};
use crate::ledger::{self, LedgerEntry};
use crate::maintenance::put_back_committed;
use crate::once::record::Target;
use crate::once::{begin_transaction, NothingNew};
use crate::options::Options;
use crate::plan::locks::{refuse_to_put_back, to_put_back};
use crate::report::Summary;
use crate::session::conn::Conn;
use crate::text::Text;
use crate::watch::Watch;

/// What to do about something that cannot be put back.
const AGAIN: &str =
    "put that right; then the same command recreates it, and so does pgsluice repair";

/// Puts back what loads of this role have left down on the table; gives what was done, in words. What a load
/// that runs has down is left to it. A load that has nothing else to do waits for that, and calls `waiting` before.
/// `guard` is in a transaction, and has the locks of these loads until its end.
///
/// # Errors
///
/// Something cannot be put back, other roles have left something, or the connection is lost.
pub(crate) fn put_back_on(
    guard: &mut Conn,
    target: &Target,
    options: &Options,
    watch: &Watch,
    waiting: Option<&dyn Fn()>,
) -> Result<Vec<String>, Error> {
    let mut done = Vec::new();
    for LedgerEntry { load, .. } in of_table(guard, target.oid)? {
        if !is_free(guard, &load, waiting)? {
            continue;
        }
        // The load, or a repair, may have ended between the look and the lock.
        let now = of_table(guard, target.oid)?;
        for entry in now.iter().filter(|entry| entry.load == load) {
            refuse_to_put_back(&to_put_back(&target.sql, &entry.choices), options)?;
            done.extend(put_back_entry(entry, options, watch)?);
        }
    }
    if waiting.is_some() {
        for (load, _) in ledger::of_others(guard, target.oid)? {
            is_free(guard, &load, waiting)?;
        }
        if let Some((_, object)) = ledger::of_others(guard, target.oid)?.first() {
            return Err(Error::new(format!("an earlier load left down: {object}"))
                .with_hint("run pgsluice repair as that role"));
        }
    }
    Ok(done)
}

/// Ends a load of which nothing is new. Waits for what a load that runs has down if `waiting` is given.
///
/// # Errors
///
/// As [`put_back_on`].
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

/// Whether no other session is at work on what a load took down, until the transaction of the guard ends.
fn is_free(guard: &mut Conn, load: &str, waiting: Option<&dyn Fn()>) -> Result<bool, Error> {
    if ledger::lock(guard, load)? {
        return Ok(true);
    }
    let Some(waiting) = waiting else { return Ok(false) };
    waiting();
    ledger::wait(guard, load).map(|()| true)
}

fn put_back_entry(
    entry: &LedgerEntry,
    options: &Options,
    watch: &Watch,
) -> Result<Vec<String>, Error> {
    let load = &options.target;
    let (open, workers) = (|| watch.connect(&load.url), load.lanes.unwrap_or(1));
    let outcomes = put_back_committed(&open, workers, entry, load.lock_timeout.as_deref())?;
    let mut done = Vec::new();
    for (object, outcome) in outcomes {
        let restored = outcome.map_err(|error| cannot(&object, &error))?;
        if !restored.was_back {
            done.push(format!(
                "{}, which an earlier load left down, is recreated; writers waited for {:.2} s",
                restored.object, restored.seconds
            ));
        }
    }
    Ok(done)
}

fn cannot(object: &str, error: &Error) -> Error {
    // What is wrong is no record of this load.
    let kind = match error.kind() {
        Kind::Data => Kind::Failed,
        kind => kind,
    };
    Error::new(format!(
        "{object}, which an earlier load left down, cannot be recreated: {}",
        error.message().plain()
    ))
    .of_kind(kind)
    .with_hint(AGAIN)
}
