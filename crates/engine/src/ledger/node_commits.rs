//! Commits of several nodes together: which nodes take part, and what was decided.
//!
//! Each node prepares its transaction, and the coordinator decides. The decision is a row of
//! `pgsluice_loads.node_commits` on the coordinator:
//!
//! 1. The row is committed as `preparing` before the first PREPARE TRANSACTION, with the names of
//!    the nodes. So `repair` finds each node that may have a prepared transaction.
//! 2. The load's own transaction on the coordinator sets it to `committed`, and stays open while
//!    the nodes prepare. It locks the row, so no other session decides meanwhile.
//! 3. The COMMIT of that transaction is the decision. It waits for the disk, whatever the role's
//!    `synchronous_commit` is.
//! 4. The nodes COMMIT PREPARED. When all of them have, `ended` is set.
//!
//! From before step 1, that transaction also holds an advisory lock with the load's name: between
//! steps 1 and 2 the row is not locked, but the load is at work.
//!
//! A crash before step 3 rolls back the load's transaction: the row is `preparing`, and not locked.
//! A session that takes it over sets it to `aborted` before it rolls anything back. If the loader
//! is still alive between steps 1 and 2, it then finds no row that is `preparing`, and has prepared
//! nothing. After step 3 the row is `committed`, and all transactions that are still prepared are
//! committed.
//!
//! A transaction on a node holds an advisory lock with the name under which it will be prepared,
//! from before its first row until it ends, prepared or not. If a session finds no prepared
//! transaction of that name and gets the lock, none will be created later.

use super::{under_policies, State};
use crate::error::{Error, Kind};
use crate::session::conn::{Conn, Rows};
use crate::session::transaction::{BEGIN, NO_TIMEOUTS, SYNCHRONOUS};
use crate::text::text;

/// Creates the table. It belongs to the tables of the schema.
pub(crate) const CREATE: &str = "
CREATE TABLE pgsluice_loads.node_commits (
    load uuid PRIMARY KEY,
    target regclass NOT NULL,
    nodes text[] NOT NULL,
    state text NOT NULL DEFAULT 'preparing'
        CHECK (state IN ('preparing', 'committed', 'aborted')),
    role name NOT NULL DEFAULT current_user,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended timestamptz
);
COMMENT ON TABLE pgsluice_loads.node_commits IS
    'commits of several nodes; where ended is null, a node may have a prepared transaction';
CREATE INDEX node_commits_open ON pgsluice_loads.node_commits (started) WHERE ended IS NULL;
ALTER TABLE pgsluice_loads.node_commits ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON pgsluice_loads.node_commits
    USING (role = current_user) WITH CHECK (role = current_user);
GRANT SELECT, INSERT, UPDATE ON pgsluice_loads.node_commits TO PUBLIC;
";

/// A commit that has not ended.
#[derive(Clone, Debug)]
pub struct NodeCommit {
    /// the load's name
    pub load: String,
    /// `pg_class.oid` of the table
    pub target: u32,
    /// `pg_foreign_server.srvname` of each node, in the order of their prepared transactions
    pub nodes: Vec<String>,
    /// the role that has recorded it, if that is another one
    pub role: Option<String>,
}

impl NodeCommit {
    /// The load and its nodes, in words.
    pub(crate) fn told(&self) -> String {
        format!("{} on {}", self.load, self.nodes.join(", "))
    }
}

/// The state of a commit, for a session that wants to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// all nodes commit
    Committed,
    /// no node commits
    Aborted,
    /// the load is still at work
    Open,
}

/// The name of a prepared transaction, and of its lock.
pub fn gid(load: &str, node: usize) -> String {
    format!("pgsluice_nodes_{load}_{node}")
}

/// Records which nodes take part, in a separate transaction.
///
/// # Errors
///
/// The server reports an error.
pub fn begin(conn: &mut Conn, load: &str, target: u32, nodes: &[&str]) -> Result<(), Error> {
    let nodes = serde_json::to_string(nodes).unwrap_or_default();
    let insert = "INSERT INTO pgsluice_loads.node_commits (load, target, nodes) VALUES \
        ($1::uuid, $2::oid::regclass, \
         ARRAY(SELECT pg_catalog.jsonb_array_elements_text($3::jsonb)))";
    let parameters = [Some(load), Some(&target.to_string()), Some(&nodes)];
    in_transaction(conn, |conn| conn.query(insert, &parameters)).map(drop)
}

/// Decides to commit, in the open transaction: the decision takes effect when that commits.
///
/// # Errors
///
/// Another session has aborted the load, or the server reports an error.
pub fn decide(conn: &mut Conn, load: &str) -> Result<(), Error> {
    let update = "UPDATE pgsluice_loads.node_commits SET state = 'committed' \
        WHERE load = $1::uuid AND state = 'preparing' RETURNING 1";
    conn.exec(SYNCHRONOUS)?;
    let rows = under_policies(conn, |conn| conn.query(update, &[Some(load)]))?;
    match rows.is_empty() {
        true => Err(Error::new("repair has ended the load").of_kind(Kind::Cancelled)),
        false => Ok(()),
    }
}

