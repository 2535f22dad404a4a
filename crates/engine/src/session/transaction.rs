//! The transaction of the load: how it begins and ends, and what it does besides loading rows.

use super::catalog;
use super::conn::{quote_literal, Conn};
use super::create;
use super::exclusive_table;
use super::prepared::refuse_to_wait;
use super::unchanged;
use crate::error::{Error, Kind};
use crate::facts::{NewTable, Purpose, ServerFacts, TableFacts};
use crate::input::Reader;
use crate::once::parts::mark_session;
use crate::options::{Create, FileFormat, Indexes, Method, Options, TargetOptions};
use crate::plan::locks::locked_first;
use crate::plan::INDEX_BUILD;
use crate::text::text;
use crate::watch::Watch;
use std::thread;
use std::time::{Duration, Instant};

/// How often the server is queried for the outcome of a transaction whose connection was lost, and
/// the pause between: one minute in total. On a busy machine, its process may notice the loss late.
/// A COMMIT that it is processing may wait for a disk or a standby.
pub(super) const TRIES: u32 = 600;
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Begins a transaction that may write, whatever the default of the role or the database is, and in
/// which each statement sees what was committed before it. See [`refuse_read_only`].
pub const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// Begins the transaction. Settings are local to it, so that a connection of a pooler is returned
/// unchanged.
///
/// # Errors
///
/// The server rejects a setting, or the connection is lost.
pub fn begin(conn: &mut Conn, options: &Options) -> Result<(), Error> {
    let mut settings = vec![("client_encoding".to_owned(), "UTF8".to_owned())];
    settings.extend(crate::plan::settings(options, conn.server_version() / 10_000));
    let local = |(name, value): &(String, String)| {
        format!("pg_catalog.set_config({}, {}, true)", quote_literal(name), quote_literal(value))
    };
    let locals: Vec<String> = settings.iter().map(local).collect();
    // One message, since each costs a round trip.
    conn.exec(&format!("{BEGIN}; SELECT {}", locals.join(", ")))?;
    if options.rejects.is_some() {
        // A violation that is found only at the commit could not be assigned to its record.
        check_deferred(conn)?;
    }
    let share = options.once.as_ref().and_then(|once| once.share);
    match share.and_then(|share| share.load) {
        Some(load) => mark_session(conn, load),
        None => Ok(()),
    }
}

/// Begins a transaction that may run for a long time. Its only time limit is `lock_timeout`, in the
/// server's form, for each lock.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn begin_long(conn: &mut Conn, lock_timeout: Option<&str>) -> Result<(), Error> {
    conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
    if let Some(timeout) = lock_timeout {
        let set = "SELECT pg_catalog.set_config('lock_timeout', $1, true)";
        conn.query(set, &[Some(timeout)])?;
    }
    Ok(())
}

/// Follows BEGIN if a transaction may run or wait for a long time: disables the timeouts of the
/// role for it. The last one exists since PostgreSQL 17.
pub const NO_TIMEOUTS: &str = "SELECT pg_catalog.set_config(name, '0', true) \
    FROM (VALUES ('statement_timeout'), ('lock_timeout'), \
      ('idle_in_transaction_session_timeout'), ('transaction_timeout')) AS timeouts(name) \
    WHERE pg_catalog.current_setting(name, true) IS NOT NULL";

fn set(conn: &mut Conn, name: &str, value: &str) -> Result<(), Error> {
    conn.query("SELECT pg_catalog.set_config($1, $2, true)", &[Some(name), Some(value)])?;
    Ok(())
}

/// Sets `search_path` until the transaction ends. Returns the previous value.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn search_path(conn: &mut Conn, path: &str) -> Result<String, Error> {
    let rows = conn.query(
        "SELECT pg_catalog.current_setting('search_path'), \
         pg_catalog.set_config('search_path', $1, true)",
        &[Some(path)],
    )?;
    Ok(rows[0][0].clone().unwrap_or_default())
}

