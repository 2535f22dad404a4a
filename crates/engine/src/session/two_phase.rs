//! Commits the transactions of several lanes together, by two-phase commit.
//!
//! Their names contain the ID of the first one, and the first is committed first. So `repair` can
//! decide what to do with those that a crash left prepared.

use super::conn::Conn;
use super::transaction::{is_own, lacking, status_of, unknown_outcome};
use super::transaction::{BEFORE_COMMIT, BEGIN, LOOK, NO_TIMEOUTS, PAUSE, TRIES};
use crate::error::{Error, Kind};
use crate::ledger;
use crate::sniff::counted;
use std::thread;

/// The hint for lanes that are left prepared.
const REPAIR: &str = "pgsluice repair commits or rolls back the rest, as the first lane was";

/// The hint if the server cannot prepare a transaction because of what it has done.
const ALONE: &str = "`method` auto takes one connection, which needs no two-phase commit";

/// What an error says before the rows that are committed, if the first lane has deleted the others.
pub(crate) const EMPTIED: &str = "the table was emptied; ";

/// The prepared transactions of all lanes.
pub(crate) struct PreparedLanes {
    /// for each transaction, the row of [`BEFORE_COMMIT`]
    before: Vec<Vec<Option<String>>>,
}

impl PreparedLanes {
    /// Prepares the transactions of all lanes. `guard` is in no transaction, and begins one. Its
    /// lock shows `repair` that the load is still at work.
    ///
    /// # Errors
    ///
    /// A transaction cannot be prepared: all are rolled back, and the error names those that may be
    /// left.
    pub(crate) fn prepare(
        conns: &mut [&mut Conn],
        guard: &mut Conn,
        url: &str,
    ) -> Result<PreparedLanes, Error> {
        let before = conns.iter_mut().map(|conn| before_commit(conn)).collect::<Result<_, _>>()?;
        let lanes = PreparedLanes { before };
        guard.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
        ledger::lock(guard, lanes.xid(0))?;
        for i in 0..conns.len() {
            let prepared = conns[i].exec(&format!("PREPARE TRANSACTION {}", lanes.name(i)));
            if let Err(error) = prepared {
                return Err(lanes.roll_back(&mut conns[..=i], url, error));
            }
        }
        Ok(lanes)
    }

    /// The ID of a transaction.
    fn xid(&self, i: usize) -> &str {
        self.before[i].first().and_then(Option::as_deref).unwrap_or_default()
    }

    /// The name of a transaction, as a literal.
    fn name(&self, i: usize) -> String {
        format!("'pgsluice_{}_{i}'", self.xid(0))
    }

    /// Rolls back all transactions up to the last one of `conns`, which could not be prepared.
    /// Returns its error, with the names of those that may be left: they would keep their locks.
    fn roll_back(&self, conns: &mut [&mut Conn], url: &str, error: Error) -> Error {
        let last = conns.len() - 1;
        let mut left = Vec::new();
        for (i, conn) in conns.iter_mut().enumerate() {
            let statement = format!("ROLLBACK PREPARED {}", self.name(i));
            let done = if i == last {
                // If its answer is lost, the server may have prepared it.
                error.kind() != Kind::Connection
            } else {
                conn.exec(&statement).is_ok()
            };
            if !done && roll_back_again(url, &self.name(i), self.xid(i)).is_err() {
                left.push(statement);
            }
        }
        if !left.is_empty() {
            let left = format!("perhaps left: {}", left.join("; "));
            return error.with_changed(left).with_hint(REPAIR).leaving_prepared();
        }
        if error.sqlstate() == "0A000" {
            return error.with_hint(ALONE);
        }
        error
    }

    /// Commits all transactions. `emptied`: the first lane has deleted the rows that the table had.
    ///
    /// # Errors
    ///
    /// A transaction cannot be committed: the error says which are left to COMMIT PREPARED, that the
    /// server does not have them, or that the outcome is unknown.
    pub(crate) fn commit(
        &self,
        conns: &mut [&mut Conn],
        url: &str,
        emptied: bool,
    ) -> Result<(), Error> {
        for i in 0..conns.len() {
            let done = conns[i].exec(&format!("COMMIT PREPARED {}", self.name(i)));
            let Err(error) = done else { continue };
            let lost = error.kind() == Kind::Connection;
            let emptied = if emptied && i > 0 { EMPTIED } else { "" };
            match lost.then(|| self.commit_again(url, i)) {
                Some(Ok((conn, Some(true)))) => conns[i].replace_by(conn),
                Some(Ok((mut conn, committed))) => {
                    // A standby that lagged has none of the others either; the same server has them.
                    let left = is_prepared(&mut conn, self.xid(0)).unwrap_or(true);
                    let error = match committed {
                        Some(_) => lacking_prepared(&error, i, emptied, left),
                        None => unknown_outcome(&error, &format!("{emptied}the rows of all lanes"))
                            .with_hint(LOOK),
                    };
                    return Err(match left {
                        true => error.with_hint(REPAIR).leaving_prepared(),
                        false => error,
                    });
                }
                Some(Err(_)) | None => {
                    let left: Vec<String> = (i..conns.len())
                        .map(|j| format!("COMMIT PREPARED {}", self.name(j)))
                        .collect();
                    let (lanes, are) = (counted(i, "lane"), if i == 1 { "is" } else { "are" });
                    let changed =
                        format!("{emptied}{lanes} {are} committed; left: {}", left.join("; "));
                    return Err(error.with_changed(changed).with_hint(REPAIR).leaving_prepared());
                }
            }
        }
        Ok(())
    }

