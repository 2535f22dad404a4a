//! Commits the nodes: one after another, or all or none of them.

use super::open::tables_of;
use super::{is_down, Fanout, NodeLane};
use crate::error::{Error, Kind};
use crate::ledger::{
    self,
    node_commits::{self, gid, Decision},
};
use crate::once::record::Recording;
use crate::once::slices::{Content, NewSlice};
use crate::options::Options;
use crate::plan::ToNodes;
use crate::session::conn::{quote_literal, Conn};
use crate::session::lane::Lane;
use crate::session::nodes::of_node;
use crate::session::prepared::{self, End};
use crate::session::transaction::{self, IsThere, PAUSE, TRIES};
use crate::watch::Watch;
use std::thread;

/// The hint for nodes that could not be reached.
const REPAIR: &str = "pgsluice repair ends what the nodes have prepared, as the load was decided";

/// The hint for nodes that are open.
const AGAIN: &str = "the same command loads what is missing on these nodes, and nothing twice";

impl Lane {
    /// Commits the nodes and the coordinator's transaction. `is_there` checks whether its record
    /// exists.
    pub(crate) fn commit_nodes(
        &mut self,
        options: &Options,
        is_there: Option<&IsThere<'_>>,
    ) -> Result<(), Error> {
        self.check_slices()?;
        let plan = self.plan.clone();
        let (Some(mut fanout), Some(to)) = (self.nodes.take(), &plan.nodes) else { return Ok(()) };
        // Until now, this connection has kept the partitions attached. Check that it is not lost.
        self.conn.exec("SELECT 1")?;
        let (url, watch) = (&options.target.url, &self.watch);
        match fanout.together.take() {
            Some((load, mut spare)) => {
                let other = spare.take(url)?;
                let coordinator = Coordinator { conn: &mut self.conn, other, url };
                fanout.commit_together(coordinator, to, &load, plan.oid)?;
            }
            None if fanout.tolerant => {
                fanout.commit_slices(to, watch)?;
                let Some(is_there) = is_there else {
                    return Err(Error::defect("nothing is recorded of the nodes"));
                };
                let unrecorded = |error: Error| {
                    let rows = "all rows are committed on the nodes, and not recorded here";
                    error.with_changed(rows).repeatable()
                };
                transaction::commit_recorded(&mut self.conn, url, watch, is_there)
                    .map_err(unrecorded)?;
            }
            None => {
                fanout.commit_in_turn(to, watch)?;
                // This transaction only held locks. All rows are committed, even if the connection
                // is lost now.
                let _ = self.conn.exec("COMMIT");
            }
        }
        self.nodes = Some(fanout);
        Ok(())
    }
}

/// The load's transaction on the coordinator, another connection to it in no transaction, and the
/// URL for further ones.
struct Coordinator<'a> {
    conn: &'a mut Conn,
    other: Conn,
    url: &'a str,
}

impl Fanout {
    /// Commits each node with a record of its slices, independently of the others. Returns an error
    /// if some nodes could not be committed.
    fn commit_slices(&mut self, to: &ToNodes, watch: &Watch) -> Result<(), Error> {
        let Some(mut contents) = self.contents.take() else {
            return Err(Error::defect("nothing is recorded of the files"));
        };
        let recording = contents.recording.clone();
        let all = contents.all();
        // A slice that another load has committed is detected before any node commits.
        for mut lane in std::mem::take(&mut self.done) {
            match lane.record(&recording, to, all) {
                Ok(()) => self.done.push(lane),
                Err(error) if is_down(&error) => self.open.push((lane.node, error)),
                Err(error) => return Err(error),
            }
        }
        if self.open.len() == to.nodes.len() {
            return self.open.drain(..).next().map_or(Ok(()), |(_, error)| Err(error));
        }
        for mut lane in std::mem::take(&mut self.done) {
            let facts = &to.nodes[lane.node];
            let slices = lane.slices(&recording, to, all)?;
            let is_there = |conn: &mut Conn, xid: &str| {
                slices.first().map_or(Ok(true), |slice| recording.has_slice(conn, xid, slice))
            };
            let url = &facts.address.0;
            match transaction::commit_recorded(&mut lane.conn, url, watch, &is_there) {
                Ok(()) => {
                    recording.committed.rows.add(lane.rows.values().sum());
                    self.done.push(lane);
                }
                Err(error) => {
                    self.open
                        .push((lane.node, of_node(&facts.name, error.repeatable()).repeatable()));
                }
            }
        }
        self.open_nodes_error(to).map_or(Ok(()), Err)
    }

