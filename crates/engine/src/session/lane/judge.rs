//! Chunks where refused records are rejected and the load goes on.
//!
//! Each chunk is a COPY of its own within a savepoint. Where the server refuses
//! it, the records that break the form of the file are rejected with COPY's
//! own message, and [`isolate`] finds the others by asking the server, which
//! says why. No record is rejected that stock COPY would have taken.

use super::{form_of, Form, Lane, Placed};
use crate::encode;
use crate::error::Error;
use crate::input::{Chunk, Part};
use crate::isolate::{isolate, Attempts, Refused};
use crate::plan::Wire;
use crate::reject::{is_of_the_record, Reject, Rejects};
use crate::session::conn::Probe;
use crate::session::staged;
use crate::session::statement::{self, NoInsert};
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{Dialect, Eol, Format, Next, Record, Scanner};
use pgsluice_core::sink::{HEADER, TRAILER};
use std::fs::File;
use std::io::{Seek, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A record of a chunk.
#[derive(Clone, Copy, Debug)]
struct Item {
    start: usize,
    end: usize,
    /// lines of the chunk before it
    lines: u64,
    /// why it is no record of this file, if it is none
    fault: Option<Malformed>,
}

/// A record in pieces, kept on disk until the server has taken it.
pub(super) struct Giant {
    spool: File,
    first: Arc<Chunk>,
    before: crate::input::Counts,
    length: u64,
    refused: Option<Refused>,
}

impl Lane {
    /// As [`Lane::feed`], but a refused record goes to `rejects`.
    pub(super) fn judge(&mut self, placed: Placed, rejects: &Rejects) -> Result<(), Error> {
        self.judge_chunk(placed, rejects)?;
        if self.plan.discard && self.giant.is_none() {
            self.conn.exec(&format!("TRUNCATE TABLE {}", self.plan.table))?;
        }
        Ok(())
    }

    fn judge_chunk(&mut self, placed: Placed, rejects: &Rejects) -> Result<(), Error> {
        let plan = self.plan.clone();
        let Some(dialect) = &plan.dialect else { return Err(defect("rejects of a binary file")) };
        if placed.prepared.chunk.part != Part::Whole {
            return self.judge_piece(&placed, rejects);
        }
        let prepared = &placed.prepared;
        if prepared.chunk.bytes.is_empty() {
            return Ok(());
        }
        self.progress.records.add(prepared.counts.records);
        let inserts = matches!(plan.wire, Wire::Insert(_));
        if prepared.fault.is_none() && !inserts {
            let form = form_of(prepared, plan.wire);
            let bytes = prepared.bytes();
            if self.attempt(|lane| lane.copy(form, bytes))?.is_ok() {
                self.counts.add_chunk(&prepared.body);
                return Ok(());
            }
        }
        self.judge_records(&placed, dialect, rejects)
    }

    fn judge_records(
        &mut self,
        placed: &Placed,
        dialect: &Dialect,
        rejects: &Rejects,
    ) -> Result<(), Error> {
        let chunk = &placed.prepared.chunk;
        let items = items(chunk, dialect, self.plan.shape.fields);
        if items.len() as u64 != placed.prepared.counts.records {
            return Err(defect("two counts of a chunk's records differ"));
        }
        let mut court = Court { lane: self, chunk, dialect, good: Vec::new(), refused: Vec::new() };
        for (index, item) in items.iter().enumerate() {
            match item.fault {
                None => court.good.push((index, *item)),
                Some(fault) => {
                    let refused = court.lane.malformed_refused(fault, dialect);
                    court.refused.push((index, refused));
                }
            }
        }
        let most = match court.lane.plan.wire {
            Wire::Insert(batch) => batch,
            _ => usize::MAX,
        };
        let mut from = 0;
        while from < court.good.len() {
            let to = court.good.len().min(from.saturating_add(most));
            isolate(from..to, &mut court)?;
            from = to;
        }
        let mut refused = court.refused;
        refused.sort_by_key(|(index, _)| *index);
        for (index, why) in refused {
            let item = items[index];
            let mut reject = self.reject(chunk, placed.before, why);
            reject.record += index as u64;
            reject.line += item.lines;
            reject.offset += item.start as u64;
            reject.length = (item.end - item.start) as u64;
            rejects.add(&reject, &chunk.bytes[item.start..item.end])?;
        }
        self.counts.chunks_as_is += 1;
        Ok(())
    }

    /// The story of the chunk's first record; the caller moves it to another one.
    fn reject(&self, chunk: &Chunk, before: crate::input::Counts, why: Refused) -> Reject {
        Reject {
            file: self.names[chunk.file].clone(),
            record: before.records + 1,
            line: before.lines + 1,
            offset: chunk.offset,
            length: 0,
            column: why.column,
            sqlstate: why.sqlstate,
            message: why.message,
            detail: why.detail,
        }
    }

    fn malformed_refused(&self, fault: Malformed, dialect: &Dialect) -> Refused {
        let column = match fault {
            Malformed::MissingData(index) => self.plan.columns.get(index).cloned(),
            _ => None,
        };
        let name = column.as_deref().unwrap_or_default();
        Refused {
            record: None,
            message: fault.message(dialect.format == Format::Csv, name),
            sqlstate: fault.sqlstate().into(),
            detail: None,
            column,
        }
    }

    /// Tries something within a savepoint: all of it or nothing. Gives the
    /// server's refusal of a record as the inner error.
    fn attempt(
        &mut self,
        work: impl FnOnce(&mut Lane) -> Result<u64, Error>,
    ) -> Result<Result<(), Error>, Error> {
        // `insert` commits each row, so there is no transaction to save.
        let saves = self.plan.wire != Wire::Insert(1);
        if saves {
            self.conn.exec("SAVEPOINT pgsluice")?;
        }
        let started = Instant::now();
        let done = work(self);
        self.progress.sending.add(started.elapsed());
        match done {
            Ok(rows) => {
                self.counts.rows += rows;
                self.counts.statements += 1;
                if saves {
                    self.conn.exec("RELEASE SAVEPOINT pgsluice")?;
                }
                Ok(Ok(()))
            }
            Err(error) if is_of_the_record(error.sqlstate()) => {
                if saves {
                    self.conn.exec("ROLLBACK TO SAVEPOINT pgsluice")?;
                    self.conn.exec("RELEASE SAVEPOINT pgsluice")?;
                }
                Ok(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    fn copy(&mut self, form: Form, bytes: &[u8]) -> Result<u64, Error> {
        self.conn.copy_start(&statement::copy(&self.plan, form))?;
        if form == Form::Binary {
            self.conn.copy_data(HEADER)?;
        }
        self.conn.copy_data(bytes)?;
        if form == Form::Binary {
            self.conn.copy_data(TRAILER)?;
        }
        let rows = self.conn.copy_end()?;
        self.landed(rows)
    }

    /// With `staged`: moves what has landed on, so that the refusal of a value
    /// belongs to this attempt.
    fn landed(&mut self, rows: u64) -> Result<u64, Error> {
        let plan = self.plan.clone();
        let Some(landing) = &plan.landing else { return Ok(rows) };
        let rows = staged::insert(&mut self.conn, landing, 1, i64::MAX as u64)?;
        self.conn.exec(&format!("TRUNCATE {}", landing.table))?;
        Ok(rows)
    }

    /// A piece of a record that is too long to be held: streamed to the server
    /// in a COPY of its own, and to a file without a name beside the rejects.
    fn judge_piece(&mut self, placed: &Placed, rejects: &Rejects) -> Result<(), Error> {
        let chunk = &placed.prepared.chunk;
        if matches!(self.plan.wire, Wire::Insert(_)) {
            return Err(too_long_for_insert());
        }
        let mut giant = match self.giant.take() {
            Some(giant) => giant,
            None => self.start_giant(placed, rejects)?,
        };
        giant.spool.write_all(&chunk.bytes).map_err(spool_error)?;
        giant.length += chunk.bytes.len() as u64;
        let ends = chunk.part == Part::LastPiece;
        if giant.refused.is_none() {
            self.conn.copy_data(&chunk.bytes)?;
            if ends || self.conn.copy_probe()? == Probe::Suspicious {
                let ended = self.conn.copy_end().and_then(|rows| self.landed(rows));
                giant.refused = self.end_giant(ended)?;
            }
        }
        if !ends {
            self.giant = Some(giant);
            return Ok(());
        }
        self.progress.records.add(1);
        self.counts.chunks_as_is += 1;
        let Some(why) = giant.refused.take() else { return Ok(()) };
        let mut reject = self.reject(&giant.first, giant.before, why);
        reject.length = giant.length;
        giant.spool.rewind().map_err(spool_error)?;
        rejects.add_from(&reject, &mut giant.spool)
    }

    fn start_giant(&mut self, placed: &Placed, rejects: &Rejects) -> Result<Giant, Error> {
        let spool = rejects.spool().map_err(spool_error)?;
        self.conn.exec("SAVEPOINT pgsluice")?;
        self.conn.copy_start(&statement::copy(&self.plan, Form::AsIs))?;
        let (first, before) = (placed.prepared.chunk.clone(), placed.before);
        Ok(Giant { spool, first, before, length: 0, refused: None })
    }

    fn end_giant(&mut self, ended: Result<u64, Error>) -> Result<Option<Refused>, Error> {
        match ended {
            Ok(rows) => {
                self.counts.rows += rows;
                self.counts.statements += 1;
                self.conn.exec("RELEASE SAVEPOINT pgsluice")?;
                Ok(None)
            }
            Err(error) if is_of_the_record(error.sqlstate()) => {
                self.conn.exec("ROLLBACK TO SAVEPOINT pgsluice")?;
                self.conn.exec("RELEASE SAVEPOINT pgsluice")?;
                Ok(Some(self.refused(&error).1))
            }
            Err(error) => Err(error),
        }
    }

    /// The line that the server names, and its refusal.
    fn refused(&self, error: &Error) -> (Option<u64>, Refused) {
        let server = error.server().cloned().unwrap_or_default();
        let context = server.context.unwrap_or_default();
        let (line, column) = match statement::parse_context(&context, &self.plan) {
            Some((line, column)) => (Some(line), column),
            None => (None, None),
        };
        let refused = Refused {
            record: None,
            column: column.or(server.column),
            sqlstate: server.sqlstate,
            message: error.message().to_owned(),
            detail: server.detail,
        };
        (line, refused)
    }
}

/// The records of one chunk before the server.
struct Court<'a> {
    lane: &'a mut Lane,
    chunk: &'a Chunk,
    dialect: &'a Dialect,
    /// the records that have the file's form, each with its index in the chunk
    good: Vec<(usize, Item)>,
    refused: Vec<(usize, Refused)>,
}

impl Attempts for Court<'_> {
    type Fatal = Error;

    fn load(&mut self, records: Range<usize>) -> Result<Result<(), Refused>, Error> {
        if let Wire::Insert(_) = self.lane.plan.wire {
            return self.insert(records);
        }
        let mut bytes = Vec::new();
        for (_, item) in &self.good[records.clone()] {
            bytes.extend_from_slice(&self.chunk.bytes[item.start..item.end]);
            // The last record of a file may lack its end, and stand before another one here.
            if !matches!(bytes.last(), Some(b'\n' | b'\r')) {
                bytes.push(if self.chunk.eol == Eol::Cr { b'\r' } else { b'\n' });
            }
        }
        let major = self.lane.plan.major;
        let bytes = encode::guard(&bytes, Eol::Unknown, self.dialect, major).unwrap_or(bytes);
        let Err(error) = self.lane.attempt(|lane| lane.copy(Form::AsIs, &bytes))? else {
            return Ok(Ok(()));
        };
        let (line, mut refused) = self.lane.refused(&error);
        let named = line.map(|line| record_of_line(&bytes, self.dialect, line));
        refused.record = named.map(|index| records.start + index);
        Ok(Err(refused))
    }

    fn reject(&mut self, record: usize, why: Refused) -> Result<(), Error> {
        self.refused.push((self.good[record].0, why));
        Ok(())
    }
}

impl Court<'_> {
    fn insert(&mut self, records: Range<usize>) -> Result<Result<(), Refused>, Error> {
        let plan = self.lane.plan.clone();
        let mut insert = statement::Insert::new(&plan);
        let mut record = Record::default();
        for index in records {
            let item = self.good[index].1;
            let one = &self.chunk.bytes[item.start..item.end];
            let mut scanner = Scanner::new(one, true, self.dialect, self.chunk.eol);
            if scanner.next(&mut record) != Ok(Next::Record) {
                return Err(defect("a record is none when it stands alone"));
            }
            let refused = match insert.add(&plan, one, &record) {
                Ok(()) => continue,
                Err(NoInsert::Malformed(fault)) => self.lane.malformed_refused(fault, self.dialect),
                Err(NoInsert::Encoding(message)) => Refused {
                    record: None,
                    column: None,
                    sqlstate: "22021".into(),
                    message,
                    detail: None,
                },
            };
            return Ok(Err(Refused { record: Some(index), ..refused }));
        }
        let sql = insert.take();
        let done = self.lane.attempt(|lane| lane.conn.exec_counted(&sql).map(|(_, rows)| rows))?;
        Ok(done.map_err(|error| self.lane.refused(&error).1))
    }
}

/// The chunk's records, those included that break the rules of its form.
fn items(chunk: &Chunk, dialect: &Dialect, fields: usize) -> Vec<Item> {
    let mut scanner = chunk.scanner(dialect);
    let mut record = Record::default();
    let mut items = Vec::new();
    loop {
        let lines = scanner.lines();
        match scanner.next(&mut record) {
            Ok(Next::Record) => {
                let fault = match record.len() {
                    n if n > fields => Some(Malformed::ExtraData),
                    n if n < fields => Some(Malformed::MissingData(n)),
                    _ => None,
                };
                items.push(Item { start: record.start, end: record.end, lines, fault });
            }
            Ok(_) => return items,
            Err(fault) => match scanner.skip_line() {
                Some((start, end)) if start < end => {
                    items.push(Item { start, end, lines, fault: Some(fault) });
                }
                _ => return items,
            },
        }
    }
}

/// The index of the record that the server means by `line` of these bytes.
fn record_of_line(bytes: &[u8], dialect: &Dialect, line: u64) -> usize {
    let mut scanner = Scanner::new(bytes, true, dialect, Eol::Unknown);
    let mut record = Record::default();
    let mut index = 0;
    while scanner.next(&mut record) == Ok(Next::Record) && scanner.lines() < line {
        index += 1;
    }
    index
}

pub(super) fn too_long_for_insert() -> Error {
    Error::new("a record is too long to be held in memory, which INSERT needs")
        .with_hint("take one of the copy methods, which stream it")
}

fn spool_error(error: std::io::Error) -> Error {
    Error::io("write", "the record beside the reject file", &error)
}

fn defect(what: &str) -> Error {
    Error::new(format!("{what}; this is a defect")).with_hint("nothing was loaded")
}
