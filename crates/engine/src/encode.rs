//! Prepares chunks for sending: as rows if the core is sure of every field, and otherwise as the
//! bytes of the file, which the server checks.

use crate::buffer_pool::BufferPool;
use crate::infer::Fit;
use crate::input::{Chunk, Counts, Part};
use crate::plan::{Plan, Wire};
use crate::rewrite;
use crate::route::Split;
use crate::wire;
use pgsluice_core::error::Malformed;
use pgsluice_core::row::{self, NoRow};
use pgsluice_core::scan::{quote_strays, valid_utf8, Dialect, Eol, Format, Next, Record, Scanner};
use pgsluice_core::sink::{PgCopySink, RowSink};
use std::sync::Arc;

/// The most bytes that the rows of a chunk may take. This is many times the size of a chunk, but
/// columns of `char(n)` may pad text to more.
const MOST_ROWS: usize = 8 << 20;

/// The same for nodes, to which a chunk cannot be sent in another form. 4 MB of text, the longest
/// chunk, make at most twelve times as many bytes, and [`Plan::read_by`] limits padding.
const MOST_ROWS_FOR_NODES: usize = 64 << 20;

/// What is sent for a chunk.
#[derive(Debug)]
pub enum Body {
    /// the chunk's own bytes
    AsIs,
    /// the chunk's own bytes; they are CSV and mean the same in the text format
    Plain,
    /// rows in the binary form
    Rows(Vec<u8>),
    /// the records, rewritten in the form of the plan
    Rewritten(Vec<u8>),
    /// the chunk's records in the file's own form, with quotes around lines of `\.` and around
    /// fields with literal stray quotes
    Guarded(Vec<u8>),
    /// rows in the binary form, grouped by partition
    Split(Split),
}

/// A chunk that is ready to be sent.
#[derive(Debug)]
pub struct Prepared {
    /// the chunk as it was read
    pub chunk: Arc<Chunk>,
    /// its recast records, if the plan requires that
    pub recast: Option<Chunk>,
    /// what is sent for it
    pub body: Body,
    /// the records and lines of the chunk as it was read
    pub counts: Counts,
    /// the number of lines of the records in the file's own form, as they are sent
    pub sent_lines: u64,
    /// fields with stray quotes
    pub stray_quotes: u64,
    /// the hash of the chunk as it was read, if the plan records it
    pub hash: Option<blake3::Hash>,
    /// a fault that a COPY of this chunk alone would not detect, and its line in the chunk
    pub fault: Option<(Fault, u64)>,
}

/// Why a record stops the load before the server checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// it is malformed: by a stray quote that COPY would accept, by the line end of the chunk's
    /// first record, or in a record that has to be recast
    Malformed(Malformed),
    /// the type that was inferred for the column with this index accepts the value but alters it
    Altered(usize),
}

impl Prepared {
    /// The bytes that are sent.
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::AsIs | Body::Plain => &self.records().bytes,
            Body::Rows(b) | Body::Rewritten(b) | Body::Guarded(b) => b,
            Body::Split(split) => &split.bytes,
        }
    }

    /// How many bytes the chunk counts towards limits of memory: those of its input, or half of those
    /// made from it, if that is more. Most rows take less than twice the bytes of their records.
    pub fn weight(&self) -> usize {
        let recast = self.recast.as_ref().map_or(0, |recast| recast.bytes.len());
        self.chunk.bytes.len().max((recast + self.bytes().len()) / 2)
    }

    /// The records, with one field for each column.
    pub fn records(&self) -> &Chunk {
        self.recast.as_ref().unwrap_or(&self.chunk)
    }

    /// Prepares whole records of a file in their own form, recast if necessary. They must precede
    /// the first malformed record.
    pub fn own(plan: &Plan, dialect: &Dialect, chunk: Chunk) -> Prepared {
        let recast = plan.recast.as_ref().and_then(|r| r.chunk(&chunk, dialect).ok());
        let (recast, counts) = match recast {
            Some((recast, counts)) => (Some(recast), counts),
            None => (None, chunk.count(&plan.layout)),
        };
        let records = recast.as_ref().unwrap_or(&chunk);
        let sent_lines = records.count(&plan.layout).lines;
        let body = sendable(records, dialect, plan.major).map_or(Body::AsIs, Body::Guarded);
        let chunk = Arc::new(chunk);
        let (stray_quotes, hash, fault) = (0, None, None);
        Prepared { chunk, recast, body, counts, sent_lines, stray_quotes, hash, fault }
    }
}

