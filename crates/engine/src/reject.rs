//! Rejects: the policy, the limit, and the two files that hold them.
//!
//! The reject file holds the original bytes of each rejected record, so that it can be corrected
//! and loaded again. The file `<file>.jsonl` beside it says where each record was and why it was
//! rejected.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::Error;
use crate::report::Progress;
use crate::text::{text, Text};
use nix::errno::Errno;
use nix::unistd::{access, AccessFlags};
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
pub use owned::{numbered, Kept, Reserved};
pub use spool::Spool;

/// What to do about reject files that already exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// the load fails before it begins
    #[default]
    Error,
    /// rejects are appended to them; this is not possible for PGCOPY
    Append,
    /// they are overwritten
    Replace,
}

/// One rejected record: a line of the file with the reasons, without the record's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// the file, as named by the user
    pub file: String,
    /// the number of the record in its file, from 1, without the header
    pub record: u64,
    /// the number of the record's first line in its file, from 1
    pub line: u64,
    /// byte offset of the record in its file, decompressed
    pub offset: u64,
    /// the record's length in bytes, with its line end
    pub length: u64,
    /// the number of its lines
    pub lines: u64,
    /// the column, if the server names one
    pub column: Option<String>,
    /// the SQLSTATE of the error
    pub sqlstate: String,
    /// the server's message
    pub message: String,
    /// the server's DETAIL, such as the existing key
    pub detail: Option<String>,
}

/// Receives each reject, if no file keeps it.
pub type Listener = Box<dyn FnMut(&Reject) + Send>;

/// Where rejected records go.
enum Keep {
    /// into the reject files
    Files(Box<RejectFile>),
    /// to a function that only receives them
    Told(Listener),
}

/// The rejects of a running load, shared by its lanes.
pub struct Rejects {
    keep: Mutex<Keep>,
    rejected: Mutex<Amount>,
    limit: Limit,
    /// for a load that is recorded: what the loads that it continues have read and rejected
    earlier: Option<Earlier>,
    /// the number of records that the load has read so far
    progress: Arc<Progress>,
    /// the limit was exceeded
    exceeded: AtomicBool,
}

/// What earlier loads of the same sources have committed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Earlier {
    /// the rejects of these loads
    pub rejected: Amount,
    /// what these loads have read
    pub read: Amount,
}

