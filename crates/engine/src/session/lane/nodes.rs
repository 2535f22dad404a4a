//! Sends rows directly to the servers that hold the partitions.
//!
//! Each node has one connection, one transaction and one thread. A chunk whose rows are split by
//! leaf is passed to every node that has some of them. A node with one leaf gets its rows as they
//! come (`stream.rs`). A node with several leaves gathers a window of chunks, and then each leaf
//! gets its rows by one COPY. Nothing is committed before all nodes have loaded all rows. There is
//! one exception: if each node records what it has (`once/slices.rs`), nodes that cannot be reached
//! stay open, and a later load brings them their rows.
//!
//! The tables on the nodes have no partition constraint, so the nodes alone would not detect a
//! wrong route. For ranges and lists, the COPY into a leaf has the partition constraint as its
//! condition, and a row that the node leaves out is an error. For a leaf with a hash, the
//! coordinator checks whether the first row, and then one row of each 32 MB of input, belongs to
//! it.

mod commit;
mod content;
mod open;
mod rejects;
mod stream;

use super::once::Keeper;
use super::{Lane, LaneCounts, Placed};
use crate::blame::is_of_circumstances;
use crate::buffer_pool::BufferPool;
use crate::encode::{unread, Body, Encoder, Fault};
use crate::error::{shown, Error, Kind, Place};
use crate::input::{Chunk, Part};
use crate::once::slices::NodeSlice;
use crate::plan::{LeafTarget, Plan, ToNodes};
use crate::report::Progress;
use crate::route::Split;
use crate::session::conn::Conn;
use crate::session::nodes::of_node;
use crate::session::spare_connection::SpareConnection;
use crate::session::statement;
use crate::session::transaction::{check_deferred, in_pg_catalog};
use content::Contents;
use crossbeam_channel::{Receiver, Sender};
use pgsluice_core::error::Refusal;
use pgsluice_core::row::NoRow;
use pgsluice_core::sink::{HEADER, TRAILER};
use rejects::{ChunkRecords, ReadingQuery};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;
use stream::Stream;

/// Bytes of the input that a node gathers before it sends the rows: see `WINDOW` in `window.rs`.
const WINDOW: usize = 32 << 20;

/// The maximum number of chunks that wait for a node.
const QUEUE: usize = 16;

/// The coordinator checks the first rows of one chunk (512 kB) in `ASKED`.
const ASKED: u64 = 64;

/// The connections to the nodes.
pub(super) struct Fanout {
    plan: Arc<Plan>,
    /// one for each node; `None` if the node is open or its thread has ended
    workers: Vec<Option<Worker>>,
    /// the nodes whose rows are loaded but not committed
    done: Vec<NodeLane>,
    /// the nodes that cannot load their rows now, each with the reason
    open: Vec<(usize, Error)>,
    /// the others commit even if some nodes are open
    tolerant: bool,
    /// number of rows given to each node
    given: Vec<u64>,
    /// number of chunks so far
    chunks: u64,
    /// leaves for which the coordinator has checked a row
    asked: Vec<bool>,
    /// if the nodes commit together: the load's name, and a connection that records the commit
    together: Option<(String, SpareConnection)>,
    /// the content of each source as it is read, if it is recorded
    contents: Option<Contents>,
    /// the slices of the sources that the nodes already had
    slices: Vec<NodeSlice>,
    /// for the coordinator to read records that the loader may misread, if these may be rejected
    reading: Option<Arc<ReadingQuery>>,
}

/// A chunk with rows for nodes.
struct Handed {
    placed: Placed,
    /// its records, once they are needed
    records: OnceLock<ChunkRecords>,
}

/// A thread that sends rows to a node. It receives chunks, then `None` at the end of the input.
type Worker = (Sender<Option<Arc<Handed>>>, JoinHandle<Result<NodeLane, (usize, Error)>>);

