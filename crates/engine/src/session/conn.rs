//! A connection to the server. Only this file, [`target`] and their declarations use the client
//! library.

pub use super::canceller::Canceller;
use super::libpq::*;
use super::{refused, socket, target};
use crate::error::{cut, Error, Kind, ServerSays};
pub use crate::quote::{quote_ident, quote_literal};
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr;
use std::sync::{Arc, Mutex};

mod replace;
mod several;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod values;

/// Some networks forget a connection on which nothing is sent for four minutes, as while the server
/// builds an index. Neither side learns of that. The system's own probes begin after two hours.
const KEEPALIVES: [(&CStr, &CStr); 3] =
    [(c"keepalives_idle", c"60"), (c"keepalives_interval", c"30"), (c"keepalives_count", c"10")];

/// The maximum number of notices that are kept until they are taken; more are dropped.
const MAX_NOTICES: usize = 100;

/// How many milliseconds the rest of a message of the server may take to arrive. A lost packet may be
/// sent again after several hundred.
const WHOLE: c_int = 1000;

/// The maximum number of results that are searched for the server's final message.
const LAST_WORDS: u32 = 3;

/// The notices that are kept, and how many have arrived.
type Notices = Mutex<(Vec<String>, u64)>;

/// A connection, closed when dropped.
#[derive(Debug)]
pub struct Conn {
    raw: *mut PGconn,
    notices: Box<Notices>,
    canceller: Arc<Canceller>,
    /// during a COPY: how many notices were complete when the server last sent something that did
    /// not complete one
    spoken: Option<u64>,
    /// maximum number of bytes in one CopyData message
    piece: usize,
}

// SAFETY: libpq allows any thread to use a connection, one at a time; `Conn` is not Sync and
// returns no reference to the raw connection.
unsafe impl Send for Conn {}

/// The rows of a query as text; `None` is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// The result of [`Conn::copy_probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// the server has sent nothing
    Quiet,
    /// the server has sent something that is not a notice: probably an error
    Suspicious,
}

extern "C" fn keep_notice(arg: *mut c_void, res: *const PGresult) {
    // SAFETY: `arg` is the boxed list that lives as long as the connection; libpq passes a valid
    // result.
    let (notices, text) = unsafe { (&*arg.cast::<Notices>(), text(PQresultErrorMessage(res))) };
    if let Ok(mut notices) = notices.lock() {
        notices.1 += 1;
        if notices.0.len() < MAX_NOTICES {
            notices.0.push(text.trim_end().to_string());
        }
    }
}

