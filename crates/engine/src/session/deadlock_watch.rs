//! Detects lanes that wait for each other.
//!
//! If two lanes have rows with the same unique key, or a trigger changes the same row for both, the
//! server makes the second one wait until the first has committed, and the first commits only when
//! all lanes are done. The server cannot detect this deadlock, because half of it is in the loader.
//! A watcher asks the server which session waits for which, and cancels one of them.
//!
//! If lanes commit several times, the first one commits earlier, at the latest when it has sent its
//! last rows, and the wait ends by itself. Then a lane is cancelled only if it waits for one that waits
//! for the loader, and the load stands still.
//!
//! DDL of another session may be part of it: it waits for a lane that has rows in the table, and
//! another lane, which has no lock yet, waits for the DDL. That ends by itself while the first lane
//! has more to do, and commits. Here, too, a lane is cancelled only if the load stands still: no lane
//! has worked for a while, and the load does not wait for its input.

use super::conn::{Canceller, Conn};
use super::lane::Lane;
use super::spare_connection::SpareConnection;
use super::transaction::AS_LOGGED_IN;
use crate::error::{Error, Kind};
use crate::options::Options;
use crate::report::Progress;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often the server is queried. Two results in a row must agree.
const EVERY: Duration = Duration::from_millis(500);

/// How many results in a row must show a wait that may end by itself, and a load that does not go on.
const STANDSTILL: u32 = 20;

/// `query_canceled`
const CANCELED: &str = "57014";

/// The ID of the server process that runs a lane's transaction; 0 if it is not known. Through a
/// pooler, each transaction may have another process, and the former one then works for other
/// clients.
#[derive(Clone, Default)]
pub struct LaneProcess(Arc<AtomicU32>);

impl LaneProcess {
    /// Reads the ID in the open transaction.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn find(&self, conn: &mut Conn) -> Result<(), Error> {
        let rows = conn.exec("SELECT pg_catalog.pg_backend_pid()")?;
        let process = rows[0][0].as_deref().and_then(|id| id.parse().ok()).unwrap_or(0);
        self.0.store(process, Ordering::SeqCst);
        Ok(())
    }

    /// Call this when the transaction has ended.
    pub fn forget(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn known(&self) -> Option<String> {
        let process = self.0.load(Ordering::SeqCst);
        (process != 0).then(|| process.to_string())
    }
}

/// What lanes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knot {
    /// another lane
    Lane,
    /// another session that waits for a lane
    OtherSession,
}

/// Watches over the lanes of a load until it is ended.
pub struct DeadlockWatch {
    over: Arc<AtomicBool>,
    found: Arc<OnceLock<Knot>>,
    thread: JoinHandle<Conn>,
}

impl DeadlockWatch {
    /// Begins to watch, over the spare connection; `None` for a single lane.
    ///
    /// # Errors
    ///
    /// A connection is lost, or there is none left for the watcher.
    pub(crate) fn watch(
        lanes: &mut [Lane],
        spare: &mut SpareConnection,
        options: &Options,
        progress: &Arc<Progress>,
    ) -> Result<Option<DeadlockWatch>, Error> {
        if lanes.len() < 2 {
            return Ok(None);
        }
        let mut members = Vec::new();
        for lane in lanes {
            lane.process.find(&mut lane.conn)?;
            members.push((lane.process.clone(), lane.conn.canceller()));
        }
        let mut conn = spare.take(&options.target.url)?;
        let pieces = options.in_pieces();
        let over = Arc::new(AtomicBool::new(false));
        let found = Arc::new(OnceLock::new());
        let (flags, progress) = ((over.clone(), found.clone()), progress.clone());
        let thread = thread::spawn(move || {
            look(&mut conn, &members, pieces, &progress, &flags.0, &flags.1);
            conn
        });
        Ok(Some(DeadlockWatch { over, found, thread }))
    }

    /// Ends the watch, and gives its connection back. If a lane was cancelled, replaces the
    /// server's message by the reason.
    pub(crate) fn end<T>(
        self,
        outcome: Result<T, Error>,
        spare: &mut SpareConnection,
    ) -> Result<T, Error> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        if let Ok(conn) = self.thread.join() {
            spare.keep(conn);
        }
        outcome.map_err(|error| match self.found.get() {
            Some(Knot::Lane) if error.sqlstate() == CANCELED => of_lanes(&error),
            Some(Knot::OtherSession) if error.sqlstate() == CANCELED => of_another_session(),
            _ => error,
        })
    }
}

fn of_lanes(error: &Error) -> Error {
    let place = error.place().cloned();
    // The server does not say which of these it is.
    let knot = Error::data(
        "this record has the same unique key as a record of another lane, or excludes it, or a \
         trigger changes the same row for both",
    )
    .with_hint(
        "load by a single connection (`method` auto): it does not wait, and names the key or \
         rejects the record",
    );
    match place {
        Some(place) => knot.at(place),
        None => knot,
    }
}