/// A connection to a node, whose transaction has begun.
struct NodeLane {
    conn: Conn,
    plan: Arc<Plan>,
    names: Arc<Vec<String>>,
    progress: Arc<Progress>,
    node: usize,
    /// the chunks that a node with several leaves has gathered
    window: Vec<Arc<Handed>>,
    bytes: usize,
    /// the COPY of a node with one leaf
    stream: Option<Stream>,
    counts: LaneCounts,
    /// leaves and sources whose rows the node already had
    had: HashSet<(usize, usize)>,
    /// number of rows of each leaf and source, if they are recorded
    rows: BTreeMap<(usize, usize), u64>,
    /// where rejected records are written; `None` if the first one ends the load
    keeper: Option<Keeper>,
}

impl Lane {
    /// Passes a chunk to the nodes. If the loader may misread one of its records, this ends the
    /// load, or the coordinator reads the chunk if records may be rejected.
    pub(super) fn send_to_nodes(&mut self, placed: Placed) -> Result<(), Error> {
        let prepared = &placed.prepared;
        let sound = prepared.fault.is_none() && prepared.chunk.damaged.is_none();
        match &prepared.body {
            _ if prepared.chunk.bytes.is_empty() => Ok(()),
            Body::Split(split) if sound && split.for_root == 0 => {
                self.ask_coordinator(split)?;
                self.progress.records.add(prepared.counts.records);
                self.hand(Handed { placed, records: OnceLock::new() })
            }
            _ if self.rejects.is_some() && prepared.chunk.part == Part::Whole => {
                self.send_what_is_good(placed)
            }
            _ => {
                // Errors of the nodes for earlier records come first.
                self.finish_nodes()?;
                Err(self.not_for_nodes(&placed))
            }
        }
    }

    fn hand(&mut self, handed: Handed) -> Result<(), Error> {
        self.counts.add_chunk(&handed.placed.prepared.body);
        let Some(fanout) = &mut self.nodes else { return Ok(()) };
        fanout.chunks += 1;
        if let Some(contents) = &mut fanout.contents {
            contents.add(&handed.placed.prepared.chunk);
        }
        fanout.feed(Arc::new(handed))
    }

    /// Checks on the coordinator whether rows belong to the leaves to which they are sent.
    fn ask_coordinator(&mut self, split: &Split) -> Result<(), Error> {
        let plan = self.plan.clone();
        let (Some(fanout), Some(to), Some(router)) = (&mut self.nodes, &plan.nodes, &plan.router)
        else {
            return Ok(());
        };
        let all = fanout.chunks % ASKED == 0;
        for (leaf, place) in &split.parts {
            if fanout.asked[*leaf] && !all {
                continue;
            }
            fanout.asked[*leaf] = true;
            let Some(question) = &to.leaves[*leaf].belongs else { continue };
            let rows = &split.bytes[place.clone()];
            let keys = router.first_keys(rows).ok_or_else(|| Error::defect("a row has no key"))?;
            let ask = |conn: &mut Conn| conn.query_binary(question, &keys);
            let answer = in_pg_catalog(&mut self.conn, ask)?;
            if answer[0][0].as_deref() == Some("f") {
                let to = &to.leaves[*leaf].partition;
                return Err(Error::defect(format!("a row was routed to {to}, which is wrong")));
            }
        }
        Ok(())
    }

