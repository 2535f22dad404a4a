//! How a machine joins a load that several machines share, and its statements on the ledger.
//!
//! Machines plan one after another, under a lock for each table. The first one divides the files
//! into parts, and the others find the parts. If a machine stalls while it holds that lock, the
//! server ends its session after a lease ([`super::pause::limit_pause`]). The machines share the
//! claims of the files. So a load that is not shared waits for all of them, and they wait for such
//! a load.

use super::identity::{Ends, Seen};
use super::lookup::{claim, shared_rows};
use super::parts::{self, Left, SharedPart};
use super::record::{new_load, Recording, Target, Wanted};
use super::unclaimed::{check_claims, incomplete_rows, stop_unclaimed};
use super::{begin_transaction, limit_pause, open, Found, NothingNew};
use crate::error::Error;
use crate::options::{FileFormat, Options};
use crate::report::Counter;
use crate::session::conn::Conn;
use crate::source::{Source, Span, SpanSource};
use crate::text::Text;
use crate::watch::Watch;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The result of [`join`].
pub(crate) enum Joined {
    /// every file is complete
    Nothing(Box<NothingNew>),
    /// some files are not complete
    Member(Box<Member>),
}

/// A file of this machine that is not complete.
struct File {
    /// its index among the sources
    index: usize,
    seen: Seen,
    ends: Ends,
}

/// A machine among those that load the same files.
pub(crate) struct Member {
    /// holds the claims in a transaction, until the connection is closed
    pub guard: Conn,
    /// the number of its load
    pub load: i64,
    pub target: Target,
    fingerprint: String,
    /// by their numbers in the ledger
    files: HashMap<i64, File>,
    /// the same numbers, as a parameter
    list: String,
    /// contents that another machine loads under another name and that this one waits for, as a
    /// parameter
    others: String,
    /// rows of `commits` that it has written
    commits: Arc<Counter>,
    /// files that were complete before
    pub known: u64,
    /// notes for the user
    pub notes: Vec<Text>,
}

/// Joins the load of these files, or begins it. Calls `waiting` before it waits for a load that is
/// not shared.
///
/// # Errors
///
/// As for [`super::begin`]; or a file differs from the one that other machines are loading.
pub(crate) fn join(options: &Options, watch: &Watch, waiting: &dyn Fn()) -> Result<Joined, Error> {
    let (mut guard, target, mut found) = open(options, watch)?;
    let left = found.of_new_name();
    let left = found.incomplete(&mut guard, &target, left)?;
    if left.is_empty() {
        return found.nothing(guard, target).map(Joined::Nothing);
    }
    let ends = found.ends(&left)?;
    let files: Vec<_> = left.iter().map(|i| (&found.seen[*i], &ends[i])).collect();
    watch.interruptible(guard.canceller(), || {
        claim(&mut guard, target.oid, &files, true, waiting)
    })?;
    let mut conn = watch.connect(&options.target.url)?;
    begin_transaction(&mut conn, options)?;
    limit_pause(&mut conn, options.lease())?;
    watch.interruptible(conn.canceller(), || parts::plan_alone(&mut conn, target.oid))?;
    let left = found.incomplete(&mut conn, &target, left)?;
    let begun = found.begun_by_others(&mut conn, &target, &left, &ends)?;
    let joined: HashSet<usize> = begun.iter().map(|(i, _)| *i).collect();
    let left: Vec<usize> = left.into_iter().filter(|i| !joined.contains(i)).collect();
    let mut rows = found.rows(&mut conn, &target, &left, &ends)?;
    let unclaimed = incomplete_rows(&rows);
    if !unclaimed.is_empty() {
        watch.interruptible(conn.canceller(), || stop_unclaimed(&mut conn, &unclaimed, true))?;
        rows = found.rows(&mut conn, &target, &left, &ends)?;
    }
    found.decide(&mut conn, &left, &ends, rows)?;
    if begun.is_empty() && found.wanted.is_empty() && found.others.is_empty() {
        conn.exec("COMMIT")?;
        return found.nothing(guard, target).map(Joined::Nothing);
    }
    let (load, numbers) = watch
        .interruptible(conn.canceller(), || found.register_shared(&mut conn, &target, options))?;
    let all = begun.into_iter().chain(numbers);
    let file = |(index, number): (usize, i64)| {
        (number, File { index, seen: found.seen[index].clone(), ends: ends[&index].clone() })
    };
    let files: HashMap<i64, File> = all.map(file).collect();
    let list = parts::list(files.keys().copied());
    parts::try_again(&mut conn, &list)?;
    conn.exec("COMMIT")?;
    check_claims(&mut guard)?;
    let known =
        (found.sources.len() - files.len() - found.copies.len() - found.others.len()) as u64;
    Ok(Joined::Member(Box::new(Member {
        guard,
        load,
        target,
        fingerprint: found.fingerprint.json(),
        list,
        others: parts::list(found.others.iter().copied()),
        files,
        commits: Arc::default(),
        known,
        notes: found.notes.summed_up().into_iter().map(Text::from).collect(),
    })))
}

