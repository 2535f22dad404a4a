//! Finds the records of a chunk that the server rejects, and why, by loading parts of the chunk.

use super::savepoint::{defect, RELEASE, SAVEPOINT};
use super::{record_of_line, Form, Lane, Placed};
use crate::encode;
use crate::error::Error;
use crate::infer::Fit;
use crate::input::{Chunk, Found, Layout};
use crate::isolate::{isolate, AttemptRefused, Attempts};
use crate::plan::Wire;
use crate::recast::At;
use crate::reject::Rejects;
use crate::rewrite;
use crate::session::statement::{self, NoInsert};
use crate::session::transaction::NO_WAIT;
use crate::stray;
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{valid_utf8, Eol, Next, Record, Scanner};
use std::borrow::Cow;
use std::ops::Range;

/// A record of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub start: usize,
    pub end: usize,
    /// number of lines of the chunk before it
    pub lines: u64,
    /// the line that COPY would name: its last line, counted from 1 at the start of the chunk
    pub line: u64,
    /// why it is malformed, if it is
    pub fault: Option<Malformed>,
}

/// The number of records of a chunk after which rejects are written, because their reasons take
/// more memory than the records. It is a multiple of the rows of an INSERT.
const PART: usize = 50_000;

impl Lane {
    /// Loads those records of a chunk that the server accepts. The others go to `rejects`; without
    /// `rejects`, the first of them is the error.
    pub(super) fn load_records(
        &mut self,
        placed: &Placed,
        rejects: Option<&Rejects>,
    ) -> Result<(), Error> {
        let chunk = &placed.prepared.chunk;
        let plan = self.plan.clone();
        let items = items(chunk, &plan.layout, plan.fields.len());
        if items.len() as u64 != placed.prepared.counts.records {
            return Err(defect("two counts of a chunk's records differ"));
        }
        let keeper = self.keeper().filter(|_| rejects.is_some());
        let stops = keeper.is_none();
        let eol = chunk.line_end(&plan.layout);
        // A search that stops names a record by its index in the chunk.
        let part = if stops { items.len().max(1) } else { PART };
        for (before, items) in items.chunks(part).enumerate() {
            let refused = Bisection::new(self, placed, &plan.layout, items, stops).run()?;
            for (index, why) in refused {
                let (item, index) = (items[index], before * part + index);
                let bytes = &chunk.bytes[item.start..item.end];
                let Some(keeper) = &keeper else {
                    let error = self.stopped(chunk, placed.before, item, index, why);
                    return Err(match (item.fault, plan.dialect()) {
                        (Some(fault), Some(d)) => stray::explained(error, fault, bytes, d),
                        _ => error,
                    });
                };
                keeper.keep(&self.reject_of(placed, item, index, why, eol), bytes, eol)?;
            }
        }
        self.counts.chunks_as_is += 1;
        Ok(())
    }
}

/// A search for the rejected records of one chunk.
pub(super) struct Bisection<'a> {
    lane: &'a mut Lane,
    placed: &'a Placed,
    chunk: &'a Chunk,
    layout: &'a Layout,
    /// the first rejected record ends the search
    stops: bool,
    /// the well-formed records, each with its index in the chunk
    good: Vec<(usize, Item)>,
    refused: Vec<(usize, AttemptRefused)>,
}

impl<'a> Bisection<'a> {
    /// Prepares a search in records of the chunk; none was tried yet. If the first rejected record
    /// `stops` the load, the records after a malformed one are left out.
    pub fn new(
        lane: &'a mut Lane,
        placed: &'a Placed,
        layout: &'a Layout,
        items: &[Item],
        stops: bool,
    ) -> Bisection<'a> {
        let chunk = &placed.prepared.chunk;
        let (mut good, mut refused) = (Vec::new(), Vec::new());
        for (index, item) in items.iter().enumerate() {
            match item.fault {
                None => good.push((index, *item)),
                Some(fault) => {
                    refused.push((index, lane.malformed_refused(fault)));
                    if stops {
                        break;
                    }
                }
            }
        }
        Bisection { lane, placed, chunk, layout, stops, good, refused }
    }

    /// Loads all records except the rejected ones. Returns those, with their indexes, in order.
    ///
    /// # Errors
    ///
    /// The load cannot continue.
    pub fn run(mut self) -> Result<Vec<(usize, AttemptRefused)>, Error> {
        self.check_fit()?;
        let most = match self.lane.plan.wire {
            Wire::Insert(batch) => batch,
            _ => usize::MAX,
        };
        let mut from = 0;
        while from < self.good.len() {
            let to = self.good.len().min(from.saturating_add(most));
            isolate(from..to, &mut self)?;
            from = to;
        }
        self.refused.sort_by_key(|(index, _)| *index);
        Ok(self.refused)
    }
}