    /// The error for a chunk that cannot go to the nodes.
    fn not_for_nodes(&self, placed: &Placed) -> Error {
        let (prepared, plan) = (&placed.prepared, &self.plan);
        let chunk = &prepared.chunk;
        if prepared.chunk.damaged.is_some() {
            return self.damaged(chunk);
        }
        if let Some((Fault::Malformed(fault), line)) = prepared.fault {
            return self.malformed(placed, fault, line);
        }
        let at = |record, column| place(plan, &self.names, placed, record, column);
        if let (Body::Split(_), Some(router)) = (&prepared.body, &plan.router) {
            let rows = encoded(plan, prepared.records()).unwrap_or_default();
            let found = router.rows_for(&rows, router.leaves.len()).unwrap_or_default();
            let key = router.needed().first().and_then(|at| plan.columns.get(*at)).cloned();
            let message = format!("no partition of {} takes the row", plan.table);
            return Error::data(message).at(at(found.first().copied().unwrap_or(0), key));
        }
        let whole = chunk.part == Part::Whole;
        let found =
            plan.dialect().filter(|_| whole).and_then(|d| unread(plan, prepared.records(), d));
        let (record, why) = match found {
            Some((_, line, NoRow::Malformed(fault))) => return self.malformed(placed, fault, line),
            Some((record, _, NoRow::Value(column, why))) => (Some((record, column)), why),
            None => (None, Refusal::Ask),
        };
        let column = record.map(|(_, column)| plan.columns[column].clone());
        let what = match why {
            Refusal::Null => "NULL is not allowed in the column",
            Refusal::Syntax => "the value is invalid for the type of the column",
            Refusal::Range => "the value is out of range for the type of the column",
            Refusal::TooLong => "the value is too long for the type of the column",
            Refusal::OutOfMemory => "there is no memory to read the value",
            Refusal::Ask => "only a server can read the value",
        };
        let error = Error::data(what).at(at(record.map_or(0, |(record, _)| record), column));
        match why {
            Refusal::Ask => error.with_hint("`route` root has the coordinator read all values"),
            _ => error,
        }
    }

    /// Waits until all nodes have loaded all rows; these are not committed.
    pub(super) fn finish_nodes(&mut self) -> Result<(), Error> {
        let Some(fanout) = &mut self.nodes else { return Ok(()) };
        let finished = fanout.finish();
        for node in &mut fanout.done {
            let counts = std::mem::take(&mut node.counts);
            self.counts.rows += counts.rows;
            self.counts.to_leaves += counts.rows;
            self.counts.statements += counts.statements;
            self.counts.there += counts.there;
        }
        self.counts.open = fanout.open.iter().map(|(node, _)| fanout.given[*node]).sum();
        finished
    }

    /// Runs ANALYZE on the nodes after the commit. Returns what was done, or what failed.
    pub(crate) fn analyze_nodes(&mut self) -> Vec<String> {
        let plan = self.plan.clone();
        let (Some(fanout), Some(to)) = (&mut self.nodes, &plan.nodes) else { return Vec::new() };
        let mut steps = Vec::new();
        for lane in &mut fanout.done {
            let tables: Vec<&str> = lane.leaves(to).map(|i| to.leaves[i].table.as_str()).collect();
            let name = &to.nodes[lane.node].name;
            let analyze = format!("ANALYZE {}", tables.join(", "));
            steps.push(match lane.conn.exec(&analyze) {
                Ok(_) => format!("node {name}: {analyze}"),
                Err(error) => format!("node {name}: {analyze} failed: {}", error.message().plain()),
            });
        }
        steps
    }
}

impl Fanout {
    /// Passes a chunk to the nodes that have rows in it.
    fn feed(&mut self, handed: Arc<Handed>) -> Result<(), Error> {
        let (Body::Split(split), Some(to)) = (&handed.placed.prepared.body, &self.plan.nodes)
        else {
            return Err(Error::defect("a chunk is not split"));
        };
        let mut nodes = vec![false; to.nodes.len()];
        for (leaf, _) in &split.parts {
            let node = to.leaves[*leaf].node;
            nodes[node] = true;
            self.given[node] += split.count_of(*leaf);
        }
        for node in (0..nodes.len()).filter(|node| nodes[*node]) {
            let Some((sender, _)) = &self.workers[node] else { continue };
            if sender.send(Some(handed.clone())).is_err() {
                // Its thread has ended, so it has failed.
                let failed = self.workers[node].take().and_then(|(_, thread)| self.end(thread));
                if let Some(error) = failed {
                    let first = self.finish().err().into_iter().chain([error]);
                    return first.min_by_key(in_input).map_or(Ok(()), Err);
                }
            }
        }
        Ok(())
    }

    /// Ends the threads. Returns the first error in the order of the input.
    fn finish(&mut self) -> Result<(), Error> {
        let workers = std::mem::take(&mut self.workers);
        self.workers.resize_with(workers.len(), || None);
        let (senders, threads): (Vec<_>, Vec<_>) = workers.into_iter().flatten().unzip();
        for sender in senders {
            // If a thread has stopped, it has failed.
            let _ = sender.send(None);
        }
        let failed: Vec<Error> = threads.into_iter().filter_map(|t| self.end(t)).collect();
        failed.into_iter().min_by_key(in_input).map_or(Ok(()), Err)
    }

