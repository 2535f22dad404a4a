//! A lane: one connection that loads chunks. It assigns each chunk to a statement, and translates
//! errors of the server to places in the files.

mod bisect;
mod keys;
mod malformed;
mod nodes;
mod once;
mod open;
mod savepoint;
mod window;

use super::conn::{Conn, Probe};
use super::deadlock_watch::LaneProcess;
use super::sequences::KeySequence;
use super::{staged, statement, transaction};
use crate::blame::is_of_circumstances;
use crate::buffer_pool::BufferPool;
use crate::encode::{self, Body, Fault, Prepared};
use crate::error::{shown, shown_bytes, Error, Place};
use crate::input::{lines_of_first, Chunk, Counts, Layout, Part};
use crate::plan::{Plan, Wire};
use crate::reject::Rejects;
use crate::report::Progress;
use crate::watch::Watch;
use open::{OpenCopy, SentChunk};
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::binary::Tuples;
use pgsluice_core::scan::{Dialect, Eol, Next, Record, Scanner};
use pgsluice_core::sink::{HEADER, TRAILER};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// How many bytes of chunks are kept after they were sent, so that an error can show the record as
/// it is in the file. This is more than the buffers between here and the server hold.
const REMEMBERED: usize = 12 << 20;

/// A chunk to be sent, with its place in the file.
#[derive(Debug)]
pub struct Placed {
    /// the data to send
    pub prepared: Prepared,
    /// records and lines of the file before the chunk
    pub before: Counts,
}

/// The form of the data of a COPY statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// the form of the file
    AsIs,
    /// the binary form
    Binary,
    /// CSV with COPY's defaults
    Csv,
    /// the text format with COPY's defaults
    Text,
    /// the text format with the file's delimiter and NULL marker; the file is CSV
    Plain,
}

/// Statistics of a lane.
#[derive(Clone, Debug, Default)]
pub struct LaneCounts {
    /// rows that the server has loaded
    pub rows: u64,
    /// statements with rows
    pub statements: u64,
    /// chunks sent as they are in the file
    pub chunks_as_is: u64,
    /// chunks sent in another form than the file's, even if COPY reads both the same
    pub chunks_encoded: u64,
    /// rows that were sent directly to a partition
    pub to_leaves: u64,
    /// rows that nodes already had
    pub there: u64,
    /// rows of nodes that cannot be reached
    pub open: u64,
    /// windows whose rows were sent to the root because a partition rejected one of them
    pub windows_by_root: u64,
    /// transactions in which the partitions differed from those by which rows are routed
    pub stale_transactions: u64,
}

impl LaneCounts {
    fn add_chunk(&mut self, sent_as: &Body) {
        match sent_as {
            Body::AsIs | Body::Guarded(_) => self.chunks_as_is += 1,
            Body::Plain | Body::Rows(_) | Body::Rewritten(_) | Body::Split(_) => {
                self.chunks_encoded += 1;
            }
        }
    }
}

/// A connection that loads chunks within its transaction.
pub struct Lane {
    /// the connection
    pub conn: Conn,
    /// the server process of its transaction
    pub process: LaneProcess,
    plan: Arc<Plan>,
    names: Arc<Vec<String>>,
    progress: Arc<Progress>,
    /// ends waits when the user stops the load
    watch: Watch,
    open: Option<OpenCopy>,
    window: window::ChunkWindow,
    /// its statistics
    pub counts: LaneCounts,
    in_piece: bool,
    /// whether the open transaction has locked the table and compared it with the plan
    held: bool,
    /// where rejected records are written; `None` if the first one stops the load
    rejects: Option<Arc<Rejects>>,
    oversized: Option<savepoint::OversizedRecord>,
    /// the record in pieces, if types were inferred from other records
    long: Option<malformed::LongRecord>,
    /// if each row is committed by itself: the sequences to move with it, and the index of the column
    /// of each
    keys: Vec<(usize, KeySequence)>,
    /// what to record at the next commit; `None` if nothing is recorded
    pieces: Option<once::Pieces>,
    /// the servers that hold the partitions, if rows are sent directly to them
    nodes: Option<nodes::Fanout>,
}

impl Lane {
    /// Creates a lane over a connection whose transaction has begun. `names` are those of the
    /// files, for messages.
    pub fn new(
        conn: Conn,
        plan: Arc<Plan>,
        names: Arc<Vec<String>>,
        watch: &Watch,
        rejects: Option<Arc<Rejects>>,
    ) -> Lane {
        Lane {
            conn,
            process: LaneProcess::default(),
            plan,
            names,
            progress: watch.progress.clone(),
            watch: watch.clone(),
            open: None,
            window: window::ChunkWindow::default(),
            counts: LaneCounts::default(),
            in_piece: false,
            held: false,
            rejects,
            oversized: None,
            long: None,
            keys: Vec::new(),
            pieces: None,
            nodes: None,
        }
    }

