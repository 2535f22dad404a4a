//! Rejects: the policy, the limit, and the two files that hold them.
//!
//! The reject file holds the original bytes of each rejected record, so that
//! it can be mended and loaded again; beside it `<file>.jsonl` says of each
//! record where it stood and why it was refused.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::Error;
use crate::report::Progress;
use crate::text::{text, Text};
use pgsluice_core::scan::Eol;
use serde::{Deserialize, Serialize};

mod file;
mod limit;
mod line;
mod output;
mod owned;
mod spool;

pub use file::{RejectFile, RejectForm};
pub use limit::{Amount, Limit};
pub use owned::{already_there, numbered, Kept, Reserved};
pub use spool::Spool;

/// What is done with reject files that are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// the load fails before it begins
    #[default]
    Error,
    /// rejects are added to them; those of PGCOPY cannot be
    Append,
    /// they are written again from the start
    Replace,
}

/// One rejected record: a line of the side file, without the record's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// the file, as named by the user
    pub file: String,
    /// the number of the record in its file, from 1, the header left out
    pub record: u64,
    /// the number of the record's first line in its file, from 1
    pub line: u64,
    /// where the record begins in its file, decompressed, in bytes
    pub offset: u64,
    /// the record's length in bytes, its line end included
    pub length: u64,
    /// the number of lines that it spans
    pub lines: u64,
    /// the column, where the server names one
    pub column: Option<String>,
    /// the SQLSTATE of the refusal
    pub sqlstate: String,
    /// the server's message
    pub message: String,
    /// the server's DETAIL, such as the key that exists already
    pub detail: Option<String>,
}

/// Takes the story of each rejected record, where no file keeps it.
pub type Listener = Box<dyn FnMut(&Reject) + Send>;

/// Where rejected records go.
enum Keep {
    /// into the reject files
    Files(Box<RejectFile>),
    /// to somebody who only wants to know
    Told(Listener),
}

/// The rejects of a running load, shared by its lanes.
pub struct Rejects {
    keep: Mutex<Keep>,
    rejected: Mutex<Amount>,
    limit: Limit,
    /// of a load that is recorded: what those that it continues have read and rejected
    earlier: Option<Earlier>,
    /// the records of the load that were read so far
    progress: Arc<Progress>,
    /// there were more than the limit allows
    exceeded: AtomicBool,
}

/// What earlier loads have committed of the same sources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Earlier {
    /// rejects of these
    pub rejected: Amount,
    /// what they have read
    pub read: Amount,
}