    /// Waits for a thread. Returns the error that ends the load, if there is one.
    fn end(&mut self, thread: JoinHandle<Result<NodeLane, (usize, Error)>>) -> Option<Error> {
        match thread.join() {
            Ok(Ok(lane)) => self.done.push(lane),
            Ok(Err((node, error))) if self.tolerant && is_down(&error) => {
                self.open.push((node, error));
            }
            Ok(Err((_, error))) => return Some(error),
            Err(_) => return Some(Error::defect("a thread of the loader failed")),
        }
        self.done.sort_by_key(|lane| lane.node);
        None
    }
}

/// The position of an error in the input: the number of its record.
fn in_input(error: &Error) -> u64 {
    error.place().and_then(|place| place.record).unwrap_or(u64::MAX)
}

/// Whether an error is about the node and not the load: the node cannot be reached or has no space.
fn is_down(error: &Error) -> bool {
    let class = error.sqlstate().get(..2).unwrap_or_default();
    error.kind() == Kind::Connection || matches!(class, "53" | "58")
}

impl NodeLane {
    fn run(mut self, chunks: &Receiver<Option<Arc<Handed>>>) -> Result<NodeLane, (usize, Error)> {
        let plan = self.plan.clone();
        let Some(to) = &plan.nodes else { return Ok(self) };
        let only = self.only_leaf(to);
        let mut work = || {
            // If the channel closes before the end of the input, the load has failed.
            while let Some(handed) = chunks.recv().map_err(|_| Error::cancelled())? {
                if let Some(leaf) = only {
                    self.stream(to, leaf, handed)?;
                    continue;
                }
                self.bytes += handed.placed.prepared.weight();
                self.window.push(handed);
                if self.bytes >= WINDOW {
                    self.send_window(to)?;
                }
            }
            self.send_window(to)?;
            self.end_stream(to)?;
            // The nodes commit one after another, so check deferred constraints before that.
            check_deferred(&mut self.conn)
        };
        work().map_err(|error| (self.node, of_node(&to.nodes[self.node].name, error)))?;
        Ok(self)
    }

