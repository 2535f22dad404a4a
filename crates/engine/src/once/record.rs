//! What a load writes to the ledger.
//!
//! A load is registered in a transaction that is committed before the first row. From then on, each
//! transaction with rows locks the load's row of `loads` just before it commits, so that the load
//! cannot be stopped. A later load that continues the same files first marks this one as stopped,
//! and reads the pieces after that. So it sees every piece that this load commits, and this load
//! commits none later, even if its process is still alive and has lost its claim with a connection.
//! `unclaimed` does the same for loads that have committed nothing yet, whatever the names of their
//! files.
//!
//! A stream cannot be compared before it is read. If lanes of the earlier load left gaps between
//! the known ranges, the gaps are committed only after the last range was found to be the same. A
//! stream that was loaded as a whole stays complete while it is read again. So a comparison that
//! fails changes nothing.
//!
//! The rejects of a transaction are written to their files after the lock is taken and before the
//! COMMIT. So files and rows always agree (`reject::owned`).

use super::identity::{Ends, Seen};
use super::lookup::{number, pieces};
use super::names::{add_names, complete_names, put_files};
use super::parts;
use super::rejects::{self, Taken};
use crate::error::{Error, Kind};
use crate::input::{changed, KnownPiece};
use crate::ledger::under_policies;
use crate::options::Options;
use crate::reject::{Amount, Earlier, Kept, Reserved};
use crate::report::{Committed, Counter};
use crate::session::conn::Conn;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The maximum number of files or pieces in one INSERT.
pub(super) const BATCH: usize = 10_000;

/// The table of a load.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub oid: u32,
    /// its name, quoted and qualified
    pub sql: String,
}

/// A file that is to be loaded.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub seen: Seen,
    pub ends: Ends,
    /// its row in `sources`, if an earlier load has begun it
    pub begun: Option<i64>,
    /// a stream that was loaded as a whole: it must not have additional bytes
    pub whole: bool,
}

impl Wanted {
    /// A file that no load has begun.
    pub fn new(seen: &Seen, ends: &Ends) -> Wanted {
        Wanted { seen: seen.clone(), ends: ends.clone(), begun: None, whole: false }
    }
}

/// Another name of a content: the file, and the row of `sources` that has the content.
#[derive(Clone, Debug)]
pub(super) struct Alias {
    pub seen: Seen,
    pub ends: Ends,
    pub same_as: i64,
    /// the row of `sources` that it was compared with, if the content has grown since and the file
    /// has not
    pub was: Option<i64>,
}

/// A complete file whose size or time has changed, but not its content.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    /// its row in `sources`
    pub row: i64,
    pub seen: Seen,
    pub ends: Ends,
    /// the content has grown since the row was recorded, and the file has not
    pub was: bool,
}

/// A range of bytes, and the number of records and lines in it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Piece {
    pub source: i64,
    pub start_byte: u64,
    pub end_byte: u64,
    pub first_record: u64,
    pub first_line: u64,
    pub records: u64,
    pub lines: u64,
    /// in the input format of `bytea`
    pub hash: String,
}

/// How many records a transaction has read, loaded and rejected.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amounts {
    pub read: u64,
    pub loaded: u64,
    pub rejected: u64,
}

/// Registers a load in the open transaction. Returns its number.
pub(super) fn new_load(conn: &mut Conn, target: &Target) -> Result<i64, Error> {
    let rows = conn.query(
        "INSERT INTO pgsluice_loads.loads (target, target_name, program) \
         VALUES ($1::oid, $2, $3) RETURNING number",
        &[
            Some(&target.oid.to_string()),
            Some(&target.sql),
            Some(concat!("pgsluice ", env!("CARGO_PKG_VERSION"))),
        ],
    )?;
    Ok(number(&rows[0][0]))
}

/// How many records of these files were read since they were last complete. A file that has grown also
/// has records of earlier loads, whose rejects do not count any more.
fn read_since_complete(conn: &mut Conn, begun: &str) -> Result<Amount, Error> {
    let rows = conn.query(
        "SELECT sum(p.records), sum(p.lines) FROM pgsluice_loads.sources s \
           JOIN pgsluice_loads.pieces p ON p.source = s.number \
           JOIN pgsluice_loads.commits c ON c.number = p.commit \
         WHERE s.state = 'loading' AND s.number IN (SELECT n::bigint \
             FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) \
           AND c.load > coalesce((SELECT pg_catalog.max(l.number) FROM pgsluice_loads.pieces e \
             JOIN pgsluice_loads.commits k ON k.number = e.commit \
             JOIN pgsluice_loads.loads l ON l.number = k.load \
             WHERE e.source = s.number AND l.state = 'complete'), 0)",
        &[Some(begun)],
    )?;
    Ok(Amount { records: number(&rows[0][0]), lines: number(&rows[0][1]) })
}

