//! Statements with values in the binary form.

use super::{c_string, Conn, Res, Rows};
use crate::error::Error;
use crate::session::libpq::*;
use std::ffi::{c_char, c_int};
use std::ptr;

impl Conn {
    /// Runs one statement with parameters in the binary form; `None` is NULL. Rows are text.
    ///
    /// # Errors
    ///
    /// As [`Conn::exec`].
    pub fn query_binary(&mut self, sql: &str, values: &[Option<&[u8]>]) -> Result<Rows, Error> {
        let sql = c_string(sql)?;
        // An empty slice may point anywhere, but not to NULL, which would be NULL to the server.
        let pointers: Vec<*const c_char> =
            values.iter().map(|v| v.map_or(ptr::null(), |v| v.as_ptr().cast())).collect();
        let lengths: Vec<c_int> =
            values.iter().map(|v| v.map_or(0, |v| v.len() as c_int)).collect();
        let formats = vec![1; values.len()];
        // SAFETY: the connection is not NULL, the string is C's; the three arrays have as many
        // entries as is said, each pointer that many bytes, and all live beyond the call.
        let res = Res(unsafe {
            PQexecParams(
                self.raw,
                sql.as_ptr(),
                values.len() as c_int,
                ptr::null(),
                pointers.as_ptr(),
                lengths.as_ptr(),
                formats.as_ptr(),
                0,
            )
        });
        self.finished(res).map(|(rows, _)| rows)
    }
}
