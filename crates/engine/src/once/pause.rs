//! Limits how long a transaction may be idle if others wait for it.

use crate::error::Error;
use crate::session::conn::Conn;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Limits how long the transaction may be idle, from here to its end. It holds locks that others
/// skip, and they wait until the transaction has ended. If its machine stalls between two
/// statements for longer than a lease, the server ends the session and the transaction is not
/// committed. Others wait for a COMMIT that is under way.
pub(super) fn limit_pause(conn: &mut Conn, lease: Duration) -> Result<(), Error> {
    let most = lease.as_millis().clamp(1, i32::MAX as u128).to_string();
    conn.query(
        "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true)",
        &[Some(&most)],
    )
    .map(drop)
}

/// Reads files within a transaction that may be idle for at most a lease. A query from time to time
/// shows the server that the process is at work.
pub(super) fn read_long<T: Send>(
    conn: &mut Conn,
    lease: Duration,
    read: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        let reading = scope.spawn(move || {
            let done = read();
            drop(ended);
            done
        });
        let mut shown = Ok(());
        while end.recv_timeout(lease / 6) == Err(RecvTimeoutError::Timeout) {
            shown = shown.and_then(|()| conn.exec("SELECT 1").map(drop));
        }
        let done = reading.join().map_err(|_| Error::defect("a thread of the loader failed"))?;
        shown.and(done)
    })
}
