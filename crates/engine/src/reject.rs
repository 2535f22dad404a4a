//! Rejects: the policy, the limit, and the two files that hold them.
//!
//! The reject file holds the original bytes of each rejected record, so that
//! it can be mended and loaded again; beside it `<file>.jsonl` says of each
//! record where it stood and why it was refused.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::report::Progress;
use crate::text::{text, Text};
use pgsluice_core::scan::{Dialect, Eol};
use pgsluice_core::sink::{HEADER, TRAILER};
use serde::Serialize;

mod limit;
mod line;

pub use limit::{Amount, Limit};
use line::{parts, Quotes, TAIL};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// What the reject file is, as the files are whose records it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectForm<'a> {
    /// lines by these rules, behind the source's header line, if it had one
    Lines(&'a Dialect, Option<&'a [u8]>),
    /// tuples between the header and the trailer of PGCOPY
    Tuples,
}

/// The two files, open for writing.
///
/// Of the records of one file, one at most leaves a quote open, as the last one of a file that
/// was cut off does: the next such record would close the quote, and make one value of all
/// between. It begins another file.
#[derive(Debug)]
pub struct RejectFile {
    path: PathBuf,
    /// the name of the first one, to which numbers are added
    first: PathBuf,
    /// how many there are
    files: u32,
    existing: Existing,
    /// an earlier load's rejects are in it
    held: bool,
    /// a record of it leaves a quote open
    open: bool,
    /// the source's header line, if it had one
    header: Option<Vec<u8>>,
    /// what its lines end with: as those of the header, or of the first record
    eol: Option<Vec<u8>>,
    /// the rules of its lines; none for tuples
    dialect: Option<Dialect>,
    records: BufWriter<File>,
    side: BufWriter<File>,
}

impl RejectFile {
    /// Creates `path` and `path.jsonl`, and writes what precedes the records.
    ///
    /// # Errors
    ///
    /// Either file exists already ([`io::ErrorKind::AlreadyExists`]), and that is an error,
    /// or cannot be written. No new file is left behind then.
    pub fn create(path: &Path, existing: Existing, form: RejectForm) -> io::Result<RejectFile> {
        let (records, side, held) = pair(path, existing)?;
        let (dialect, header) = match form {
            RejectForm::Lines(dialect, header) => (Some(dialect), header),
            RejectForm::Tuples => (None, None),
        };
        let mut file = RejectFile {
            path: path.to_owned(),
            first: path.to_owned(),
            files: 1,
            existing,
            held,
            // What an earlier load left there may leave one open.
            open: held,
            header: header.map(<[u8]>::to_vec),
            eol: None,
            dialect: dialect.cloned(),
            records,
            side,
        };
        file.begin()?;
        Ok(file)
    }

    /// Writes what precedes the records.
    fn begin(&mut self) -> io::Result<()> {
        if self.held {
            return Ok(());
        }
        if let Some(header) = self.header.clone() {
            return self.put_record(&header, Eol::Unknown);
        }
        match self.dialect {
            Some(_) => Ok(()),
            None => self.records.write_all(HEADER),
        }
    }

    /// Goes on in another pair of files.
    fn go_on(&mut self) -> io::Result<()> {
        self.sync()?;
        self.files += 1;
        let mut name = self.first.clone().into_os_string();
        name.push(format!(".{}", self.files));
        // An error names it.
        self.path = name.into();
        let held;
        (self.records, self.side, held) = pair(&self.path, self.existing)?;
        (self.held, self.open) = (held, held);
        self.begin()
    }

    /// Which files there are beside the first one, and why.
    fn more(&self) -> Option<String> {
        let (first, last) = (self.first.display(), self.path.display());
        (self.files > 1).then(|| {
            format!("rejects that leave a quote open are in separate files: {first} to {last}")
        })
    }

    /// Adds a record: its original bytes to the one file, its story to the other. The
    /// lines of its source end with `eol`.
    ///
    /// # Errors
    ///
    /// The disk is full or the file cannot be written: the load must fail then,
    /// since a reject that is kept nowhere would be lost.
    pub fn add(&mut self, reject: &Reject, bytes: &[u8], eol: Eol) -> io::Result<()> {
        let quotes = Quotes::new(io::sink(), self.dialect.as_ref(), eol);
        let open = quotes.ends_open(bytes);
        if open && self.open {
            self.go_on()?;
        }
        self.open |= open;
        self.put_record(bytes, eol)?;
        self.describe(reject)
    }

    /// As [`RejectFile::add`], for a record that is too long to be held.
    ///
    /// # Errors
    ///
    /// As [`RejectFile::add`], or the record cannot be read.
    pub fn add_from(
        &mut self,
        reject: &Reject,
        bytes: &mut impl io::Read,
        eol: Eol,
    ) -> io::Result<()> {
        if self.open {
            // Whether it closes the quote comes out when it is written.
            self.go_on()?;
        }
        let mut quotes = Quotes::new(&mut self.records, self.dialect.as_ref(), eol);
        // All but what may be its line end, and what may stand before that.
        io::copy(&mut bytes.take(reject.length.saturating_sub(TAIL)), &mut quotes)?;
        let mut tail = Vec::new();
        bytes.take(TAIL).read_to_end(&mut tail)?;
        self.open = quotes.ends_open(&tail);
        self.put_record(&tail, eol)?;
        self.describe(reject)
    }

    fn describe(&mut self, reject: &Reject) -> io::Result<()> {
        serde_json::to_writer(&mut self.side, reject)?;
        self.side.write_all(b"\n")
    }

    /// Writes what follows the last record. PGCOPY that breaks off before that, as
    /// in a load that fails, is read all the same.
    fn end(&mut self) -> io::Result<()> {
        match self.dialect {
            Some(_) => Ok(()),
            None => self.records.write_all(TRAILER),
        }
    }

