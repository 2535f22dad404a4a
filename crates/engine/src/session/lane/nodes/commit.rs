//! The commit of the nodes: one after another, or all or none of them.

use super::{Fanout, NodeLane};
use crate::error::{Error, Kind};
use crate::ledger::node_commits::{self, gid, Decision};
use crate::options::Options;
use crate::plan::ToNodes;
use crate::session::conn::{quote_literal, Conn};
use crate::session::lane::Lane;
use crate::session::nodes::of_node;
use crate::session::prepared::{self, End};
use crate::session::transaction::{self, PAUSE, TRIES};
use std::thread;

/// What to do about nodes that could not be told.
const REPAIR: &str = "pgsluice repair ends what the nodes have prepared, as the load was decided";

impl Lane {
    /// Commits the nodes, and the coordinator's transaction.
    pub(crate) fn commit_nodes(&mut self, options: &Options) -> Result<(), Error> {
        let plan = self.plan.clone();
        let (Some(mut fanout), Some(to)) = (self.nodes.take(), &plan.nodes) else { return Ok(()) };
        // Until now it has kept the partitions attached.
        self.conn.exec("SELECT 1")?;
        match fanout.together.take() {
            Some(load) => {
                let coordinator = Coordinator { conn: &mut self.conn, url: &options.target.url };
                fanout.commit_together(coordinator, to, &load, plan.oid)?;
            }
            None => {
                fanout.commit_in_turn(to)?;
                // It has held locks alone: if its connection is lost just now, all rows are there.
                let _ = self.conn.exec("COMMIT");
            }
        }
        self.nodes = Some(fanout);
        Ok(())
    }
}

/// The load's transaction on the coordinator, and how another connection is opened.
struct Coordinator<'a> {
    conn: &'a mut Conn,
    url: &'a str,
}

impl Fanout {
    fn commit_in_turn(&mut self, to: &ToNodes) -> Result<(), Error> {
        for i in 0..self.done.len() {
            let lane = &mut self.done[i];
            let facts = &to.nodes[lane.node];
            let committed = transaction::commit(&mut lane.conn, &facts.address.0);
            committed.map_err(|error| {
                let error = of_node(&facts.name, error);
                let before = names(to, &self.done[..i]);
                let unknown = error.changed().map_or(String::new(), |what| format!("; {what}"));
                match before.is_empty() {
                    true => error,
                    false => error.with_changed(format!(
                        "the rows of the nodes {before} are committed; those of {} are not{unknown}",
                        names(to, &self.done[i..])
                    )),
                }
            })?;
        }
        Ok(())
    }

    /// Two-phase commit; the steps are those of `ledger/node_commits.rs`.
    fn commit_together(
        &mut self,
        coordinator: Coordinator<'_>,
        to: &ToNodes,
        load: &str,
        target: u32,
    ) -> Result<(), Error> {
        let Coordinator { conn, url } = coordinator;
        let all: Vec<&str> = to.nodes.iter().map(|node| node.name.as_str()).collect();
        let mut other = Conn::open(url)?;
        node_commits::begin(&mut other, load, target, &all)?;
        if let Err(error) = node_commits::decide(conn, load).and_then(|()| self.prepare(to, load)) {
            // With this connection the decision is gone, however it ends.
            let _ = conn.exec("ROLLBACK");
            return Err(self.roll_back(&mut other, to, load, error));
        }
        if let Err(error) = conn.exec("COMMIT") {
            // If the connection was lost, the server may have committed before that.
            match outcome(url, load) {
                Some(Decision::Committed) => {}
                Some(Decision::Aborted) => {
                    return Err(self.roll_back(&mut other, to, load, error));
                }
                _ => return Err(unknown(&error)),
            }
        }
        let mut left = self.tell(to, load, End::Commit);
        let untold = untold(&left);
        let Some((_, error)) = left.pop() else {
            // If this is lost, `repair` finds that nothing is left to do.
            let _ = node_commits::end(&mut other, load);
            return Ok(());
        };
        Err(error.of_kind(Kind::Connection).with_hint(REPAIR).with_changed(format!(
            "the load is committed; the rows of the nodes {untold} are prepared there, and not visible yet"
        )))
    }

    /// Prepares the transaction of each node.
    fn prepare(&mut self, to: &ToNodes, load: &str) -> Result<(), Error> {
        for lane in &mut self.done {
            let name = quote_literal(&gid(load, lane.node));
            let done = lane.conn.exec(&format!("PREPARE TRANSACTION {name}"));
            done.map_err(|error| of_node(&to.nodes[lane.node].name, error))?;
        }
        Ok(())
    }

    /// No node commits. Gives the error, with what could not be rolled back.
    fn roll_back(&mut self, other: &mut Conn, to: &ToNodes, load: &str, error: Error) -> Error {
        for lane in &mut self.done {
            // Of a transaction that is not prepared this is the end; others have none open.
            let _ = lane.conn.exec("ROLLBACK");
        }
        let left = self.tell(to, load, End::Rollback);
        if left.is_empty() {
            // If this is lost, `repair` finds that nothing is left to do.
            let _ = node_commits::end(other, load);
            return error;
        }
        error.with_hint(REPAIR).with_changed(format!(
            "perhaps prepared transactions on the nodes {}, which hold locks there; nothing is loaded",
            untold(&left)
        ))
    }

    /// Ends what the nodes have prepared; gives those that could not be told, with the reason.
    fn tell(&mut self, to: &ToNodes, load: &str, how: End) -> Vec<(String, Error)> {
        let mut left = Vec::new();
        for lane in &mut self.done {
            let node = &to.nodes[lane.node];
            let gid = gid(load, lane.node);
            if prepared::end(&mut lane.conn, how, &gid).is_ok() {
                continue;
            }
            let again = Conn::open(&node.address.0).and_then(|mut conn| {
                prepared::end(&mut conn, how, &gid)?;
                Ok(conn)
            });
            match again {
                Ok(conn) => lane.conn = conn,
                Err(error) => left.push((node.name.clone(), of_node(&node.name, error))),
            }
        }
        left
    }
}

fn untold(left: &[(String, Error)]) -> String {
    left.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}

fn names(to: &ToNodes, lanes: &[NodeLane]) -> String {
    lanes.iter().map(|l| to.nodes[l.node].name.clone()).collect::<Vec<_>>().join(", ")
}

/// What the coordinator has decided when the transaction that decides was not seen to commit; `None`
/// if it cannot be asked.
fn outcome(url: &str, load: &str) -> Option<Decision> {
    for _ in 0..TRIES {
        let asked = Conn::open(url).and_then(|mut conn| node_commits::settle(&mut conn, load));
        match asked {
            // It starts again, or has not noticed yet that its client is gone.
            Err(_) | Ok(Some(Decision::Open)) => thread::sleep(PAUSE),
            Ok(decision) => return decision,
        }
    }
    None
}

fn unknown(error: &Error) -> Error {
    Error::new(format!(
        "whether the load is committed is unknown, since the coordinator cannot be asked: {}",
        error.message().plain()
    ))
    .of_kind(Kind::Connection)
    .with_changed("perhaps: all rows; the nodes have prepared them, and hold their locks")
    .with_hint(REPAIR)
}