fn of_another_session() -> Error {
    Error::new(
        "another session waits for the load to lock the table, and a lane waits for that session",
    )
    .of_kind(Kind::Busy)
    .with_hint("run it again when the DDL of that session has ended")
}

/// Whether another lane is the cause of a wait.
const WAITS_FOR_LANE: &str =
    "pg_catalog.pg_blocking_pids(l.pid) OPERATOR(pg_catalog.&&) members.pids";

/// Whether no lane works: each waits for a lock, or for the loader.
const NONE_WORKS: &str = "NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity s \
    WHERE s.pid = ANY (members.pids) AND s.wait_event_type IS DISTINCT FROM 'Lock' \
      AND s.wait_event IS DISTINCT FROM 'ClientRead')";

/// Whether one of the lanes that are waited for waits for the loader.
const WAITS_FOR_LOADER: &str = "EXISTS (SELECT FROM pg_catalog.pg_stat_activity s \
    WHERE s.pid = ANY (members.pids) AND s.pid = ANY (pg_catalog.pg_blocking_pids(l.pid)) \
      AND s.wait_event = 'ClientRead')";

/// The query for the lanes among these processes that wait, and whether another lane is the cause.
/// With `pieces`, a lane that works, or that waits for another session, will commit later.
fn waits(processes: &str, pieces: bool) -> String {
    let for_lane = match pieces {
        true => format!("{WAITS_FOR_LOADER} AND {NONE_WORKS}"),
        false => WAITS_FOR_LANE.to_owned(),
    };
    // Locks that are held only while a page is processed cause no deadlock, however often one is
    // waited for.
    format!(
        "{AS_LOGGED_IN}SELECT l.pid, {WAITS_FOR_LANE} FROM pg_catalog.pg_locks l, \
           (SELECT '{{{processes}}}'::int[] AS pids) AS members \
         WHERE l.pid = ANY (members.pids) AND NOT l.granted \
           AND l.locktype <> ALL ('{{extend,page,frozenid}}') \
           AND ({for_lane} OR EXISTS \
             (SELECT FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) AS b \
               WHERE pg_catalog.pg_blocking_pids(b) OPERATOR(pg_catalog.&&) members.pids) \
               AND {NONE_WORKS})"
    )
}

/// Cancels a lane that waits for another one in two results in a row, or for as long as the load
/// stands still if lanes commit several times (`pieces`). Does so again while it waits.
fn look(
    conn: &mut Conn,
    members: &[(LaneProcess, Arc<Canceller>)],
    pieces: bool,
    progress: &Progress,
    over: &AtomicBool,
    found: &OnceLock<Knot>,
) {
    let (mut before, mut standstill, mut records) = (Vec::new(), 0, 0);
    while !over.load(Ordering::SeqCst) {
        thread::park_timeout(EVERY);
        let processes: Vec<String> = members.iter().filter_map(|(of, _)| of.known()).collect();
        // Without a result there is nothing to do; each lane reports the errors of its connection.
        let Ok(rows) = conn.exec(&waits(&processes.join(","), pieces)) else { return };
        let waiting = |direct| {
            let rows = rows.iter().filter(move |row| (row[1].as_deref() == Some("t")) == direct);
            rows.filter_map(|row| row[0].clone()).collect::<Vec<_>>()
        };
        let (direct, by_another) = (waiting(true), waiting(false));
        // The input may be slow, and a lane that is fast seems to wait each time.
        let sent = std::mem::replace(&mut records, progress.records.get());
        let goes_on = progress.waits_for_files() || records != sent;
        let may_end = !by_another.is_empty() || pieces && !direct.is_empty();
        standstill = if !may_end || goes_on { 0 } else { standstill + 1 };
        let knot = match direct.iter().find(|pid| before.contains(*pid)) {
            Some(_) if pieces && standstill < STANDSTILL => None,
            Some(pid) => Some((pid, Knot::Lane)),
            None if standstill >= STANDSTILL => by_another.first().map(|p| (p, Knot::OtherSession)),
            None => None,
        };
        if let Some((pid, knot)) = knot {
            let is_it = |of: &LaneProcess| of.known().as_ref() == Some(pid);
            if let Some((_, canceller)) = members.iter().find(|(of, _)| is_it(of)) {
                let _ = found.set(knot);
                cancel(conn, pid, canceller);
            }
        }
        before = direct;
    }
}

/// Cancels what a process waits for, if it still waits. A request to cancel needs another
/// connection, which may lead to a pooler that does not know the session. So the server is asked
/// over the watcher's own connection, if the role may do that.
fn cancel(conn: &mut Conn, pid: &str, canceller: &Canceller) {
    let asked = conn.exec(&format!(
        "{AS_LOGGED_IN}SELECT pg_catalog.pg_cancel_backend(l.pid) FROM pg_catalog.pg_locks l \
         WHERE l.pid = {pid} AND NOT l.granted LIMIT 1"
    ));
    match asked {
        Ok(rows) if rows.iter().all(|row| row[0].as_deref() == Some("t")) => {}
        _ => canceller.cancel(),
    }
}
