//! Records that stop the load before the server has seen them.

use super::{Lane, Placed};
use crate::encode::{self, Body, Prepared};
use crate::error::{Error, Place};
use crate::spare::Spare;
use crate::stray;
use pgsluice_core::error::Malformed;
use std::sync::Arc;

impl Lane {
    /// Sends the records before the one in `line`, so that the server's errors come first, and
    /// gives the error of that one.
    pub(super) fn stop_at_stray(
        &mut self,
        placed: &Placed,
        fault: Malformed,
        line: u64,
        spare: &Spare,
    ) -> Result<(), Error> {
        let (chunk, layout) = (&placed.prepared.chunk, &self.plan.layout);
        let (_, start, _) = chunk.record_of_line(layout, line);
        let part = chunk.head(start);
        let counts = part.count(layout);
        let own = self.plan.dialect().and_then(|d| encode::sendable(&part, d, self.plan.major));
        let body = own.map_or(Body::AsIs, Body::Guarded);
        let (chunk, before) = (Arc::new(part), placed.before);
        let prepared = Prepared { chunk, body, counts, stray_quotes: 0, fault: None };
        self.take(Placed { prepared, before }, spare)?;
        self.finish()?;
        Err(self.malformed(placed, fault, line))
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
