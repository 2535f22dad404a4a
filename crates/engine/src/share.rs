//! One load on several machines: each machine takes parts of the files, and loads them as a
//! separate load with `once`. `once::parts` explains why each record is loaded exactly once.

use crate::error::{Error, Kind};
use crate::event::Event;
use crate::load::{load_sources, told, Job};
use crate::maintenance::{finish, Finished};
use crate::once::correction::with_correction;
use crate::once::join::{join, Joined, Member};
use crate::once::parts::SharedPart;
use crate::options::Options;
use crate::repair::{end_nothing, put_back_on};
use crate::report::Summary;
use crate::text::{text, Text};
use crate::watch::{despite_cancel, Watch};
use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

mod heartbeat;
mod split;
mod total;

use heartbeat::Heartbeat;
use total::{add, add_committed};

/// How often to check whether other machines have ended, or have left parts.
const LOOK: Duration = Duration::from_millis(500);

/// How often to check, while it waits for them, whether the user has stopped the load.
const STOP: Duration = Duration::from_millis(50);

/// One machine in a load that several machines share: it takes parts, loads them, and publishes the
/// load. See [`crate::Loader::share`].
pub struct Share<'l> {
    options: &'l Options,
    watch: &'l Watch,
    on_event: &'l dyn Fn(Event<'_>),
    /// `None` before the files are examined, and after all of them are complete
    member: Option<(Box<Member>, Heartbeat)>,
    /// the plan was reported
    planned: Cell<bool>,
    /// it was reported that the load waits for other machines
    waiting: Cell<bool>,
    /// every file is complete
    complete: bool,
    /// this machine was the last one
    last: bool,
    total: Summary,
    started: Instant,
}

/// Parts that one machine has taken: files, or a range of a file. If they are not loaded, no other
/// machine takes them until this one has no others to take, or its [`Share`] is dropped.
#[derive(Debug)]
pub struct Parts(Vec<SharedPart>);

impl Parts {
    /// Their stored size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|part| part.bytes).sum()
    }
}

