//! The server's WAL writer, kept awake while a COPY runs.
//!
//! It looks for work every `wal_writer_delay` (200 ms). A COPY writes so much WAL in that time that
//! its own process has to write and sync it, and to make the files for it: before a page may leave
//! the ring of buffers that COPY has (16 MB), and when `wal_buffers` are full. An asynchronous commit
//! wakes the WAL writer as soon as there is something to do (`XLogSetAsyncXactLSN`, which wants a
//! transaction with an ID). So a second connection commits empty ones while rows are sent.

use super::catalog::TableFacts;
use super::conn::Conn;
use crate::options::Method;
use crate::report::Progress;
use crossbeam_channel::{bounded, Receiver, Sender};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often it is seen whether rows have been sent.
const EVERY: Duration = Duration::from_millis(20);

/// Bytes of rows that are worth a transaction ID: `wal_writer_flush_after`, from which on the WAL
/// writer syncs at once.
const WORTH: u64 = 1 << 20;

/// How long the end of the thread is waited for.
const END: Duration = Duration::from_secs(1);

/// The commit alone is asynchronous, and it alone: a pooler's session goes back as it came.
const COMMIT: &str = "BEGIN READ WRITE; SET LOCAL synchronous_commit = off; \
    SELECT pg_catalog.pg_current_xact_id(); COMMIT";

/// Whether a load has the WAL writer woken: one COPY at a time, of rows that go through the WAL.
/// (Rows that are committed one by one wake it by themselves, and lanes leave it no processor.)
pub fn pays(method: Method, table: &TableFacts) -> bool {
    let one_copy = matches!(
        method,
        Method::CopyCsv | Method::CopyText | Method::CopyBinary | Method::CopyFresh
    );
    one_copy && matches!(table.kind, 'r' | 'p') && table.persistence == 'p'
}

/// Wakes the WAL writer until it is dropped.
pub struct Waker {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    ended: Receiver<()>,
}

impl Waker {
    /// Begins. The connection is made when there is something to do; where the server has none to
    /// give, the load goes on without.
    pub fn start(url: &str, progress: &Arc<Progress>) -> Waker {
        let over = Arc::new(AtomicBool::new(false));
        let (end, ended) = bounded(0);
        let (url, progress, flag) = (url.to_owned(), progress.clone(), over.clone());
        let thread = thread::spawn(move || wake(&url, &progress, &flag, end));
        Waker { over, thread, ended }
    }
}

impl Drop for Waker {
    /// The program must not end in the middle of what the thread does with its connection. But
    /// a pooler may let that wait for as long as it likes.
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        let _ = self.ended.recv_timeout(END);
    }
}

/// Until it is over or the connection is lost; `_end` goes with the thread.
fn wake(url: &str, progress: &Progress, over: &AtomicBool, _end: Sender<()>) {
    let mut conn = None;
    // Another try at the same load may have sent some.
    let mut before = progress.sent.get();
    while !over.load(Ordering::SeqCst) {
        thread::park_timeout(EVERY);
        let sent = progress.sent.get();
        if sent < before + WORTH {
            continue;
        }
        before = sent;
        let woken = match &mut conn {
            Some(conn) => Conn::exec(conn, COMMIT),
            None => Conn::open(url).and_then(|new| conn.insert(new).exec(COMMIT)),
        };
        if woken.is_err() {
            return;
        }
    }
}
