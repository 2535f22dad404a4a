//! The reject files: the records in one, the reasons in the other, and more pairs where need be.

use super::line::{parts, Quotes, TAIL};
use super::output::Output;
use super::owned::{self, FileLock, Kept, Reserved};
use super::{side_path, Amount, Existing, Reject};
use crate::error::{Error, Kind};
use pgsluice_core::scan::{Dialect, Eol, Splitter};
use pgsluice_core::sink::{HEADER, TRAILER};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// How many bytes are looked at to find out what the lines of a file end with.
const HEAD: u64 = 1 << 20;

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
    pub(super) path: PathBuf,
    /// the name of the first one, to which numbers are added
    pub(super) first: PathBuf,
    /// how many there are
    files: u32,
    existing: Existing,
    /// an earlier load's rejects are in it
    pub(super) held: bool,
    /// a record of it leaves a quote open
    open: bool,
    /// the source's header line, if it had one
    header: Option<Vec<u8>>,
    /// what its lines end with: as those of the header, or of the first record
    eol: Option<Vec<u8>>,
    /// the rules of its lines; none for tuples
    dialect: Option<Dialect>,
    records: Output,
    side: Output,
    /// what belongs to committed transactions, in a load that is recorded
    owned: Option<Owned>,
}

/// What a load that is recorded keeps of its reject files.
#[derive(Debug)]
struct Owned {
    /// rejects in the pair that is open
    amount: Amount,
    /// earlier pairs that the current block has written to
    ended: Vec<Kept>,
    /// a block was written whose transaction is not known to be committed
    pending: bool,
    /// that block is one of a load that is beyond its limit: its transaction is never committed
    shown: bool,
    /// the last field: empty files are removed when they are closed
    _lock: FileLock,
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
            owned: None,
        };
        file.begin()?;
        Ok(file)
    }

    /// Goes on in files that are reserved for a load that is recorded. What precedes the records is
    /// written with the first of them.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn reserved(
        reserved: Reserved,
        existing: Existing,
        form: RejectForm,
    ) -> io::Result<RejectFile> {
        let Reserved { mut records, side, pairs, lock } = reserved;
        let (dialect, header) = match form {
            RejectForm::Lines(dialect, header) => (Some(dialect), header),
            RejectForm::Tuples => (None, None),
        };
        let eol = match dialect {
            Some(dialect) => {
                let mut splitter = Splitter::new(dialect, Eol::Unknown);
                splitter.feed(&records.head(HEAD)?);
                splitter.eol().bytes().map(<[u8]>::to_vec)
            }
            None => None,
        };
        let (held, last) = (records.bytes > 0, pairs.last().cloned().unwrap_or_default());
        let amount = Amount { records: last.records, lines: last.lines };
        Ok(RejectFile {
            path: last.file.into(),
            first: lock.path.clone(),
            files: pairs.len() as u32,
            existing,
            held,
            open: held,
            header: header.map(<[u8]>::to_vec),
            eol,
            dialect: dialect.cloned(),
            records,
            side,
            owned: Some(Owned {
                amount,
                ended: Vec::new(),
                pending: false,
                shown: false,
                _lock: lock,
            }),
        })
    }

    /// Begins a block of a transaction, or one that is only `shown`.
    ///
    /// # Errors
    ///
    /// The transaction of an earlier block was not committed: nothing may follow that block, except
    /// that shown ones follow each other.
    pub(super) fn begin_block(&mut self, shown: bool) -> Result<(), Error> {
        match &mut self.owned {
            Some(owned) if owned.pending && !(shown && owned.shown) => {
                // The error of that transaction says why.
                Err(Error::new("the rejects of another lane are not committed")
                    .of_kind(Kind::Cancelled))
            }
            Some(owned) => {
                (owned.pending, owned.shown) = (true, shown);
                Ok(())
            }
            None => Err(Error::defect("the reject files belong to no recorded load")),
        }
    }

    /// Makes a block durable; gives what is to be recorded of each pair that it has written to.
    ///
    /// # Errors
    ///
    /// As [`RejectFile::sync`].
    pub(super) fn end_block(&mut self) -> io::Result<Vec<Kept>> {
        self.sync()?;
        let now = self.kept();
        let ended = self.owned.iter_mut().flat_map(|owned| owned.ended.drain(..));
        Ok(ended.chain([now]).collect())
    }

    /// The transaction of the block is committed.
    pub(super) fn block_is_committed(&mut self) {
        self.owned.iter_mut().for_each(|owned| owned.pending = false);
    }

    fn kept(&self) -> Kept {
        let amount = self.owned.as_ref().map_or(Amount::default(), |owned| owned.amount);
        owned::of(&self.path, &self.records, &self.side, (amount.records, amount.lines))
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
        let (kept, replaced) = (self.kept(), self.existing == Existing::Replace);
        // An error names it.
        self.path = name.into();
        if let Some(owned) = &mut self.owned {
            owned.ended.push(kept);
            owned.amount = Amount::default();
            (self.records, self.side) = owned::outputs(&self.path, 0)?;
            if !replaced && self.records.length()? + self.side.length()? > 0 {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            self.records.cut()?;
            self.side.cut()?;
            (self.held, self.open) = (false, false);
            return Ok(());
        }
        let held;
        (self.records, self.side, held) = pair(&self.path, self.existing)?;
        (self.held, self.open) = (held, held);
        self.begin()
    }

    /// Writes what precedes a record in the files of a load that is recorded: all of its reason, so
    /// that no record is without one, whenever the program is killed.
    fn precede(&mut self, reject: &Reject) -> io::Result<()> {
        let Some(owned) = &mut self.owned else { return Ok(()) };
        owned.amount.records += 1;
        owned.amount.lines += reject.lines;
        self.describe(reject)?;
        self.side.flush()?;
        if self.records.bytes == 0 {
            self.begin()?;
        }
        Ok(())
    }

    /// Which files there are beside the first one, and why.
    pub(super) fn more(&self) -> Option<String> {
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
        self.precede(reject)?;
        self.put_record(bytes, eol)?;
        self.follow(reject)
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
        self.precede(reject)?;
        let mut quotes = Quotes::new(&mut self.records, self.dialect.as_ref(), eol);
        // All but what may be its line end, and what may stand before that.
        io::copy(&mut bytes.take(reject.length.saturating_sub(TAIL)), &mut quotes)?;
        let mut tail = Vec::new();
        bytes.take(TAIL).read_to_end(&mut tail)?;
        self.open = quotes.ends_open(&tail);
        self.put_record(&tail, eol)?;
        self.follow(reject)
    }

    fn follow(&mut self, reject: &Reject) -> io::Result<()> {
        match self.owned {
            Some(_) => Ok(()),
            None => self.describe(reject),
        }
    }

    fn describe(&mut self, reject: &Reject) -> io::Result<()> {
        serde_json::to_writer(&mut self.side, reject)?;
        self.side.write_all(b"\n")
    }

    /// Writes what follows the last record. PGCOPY that breaks off before that, as
    /// in a load that fails, is read all the same.
    pub(super) fn end(&mut self) -> io::Result<()> {
        // The header of reserved files is written with the first record.
        let begun = self.owned.is_none() || self.records.bytes > 0;
        match self.dialect {
            None if begun => self.records.write_all(TRAILER),
            _ => Ok(()),
        }
    }

    /// Makes everything durable. Called before the commit that leaves the rejects out.
    ///
    /// # Errors
    ///
    /// As [`RejectFile::add`].
    pub fn sync(&mut self) -> io::Result<()> {
        for file in [&mut self.records, &mut self.side] {
            file.sync()?;
        }
        // The names are durable only when their folder is.
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    pub(super) fn failed(&self, error: &io::Error) -> Error {
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
fn pair(path: &Path, existing: Existing) -> io::Result<(Output, Output, bool)> {
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
            Ok((Output::new(records), Output::new(side), held))
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
