//! Statements with values in binary format.

use super::{c_string, Conn, Res, Rows};
use crate::error::Error;
use crate::session::libpq::*;
use std::ffi::{c_char, c_int};
use std::ptr;

impl Conn {
    /// Runs one statement with parameters in binary format; `None` is NULL. The rows are text.
    ///
    /// # Errors
    ///
    /// As for [`Conn::exec`].
    pub fn query_binary(&mut self, sql: &str, values: &[Option<&[u8]>]) -> Result<Rows, Error> {
        let sql = c_string(sql)?;
        // The pointer of an empty slice is not NULL, so the server does not read it as NULL.
        let pointers: Vec<*const c_char> =
            values.iter().map(|v| v.map_or(ptr::null(), |v| v.as_ptr().cast())).collect();
        let lengths: Vec<c_int> =
            values.iter().map(|v| v.map_or(0, |v| v.len() as c_int)).collect();
        let formats = vec![1; values.len()];
        // SAFETY: the connection is not NULL, and the string is a C string; the three arrays have
        // the given number of entries, each pointer has the given number of bytes, and all outlive
        // the call.
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

    /// Runs one query. Returns its rows in COPY's binary format, and their number.
    ///
    /// # Errors
    ///
    /// As for [`Conn::exec`].
    pub fn tuples(&mut self, sql: &str) -> Result<(Vec<u8>, u64), Error> {
        let sql = c_string(sql)?;
        let none = ptr::null();
        // SAFETY: the connection is not NULL, the string is a C string, and there are no
        // parameters.
        let res = Res(unsafe {
            PQexecParams(self.raw, sql.as_ptr(), 0, none, ptr::null(), ptr::null(), ptr::null(), 1)
        });
        if res.status() != PGRES_TUPLES_OK {
            return Err(self.error(&res));
        }
        // SAFETY: the result is not NULL.
        let (rows, columns) = unsafe { (PQntuples(res.0), PQnfields(res.0)) };
        let mut out = Vec::new();
        for row in 0..rows {
            out.extend_from_slice(&(columns as u16).to_be_bytes());
            for column in 0..columns {
                // SAFETY: row and column are within the result.
                if unsafe { PQgetisnull(res.0, row, column) } == 1 {
                    out.extend_from_slice(&(-1i32).to_be_bytes());
                    continue;
                }
                // SAFETY: as above; the value has the given number of bytes, and lives as long as
                // the result.
                let value = unsafe {
                    let length = PQgetlength(res.0, row, column);
                    std::slice::from_raw_parts(
                        PQgetvalue(res.0, row, column).cast::<u8>(),
                        length as usize,
                    )
                };
                out.extend_from_slice(&(value.len() as u32).to_be_bytes());
                out.extend_from_slice(value);
            }
        }
        Ok((out, rows as u64))
    }
}
