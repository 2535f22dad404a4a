//! Records that stop the load before they are sent to the server.

use super::{Lane, Placed};
use crate::buffer_pool::BufferPool;
use crate::encode::Prepared;
use crate::error::{Error, Place};
use crate::infer::LongRecordFit;
use crate::input::{Chunk, Part};
use crate::recast;
use crate::stray;
use pgsluice_core::error::Malformed;

/// A record in pieces that must fit the types that were inferred from other records.
pub(super) struct LongRecord {
    fit: LongRecordFit,
    /// its first line in the file
    line: u64,
}

impl Lane {
    /// The error for a value that the server would read as another one.
    pub(super) fn altered(&self, placed: &Placed, column: usize, line: u64) -> Error {
        let chunk = &placed.prepared.chunk;
        let (before, start, end) = chunk.record_of_line(&self.plan.layout, line);
        let place = Place {
            file: self.names[chunk.file].clone(),
            record: Some(placed.before.records + before + 1),
            line: Some(placed.before.lines + line),
            offset: Some(chunk.offset + start as u64),
            ..Place::default()
        };
        let name = self.plan.columns.get(column).map_or("", String::as_str);
        let value = self.value(chunk, start..end, name);
        let error = self.altered_at(Place { value, ..place }, column);
        match self.plan.inferred.as_ref().is_some_and(|inferred| inferred.whole) {
            true => error.with_hint(
                "the file was written to after the types were inferred from it: load it again when \
                 nothing writes to it",
            ),
            false => error.with_hint("`create`=text-on-doubt reads the whole input first"),
        }
    }

    fn altered_at(&self, place: Place, column: usize) -> Error {
        let inferred = self.plan.inferred.as_ref().and_then(|all| all.columns.get(column));
        Error::new(format!(
            "the type {}, which was inferred for the column, would change the value",
            inferred.map_or("", |new| new.guess.sql())
        ))
        .at(Place { column: self.plan.columns.get(column).cloned(), ..place })
    }

    /// Checks the next piece of a record that is too long for memory against the inferred types.
    pub(super) fn check_piece(&mut self, placed: &Placed) -> Result<(), Error> {
        let chunk = &placed.prepared.chunk;
        let begins = chunk.offset == chunk.start;
        if self.plan.recast.is_some() {
            self.finish()?;
            return Err(self.too_long_to_recast(placed));
        }
        let (Some(inferred), Some(dialect)) = (&self.plan.inferred, self.plan.dialect()) else {
            return Ok(());
        };
        let mut long = self.long.take().unwrap_or_else(|| LongRecord {
            fit: LongRecordFit::new(inferred.columns.clone(), dialect),
            line: placed.before.lines + 1,
        });
        // The fields after a stray quote are not those that COPY finds.
        let last = chunk.part == Part::LastPiece;
        let altered = match chunk.damaged {
            Some(_) => None,
            None => long.fit.altered(&chunk.bytes, last),
        };
        let Some(column) = altered else {
            self.long = (!last).then_some(long);
            return Ok(());
        };
        if begins {
            // Errors of the server for earlier records come first.
            self.finish()?;
        }
        let place = Place {
            file: self.names[chunk.file].clone(),
            record: Some(placed.before.records + 1),
            line: Some(long.line),
            offset: Some(chunk.start),
            ..Place::default()
        };
        let error = self.altered_at(place, column);
        Err(error.with_hint(
            "a record that does not fit in memory is not examined for types: create the table first",
        ))
    }

    /// The records of a chunk as they are sent; `None` if they are sent as they are in the file.
    pub(super) fn recast(&self, chunk: &Chunk) -> Option<Chunk> {
        let (recast, dialect) = (self.plan.recast.as_ref()?, self.plan.dialect()?);
        recast.chunk(chunk, dialect).ok().map(|(recast, _)| recast)
    }

    /// The error for a record in pieces, from which no field can be left out.
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

    /// Sends the records before the one in `line`, so that errors of the server for them come
    /// first, and returns the error of that record.
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

    /// The error of a damaged record that was sent in pieces.
    pub(super) fn damaged(&self, chunk: &Chunk) -> Error {
        let (file, offset) = (self.names[chunk.file].clone(), Some(chunk.start));
        stray::too_long(Place { file, offset, ..Place::default() })
    }

    /// The error of a malformed record, without a query of the server.
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