    /// Sends a chunk. Memory that it no longer needs goes to `pool`.
    ///
    /// # Errors
    ///
    /// The server rejects a record of it or of an earlier chunk, or the connection is lost. The
    /// transaction has failed.
    pub fn feed(&mut self, placed: Placed, pool: &BufferPool) -> Result<(), Error> {
        let piece = self.piece(&placed);
        self.hold_table()?;
        self.take(placed, pool).map_err(|error| self.stayed(error))?;
        self.sent(piece)
    }

    /// If rows are committed one by one, adds to an error how many rows stay in the table, and
    /// waits until they are on disk.
    pub fn stayed(&mut self, error: Error) -> Error {
        let rows = self.counts.rows;
        // TRUNCATE was committed before the rows; a table that `--create` made is examined later.
        let before = if self.plan.before.is_empty() { "" } else { "the table was emptied; " };
        let nothing = rows == 0 && before.is_empty();
        let later = nothing && self.plan.made.is_some();
        if self.plan.wire != Wire::Insert(1) || later || error.changed().is_some() {
            return error;
        }
        let changed = match transaction::await_disk(&mut self.conn) {
            Ok(()) if nothing => return error,
            Ok(()) => format!("{rows} rows stayed"),
            Err(_) => format!(
                "{rows} rows were committed, perhaps one more; if the server has crashed, the latest may be lost"
            ),
        };
        error.with_changed(format!("{before}{changed}"))
    }

    fn take(&mut self, placed: Placed, pool: &BufferPool) -> Result<(), Error> {
        if self.nodes.is_some() {
            return self.send_to_nodes(placed);
        }
        if let Some((Fault::Altered(column), line)) = placed.prepared.fault {
            self.finish()?;
            return Err(self.altered(&placed, column, line));
        }
        if placed.prepared.chunk.part != Part::Whole {
            self.check_piece(&placed)?;
        }
        match self.gather(placed, pool)? {
            Some(placed) => self.take_by_root(placed, pool),
            None => Ok(()),
        }
    }

    /// Sends a chunk to the table itself.
    fn take_by_root(&mut self, placed: Placed, pool: &BufferPool) -> Result<(), Error> {
        if self.rejects.is_some() || self.plan.lands_by_chunk {
            return self.load_by_savepoint(placed);
        }
        if matches!(self.plan.wire, Wire::Insert(_)) {
            return self.insert(&placed);
        }
        if placed.prepared.chunk.damaged.is_some() {
            return Err(self.damaged(&placed.prepared.chunk));
        }
        if let Some((Fault::Malformed(fault), line)) = placed.prepared.fault {
            let stray = matches!(fault, Malformed::StrayQuote { .. });
            if stray || self.plan.recast.is_some() {
                return self.stop_at(&placed, fault, line, pool);
            }
            let file = placed.prepared.chunk.file;
            let seen = self.open.as_ref().is_some_and(|o| o.form == Form::AsIs && o.file == file);
            if !seen {
                // Errors of the server for earlier records come first.
                self.finish()?;
                return Err(self.malformed(&placed, fault, line));
            }
        }
        if placed.prepared.chunk.bytes.is_empty() {
            self.in_piece &= placed.prepared.chunk.part == Part::Piece;
            return Ok(());
        }
        let form = form_of(&placed.prepared, &self.plan);
        self.make_open(form, &placed.prepared)?;
        let started = Instant::now();
        let sent = self.conn.copy_data(placed.prepared.bytes());
        self.progress.sending.add(started.elapsed());
        self.counts.add_chunk(&placed.prepared.body);
        self.progress.records.add(placed.prepared.counts.records);
        self.in_piece = placed.prepared.chunk.part == Part::Piece;
        self.remember(placed, form, pool);
        sent?;
        // It may be a part of a notice, which must not end a COPY that should have the whole file. To
        // tell the two apart takes a second if it is an error.
        let quiet = self.in_piece
            || self.conn.copy_probe()? == Probe::Quiet
            || self.plan.one_copy && self.conn.copy_probe_again()? == Probe::Quiet;
        if quiet {
            return Ok(());
        }
        // Probably an error, which is reported when the COPY ends.
        self.finish()?;
        if self.plan.one_statement {
            // Do not start a second COPY: statement-level triggers would fire again.
            return Err(Error::new("the server sent a message during the COPY"));
        }
        Ok(())
    }

