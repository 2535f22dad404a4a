//! The reject files: the records in one, the reasons in the other, and more pairs if necessary.

use super::line::{may_stay_open, parts, Quotes, TAIL};
use super::output::Output;
use super::owned::{self, FileLock, Kept, Reserved};
use super::{folder_of, side_path, Amount, Existing, Reject};
use crate::error::{Error, Kind};
use crate::frame::excel_delimiter;
use pgsluice_core::scan::{Dialect, Eol, Next, Record, Scanner, Splitter};
use pgsluice_core::sink::{HEADER, TRAILER};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// How many bytes are searched for the line end of a file.
const HEAD: u64 = 1 << 20;

/// The form of the reject file: that of the files whose records it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectForm<'a> {
    /// lines by these rules, after the source's header line, if it has one
    Lines(&'a Dialect, Option<&'a [u8]>),
    /// tuples between the header and the trailer of PGCOPY
    Tuples,
}

/// The two files, open for writing.
///
/// In one file, at most one record may leave a quote open, such as the last record of a file that
/// was cut off. A second such record would close the quote, and all between would become one value.
/// So it begins another file.
#[derive(Debug)]
pub struct RejectFile {
    pub(super) path: PathBuf,
    /// the name of the first file; numbers are added to it for the others
    pub(super) first: PathBuf,
    /// number of files
    files: u32,
    existing: Existing,
    /// it has rejects of an earlier load
    pub(super) held: bool,
    /// the file of reasons has some of an earlier load
    pub(super) reasons_held: bool,
    /// one of its records leaves a quote open
    open: bool,
    /// the source's header line, if it has one
    header: Option<Vec<u8>>,
    /// the line end of the file: that of the header or of the first record
    eol: Option<Vec<u8>>,
    /// its last line has no end yet, since an earlier load was killed or the file was edited
    cut_off: bool,
    /// the rules of its lines; `None` for tuples
    dialect: Option<Dialect>,
    records: Output,
    side: Output,
    /// for a load that is recorded: what belongs to committed transactions
    owned: Option<Owned>,
}

/// What a recorded load keeps of its reject files.
#[derive(Debug)]
struct Owned {
    /// rejects in the open pair
    amount: Amount,
    /// earlier pairs that the current block has written to
    ended: Vec<Kept>,
    /// a block was written, and it is not known that its transaction is committed
    pending: bool,
    /// that block is from a load that has exceeded its limit: its transaction is never committed
    shown: bool,
    /// the last field: when it is dropped, empty files are removed
    _lock: FileLock,
}

impl RejectFile {
    /// Creates `path` and `path.jsonl`, and writes what precedes the records.
    ///
    /// # Errors
    ///
    /// A file already exists ([`io::ErrorKind::AlreadyExists`]) although it must not, or cannot be
    /// written. Then no new file is left.
    pub fn create(path: &Path, existing: Existing, form: RejectForm) -> io::Result<RejectFile> {
        let (mut records, side, [held, reasons_held]) = pair(path, existing)?;
        let (dialect, header) = match form {
            RejectForm::Lines(dialect, header) => (Some(dialect), header),
            RejectForm::Tuples => (None, None),
        };
        let (eol, cut_off) = lines_of(&mut records, dialect)?;
        let mut file = RejectFile {
            path: path.to_owned(),
            first: path.to_owned(),
            files: 1,
            existing,
            held,
            reasons_held,
            // The rejects of an earlier load may leave a quote open.
            open: held && may_stay_open(dialect),
            header: header.map(<[u8]>::to_vec),
            eol,
            cut_off,
            dialect: dialect.cloned(),
            records,
            side,
            owned: None,
        };
        file.begin()?;
        Ok(file)
    }