/// A registered load.
#[derive(Debug)]
pub(crate) struct Recording {
    /// its number
    pub load: i64,
    pub target: Target,
    pub(super) files: Vec<Wanted>,
    /// names to add when the files are complete
    aliases: Vec<Alias>,
    /// options of all files, as JSON
    fingerprint: String,
    /// the number of each file
    pub sources: Vec<i64>,
    /// the pieces of each file that are already loaded
    pub known: Vec<Vec<KnownPiece>>,
    /// all known ranges have the same bytes: files are compared beforehand, streams while they are
    /// read
    pub compared: Arc<AtomicBool>,
    /// the reject files, until the lanes take them
    rejects: Mutex<Option<Reserved>>,
    /// the records that earlier loads have read and rejected of the files
    pub earlier: Earlier,
    /// the options of the load; transactions begin with its settings
    pub options: Options,
    /// what is committed so far
    pub committed: Committed,
    /// held by the lane that moves sequences, before it has used any of them in its transaction
    pub moving: Mutex<()>,
    /// rows of `commits` that the load has written
    commits: Arc<Counter>,
    /// of a shared load: the parts of this recording
    pub(super) parts: Option<Vec<i64>>,
    /// the connection that has registered the load, until the load takes it
    registrar: Mutex<Option<Conn>>,
}

impl Recording {
    /// Registers a load of these files in a transaction, and reads which pieces of them are loaded.
    ///
    /// # Errors
    ///
    /// The connection is lost, or another load has registered the files first.
    pub(super) fn register(
        mut conn: Conn,
        target: Target,
        files: Vec<Wanted>,
        fingerprint: String,
        options: Options,
    ) -> Result<Recording, Error> {
        super::begin_transaction(&mut conn, &options)?;
        let load = new_load(&mut conn, &target)?;
        let mut recording = Recording::new(load, target, files, fingerprint, options);
        let begun = recording.begun();
        if let Some(begun) = &begun {
            recording.stop_earlier(&mut conn, begun)?;
            recording.earlier.read = read_since_complete(&mut conn, begun)?;
        }
        recording.earlier.rejected = recording.take_rejects(&mut conn, begun.as_deref())?;
        recording.sources = recording.put_sources(&mut conn)?;
        for (file, source) in recording.files.iter().zip(&recording.sources) {
            let begun = file.begun.map(|_| pieces(&mut conn, *source)).transpose()?;
            recording.known.push(begun.unwrap_or_default());
        }
        // Only this transaction has the settings of the ledger.
        conn.exec("COMMIT")?;
        let compared = recording.files.iter().all(|file| !file.seen.stream)
            || recording.known.iter().all(Vec::is_empty);
        recording.compared.store(compared, Ordering::Release);
        recording.registrar = Mutex::new(Some(conn));
        Ok(recording)
    }

    /// Creates the recording of a load that has no known pieces yet.
    pub(super) fn new(
        load: i64,
        target: Target,
        files: Vec<Wanted>,
        fingerprint: String,
        options: Options,
    ) -> Recording {
        Recording {
            load,
            target,
            files,
            aliases: Vec::new(),
            fingerprint,
            sources: Vec::new(),
            known: Vec::new(),
            compared: Arc::default(),
            rejects: Mutex::default(),
            earlier: Earlier::default(),
            options,
            committed: Committed::default(),
            moving: Mutex::default(),
            commits: Arc::default(),
            parts: None,
            registrar: Mutex::default(),
        }
    }

    /// Makes this the recording of some parts of files, whose numbers in the ledger are `sources`.
    pub(super) fn of_parts(
        mut self,
        sources: Vec<i64>,
        known: Vec<Vec<KnownPiece>>,
        parts: Vec<i64>,
        commits: Arc<Counter>,
    ) -> Recording {
        (self.sources, self.known, self.parts) = (sources, known, Some(parts));
        self.commits = commits;
        self.compared.store(true, Ordering::Release);
        self
    }

    /// The numbers of the files that earlier loads have begun, as a parameter, if there are any.
    pub(super) fn begun(&self) -> Option<String> {
        let mut begun = self.files.iter().filter_map(|file| file.begun).peekable();
        begun.peek().is_some().then(|| parts::list(begun))
    }