    /// Makes everything durable. Called before the commit that leaves the rejects out.
    ///
    /// # Errors
    ///
    /// As [`RejectFile::add`].
    pub fn sync(&mut self) -> io::Result<()> {
        for file in [&mut self.records, &mut self.side] {
            file.flush()?;
            file.get_ref().sync_all()?;
        }
        // The names are durable only when their folder is.
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::io("write", &self.path.display().to_string(), error)
    }

    /// A record that ended with the file may lack its line end: the next one must not
    /// run into it. Those of several files may end differently, which COPY would refuse
    /// in one: the end of the file's own lines becomes that of this file. Any other end
    /// is the record's own fault and stays.
    fn put_record(&mut self, bytes: &[u8], eol: Eol) -> io::Result<()> {
        let Some(dialect) = &self.dialect else {
            return self.records.write_all(bytes);
        };
        let (content, end) = parts(bytes, dialect);
        let own = eol.bytes().unwrap_or(if end.is_empty() { b"\n" } else { end });
        let wanted = self.eol.get_or_insert_with(|| own.to_vec());
        let of_its_own = !end.is_empty() && end != own;
        self.records.write_all(content)?;
        self.records.write_all(if of_its_own { end } else { wanted })
    }
}

/// The file of these records, the one that says why of each, and whether the first has some.
fn pair(path: &Path, existing: Existing) -> io::Result<(BufWriter<File>, BufWriter<File>, bool)> {
    let open = |path: &Path| {
        let mut how = OpenOptions::new();
        match existing {
            Existing::Error => how.write(true).create_new(true),
            Existing::Append => how.append(true).create(true),
            Existing::Replace => how.write(true).create(true).truncate(true),
        };
        how.open(path)
    };
    let records = open(path)?;
    match open(&side_path(path)) {
        Ok(side) => {
            let held = records.metadata()?.len() > 0;
            Ok((BufWriter::new(records), BufWriter::new(side), held))
        }
        Err(e) => {
            if existing == Existing::Error {
                // Ours, just created and still empty.
                std::fs::remove_file(path)?;
            }
            Err(e)
        }
    }
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
    keep: Mutex<(Keep, Amount)>,
    limit: Limit,
    /// the records of the load that were read so far
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Rejects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rejects").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Rejects {
    /// Kept in files that were just created.
    pub fn new(file: RejectFile, limit: Limit, progress: &Arc<Progress>) -> Rejects {
        let keep = Mutex::new((Keep::Files(Box::new(file)), Amount::default()));
        Rejects { keep, limit, progress: progress.clone() }
    }

    /// Told and kept nowhere, without a limit.
    pub fn told(listener: Listener) -> Rejects {
        let keep = Mutex::new((Keep::Told(listener), Amount::default()));
        Rejects { keep, limit: Limit::None, progress: Arc::default() }
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
        let (keep, rejected) = &mut *self.lock();
        match keep {
            Keep::Files(file) => put(file).map_err(|e| file.failed(&e))?,
            Keep::Told(listener) => listener(reject),
        }
        rejected.records += 1;
        rejected.lines += reject.lines;
        if self.limit.exceeded(*rejected, self.progress.records.get()) {
            return Err(self.too_many(keep, *rejected));
        }
        Ok(())
    }

    /// A file without a name beside the reject file, for a record that is too
    /// long to be held in memory until it is known whether it is rejected; none where
    /// rejects are not kept.
    ///
    /// # Errors
    ///
    /// The folder cannot be written to.
    pub fn spool(&self) -> io::Result<Option<File>> {
        // Held until the name is gone: another lane may be about to take the same one.
        let kept = self.lock();
        let Keep::Files(file) = &kept.0 else { return Ok(None) };
        let mut name = file.path.clone().into_os_string();
        name.push(".part");
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(Path::new(&name))?;
        std::fs::remove_file(&name)?;
        Ok(Some(file))
    }

    /// Which files have rejects beside the first one, and why.
    pub fn more(&self) -> Option<String> {
        match &*self.lock() {
            (Keep::Files(file), _) => file.more(),
            (Keep::Told(_), _) => None,
        }
    }

    /// At the end of the input: the limit, and everything on disk before the
    /// commit that leaves these records out. Gives the rejects, in records and lines.
    ///
    /// # Errors
    ///
    /// As [`Rejects::add`].
    pub fn close(&self, read: Amount) -> Result<Amount, Error> {
        let (keep, rejected) = &mut *self.lock();
        if let Keep::Files(file) = keep {
            file.end().and_then(|()| file.sync()).map_err(|e| file.failed(&e))?;
        }
        if self.limit.exceeded_at_end(*rejected, read) {
            return Err(self.too_many(keep, *rejected));
        }
        Ok(*rejected)
    }

    /// Removes the files if no record was rejected: empty ones would only be in
    /// the way of the next load.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn remove_if_empty(&self) -> Result<(), Error> {
        let (Keep::Files(file), Amount { records: 0, .. }) = &*self.lock() else { return Ok(()) };
        if file.held {
            return Ok(());
        }
        for path in [file.path.clone(), side_path(&file.path)] {
            std::fs::remove_file(&path)
                .map_err(|e| Error::io("remove the empty", &path.display().to_string(), &e))?;
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Keep, Amount)> {
        self.keep.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn too_many(&self, keep: &mut Keep, rejected: Amount) -> Error {
        let verb = if rejected.records == 1 { "was" } else { "were" };
        let error = Error::data(format!(
            "{rejected} {verb} rejected, which is more than the limit of {}",
            self.limit
        ));
        let Keep::Files(file) = keep else { return error };
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

/// The side file of a reject file: the same name and `.jsonl`.
pub fn side_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".jsonl");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests;
