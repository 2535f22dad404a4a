//! Records that stop the load before the server has seen them.

use super::{Lane, Placed};
use crate::buffer_pool::BufferPool;
use crate::encode::Prepared;
use crate::error::{Error, Place};
use crate::input::Chunk;
use crate::recast;
use crate::stray;
use pgsluice_core::error::Malformed;

impl Lane {
    /// The records of a chunk as they are sent, where these are not the file's.
    pub(super) fn recast(&self, chunk: &Chunk) -> Option<Chunk> {
        let (recast, dialect) = (self.plan.recast.as_ref()?, self.plan.dialect()?);
        recast.chunk(chunk, dialect).ok().map(|(recast, _)| recast)
    }

    /// Of a record in pieces no field can be left out.
    pub(super) fn too_long_to_recast(&self, placed: &Placed) -> Error {
        let (chunk, before) = (&placed.prepared.chunk, placed.before);
        recast::too_long().at(Place {
            file: self.names[chunk.file].clone(),
            record: Some(before.records + 1),
            line: Some(before.lines + 1),
            offset: Some(chunk.start),
            ..Place::default()
        })
    }

    /// Sends the records before the one in `line`, so that the server's errors come first, and
    /// gives the error of that one.
    pub(super) fn stop_at(
        &mut self,
        placed: &Placed,
        fault: Malformed,
        line: u64,
        pool: &BufferPool,
    ) -> Result<(), Error> {
        let (chunk, layout) = (&placed.prepared.chunk, &self.plan.layout);
        let (_, start, _) = chunk.record_of_line(layout, line);
        if let Some(dialect) = self.plan.dialect() {
            let prepared = Prepared::own(&self.plan, dialect, chunk.head(start));
            self.take(Placed { prepared, before: placed.before }, pool)?;
        }
        self.finish()?;
        Err(self.malformed(placed, fault, line))
    }

    /// The error of a record that passed in pieces.
    pub(super) fn damaged(&self, chunk: &Chunk) -> Error {
        let (file, offset) = (self.names[chunk.file].clone(), Some(chunk.start));
        stray::too_long(Place { file, offset, ..Place::default() })
    }

    /// An error that no server has to be asked about.
    pub(super) fn malformed(&self, placed: &Placed, fault: Malformed, line: u64) -> Error {
        let chunk = &placed.prepared.chunk;
        let (before, start, end) = chunk.record_of_line(&self.plan.layout, line);
        let refused = self.malformed_refused(fault);
        let place = Place {
            file: self.names[chunk.file].clone(),
            record: Some(placed.before.records + before + 1),
            line: Some(placed.before.lines + line),
            offset: Some(chunk.offset + start as u64),
            column: refused.column,
            ..Place::default()
        };
        let error = Error::new(refused.message).at(place);
        match self.plan.dialect() {
            Some(dialect) => stray::explained(error, fault, &chunk.bytes[start..end], dialect),
            None => error,
        }
    }
}