/// Checks deferred constraints now, not at the commit.
///
/// # Errors
///
/// A row violates one of them, or the connection is lost.
pub(crate) fn check_deferred(conn: &mut Conn) -> Result<(), Error> {
    conn.exec("SET CONSTRAINTS ALL IMMEDIATE").map(drop)
}

/// Calls `work` under a `search_path` of `pg_catalog` alone, in the open transaction. The server
/// prefers a function or operator of any schema of the path to one of pg_catalog if it fits the
/// types of the arguments better. So a role that may create one in such a schema could have this role
/// run it. After an error, the path stays, and the transaction must be rolled back.
///
/// This program's queries under another path have `pg_catalog.` before each function, and operands
/// of exactly the types of an operator of pg_catalog.
///
/// # Errors
///
/// As for `work`, or the connection is lost.
pub(crate) fn in_pg_catalog<T>(
    conn: &mut Conn,
    work: impl FnOnce(&mut Conn) -> Result<T, Error>,
) -> Result<T, Error> {
    let own = search_path(conn, "pg_catalog")?;
    let done = work(conn)?;
    search_path(conn, &own)?;
    Ok(done)
}

/// Ends the transaction before the rows, for the method that commits each row. After that, each
/// statement includes its settings: with a pooler, it may run in another session than the one
/// before.
///
/// # Errors
///
/// Transactions are read-only by default, or the connection is lost.
pub fn leave(conn: &mut Conn) -> Result<(), Error> {
    let read_only = conn.exec("SHOW default_transaction_read_only")?;
    if read_only[0][0].as_deref() == Some("on") {
        return Err(Error::new("`method` insert needs a transaction for each row, and transactions of this role or database are read-only by default")
            .with_hint("use another method: its one transaction is declared READ WRITE"));
    }
    conn.exec("COMMIT")?;
    // Poolers must keep the encoding for each of their clients.
    conn.exec("SET client_encoding = 'UTF8'")?;
    Ok(())
}

/// Refuses to write if transactions are read-only by default on the whole server, as COPY does.
/// Managed services set that when the disk is nearly full, and [`BEGIN`] overrides it. A load looks
/// once, before it changes anything.
///
/// # Errors
///
/// They are, or the connection is lost.
pub fn refuse_read_only(conn: &mut Conn) -> Result<(), Error> {
    match catalog::is_read_only(conn)? {
        true => Err(read_only()),
        false => Ok(()),
    }
}

fn read_only() -> Error {
    Error::new("the server is read-only by default").with_hint(
        "its operator, or a service whose disk is nearly full, has set \
         default_transaction_read_only; options='-c default_transaction_read_only=off' in the \
         target overrides that",
    )
}

/// Precedes each statement that is a separate transaction: its commit does not wait for the disk.
/// The setting is local to the transaction, so that a connection of a pooler is returned unchanged.
pub const NO_WAIT: &str = "SET LOCAL synchronous_commit = off; ";

/// Precedes a statement about sessions of loads, which then runs as the role that has logged in: a
/// role that is set for the rows, by default or by the target, may neither see what these sessions
/// wait for nor end them. It is local to the transaction.
pub const AS_LOGGED_IN: &str = "SET LOCAL ROLE NONE; ";

/// For a transaction with a record that others rely on: its commit waits for the disk, whatever the
/// default of the role or the database is.
pub const SYNCHRONOUS: &str = "SELECT pg_catalog.set_config('synchronous_commit', 'on', true) \
    WHERE pg_catalog.current_setting('synchronous_commit') = 'off'";

/// Waits until everything that was committed is on disk, and wherever else the server's
/// `synchronous_commit` requires it. A transaction that writes only to the WAL waits for all WAL
/// before its own.
///
/// # Errors
///
/// The connection is lost.
pub fn await_disk(conn: &mut Conn) -> Result<(), Error> {
    let message = "SELECT pg_catalog.pg_logical_emit_message(true, 'pgsluice', '')";
    conn.exec(&format!("{BEGIN}; {SYNCHRONOUS}; {message}; COMMIT"))?;
    Ok(())
}

