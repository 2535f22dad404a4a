//! Sends rows directly to the leaves of a partitioned table.
//!
//! A connection runs one COPY at a time. So chunks are gathered until there are enough rows, and
//! then each leaf gets all of its rows by one COPY. The result is the same as with one COPY into
//! the root:
//!
//! * The COPYs into leaves are within a savepoint. If the server rejects any of them, they are
//!   rolled back, and the same chunks go into the root in the order of the input, as they are in
//!   the file. So an error names the record that COPY into the root would name, and a wrong route
//!   loads no row into the wrong leaf.
//! * Rows are frozen only outside of savepoints. Then a rejected row ends the transaction, and the
//!   whole load is run again through the root (`load.rs`).
//! * The transaction holds a lock on the root, which it took before it read the bounds. The lock
//!   keeps partitions from being detached or dropped. A partition that is attached meanwhile gets
//!   its rows through the root. If another transaction has read the bounds, they are compared after
//!   the lock. If they have changed, every row goes through the root.
//! * Memory is bounded: a window of chunks, and the same rows after they are split. The bound is
//!   for all lanes together.

use super::{Lane, Placed};
use crate::blame::is_of_circumstances;
use crate::buffer_pool::BufferPool;
use crate::encode::{Body, Prepared};
use crate::error::Error;
use crate::input::Part;
use crate::plan::Plan;
use crate::route::{Router, Split};
use crate::session::{partitions, statement, unchanged};
use pgsluice_core::sink::{HEADER, TRAILER};
use std::sync::Arc;
use std::time::Instant;

/// Chunks that are gathered so that their rows can be sent together.
#[derive(Default)]
pub(super) struct ChunkWindow {
    chunks: Vec<Placed>,
    bytes: usize,
    /// the partitions differ from those by which rows are routed
    stale: bool,
}

/// Bytes of the input that a lane gathers before it sends rows, or half the bytes of these rows
/// ([`Prepared::weight`]). Since PostgreSQL 17, each COPY that inserts 1,000 rows or more at once
/// costs the server about a millisecond for their slots (`ResourceOwnerAddToHash`). So a COPY must
/// have many more rows.
const WINDOW: usize = 32 << 20;

/// The same for all lanes together. Chunks and their rows use more than twice as much memory.
const WINDOWS: usize = 2 * WINDOW;

impl Lane {
    /// The open transaction has read the facts of the plan.
    pub(crate) fn holds_table(&mut self) {
        self.held = true;
    }

    /// Locks the table until the transaction ends, so that its partitions stay attached. Compares
    /// the table with the plan, and its partitions with those by which rows are routed. This is done
    /// before the first row of each transaction. Any earlier, a lane without another row would wait
    /// for DDL, which would wait for the other lanes.
    ///
    /// # Errors
    ///
    /// The table has changed, the role may not lock it any more, or the connection is lost.
    pub(super) fn hold_table(&mut self) -> Result<(), Error> {
        if self.held {
            return Ok(());
        }
        let plan = self.plan.clone();
        if plan.lanes > 1 {
            // The lock may be waited for.
            self.process.find(&mut self.conn)?;
        }
        unchanged::hold(&mut self.conn, &plan)?;
        self.held = true;
        let Some(router) = &plan.router else { return Ok(()) };
        self.window.stale = partitions::read(&mut self.conn, plan.oid)? != router.partitions;
        self.counts.stale_transactions += u64::from(self.window.stale);
        Ok(())
    }

    /// Keeps a chunk that can be part of a window, and sends the window if it is large enough. If
    /// the chunk cannot be part of it, sends all chunks before it and returns the chunk.
    pub(super) fn gather(
        &mut self,
        placed: Placed,
        pool: &BufferPool,
    ) -> Result<Option<Placed>, Error> {
        let prepared = &placed.prepared;
        let whole = prepared.chunk.part == Part::Whole && !prepared.chunk.bytes.is_empty();
        let sound = prepared.fault.is_none() && prepared.chunk.damaged.is_none();
        if self.plan.router.is_none() || !whole || !sound {
            self.send_window(pool)?;
            return Ok(Some(placed));
        }
        self.window.bytes += prepared.weight();
        self.window.chunks.push(placed);
        if self.window.bytes >= WINDOW.min(WINDOWS / self.plan.lanes) {
            self.send_window(pool)?;
        }
        Ok(None)
    }