impl std::fmt::Debug for Rejects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rejects").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Rejects {
    /// Kept in files that were just created.
    pub fn new(file: RejectFile, limit: Limit, progress: &Arc<Progress>) -> Rejects {
        Rejects::of(Keep::Files(Box::new(file)), limit, progress.clone())
    }

    /// Kept in reserved files, to which they are added as their transactions are committed.
    pub fn recorded(
        file: RejectFile,
        limit: Limit,
        progress: &Arc<Progress>,
        earlier: Earlier,
    ) -> Rejects {
        Rejects { earlier: Some(earlier), ..Rejects::new(file, limit, progress) }
    }

    /// Told and kept nowhere, without a limit.
    pub fn told(listener: Listener) -> Rejects {
        Rejects::of(Keep::Told(listener), Limit::None, Arc::default())
    }

    fn of(keep: Keep, limit: Limit, progress: Arc<Progress>) -> Rejects {
        let (keep, rejected) = (Mutex::new(keep), Mutex::default());
        Rejects { keep, rejected, limit, earlier: None, progress, exceeded: AtomicBool::new(false) }
    }

    /// Whether each lane keeps its rejects until its transaction is committed.
    pub fn is_recorded(&self) -> bool {
        self.earlier.is_some()
    }

    /// Whether the load fails because there were too many.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Acquire)
    }

    /// Takes a record.
    ///
    /// # Errors
    ///
    /// The files cannot be written, or the limit is exceeded.
    pub fn add(&self, reject: &Reject, bytes: &[u8], eol: Eol) -> Result<(), Error> {
        self.put(reject, |file| file.add(reject, bytes, eol))
    }

    /// Takes a record that is too long to be held.
    ///
    /// # Errors
    ///
    /// As [`Rejects::add`], or the record cannot be read.
    pub fn add_from(
        &self,
        reject: &Reject,
        bytes: &mut impl io::Read,
        eol: Eol,
    ) -> Result<(), Error> {
        self.put(reject, |file| file.add_from(reject, bytes, eol))
    }

    fn put(
        &self,
        reject: &Reject,
        put: impl FnOnce(&mut RejectFile) -> io::Result<()>,
    ) -> Result<(), Error> {
        match &mut *self.lock() {
            Keep::Files(file) => put(file).map_err(|e| file.failed(&e))?,
            Keep::Told(listener) => listener(reject),
        }
        self.count(reject)
    }

    /// Counts a record that is kept elsewhere until its transaction is committed.
    ///
    /// # Errors
    ///
    /// The limit is exceeded.
    pub fn count(&self, reject: &Reject) -> Result<(), Error> {
        let rejected = {
            let mut rejected = self.rejected();
            *rejected += Amount { records: 1, lines: reject.lines };
            *rejected
        };
        let Earlier { rejected: before, read } = self.earlier.unwrap_or_default();
        let read = read.records + self.progress.records.get();
        match self.limit.exceeded(rejected + before, read) {
            true => Err(self.too_many(rejected + before)),
            false => Ok(()),
        }
    }

    /// Begins to add rejects to the files; no other lane does until the block is dropped.
    pub fn block(&self) -> Block<'_> {
        Block { keep: self.lock() }
    }

    /// A file without a name beside the reject file, for a record that is too
    /// long to be held in memory until it is known whether it is rejected; none where
    /// rejects are not kept.
    ///
    /// # Errors
    ///
    /// The folder cannot be written to, or a file that is not this load's has the name.
    pub fn spool(&self) -> Result<Option<File>, Error> {
        // Held until the name is gone: another lane may be about to take the same one.
        let kept = self.lock();
        let Keep::Files(file) = &*kept else { return Ok(None) };
        let mut name = file.path.clone().into_os_string();
        name.push(".part");
        let path = Path::new(&name);
        // A load that was killed may have left it, and then it is empty: it has a name only before
        // the first byte. The lock of the reject file keeps other loads from using it.
        let is_left = |facts: Metadata| facts.is_file() && facts.len() == 0;
        let remove = self.is_recorded() && fs::symlink_metadata(path).is_ok_and(is_left);
        let new = || {
            if remove {
                fs::remove_file(path)?;
            }
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
            fs::remove_file(path).map(|()| file)
        };
        new().map(Some).map_err(|e| {
            let error = Error::io("create", &path.display().to_string(), &e);
            match e.kind() {
                io::ErrorKind::AlreadyExists => error.with_hint(
                    "a load with rejects needs this name for a moment: move the file, or name another reject file",
                ),
                _ => error,
            }
        })
    }

    /// Which files have rejects beside the first one, and why.
    pub fn more(&self) -> Option<String> {
        match &*self.lock() {
            Keep::Files(file) => file.more(),
            Keep::Told(_) => None,
        }
    }

    /// At the end of the input: the limit, and everything on disk before the
    /// commit that leaves these records out. Gives the rejects, in records and lines.
    ///
    /// # Errors
    ///
    /// As [`Rejects::add`].
    pub fn close(&self, read: Amount) -> Result<Amount, Error> {
        if !self.is_recorded() {
            self.end()?;
        }
        let rejected = *self.rejected();
        let Earlier { rejected: before, read: read_before } = self.earlier.unwrap_or_default();
        match self.limit.exceeded_at_end(rejected + before, read + read_before) {
            true => Err(self.too_many(rejected + before)),
            false => Ok(rejected),
        }
    }

    /// Writes what follows the last record, and makes everything durable.
    ///
    /// # Errors
    ///
    /// As [`Rejects::add`].
    pub fn end(&self) -> Result<(), Error> {
        self.block().end()
    }

    /// Removes the files if no record was rejected: empty ones would only be in
    /// the way of the next load.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn remove_if_empty(&self) -> Result<(), Error> {
        let rejected = self.rejected().records;
        let Keep::Files(file) = &*self.lock() else { return Ok(()) };
        // Reserved ones are removed with their lock.
        if file.held || rejected > 0 || self.is_recorded() {
            return Ok(());
        }
        for path in [file.path.clone(), side_path(&file.path)] {
            fs::remove_file(&path)
                .map_err(|e| Error::io("remove the empty", &path.display().to_string(), &e))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Keep> {
        self.keep.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn rejected(&self) -> MutexGuard<'_, Amount> {
        self.rejected.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn too_many(&self, rejected: Amount) -> Error {
        self.exceeded.store(true, Ordering::Release);
        let verb = if rejected.records == 1 { "was" } else { "were" };
        let error = Error::data(format!(
            "{rejected} {verb} rejected, which is more than the limit of {}",
            self.limit
        ));
        let Keep::Files(file) = &mut *self.lock() else { return error };
        // The file should have all of them when the user looks; the load fails either way.
        if file.sync().is_err() {
            return error;
        }
        let dialect = match self.limit {
            Limit::Default => {
                "; check the delimiter, the quote and the header; `reject-limit` allows more"
            }
            _ => "",
        };
        error.with_hint(text!(
            "{} contains them, and {} the reasons{}{}",
            file.first.display(),
            side_path(&file.first).display(),
            file.more().map_or(String::new(), |more| format!("; {more}")),
            Text::from(dialect),
        ))
    }
}

/// The right to add rejects to the files of a load that is recorded.
pub struct Block<'r> {
    keep: MutexGuard<'r, Keep>,
}

impl Block<'_> {
    /// Adds the rejects of a transaction; gives what is to be recorded of the files that have them,
    /// which are on disk.
    ///
    /// # Errors
    ///
    /// As [`Rejects::add`], or the transaction of an earlier block was not committed.
    pub fn write(&mut self, spool: &mut Spool) -> Result<Vec<Kept>, Error> {
        self.put(spool, false)
    }

    /// Adds the rejects of a transaction that is never committed, for the user to look at.
    ///
    /// # Errors
    ///
    /// As [`Block::write`].
    pub fn show(&mut self, spool: &mut Spool) -> Result<(), Error> {
        self.put(spool, true).map(drop)
    }

    fn put(&mut self, spool: &mut Spool, shown: bool) -> Result<Vec<Kept>, Error> {
        let Keep::Files(file) = &mut *self.keep else {
            return Err(Error::defect("rejects are kept nowhere"));
        };
        file.begin_block(shown)?;
        let written = spool.empty_into(file).and_then(|()| file.end_block());
        written.map_err(|e| file.failed(&e))
    }

    /// As [`Rejects::end`].
    ///
    /// # Errors
    ///
    /// As [`Rejects::add`].
    pub fn end(&mut self) -> Result<(), Error> {
        let Keep::Files(file) = &mut *self.keep else { return Ok(()) };
        file.end().and_then(|()| file.sync()).map_err(|e| file.failed(&e))
    }

    /// The transaction is committed.
    pub fn committed(mut self) {
        if let Keep::Files(file) = &mut *self.keep {
            file.block_is_committed();
        }
    }
}

/// The side file of a reject file: the same name and `.jsonl`.
pub fn side_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".jsonl");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests;
