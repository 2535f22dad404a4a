//! Sends rows directly to nodes so that rejected records do not stop the load.
//!
//! No record is rejected that COPY through the coordinator would load, and each has the message
//! that it would have there. So the server that reads a record also decides about it:
//!
//! * If the loader may misread a record of a chunk, the coordinator reads the chunk: COPY loads it
//!   into a temporary table with the types of the columns and without constraints. Records that
//!   fail there are rejected. The other rows are returned in the binary form, and go to the nodes.
//! * Rows without a partition are sent to the partitioned table, whose error is the message. That
//!   is rolled back.
//! * Each COPY to a node is within a savepoint. If the node rejects it, the rows are found by
//!   smaller attempts (`isolate.rs`), as on a plain table.
//!
//! Rejects are not in the order of the input, since nodes load rows at the same time.

use super::{encoded, Handed, NodeLane};
use crate::blame::is_of_the_record;
use crate::encode::Body;
use crate::error::Error;
use crate::isolate::{isolate, AttemptRefused, Attempts};
use crate::plan::{Plan, ToNodes};
use crate::quote::quote_ident;
use crate::session::lane::bisect::{items, Bisection, Item};
use crate::session::lane::savepoint::reject_of;
use crate::session::lane::{Lane, Placed};
use crate::session::statement;
use pgsluice_core::scan::Eol;
use pgsluice_core::sink::HEADER;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The table into which the coordinator reads records.
const READ: &str = "pgsluice_read";

/// The column that preserves the order of the records.
const NUMBER: &str = "pgsluice_record";

/// Rejected records of a chunk, each with its index, in order.
type Bad = Vec<(usize, AttemptRefused)>;

/// How the coordinator reads records.
pub(super) struct ReadingQuery {
    /// the plan of the load, with the temporary table in place of the table
    plan: Arc<Plan>,
    /// returns the rows in their order
    query: String,
}

/// The records of a chunk, and which record each row is of.
#[derive(Debug)]
pub(super) struct ChunkRecords {
    items: Vec<Item>,
    /// for each row, in the order of the leaves, the index of its record
    of_rows: Vec<u64>,
    /// the chunk's line end
    eol: Eol,
}

impl Lane {
    /// Passes the good rows of a chunk to the nodes, after it rejects records that the coordinator
    /// does not accept.
    pub(super) fn send_what_is_good(&mut self, mut placed: Placed) -> Result<(), Error> {
        let plan = self.plan.clone();
        let (Some(router), Some(keeper)) = (&plan.router, self.keeper()) else {
            return Err(Error::defect("rejects are kept nowhere"));
        };
        let chunk = placed.prepared.chunk.clone();
        let items = items(&chunk, &plan.layout, plan.fields.len());
        if items.len() as u64 != placed.prepared.counts.records {
            return Err(Error::defect("two counts of a chunk's records differ"));
        }
        self.progress.records.add(placed.prepared.counts.records);
        let (mut refused, rows) = match (&placed.prepared.body, placed.prepared.fault) {
            (Body::Split(_), None) => {
                let rows = encoded(&plan, placed.prepared.records());
                (Vec::new(), rows.ok_or_else(|| Error::defect("a chunk is not read again"))?)
            }
            _ => self.read_by_coordinator(&placed, &items)?,
        };
        let is_good = |index: &usize| refused.binary_search_by_key(index, |(bad, _)| *bad).is_err();
        let good: Vec<usize> = (0..items.len()).filter(is_good).collect();
        let unread = || Error::defect("the rows of a chunk cannot be read");
        let mut split = router.split(&rows, Vec::new()).ok_or_else(unread)?;
        let places = router.places(&rows).ok_or_else(unread)?;
        let mut of_rows = Vec::with_capacity(places.len());
        for place in places {
            of_rows.push(*good.get(place as usize).ok_or_else(unread)? as u64);
        }
        if split.for_root > 0 {
            let without = of_rows.split_off(of_rows.len() - split.for_root as usize);
            split.drop_root();
            refused.extend(self.refused_by_root(&placed, &items, &without)?);
            refused.sort_by_key(|(index, _)| *index);
        }
        let eol = chunk.line_end(&plan.layout);
        for (index, why) in refused {
            let item = items[index];
            let reject = self.reject_of(&placed, item, index, why, eol);
            keeper.keep(&reject, &chunk.bytes[item.start..item.end], eol)?;
        }
        self.ask_coordinator(&split)?;
        placed.prepared.body = Body::Split(split);
        self.hand(Handed { placed, records: OnceLock::from(ChunkRecords { items, of_rows, eol }) })
    }

