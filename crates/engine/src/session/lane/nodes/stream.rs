//! Sends the rows of a node that has one partition by a single COPY for the whole input.
//!
//! A connection runs one COPY at a time. With one partition that COPY can stay open, so chunks are
//! sent as they come instead of being gathered. Fewer COPYs are cheaper for the node, because each
//! COPY starts with a new ring of buffers; with N nodes, a COPY for each window of the input would
//! carry only an Nth of that window. The last chunks are kept, because the node reports a bad row
//! by its number in the COPY, and the message to the user needs its line.

use super::{Handed, NodeLane};
use crate::encode::Body;
use crate::error::Error;
use crate::plan::ToNodes;
use crate::session::conn::Probe;
use crate::session::lane::REMEMBERED;
use pgsluice_core::sink::HEADER;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The maximum sum of the weights ([`Prepared::weight`](crate::encode::Prepared::weight)) of the
/// remembered chunks, even if few of their rows are for this node: a chunk stays in memory with the
/// rows of all nodes.
const INPUT: usize = 16 << 20;

/// A COPY into the only partition of a node.
pub(super) struct Stream {
    leaf: usize,
    sent: u64,
    /// the last chunks that have rows for the node
    remembered: VecDeque<Arc<Handed>>,
    /// the sum of their weights
    input: usize,
    /// the size of the node's rows in them, in bytes
    own: usize,
    /// number of rows in the chunks before them
    forgotten: u64,
}

impl Stream {
    fn remember(&mut self, handed: Arc<Handed>) {
        let (input, own, _) = self.share(&handed);
        self.input += input;
        self.own += own;
        self.remembered.push_back(handed);
        while (self.own > REMEMBERED || self.input > INPUT) && self.remembered.len() > 1 {
            let Some(oldest) = self.remembered.pop_front() else { break };
            let (input, own, rows) = self.share(&oldest);
            self.input -= input;
            self.own -= own;
            self.forgotten += rows;
        }
    }

    /// Returns the weight of a chunk, the bytes of the node's rows in it, and the number of these
    /// rows.
    fn share(&self, handed: &Handed) -> (usize, usize, u64) {
        let prepared = &handed.placed.prepared;
        let Body::Split(split) = &prepared.body else { return (prepared.weight(), 0, 0) };
        let own = split.rows_of(self.leaf).map_or(0, <[u8]>::len);
        (prepared.weight(), own, split.count_of(self.leaf))
    }
}

impl NodeLane {
    /// The node's partition, if it has only one. `None` if bad records are rejected: to find them,
    /// the rows of a COPY are sent again, so they must still be in memory.
    pub(super) fn only_leaf(&self, to: &ToNodes) -> Option<usize> {
        let mut leaves = self.leaves(to);
        let first = leaves.next();
        first.filter(|_| leaves.next().is_none() && self.keeper.is_none())
    }

    /// Sends the rows of a chunk for the partition.
    pub(super) fn stream(
        &mut self,
        to: &ToNodes,
        leaf: usize,
        handed: Arc<Handed>,
    ) -> Result<(), Error> {
        if !self.is_due(leaf, &handed) {
            return Ok(());
        }
        let Body::Split(split) = &handed.placed.prepared.body else { return Ok(()) };
        let Some(rows) = split.rows_of(leaf) else { return Ok(()) };
        if self.stream.is_none() {
            self.conn.copy_start(&to.leaves[leaf].copy)?;
            self.conn.copy_data(HEADER)?;
            let remembered = VecDeque::new();
            self.stream =
                Some(Stream { leaf, sent: 0, remembered, input: 0, own: 0, forgotten: 0 });
        }
        let started = Instant::now();
        let sent = self.conn.copy_data(rows);
        self.progress.sending.add(started.elapsed());
        sent?;
        let count = split.count_of(leaf);
        self.count(leaf, &handed, count);
        if let Some(stream) = &mut self.stream {
            stream.sent += count;
            stream.remember(handed);
        }
        match self.conn.copy_probe()? {
            Probe::Quiet => Ok(()),
            // Probably an error, which is reported when the COPY ends.
            Probe::Suspicious => self.end_stream(to),
        }
    }

    /// Ends the COPY, if one is open.
    pub(super) fn end_stream(&mut self, to: &ToNodes) -> Result<(), Error> {
        let Some(stream) = self.stream.take() else { return Ok(()) };
        let started = Instant::now();
        let ended = self.end_copy(to, stream.leaf, stream.sent);
        self.progress.sending.add(started.elapsed());
        let remembered = stream.remembered.iter();
        ended.map_err(|e| self.located(e, to, stream.leaf, remembered, stream.forgotten))
    }
}