impl Found<'_> {
    /// The files that have parts, each with its number in the ledger.
    fn begun_by_others(
        &mut self,
        conn: &mut Conn,
        target: &Target,
        left: &[usize],
        ends: &HashMap<usize, Ends>,
    ) -> Result<Vec<(usize, i64)>, Error> {
        let names: HashMap<&str, usize> =
            left.iter().map(|i| (self.seen[*i].name.as_str(), *i)).collect();
        let rows = shared_rows(conn, target.oid)?;
        let list = parts::list(rows.iter().map(|row| row.number));
        let taken: HashMap<i64, bool> = parts::in_parts(conn, &list)?.into_iter().collect();
        let mut begun = Vec::new();
        for row in rows {
            let taken = taken.get(&row.number) == Some(&true);
            let Some(i) = names.get(row.name.as_str()).copied() else {
                self.busy.extend(taken.then_some(row.number));
                continue;
            };
            let (seen, name) = (&self.seen[i], self.sources[i].name());
            let same = (row.size, row.modified) == (seen.size, seen.modified)
                && row.head == ends[&i].head
                && row.tail == ends[&i].tail;
            if same {
                self.fingerprint.check(&row.options, &name)?;
                self.busy.insert(row.number);
                begun.push((i, row.number));
            } else if taken {
                let other = format!("{name} is not the file that other machines are loading");
                return Err(Error::new(other).with_hint(
                    "its size, its time or its bytes differ; all machines need the same files",
                ));
            }
        }
        Ok(begun)
    }

    /// Registers the load of this machine, and divides the files that no other machine has begun.
    /// Returns the number of the load, and for each of these files its index and its number in the
    /// ledger.
    fn register_shared(
        &mut self,
        conn: &mut Conn,
        target: &Target,
        options: &Options,
    ) -> Result<(i64, Vec<(usize, i64)>), Error> {
        let load = new_load(conn, target)?;
        let (indexes, files): (Vec<usize>, Vec<Wanted>) =
            std::mem::take(&mut self.wanted).into_iter().unzip();
        let fingerprint = self.fingerprint.json();
        let recording = Recording::new(load, target.clone(), files, fingerprint, options.clone());
        if let Some(begun) = recording.begun() {
            recording.stop_earlier(conn, &begun)?;
        }
        self.settle(conn, target)?;
        let numbers = recording.put_sources(conn)?;
        let once = options.once.clone().unwrap_or_default();
        let least = 2 * once.commits_every().unwrap_or(u64::MAX / 2);
        let may_split = may_be_divided(options);
        let file = |(i, number): (&usize, &i64)| {
            let size = self.seen[*i].size;
            (*number, size, may_split && size >= least)
        };
        let files: Vec<_> = indexes.iter().zip(&numbers).map(file).collect();
        parts::add(conn, &files)?;
        parts::lease(conn, load, options.lease())?;
        Ok((load, indexes.into_iter().zip(numbers).collect()))
    }
}