    /// Stops earlier loads of these files, after other loads that do so. Waits for their transactions
    /// that are about to commit; the others cannot commit any more. Drops all parts of the files.
    pub(super) fn stop_earlier(&self, conn: &mut Conn, begun: &str) -> Result<(), Error> {
        // Two loads may have found the same file by different names. The second one must see what
        // the first one has registered.
        conn.query(
            "SELECT pg_catalog.pg_advisory_xact_lock( \
               pg_catalog.hashtextextended('pgsluice_loads begun ' || key, 0)) \
             FROM (SELECT DISTINCT n::bigint % 255 AS key \
               FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n ORDER BY key OFFSET 0) AS keys",
            &[Some(begun)],
        )?;
        conn.query(
            "UPDATE pgsluice_loads.loads SET state = 'stopped', ended = pg_catalog.clock_timestamp(), \
               error = 'continued by load ' || $2::text \
             WHERE state = 'running' AND number IN (SELECT s.load FROM pgsluice_loads.sources s \
               WHERE s.number IN (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n))",
            &[Some(begun), Some(&self.load.to_string())],
        )?;
        parts::drop_of(conn, begun)
    }

    /// Takes over the reject files. Returns how many records earlier loads have rejected.
    fn take_rejects(&mut self, conn: &mut Conn, begun: Option<&str>) -> Result<Amount, Error> {
        let names = self.options.input.sources.iter().map(|source| source.name()).collect();
        let wanted = self.options.rejects.as_ref();
        let Taken { reserved, rejected, .. } =
            rejects::take_over(conn, self.load, &self.target, begun, names, wanted)?;
        self.rejects = Mutex::new(reserved);
        Ok(rejected)
    }

    /// Adds the new files, and takes over those that an earlier load has begun. Returns their
    /// numbers.
    pub(super) fn put_sources(&self, conn: &mut Conn) -> Result<Vec<i64>, Error> {
        let mut numbers = Vec::with_capacity(self.files.len());
        for files in self.files.chunks(BATCH) {
            numbers.extend(put_files(conn, self.load, &self.target, files, &self.fingerprint)?);
        }
        Ok(numbers)
    }

    /// Adds names of files that have the same bytes as a file of the load.
    pub(super) fn with_aliases(mut self, aliases: Vec<(Seen, Ends, usize)>) -> Recording {
        let alias = |(seen, ends, of): (Seen, Ends, usize)| {
            let same_as = self.sources[of];
            Alias { seen, ends, same_as, was: None }
        };
        self.aliases = aliases.into_iter().map(alias).collect();
        self
    }

    /// Records the pieces of a transaction in that transaction, between the end of its COPY and its
    /// COMMIT. First locks the load's row, so that no other load can stop this one before the
    /// transaction ends. Then calls `write`, which adds the rejects to their files. Returns the
    /// number of its row of `commits`, if there are pieces.
    ///
    /// # Errors
    ///
    /// Another load has taken over the files, or the connection is lost.
    pub(crate) fn record(
        &self,
        conn: &mut Conn,
        pieces: &[Piece],
        amounts: Amounts,
        write: impl FnOnce() -> Result<Vec<Kept>, Error>,
    ) -> Result<Option<String>, Error> {
        if pieces.is_empty() {
            return Ok(None);
        }
        let Amounts { read, loaded, rejected } = amounts;
        let Some(skipped) = read.checked_sub(loaded + rejected) else {
            return Err(Error::defect(format!(
                "{read} records were read, {loaded} rows loaded and {rejected} rejected"
            )));
        };
        under_policies(conn, |conn| {
            self.hold(conn)?;
            rejects::record_kept(conn, self.load, &write()?)?;
            let rows = conn.query(
                "INSERT INTO pgsluice_loads.commits (load, read, loaded, rejected, skipped) \
                 VALUES ($1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bigint) RETURNING number",
                &[
                    Some(&self.load.to_string()),
                    Some(&read.to_string()),
                    Some(&loaded.to_string()),
                    Some(&rejected.to_string()),
                    Some(&skipped.to_string()),
                ],
            )?;
            for batch in pieces.chunks(BATCH) {
                let json = serde_json::to_string(batch).unwrap_or_default();
                conn.query(
                    "INSERT INTO pgsluice_loads.pieces (source, start_byte, end_byte, first_record, \
                       first_line, records, lines, hash, commit) \
                     SELECT p.*, $2::bigint FROM pg_catalog.jsonb_to_recordset($1::jsonb) \
                       AS p(source bigint, start_byte bigint, end_byte bigint, first_record bigint, \
                            first_line bigint, records bigint, lines bigint, hash bytea)",
                    &[Some(&json), rows[0][0].as_deref()],
                )?;
            }
            self.commits.add(1);
            Ok(rows[0][0].clone())
        })
    }

    /// Checks that the server has all commits of the load. Some are missing if a connection was
    /// lost and the new one is to a standby that lagged.
    fn check_commits(&self, conn: &mut Conn, load: &str) -> Result<(), Error> {
        let rows = conn.query(
            "SELECT count(*) FROM pgsluice_loads.commits WHERE load = $1::bigint",
            &[Some(load)],
        )?;
        let (found, written) = (number::<u64>(&rows[0][0]), self.commits.get());
        if found == written {
            return Ok(());
        }
        Err(Error::new(format!(
            "the server has {found} of {written} commits of load {load}: is it a standby that lagged?"
        ))
        .of_kind(Kind::Connection)
        .with_hint("the same command loads what is missing"))
    }

