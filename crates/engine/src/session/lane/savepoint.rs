//! Loads chunks so that rejected records do not stop the load.
//!
//! Each chunk is a separate COPY within a savepoint. If the server rejects it, records that are
//! malformed are rejected with COPY's own message. `bisect.rs` finds the others by loading parts of
//! the chunk, and the server's errors give the reasons. No record is rejected that stock COPY would
//! load.

use super::bisect::Item;
use super::{form_of, own_form, Form, Lane, Placed};
use crate::blame::{
    is_of_a_binary_value, is_of_a_literal, is_of_a_policy, is_of_a_text_value, is_of_an_expression,
    is_of_the_record, may_be_of_a_record,
};
use crate::error::{Error, Place, ServerSays};
use crate::input::{Chunk, Counts, Layout, Part};
use crate::isolate::AttemptRefused;
use crate::plan::{Landing, Wire};
use crate::reject::{Reject, Rejects};
use crate::session::staged;
use crate::session::statement;
use crate::stray;
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{Eol, Format};
use pgsluice_core::sink::{HEADER, TRAILER};
use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;
use std::time::Instant;

/// Begins an attempt. It is sent together with the COPY, since each message costs a round trip.
pub(super) const SAVEPOINT: &str = "SAVEPOINT pgsluice";

/// Ends an attempt that was accepted.
pub(super) const RELEASE: &str = "RELEASE SAVEPOINT pgsluice";

/// Ends an attempt of which nothing stays.
const ROLL_BACK: &str = "ROLLBACK TO SAVEPOINT pgsluice; RELEASE SAVEPOINT pgsluice";

/// A record in pieces. If rejects are kept, it is on disk until the server has loaded it.
pub(super) struct OversizedRecord {
    spool: Option<File>,
    first: Arc<Chunk>,
    before: Counts,
    length: u64,
    lines: u64,
}

impl Lane {
    /// As [`Lane::feed`], but rejected records are kept as rejects, if there are any.
    pub(super) fn load_by_savepoint(&mut self, placed: Placed) -> Result<(), Error> {
        let rejects = self.rejects.clone();
        self.load_chunk(placed, rejects.as_deref())?;
        if self.plan.discard && self.oversized.is_none() {
            self.conn.exec(&format!("TRUNCATE TABLE {}", self.plan.table))?;
        }
        Ok(())
    }

    /// As [`Lane::feed`] for rows that are sent by INSERT: the first rejected record stops the
    /// load.
    pub(super) fn insert(&mut self, placed: &Placed) -> Result<(), Error> {
        let chunk = &placed.prepared.chunk;
        if chunk.part != Part::Whole {
            return Err(too_long_for_insert());
        }
        if chunk.bytes.is_empty() {
            return Ok(());
        }
        self.progress.records.add(placed.prepared.counts.records);
        self.load_records(placed, None)
    }

    /// Where there are rejects besides the first file, for the summary.
    pub fn more_rejects(&self) -> Option<String> {
        self.rejects.as_ref()?.more()
    }

    fn load_chunk(&mut self, placed: Placed, rejects: Option<&Rejects>) -> Result<(), Error> {
        let plan = self.plan.clone();
        if placed.prepared.chunk.part != Part::Whole {
            return self.load_piece(&placed, rejects);
        }
        let prepared = &placed.prepared;
        if prepared.chunk.bytes.is_empty() {
            return Ok(());
        }
        self.progress.records.add(prepared.counts.records);
        let inserts = matches!(plan.wire, Wire::Insert(_));
        if prepared.fault.is_none() && !inserts {
            let form = form_of(prepared, &plan);
            let bytes = prepared.bytes();
            if self.attempt(|lane| lane.copy(form, bytes))?.is_ok() {
                self.counts.add_chunk(&prepared.body);
                return Ok(());
            }
        }
        self.load_records(&placed, rejects)
    }

    /// The error for a rejected record that stops the load.
    pub(super) fn stopped(
        &self,
        chunk: &Chunk,
        before: Counts,
        item: Item,
        index: usize,
        why: AttemptRefused,
    ) -> Error {
        let value = why.column.as_deref().and_then(|c| self.value(chunk, item.start..item.end, c));
        let place = Place {
            file: self.names[chunk.file].clone(),
            record: Some(before.records + index as u64 + 1),
            line: Some(before.lines + item.line),
            offset: Some(chunk.offset + item.start as u64),
            column: why.column.clone(),
            value,
        };
        let (sqlstate, detail, column) = (why.sqlstate, why.detail, why.column);
        let says = ServerSays { sqlstate, detail, column, ..ServerSays::default() };
        Error::new(why.message).with_server(says).at(place)
    }

