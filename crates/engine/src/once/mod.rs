//! Loads each source once: the target database records what is loaded, in the transaction of the
//! rows.
//!
//! - A source is recognised by its content. If name, size and time of the last change are those of
//!   a complete source, it is not read. Otherwise, size and the hashes of its ends find sources
//!   that may have the same content, and the hashes of the pieces decide.
//! - Loads of the same names or contents wait for each other: a second connection holds advisory
//!   locks until the load ends. These locks only avoid useless work. The order of statements in
//!   [`record`] makes it exact that each record is loaded once.

pub mod correction;
mod decide;
mod end;
mod fingerprint;
pub mod forget;
mod identity;
pub mod join;
pub mod listing;
mod lookup;
mod names;
mod notes;
mod outcome;
pub mod parts;
mod pause;
pub mod record;
mod rejects;
pub mod slices;
mod table;
pub mod tables;
mod unclaimed;

use crate::error::Error;
use crate::fields::ValuePart;
use crate::ledger::SETTINGS;
use crate::options::{Header, InputOptions, Options};
use crate::report::Summary;
use crate::session::conn::Conn;
use crate::session::transaction::{begin_long, refuse_read_only};
use crate::source::Source;
use crate::text::Text;
use crate::watch::{Stop, Watch};
use fingerprint::Fingerprint;
use identity::{header_of, Ends, Seen};
use lookup::{candidates, claim, KnownSource};
use names::{add_names, drop_rows, touch};
use notes::{About, Notes};
use pause::limit_pause;
use record::{Alias, Recording, Target, Touched, Wanted};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use table::{check_partitions, target};
use unclaimed::{check_claims, incomplete_rows, stop_unclaimed};

/// A load that has begun: some of its sources are not complete.
pub(crate) struct Once {
    /// holds the claims in a transaction, until the connection is closed
    pub guard: Conn,
    /// what the lanes record
    pub recording: Arc<Recording>,
    /// the names of all sources, as the user gave them
    names: Vec<String>,
    notes: Notes,
}

/// The result of [`begin`].
pub(crate) enum Begun {
    /// every source is complete
    Nothing(Box<NothingNew>),
    /// the sources of the recording are not complete
    Load(Once),
}

/// A load that has nothing to load.
pub(crate) struct NothingNew {
    /// in no transaction
    pub conn: Conn,
    pub target: Target,
    pub summary: Summary,
}

/// Begins a transaction that uses the ledger.
pub(crate) fn begin_transaction(conn: &mut Conn, options: &Options) -> Result<(), Error> {
    begin_under_own_path(conn, options)?;
    conn.exec(SETTINGS).map(drop)
}

/// The same, but names are looked up as in the user's SQL until [`SETTINGS`] are set.
fn begin_under_own_path(conn: &mut Conn, options: &Options) -> Result<(), Error> {
    begin_long(conn, options.target.lock_timeout.as_deref())
}

/// Finds out which sources must still be loaded, claims them and registers the load. Calls
/// `waiting` before it waits for another load.
///
/// # Errors
///
/// A source has changed since it was loaded, or was loaded with other options, or the ledger cannot
/// be used.
pub(crate) fn begin(options: &Options, watch: &Watch, waiting: &dyn Fn()) -> Result<Begun, Error> {
    let (mut guard, target, mut found) = open(options, watch)?;
    let left = found.of_new_name();
    let mut left = found.incomplete(&mut guard, &target, left)?;
    let ends = found.ends(&left)?;
    let mut conn = None;
    if !left.is_empty() {
        let files: Vec<_> = left.iter().map(|i| (&found.seen[*i], &ends[i])).collect();
        watch.interruptible(guard.canceller(), || {
            claim(&mut guard, target.oid, &files, false, waiting)
        })?;
        // Another load may have completed some of them while this one waited.
        left = found.incomplete(&mut guard, &target, left)?;
        let mut rows = found.rows(&mut guard, &target, &left, &ends)?;
        let unclaimed = incomplete_rows(&rows);
        if !unclaimed.is_empty() {
            let conn = conn.insert(watch.connect(&options.target.url)?);
            begin_transaction(conn, options)?;
            watch.interruptible(conn.canceller(), || stop_unclaimed(conn, &unclaimed, false))?;
            conn.exec("COMMIT")?;
            rows = found.rows(&mut guard, &target, &left, &ends)?;
        }
        found.decide(&mut guard, &left, &ends, rows)?;
    }
    if found.wanted.is_empty() {
        return found.nothing(guard, target).map(Begun::Nothing);
    }
    let names: Vec<String> = found.sources.iter().map(|s| s.name()).collect();
    let conn = conn.map_or_else(|| watch.connect(&options.target.url), Ok)?;
    let recording =
        watch.interruptible(conn.canceller(), || found.register(conn, target, options))?;
    check_claims(&mut guard)?;
    Ok(Begun::Load(Once {
        guard,
        recording: Arc::new(recording),
        names,
        notes: std::mem::take(&mut found.notes),
    }))
}