    /// Returns for each source whether it must not have more bytes than are known.
    pub(crate) fn whole(&self) -> Vec<bool> {
        self.files.iter().map(|file| file.whole).collect()
    }

    /// Compares the bytes before the records of a stream with those of the earlier load. If nothing
    /// of the stream is loaded, records them.
    ///
    /// # Errors
    ///
    /// They differ, or the connection is lost.
    pub(crate) fn check_head(&self, conn: &mut Conn, head: Option<&[u8]>) -> Result<(), Error> {
        let ([file], [source]) = (&self.files[..], &self.sources[..]) else { return Ok(()) };
        if !file.seen.stream {
            return Ok(());
        }
        let own = format!("\\x{}", blake3::hash(head.unwrap_or_default()).to_hex());
        match self.known[0].first() {
            Some(first) if file.ends.head != own => {
                Err(changed(&file.seen.name, &(0..first.bytes.start)))
            }
            Some(_) => Ok(()),
            None => {
                super::begin_transaction(conn, &self.options)?;
                conn.query(
                    "UPDATE pgsluice_loads.sources SET head = $2::bytea WHERE number = $1::bigint",
                    &[Some(&source.to_string()), Some(&own)],
                )?;
                conn.exec("COMMIT").map(drop)
            }
        }
    }

    /// Takes the connection that has registered the load, for its first lane.
    pub(crate) fn connection(&self) -> Option<Conn> {
        self.registrar.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    /// Takes the reject files, for the writer of rejects.
    pub(crate) fn reserved(&self) -> Option<Reserved> {
        self.rejects.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    /// Prevents other loads from taking over the files until the transaction ends.
    fn hold(&self, conn: &mut Conn) -> Result<(), Error> {
        if self.parts.is_some() {
            super::limit_pause(conn, self.options.lease())?;
        }
        let held = conn.query(
            "SELECT 1 FROM pgsluice_loads.loads WHERE number = $1::bigint AND state = 'running' \
               AND target = pg_catalog.to_regclass($2) FOR SHARE",
            &[Some(&self.load.to_string()), Some(&self.target.sql)],
        )?;
        let held = match &self.parts {
            Some(parts) if !held.is_empty() => parts::hold(conn, self.load, parts)?,
            _ => !held.is_empty(),
        };
        if held {
            Ok(())
        } else {
            Err(self.taken_over())
        }
    }

    fn taken_over(&self) -> Error {
        Error::new(format!(
            "load {} was stopped: another load continues its files, or the table was replaced",
            self.load
        ))
        .with_hint("the table pgsluice_loads.loads shows which; nothing is lost or duplicated")
    }

    /// Marks the files and the load as complete, in the open transaction.
    ///
    /// # Errors
    ///
    /// A file has changed since the load began, the server lacks commits of the load, or the
    /// connection is lost.
    pub(crate) fn complete(&self, conn: &mut Conn) -> Result<(), Error> {
        for (source, file) in self.options.input.sources.iter().zip(&self.files) {
            if !file.seen.stream && Seen::of(source.as_ref(), None)? != file.seen {
                return Err(Error::new(format!("{} changed while it was loaded", source.name()))
                    .with_hint("load it again when nothing writes to it"));
            }
        }
        let load = self.load.to_string();
        under_policies(conn, |conn| {
            self.check_commits(conn, &load)?;
            if let Some(parts) = &self.parts {
                super::limit_pause(conn, self.options.lease())?;
                let had = parts::complete(conn, self.load, parts)?;
                return if had { Ok(()) } else { Err(self.taken_over()) };
            }
            conn.query(
                "UPDATE pgsluice_loads.sources SET state = 'complete', \
                   completed = pg_catalog.clock_timestamp() \
                 WHERE load = $1::bigint AND state = 'loading'",
                &[Some(&load)],
            )?;
            if let Some(begun) = self.begun() {
                complete_names(conn, &begun)?;
            }
            add_names(conn, &self.target, &self.aliases, &self.fingerprint, self.load)?;
            rejects::release(conn, &load)?;
            let (_, ended) = conn.query_counted(
                "UPDATE pgsluice_loads.loads SET state = 'complete', \
                   ended = pg_catalog.clock_timestamp() \
                 WHERE number = $1::bigint AND state = 'running'",
                &[Some(&load)],
            )?;
            match ended {
                1 => Ok(()),
                _ => self.hold(conn),
            }
        })
    }
}