    /// Makes the coordinator read the records of a chunk. Returns those that it rejects, and the
    /// rows of the others.
    fn read_by_coordinator(
        &mut self,
        placed: &Placed,
        items: &[Item],
    ) -> Result<(Bad, Vec<u8>), Error> {
        let Some(reading) = self.reading()? else {
            return Err(Error::defect("the coordinator reads nothing"));
        };
        let (plan, counts) = (self.plan.clone(), self.counts.clone());
        self.plan = reading.plan.clone();
        let found = Bisection::new(self, placed, &plan.layout, items, false).run();
        (self.plan, self.counts) = (plan, counts);
        let refused = found?;
        let (rows, count) = self.conn.tuples(&reading.query)?;
        self.conn.exec(&format!("TRUNCATE pg_temp.{READ}"))?;
        if count as usize + refused.len() != items.len() {
            return Err(Error::defect("the coordinator has read another number of records"));
        }
        Ok((refused, rows))
    }

    /// The table into which the coordinator reads; created on first use.
    fn reading(&mut self) -> Result<Option<Arc<ReadingQuery>>, Error> {
        let plan = self.plan.clone();
        let (Some(fanout), Some(to)) = (&mut self.nodes, &plan.nodes) else { return Ok(None) };
        if fanout.reading.is_none() {
            let columns: Vec<String> = plan.columns.iter().map(|name| quote_ident(name)).collect();
            let made = self.conn.exec(&format!(
                "CREATE TEMPORARY TABLE pg_temp.{READ} ({}, \
                   {NUMBER} bigint GENERATED ALWAYS AS IDENTITY) ON COMMIT DROP",
                to.types.join(", ")
            ));
            made.map_err(|error| match error.sqlstate() {
                "42501" => error.with_hint(
                    "with `on-error` reject the coordinator reads doubtful records into a temporary \
                     table: the role needs TEMPORARY on its database",
                ),
                _ => error,
            })?;
            let query =
                format!("SELECT {} FROM pg_temp.{READ} ORDER BY {NUMBER}", columns.join(", "));
            let (table, relation) = (format!("pg_temp.{READ}"), READ.to_owned());
            let read = Plan { table, relation, nodes: None, router: None, ..(*plan).clone() };
            fanout.reading = Some(Arc::new(ReadingQuery { plan: Arc::new(read), query }));
        }
        Ok(fanout.reading.clone())
    }

    /// Returns the errors of the partitioned table for records that have no partition.
    fn refused_by_root(
        &mut self,
        placed: &Placed,
        items: &[Item],
        records: &[u64],
    ) -> Result<Bad, Error> {
        let plan = self.plan.clone();
        let without: Vec<Item> = records.iter().map(|index| items[*index as usize]).collect();
        self.conn.exec("SAVEPOINT pgsluice_root")?;
        let counts = self.counts.clone();
        let refused = Bisection::new(self, placed, &plan.layout, &without, false).run()?;
        self.counts = counts;
        self.conn.exec("ROLLBACK TO SAVEPOINT pgsluice_root; RELEASE SAVEPOINT pgsluice_root")?;
        if refused.len() != records.len() {
            return Err(Error::new("a partition was attached during the load")
                .with_hint("the same command routes rows to it"));
        }
        Ok(refused.into_iter().map(|(i, why)| (records[i] as usize, why)).collect())
    }
}

impl Handed {
    /// Records and rows of the chunk; computed on first use.
    pub(super) fn records(&self, plan: &Arc<Plan>) -> Option<&ChunkRecords> {
        if self.records.get().is_none() {
            let prepared = &self.placed.prepared;
            let rows = encoded(plan, prepared.records())?;
            let of_rows = plan.router.as_ref()?.places(&rows)?;
            let items = items(&prepared.chunk, &plan.layout, plan.fields.len());
            let eol = prepared.chunk.line_end(&plan.layout);
            // Another thread may have computed the same.
            let _ = self.records.set(ChunkRecords { items, of_rows, eol });
        }
        self.records.get()
    }

    /// The index of the record of a row of a leaf.
    pub(super) fn record_of(&self, plan: &Arc<Plan>, leaf: usize, row: u64) -> Option<u64> {
        let Body::Split(split) = &self.placed.prepared.body else { return None };
        let at = split.rows_before(leaf) + row;
        self.records(plan)?.of_rows.get(at as usize).copied()
    }
}

impl NodeLane {
    /// Loads all rows of one leaf that the node accepts, and rejects the others.
    pub(super) fn copy_or_reject(
        &mut self,
        to: &ToNodes,
        leaf: usize,
        window: &[Arc<Handed>],
    ) -> Result<(), Error> {
        let why = match self.attempt(|lane| lane.copy(to, leaf, window))? {
            Ok(()) => return Ok(()),
            Err(error) => self.refused(&error, to, leaf),
        };
        let plan = self.plan.clone();
        let Some(router) = &plan.router else { return Err(Error::defect("there is no router")) };
        let mut rows = Vec::new();
        for (chunk, handed) in window.iter().enumerate() {
            let Body::Split(split) = &handed.placed.prepared.body else { continue };
            let bytes = split.rows_of(leaf).unwrap_or_default();
            let ends = router.ends(bytes).ok_or_else(|| Error::defect("a row cannot be read"))?;
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let of_chunk = starts.zip(&ends).enumerate();
            rows.extend(of_chunk.map(|(index, (start, end))| Row {
                chunk: chunk as u32,
                index: index as u32,
                start: start as u32,
                end: *end as u32,
            }));
        }
        let all = 0..rows.len();
        isolate(all, &mut LeafRows { lane: self, to, leaf, window, rows, whole: Some(why) })
    }

