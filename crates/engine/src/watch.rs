//! Follows a running load and stops it, from other threads.

use crate::error::{Error, Kind};
use crate::event::Phase;
use crate::report::Progress;
use crate::session::conn::{Canceller, Conn};
use crossbeam_channel::{bounded, RecvTimeoutError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often it is looked whether the user has stopped what is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// Set by the user; looked at by every thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the threads to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether they should.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Does what is still to be recorded when a load ends. The server gets a request to cancel at any time
/// after the load was stopped, once for each connection: it may hit this work, which is then done again.
pub(crate) fn despite_cancel<T>(mut work: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    match work() {
        Err(error) if error.sqlstate() == "57014" => work(),
        done => done,
    }
}

/// How a running load is watched and stopped from other threads.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// where it is
    pub progress: Arc<Progress>,
    pub(crate) stop: Stop,
    cancellers: Arc<Mutex<Vec<Arc<Canceller>>>>,
}

impl Watch {
    /// Stops the load: the server is asked to cancel, everything is rolled back.
    pub fn cancel(&self) {
        self.stop.set();
        for canceller in self.cancellers.lock().unwrap_or_else(|e| e.into_inner()).iter() {
            canceller.cancel();
        }
    }

    /// Connects, until the user stops it. libpq resolves names and tries hosts without a way
    /// to interrupt it, so another thread waits for it; when stopped, that thread is left behind.
    pub(crate) fn connect(&self, url: &str) -> Result<Conn, Error> {
        let (found, result) = bounded(1);
        let target = url.to_owned();
        thread::spawn(move || found.send(Conn::open(&target)));
        let conn = loop {
            match result.recv_timeout(LOOK) {
                Ok(conn) => break conn?,
                Err(_) if self.stop.is_set() => return Err(Error::cancelled()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::defect("the thread that connects failed"))
                }
            }
        };
        let mut cancellers = self.cancellers.lock().unwrap_or_else(|e| e.into_inner());
        // Those that only this list has are of connections that are closed.
        cancellers.retain(|canceller| Arc::strong_count(canceller) > 1);
        cancellers.push(conn.canceller());
        drop(cancellers);
        Ok(conn)
    }

    /// What the user has stopped is not a failure of the server.
    pub(crate) fn told(&self, error: Error) -> Error {
        match error.changed() {
            _ if !self.stop.is_set() => error,
            None if self.progress.phase() == Phase::Opening => {
                Error::new("stopped before the load began").of_kind(Kind::Cancelled)
            }
            Some(changed) => Error::new("stopped").of_kind(Kind::Cancelled).with_changed(changed),
            None => Error::cancelled(),
        }
    }
}
