//! Divides a file at ends of records.
//!
//! Where a record ends depends on the quotes before it, so one machine reads the file from its
//! start. It uses the same reader and the same rules as a load, and counts records and lines. Each
//! part has the number of records and lines before it, so errors name the same records and lines as
//! without parts. Each part can be taken as soon as it is found. If the machine fails, the next one
//! continues at the end of the last part.

use super::heartbeat::Heartbeat;
use crate::error::Error;
use crate::facts::Purpose;
use crate::input::{Counts, Part, Reader};
use crate::inspect::make_plan;
use crate::once::join::Member;
use crate::once::parts::SharedPart;
use crate::options::Options;
use crate::plan::Plan;
use crate::session::transaction;
use crate::source::Span;
use crate::watch::Watch;
use std::sync::Arc;

/// Divides a file that this machine has taken for that, and gives up the rest of it.
///
/// # Errors
///
/// The file cannot be read or does not fit the table, or the connection is lost.
pub(super) fn split(
    member: &Member,
    heartbeat: &Heartbeat,
    options: &Options,
    watch: &Watch,
    part: &SharedPart,
) -> Result<(), Error> {
    let mut input = options.input.clone();
    input.sources = vec![member.source(options, part)?];
    let mut reader = Reader::open(&input)?;
    if reader.compression().is_none() {
        let mut options = options.reading(&reader)?;
        options.input.sources = input.sources;
        let plan = plan_of(&reader, &options, watch)?;
        plan.read_by(&mut reader);
        let size = options.once.as_ref().and_then(|once| once.commits_every()).unwrap_or(u64::MAX);
        let put = |first: &Span, rest: &Span| {
            member.split_off(&mut heartbeat.connection(), &options, part, first, rest)
        };
        if !each(&mut reader, &plan, part, size, watch, put)? {
            // Another machine divides the file now.
            return Ok(());
        }
    }
    member.not_split(&mut heartbeat.connection(), options, part)
}

/// The plan with which a load would read the file.
fn plan_of(reader: &Reader, options: &Options, watch: &Watch) -> Result<Arc<Plan>, Error> {
    let mut conn = watch.connect(&options.target.url)?;
    transaction::begin(&mut conn, options)?;
    let plan = make_plan(&mut conn, reader, options, Purpose::Load, false)?;
    conn.exec("ROLLBACK")?;
    Ok(plan)
}

/// Calls `put` with each range of `size` bytes and the rest after it, until `put` returns false.
/// Returns whether the end of the file was reached.
fn each(
    reader: &mut Reader,
    plan: &Plan,
    part: &SharedPart,
    size: u64,
    watch: &Watch,
    put: impl Fn(&Span, &Span) -> Result<bool, Error>,
) -> Result<bool, Error> {
    let (mut first, mut before, mut free) = (part.span, Counts::default(), Vec::new());
    let mut begun = !part.is_whole();
    while let Some(chunk) = reader.next(free)? {
        if watch.stop.is_set() {
            return Err(Error::cancelled());
        }
        before += chunk.passed;
        before += chunk.known;
        if !begun {
            begun = true;
            (first.head, first.start) = (chunk.offset, chunk.offset);
            (first.records, first.lines) = (before.records, before.lines);
        }
        before += chunk.count(&plan.layout);
        let end = chunk.offset + chunk.bytes.len() as u64;
        if chunk.part != Part::Piece && !chunk.last && end - first.start >= size {
            let (records, lines) = (before.records, before.lines);
            let eol = chunk.line_end(&plan.layout);
            let rest = Span { start: end, end: None, records, lines, eol, ..first };
            if !put(&first, &rest)? {
                return Ok(false);
            }
            first = rest;
        }
        free = chunk.bytes;
    }
    Ok(true)
}