/// Finds the table, locks it if `lock` is set, and reads its columns and the facts about the
/// server. [`catalog::describe`] reads the other facts.
///
/// # Errors
///
/// The table does not exist (with `create`: it exists), the role may not lock it, prepared lanes of
/// a load that is gone hold locks of it, the server's version or the encoding is not supported, a
/// load would write to a server that is read-only by default, or the connection is lost.
pub fn inspect(
    conn: &mut Conn,
    reader: &Reader,
    options: &Options,
    purpose: &Purpose,
    lock: bool,
) -> Result<(ServerFacts, TableFacts, Option<NewTable>), Error> {
    let mut server = catalog::server(conn)?;
    if server.major() < 15 {
        return Err(Error::new(format!("the server is PostgreSQL {}", server.major()))
            .with_hint("pgsluice works with PostgreSQL 15 and later"));
    }
    if server.read_only && matches!(purpose, Purpose::Load) {
        return Err(read_only());
    }
    let target = &options.target;
    if matches!(target.method, Method::Auto | Method::Extension) {
        catalog::try_extension(conn, &mut server)?;
    }
    if server.extension.is_some() {
        set(conn, INDEX_BUILD, "on")?;
    }
    check_encoding(conn, options)?;
    let mut found = catalog::find(conn, &target.table)?;
    let mut new = None;
    if target.create != Create::No {
        if let Some(table) = found {
            return Err(Error::new(format!("table {} exists already", table.sql))
                .with_hint("leave `create` out to load into it"));
        }
        let made = create::infer(conn, reader, options)?;
        conn.exec(&made.statement)?;
        new = Some(made);
        found = catalog::find(conn, &target.table)?;
    }
    let Some(mut table) = found else {
        return Err(Error::new(format!("there is no table {}", target.table)).with_hint(text!(
            "in database {}; names are read as SQL reads them: \"Quoted\" ones keep their \
             case; `create` makes a table",
            conn.database()
        )));
    };
    table.created = new.is_some();
    if server.extension.is_some() && wants_private(reader, options) && !table.created {
        table.private = in_pg_catalog(conn, |conn| match lock {
            true => exclusive_table::lock(conn, &table),
            false => exclusive_table::can(conn, &table),
        })?;
    }
    if lock && table.is_table() {
        if !table.private {
            lock_table(conn, &table, target)?;
        }
        // Before the lock was granted, another table may have taken the name.
        if catalog::find(conn, &target.table)?.is_none_or(|now| now.oid != table.oid) {
            return Err(unchanged::changed(&table.sql));
        }
    }
    table.columns = catalog::columns(conn, &server, table.oid)?;
    Ok((server, table, new))
}

/// Locks the table, so that the facts about it stay valid until the load ends.
fn lock_table(conn: &mut Conn, table: &TableFacts, target: &TargetOptions) -> Result<(), Error> {
    let statement = match locked_first(table, target) {
        true => {
            refuse_to_wait(conn, table.oid, &table.sql)?;
            format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE", table.sql)
        }
        false => table.shared_lock(),
    };
    conn.exec(&statement)?;
    Ok(())
}

/// Whether a load by the extension should lock an empty table for itself. `auto` decides so if the
/// user has set nothing to the contrary.
fn wants_private(reader: &Reader, options: &Options) -> bool {
    let target = &options.target;
    target.method == Method::Auto
        && !target.truncate
        && options.rejects.is_none()
        && options.input.format != FileFormat::Binary
        && target.indexes == Indexes::Auto
        && !options.in_pieces()
        && !target.no_lock_out
        && reader.total_bytes() >= exclusive_table::WORTH
}

