//! Detects lanes that wait for each other.
//!
//! If two lanes have rows with the same unique key, the server makes the second one wait until
//! the first has committed, and the first commits only when all lanes are done. The server
//! cannot detect this deadlock, because half of it is in the loader. A watcher asks the server
//! which session waits for which, and cancels one of them.

use super::conn::{Canceller, Conn};
use super::lane::Lane;
use crate::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often the server is queried. Two results in a row must agree.
const EVERY: Duration = Duration::from_millis(500);

/// `query_canceled`
const CANCELED: &str = "57014";

/// Watches over the lanes of a load until it is ended.
pub struct DeadlockWatch {
    over: Arc<AtomicBool>,
    found: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl DeadlockWatch {
    /// Begins to watch; `None` for a single lane.
    ///
    /// # Errors
    ///
    /// A connection is lost, or there is none left for the watcher.
    pub fn watch(lanes: &mut [Lane], url: &str) -> Result<Option<DeadlockWatch>, Error> {
        if lanes.len() < 2 {
            return Ok(None);
        }
        let mut members = Vec::new();
        for lane in lanes {
            let rows = lane.conn.exec("SELECT pg_backend_pid()")?;
            let pid = rows[0][0].clone().unwrap_or_default();
            members.push((pid, lane.conn.canceller()));
        }
        let conn = Conn::open(url)?;
        let over = Arc::new(AtomicBool::new(false));
        let found = Arc::new(AtomicBool::new(false));
        let flags = (over.clone(), found.clone());
        let thread = thread::spawn(move || look(conn, &members, &flags.0, &flags.1));
        Ok(Some(DeadlockWatch { over, found, thread }))
    }

    /// Ends the watch. If a lane was cancelled, replaces the server's message by the reason.
    pub fn end<T>(self, outcome: Result<T, Error>) -> Result<T, Error> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        let _ = self.thread.join();
        outcome.map_err(|error| {
            if !self.found.load(Ordering::SeqCst) || error.sqlstate() != CANCELED {
                return error;
            }
            let place = error.place().cloned();
            let knot = Error::data(
                "this record has the same unique key as a record of another lane, or excludes it",
            )
            .with_hint(
                "load by a single connection (`method` auto) to see the key, or to reject it",
            );
            match place {
                Some(place) => knot.at(place),
                None => knot,
            }
        })
    }
}

/// Cancels a lane that waits for another one in two results in a row.
fn look(
    mut conn: Conn,
    members: &[(String, Arc<Canceller>)],
    over: &AtomicBool,
    found: &AtomicBool,
) {
    let pids: Vec<&str> = members.iter().map(|(pid, _)| pid.as_str()).collect();
    let all = pids.join(",");
    // Locks that are held only while a page is processed cause no deadlock, however often one is
    // waited for.
    let sql = format!(
        "SELECT l.pid FROM pg_catalog.pg_locks l \
         WHERE l.pid = ANY ('{{{all}}}') AND NOT l.granted \
         AND l.locktype <> ALL ('{{extend,page,frozenid}}') \
         AND pg_catalog.pg_blocking_pids(l.pid) && '{{{all}}}'::int[]"
    );
    let mut before = Vec::new();
    while !over.load(Ordering::SeqCst) {
        thread::park_timeout(EVERY);
        // Without a result there is nothing to do; each lane reports the errors of its connection.
        let Ok(rows) = conn.exec(&sql) else { return };
        let waiting: Vec<String> = rows.into_iter().filter_map(|row| row[0].clone()).collect();
        if let Some(pid) = waiting.iter().find(|pid| before.contains(*pid)) {
            if let Some((_, canceller)) = members.iter().find(|(member, _)| member == pid) {
                found.store(true, Ordering::SeqCst);
                canceller.cancel();
                return;
            }
        }
        before = waiting;
    }
}