/// Prepares chunks for sending, with its own memory.
#[derive(Debug)]
pub struct Encoder {
    plan: Arc<Plan>,
    pool: BufferPool,
    sink: PgCopySink,
    record: Record,
    fit: Option<Fit>,
    /// the approximate size of rows, as a multiple of the size of their records
    growth: f64,
}

impl Encoder {
    /// An encoder for this plan, which takes its memory from `pool`.
    pub fn new(plan: Arc<Plan>, pool: BufferPool) -> Encoder {
        let columns = plan.shape.columns.len();
        let most = if plan.nodes.is_some() { MOST_ROWS_FOR_NODES } else { MOST_ROWS };
        let sink = PgCopySink::new(columns).within(most);
        // A chunk for nodes cannot be sent in another form, so an invalid value must be found here.
        let sink = if plan.nodes.is_none() { sink.leaving_json() } else { sink };
        let fit = plan.inferred.clone().map(|inferred| Fit::new(inferred.columns));
        Encoder { plan, pool, sink, record: Record::default(), fit, growth: 1.2 }
    }

    /// Prepares a chunk.
    pub fn prepare(&mut self, chunk: Chunk) -> Prepared {
        let plan = self.plan.clone();
        let hash = plan.once.then(|| blake3::hash(&chunk.bytes));
        let Some(dialect) = plan.dialect() else {
            let counts = chunk.count(&plan.layout);
            let (chunk, body, sent_lines) = (Arc::new(chunk), Body::AsIs, counts.lines);
            let (recast, stray_quotes, fault) = (None, 0, None);
            return Prepared { chunk, recast, body, counts, sent_lines, stray_quotes, hash, fault };
        };
        let stray_quotes = chunk.strays(&plan.layout);
        let recast = plan.recast.as_ref().filter(|_| chunk.part == Part::Whole);
        let (recast, (fault, body, counts), sent_lines) = match recast {
            None => {
                let (fault, body, counts) = self.body(&chunk, dialect);
                (None, (fault, body, counts), counts.lines)
            }
            Some(recast) => match recast.chunk(&chunk, dialect) {
                Err((fault, line)) => {
                    let fault = Some((Fault::Malformed(fault), line));
                    (None, (fault, Body::AsIs, chunk.count(&plan.layout)), 0)
                }
                Ok((records, counts)) => {
                    let (fault, body, sent) = self.body(&records, dialect);
                    let before = |line| recast.line_before(&chunk, &records, dialect, line);
                    let fault = fault.map(|(fault, line)| (fault, before(line)));
                    (Some(records), (fault, body, counts), sent.lines)
                }
            },
        };
        let chunk = Arc::new(chunk);
        Prepared { chunk, recast, body, counts, sent_lines, stray_quotes, hash, fault }
    }

    /// Returns the first fault of the records, what is sent for them, and their numbers.
    fn body(&mut self, chunk: &Chunk, dialect: &Dialect) -> (Option<(Fault, u64)>, Body, Counts) {
        let plan = self.plan.clone();
        // A malformed record may be rejected. A value that would be altered ends the load.
        let fault = self.altered(chunk, dialect).or_else(|| self.first_fault(chunk, dialect));
        if fault.is_none() {
            if let Some(counts) = wire::same_as_text(&plan, dialect, chunk) {
                return (None, Body::Plain, counts);
            }
        }
        let done = match plan.wire {
            _ if chunk.part != Part::Whole || fault.is_some() || !self.readable(chunk) => None,
            Wire::Binary => self.rows(chunk, dialect).map(|(b, c)| (self.split(b), c)),
            Wire::Csv | Wire::Text => {
                let mut out = self.pool.take();
                let counts = rewritten(&plan, chunk, &mut self.record, &mut out);
                counts.map(|counts| (Body::Rewritten(out), counts))
            }
            Wire::AsIs | Wire::Insert(_) => None,
        };
        let (body, counts) = done.unwrap_or_else(|| {
            let counts = chunk.count(&plan.layout);
            let whole = chunk.part == Part::Whole;
            let guarded = whole.then(|| sendable(chunk, dialect, plan.major)).flatten();
            (guarded.map_or(Body::AsIs, Body::Guarded), counts)
        });
        (fault, body, counts)
    }