    /// Does `work` within a savepoint. If the node rejects a row, its error is the inner one.
    fn attempt(
        &mut self,
        work: impl FnOnce(&mut NodeLane) -> Result<(), Error>,
    ) -> Result<Result<(), Error>, Error> {
        self.conn.exec("SAVEPOINT pgsluice")?;
        let counts = (self.counts.clone(), self.rows.clone());
        match work(self) {
            Ok(()) => {
                self.conn.exec("RELEASE SAVEPOINT pgsluice")?;
                Ok(Ok(()))
            }
            Err(error) if is_of_the_record(&error) => {
                (self.counts, self.rows) = counts;
                self.conn.exec("ROLLBACK TO SAVEPOINT pgsluice; RELEASE SAVEPOINT pgsluice")?;
                Ok(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Why the node rejects a row; the row is given by its number in the COPY.
    fn refused(&self, error: &Error, to: &ToNodes, leaf: usize) -> AttemptRefused {
        let target = &to.leaves[leaf];
        let server = error.server().cloned().unwrap_or_default();
        let context = server.context.unwrap_or_default();
        let found = context
            .lines()
            .find_map(|line| statement::place_in(line, &target.relation, &target.columns));
        let (row, column) = found.unzip();
        AttemptRefused {
            record: row.map(|row| (row as usize).saturating_sub(1)),
            column: column.flatten().or(server.column).map(|name| self.own(target, name)),
            sqlstate: server.sqlstate,
            message: error.message().to_string(),
            detail: server.detail,
        }
    }
}

/// A row of a leaf.
struct Row {
    /// the index of its chunk in the window
    chunk: u32,
    /// its index among the leaf's rows in the chunk
    index: u32,
    /// its byte range in these rows
    start: u32,
    end: u32,
}

/// The rows of one leaf, to be loaded in smaller and smaller ranges.
struct LeafRows<'a> {
    lane: &'a mut NodeLane,
    to: &'a ToNodes,
    leaf: usize,
    window: &'a [Arc<Handed>],
    rows: Vec<Row>,
    /// why all of them together were rejected, in the attempt before
    whole: Option<AttemptRefused>,
}

impl LeafRows<'_> {
    /// Sends a range of rows by one COPY.
    fn copy(&mut self, range: Range<usize>) -> Result<Result<(), Error>, Error> {
        let (to, leaf, window) = (self.to, self.leaf, self.window);
        let rows = &self.rows[range];
        self.lane.attempt(|lane| {
            lane.conn.copy_start(&to.leaves[leaf].copy)?;
            lane.conn.copy_data(HEADER)?;
            for of_chunk in rows.chunk_by(|a, b| a.chunk == b.chunk) {
                let handed = &window[of_chunk[0].chunk as usize];
                let Body::Split(split) = &handed.placed.prepared.body else { continue };
                let bytes = split.rows_of(leaf).unwrap_or_default();
                let end = of_chunk.last().map_or(0, |row| row.end);
                lane.conn.copy_data(&bytes[of_chunk[0].start as usize..end as usize])?;
                lane.count(leaf, handed, of_chunk.len() as u64);
            }
            lane.end_copy(to, leaf, rows.len() as u64)
        })
    }
}

impl Attempts for LeafRows<'_> {
    type Fatal = Error;

    fn load(&mut self, records: Range<usize>) -> Result<Result<(), AttemptRefused>, Error> {
        if let Some(why) = self.whole.take() {
            return Ok(Err(why));
        }
        let Err(error) = self.copy(records.clone())? else { return Ok(Ok(())) };
        let mut why = self.lane.refused(&error, self.to, self.leaf);
        why.record = why.record.map(|row| records.start + row);
        Ok(Err(why))
    }

    fn reject(&mut self, record: usize, why: AttemptRefused) -> Result<(), Error> {
        let plan = self.lane.plan.clone();
        let row = &self.rows[record];
        let handed = &self.window[row.chunk as usize];
        let index = handed.record_of(&plan, self.leaf, u64::from(row.index));
        let item = index.and_then(|index| {
            let of_chunk = handed.records(&plan)?;
            of_chunk.items.get(index as usize).map(|item| (*item, index as usize, of_chunk.eol))
        });
        let (Some((item, index, eol)), Some(keeper)) = (item, &self.lane.keeper) else {
            return Err(Error::defect("the record of a refused row is not found"));
        };
        let chunk = &handed.placed.prepared.chunk;
        let (names, placed) = (&self.lane.names, &handed.placed);
        let reject = reject_of(&plan.layout, names, placed, (item, index), why, eol);
        keeper.keep(&reject, &chunk.bytes[item.start..item.end], eol)
    }
}