impl Bisection<'_> {
    /// Checks that no record has a value that the type inferred for it would alter. If another
    /// record of the chunk is malformed, that was not found out before.
    fn check_fit(&self) -> Result<(), Error> {
        let (Some(inferred), Layout::Lines(dialect)) = (&self.lane.plan.inferred, self.layout)
        else {
            return Ok(());
        };
        let (mut fit, mut record) = (Fit::new(inferred.columns.clone()), Record::default());
        for (_, item) in &self.good {
            let one = self.record(*item);
            let mut scanner = Scanner::new(&one, true, dialect, self.chunk.eol);
            if scanner.next(&mut record) != Ok(Next::Record) {
                continue;
            }
            if let Some(column) = fit.altered(&one, &record) {
                return Err(self.lane.altered(self.placed, column, item.line));
            }
        }
        Ok(())
    }
}

impl Attempts for Bisection<'_> {
    type Fatal = Error;

    fn load(&mut self, records: Range<usize>) -> Result<Result<(), AttemptRefused>, Error> {
        if let Wire::Insert(_) = self.lane.plan.wire {
            return self.insert(records);
        }
        let (form, bytes) = self.sent(records.clone());
        let Err(error) = self.lane.attempt(|lane| lane.copy(form, &bytes))? else {
            return Ok(Ok(()));
        };
        let (line, mut refused) = self.lane.refused(&error);
        let named = line.map(|line| match self.layout {
            Layout::Lines(dialect) if form == Form::AsIs => {
                record_of_line(&bytes, dialect, Eol::Unknown, line)
            }
            _ => (line as usize).saturating_sub(1),
        });
        refused.record = named.map(|index| records.start + index);
        Ok(Err(refused))
    }

    fn reject(&mut self, record: usize, mut why: AttemptRefused) -> Result<(), Error> {
        let (index, item) = self.good[record];
        let by_copy =
            self.lane.plan.landing.is_none() && !matches!(self.lane.plan.wire, Wire::Insert(_));
        if why.column.is_none() && !by_copy {
            let (form, bytes) = self.sent(record..record + 1);
            why.column = self.lane.column_by_copy(form, &bytes, &why.sqlstate);
        }
        if self.stops {
            return Err(self.lane.stopped(self.chunk, self.placed.before, item, index, why));
        }
        self.refused.push((index, why));
        Ok(())
    }
}