fn check_encoding(conn: &mut Conn, options: &Options) -> Result<(), Error> {
    let Some(encoding) = &options.input.encoding else { return Ok(()) };
    let rows = conn.query("SELECT pg_catalog.pg_char_to_encoding($1)", &[Some(encoding)])?;
    match rows[0][0].as_deref() {
        Some("-1") | None => {
            Err(Error::new(format!("the server does not support the encoding {encoding:?}"))
                .with_hint("it has names such as UTF8, LATIN1, WIN1252, SJIS and EUC_KR"))
        }
        _ => Ok(()),
    }
}

/// The server's position in its WAL; `None` if the role may not read it.
pub fn wal_position(conn: &mut Conn) -> Option<u64> {
    let position =
        "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')";
    let rows = conn.exec(position).ok()?;
    rows.first()?.first()?.as_ref()?.parse().ok()
}

/// Checks over a new connection whether the server has what the transaction with this ID has
/// recorded.
pub(crate) type IsThere<'a> = dyn Fn(&mut Conn, &str) -> Result<bool, Error> + 'a;

/// Commits. If the connection is lost during COMMIT, a new connection queries the outcome of the
/// transaction. If the server cannot be reached, it may be restarting, and is asked again for a
/// minute, or until the user stops the load.
///
/// # Errors
///
/// The transaction is rolled back, or its outcome is unknown.
pub fn commit(conn: &mut Conn, url: &str, watch: &Watch) -> Result<(), Error> {
    commit_if(conn, url, watch, None)
}

/// As [`commit`], for a transaction that has recorded what it did. After a failover to a standby
/// that lagged, the server may lack the transaction, and another session may have used its ID and
/// committed. Only its rows show that it is committed. This does not wait for a server that cannot
/// be reached: the next load finds out.
///
/// # Errors
///
/// As for [`commit`].
pub(crate) fn commit_recorded(
    conn: &mut Conn,
    url: &str,
    watch: &Watch,
    is_there: &IsThere<'_>,
) -> Result<(), Error> {
    commit_if(conn, url, watch, Some(is_there))
}

/// The hint if it cannot be found out whether rows are committed.
pub(super) const LOOK: &str = "look which rows the table has before you load the files again";

/// Precedes COMMIT: the transaction's ID, and the server's start and the current time in seconds.
pub(super) const BEFORE_COMMIT: &str = "SELECT pg_current_xact_id_if_assigned(), \
    extract(epoch FROM pg_catalog.pg_postmaster_start_time()), \
    extract(epoch FROM pg_catalog.clock_timestamp())";

fn commit_if(
    conn: &mut Conn,
    url: &str,
    watch: &Watch,
    is_there: Option<&IsThere<'_>>,
) -> Result<(), Error> {
    let before = conn.exec(BEFORE_COMMIT)?.pop().unwrap_or_default();
    let Err(error) = conn.exec("COMMIT") else { return Ok(()) };
    // A server that ends the session, or a pooler that has lost it, may have sent an SQLSTATE.
    if error.kind() != Kind::Connection {
        return Err(error);
    }
    let Some(xid) = before.first().cloned().flatten() else { return Err(error) };
    let unknown = unknown_outcome(&error, "the rows of this transaction")
        .with_hint(format!("ask the server: SELECT pg_xact_status('{xid}')"));
    let until = Instant::now() + PAUSE * TRIES;
    loop {
        let asked = ask(url, watch, &xid);
        let later = match &asked {
            // The server has not detected yet that its client is gone.
            Ok((_, status)) => status.as_deref() == Some("in progress"),
            Err(failed) => failed.kind() == Kind::Connection && is_there.is_none(),
        };
        if later && !watch.stop.is_set() && Instant::now() < until {
            thread::sleep(PAUSE);
            continue;
        }
        let Ok((mut again, status)) = asked else { return Err(unknown) };
        let own = is_there.is_some() || is_own(&mut again, &before, false);
        let committed = match (status.as_deref(), is_there) {
            (Some("in progress"), _) => None,
            (_, Some(is_there)) => is_there(&mut again, &xid).ok(),
            (Some("committed"), None) if !own => None,
            (status, None) => status.map(|status| status == "committed"),
        };
        return match committed {
            Some(true) => {
                conn.replace_by(again);
                Ok(())
            }
            Some(false) if status.as_deref() == Some("aborted") => Err(error),
            Some(false) => Err(lacking(&error)),
            None if own => Err(unknown),
            // The answer to the query in the hint is, or will be, about another transaction.
            None => Err(unknown.with_hint(LOOK)),
        };
    }
}

