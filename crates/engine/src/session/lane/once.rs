//! What a lane records, with `once`, of the chunks that it has sent, and the commits between them.

use super::{Lane, Placed};
use crate::error::{Error, Kind};
use crate::once::record::{Amounts, Piece, Recording};
use crate::options::Method;
use crate::reject::{Block, Reject, Rejects, Spool};
use crate::session::catalog;
use crate::session::conn::Conn;
use crate::session::sequences::{pass, quickly_moved, KeySequence};
use crate::session::transaction::{self, check_deferred};
use pgsluice_core::scan::Eol;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a lane will record at its next commit.
pub(super) struct Pieces {
    recording: Arc<Recording>,
    sent: Vec<Piece>,
    /// number of bytes of these
    bytes: u64,
    /// rejects of these
    rejected: Arc<Mutex<Spool>>,
    /// number of rows that the lane has committed
    committed: u64,
    /// the sequences that are moved before each commit, once they are looked up
    sequences: Option<Vec<KeySequence>>,
}

impl Lane {
    /// From now on, records what the lane sends.
    pub(crate) fn record_for(&mut self, recording: &Arc<Recording>) {
        let recording = recording.clone();
        self.pieces = Some(Pieces {
            recording,
            sent: Vec::new(),
            bytes: 0,
            rejected: Arc::default(),
            committed: 0,
            sequences: None,
        });
    }

    /// What to record of a chunk once it is sent.
    pub(super) fn piece(&self, placed: &Placed) -> Option<Piece> {
        let (pieces, chunk) = (self.pieces.as_ref()?, &placed.prepared.chunk);
        let hash = placed.prepared.hash.filter(|_| !chunk.bytes.is_empty())?;
        let counts = placed.prepared.counts;
        Some(Piece {
            source: pieces.recording.sources[chunk.file],
            start_byte: chunk.offset,
            end_byte: chunk.offset + chunk.bytes.len() as u64,
            first_record: placed.before.records + 1,
            first_line: placed.before.lines + 1,
            records: counts.records,
            lines: counts.lines,
            hash: format!("\\x{}", hash.to_hex()),
        })
    }

    /// Keeps what to record of a chunk that was sent, and commits if it is time to.
    pub(super) fn sent(&mut self, piece: Option<Piece>) -> Result<(), Error> {
        let (Some(pieces), Some(piece)) = (&mut self.pieces, piece) else { return Ok(()) };
        pieces.bytes += piece.end_byte - piece.start_byte;
        pieces.sent.push(piece);
        let once = pieces.recording.options.once.as_ref();
        let due = once.and_then(|o| o.commits_every()).is_some_and(|every| pieces.bytes >= every);
        match due {
            true => self.commit_sent(),
            false => Ok(()),
        }
    }

    /// Call this when the input has ended. If lanes commit several times, this one commits what it has
    /// sent: another one may wait for it, and the last commits of all lanes wait for that one.
    ///
    /// # Errors
    ///
    /// As for [`Lane::finish`] and [`Lane::commit_pieces`].
    pub(crate) fn commit_rest(&mut self) -> Result<(), Error> {
        let Some(pieces) = &self.pieces else { return Ok(()) };
        let several = self.plan.lanes > 1 && pieces.recording.options.in_pieces();
        match several && !pieces.sent.is_empty() {
            true => self.commit_sent(),
            false => Ok(()),
        }
    }

