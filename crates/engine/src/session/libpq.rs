//! The declarations of libpq that [`super::conn`] and [`super::target`] use.
//!
//! Source: `libpq-fe.h`, whose ABI is the same for every `libpq.so.5`. Written
//! by hand, so that neither headers nor a binding generator are needed to build.

#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_int, c_void};

/// Whether OpenSSL was compiled for this program. Then its default folder of certificates is
/// missing.
pub const COMPILED_OPENSSL: bool = cfg!(compiled_openssl);

#[repr(C)]
pub struct PGconn {
    _private: [u8; 0],
}

#[repr(C)]
pub struct PGresult {
    _private: [u8; 0],
}

#[repr(C)]
pub struct PGcancel {
    _private: [u8; 0],
}

/// A keyword of a target. NULL as the keyword ends an array.
#[repr(C)]
pub struct PQconninfoOption {
    pub keyword: *mut c_char,
    pub envvar: *mut c_char,
    pub compiled: *mut c_char,
    pub val: *mut c_char,
    pub label: *mut c_char,
    pub dispchar: *mut c_char,
    pub dispsize: c_int,
}

pub const CONNECTION_OK: c_int = 0;

pub const PGRES_EMPTY_QUERY: c_int = 0;
pub const PGRES_COMMAND_OK: c_int = 1;
pub const PGRES_TUPLES_OK: c_int = 2;
pub const PGRES_COPY_IN: c_int = 4;

pub const PG_DIAG_SEVERITY_NONLOCALIZED: c_int = b'V' as c_int;
pub const PG_DIAG_SQLSTATE: c_int = b'C' as c_int;
pub const PG_DIAG_MESSAGE_PRIMARY: c_int = b'M' as c_int;
pub const PG_DIAG_MESSAGE_DETAIL: c_int = b'D' as c_int;
pub const PG_DIAG_MESSAGE_HINT: c_int = b'H' as c_int;
pub const PG_DIAG_CONTEXT: c_int = b'W' as c_int;
pub const PG_DIAG_COLUMN_NAME: c_int = b'c' as c_int;
pub const PG_DIAG_CONSTRAINT_NAME: c_int = b'n' as c_int;
pub const PG_DIAG_SOURCE_FUNCTION: c_int = b'R' as c_int;

pub type PQnoticeReceiver = extern "C" fn(arg: *mut c_void, res: *const PGresult);

extern "C" {
    pub fn PQconnectdbParams(
        keywords: *const *const c_char,
        values: *const *const c_char,
        expand_dbname: c_int,
    ) -> *mut PGconn;
    pub fn PQconninfoParse(
        conninfo: *const c_char,
        fault: *mut *mut c_char,
    ) -> *mut PQconninfoOption;
    pub fn PQconninfoFree(options: *mut PQconninfoOption);
    pub fn PQfreemem(pointer: *mut c_void);
    pub fn PQfinish(conn: *mut PGconn);
    pub fn PQstatus(conn: *const PGconn) -> c_int;
    pub fn PQerrorMessage(conn: *const PGconn) -> *const c_char;
    pub fn PQserverVersion(conn: *const PGconn) -> c_int;
    pub fn PQparameterStatus(conn: *const PGconn, name: *const c_char) -> *const c_char;
    pub fn PQsocket(conn: *const PGconn) -> c_int;
    pub fn PQlibVersion() -> c_int;
    pub fn PQdb(conn: *const PGconn) -> *const c_char;
    pub fn PQhost(conn: *const PGconn) -> *const c_char;
    pub fn PQexec(conn: *mut PGconn, query: *const c_char) -> *mut PGresult;
    pub fn PQsendQuery(conn: *mut PGconn, query: *const c_char) -> c_int;
    pub fn PQexecParams(
        conn: *mut PGconn,
        command: *const c_char,
        n: c_int,
        types: *const u32,
        values: *const *const c_char,
        lengths: *const c_int,
        formats: *const c_int,
        result_format: c_int,
    ) -> *mut PGresult;
    pub fn PQprepare(
        conn: *mut PGconn,
        name: *const c_char,
        query: *const c_char,
        n: c_int,
        types: *const u32,
    ) -> *mut PGresult;
    pub fn PQgetResult(conn: *mut PGconn) -> *mut PGresult;
    pub fn PQconsumeInput(conn: *mut PGconn) -> c_int;
    pub fn PQputCopyData(conn: *mut PGconn, buffer: *const c_char, n: c_int) -> c_int;
    pub fn PQputCopyEnd(conn: *mut PGconn, error: *const c_char) -> c_int;
    pub fn PQsetNoticeReceiver(
        conn: *mut PGconn,
        receiver: PQnoticeReceiver,
        arg: *mut c_void,
    ) -> Option<PQnoticeReceiver>;
    pub fn PQresultStatus(res: *const PGresult) -> c_int;
    pub fn PQresultErrorMessage(res: *const PGresult) -> *const c_char;
    pub fn PQresultErrorField(res: *const PGresult, code: c_int) -> *const c_char;
    pub fn PQntuples(res: *const PGresult) -> c_int;
    pub fn PQnfields(res: *const PGresult) -> c_int;
    pub fn PQgetvalue(res: *const PGresult, row: c_int, column: c_int) -> *const c_char;
    pub fn PQgetlength(res: *const PGresult, row: c_int, column: c_int) -> c_int;
    pub fn PQgetisnull(res: *const PGresult, row: c_int, column: c_int) -> c_int;
    pub fn PQcmdTuples(res: *mut PGresult) -> *const c_char;
    pub fn PQclear(res: *mut PGresult);
    pub fn PQgetCancel(conn: *mut PGconn) -> *mut PGcancel;
    pub fn PQcancel(cancel: *mut PGcancel, buffer: *mut c_char, size: c_int) -> c_int;
    pub fn PQfreeCancel(cancel: *mut PGcancel);
}