/// Opens a connection for the claims, and reads the metadata of the table and of the sources.
fn open<'o>(options: &'o Options, watch: &Watch) -> Result<(Conn, Target, Found<'o>), Error> {
    let sources = &options.input.sources;
    let name = options.once.as_ref().and_then(|once| once.source_name.as_deref());
    if let Some(name) = name {
        identity::check_stream_name(name)?;
        if sources.len() != 1 {
            return Err(Error::usage("`source-name` is the name of the only source"));
        }
    }
    let seen = sources.iter().map(|s| Seen::of(s.as_ref(), name)).collect::<Result<Vec<_>, _>>()?;
    let mut guard = watch.connect(&options.target.url)?;
    refuse_read_only(&mut guard)?;
    tables::ensure(&mut guard)?;
    begin_under_own_path(&mut guard, options)?;
    let target = target(&mut guard, options)?;
    check_partitions(&mut guard, &target, options)?;
    guard.exec(SETTINGS)?;
    let fingerprint = Fingerprint::of(options);
    let input = InputOptions { sources: Vec::new(), ..options.input.clone() };
    let append = options.once.as_ref().is_some_and(|once| once.append);
    let lease = options.lease();
    let stop = watch.stop.clone();
    let with_name = |(_, value): &(_, Vec<ValuePart>)| value.contains(&ValuePart::File);
    let names_in_rows = options.target.fields.set.iter().any(with_name);
    let found = Found {
        seen,
        fingerprint,
        sources,
        input,
        append,
        names_in_rows,
        lease,
        stop,
        ..Found::default()
    };
    Ok((guard, target, found))
}

/// What is known of the sources.
#[derive(Default)]
struct Found<'s> {
    sources: &'s [Arc<dyn Source>],
    seen: Vec<Seen>,
    fingerprint: Fingerprint,
    /// how files are read
    input: InputOptions,
    /// if a source has grown, load the rest
    append: bool,
    /// a column gets the name of the file: files with the same bytes have different rows
    names_in_rows: bool,
    /// how long a transaction may be idle if others wait for it
    lease: Duration,
    /// whether the user has stopped the load
    stop: Stop,
    notes: Notes,
    /// the names of all sources
    names: HashSet<String>,
    /// sources to load, each with its index
    wanted: Vec<(usize, Wanted)>,
    /// the indexes of the sources to load, by size and ends
    by_ends: HashMap<(u64, Ends), Vec<usize>>,
    /// the indexes of those that continue a row of `sources`, by that row
    by_begun: HashMap<i64, usize>,
    /// rows of failed attempts whose names other rows take
    replaced: Vec<i64>,
    /// other names of complete contents
    aliases: Vec<Alias>,
    /// other names of wanted contents, each with the index of the source
    copies: Vec<(Seen, Ends, usize)>,
    touched: Vec<Touched>,
    /// contents that machines load in parts
    busy: HashSet<i64>,
    /// those of `busy` that this load has under another name: it waits for their end
    others: HashSet<i64>,
}