/// Returns the decision. If there is none and the load is not at work, this decides to abort.
/// Returns `None` if there is no such commit.
///
/// # Errors
///
/// The server reports an error, or the connection is lost.
pub fn settle(conn: &mut Conn, name: &str) -> Result<Option<Decision>, Error> {
    let take = "SELECT state FROM pgsluice_loads.node_commits \
        WHERE load = $1::uuid FOR UPDATE SKIP LOCKED";
    let there = "SELECT 1 FROM pgsluice_loads.node_commits WHERE load = $1::uuid";
    let abort = "UPDATE pgsluice_loads.node_commits SET state = 'aborted' WHERE load = $1::uuid";
    let load = &[Some(name)];
    in_transaction(conn, |conn| {
        let taken = conn.query(take, load)?;
        Ok(match taken.first().and_then(|row| row[0].as_deref()) {
            Some("committed") => Some(Decision::Committed),
            Some("aborted") => Some(Decision::Aborted),
            Some(_) if super::lock(conn, name)? => {
                conn.query(abort, load)?;
                Some(Decision::Aborted)
            }
            Some(_) => Some(Decision::Open),
            None => (!conn.query(there, load)?.is_empty()).then_some(Decision::Open),
        })
    })
}

/// Records that no node has a prepared transaction any more.
///
/// # Errors
///
/// The server reports an error, or the connection is lost.
pub fn end(conn: &mut Conn, load: &str) -> Result<(), Error> {
    let update = "UPDATE pgsluice_loads.node_commits SET ended = pg_catalog.clock_timestamp(), \
        state = CASE state WHEN 'committed' THEN state ELSE 'aborted' END \
        WHERE load = $1::uuid AND ended IS NULL";
    in_transaction(conn, |conn| conn.query(update, &[Some(load)])).map(drop)
}

/// Takes a commit that has not ended until the transaction ends, and decides nothing. Returns false
/// if its load is at work, or if it has ended.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn take(conn: &mut Conn, load: &str) -> Result<bool, Error> {
    let free = "SELECT 1 FROM pgsluice_loads.node_commits WHERE load = $1::uuid \
        AND ended IS NULL FOR UPDATE SKIP LOCKED";
    let found = under_policies(conn, |conn| conn.query(free, &[Some(load)]))?;
    Ok(!found.is_empty() && super::lock(conn, load)?)
}

/// Returns the commits that have not ended, the oldest first; also those of other roles that may
/// load into the table, as far as this role may see them. Returns none if the schema cannot be
/// trusted. Call this in a transaction.
///
/// # Errors
///
/// The connection is lost.
pub fn open(conn: &mut Conn) -> Result<Vec<NodeCommit>, Error> {
    match super::state(conn)? {
        State::Ready => recorded(conn),
        _ => Ok(Vec::new()),
    }
}

/// As [`open`], for a schema that is known to be trusted.
pub(super) fn recorded(conn: &mut Conn) -> Result<Vec<NodeCommit>, Error> {
    let there = "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
        ON n.oid = c.relnamespace WHERE n.nspname = 'pgsluice_loads' \
        AND c.relname = 'node_commits'";
    if conn.exec(there)?.is_empty() {
        return Ok(Vec::new());
    }
    let select =
        "SELECT load, target::oid, pg_catalog.to_jsonb(nodes), NULLIF(role, current_user) \
        FROM pgsluice_loads.node_commits WHERE ended IS NULL AND (role = current_user \
          OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = role AND \
            pg_catalog.has_any_column_privilege(r.oid, target::oid, 'INSERT') IS NOT TRUE)) \
        ORDER BY started";
    let rows: Rows = under_policies(conn, |conn| conn.exec(select))?;
    let commit = |row: &Vec<Option<String>>| {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let nodes = serde_json::from_str(&text(2));
        let nodes = nodes.map_err(|e| Error::new(text!("pgsluice_loads.node_commits: {}", e)))?;
        let (target, role) = (text(1).parse().unwrap_or(0), row[3].clone());
        Ok(NodeCommit { load: text(0), target, nodes, role })
    };
    rows.iter().map(commit).collect()
}

/// Runs statements on the table in a separate transaction, whose commit waits for the disk.
fn in_transaction<T>(
    conn: &mut Conn,
    work: impl FnOnce(&mut Conn) -> Result<T, Error>,
) -> Result<T, Error> {
    conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}; {SYNCHRONOUS}"))?;
    let done = under_policies(conn, work);
    // After an error, COMMIT rolls back.
    conn.exec("COMMIT")?;
    done
}
