//! Opens the connections to the nodes, and reads which slices of the sources they have.

use super::content::Contents;
use super::{is_down, Fanout, NodeLane, QUEUE};
use crate::error::Error;
use crate::ledger::{self, node_commits::gid};
use crate::once::record::Recording;
use crate::once::slices::SliceTable;
use crate::once::tables;
use crate::options::Options;
use crate::plan::ToNodes;
use crate::session::lane::{Lane, LaneCounts};
use crate::session::nodes::{hold_leaf, of_node};
use crate::session::spare_connection::SpareConnection;
use crate::session::transaction::{self, refuse_read_only};
use crate::watch::Watch;
use crossbeam_channel::bounded;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::thread;

impl Lane {
    /// Connects to the nodes, if the plan sends rows to them.
    pub(crate) fn open_nodes(
        &mut self,
        watch: &Watch,
        options: &Options,
        recording: Option<&Arc<Recording>>,
    ) -> Result<(), Error> {
        let plan = self.plan.clone();
        let Some(to) = &plan.nodes else { return Ok(()) };
        let mut together = None;
        if to.together {
            let mut spare = SpareConnection::open(&options.target.url, watch, true)?;
            let mut other = spare.take(&options.target.url)?;
            watch.interruptible(other.canceller(), || tables::ensure(&mut other))?;
            let load = ledger::new_load(&mut other)?;
            spare.keep(other);
            together = Some((load, spare));
        }
        let mut fanout = Fanout {
            plan: plan.clone(),
            workers: Vec::new(),
            done: Vec::new(),
            open: Vec::new(),
            tolerant: to.in_turn_once(recording.is_some()),
            given: vec![0; to.nodes.len()],
            chunks: 0,
            asked: vec![false; to.leaves.len()],
            together,
            contents: recording.map(Contents::of),
            slices: Vec::new(),
            reading: None,
        };
        // If a stream was loaded as a whole, nothing is left to load.
        let partly = recording.is_some_and(|r| {
            r.known.iter().zip(r.whole()).any(|(known, whole)| !known.is_empty() && !whole)
        });
        let mut lanes = Vec::new();
        for node in 0..to.nodes.len() {
            match self.open_node(watch, options, recording, &mut fanout, node) {
                Ok(lane) => lanes.push(Some(lane)),
                Err(error) => {
                    let error = of_node(&to.nodes[node].name, error);
                    if !fanout.tolerant || !is_down(&error) {
                        return Err(error);
                    }
                    fanout.open.push((node, error));
                    lanes.push(None);
                }
            }
        }
        if partly && (fanout.tolerant || !fanout.slices.is_empty()) {
            // Slices are only for whole files.
            return Err(Error::new("a part of a file was loaded in another way").with_hint(
                "finish it in that way, or forget it with pgsluice loads forget and load it again",
            ));
        }
        let needed = fanout.tolerant || !fanout.slices.is_empty();
        fanout.contents.take_if(|_| !needed);
        for lane in lanes {
            fanout.workers.push(lane.map(|lane| {
                let (sender, receiver) = bounded(QUEUE);
                (sender, thread::spawn(move || lane.run(&receiver)))
            }));
        }
        self.nodes = Some(fanout);
        Ok(())
    }

    fn open_node(
        &self,
        watch: &Watch,
        options: &Options,
        recording: Option<&Arc<Recording>>,
        fanout: &mut Fanout,
        node: usize,
    ) -> Result<NodeLane, Error> {
        let plan = self.plan.clone();
        let Some(to) = &plan.nodes else { return Err(Error::defect("there are no nodes")) };
        if let Some(error) = &to.nodes[node].down {
            return Err(error.clone());
        }
        let mut conn = watch.connect(&to.nodes[node].address.0)?;
        refuse_read_only(&mut conn)?;
        if fanout.tolerant {
            tables::ensure(&mut conn)?;
        }
        transaction::begin(&mut conn, options)?;
        // As in postgres_fdw: triggers and defaults on the node must not depend on the user's
        // search path.
        conn.exec("SET LOCAL search_path = pg_catalog")?;
        if let Some((load, _)) = &fanout.together {
            let name = gid(load, node);
            if !ledger::lock(&mut conn, &name)? {
                return Err(Error::defect(format!("the lock {name} is taken")));
            }
        }
        let mut had = HashSet::new();
        if let Some(recording) = recording {
            let slices = recording.slices_of(&mut conn, plan.oid, &tables_of(to, node), watch)?;
            had.extend(slices.iter().map(|slice| (slice.leaf, slice.content.source)));
            fanout.slices.extend(slices);
        }
        if to.truncate {
            let tables: Vec<&str> = tables_of(to, node).iter().map(|table| table.table).collect();
            conn.exec(&format!("TRUNCATE TABLE {}", tables.join(", ")))?;
        }
        for leaf in to.compared.iter().filter(|leaf| leaf.node == node) {
            hold_leaf(&mut conn, leaf)?;
        }
        Ok(NodeLane {
            conn,
            plan: plan.clone(),
            names: self.names.clone(),
            progress: self.progress.clone(),
            node,
            window: Vec::new(),
            bytes: 0,
            stream: None,
            counts: LaneCounts::default(),
            had,
            rows: BTreeMap::new(),
            keeper: self.keeper(),
        })
    }
}

/// The tables on a node.
pub(super) fn tables_of(to: &ToNodes, node: usize) -> Vec<SliceTable<'_>> {
    let leaves = to.leaves.iter().enumerate().filter(|(_, leaf)| leaf.node == node);
    leaves
        .map(|(leaf, target)| SliceTable { leaf, table: &target.table, bound: &target.bound })
        .collect()
}
