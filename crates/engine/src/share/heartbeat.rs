//! A machine's connection to the ledger, which also extends its lease while the machine works.

use crate::error::Error;
use crate::once::join::Member;
use crate::options::Options;
use crate::session::conn::Conn;
use crate::watch::{Stop, Watch};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, Thread};
use std::time::Duration;

/// How many times a lease is extended within its duration.
const BEATS: u32 = 6;

/// Extends a lease until this is dropped.
pub(super) struct Heartbeat {
    conn: Arc<Mutex<Conn>>,
    ended: Stop,
    thread: Thread,
}

impl Heartbeat {
    /// Starts to extend the lease.
    pub fn start(options: &Options, watch: &Watch, load: i64) -> Result<Heartbeat, Error> {
        let conn = Arc::new(Mutex::new(watch.connect(&options.target.url)?));
        let pause = options.lease() / BEATS;
        let ended = Stop::default();
        let (own, options, stop) = (conn.clone(), options.clone(), ended.clone());
        // The thread is not joined: its connection may hang.
        let thread = thread::spawn(move || beat(&own, &stop, &options, load, pause));
        Ok(Heartbeat { conn, ended, thread: thread.thread().clone() })
    }

    /// The connection to the ledger.
    pub fn connection(&self) -> MutexGuard<'_, Conn> {
        self.conn.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn beat(conn: &Mutex<Conn>, ended: &Stop, options: &Options, load: i64, pause: Duration) {
    loop {
        thread::park_timeout(pause);
        if ended.is_set() {
            return;
        }
        let mut conn = conn.lock().unwrap_or_else(|e| e.into_inner());
        if Member::prolong(&mut conn, options, load).is_err() {
            // If the server is gone, the lanes report that.
            if let Ok(again) = Conn::open(&options.target.url) {
                *conn = again;
            }
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.ended.set();
        self.thread.unpark();
    }
}