    /// The entry for a rejected record of a chunk.
    pub(super) fn reject_of(
        &self,
        placed: &Placed,
        item: Item,
        index: usize,
        why: AttemptRefused,
        eol: Eol,
    ) -> Reject {
        reject_of(&self.plan.layout, &self.names, placed, (item, index), why, eol)
    }

    pub(super) fn malformed_refused(&self, fault: Malformed) -> AttemptRefused {
        let field = match fault {
            Malformed::MissingData(index) => Some(index),
            Malformed::StrayQuote { field, .. } => Some(field),
            _ => None,
        };
        let column = field.and_then(|field| self.plan.fields.get(field)?.clone());
        let name = column.as_deref().unwrap_or_default();
        let csv = self.plan.dialect().is_some_and(|d| d.format == Format::Csv);
        let message = match (fault, &column) {
            (Malformed::MissingData(index), None) => {
                format!("missing data for field {}, which is left out", index + 1)
            }
            _ => fault.message(csv, name),
        };
        AttemptRefused {
            record: None,
            message,
            sqlstate: fault.sqlstate().into(),
            detail: stray::detail(fault).map(str::to_owned),
            column,
        }
    }

    /// Does `work`, which begins with [`SAVEPOINT`] and ends with [`RELEASE`]: either all of it or
    /// nothing takes effect. If the server rejects a record, its error is the inner one.
    pub(super) fn attempt(
        &mut self,
        work: impl FnOnce(&mut Lane) -> Result<u64, Error>,
    ) -> Result<Result<(), Error>, Error> {
        let started = Instant::now();
        let done = work(self);
        self.progress.sending.add(started.elapsed());
        self.settle(done)
    }

    /// `insert` commits each row, so it needs no savepoint.
    pub(super) fn saves(&self) -> bool {
        self.plan.wire != Wire::Insert(1)
    }

    /// Counts the rows of an attempt that was accepted, or rolls it back.
    fn settle(&mut self, done: Result<u64, Error>) -> Result<Result<(), Error>, Error> {
        match done {
            Ok(rows) => {
                self.counts.rows += rows;
                self.counts.statements += 1;
                Ok(Ok(()))
            }
            Err(error) if self.is_of_a_record(&error) => {
                let ended = if self.saves() { self.conn.exec(ROLL_BACK) } else { Ok(Vec::new()) };
                match ended {
                    Ok(_) => Ok(Err(error)),
                    // There is no savepoint: the server could not read the message that sets it.
                    Err(none) if none.sqlstate() == "3B001" => Err(error),
                    Err(failed) => Err(failed),
                }
            }
            Err(error) => Err(staged::too_wide(&error, &self.plan).unwrap_or(error)),
        }
    }

    /// Whether a record can be found that causes this error: to reject it, or, if the load stops
    /// anyway, to name it.
    fn is_of_a_record(&self, error: &Error) -> bool {
        if staged::too_wide(error, &self.plan).is_some() {
            return false;
        }
        let computed = self.plan.landing.as_ref().is_some_and(Landing::has_expressions);
        is_of_the_record(error)
            || is_of_a_policy(error)
            || computed && is_of_an_expression(error.sqlstate())
            || is_of_a_binary_value(error.sqlstate()) && self.names_a_value(error)
            || is_of_a_text_value(error.sqlstate()) && self.reads_a_value(error)
            || self.rejects.is_none() && may_be_of_a_record(error)
    }

    /// Whether the server was reading one value of a tuple.
    fn names_a_value(&self, error: &Error) -> bool {
        own_form(&self.plan) == Form::Binary && self.refused(error).1.column.is_some()
    }

    /// Whether the server was reading the text of a value. If the error comes from a function, such
    /// as that of a CHECK or a trigger, its context line comes before COPY's own.
    fn reads_a_value(&self, error: &Error) -> bool {
        let context = error.server().and_then(|s| s.context.as_deref());
        let plan = &self.plan;
        // With INSERT, only the values can be wrong, unless the user has given a condition.
        let inserts = matches!(plan.wire, Wire::Insert(_)) || plan.landing.is_some();
        match context {
            Some(context) => {
                let first = context.lines().next().unwrap_or_default();
                statement::parse_line(first, plan).is_some_and(|(_, column)| column.is_some())
            }
            None => inserts && plan.filter.is_none() && is_of_a_literal(error.sqlstate()),
        }
    }