    /// The leaves on this node.
    fn leaves<'a>(&self, to: &'a ToNodes) -> impl Iterator<Item = usize> + 'a {
        let node = self.node;
        (0..to.leaves.len()).filter(move |leaf| to.leaves[*leaf].node == node)
    }

    fn send_window(&mut self, to: &ToNodes) -> Result<(), Error> {
        let window = std::mem::take(&mut self.window);
        self.bytes = 0;
        for leaf in self.leaves(to).collect::<Vec<_>>() {
            let mut window = window.clone();
            window.retain(|handed| self.is_due(leaf, handed));
            if window.is_empty() {
                continue;
            }
            let started = Instant::now();
            let copied = match self.keeper {
                Some(_) => self.copy_or_reject(to, leaf, &window),
                None => self.copy(to, leaf, &window),
            };
            self.progress.sending.add(started.elapsed());
            copied.map_err(|error| self.located(error, to, leaf, window.iter(), 0))?;
        }
        Ok(())
    }

    /// Whether a chunk has rows of a leaf that the node did not already have.
    fn is_due(&mut self, leaf: usize, handed: &Handed) -> bool {
        let Body::Split(split) = &handed.placed.prepared.body else { return false };
        let had = self.had.contains(&(leaf, handed.placed.prepared.chunk.file));
        self.counts.there += if had { split.count_of(leaf) } else { 0 };
        !had && split.rows_of(leaf).is_some()
    }

    /// Sends the rows of one leaf by one COPY.
    fn copy(&mut self, to: &ToNodes, leaf: usize, window: &[Arc<Handed>]) -> Result<(), Error> {
        self.conn.copy_start(&to.leaves[leaf].copy)?;
        self.conn.copy_data(HEADER)?;
        let mut sent = 0;
        for handed in window {
            let Body::Split(split) = &handed.placed.prepared.body else { continue };
            if let Some(rows) = split.rows_of(leaf) {
                self.conn.copy_data(rows)?;
                sent += split.count_of(leaf);
                self.count(leaf, handed, split.count_of(leaf));
            }
        }
        self.end_copy(to, leaf, sent)
    }

    /// Counts rows that were sent.
    fn count(&mut self, leaf: usize, handed: &Handed, rows: u64) {
        *self.rows.entry((leaf, handed.placed.prepared.chunk.file)).or_default() += rows;
    }

    /// Ends the COPY into a leaf, which must have loaded all rows.
    fn end_copy(&mut self, to: &ToNodes, leaf: usize, sent: u64) -> Result<(), Error> {
        self.conn.copy_data(TRAILER)?;
        let taken = self.conn.copy_end()?;
        self.counts.rows += taken;
        self.counts.statements += 1;
        if taken != sent {
            let table = &to.leaves[leaf].table;
            let message = format!("{table} took {taken} of {sent} rows");
            return Err(Error::new(message).with_hint(
                "a trigger there has left some out, or they do not belong to the partition",
            ));
        }
        Ok(())
    }

    /// The name in the partitioned table of the column `name` of the node's table.
    fn own(&self, target: &LeafTarget, name: String) -> String {
        let at = target.columns.iter().position(|column| *column == name);
        at.map_or(name, |at| self.plan.columns[at].clone())
    }

    /// Adds to an error of the node its place in the file, as far as the node reports one: a row of
    /// these chunks, before which the COPY had `before` rows.
    fn located<'a>(
        &self,
        error: Error,
        to: &ToNodes,
        leaf: usize,
        chunks: impl Iterator<Item = &'a Arc<Handed>>,
        mut before: u64,
    ) -> Error {
        if is_of_circumstances(error.sqlstate()) {
            return error;
        }
        let target = &to.leaves[leaf];
        let context = error.server().and_then(|s| s.context.clone()).unwrap_or_default();
        let found = context
            .lines()
            .find_map(|line| statement::place_in(line, &target.relation, &target.columns));
        let Some((row, column)) = found else { return error };
        let column = column.or_else(|| error.server().and_then(|s| s.column.clone()));
        let column = column.map(|name| self.own(target, name));
        for handed in chunks {
            let Body::Split(split) = &handed.placed.prepared.body else { continue };
            let count = split.count_of(leaf);
            if row > before && row <= before + count {
                let found = handed.record_of(&self.plan, leaf, row - before - 1);
                let Some(record) = found else { break };
                return error.at(place(&self.plan, &self.names, &handed.placed, record, column));
            }
            before += count;
        }
        error
    }
}

/// The rows of a chunk in binary form, in the order of the input.
fn encoded(plan: &Arc<Plan>, chunk: &Chunk) -> Option<Vec<u8>> {
    Encoder::new(plan.clone(), BufferPool::default()).encoded(chunk)
}

/// The place of the record with this index in a chunk.
fn place(
    plan: &Plan,
    names: &[String],
    placed: &Placed,
    index: u64,
    column: Option<String>,
) -> Place {
    let chunk = &placed.prepared.chunk;
    let (before, start, end) = chunk.record_at(&plan.layout, index);
    let value = column.as_deref().and_then(|c| value(plan, chunk, &chunk.bytes[start..end], c));
    Place {
        file: names[chunk.file].clone(),
        record: Some(placed.before.records + before + 1),
        line: Some(placed.before.lines + chunk.lines_to(&plan.layout, end)),
        offset: Some(chunk.offset + start as u64),
        column,
        value,
    }
}

/// The value of a record for a column, for messages.
fn value(plan: &Plan, chunk: &Chunk, bytes: &[u8], column: &str) -> Option<String> {
    let field = plan.field_of(column)?;
    let mut record = pgsluice_core::scan::Record::default();
    let mut scanner = pgsluice_core::scan::Scanner::new(bytes, true, plan.dialect()?, chunk.eol);
    scanner.next(&mut record).ok()?;
    (field < record.len()).then(|| shown(record.field(bytes, field).1))
}
