//! Sends cancel requests to the server, from any thread.

use super::libpq::*;
use std::ffi::c_char;
use std::ptr;
use std::sync::Mutex;

/// Requests that the server cancel the running statement of a connection, from any thread.
#[derive(Debug)]
pub struct Canceller(Mutex<*mut PGcancel>);

impl Default for Canceller {
    fn default() -> Canceller {
        Canceller(Mutex::new(ptr::null_mut()))
    }
}

// SAFETY: a PGcancel is immutable after its creation; the mutex serializes its use and its freeing.
unsafe impl Send for Canceller {}
// SAFETY: as above.
unsafe impl Sync for Canceller {}

impl Canceller {
    /// Makes `conn` the connection to cancel.
    pub(super) fn is_of(&self, conn: *mut PGconn) {
        let mut slot = self.0.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the caller's connection is open.
        *slot = unsafe { PQgetCancel(conn) };
    }

    /// Sends the request. There is no guarantee that it arrives in time.
    pub fn cancel(&self) {
        let raw = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let mut message = [0 as c_char; 256];
        if !raw.is_null() {
            // SAFETY: the pointer is from PQgetCancel and not freed (the mutex is held, and freeing
            // sets it to NULL); the buffer has the given size.
            unsafe { PQcancel(*raw, message.as_mut_ptr().cast(), 256) };
        }
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        let raw = self.0.get_mut().unwrap_or_else(|e| e.into_inner());
        if !raw.is_null() {
            // SAFETY: created by PQgetCancel and freed only here.
            unsafe { PQfreeCancel(*raw) };
        }
    }
}