/// Whether files that are read with these options can be divided where a pass over them finds ends
/// of records. If anything is skipped before, between or after records, parts depend on each other.
fn may_be_divided(options: &Options) -> bool {
    let frame = &options.input.frame;
    let plain = frame.skip_lines == 0 && frame.skip_footer == 0 && frame.comment.is_none();
    plain && matches!(options.input.format, FileFormat::Delimited(_))
}

impl Member {
    /// The table, quoted and qualified.
    pub fn table(&self) -> &str {
        &self.target.sql
    }

    /// Takes parts that no machine has, in its own transaction.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn take(&self, conn: &mut Conn, options: &Options) -> Result<Vec<SharedPart>, Error> {
        let most = options.once.as_ref().and_then(|once| once.commits_every()).unwrap_or(0);
        alone(conn, options, |conn| parts::take(conn, self.load, &self.list, most))
    }

    /// Gives up all parts of this machine. Returns whether it had any.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn free(&self, conn: &mut Conn, options: &Options) -> Result<bool, Error> {
        alone(conn, options, |conn| parts::give_back(conn, self.load)).map(|parts| parts > 0)
    }

    /// Whether another machine has stopped the load of this one.
    ///
    /// # Errors
    ///
    /// The load was forgotten, or the connection is lost.
    pub fn is_stopped(&self, conn: &mut Conn, options: &Options) -> Result<bool, Error> {
        alone(conn, options, |conn| self.check(conn))
    }

    fn check(&self, conn: &mut Conn) -> Result<bool, Error> {
        match parts::stopped(conn, self.load)?.as_deref() {
            Some("forgotten") => {
                Err(Error::new(format!("load {} was stopped: forgotten", self.load)))
            }
            stopped => Ok(stopped.is_some()),
        }
    }

    /// Stops loads of machines whose leases have expired, and ends their sessions. Returns how
    /// many.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn stop_expired(&self, conn: &mut Conn, options: &Options) -> Result<usize, Error> {
        let stopped =
            alone(conn, options, |conn| parts::stop_expired(conn, self.target.oid, self.load))?;
        parts::end_sessions(conn, &stopped)?;
        Ok(stopped.len())
    }

    /// Returns what this machine or others still have to load.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn left(&self, conn: &mut Conn, options: &Options) -> Result<Left, Error> {
        alone(conn, options, |conn| parts::left(conn, &self.list, &self.others))
    }

    /// The source of a part.
    ///
    /// # Errors
    ///
    /// The ledger has parts of other files.
    pub fn source(&self, options: &Options, part: &SharedPart) -> Result<Arc<dyn Source>, Error> {
        let file = self.file(part)?;
        let source = options.input.sources[file.index].clone();
        Ok(match part.is_whole() {
            true => source,
            false => Arc::new(SpanSource { source, span: part.span }),
        })
    }

    fn file(&self, part: &SharedPart) -> Result<&File, Error> {
        let missing = || Error::defect("a part of another file was taken");
        self.files.get(&part.source).ok_or_else(missing)
    }

    /// Returns the recording of some parts, with the options of their load. Call this after the
    /// machines that had the parts before are stopped: only then is the list of loaded pieces
    /// final.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn recording(
        &self,
        conn: &mut Conn,
        options: &Options,
        taken: &[SharedPart],
    ) -> Result<Recording, Error> {
        let known = alone(conn, options, |conn| parts::known(conn, taken))?;
        let mut own = options.clone();
        own.input.sources =
            taken.iter().map(|part| self.source(options, part)).collect::<Result<_, _>>()?;
        // One machine analyzes the table when all parts are loaded.
        own.target.analyze = false;
        if let Some(share) = own.once.as_mut().and_then(|once| once.share.as_mut()) {
            share.load = Some(self.load);
        }
        let wanted = |part: &SharedPart| {
            let file = self.file(part)?;
            Ok(Wanted::new(&file.seen, &file.ends))
        };
        let files = taken.iter().map(wanted).collect::<Result<Vec<_>, Error>>()?;
        let (target, fingerprint) = (self.target.clone(), self.fingerprint.clone());
        let recording = Recording::new(self.load, target, files, fingerprint, own);
        let sources = taken.iter().map(|part| part.source).collect();
        let numbers = taken.iter().map(|part| part.number).collect();
        Ok(recording.of_parts(sources, known, numbers, self.commits.clone()))
    }

    /// Gives up all parts of this machine after some parts could not be loaded. Returns whether the
    /// reason is that other loads have taken over some of them.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the load was forgotten.
    pub fn give_back(
        &self,
        conn: &mut Conn,
        options: &Options,
        taken: &[SharedPart],
        failed: Option<(&Error, Option<&str>)>,
    ) -> Result<bool, Error> {
        alone(conn, options, |conn| {
            let numbers: Vec<i64> = taken.iter().map(|part| part.number).collect();
            let lost = self.check(conn)? || !parts::hold(conn, self.load, &numbers)?;
            if let (Some((error, file)), false) = (failed, lost) {
                // If there are several files, mark only the parts of the file that the error is
                // about.
                let of_file = |part: &&SharedPart| {
                    let source = self.source(options, part);
                    file.is_none()
                        || source.is_ok_and(|source| Some(source.name().as_str()) == file)
                };
                let bad = parts::list(taken.iter().filter(of_file).map(|part| part.number));
                parts::fail(conn, self.load, &bad, &error.to_string())?;
            }
            parts::give_back(conn, self.load)?;
            self.commits.set(parts::commits(conn, self.load)?);
            Ok(lost)
        })
    }

    /// Divides a part: other machines can then load its `first` bytes.
    ///
    /// # Errors
    ///
    /// Another machine has the part now, or the connection is lost.
    pub fn split_off(
        &self,
        conn: &mut Conn,
        options: &Options,
        part: &SharedPart,
        first: &Span,
        rest: &Span,
    ) -> Result<bool, Error> {
        alone(conn, options, |conn| parts::split_off(conn, self.load, part.number, first, rest))
    }

    /// Records that the part is not to be divided further.
    ///
    /// # Errors
    ///
    /// As for [`Member::split_off`].
    pub fn not_split(
        &self,
        conn: &mut Conn,
        options: &Options,
        part: &SharedPart,
    ) -> Result<(), Error> {
        alone(conn, options, |conn| {
            parts::not_split(conn, self.load, part.number)?;
            parts::give_back(conn, self.load).map(drop)
        })
    }

    /// Ends the load of this machine. Returns whether it was the last one at work on the table.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn end(
        &self,
        conn: &mut Conn,
        options: &Options,
        error: Option<&str>,
    ) -> Result<bool, Error> {
        alone(conn, options, |conn| parts::end(conn, self.target.oid, self.load, error))
    }

    /// Extends the lease.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub fn prolong(conn: &mut Conn, options: &Options, load: i64) -> Result<(), Error> {
        alone(conn, options, |conn| parts::prolong(conn, load, options.lease()))
    }
}

/// Does `work` in a separate transaction.
fn alone<T>(
    conn: &mut Conn,
    options: &Options,
    work: impl FnOnce(&mut Conn) -> Result<T, Error>,
) -> Result<T, Error> {
    // A request to cancel may end any statement, the first one too. The next transaction needs a
    // session that is in none.
    let begun = begin_transaction(conn, options).and_then(|()| limit_pause(conn, options.lease()));
    let done = begun.and_then(|()| work(conn));
    // If the ROLLBACK fails, the connection is lost; the first error is returned in any case.
    let ended = conn.exec(if done.is_ok() { "COMMIT" } else { "ROLLBACK" });
    let done = done?;
    ended.map(|_| done)
}