    /// Sends gathered chunks, and ends the open COPY, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`Lane::feed`].
    pub fn finish(&mut self) -> Result<(), Error> {
        self.finish_nodes()?;
        self.send_window(&BufferPool::default())?;
        self.end_copy()
    }

    fn end_copy(&mut self) -> Result<(), Error> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if open.form == Form::Binary {
            self.conn.copy_data(TRAILER)?;
        }
        let started = Instant::now();
        let ended = self.conn.copy_end();
        self.progress.sending.add(started.elapsed());
        match ended {
            Ok(rows) => {
                self.counts.rows += rows;
                Ok(())
            }
            Err(error) => Err(self.located(error, &open)),
        }
    }

    /// Whether the end of the last record has not been sent yet.
    pub fn in_piece(&self) -> bool {
        self.in_piece || self.oversized.is_some()
    }

    /// Whether each file must be one COPY because triggers fire for each statement. A COPY into the
    /// landing table of `staged` fires no triggers of the table.
    fn one_copy(&self) -> bool {
        self.plan.one_statement && self.plan.landing.is_none()
    }

    fn make_open(&mut self, form: Form, prepared: &Prepared) -> Result<(), Error> {
        let chunk = &prepared.chunk;
        let one_copy = self.one_copy();
        if self.open.as_mut().is_some_and(|open| open.takes(form, prepared, one_copy)) {
            return Ok(());
        }
        let again = self.open.as_ref().is_some_and(|open| open.file == chunk.file);
        self.finish()?;
        if again && one_copy && self.plan.lanes == 1 {
            return Err(fires_twice());
        }
        self.conn.copy_start(&statement::copy(&self.plan, form))?;
        self.counts.statements += 1;
        if form == Form::Binary {
            self.conn.copy_data(HEADER)?;
        }
        self.open = Some(OpenCopy::begin(form, prepared));
        Ok(())
    }

    fn remember(&mut self, placed: Placed, form: Form, pool: &BufferPool) {
        let Some(open) = &mut self.open else { return };
        let Placed { prepared, before } = placed;
        let Prepared { chunk, counts, sent_lines, recast, body, .. } = prepared;
        if open.units == 0 && chunk.part == Part::Whole {
            open.uncounted = match (&body, self.plan.dialect()) {
                (Body::AsIs | Body::Guarded(_), Some(d)) => {
                    uncounted(&recast.as_ref().unwrap_or(&chunk).bytes, d, chunk.eol)
                }
                (Body::Rewritten(csv), _) if form == Form::Csv => {
                    uncounted(csv, &Dialect::csv(), Eol::Nl)
                }
                _ => 0,
            };
        }
        open.bytes += chunk.bytes.len();
        open.sent.push_back(SentChunk { chunk, before, preceding: open.units });
        open.units += match (form, &body) {
            (Form::AsIs | Form::Plain, _) => sent_lines,
            (Form::Csv, Body::Rewritten(csv)) => memchr::memchr_iter(b'\n', csv).count() as u64,
            _ => counts.records,
        };
        if let Body::Rows(bytes) | Body::Rewritten(bytes) | Body::Guarded(bytes) = body {
            pool.give(bytes);
        }
        if let Some(recast) = recast {
            pool.give(recast.bytes);
        }
        while open.bytes > REMEMBERED && open.sent.len() > 1 {
            let Some(oldest) = open.sent.pop_front() else { break };
            open.bytes -= oldest.chunk.bytes.len();
            if let Some(chunk) = Arc::into_inner(oldest.chunk) {
                pool.give(chunk.bytes);
            }
        }
    }

    /// Adds to an error of the server its place in the file, as far as the server reports one.
    fn located(&self, error: Error, open: &OpenCopy) -> Error {
        if is_of_circumstances(error.sqlstate()) {
            return error;
        }
        if let Some(error) = staged::too_wide(&error, &self.plan) {
            return error;
        }
        let context = error.server().and_then(|s| s.context.clone()).unwrap_or_default();
        let Some((unit, column)) = statement::parse_context(&context, &self.plan) else {
            return error;
        };
        let unit = unit.saturating_add_signed(open.uncounted);
        let column = column.or_else(|| error.server().and_then(|s| s.column.clone()));
        let found = open.sent.iter().rev().find(|s| s.preceding < unit);
        // The first pieces of a record may have been dropped from memory by now.
        let found = found.or_else(|| open.sent.front().filter(|s| s.chunk.part != Part::Whole));
        let Some(sent) = found else {
            let file = self.names[open.file].clone();
            return error.at(Place { file, column, ..Place::default() });
        };
        let place = self.place(sent, open.form, unit.saturating_sub(sent.preceding), column);
        error.at(place)
    }

    /// The place of line or row `unit` (from 1) of a chunk; 0 means before the remembered pieces.
    fn place(&self, sent: &SentChunk, form: Form, unit: u64, column: Option<String>) -> Place {
        let file = self.names[sent.chunk.file].clone();
        let layout = &self.plan.layout;
        let line = sent.before.lines;
        if sent.chunk.part != Part::Whole {
            let (record, offset) = (Some(sent.before.records + 1), Some(sent.chunk.start));
            let line = (unit > 0).then_some(line + unit);
            return Place { file, record, line, offset, column, ..Place::default() };
        }
        let recast = self.recast(&sent.chunk);
        let records = recast.as_ref().unwrap_or(&sent.chunk);
        let (before, start, end) = match form {
            Form::AsIs | Form::Plain => {
                let found = records.record_of_line(layout, unit);
                if recast.is_none() {
                    found
                } else {
                    sent.chunk.record_at(layout, found.0)
                }
            }
            Form::Csv => sent.chunk.record_at(layout, self.record_of_csv(records, unit)),
            _ => sent.chunk.record_at(layout, unit - 1),
        };
        let value = column.as_deref().and_then(|c| self.value(&sent.chunk, start..end, c));
        let last_line = match form {
            Form::AsIs | Form::Plain if recast.is_none() => line + unit,
            _ => line + sent.chunk.lines_to(layout, end),
        };
        Place {
            file,
            record: Some(sent.before.records + before + 1),
            line: Some(last_line),
            offset: Some(sent.chunk.offset + start as u64),
            column,
            value,
        }
    }

    /// The value of a record for a column, for messages.
    fn value(&self, chunk: &Chunk, record: Range<usize>, column: &str) -> Option<String> {
        let field = self.plan.field_of(column)?;
        let bytes = &chunk.bytes[record];
        let Some(dialect) = self.plan.dialect() else {
            let mut fields = Vec::new();
            let columns = self.plan.columns.len() as i16;
            Tuples::new(bytes, columns).next(&mut fields).ok()?;
            return fields.get(field)?.clone().map(|value| shown_bytes(&bytes[value]));
        };
        let mut record = Record::default();
        let mut scanner = Scanner::new(bytes, true, dialect, chunk.eol);
        let scanned = scanner.next(&mut record) == Ok(Next::Record) && field < record.len();
        scanned.then(|| shown(record.field(bytes, field).1))
    }

    /// The index of the record that has line `line` after the chunk is rewritten as CSV.
    fn record_of_csv(&self, chunk: &Chunk, line: u64) -> u64 {
        let mut csv = Vec::new();
        let written = encode::rewritten(&self.plan, chunk, &mut Record::default(), &mut csv);
        written.map_or(0, |_| record_of_line(&csv, &Dialect::csv(), Eol::Nl, line) as u64)
    }
}