/// Queries the status of a transaction over a new connection, which is returned. The status is
/// `None` if the server does not report it.
fn ask(url: &str, watch: &Watch, xid: &str) -> Result<(Conn, Option<String>), Error> {
    let target = url.to_owned();
    let mut conn = watch.until_stopped(move || Conn::open(&target))?;
    match status_of(&mut conn, xid) {
        Err(error) if error.kind() == Kind::Connection => Err(error),
        status => Ok((conn, status.ok().flatten())),
    }
}

/// Whether the ID is still that of the transaction which was to be committed. `before` is the row of
/// [`BEFORE_COMMIT`]; `flushed`: a crash cannot lose it, because it was prepared.
///
/// Another transaction gets the ID if the server has crashed before anything of the first one was on
/// disk, or if a standby has taken over without it. A balancer or a pooler may hold the new connection
/// until then, so that neither is noticed. So the server must be the same one, or have been started
/// after that query; a standby was started before. And its latest checkpoint must know the ID. If the
/// server was not started again, the checkpoint may also be older than the query: after a crash of
/// another session, the recovery ends with a checkpoint. Its time has whole seconds.
pub(super) fn is_own(conn: &mut Conn, before: &[Option<String>], flushed: bool) -> bool {
    let mut before: Vec<Option<&str>> = before.iter().map(Option::as_deref).collect();
    before.push(Some(if flushed { "t" } else { "f" }));
    let rows = conn.query(
        "SELECT FROM (SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time()) AS started, \
             extract(epoch FROM c.checkpoint_time) AS checked, \
             pg_catalog.split_part(c.next_xid, ':', 1)::bigint * 4294967296 \
               + pg_catalog.split_part(c.next_xid, ':', 2)::bigint > $1::bigint AS known \
           FROM pg_catalog.pg_control_checkpoint() c) s \
         WHERE NOT pg_catalog.pg_is_in_recovery() \
           AND (started = $2::numeric \
               AND ($4::boolean OR known OR checked < $3::numeric - 1.0) \
             OR started > $3::numeric AND known)",
        &before,
    );
    rows.is_ok_and(|rows| !rows.is_empty())
}

/// The error for a transaction that may be committed, with the rows that it then has.
pub(super) fn unknown_outcome(error: &Error, rows: &str) -> Error {
    Error::new(format!(
        "the connection was lost during COMMIT, and the outcome is unknown: {}",
        error.message().plain()
    ))
    .of_kind(Kind::Connection)
    .with_changed(format!("perhaps: {rows}"))
}

/// The error for a transaction that is not rolled back and that the server lacks.
pub(super) fn lacking(error: &Error) -> Error {
    Error::new(format!(
        "the connection was lost during COMMIT, and the server now lacks the transaction: is it a standby \
         that lagged? ({})",
        error.message().plain()
    ))
    .of_kind(Kind::Connection)
    .with_hint("the same command loads what is missing")
}

/// The status of a transaction; `None` if it is too old for the server to report.
///
/// # Errors
///
/// The server has not used this ID yet, or the connection is lost.
pub(crate) fn status_of(conn: &mut Conn, xid: &str) -> Result<Option<String>, Error> {
    let rows = conn.query("SELECT pg_catalog.pg_xact_status($1::text::xid8)", &[Some(xid)])?;
    Ok(rows.into_iter().next().and_then(|row| row.into_iter().next()?))
}
