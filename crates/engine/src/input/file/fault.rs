//! Errors for a file that cannot be read any further.

use super::{InputFile, MAX_RECORD};
use crate::error::{Error, Kind, Place};
use crate::input::decompress::{is_damage, Compression};
use crate::input::records::{Cutter, Layout};
use std::io;

/// The error of a source that cannot be read any further. If it is an error of the decompressor, and
/// not of the operating system or the source, the file is damaged.
pub(in crate::input) fn unreadable(
    name: &str,
    compression: Option<Compression>,
    e: &io::Error,
) -> Error {
    let error = Error::io("read", name, e);
    match compression {
        Some(c) if is_damage(e) => {
            error.of_kind(Kind::Data).with_hint(format!("the file is {}; is it whole?", c.name()))
        }
        _ => error,
    }
}

impl InputFile {
    pub(super) fn unreadable(&self, e: &io::Error) -> Error {
        unreadable(&self.name, self.compression, e)
    }

    /// Returns the error for the fault of the next tuple, with its place.
    pub(super) fn corrupt(&self, layout: &Layout) -> Error {
        let (Some(fault), Some(Cutter::Tuples(splitter))) = (self.fault, &self.cutter) else {
            return Error::new(format!("{} cannot be read", self.name));
        };
        let number = Some(splitter.line());
        let column = match (layout, splitter.column()) {
            (Layout::Tuples(columns), Some(column)) => columns.get(column).cloned(),
            _ => None,
        };
        let place = Place {
            file: self.name.clone(),
            record: number,
            line: number,
            offset: Some(self.offset - self.giant.unwrap_or(0)),
            column,
            ..Place::default()
        };
        Error::new(fault.to_string()).at(place).with_hint(
            "the rest cannot be read either: the file is damaged, or belongs to another table",
        )
    }

    pub(super) fn check_giant(&self, length: u64, end: usize) -> Result<(), Error> {
        if length <= MAX_RECORD {
            return Ok(());
        }
        let start = self.offset + end as u64 - length;
        Err(Error::new(format!(
            "{}, byte offset {start}: a record is longer than the server's limit of 1 GB",
            self.name
        ))
        .of_kind(Kind::Data)
        .with_hint("a quote may be left open there"))
    }
}
