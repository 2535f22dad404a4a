//! Asks the server to cancel, from any thread.

use super::libpq::*;
use std::ffi::c_char;
use std::ptr;
use std::sync::Mutex;

/// Asks the server to stop what a connection is doing, from any thread.
#[derive(Debug)]
pub struct Canceller(Mutex<*mut PGcancel>);

impl Default for Canceller {
    fn default() -> Canceller {
        Canceller(Mutex::new(ptr::null_mut()))
    }
}

// SAFETY: a PGcancel is immutable after its making; the mutex keeps the use
// and the freeing of it apart.
unsafe impl Send for Canceller {}
// SAFETY: as above.
unsafe impl Sync for Canceller {}

impl Canceller {
    /// From here on, this connection is the one to stop.
    pub(super) fn is_of(&self, conn: *mut PGconn) {
        let mut slot = self.0.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the caller's connection is open.
        *slot = unsafe { PQgetCancel(conn) };
    }

    /// Sends the request. Whether it comes in time, nobody knows.
    pub fn cancel(&self) {
        let raw = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let mut message = [0 as c_char; 256];
        if !raw.is_null() {
            // SAFETY: the pointer is one of PQgetCancel, not freed (the mutex
            // is held, and freeing sets it to NULL); the buffer has its size.
            unsafe { PQcancel(*raw, message.as_mut_ptr().cast(), 256) };
        }
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        let raw = self.0.get_mut().unwrap_or_else(|e| e.into_inner());
        if !raw.is_null() {
            // SAFETY: made by PQgetCancel and freed here only.
            unsafe { PQfreeCancel(*raw) };
        }
    }
}