    /// Commits what was sent, if that is possible now, and begins another transaction.
    fn commit_sent(&mut self) -> Result<(), Error> {
        let compared = |pieces: &Pieces| pieces.recording.compared.load(Ordering::Acquire);
        // The COPY of a record in pieces is open until its last piece, so do not commit before
        // that. Nothing of a stream is committed before it is known to be the same one as in the
        // earlier load.
        if !self.pieces.as_ref().is_some_and(compared) || self.in_piece() {
            return Ok(());
        }
        self.finish()?;
        self.commit_pieces(None, false)?;
        self.process.forget();
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        let recording = pieces.recording.clone();
        pieces.bytes = 0;
        transaction::begin(&mut self.conn, &recording.options)?;
        self.held = false;
        if self.plan.method == Method::Extension {
            // With a pooler, or after a lost connection, this may be another session.
            catalog::load_library(&mut self.conn)?.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Records what the open transaction has loaded, and commits it. `rows` is given for the last
    /// commit of a single lane, which also completes the files; otherwise the server has counted
    /// them. `checked`: deferred constraints were checked after the last row.
    ///
    /// # Errors
    ///
    /// Another load has taken over the files, the numbers of loaded and rejected records do not add
    /// up to that of read ones, the rejects cannot be written, or the connection is lost.
    pub(crate) fn commit_pieces(&mut self, rows: Option<u64>, checked: bool) -> Result<(), Error> {
        let last = rows.is_some();
        if !last {
            self.pass_keys(checked)?;
        }
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        let (sent, amount) = (std::mem::take(&mut pieces.sent), locked(&pieces.rejected).amount());
        let read = sent.iter().map(|piece| piece.records).sum();
        let loaded = rows.unwrap_or(self.counts.rows - pieces.committed);
        let rejected = amount.records;
        if read != loaded + rejected && !self.plan.may_drop_rows {
            return Err(Error::new(format!(
                "{read} records were read, {loaded} rows loaded and {rejected} rejected; rolled back"
            ))
            .of_kind(Kind::Internal)
            .with_hint("this is a defect of the loader, or of a trigger on the table"));
        }
        let recording = pieces.recording.clone();
        let amounts = Amounts { read, loaded, rejected };
        let rejects = self.rejects.clone();
        // This lock is held until the outcome of the COMMIT is known.
        let mut block = match &rejects {
            Some(rejects) if rejected > 0 || last => Some(rejects.block()),
            _ => None,
        };
        let commit = recording.record(&mut self.conn, &sent, amounts, || match &mut block {
            Some(block) if rejected > 0 => block.write(&mut locked(&pieces.rejected)),
            _ => Ok(Vec::new()),
        })?;
        if last {
            recording.complete(&mut self.conn)?;
            block.as_mut().map_or(Ok(()), Block::end)?;
        }
        let is_there = |conn: &mut Conn, xid: &str| {
            recording.is_there(conn, xid, commit.as_deref(), sent.first(), last)
        };
        let options = &recording.options;
        match self.nodes {
            Some(_) => self.commit_nodes(options, Some(&is_there))?,
            None => {
                let url = &options.target.url;
                transaction::commit_recorded(&mut self.conn, url, &self.watch, &is_there)?;
            }
        }
        if let Some(block) = block {
            block.committed();
        }
        let nodes = self.plan.nodes.as_ref().map_or(1, |to| to.nodes.len() as u64);
        recording.committed.read.add(read);
        recording.committed.rows.add(loaded);
        recording.committed.transactions.add(nodes);
        if let Some(pieces) = &mut self.pieces {
            pieces.committed = self.counts.rows;
        }
        Ok(())
    }

    /// Moves sequences past the keys of the open transaction. A sequence whose farthest key no index
    /// finds is moved at the end of the load. Only other connections see rows that nodes have.
    fn pass_keys(&mut self, checked: bool) -> Result<(), Error> {
        if !self.held {
            // Without rows, the lane could wait for DDL that waits for lanes with rows.
            return Ok(());
        }
        let (Some(pieces), None) = (&mut self.pieces, &self.nodes) else { return Ok(()) };
        let found = match pieces.sequences.take() {
            Some(found) => found,
            None => quickly_moved(&mut self.conn, self.plan.oid, &self.plan.columns)?,
        };
        if !checked && !found.is_empty() {
            // Before the lock, since this may wait for another lane.
            check_deferred(&mut self.conn)?;
        }
        let recording = pieces.recording.clone();
        let _alone = recording.moving.lock().unwrap_or_else(PoisonError::into_inner);
        for sequence in &found {
            pass(&mut self.conn, &self.plan.table, sequence)?;
        }
        pieces.sequences = Some(found);
        Ok(())
    }

    /// Where the lane keeps rejects: until the commit of the transaction, or at once in the reject
    /// files.
    pub(super) fn keeper(&self) -> Option<Keeper> {
        let rejects = self.rejects.clone()?;
        let spool = self.pieces.as_ref().filter(|_| rejects.is_recorded());
        let spool = spool.map(|pieces| pieces.rejected.clone());
        Some(Keeper { rejects, spool })
    }

    /// Ends the reject files after all lanes have committed.
    ///
    /// # Errors
    ///
    /// The files cannot be written.
    pub(crate) fn end_rejects(&mut self) -> Result<(), Error> {
        self.rejects.as_ref().map_or(Ok(()), |rejects| rejects.end())
    }

    /// Call this before the load fails because of too many rejects. Writes those whose transaction
    /// is not committed, so that the user can examine them. The next load cuts them off.
    pub(crate) fn show_rejects(&mut self) {
        let (Some(pieces), Some(rejects)) = (&mut self.pieces, &self.rejects) else { return };
        let mut rejected = locked(&pieces.rejected);
        if rejects.is_exceeded() && rejected.amount().records > 0 {
            // An error here is ignored: the load fails for another reason.
            let _ = rejects.block().show(&mut rejected);
        }
    }
}

/// Keeps rejected records. A lane and the threads that send rows to its nodes share it.
#[derive(Clone)]
pub(super) struct Keeper {
    rejects: Arc<Rejects>,
    /// for a load that is recorded: the rejects of the transaction
    spool: Option<Arc<Mutex<Spool>>>,
}

impl Keeper {
    /// Keeps a rejected record.
    ///
    /// # Errors
    ///
    /// The record cannot be written, or the limit is exceeded.
    pub fn keep(&self, reject: &Reject, bytes: &[u8], eol: Eol) -> Result<(), Error> {
        match self.spool {
            Some(_) => self.keep_from(reject, bytes, eol),
            None => self.rejects.add(reject, bytes, eol),
        }
    }

    /// As [`Keeper::keep`], for a record that is too long for memory.
    ///
    /// # Errors
    ///
    /// As for [`Keeper::keep`], or the record cannot be read.
    pub fn keep_from(&self, reject: &Reject, mut bytes: impl Read, eol: Eol) -> Result<(), Error> {
        let Some(spool) = &self.spool else {
            return self.rejects.add_from(reject, &mut bytes, eol);
        };
        locked(spool).add(&self.rejects, reject, &mut bytes, eol)?;
        self.rejects.count(reject)
    }
}

fn locked(spool: &Mutex<Spool>) -> MutexGuard<'_, Spool> {
    spool.lock().unwrap_or_else(|e| e.into_inner())
}
