//! What a lane records of the chunks that it has sent, and the commits between them, with `once`.

use super::{Lane, Placed};
use crate::error::{Error, Kind};
use crate::once::record::{Amounts, Piece, Recording};
use crate::session::transaction;
use std::sync::Arc;

/// What a lane has to record at its next commit.
pub(super) struct Pieces {
    recording: Arc<Recording>,
    sent: Vec<Piece>,
    /// bytes of these
    bytes: u64,
    /// rows that the lane has committed
    committed: u64,
}

impl Lane {
    /// From here on, what the lane sends is recorded.
    pub(crate) fn record_for(&mut self, recording: &Arc<Recording>) {
        let recording = recording.clone();
        self.pieces = Some(Pieces { recording, sent: Vec::new(), bytes: 0, committed: 0 });
    }

    /// What is recorded of a chunk if it is sent.
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

    /// Keeps what is to be recorded of a chunk that is sent, and commits if that is due.
    pub(super) fn sent(&mut self, piece: Option<Piece>) -> Result<(), Error> {
        let (Some(pieces), Some(piece)) = (&mut self.pieces, piece) else { return Ok(()) };
        pieces.bytes += piece.end_byte - piece.start_byte;
        pieces.sent.push(piece);
        let once = pieces.recording.options.once.as_ref();
        let due = once.and_then(|o| o.commit_every).is_some_and(|every| pieces.bytes >= every);
        // A record in pieces is not loaded before its last one.
        if !due || self.in_piece {
            return Ok(());
        }
        self.finish()?;
        self.record(None, 0)?;
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        let recording = pieces.recording.clone();
        transaction::commit(&mut self.conn, &recording.options.target.url)?;
        recording.committed.add(self.counts.rows - pieces.committed);
        recording.transactions.add(1);
        pieces.committed = self.counts.rows;
        pieces.bytes = 0;
        transaction::begin(&mut self.conn, &recording.options)
    }

    /// Records what the open transaction has loaded: `rows`, or as many as the server has counted.
    ///
    /// # Errors
    ///
    /// Another load has taken over the files, the server has taken another number of rows than
    /// there are records, or the connection is lost.
    pub(crate) fn record(&mut self, rows: Option<u64>, rejected: u64) -> Result<(), Error> {
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        let sent = std::mem::take(&mut pieces.sent);
        let read = sent.iter().map(|piece| piece.records).sum();
        let loaded = rows.unwrap_or(self.counts.rows - pieces.committed);
        if read != loaded + rejected && !self.plan.may_drop_rows {
            return Err(Error::new(format!(
                "{read} records were read, {loaded} rows loaded and {rejected} rejected; rolled back"
            ))
            .of_kind(Kind::Internal)
            .with_hint("this is a defect of the loader, or of a trigger on the table"));
        }
        let recording = pieces.recording.clone();
        recording.record(&mut self.conn, &sent, Amounts { read, loaded, rejected })
    }
}