impl<'l> Share<'l> {
    pub(crate) fn new(
        options: &'l Options,
        watch: &'l Watch,
        on_event: &'l dyn Fn(Event<'_>),
    ) -> Share<'l> {
        let (planned, waiting) = (Cell::new(false), Cell::new(false));
        let files = options.input.sources.iter().map(|source| source.name()).collect();
        let total = Summary { files, table: options.target.table.clone(), ..Summary::default() };
        Share {
            options,
            watch,
            on_event,
            member: None,
            planned,
            waiting,
            complete: false,
            last: false,
            total,
            started: Instant::now(),
        }
    }

    /// Takes parts that no machine has, or whose machine was stopped because its lease has expired.
    /// If there are none, gives back what this machine has taken and not loaded, which may be taken
    /// again. If nothing is left to take, waits for the other machines. Returns `None` when every
    /// file is complete.
    ///
    /// # Errors
    ///
    /// Another machine could not load a part, or the files or the ledger cannot be used.
    pub fn take(&mut self) -> Result<Option<Parts>, Error> {
        loop {
            if self.watch.stop.is_set() {
                return Err(self.ended_by(Error::cancelled()));
            }
            if self.complete {
                return Ok(None);
            }
            let taken = match &self.member {
                None => self.join().map(|()| None),
                Some(_) => self.take_now(),
            };
            match taken {
                Ok(Some(parts)) => return Ok(Some(parts)),
                Ok(None) => {}
                Err(error) if error.kind() == Kind::Connection && self.is_taken_over() => {
                    self.leave(None);
                }
                Err(error) => return Err(self.ended_by(error)),
            }
        }
    }

    fn join(&mut self) -> Result<(), Error> {
        let waiting = || (self.on_event)(Event::Waiting);
        match join(self.options, self.watch, &waiting)? {
            Joined::Nothing(nothing) => {
                let wait = self.total.load.is_none().then_some(&waiting as &dyn Fn());
                let nothing = end_nothing(*nothing, self.options, self.watch, wait)?;
                if self.total.load.is_none() {
                    self.total = nothing;
                }
                self.complete = true;
            }
            Joined::Member(member) => {
                let total = &mut self.total;
                if total.load.is_none() {
                    total.files_known = member.known;
                    total.notes.extend(member.notes.iter().cloned());
                }
                total.load = Some(member.load);
                total.table = member.table().into();
                let heartbeat = Heartbeat::start(self.options, self.watch, member.load)?;
                let (member, _) = self.member.insert((member, heartbeat));
                let Member { guard, target, .. } = &mut **member;
                let put_back = put_back_on(guard, target, self.options, self.watch, None)?;
                total.notes.extend(put_back.into_iter().map(Text::from));
            }
        }
        Ok(())
    }

    /// Takes parts if there are any. Otherwise waits a moment, or ends the load.
    fn take_now(&mut self) -> Result<Option<Parts>, Error> {
        let Some((member, heartbeat)) = &self.member else { return Ok(None) };
        let (mut conn, options) = (heartbeat.connection(), self.options);
        if member.is_stopped(&mut conn, options)? {
            drop(conn);
            self.leave(None);
            return Ok(None);
        }
        let counts = self.total.share.get_or_insert_with(Default::default);
        counts.machines_lost += member.stop_expired(&mut conn, options)? as u64;
        let taken = member.take(&mut conn, options)?;
        if let [part] = &taken[..] {
            if part.to_split {
                drop(conn);
                let divided = split::split(member, heartbeat, options, self.watch, part);
                return divided.or_else(|error| self.give_up(&taken, error)).map(|()| None);
            }
        }
        if !taken.is_empty() {
            return Ok(Some(Parts(taken)));
        }
        let left = member.left(&mut conn, options)?;
        // Otherwise, all machines would wait forever for parts that this one has and does not load.
        if left.open > 0 && member.free(&mut conn, options)? {
            return Ok(None);
        }
        if left.open > 0 {
            drop(conn);
            if !self.waiting.replace(true) {
                (self.on_event)(Event::OtherMachines);
            }
            let until = Instant::now() + LOOK;
            while Instant::now() < until && !self.watch.stop.is_set() {
                thread::sleep(STOP);
            }
            return Ok(None);
        }
        if let Some(why) = left.failed {
            let failed = format!("another machine could not load a part of the files: {why}");
            return Err(Error::data(failed).with_hint(
                "everything else is loaded; correct it and run the same command again: a record must keep \
                 its length, or is left out by `on-error` reject without `share`",
            ));
        }
        drop(conn);
        self.leave(None);
        // The ledger shows that every file is complete.
        Ok(None)
    }

    /// Loads parts, and commits them with their records in the ledger. If other machines have taken
    /// the parts over because this machine stalled for too long, it leaves the parts to them.
    ///
    /// # Errors
    ///
    /// As for a load. Committed rows stay, and everything else is left to other machines.
    pub fn load(&mut self, parts: Parts) -> Result<(), Error> {
        let Err(error) = self.try_load(&parts.0) else {
            self.total.share.get_or_insert_with(Default::default).parts += parts.0.len() as u64;
            return Ok(());
        };
        self.give_up(&parts.0, error).map_err(|error| self.ended_by(error))
    }

    /// Gives up parts that could not be loaded or divided. If other machines have taken them over,
    /// the error does not matter.
    fn give_up(&mut self, parts: &[SharedPart], error: Error) -> Result<(), Error> {
        let lost = match self.give_back(parts, &error) {
            Err(lost) if lost.kind() == Kind::Connection => Ok(self.is_taken_over()),
            given => given,
        };
        match lost {
            Ok(true) => {
                self.total.share.get_or_insert_with(Default::default).parts_lost +=
                    parts.len() as u64;
                // Its load was stopped; this machine continues with a new load.
                self.leave(Some("other machines have taken over its parts"));
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn try_load(&mut self, parts: &[SharedPart]) -> Result<(), Error> {
        let Some((member, heartbeat)) = &self.member else {
            return Err(Error::defect("parts of a load that has ended"));
        };
        let recording = member.recording(&mut heartbeat.connection(), self.options, parts)?;
        let recording = Arc::new(recording);
        let on_event = |event: Event<'_>| {
            if !matches!(event, Event::Planned(_)) || !self.planned.replace(true) {
                (self.on_event)(event);
            }
        };
        let job = Job {
            options: &recording.options,
            watch: self.watch,
            on_event: &on_event,
            recording: Some(&recording),
        };
        let mut summary = load_sources(&job).map_err(|error| {
            add_committed(&mut self.total, &recording.committed);
            match recording.committed.rows.get() {
                0 => error,
                rows => error.with_changed(format!("{rows} rows of these parts are committed")),
            }
        })?;
        // The records before a range belong to other parts.
        let before: u64 = parts.iter().map(|part| part.span.records).sum();
        summary.records_known -= before.min(summary.records_known);
        summary.transactions += recording.committed.transactions.get();
        add(&mut self.total, summary);
        Ok(())
    }

    /// Gives up parts that could not be loaded. Returns whether other machines have taken over
    /// some.
    fn give_back(&self, parts: &[SharedPart], error: &Error) -> Result<bool, Error> {
        let Some((member, heartbeat)) = &self.member else { return Ok(false) };
        let bad = (error.kind() == Kind::Data).then_some((error, error.file()));
        member.give_back(&mut heartbeat.connection(), self.options, parts, bad)
    }

    /// Whether other machines have stopped the load of this one. The server may have ended its
    /// connection to the ledger meanwhile, so this opens a new one.
    fn is_taken_over(&self) -> bool {
        let Some((member, heartbeat)) = &self.member else { return false };
        let Ok(again) = self.watch.connect(&self.options.target.url) else { return false };
        let mut conn = heartbeat.connection();
        *conn = again;
        matches!(member.is_stopped(&mut conn, self.options), Ok(true))
    }

    /// Ends the load of this machine, if it has one. If that cannot be recorded, the lease expires.
    fn leave(&mut self, error: Option<&str>) {
        if let Some((member, heartbeat)) = self.member.take() {
            let ended =
                despite_cancel(|| member.end(&mut heartbeat.connection(), self.options, error));
            self.last = ended.unwrap_or_default();
        }
    }

    /// Ends the load of this machine with an error that says what is committed.
    fn ended_by(&mut self, error: Error) -> Error {
        let error = told(error, self.options, self.watch);
        let refused = error.place().is_some_and(|place| place.record.is_some());
        let error = match error.kind() {
            // Other machines load the records after it.
            Kind::Data if refused => with_correction(error),
            _ => error,
        };
        self.leave(Some(&error.to_string()));
        let (rows, load) = (self.total.loaded, self.total.load);
        let Some(load) = load else { return error };
        let before = format!(
            "{rows} rows of this machine are committed and recorded as load {load}; the same command \
             continues there"
        );
        let all = error.changed().map_or(before.clone(), |changed| format!("{changed}; {before}"));
        error.with_changed(all).repeatable()
    }

    /// Ends the load: waits until every file is complete. The last machine analyzes the table.
    /// Returns what this machine has loaded.
    ///
    /// # Errors
    ///
    /// As for [`Share::take`]; or there are parts that no machine has taken, which must be loaded
    /// first.
    pub fn publish(mut self) -> Result<Summary, Error> {
        if let Some(parts) = self.take()? {
            let left = format!("{} parts are left to be loaded", parts.0.len());
            let error = Error::new(left).with_hint("take and load them before this");
            return Err(self.ended_by(error));
        }
        let mut total = std::mem::take(&mut self.total);
        if total.load.is_none() {
            return Ok(total);
        }
        let share = total.share.get_or_insert_with(Default::default);
        share.last = self.last;
        let lost = share.parts_lost;
        total.notes.push(match self.last {
            true => {
                "this machine was the last one: the load is complete, every file is loaded".into()
            }
            false => "the load is complete: every file is loaded".into(),
        });
        if lost > 0 {
            total.notes.push(text!(
                "this machine was held up for longer than its lease: {} of its parts were left to others",
                lost
            ));
        }
        if self.options.target.analyze && self.last {
            total.steps.push(self.analyze(&total.table));
        }
        let seconds = self.started.elapsed().as_secs_f64();
        total.seconds.total = seconds;
        total.rows_per_second = total.loaded as f64 / seconds.max(1e-9);
        total.megabytes_per_second = total.bytes as f64 / 1e6 / seconds.max(1e-9);
        Ok(total)
    }

    fn analyze(&self, table: &str) -> String {
        let stopped = || self.watch.stop.is_set();
        let done = self.watch.connect(&self.options.target.url).and_then(|mut conn| {
            let rows = conn.query("SELECT pg_catalog.to_regclass($1)::oid", &[Some(table)])?;
            let oid = rows[0][0].as_deref().and_then(|oid| oid.parse().ok()).unwrap_or(0);
            finish(&mut conn, oid, table, false, &stopped)
        });
        match done {
            Ok(Finished { statement: Some(statement), .. }) => statement,
            Ok(Finished { left, .. }) => format!("no ANALYZE: {}", left.unwrap_or_default()),
            Err(error) => format!("no ANALYZE: {}", error.message().plain()),
        }
    }
}

impl Drop for Share<'_> {
    /// Releases the parts of this machine at once.
    fn drop(&mut self) {
        self.leave(Some("left before the load was complete"));
    }
}

/// Takes part in a load until it is complete.
///
/// # Errors
///
/// As for [`Share::take`] and [`Share::load`].
pub(crate) fn run(job: &Job<'_>) -> Result<Summary, Error> {
    let mut share = Share::new(job.options, job.watch, job.on_event);
    while let Some(parts) = share.take()? {
        share.load(parts)?;
    }
    share.publish()
}