    /// Sends the gathered chunks.
    ///
    /// # Errors
    ///
    /// The server rejects a record of them or of an earlier chunk, or the connection is lost.
    pub(super) fn send_window(&mut self, pool: &BufferPool) -> Result<(), Error> {
        let chunks = std::mem::take(&mut self.window.chunks);
        self.window.bytes = 0;
        let plan = self.plan.clone();
        let Some(router) = plan.router.as_ref().filter(|_| !chunks.is_empty()) else {
            return Ok(());
        };
        // Errors of the server for earlier records come first.
        self.end_copy()?;
        let direct = !self.window.stale && self.try_leaves(router, &chunks)?;
        for placed in chunks {
            let Body::Split(split) = placed.prepared.body else {
                self.take_by_root(placed, pool)?;
                continue;
            };
            let Prepared { chunk, counts, .. } = placed.prepared;
            pool.give(split.bytes);
            if direct {
                self.progress.records.add(counts.records);
                self.counts.chunks_encoded += 1;
                Arc::into_inner(chunk).into_iter().for_each(|chunk| pool.give(chunk.bytes));
                continue;
            }
            // The place of an error is found only if the chunk is sent as it is in the file.
            let (Some(chunk), Some(dialect)) = (Arc::into_inner(chunk), plan.dialect()) else {
                return Err(Error::defect("a chunk of a window is in use elsewhere"));
            };
            let prepared = Prepared::own(&plan, dialect, chunk);
            self.take_by_root(Placed { prepared, before: placed.before }, pool)?;
        }
        Ok(())
    }

    /// Sends rows that have a leaf to it, and the other rows of their chunks to the root. Returns
    /// false if the server rejects some of them; then none of them is in the table.
    fn try_leaves(&mut self, router: &Router, chunks: &[Placed]) -> Result<bool, Error> {
        let splits: Vec<&Split> = chunks
            .iter()
            .filter_map(|placed| match &placed.prepared.body {
                Body::Split(split) => Some(split),
                _ => None,
            })
            .collect();
        if splits.is_empty() {
            return Ok(true);
        }
        let started = Instant::now();
        if !router.freeze {
            self.conn.exec("SAVEPOINT pgsluice_leaves")?;
        }
        let plan = self.plan.clone();
        let mut done = Ok((0, 0));
        for table in 0..=router.leaves.len() {
            let Ok((rows, statements)) = done else { break };
            let copied = self.copy_into(&plan, router, table, &splits);
            done =
                copied.map(|more| (rows + more.unwrap_or(0), statements + more.map_or(0, |_| 1)));
        }
        let sent = match done {
            Ok((rows, statements)) => {
                if !router.freeze {
                    self.conn.exec("RELEASE SAVEPOINT pgsluice_leaves")?;
                }
                let for_root: u64 = splits.iter().map(|split| split.for_root).sum();
                self.counts.rows += rows;
                self.counts.statements += statements;
                self.counts.to_leaves += rows.saturating_sub(for_root);
                Ok(true)
            }
            Err(error) if error.sqlstate().is_empty() || is_of_circumstances(error.sqlstate()) => {
                Err(error)
            }
            Err(error) if router.freeze => Err(error.of_leaf()),
            Err(_) => {
                self.conn.exec("ROLLBACK TO SAVEPOINT pgsluice_leaves")?;
                self.conn.exec("RELEASE SAVEPOINT pgsluice_leaves")?;
                self.counts.windows_by_root += 1;
                Ok(false)
            }
        };
        self.progress.sending.add(started.elapsed());
        sent
    }

    /// Sends the rows of all chunks for one table, by one COPY. Returns the number of rows, or
    /// `None` if there are none.
    fn copy_into(
        &mut self,
        plan: &Plan,
        router: &Router,
        table: usize,
        splits: &[&Split],
    ) -> Result<Option<u64>, Error> {
        let mut parts = splits.iter().filter_map(|split| split.rows_of(table)).peekable();
        if parts.peek().is_none() {
            return Ok(None);
        }
        let into = router.leaves.get(table).unwrap_or(&plan.table);
        let frozen = router.freeze && table < router.leaves.len();
        self.conn.copy_start(&statement::into(plan, into, frozen))?;
        self.conn.copy_data(HEADER)?;
        for rows in parts {
            self.conn.copy_data(rows)?;
        }
        self.conn.copy_data(TRAILER)?;
        self.conn.copy_end().map(Some)
    }
}