    /// The error that names the open nodes.
    fn open_nodes_error(&mut self, to: &ToNodes) -> Option<Error> {
        self.open.sort_by_key(|(node, _)| *node);
        let open: Vec<String> =
            self.open.iter().map(|(node, _)| to.nodes[*node].name.clone()).collect();
        // Prefer a node without space: an administrator must act there.
        let lost = |(_, error): &&(usize, Error)| error.kind() == Kind::Connection;
        let first = self.open.iter().find(|open| !lost(open)).or(self.open.first())?;
        let committed = match names(to, &self.done) {
            none if none.is_empty() => String::new(),
            names => format!("the slices of the nodes {names} are committed; "),
        };
        let changed = format!("{committed}those of {} are open", open.join(", "));
        Some(
            first
                .1
                .clone()
                .with_changed(changed)
                .with_open_nodes(open)
                .with_hint(AGAIN)
                .repeatable(),
        )
    }

    fn commit_in_turn(&mut self, to: &ToNodes, watch: &Watch) -> Result<(), Error> {
        for i in 0..self.done.len() {
            let lane = &mut self.done[i];
            let facts = &to.nodes[lane.node];
            let committed = transaction::commit(&mut lane.conn, &facts.address.0, watch);
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

    /// Runs the two-phase commit; the steps are those in `ledger/node_commits.rs`.
    fn commit_together(
        &mut self,
        coordinator: Coordinator<'_>,
        to: &ToNodes,
        load: &str,
        target: u32,
    ) -> Result<(), Error> {
        let Coordinator { conn, mut other, url } = coordinator;
        let all: Vec<&str> = to.nodes.iter().map(|node| node.name.as_str()).collect();
        if !ledger::lock(conn, load)? {
            return Err(Error::defect("the lock of the load is taken"));
        }
        node_commits::begin(&mut other, load, target, &all)?;
        if let Err(error) = node_commits::decide(conn, load).and_then(|()| self.prepare(to, load)) {
            // Whether the ROLLBACK succeeds or the connection is lost, the decision is not
            // committed.
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
            // If this update is lost, `repair` finds that nothing is left to do.
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

    /// Rolls back all nodes. Returns the error, with the nodes that could not be rolled back.
    fn roll_back(&mut self, other: &mut Conn, to: &ToNodes, load: &str, error: Error) -> Error {
        for lane in &mut self.done {
            // This rolls back transactions that are not prepared. After PREPARE, no transaction is
            // open here.
            let _ = lane.conn.exec("ROLLBACK");
        }
        let left = self.tell(to, load, End::Rollback);
        if left.is_empty() {
            // If this update is lost, `repair` finds that nothing is left to do.
            let _ = node_commits::end(other, load);
            return error;
        }
        error.with_hint(REPAIR).with_changed(format!(
            "perhaps prepared transactions on the nodes {}, which hold locks there; nothing is loaded",
            untold(&left)
        ))
    }

    /// Ends the prepared transactions of the nodes. Returns the nodes where this failed, with the
    /// reason.
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

impl NodeLane {
    /// Records the slices that the node is about to commit.
    fn record(
        &mut self,
        recording: &Recording,
        to: &ToNodes,
        contents: &[Content],
    ) -> Result<(), Error> {
        let slices = self.slices(recording, to, contents)?;
        let put = recording.put_slices(&mut self.conn, &slices);
        put.map_err(|error| of_node(&to.nodes[self.node].name, error))
    }

    /// The slices that the node is about to commit.
    fn slices<'a>(
        &self,
        recording: &'a Recording,
        to: &'a ToNodes,
        contents: &[Content],
    ) -> Result<Vec<NewSlice<'a>>, Error> {
        let tables = tables_of(to, self.node);
        let slice = |((leaf, source), rows): (&(usize, usize), &u64)| {
            let table = tables.iter().find(|table| table.leaf == *leaf)?;
            let content = contents.iter().find(|content| content.source == *source)?;
            Some(recording.new_slice(*table, content, *rows))
        };
        let slices: Vec<_> = self.rows.iter().filter_map(slice).collect();
        if slices.len() != self.rows.len() {
            return Err(Error::defect("rows of a slice are of no file"));
        }
        Ok(slices)
    }
}

fn untold(left: &[(String, Error)]) -> String {
    left.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}

fn names(to: &ToNodes, lanes: &[NodeLane]) -> String {
    lanes.iter().map(|l| to.nodes[l.node].name.clone()).collect::<Vec<_>>().join(", ")
}

/// How often to try again if the coordinator cannot be reached.
const UNREACHED: u32 = 20;

/// Finds out what the coordinator has decided, if the outcome of the deciding transaction was not
/// received. Returns `None` if the coordinator cannot be reached.
fn outcome(url: &str, load: &str) -> Option<Decision> {
    let mut unreached = 0;
    for _ in 0..TRIES {
        let asked = Conn::open(url).and_then(|mut conn| node_commits::settle(&mut conn, load));
        match asked {
            // It may be restarting.
            Err(_) if unreached == UNREACHED => return None,
            Err(_) => unreached += 1,
            // The server has not detected yet that its client is gone.
            Ok(Some(Decision::Open)) => {}
            Ok(decision) => return decision,
        }
        thread::sleep(PAUSE);
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