impl Bisection<'_> {
    /// Returns what is sent for these records, and its form: their own form, if possible.
    fn sent(&self, records: Range<usize>) -> (Form, Vec<u8>) {
        let plan = &self.lane.plan;
        let Layout::Lines(dialect) = self.layout else {
            let tuple = |(_, item): &(usize, Item)| &self.chunk.bytes[item.start..item.end];
            let tuples: Vec<&[u8]> = self.good[records].iter().map(tuple).collect();
            return (Form::Binary, tuples.concat());
        };
        if encode::dot_is_marker(dialect, plan.shape.fields, plan.major) {
            if let Some(written) = self.rewritten(records.clone()) {
                return (Form::Text, written);
            }
        }
        let (stray, major) = (self.chunk.stray && plan.recast.is_none(), plan.major);
        let mut bytes = Vec::new();
        for (_, item) in &self.good[records] {
            let record = self.record(*item);
            // Convert each record alone. The meaning of a stray quote depends on what follows it,
            // and without the rejected records that is not the same as in the file.
            let own = encode::own_form(&record, stray, Eol::Unknown, dialect, major);
            // The last record of a file may lack its line end. Do not add one: after a backslash,
            // the text format would make it part of the value. Nothing follows the record here
            // either.
            bytes.extend_from_slice(own.as_deref().unwrap_or(&record));
        }
        (Form::AsIs, bytes)
    }

    /// Returns a record in the file's own form, with one field for each column.
    fn record(&self, item: Item) -> Cow<'_, [u8]> {
        let (bytes, stray) = (&self.chunk.bytes[item.start..item.end], self.chunk.stray);
        let recast = match (&self.lane.plan.recast, self.layout) {
            (Some(recast), Layout::Lines(dialect)) => {
                let at = At { file: self.chunk.file, line: self.chunk.line + item.lines };
                recast.records(bytes, stray, self.chunk.eol, dialect, at).ok()
            }
            _ => None,
        };
        recast.map_or(Cow::Borrowed(bytes), |(bytes, _)| Cow::Owned(bytes))
    }

    /// Returns the records in the text format, each on one line.
    fn rewritten(&self, records: Range<usize>) -> Option<Vec<u8>> {
        let (mut record, mut out) = (Record::default(), Vec::new());
        for (_, item) in &self.good[records] {
            let one = self.record(*item);
            let mut scanner = Scanner::new(&one, true, self.layout.dialect()?, self.chunk.eol);
            let whole = scanner.next(&mut record) == Ok(Next::Record);
            let valid = whole && valid_utf8(&one).is_ok();
            valid.then(|| rewrite::record(&self.lane.plan, &one, &record, &mut out))??;
        }
        Some(out)
    }

    fn insert(&mut self, records: Range<usize>) -> Result<Result<(), AttemptRefused>, Error> {
        let plan = self.lane.plan.clone();
        let Layout::Lines(dialect) = self.layout else {
            return Err(defect("INSERT of a binary file"));
        };
        let mut insert = statement::Insert::new(&plan);
        let (mut record, mut moves) = (Record::default(), String::new());
        for index in records {
            let item = self.good[index].1;
            let one = self.record(item);
            let mut scanner = Scanner::new(&one, true, dialect, self.chunk.eol);
            if scanner.next(&mut record) != Ok(Next::Record) {
                return Err(defect("a record is none when it stands alone"));
            }
            let refused = match insert.add(&plan, &one, &record) {
                Ok(()) => {
                    moves += &self.lane.past_keys(&one, &record);
                    continue;
                }
                Err(NoInsert::Malformed(fault)) => self.lane.malformed_refused(fault),
                Err(NoInsert::Encoding(message)) => AttemptRefused {
                    record: None,
                    column: None,
                    sqlstate: "22021".into(),
                    message,
                    detail: None,
                },
                Err(NoInsert::NoDefault(column)) => AttemptRefused {
                    record: None,
                    sqlstate: "22P04".into(),
                    message: "unexpected default marker in COPY data".into(),
                    detail: Some(format!("Column \"{column}\" has no default value.")),
                    column: Some(column),
                },
            };
            return Ok(Err(AttemptRefused { record: Some(index), ..refused }));
        }
        let saves = self.lane.saves();
        let sql = match saves {
            true => format!("{}{moves}; {RELEASE}", insert.take()),
            false => format!("{NO_WAIT}{}{moves}", insert.take()),
        };
        let done = self.lane.attempt(|lane| {
            if saves {
                // This is sent alone: the server converts a message and reads its literals before
                // it executes anything, and may reject a value there.
                lane.conn.exec(SAVEPOINT)?;
            }
            lane.conn.exec_all(&sql)
        })?;
        Ok(done.map_err(|error| self.lane.refused(&error).1))
    }
}

/// Returns the chunk's records, including malformed ones.
pub(super) fn items(chunk: &Chunk, layout: &Layout, fields: usize) -> Vec<Item> {
    let mut records = chunk.records(layout);
    let mut items = Vec::new();
    loop {
        let lines = records.lines();
        let Some(Found { start, end, line, fields: found }) = records.next() else { return items };
        let fault = match found {
            Ok(n) if n > fields => Some(Malformed::ExtraData),
            Ok(n) if n < fields => Some(Malformed::MissingData(n)),
            Ok(_) => None,
            Err(fault) => Some(fault),
        };
        items.push(Item { start, end, lines, line, fault });
    }
}