/// The number of lines of the first record, minus the number that is counted while the line end of
/// the data is still unknown.
fn uncounted(bytes: &[u8], dialect: &Dialect, eol: Eol) -> i64 {
    let lines = |eol| lines_of_first(bytes, dialect, eol) as i64;
    lines(eol) - lines(Eol::Unknown)
}

/// The form of the data as they are in the file.
fn own_form(plan: &Plan) -> Form {
    match plan.layout {
        Layout::Lines(_) => Form::AsIs,
        Layout::Tuples(_) => Form::Binary,
    }
}

fn form_of(prepared: &Prepared, plan: &Plan) -> Form {
    match (&prepared.body, plan.wire) {
        (Body::AsIs | Body::Guarded(_), _) => own_form(plan),
        (Body::Plain, _) => Form::Plain,
        (Body::Rows(_) | Body::Split(_), _) => Form::Binary,
        (Body::Rewritten(_), Wire::Text) => Form::Text,
        (Body::Rewritten(_), _) => Form::Csv,
    }
}

/// The index of the record that has `line` of these bytes in the server's count.
fn record_of_line(bytes: &[u8], dialect: &Dialect, eol: Eol, line: u64) -> usize {
    let mut scanner = Scanner::new(bytes, true, dialect, eol);
    let mut record = Record::default();
    let mut index = 0;
    while scanner.next(&mut record) == Ok(Next::Record) && scanner.lines() < line {
        index += 1;
    }
    index
}

fn fires_twice() -> Error {
    Error::new(
        "the rows of a file take more than one COPY, and a trigger that fires for each statement \
         would fire more than once",
    )
    .with_hint("use `method` copy-text for CSV or copy-csv for text, which need only one COPY")
}