impl Found<'_> {
    /// The hashes of the ends of these sources, and of their headers.
    fn ends(&self, left: &[usize]) -> Result<HashMap<usize, Ends>, Error> {
        let of = |i: &usize| {
            if self.stop.is_set() {
                return Err(Error::cancelled());
            }
            let mut ends = self.seen[*i].ends()?;
            if self.has_header() && !self.seen[*i].stream {
                ends.header = header_of(&self.input, &self.sources[*i]);
            }
            Ok((*i, ends))
        };
        left.iter().map(of).collect()
    }

    /// Whether files begin with column names, which belong to no piece.
    fn has_header(&self) -> bool {
        self.input.header != Header::None
    }

    /// Ends a load that has nothing new to load.
    fn nothing(self, mut guard: Conn, target: Target) -> Result<Box<NothingNew>, Error> {
        let files: Vec<String> = self.sources.iter().map(|s| s.name()).collect();
        self.settle(&mut guard, &target)?;
        guard.exec("COMMIT")?;
        let files_known = files.len() as u64;
        let nothing = format!("nothing new: all files ({files_known}) were loaded before");
        let notes = std::iter::once(nothing).chain(self.notes.summed_up());
        let notes = notes.map(Text::from).collect();
        let table = target.sql.clone();
        let summary = Summary { table, files, files_known, notes, ..Summary::default() };
        Ok(Box::new(NothingNew { conn: guard, target, summary }))
    }

    /// Returns the sources whose names have not occurred before.
    fn of_new_name(&mut self) -> Vec<usize> {
        let mut left = Vec::new();
        for (i, seen) in self.seen.iter().enumerate() {
            if self.names.insert(seen.name.clone()) {
                left.push(i);
            } else {
                let note = format!("{} is named twice and loaded once", seen.name);
                self.notes.add(About::Twice, note);
            }
        }
        left
    }

    /// Returns the sources that are not complete according to name, size and time.
    fn incomplete(
        &self,
        conn: &mut Conn,
        target: &Target,
        sources: Vec<usize>,
    ) -> Result<Vec<usize>, Error> {
        // The name of a stream does not identify its bytes.
        let files = sources.iter().map(|i| (*i, &self.seen[*i]));
        let files: Vec<_> = files.filter(|(_, seen)| !seen.stream).collect();
        let mut complete = HashSet::new();
        for (i, options) in lookup::complete(conn, target.oid, &files)? {
            self.fingerprint.check(&options, &self.sources[i].name())?;
            complete.insert(i);
        }
        Ok(sources.into_iter().filter(|i| !complete.contains(i)).collect())
    }

    /// Returns the rows of `sources` that may be about these sources.
    fn rows(
        &self,
        conn: &mut Conn,
        target: &Target,
        sources: &[usize],
        ends: &HashMap<usize, Ends>,
    ) -> Result<Vec<KnownSource>, Error> {
        let files: Vec<_> = sources.iter().map(|i| (*i, &self.seen[*i], &ends[i])).collect();
        candidates(conn, target.oid, &files)
    }

    /// Adds a source that is to be loaded.
    fn want(&mut self, i: usize, wanted: Wanted) {
        let content = (wanted.seen.size, wanted.ends.clone());
        self.by_ends.entry(content).or_default().push(i);
        self.by_begun.extend(wanted.begun.map(|row| (row, i)));
        self.wanted.push((i, wanted));
    }

    /// Updates names in the ledger, in the open transaction.
    fn settle(&self, conn: &mut Conn, target: &Target) -> Result<(), Error> {
        drop_rows(conn, &self.replaced)?;
        add_names(conn, target, &self.aliases, &self.fingerprint.json(), 0)?;
        touch(conn, &self.touched)
    }

    /// Registers the load over a separate connection, whose commits do not release the claims.
    fn register(
        &mut self,
        mut conn: Conn,
        target: Target,
        options: &Options,
    ) -> Result<Recording, Error> {
        let mut options = options.clone();
        let (indexes, files): (Vec<usize>, Vec<Wanted>) =
            std::mem::take(&mut self.wanted).into_iter().unzip();
        options.input.sources = indexes.iter().map(|i| self.sources[*i].clone()).collect();
        if !(self.replaced.is_empty() && self.aliases.is_empty() && self.touched.is_empty()) {
            begin_transaction(&mut conn, &options)?;
            self.settle(&mut conn, &target)?;
            conn.exec("COMMIT")?;
        }
        // The recording has a source for each wanted one, in this order.
        let places: HashMap<usize, usize> =
            indexes.iter().enumerate().map(|(place, i)| (*i, place)).collect();
        let copies = std::mem::take(&mut self.copies).into_iter();
        let copies = copies.map(|(seen, ends, of)| (seen, ends, places[&of])).collect();
        let fingerprint = self.fingerprint.json();
        let recording = Recording::register(conn, target, files, fingerprint, options)?;
        Ok(recording.with_aliases(copies))
    }
}
