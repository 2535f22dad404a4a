//! Hints for a source that has changed, and for a bad record if later records are committed.
//!
//! Ranges of a file are recorded by their offsets. With several lanes or machines, ranges after a
//! bad record may be committed. A correction that changes the length of the record moves these
//! ranges, and the next load finds other bytes there. Under another name, the file is a new file,
//! and all of its records are loaded.

use super::lookup::KnownSource;
use super::outcome::looked_up;
use super::record::Recording;
use crate::error::{Error, Kind};
use crate::input;
use crate::session::conn::Conn;
use crate::text::{text, Text};
use crate::watch::despite_cancel;
use std::ops::Range;

/// The error for a file that has other bytes in a range that an earlier load has loaded.
pub(super) fn changed(name: &str, bytes: &Range<u64>, row: &KnownSource) -> Error {
    let error = input::changed(name, bytes);
    match row.complete {
        true => error.with_hint(
            "if it is another file, give it another name: all of its records are loaded then; \
             if it was corrected, put it back as it was: it is loaded",
        ),
        false => error.with_hint(text!(
            "{}; pgsluice loads show {} lists what is committed",
            Text::from(input::CORRECTION),
            row.load
        )),
    }
}

/// The error for a source that has more bytes than when it was loaded.
pub(super) fn grown(name: &str, end: u64, more: u64) -> Error {
    Error::new(format!(
        "{name} has grown since it was loaded: {more} bytes follow byte {end}, where it ended"
    ))
    .with_hint(
        "`on-change` append loads the rest; otherwise new records need a file with another name",
    )
}

/// The hint for a file that has grown, and is another name of a file of this load that has grown by
/// other records.
pub(super) fn other_name(name: &str) -> String {
    format!(
        "it is another name of {name}, which has grown by other records: add the new records to \
         one of these files, or put them into a file of their own"
    )
}

/// Adds a hint to the error of a bad record: how to correct it, if later records are committed.
pub(super) fn correctable(error: Error, conn: &mut Conn, recording: &Recording) -> Error {
    let refused = error.place().filter(|_| error.kind() == Kind::Data);
    let Some((file, offset)) = refused.and_then(|place| Some((&place.file, place.offset?))) else {
        return error;
    };
    let sources = recording.options.input.sources.iter().zip(&recording.sources);
    let found = sources.into_iter().find(|(source, _)| source.name() == *file);
    let Some((_, number)) = found else { return error };
    // If the lookup fails, the error stays without the hint; the next load compares the bytes.
    match despite_cancel(|| goes_on(conn, *number, offset)) {
        Ok(true) => with_correction(error),
        _ => error,
    }
}

/// Adds a hint to the error of a bad record: how to correct it when later records are committed.
pub(crate) fn with_correction(error: Error) -> Error {
    let hint = match error.hint().cloned() {
        Some(hint) => text!("{}; {}", hint, Text::from(COMMITTED)),
        None => COMMITTED.into(),
    };
    error.with_hint(hint)
}

/// What to do about a bad record if later ones are committed.
const COMMITTED: &str =
    "later records are committed: correct the record without changing its length \
    and run the same command again, or use `on-error` reject without `share`";

/// Whether pieces of `source` are committed that begin after `offset`.
fn goes_on(conn: &mut Conn, source: i64, offset: u64) -> Result<bool, Error> {
    looked_up(conn, |conn| {
        conn.query(
            "SELECT 1 FROM pgsluice_loads.pieces \
             WHERE source = $1::bigint AND start_byte > $2::bigint LIMIT 1",
            &[Some(&source.to_string()), Some(&offset.to_string())],
        )
    })
}