impl std::fmt::Debug for Rejects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rejects").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Rejects {
    /// Keeps rejects in files that were just created.
    pub fn new(file: RejectFile, limit: Limit, progress: &Arc<Progress>) -> Rejects {
        Rejects::of(Keep::Files(Box::new(file)), limit, progress.clone())
    }

    /// Keeps rejects in reserved files. They are added to the files when their transactions commit.
    pub fn recorded(
        file: RejectFile,
        limit: Limit,
        progress: &Arc<Progress>,
        earlier: Earlier,
    ) -> Rejects {
        Rejects { earlier: Some(earlier), ..Rejects::new(file, limit, progress) }
    }

    /// Passes rejects to a function and keeps none. There is no limit.
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

    /// Whether the load fails because there were too many rejects.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Acquire)
    }

    /// Adds a rejected record.
    ///
    /// # Errors
    ///
    /// The files cannot be written, or the limit is exceeded.
    pub fn add(&self, reject: &Reject, bytes: &[u8], eol: Eol) -> Result<(), Error> {
        self.put(reject, |file| file.add(reject, bytes, eol))
    }

    /// Adds a rejected record that is too long for memory.
    ///
    /// # Errors
    ///
    /// As for [`Rejects::add`], or the record cannot be read.
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

    /// Begins to add rejects to the files. Until the block is dropped, no other lane can add any.
    pub fn block(&self) -> Block<'_> {
        Block { keep: self.lock() }
    }

    /// Creates an unnamed file beside the reject file, for a record that is too long for memory,
    /// until it is known whether the record is rejected. Returns `None` if rejects are not kept.
    ///
    /// # Errors
    ///
    /// The folder is not writable, or another program's file has the temporary name.
    pub fn spool(&self) -> Result<Option<File>, Error> {
        // Keep the lock until the name is removed: another lane may be about to use the same name.
        let kept = self.lock();
        let Keep::Files(file) = &*kept else { return Ok(None) };
        let mut name = file.path.clone().into_os_string();
        name.push(".part");
        let path = Path::new(&name);
        // A load that was killed may have left the file, and then it is empty: its name is removed
        // before the first byte is written. The lock of the reject file prevents other loads from
        // using the name.
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

    /// Which files have rejects besides the first one, and why.
    pub fn more(&self) -> Option<String> {
        match &*self.lock() {
            Keep::Files(file) => file.more(),
            Keep::Told(_) => None,
        }
    }

    /// Checks the limit at the end of the input, and makes the files durable before the commit that
    /// leaves these records out. If the load is recorded, the files are durable already. Returns
    /// the rejects, in records and lines.
    ///
    /// # Errors
    ///
    /// As for [`Rejects::add`].
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

    /// Writes what follows the last record, and makes the files durable.
    ///
    /// # Errors
    ///
    /// As for [`Rejects::add`].
    pub fn end(&self) -> Result<(), Error> {
        self.block().end()
    }

    /// Removes the files if no record was rejected. Otherwise the next load would find empty files.
    /// Keeps a file that has something of an earlier load.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn remove_if_empty(&self) -> Result<(), Error> {
        let rejected = self.rejected().records;
        let Keep::Files(file) = &*self.lock() else { return Ok(()) };
        // Reserved files are removed when their lock is released.
        if file.held || rejected > 0 || self.is_recorded() {
            return Ok(());
        }
        let reasons = (!file.reasons_held).then(|| side_path(&file.path));
        for path in std::iter::once(file.path.clone()).chain(reasons) {
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
        // The user should find all rejects in the file. The load fails in any case.
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

/// The exclusive right to add rejects to the files of a recorded load.
pub struct Block<'r> {
    keep: MutexGuard<'r, Keep>,
}

impl Block<'_> {
    /// Adds the rejects of a transaction. Returns what to record of the files that have them; the
    /// files are durable.
    ///
    /// # Errors
    ///
    /// As for [`Rejects::add`], or the transaction of an earlier block was not committed.
    pub fn write(&mut self, spool: &mut Spool) -> Result<Vec<Kept>, Error> {
        self.put(spool, false)
    }

    /// Adds the rejects of a transaction that is never committed, so that the user can examine
    /// them.
    ///
    /// # Errors
    ///
    /// As for [`Block::write`].
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
    /// As for [`Rejects::add`].
    pub fn end(&mut self) -> Result<(), Error> {
        let Keep::Files(file) = &mut *self.keep else { return Ok(()) };
        file.end().and_then(|()| file.sync()).map_err(|e| file.failed(&e))
    }

    /// Records that the transaction is committed.
    pub fn committed(mut self) {
        if let Keep::Files(file) = &mut *self.keep {
            file.block_is_committed();
        }
    }
}

/// Checks that [`RejectFile::create`] can create or open the files, and creates none. Another
/// program may still create them before that function does.
///
/// # Errors
///
/// As for [`RejectFile::create`].
pub fn check_free(path: &Path, existing: Existing) -> Result<(), Error> {
    let folder = folder_of(path).join(".");
    let free = |path: &Path| match existing {
        Existing::Error if fs::symlink_metadata(path).is_ok() => Err(Errno::EEXIST),
        _ if path.exists() => access(path, AccessFlags::W_OK),
        _ => access(&folder, AccessFlags::W_OK | AccessFlags::X_OK),
    };
    let both = free(path).and_then(|()| free(&side_path(path)));
    both.map_err(|e| not_created(path, &e.into()))
}

/// The error for reject files that cannot be created.
pub fn not_created(path: &Path, error: &io::Error) -> Error {
    let failed = Error::io("create the reject file", &path.display().to_string(), error);
    match error.kind() {
        io::ErrorKind::AlreadyExists => owned::already_there(failed),
        io::ErrorKind::InvalidData => {
            failed.with_hint("rejects of files with other columns need a separate file")
        }
        _ => failed,
    }
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file with the reasons: the name of the reject file with `.jsonl` added.
pub fn side_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".jsonl");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests;