    /// An attempt by COPY. After an error, the server skips the statements that follow the COPY.
    pub(super) fn copy(&mut self, form: Form, bytes: &[u8]) -> Result<u64, Error> {
        let begin = format!("{SAVEPOINT}; {}", statement::copy(&self.plan, form));
        if self.plan.landing.is_some() {
            let rows = self.copy_by(&begin, form, bytes)?;
            return self.end_attempt(rows);
        }
        // The user's condition, which comes last, may end with a comment.
        self.copy_by(&format!("{begin}\n; {RELEASE}"), form, bytes)
    }

    fn copy_by(&mut self, copy: &str, form: Form, bytes: &[u8]) -> Result<u64, Error> {
        self.conn.copy_start(copy)?;
        if form == Form::Binary {
            self.conn.copy_data(HEADER)?;
        }
        self.conn.copy_data(bytes)?;
        if form == Form::Binary {
            self.conn.copy_data(TRAILER)?;
        }
        self.conn.copy_end()
    }

    /// Finds the column that is the reason why a record is rejected. INSERT does not name it, but
    /// COPY of that record does. Everything that this does is rolled back.
    pub(super) fn column_by_copy(
        &mut self,
        form: Form,
        record: &[u8],
        sqlstate: &str,
    ) -> Option<String> {
        let (begin, end) = if self.saves() {
            let end = "ROLLBACK TO SAVEPOINT pgsluice_column; RELEASE SAVEPOINT pgsluice_column";
            ("SAVEPOINT pgsluice_column", end)
        } else {
            ("BEGIN", "ROLLBACK")
        };
        // Errors are ignored: this only adds detail. If the connection is lost, the next statement
        // fails.
        self.conn.exec(begin).ok()?;
        let plan = self.plan.clone();
        if let Some(landing) = plan.landing.as_ref().filter(|l| l.has_expressions()) {
            let landed = self.copy_by(&statement::copy(&plan, form), form, record);
            let conn = &mut self.conn;
            let column = landed
                .ok()
                .and_then(|_| staged::refused_column(conn, &plan, landing, "true", sqlstate));
            self.conn.exec(end).ok()?;
            return column;
        }
        let tried = self.copy_by(&statement::direct(&plan, form), form, record);
        self.conn.exec(end).ok()?;
        let error = tried.err().filter(|e| e.sqlstate() == sqlstate)?;
        self.refused(&error).1.column
    }

    /// Ends an attempt whose COPY was accepted. With `staged`, first inserts the rows of the
    /// landing table into the table, so that errors for their values belong to this attempt.
    fn end_attempt(&mut self, rows: u64) -> Result<u64, Error> {
        let plan = self.plan.clone();
        let Some(landing) = &plan.landing else {
            return self.conn.exec(RELEASE).map(|_| rows);
        };
        let rows = staged::insert_rows(&mut self.conn, landing, 1, i64::MAX as u64)?;
        // The server empties a table in place only in the (sub)transaction that has created it.
        // Elsewhere, each TRUNCATE would leave its files until the commit.
        self.conn.exec(&format!("{RELEASE}; TRUNCATE {}", landing.table))?;
        Ok(rows)
    }

    /// Loads a piece of a record that is too long for memory. It is streamed to the server in a
    /// separate COPY, and to an unnamed file beside the rejects.
    fn load_piece(&mut self, placed: &Placed, rejects: Option<&Rejects>) -> Result<(), Error> {
        let chunk = &placed.prepared.chunk;
        if matches!(self.plan.wire, Wire::Insert(_)) {
            return Err(too_long_for_insert());
        }
        let mut oversized = match self.oversized.take() {
            Some(oversized) => oversized,
            None => self.start_oversized(placed, rejects)?,
        };
        if let Some(spool) = &mut oversized.spool {
            spool.write_all(&chunk.bytes).map_err(spool_error)?;
        }
        oversized.length += chunk.bytes.len() as u64;
        oversized.lines += placed.prepared.counts.lines;
        let ends = chunk.part == Part::LastPiece;
        // Never end this COPY early, whatever the server reports: the first part of a record may
        // itself be a valid record.
        self.conn.copy_data(&chunk.bytes)?;
        if !ends {
            self.oversized = Some(oversized);
            return Ok(());
        }
        let refused = match chunk.damaged {
            Some(fault) => Some(self.give_up_oversized(fault)?),
            None => {
                let ended = self.end_oversized().and_then(|rows| self.end_attempt(rows));
                self.settle(ended)?.err().map(|e| self.refused(&e).1)
            }
        };
        self.progress.records.add(1);
        self.counts.chunks_as_is += 1;
        let Some(why) = refused else { return Ok(()) };
        let (first, before) = (&oversized.first, oversized.before);
        let Some(rejects) = rejects else {
            let whole = Item { start: 0, end: 0, lines: 0, line: oversized.lines, fault: None };
            return Err(self.stopped(first, before, whole, 0, why));
        };
        let mut reject = reject(&self.names, first, before, why);
        reject.length = oversized.length;
        reject.lines = oversized.lines.max(1);
        let Some(mut spool) = oversized.spool else { return rejects.add(&reject, b"", first.eol) };
        spool.rewind().map_err(spool_error)?;
        match self.keeper() {
            Some(keeper) => keeper.keep_from(&reject, spool, first.eol),
            None => Err(defect("rejects are kept nowhere")),
        }
    }