    /// Returns the first record with a stray quote that COPY would accept, or a first record with
    /// another line end than the file. Within one COPY, the server checks line ends. A COPY that
    /// begins with this chunk would not.
    fn first_fault(&mut self, chunk: &Chunk, dialect: &Dialect) -> Option<(Fault, u64)> {
        if chunk.part != Part::Whole || chunk.bytes.is_empty() {
            return None;
        }
        let mut scanner = chunk.scanner(dialect);
        match scanner.next(&mut self.record) {
            Err(fault @ (Malformed::CarriageReturn | Malformed::Newline)) => {
                return Some((Fault::Malformed(fault), self.record.line));
            }
            Err(fault @ Malformed::StrayQuote { .. }) => {
                return Some((Fault::Malformed(fault), self.record.line));
            }
            _ if !chunk.stray => return None,
            _ => {}
        }
        chunk.records(&self.plan.layout).find_map(|found| match found.fields {
            Err(fault @ Malformed::StrayQuote { .. }) => {
                Some((Fault::Malformed(fault), found.line))
            }
            _ => None,
        })
    }

    /// Returns the first record with a value that the type inferred for it would alter.
    fn altered(&mut self, chunk: &Chunk, dialect: &Dialect) -> Option<(Fault, u64)> {
        let fit = self.fit.as_mut().filter(|_| chunk.part == Part::Whole)?;
        let mut scanner = chunk.scanner(dialect);
        loop {
            match scanner.next(&mut self.record) {
                Ok(Next::Record) => {
                    if let Some(field) = fit.altered(&chunk.bytes, &self.record) {
                        return Some((Fault::Altered(field), self.record.line));
                    }
                }
                Ok(_) => return None,
                // Malformed records are reported elsewhere.
                Err(_) => {
                    scanner.skip_record().filter(|(start, end)| start < end)?;
                }
            }
        }
    }

    /// Whether the core can interpret the characters of the chunk.
    fn readable(&self, chunk: &Chunk) -> bool {
        // Escapes such as \xe9 are bytes in the encoding of the database, whatever that of the file
        // is.
        let escapes = self.plan.dialect().is_some_and(|d| d.format == Format::Text && !d.utf8);
        if escapes && memchr::memchr(b'\\', &chunk.bytes).is_some() {
            return false;
        }
        if self.plan.encoding == "UTF8" {
            valid_utf8(&chunk.bytes).is_ok()
        } else {
            chunk.bytes.is_ascii() && !chunk.bytes.contains(&0)
        }
    }

    /// Groups the rows by partition, if rows are sent to partitions.
    fn split(&mut self, rows: Vec<u8>) -> Body {
        let plan = self.plan.clone();
        let Some(router) = &plan.router else { return Body::Rows(rows) };
        match router.split(&rows, self.pool.take()) {
            Some(split) => {
                self.pool.give(rows);
                Body::Split(split)
            }
            None => Body::Rows(rows),
        }
    }

    /// Returns the rows of a chunk that was encoded before, in the order of the input.
    pub fn encoded(&mut self, chunk: &Chunk) -> Option<Vec<u8>> {
        let plan = self.plan.clone();
        self.rows(chunk, plan.dialect()?).map(|(rows, _)| rows)
    }

    fn rows(&mut self, chunk: &Chunk, dialect: &Dialect) -> Option<(Vec<u8>, Counts)> {
        let mut free = self.pool.take();
        free.reserve(((chunk.bytes.len() as f64 * self.growth) as usize).min(MOST_ROWS));
        let Encoder { plan, sink, record, .. } = self;
        sink.replace(free);
        let counts = each_record(chunk, dialect, record, |record| {
            row::put(&plan.shape, &chunk.bytes, record, sink).ok()?;
            (!sink.is_full()).then_some(())
        });
        let rows = sink.replace(Vec::new());
        let counts = counts?;
        self.growth = (rows.len() as f64 / chunk.bytes.len().max(1) as f64) * 1.05;
        Some((rows, counts))
    }
}