    /// Continues in files that are reserved for a recorded load. What precedes the records is
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
        let (eol, cut_off) = lines_of(&mut records, dialect)?;
        let (held, last) = (records.bytes > 0, pairs.last().cloned().unwrap_or_default());
        let amount = Amount { records: last.records, lines: last.lines };
        Ok(RejectFile {
            path: last.file.into(),
            first: lock.path.clone(),
            files: pairs.len() as u32,
            existing,
            held,
            reasons_held: side.bytes > 0,
            open: held && may_stay_open(dialect),
            header: header.map(<[u8]>::to_vec),
            eol,
            cut_off,
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

    /// Begins the block of a transaction, or a block that is only `shown`.
    ///
    /// # Errors
    ///
    /// The transaction of an earlier block was not committed. Nothing may follow that block, except
    /// that shown blocks may follow each other.
    pub(super) fn begin_block(&mut self, shown: bool) -> Result<(), Error> {
        match &mut self.owned {
            Some(owned) if owned.pending && !(shown && owned.shown) => {
                // The error of that transaction gives the reason.
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

    /// Makes a block durable. Returns what to record of each pair to which it was written.
    ///
    /// # Errors
    ///
    /// As for [`RejectFile::sync`].
    pub(super) fn end_block(&mut self) -> io::Result<Vec<Kept>> {
        self.sync()?;
        let now = self.kept();
        let ended = self.owned.iter_mut().flat_map(|owned| owned.ended.drain(..));
        Ok(ended.chain([now]).collect())
    }

    /// Records that the transaction of the block is committed.
    pub(super) fn block_is_committed(&mut self) {
        self.owned.iter_mut().for_each(|owned| owned.pending = false);
    }

    fn kept(&self) -> Kept {
        let amount = self.owned.as_ref().map_or(Amount::default(), |owned| owned.amount);
        owned::of(&self.path, &self.records, &self.side, (amount.records, amount.lines))
    }

    /// Writes what precedes the records. If rejects are appended, it is there already.
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

    /// Checks that a file to which rejects are appended begins with the names of the source's header.
    /// Under others, their fields would be those of other columns.
    ///
    /// # Errors
    ///
    /// It begins with other names ([`io::ErrorKind::InvalidData`]), or cannot be read.
    pub fn check_header(&mut self) -> io::Result<()> {
        let (Some(header), Some(dialect)) = (&self.header, &self.dialect) else { return Ok(()) };
        if !self.held {
            return Ok(());
        }
        // There may be no header, but only a line before it that names the delimiter.
        let Some(names) = names_of(header, dialect) else { return Ok(()) };
        let found = self.records.head(HEAD)?;
        match names_of(&found, dialect) {
            Some(found) if found == names => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it begins with another header than the input",
            )),
        }
    }

    /// Continues in another pair of files.
    fn go_on(&mut self) -> io::Result<()> {
        self.sync()?;
        let (kept, replaced) = (self.kept(), self.existing == Existing::Replace);
        self.take_next_name();
        // Nothing is in the new pair yet.
        (self.held, self.open, self.cut_off) = (false, false, false);
        if let Some(owned) = &mut self.owned {
            owned.ended.push(kept);
            owned.amount = Amount::default();
            (self.records, self.side) = owned::outputs(&self.path, 0)?;
            if !replaced && self.records.length()? + self.side.length()? > 0 {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            self.records.cut()?;
            return self.side.cut();
        }
        loop {
            let held;
            (self.records, self.side, [held, _]) = pair(&self.path, self.existing)?;
            if !held {
                return self.begin();
            }
            // The records of an earlier load may leave a quote open there.
            self.take_next_name();
        }
    }

    /// Sets the name of the next pair of files. Do this before they are opened: an error names them.
    fn take_next_name(&mut self) {
        self.files += 1;
        let mut name = self.first.clone().into_os_string();
        name.push(format!(".{}", self.files));
        self.path = name.into();
    }

    /// Writes what precedes a record: for a recorded load, the complete reason, so that no record is
    /// without a reason, even if the program is killed; and the end of a line that was cut off, so
    /// that the record does not continue it.
    fn precede(&mut self, reject: &Reject, eol: Eol) -> io::Result<()> {
        if let Some(owned) = &mut self.owned {
            owned.amount.records += 1;
            owned.amount.lines += reject.lines;
            self.describe(reject)?;
            self.side.flush()?;
            if self.records.bytes == 0 {
                self.begin()?;
            }
        }
        if std::mem::take(&mut self.cut_off) {
            let end = self.eol.as_deref().or(eol.bytes()).unwrap_or(b"\n");
            self.records.write_all(end)?;
        }
        Ok(())
    }

    /// Which files there are besides the first one, and why.
    pub(super) fn more(&self) -> Option<String> {
        let (first, last) = (self.first.display(), self.path.display());
        (self.files > 1).then(|| {
            format!("rejects that leave a quote open are in separate files: {first} to {last}")
        })
    }

    /// Adds a record: its original bytes to one file, its reason to the other. The lines of its
    /// source end with `eol`.
    ///
    /// # Errors
    ///
    /// The disk is full or the file cannot be written. Then the load must fail, since the reject
    /// would be lost.
    pub fn add(&mut self, reject: &Reject, bytes: &[u8], eol: Eol) -> io::Result<()> {
        let quotes = Quotes::new(io::sink(), self.dialect.as_ref(), eol);
        let open = quotes.ends_open(bytes);
        if open && self.open {
            self.go_on()?;
        }
        self.open |= open;
        self.precede(reject, eol)?;
        self.put_record(bytes, eol)?;
        self.follow(reject)
    }

    /// As [`RejectFile::add`], for a record that is too long for memory.
    ///
    /// # Errors
    ///
    /// As for [`RejectFile::add`], or the record cannot be read.
    pub fn add_from(
        &mut self,
        reject: &Reject,
        bytes: &mut impl io::Read,
        eol: Eol,
    ) -> io::Result<()> {
        if self.open {
            // Whether this record closes the quote is known only after it is written.
            self.go_on()?;
        }
        self.precede(reject, eol)?;
        let mut quotes = Quotes::new(&mut self.records, self.dialect.as_ref(), eol);
        // All but the last bytes, which may be its line end and what affects the line end.
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

    /// Writes what follows the last record. PGCOPY without that, as after a load that failed, can
    /// still be read.
    pub(super) fn end(&mut self) -> io::Result<()> {
        // The header of reserved files is written with the first record.
        let begun = self.owned.is_none() || self.records.bytes > 0;
        match self.dialect {
            None if begun => self.records.write_all(TRAILER),
            _ => Ok(()),
        }
    }

    /// Makes the files durable. Call this before the commit that leaves the rejects out.
    ///
    /// # Errors
    ///
    /// As for [`RejectFile::add`].
    pub fn sync(&mut self) -> io::Result<()> {
        // The reasons first: after a loss of power, a record without a reason would be taken for
        // another program's.
        for file in [&mut self.side, &mut self.records] {
            file.sync()?;
        }
        // The names are durable only after their folder is.
        let synced = File::open(folder_of(&self.path)).and_then(|folder| folder.sync_all());
        synced.or_else(|e| if cannot_be_synced(&e) { Ok(()) } else { Err(e) })
    }

    pub(super) fn failed(&self, error: &io::Error) -> Error {
        Error::io("write", &self.path.display().to_string(), error)
    }

    /// Writes a record with its line end. The last record of a file may lack its line end, and the
    /// next record must not continue its line. The files of a load may have different line ends,
    /// which COPY would reject in one file. So the usual line end of the source is replaced by that
    /// of this file. Any other end is an error of the record and is kept.
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

/// Whether this is the error of a folder that cannot be read or synchronized. For PostgreSQL's
/// `fsync_fname_ext`, this is no error, either.
pub(super) fn cannot_be_synced(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EBADF | libc::EINVAL))
}

/// The fields of a header, without a line before it that names the delimiter; `None` if it cannot be
/// read.
fn names_of(bytes: &[u8], dialect: &Dialect) -> Option<Vec<Vec<u8>>> {
    let bytes = excel_delimiter(bytes).map_or(bytes, |(_, length)| &bytes[length..]);
    let mut record = Record::default();
    let whole = Scanner::new(bytes, true, dialect, Eol::Unknown).next(&mut record);
    (whole == Ok(Next::Record))
        .then(|| (0..record.len()).map(|i| record.field(bytes, i).1.to_vec()).collect())
}

/// Returns the line end of a file of records, if its first record shows one, and whether its last
/// line was cut off.
fn lines_of(
    records: &mut Output,
    dialect: Option<&Dialect>,
) -> io::Result<(Option<Vec<u8>>, bool)> {
    // A new file may not be open for reading.
    let (Some(dialect), 1..) = (dialect, records.length()?) else { return Ok((None, false)) };
    let mut splitter = Splitter::new(dialect, Eol::Unknown);
    splitter.feed(&records.head(HEAD)?);
    Ok((splitter.eol().bytes().map(<[u8]>::to_vec), records.is_cut_off()?))
}

/// Opens the file of records and the file of reasons. Returns also for each whether it has some of
/// an earlier load.
fn pair(path: &Path, existing: Existing) -> io::Result<(Output, Output, [bool; 2])> {
    let open = |path: &Path| {
        let mut how = OpenOptions::new();
        match existing {
            Existing::Error => how.write(true).create_new(true),
            Existing::Append => how.read(true).append(true).create(true),
            Existing::Replace => how.write(true).create(true).truncate(true),
        };
        how.open(path)
    };
    let records = open(path)?;
    match open(&side_path(path)) {
        Ok(side) => {
            let held = [records.metadata()?.len() > 0, side.metadata()?.len() > 0];
            let (records, mut side) = (Output::new(records), Output::new(side));
            side.end_line()?;
            Ok((records, side, held))
        }
        Err(e) => {
            if existing == Existing::Error {
                // This process has just created the file, and it is still empty.
                std::fs::remove_file(path)?;
            }
            Err(e)
        }
    }
}
