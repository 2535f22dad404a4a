//! Watches a running load and stops it, from other threads.

use crate::error::{Error, Kind};
use crate::event::Phase;
use crate::report::Progress;
use crate::session::conn::{Canceller, Conn};
use crossbeam_channel::{bounded, RecvTimeoutError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often to check, while waiting, whether the user has stopped the load.
const LOOK: Duration = Duration::from_millis(50);

/// How often a request to cancel is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// The user sets it; every thread checks it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes the threads stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the threads should stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Runs work that must be recorded when a load ends. After a load is stopped, the server may
/// receive a request to cancel at any time, once for each connection. If that hits this work, it is
/// done again.
pub(crate) fn despite_cancel<T>(mut work: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    match work() {
        Err(error) if error.sqlstate() == "57014" => work(),
        done => done,
    }
}

/// Watches and stops a running load from other threads.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// the progress of the load
    pub progress: Arc<Progress>,
    pub(crate) stop: Stop,
    cancellers: Arc<Mutex<Vec<Arc<Canceller>>>>,
}

impl Watch {
    /// Stops the load: sends requests to cancel to the server, and everything is rolled back. The
    /// [`Loader`](crate::Loader) does not run again.
    pub fn cancel(&self) {
        self.stop.set();
        for canceller in self.cancellers.lock().unwrap_or_else(|e| e.into_inner()).iter() {
            canceller.cancel();
        }
    }

    /// Connects, unless the user stops it. libpq resolves names and tries hosts, and this cannot be
    /// interrupted.
    pub(crate) fn connect(&self, url: &str) -> Result<Conn, Error> {
        let target = url.to_owned();
        let conn = self.until_stopped(move || Conn::open(&target))?;
        let mut cancellers = self.cancellers.lock().unwrap_or_else(|e| e.into_inner());
        // If only this list refers to a canceller, its connection is closed.
        cancellers.retain(|canceller| Arc::strong_count(canceller) > 1);
        cancellers.push(conn.canceller());
        drop(cancellers);
        // A request that came before found no canceller of this connection.
        match self.stop.is_set() {
            true => Err(Error::cancelled()),
            false => Ok(conn),
        }
    }

    /// Does in another thread what cannot be interrupted. If the user stops the load, that thread is
    /// abandoned.
    ///
    /// # Errors
    ///
    /// Those of `work`, or the user has stopped the load.
    pub(crate) fn until_stopped<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, result) = bounded(1);
        thread::spawn(move || done.send(work()));
        loop {
            match result.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(_) if self.stop.is_set() => return Err(Error::cancelled()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::defect("a thread of the loader failed"))
                }
            }
        }
    }

    /// Runs statements that may take long or wait for other sessions, over the connection of
    /// `canceller`. The server ignores a request to cancel that arrives between two statements. So
    /// after the user has stopped the load, the request is repeated until the statements have ended.
    ///
    /// # Errors
    ///
    /// Those of `work`, or the user had stopped the load before.
    pub(crate) fn interruptible<T>(
        &self,
        canceller: Arc<Canceller>,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.stop.is_set() {
            return Err(Error::cancelled());
        }
        let (ended, end) = bounded::<()>(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                while end.recv_timeout(AGAIN) == Err(RecvTimeoutError::Timeout) {
                    if self.stop.is_set() {
                        canceller.cancel();
                    }
                }
            });
            let done = work();
            drop(ended);
            done
        })
    }

    /// Replaces the error if the user has stopped the load: that is not a failure of the server.
    pub(crate) fn told(&self, error: Error) -> Error {
        match error.changed() {
            _ if !self.stop.is_set() => error,
            None if self.progress.phase() == Phase::Opening => {
                Error::new("stopped before the load began").of_kind(Kind::Cancelled)
            }
            Some(_) => error.stopped(),
            None => Error::cancelled(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the user has stopped a load, its error still says what is changed, how to end that, and
    /// which nodes are open.
    #[test]
    fn a_stopped_load_keeps_its_hint_and_its_open_nodes() {
        let left = "left: COMMIT PREPARED 'pgsluice_1_0'";
        let error = Error::data("bad").with_changed(left).with_hint("pgsluice repair");
        let error = error.with_open_nodes(vec!["east".into()]).leaving_prepared();
        let watch = Watch::default();
        assert_eq!(watch.told(error.clone()), error);
        watch.cancel();
        let told = watch.told(error);
        assert_eq!((told.kind(), told.changed()), (Kind::Cancelled, Some(left)));
        assert_eq!(told.to_string(), format!("stopped\nchanged: {left}"));
        assert_eq!(told.hint().map(|hint| hint.plain()), Some("pgsluice repair"));
        assert_eq!(told.open_nodes(), ["east"]);
        assert!(told.leaves_prepared());
    }
}