/// Returns the first record that does not become a row: its index, its line in the chunk, and why.
pub(crate) fn unread(plan: &Plan, chunk: &Chunk, dialect: &Dialect) -> Option<(u64, u64, NoRow)> {
    let mut sink = PgCopySink::new(plan.shape.columns.len()).within(MOST_ROWS);
    let (mut record, mut scanner) = (Record::default(), chunk.scanner(dialect));
    for index in 0.. {
        sink.begin();
        let put = match scanner.next(&mut record) {
            Ok(Next::Record) => row::put(&plan.shape, &chunk.bytes, &record, &mut sink),
            Ok(_) => return None,
            Err(fault) => Err(NoRow::Malformed(fault)),
        };
        if let Err(why) = put {
            return Some((index, record.line, why));
        }
    }
    None
}

/// Rewrites the records of a chunk in the form of the plan.
pub(crate) fn rewritten(
    plan: &Plan,
    chunk: &Chunk,
    record: &mut Record,
    out: &mut Vec<u8>,
) -> Option<Counts> {
    out.clear();
    let dialect = plan.dialect()?;
    each_record(chunk, dialect, record, |record| rewrite::record(plan, &chunk.bytes, record, out))
}

/// Passes every record of a chunk to `put`. `None` if a record is malformed or `put` fails.
fn each_record(
    chunk: &Chunk,
    dialect: &Dialect,
    record: &mut Record,
    mut put: impl FnMut(&Record) -> Option<()>,
) -> Option<Counts> {
    let mut scanner = chunk.scanner(dialect);
    let mut records = 0;
    loop {
        match scanner.next(record) {
            Ok(Next::Record) => put(record)?,
            Ok(_) => return Some(Counts { records, lines: scanner.lines() }),
            Err(_) => return None,
        }
        records += 1;
    }
}

/// Whether records of one field cannot be sent as they are. Up to PostgreSQL 17, a line of `\.` in
/// CSV ends the data. If `\.` is the NULL or the DEFAULT marker, it cannot be put in quotes either,
/// because that would make it a value.
pub(crate) fn dot_is_marker(dialect: &Dialect, fields: usize, major: u32) -> bool {
    let dot = b"\\.".as_slice();
    major < 18
        && fields == 1
        && dialect.format == Format::Csv
        && (dialect.null == dot || dialect.default.as_deref() == Some(dot))
}

/// Returns what is sent in the file's own form for a chunk of whole records. `None` if that is the
/// bytes of the chunk.
pub(crate) fn sendable(chunk: &Chunk, dialect: &Dialect, major: u32) -> Option<Vec<u8>> {
    own_form(&chunk.bytes, chunk.stray, chunk.eol, dialect, major)
}

/// Like [`sendable`], for records of a chunk.
pub(crate) fn own_form(
    bytes: &[u8],
    stray: bool,
    eol: Eol,
    dialect: &Dialect,
    major: u32,
) -> Option<Vec<u8>> {
    let quoted = stray.then(|| quote_strays(bytes, dialect, eol)).flatten();
    let guarded = guard(quoted.as_deref().unwrap_or(bytes), eol, dialect, major);
    guarded.or(quoted)
}

/// Puts lines of `\.` in quotes. Up to PostgreSQL 17, such a line in CSV ends the data, and the
/// server drops the rest silently. The quotes change nothing else, unless the line is a marker: see
/// [`dot_is_marker`].
fn guard(chunk: &[u8], eol: Eol, dialect: &Dialect, major: u32) -> Option<Vec<u8>> {
    if major >= 18 || dialect.format != Format::Csv {
        return None;
    }
    memchr::memmem::find(chunk, b"\\.")?;
    let mut out = Vec::with_capacity(chunk.len() + 64);
    let mut record = Record::default();
    let mut scanner = Scanner::new(chunk, true, dialect, eol);
    let mut from = 0;
    while scanner.next(&mut record) == Ok(Next::Record) {
        let bytes = &chunk[record.start..record.end];
        let content = bytes.iter().position(|b| matches!(b, b'\r' | b'\n')).unwrap_or(bytes.len());
        if &bytes[..content] == b"\\." {
            out.extend_from_slice(&chunk[from..record.start]);
            out.extend_from_slice(&[dialect.quote, b'\\', b'.', dialect.quote]);
            out.extend_from_slice(&bytes[content..]);
            from = record.end;
        }
    }
    if from == 0 {
        return None;
    }
    out.extend_from_slice(&chunk[from..]);
    Some(out)
}