    fn end_oversized(&mut self) -> Result<u64, Error> {
        if own_form(&self.plan) == Form::Binary {
            self.conn.copy_data(TRAILER)?;
        }
        self.conn.copy_end()
    }

    /// Rolls back a record that has a stray quote, even if the server accepts it.
    fn give_up_oversized(&mut self, fault: Malformed) -> Result<AttemptRefused, Error> {
        match self.end_oversized() {
            Err(lost) if lost.sqlstate().is_empty() => return Err(lost),
            _ => {}
        }
        self.conn.exec(ROLL_BACK)?;
        Ok(self.malformed_refused(fault))
    }

    fn start_oversized(
        &mut self,
        placed: &Placed,
        rejects: Option<&Rejects>,
    ) -> Result<OversizedRecord, Error> {
        let spool = rejects.map(Rejects::spool).transpose()?.flatten();
        let form = own_form(&self.plan);
        let copy = statement::copy(&self.plan, form);
        self.conn.copy_start(&format!("{SAVEPOINT}; {copy}"))?;
        if form == Form::Binary {
            self.conn.copy_data(HEADER)?;
        }
        let (first, before) = (placed.prepared.chunk.clone(), placed.before);
        Ok(OversizedRecord { spool, first, before, length: 0, lines: 0 })
    }

    /// The line that the server names, and why it rejects it.
    pub(super) fn refused(&self, error: &Error) -> (Option<u64>, AttemptRefused) {
        let server = error.server().cloned().unwrap_or_default();
        let context = server.context.unwrap_or_default();
        let (line, column) = match statement::parse_context(&context, &self.plan) {
            Some((line, column)) => (Some(line), column),
            None => (None, None),
        };
        let refused = AttemptRefused {
            record: None,
            column: column.or(server.column),
            sqlstate: server.sqlstate,
            message: error.message().to_string(),
            detail: server.detail,
        };
        (line, refused)
    }
}

/// The entry for a rejected record of a chunk; `item` is the record, `index` its index, `eol` the
/// chunk's line end.
pub(super) fn reject_of(
    layout: &Layout,
    names: &[String],
    placed: &Placed,
    (item, index): (Item, usize),
    why: AttemptRefused,
    eol: Eol,
) -> Reject {
    let chunk = &placed.prepared.chunk;
    let mut reject = reject(names, chunk, placed.before, why);
    reject.record += index as u64;
    reject.line += item.lines;
    reject.offset += item.start as u64;
    let bytes = &chunk.bytes[item.start..item.end];
    reject.length = bytes.len() as u64;
    reject.lines = lines_of_record(bytes, layout, eol);
    reject
}

/// The entry for the chunk's first record; the caller adapts it to another one.
fn reject(names: &[String], chunk: &Chunk, before: Counts, why: AttemptRefused) -> Reject {
    Reject {
        file: names[chunk.file].clone(),
        record: before.records + 1,
        line: before.lines + 1,
        offset: chunk.offset,
        length: 0,
        lines: 1,
        column: why.column,
        sqlstate: why.sqlstate,
        message: why.message,
        detail: why.detail,
    }
}

/// The number of lines of a record, as COPY counts them: if lines end with CR LF, it counts the CRs
/// within quotes. A tuple has one line.
fn lines_of_record(bytes: &[u8], layout: &Layout, eol: Eol) -> u64 {
    if matches!(layout, Layout::Tuples(_)) {
        return 1;
    }
    let (counted, end): (u8, &[u8]) = match eol {
        Eol::Cr => (b'\r', b"\r"),
        Eol::CrNl => (b'\r', b"\r\n"),
        Eol::Nl | Eol::Unknown => (b'\n', b"\n"),
    };
    let ends = memchr::memchr_iter(counted, bytes).count() as u64;
    ends + u64::from(!bytes.ends_with(end))
}

fn too_long_for_insert() -> Error {
    Error::new("a record is too long to be held in memory, which INSERT needs")
        .with_hint("use one of the COPY methods, which stream it")
}

fn spool_error(error: std::io::Error) -> Error {
    Error::io("write", "the record beside the reject file", &error)
}

pub(super) fn defect(what: &str) -> Error {
    Error::defect(what)
}
