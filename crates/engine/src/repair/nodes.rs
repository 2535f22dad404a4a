//! Ends commits of several nodes whose loader is gone.

use super::Report;
use crate::error::Error;
use crate::ledger::node_commits::{self, gid, Decision, NodeCommit};
use crate::options::Options;
use crate::session::catalog;
use crate::session::conn::Conn;
use crate::session::nodes;
use crate::session::prepared::{self, End};
use crate::session::transaction::{BEGIN, NO_TIMEOUTS};
use crate::text::text;

/// Ends the prepared transactions of nodes, as the coordinator has decided. A load without a
/// decision is rolled back everywhere; a load that is at work is left alone. Loads of other roles
/// are reported. `only` restricts this to one table, and to loads of this role.
pub(super) fn end_on_nodes(
    conn: &mut Conn,
    given: &[(String, String)],
    only: Option<u32>,
    report: &mut Report,
) -> Result<(), Error> {
    conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
    let open = node_commits::open(conn)?;
    conn.exec("COMMIT")?;
    for commit in open.into_iter().filter(|c| only.unwrap_or(c.target) == c.target) {
        if let Some(role) = &commit.role {
            if only.is_none() {
                report_commit(conn, &commit, role, report)?;
            }
            continue;
        }
        let how = match node_commits::settle(conn, &commit.load)? {
            Some(Decision::Committed) => End::Commit,
            Some(Decision::Aborted) => End::Rollback,
            Some(Decision::Open) => {
                report.running.push(format!("load {} on nodes", commit.load));
                continue;
            }
            None => continue,
        };
        let mut ended = true;
        for node in 0..commit.nodes.len() {
            let there = nodes::connect(conn, &commit.nodes[node], given);
            ended &= end_on_node(there, &commit, node, how, report);
        }
        if ended {
            node_commits::end(conn, &commit.load)?;
        }
    }
    Ok(())
}

/// Reports a commit of another role.
fn report_commit(
    conn: &mut Conn,
    commit: &NodeCommit,
    role: &str,
    report: &mut Report,
) -> Result<(), Error> {
    conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}"))?;
    let free = node_commits::take(conn, &commit.load)?;
    conn.exec("COMMIT")?;
    if free {
        let what = format!("prepared transactions of load {}", commit.told());
        let why = Error::new(format!("they belong to the role {role}"))
            .with_hint(format!("run pgsluice repair as the role {role}: it ends them"));
        report.prepared.push((what, why));
    } else {
        report.running.push(format!("load {} on nodes", commit.load));
    }
    Ok(())
}

/// Ends the prepared transactions of nodes for earlier loads of the table, so that the same command
/// finishes what a load has left. Returns in words what was ended.
///
/// # Errors
///
/// A node or the coordinator cannot be reached.
pub(crate) fn end_earlier(options: &Options) -> Result<Vec<String>, Error> {
    let target = &options.target;
    let (mut conn, mut report) = (Conn::open(&target.url)?, Report::default());
    // If there is no such table, the load reports that.
    let Some(table) = catalog::find(&mut conn, &target.table)? else { return Ok(Vec::new()) };
    end_on_nodes(&mut conn, &target.nodes, Some(table.oid), &mut report)?;
    match report.prepared.pop() {
        Some((what, error)) => {
            let kind = error.kind();
            let message = text!("an earlier load is not ended: {}: {}", what, error.text());
            Err(Error::new(message).of_kind(kind))
        }
        None => Ok(report.lanes),
    }
}

/// Ends the prepared transaction of one node. Returns false if that is not certain.
fn end_on_node(
    node_conn: Result<Conn, Error>,
    commit: &NodeCommit,
    node: usize,
    how: End,
    report: &mut Report,
) -> bool {
    let (gid, name) = (gid(&commit.load, node), &commit.nodes[node]);
    let done = node_conn.and_then(|mut conn| {
        prepared::end(&mut conn, how, &gid).map_err(|error| nodes::of_node(name, error))
    });
    let what = format!("node {name}: prepared transaction {gid}");
    match done {
        Ok(true) if how == End::Commit => {
            report.lanes.push(format!("{what}: committed, as the load was"));
        }
        Ok(true) => {
            report.lanes.push(format!("{what}: rolled back, as the load was not committed"));
        }
        // The node had not prepared it, or it was ended since.
        Ok(false) => {}
        Err(error) => {
            report.prepared.push((what, error));
            return false;
        }
    }
    true
}