/// Copies a C string; NULL gives an empty string.
///
/// # Safety
///
/// `s` is NULL or a valid C string during the call.
unsafe fn text(s: *const c_char) -> String {
    if s.is_null() {
        return String::new();
    }
    // SAFETY: the caller ensures it.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// A result of the server, cleared when dropped.
struct Res(*mut PGresult);

impl Drop for Res {
    fn drop(&mut self) {
        // SAFETY: PQclear takes NULL and any result, which is cleared once.
        unsafe { PQclear(self.0) }
    }
}

impl Res {
    fn status(&self) -> c_int {
        // SAFETY: PQresultStatus takes NULL and any result not cleared.
        unsafe { PQresultStatus(self.0) }
    }

    fn field(&self, code: c_int) -> Option<String> {
        // SAFETY: as above; the string lives as long as the result.
        let field = unsafe { PQresultErrorField(self.0, code) };
        // SAFETY: as above.
        (!field.is_null()).then(|| unsafe { text(field) })
    }

    fn rows(&self) -> Rows {
        // SAFETY: the result is not cleared; indexes are within its bounds.
        unsafe {
            let (rows, columns) = (PQntuples(self.0), PQnfields(self.0));
            let cell = |row, column| {
                (PQgetisnull(self.0, row, column) == 0)
                    .then(|| text(PQgetvalue(self.0, row, column)))
            };
            (0..rows).map(|r| (0..columns).map(|c| cell(r, c)).collect()).collect()
        }
    }

    /// The number of rows in the command tag.
    fn touched(&self) -> u64 {
        // SAFETY: the result is not cleared.
        unsafe { text(PQcmdTuples(self.0)) }.parse().unwrap_or(0)
    }
}

impl Conn {
    /// Connects. `target` is a URL or a list of keywords and values, as libpq accepts them. Other
    /// settings come from the environment, the service file and the password file.
    ///
    /// # Errors
    ///
    /// libpq's message, without the password.
    pub fn open(target: &str) -> Result<Conn, Error> {
        let secrets = target::secrets(&target::read(target)?)?;
        let target = c_string(target)?;
        // The target comes after them, so it can change them.
        let (mut keywords, mut values): (Vec<&CStr>, Vec<&CStr>) = KEEPALIVES.into_iter().unzip();
        keywords.extend([c"dbname", c"fallback_application_name", c"client_encoding"]);
        // Statements and names are UTF-8, whatever encodings the database and the user have.
        values.extend([target.as_c_str(), c"pgsluice", c"UTF8"]);
        keywords.extend(secrets.iter().map(|(keyword, _)| keyword.as_c_str()));
        values.extend(secrets.iter().map(|(_, value)| value.as_c_str()));
        let pointers = |all: Vec<&CStr>| -> Vec<*const c_char> {
            all.into_iter().map(CStr::as_ptr).chain([ptr::null()]).collect()
        };
        let (keywords, values) = (pointers(keywords), pointers(values));
        // SAFETY: both arrays are NULL-terminated and of equal length, and outlive the call.
        let raw = unsafe { PQconnectdbParams(keywords.as_ptr(), values.as_ptr(), 1) };
        let notices = Box::<Notices>::default();
        let canceller = Arc::<Canceller>::default();
        let (spoken, piece) = (None, socket::PIECE);
        let mut conn = Conn { raw, notices, canceller: canceller.clone(), spoken, piece };
        // SAFETY: PQstatus accepts NULL.
        if unsafe { PQstatus(raw) } != CONNECTION_OK {
            return Err(refused::refused(&conn.said(), conn.library()));
        }
        if conn.host().starts_with(['/', '@']) {
            // SAFETY: the connection is open; the call only returns its descriptor.
            conn.piece = socket::widen(unsafe { PQsocket(raw) });
        }
        let arg: *const Notices = &*conn.notices;
        // SAFETY: the list is boxed and dropped after the connection is closed.
        unsafe { PQsetNoticeReceiver(raw, keep_notice, arg as *mut c_void) };
        canceller.is_of(raw);
        Ok(conn)
    }

    /// Returns a handle with which another thread can cancel what this connection does.
    pub fn canceller(&self) -> Arc<Canceller> {
        self.canceller.clone()
    }

    /// The server's version: 150020 for 15.20.
    pub fn server_version(&self) -> u32 {
        // SAFETY: the connection is open or failed, never NULL.
        u32::try_from(unsafe { PQserverVersion(self.raw) }).unwrap_or(0)
    }

    /// A setting that the server reports without a query.
    pub fn parameter(&self, name: &CStr) -> String {
        // SAFETY: as above; the string is copied at once.
        unsafe { text(PQparameterStatus(self.raw, name.as_ptr())) }
    }

    /// The name of the database.
    pub fn database(&self) -> String {
        // SAFETY: as above.
        unsafe { text(PQdb(self.raw)) }
    }

    /// The host, or the folder of the Unix socket.
    pub fn host(&self) -> String {
        // SAFETY: as above.
        unsafe { text(PQhost(self.raw)) }
    }

    /// Takes the notices and warnings that have arrived.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(|e| e.into_inner()).0)
    }

    /// Runs one or several statements without parameters. Returns the rows of the last one.
    ///
    /// # Errors
    ///
    /// The server reports an error, or the connection is lost.
    pub fn exec(&mut self, sql: &str) -> Result<Rows, Error> {
        let (rows, _) = self.exec_counted(sql)?;
        Ok(rows)
    }

    /// As [`Conn::exec`], with the number of rows that the last statement processed.
    ///
    /// # Errors
    ///
    /// As for [`Conn::exec`].
    pub fn exec_counted(&mut self, sql: &str) -> Result<(Rows, u64), Error> {
        let sql = c_string(sql)?;
        // SAFETY: the connection is not NULL, and the string is a C string.
        let res = Res(unsafe { PQexec(self.raw, sql.as_ptr()) });
        self.finished(res)
    }

    /// Runs one statement with parameters, all of them as text.
    ///
    /// # Errors
    ///
    /// As for [`Conn::exec`].
    pub fn query(&mut self, sql: &str, parameters: &[Option<&str>]) -> Result<Rows, Error> {
        let (rows, _) = self.query_counted(sql, parameters)?;
        Ok(rows)
    }

    /// As [`Conn::query`], with the number of rows that the statement processed.
    ///
    /// # Errors
    ///
    /// As for [`Conn::exec`].
    pub fn query_counted(
        &mut self,
        sql: &str,
        parameters: &[Option<&str>],
    ) -> Result<(Rows, u64), Error> {
        let sql = c_string(sql)?;
        let owned = parameters
            .iter()
            .map(|p| p.map(c_string).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let values: Vec<*const c_char> =
            owned.iter().map(|p| p.as_ref().map_or(ptr::null(), |p| p.as_ptr())).collect();
        // SAFETY: `values` has the given number of C strings or NULLs, which outlive the call; all
        // other arrays may be NULL.
        let res = Res(unsafe {
            PQexecParams(
                self.raw,
                sql.as_ptr(),
                values.len() as c_int,
                ptr::null(),
                values.as_ptr(),
                ptr::null(),
                ptr::null(),
                0,
            )
        });
        self.finished(res)
    }

    fn finished(&self, res: Res) -> Result<(Rows, u64), Error> {
        match res.status() {
            PGRES_COMMAND_OK | PGRES_EMPTY_QUERY => Ok((Vec::new(), res.touched())),
            PGRES_TUPLES_OK => Ok((res.rows(), res.touched())),
            _ => Err(self.error(&res)),
        }
    }

    /// Makes the server parse a statement without executing it.
    ///
    /// # Errors
    ///
    /// The server cannot parse it, it is more than one statement, or the connection is lost.
    pub fn read(&mut self, sql: &str) -> Result<(), Error> {
        let sql = c_string(sql)?;
        // SAFETY: the connection is not NULL, both strings are C strings, and no types are given.
        let res = Res(unsafe { PQprepare(self.raw, c"".as_ptr(), sql.as_ptr(), 0, ptr::null()) });
        self.finished(res).map(|_| ())
    }

    /// Starts a `COPY … FROM STDIN`.
    ///
    /// # Errors
    ///
    /// As for [`Conn::exec`].
    pub fn copy_start(&mut self, sql: &str) -> Result<(), Error> {
        let sql = c_string(sql)?;
        // SAFETY: as in `exec_counted`.
        let res = Res(unsafe { PQexec(self.raw, sql.as_ptr()) });
        match res.status() {
            PGRES_COPY_IN => {
                self.spoken = None;
                Ok(())
            }
            _ => Err(self.error(&res)),
        }
    }

    /// Sends data of the open COPY. Waits while the server cannot receive more.
    ///
    /// # Errors
    ///
    /// The connection is lost. If the server rejects the data, [`Conn::copy_probe`] and
    /// [`Conn::copy_end`] report it.
    pub fn copy_data(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for piece in bytes.chunks(self.piece) {
            self.listen(-1)?;
            // SAFETY: the pointer and the length are those of a live slice.
            let done =
                unsafe { PQputCopyData(self.raw, piece.as_ptr().cast(), piece.len() as c_int) };
            if done != 1 {
                return Err(self.lost());
            }
        }
        Ok(())
    }

    /// Whether the server has sent something during a COPY that is not a notice, as far as it has
    /// arrived: probably an error.
    ///
    /// libpq does not report an error before the COPY is ended. Without this check, the rest of a
    /// file would be sent in vain.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn copy_probe(&mut self) -> Result<Probe, Error> {
        self.listen(0)?;
        // Messages are taken in in their order: all bytes before a complete notice are of notices.
        let suspicious = self.spoken == Some(self.noticed());
        Ok(if suspicious { Probe::Suspicious } else { Probe::Quiet })
    }

    /// Call this after [`Probe::Suspicious`]. Whether the result is the same after a notice that
    /// had arrived only in part is complete. Then it is almost certainly an error.
    ///
    /// # Errors
    ///
    /// As for [`Conn::copy_probe`].
    pub fn copy_probe_again(&mut self) -> Result<Probe, Error> {
        while self.spoken == Some(self.noticed()) && self.listen(WHOLE)? {}
        self.copy_probe()
    }

    /// Waits until the server sends something, or without a timeout also until it accepts data.
    /// Returns whether it has sent something. That must be detected here: if libpq waits itself, it
    /// reads an error without reporting it.
    fn listen(&mut self, timeout: c_int) -> Result<bool, Error> {
        // SAFETY: the connection is open; the call only returns its descriptor.
        let fd = unsafe { PQsocket(self.raw) };
        let events = libc::POLLIN | if timeout < 0 { libc::POLLOUT } else { 0 };
        let mut poll = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one pollfd, which outlives the call.
        let some = unsafe { libc::poll(&mut poll, 1, timeout) } > 0;
        let sent = some && poll.revents & libc::POLLIN != 0;
        // TLS may have bytes that the socket no longer has.
        if sent || timeout > 0 {
            let before = self.noticed();
            self.take_in()?;
            if self.noticed() == before {
                self.spoken = Some(before);
            }
        }
        Ok(sent)
    }

    fn noticed(&self) -> u64 {
        self.notices.lock().map_or(0, |n| n.1)
    }

    /// Reads what has arrived, and passes on its notices.
    fn take_in(&mut self) -> Result<(), Error> {
        // SAFETY: the connection is open.
        if unsafe { PQconsumeInput(self.raw) } != 1 {
            return Err(self.lost());
        }
        // SAFETY: no bytes are read from the pointer.
        unsafe { PQputCopyData(self.raw, c"".as_ptr(), 0) };
        Ok(())
    }

    /// Ends the COPY. Returns the number of rows that the server has loaded.
    ///
    /// # Errors
    ///
    /// The server rejects the rows, or the connection is lost.
    pub fn copy_end(&mut self) -> Result<u64, Error> {
        // SAFETY: the connection is open; NULL means that the client reports no error.
        let done = unsafe { PQputCopyEnd(self.raw, ptr::null()) };
        if done != 1 {
            return Err(self.lost());
        }
        self.results()
    }

    /// The complete message of libpq for the last failure.
    fn said(&self) -> String {
        // SAFETY: PQerrorMessage accepts NULL; the string is copied at once.
        unsafe { text(PQerrorMessage(self.raw)) }
    }

    /// The version of libpq, as a number.
    pub(super) fn library(&self) -> u32 {
        // SAFETY: the function has no arguments and no state.
        u32::try_from(unsafe { PQlibVersion() }).unwrap_or(0)
    }

    fn is_lost(&self) -> bool {
        // SAFETY: the connection is open or failed, never NULL.
        unsafe { PQstatus(self.raw) != CONNECTION_OK }
    }

    /// The error if the connection is lost while a COPY is open. The server's last message has not
    /// been read yet, and gives the reason.
    fn lost(&self) -> Error {
        let said = self.said();
        // SAFETY: the connection is not NULL; the call only changes its state, so that results can
        // be read.
        unsafe { PQputCopyEnd(self.raw, ptr::null()) };
        for _ in 0..LAST_WORDS {
            // SAFETY: as above; the result is cleared.
            let res = Res(unsafe { PQgetResult(self.raw) });
            if res.0.is_null() {
                break;
            }
            if res.field(PG_DIAG_MESSAGE_PRIMARY).is_some() {
                return self.error(&res);
            }
        }
        lost(&said)
    }

    fn error(&self, res: &Res) -> Error {
        let Some(message) = res.field(PG_DIAG_MESSAGE_PRIMARY) else {
            return lost(&self.said());
        };
        let hint = res.field(PG_DIAG_MESSAGE_HINT);
        let message = cut(&message);
        // After a FATAL error the server ends the session, if it has not done so yet.
        let fatal = res.field(PG_DIAG_SEVERITY_NONLOCALIZED).is_some_and(|s| s != "ERROR");
        let error = match fatal || self.is_lost() {
            true => Error::new(format!("connection lost: the server said: {message}"))
                .of_kind(Kind::Connection),
            false => Error::new(message),
        };
        let error = error.with_server(ServerSays {
            sqlstate: res.field(PG_DIAG_SQLSTATE).unwrap_or_default(),
            detail: res.field(PG_DIAG_MESSAGE_DETAIL).map(|detail| cut(&detail)),
            context: res.field(PG_DIAG_CONTEXT).map(|context| cut(&context)),
            column: res.field(PG_DIAG_COLUMN_NAME),
            constraint: res.field(PG_DIAG_CONSTRAINT_NAME),
            function: res.field(PG_DIAG_SOURCE_FUNCTION),
        });
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // SAFETY: PQfinish accepts NULL, and is called once.
        unsafe { PQfinish(self.raw) }
    }
}

/// The error for a lost connection. libpq's message may include an earlier message of the server.
fn lost(said: &str) -> Error {
    let last = said.lines().find_map(|l| l.strip_prefix("FATAL:").or(l.strip_prefix("PANIC:")));
    let why = match last {
        Some(words) => format!("the server said: {}", words.trim()),
        // Text after a tab is a guess of libpq.
        None => said.lines().next().unwrap_or_default().trim().to_owned(),
    };
    Error::new(format!("connection lost: {why}")).of_kind(Kind::Connection)
}

pub(super) fn c_string(s: &str) -> Result<CString, Error> {
    CString::new(s).map_err(|_| Error::new("a NUL character in a name or a setting"))
}
