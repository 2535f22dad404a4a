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
    /// Makes `conn` the connection to cancel, instead of the one before.
    pub(super) fn is_of(&self, conn: *mut PGconn) {
        let mut slot = self.0.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the caller's connection is open.
        let before = std::mem::replace(&mut *slot, unsafe { PQgetCancel(conn) });
        if !before.is_null() {
            // SAFETY: created by PQgetCancel, and no longer in the slot.
            unsafe { PQfreeCancel(before) };
        }
    }

    /// Sends the request. There is no guarantee that it arrives in time.
    pub fn cancel(&self) {
        let raw = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let mut message = [0 as c_char; 256];
        if !raw.is_null() {
            // SAFETY: the pointer is from PQgetCancel and not freed (the mutex is held, and what is
            // freed is not in it any more); the buffer has the given size.
            unsafe { PQcancel(*raw, message.as_mut_ptr().cast(), 256) };
        }
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        let raw = self.0.get_mut().unwrap_or_else(|e| e.into_inner());
        if !raw.is_null() {
            // SAFETY: created by PQgetCancel; nothing else can free it any more.
            unsafe { PQfreeCancel(*raw) };
        }
    }
}