    /// Commits a prepared transaction whose connection was lost during its COMMIT PREPARED, over a
    /// new connection, which is returned. If the transaction does not exist, it may be committed
    /// already, or was rolled back, or the server is a standby that lagged. Returns whether it is
    /// committed; `None` if that is unknown.
    fn commit_again(&self, url: &str, i: usize) -> Result<(Conn, Option<bool>), Error> {
        let mut conn = Conn::open(url)?;
        let name = self.name(i);
        for _ in 0..TRIES {
            match conn.exec(&format!("COMMIT PREPARED {name}")) {
                Ok(_) => return Ok((conn, Some(true))),
                Err(error) if error.sqlstate() == "42704" => {
                    let committed = match status_of(&mut conn, self.xid(i)) {
                        Ok(status) => status.as_deref() == Some("committed"),
                        Err(error) if error.kind() == Kind::Connection => return Err(error),
                        // The server has not used this ID yet.
                        Err(_) => false,
                    };
                    let known = !committed || self.has_own_id(&mut conn, i);
                    return Ok((conn, known.then_some(committed)));
                }
                // The process of the lost connection is still working on it.
                Err(error) if error.sqlstate() == "55000" => thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(format!("prepared transaction {name} stays busy")))
    }

    /// Whether the ID of a lane is not that of another transaction on this server. A standby that
    /// has the last lane has had all others: they were prepared before.
    fn has_own_id(&self, conn: &mut Conn, i: usize) -> bool {
        let last = self.name(self.before.len() - 1);
        let sql = format!("SELECT FROM pg_catalog.pg_prepared_xacts WHERE gid = {last}::text");
        is_own(conn, &self.before[i], true) || conn.exec(&sql).is_ok_and(|rows| !rows.is_empty())
    }
}

/// The error for the prepared transaction of a lane that the server lacks, after those of
/// `committed` lanes. `emptied`: what was done before their rows. `left`: the server has those of
/// other lanes.
fn lacking_prepared(error: &Error, committed: usize, emptied: &str, left: bool) -> Error {
    let error = lacking(error);
    match committed {
        0 if left => error.with_changed("prepared transactions of the other lanes are left"),
        0 => error,
        _ => error
            .with_changed(format!(
                "perhaps: {emptied}the rows of {}, which were committed before",
                counted(committed, "lane")
            ))
            .with_hint(LOOK),
    }
}

/// The row of [`BEFORE_COMMIT`], for a transaction that gets an ID if it has none.
fn before_commit(conn: &mut Conn) -> Result<Vec<Option<String>>, Error> {
    let rows = conn.exec(&format!("SELECT pg_current_xact_id(); {BEFORE_COMMIT}"))?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

/// Whether the server has a prepared transaction of the load with this ID.
fn is_prepared(conn: &mut Conn, xid: &str) -> Result<bool, Error> {
    let lanes = ledger::PREPARED_LANES;
    let rows =
        conn.query(&format!("SELECT EXISTS (SELECT FROM {lanes} WHERE load = $1)"), &[Some(xid)])?;
    Ok(rows[0][0].as_deref() == Some("t"))
}

/// Rolls back a transaction whose PREPARE TRANSACTION or ROLLBACK PREPARED has failed, over a new
/// connection. If none of this name exists, it may still appear, unless the transaction is aborted.
fn roll_back_again(url: &str, name: &str, xid: &str) -> Result<(), Error> {
    let mut conn = Conn::open(url)?;
    for _ in 0..TRIES {
        match conn.exec(&format!("ROLLBACK PREPARED {name}")) {
            Ok(_) => return Ok(()),
            // The process of the lost connection is still working on it.
            Err(error) if error.sqlstate() == "55000" => {}
            Err(error) if error.sqlstate() == "42704" => {
                if status_of(&mut conn, xid)?.as_deref() == Some("aborted") {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    }
    Err(Error::new(format!("transaction {xid} does not end")))
}
