//! Reject files of a recorded load: which part of them belongs to committed transactions.
//!
//! The ledger and the files must agree after any crash. Each transaction appends its rejects to the
//! files as one block and makes them durable before its COMMIT. In the same transaction, it records
//! the new end of the files and the hash of all bytes before it. The following rules ensure that
//! the recorded part of a file consists of the blocks of the committed transactions, each of them
//! once:
//!
//! 1. Only the process that holds the lock of the first file writes to any of them. The lock is
//!    released only when the process ends.
//! 2. A load that continues an earlier one locks the files. It reads the recorded end after it has
//!    stopped that load; `once::record` explains why that load commits nothing later. It checks the
//!    hash and removes what follows: a block whose transaction was not committed. It removes only
//!    reasons that name sources of the load, and their records. A reason is written before its
//!    record, and synchronized before it, so a record without a reason is from another program. The
//!    trailer of PGCOPY is not a record.
//! 3. Within a process, one lane at a time appends and commits: a mutex is held from the first byte
//!    of a block to the outcome of its COMMIT. So only the last block can be uncommitted. If a
//!    COMMIT fails, or its outcome is unknown, no lane appends anything after it. If the limit is
//!    exceeded, each lane adds its uncommitted rejects for the user. After the first of these
//!    blocks, no lane commits rejects.
//! 4. While a lane holds the mutex, it waits for no other lane: constraints are checked as the rows
//!    arrive, and the only ledger rows that it locks exclusively are those of these files.
//!
//! A file that is missing or has other bytes is an error: its records are in no table and,
//! according to the ledger, nowhere else. When the load is complete, its rows for the files are
//! deleted, and the files belong to the user.

use super::output::Output;
use super::{side_path, Existing};
use crate::error::Error;
use nix::fcntl::{Flock, FlockArg};
use pgsluice_core::sink::{HEADER, TRAILER};
use serde::Serialize;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A pair of reject files, and how much of it belongs to committed transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// the name of the file with the records, without symbolic links in the folder
    pub file: String,
    /// its size in bytes
    pub bytes: u64,
    /// its hash, in the input format of `bytea`
    pub hash: String,
    /// size of the file with the reasons in bytes
    pub reasons_bytes: u64,
    /// its hash
    pub reasons_hash: String,
    /// number of rejected records in the pair
    pub records: u64,
    /// number of their lines
    pub lines: u64,
}

/// Reject files that are locked for a load. The last pair is open, positioned at its end.
#[derive(Debug)]
pub struct Reserved {
    pub(super) records: Output,
    pub(super) side: Output,
    /// all pairs; the last one is open
    pub(super) pairs: Vec<Kept>,
    pub(super) lock: FileLock,
}

/// The lock of the first pair. When it is released, empty files are removed.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: Flock<File>,
    pub path: PathBuf,
}

impl FileLock {
    /// Locks the pair whose file of records is `path`. Creates that file if it is missing.
    fn take(path: &Path) -> Result<FileLock, Error> {
        let file = open(path).map_err(|e| failed("create the reject file", path, &e))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(FileLock { _file: file, path: path.to_owned() }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(Error::new(format!(
                "the reject file {} is in use by another load",
                path.display()
            ))
            .with_hint("wait for that load, or end it, or name another file")),
            Err((_, errno)) => Err(failed("lock the reject file", path, &errno.into())),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let pair = [self.path.clone(), side_path(&self.path)];
        let empty = |path: &PathBuf| fs::metadata(path).map_or(true, |facts| facts.len() == 0);
        if pair.iter().all(empty) {
            // If a file cannot be removed, it does no harm: an empty file is treated as a missing
            // one.
            pair.iter().for_each(|path| drop(fs::remove_file(path)));
        }
    }
}

impl Reserved {
    /// Locks files that no earlier load has written for this one.
    ///
    /// # Errors
    ///
    /// The files exist although they must not, are in use, or cannot be written.
    pub fn fresh(path: &Path, existing: Existing) -> Result<Reserved, Error> {
        let free = || {
            let held = |path: &Path| fs::metadata(path).is_ok_and(|facts| facts.len() > 0);
            let names = [path.to_owned(), side_path(path), numbered(path, 2)];
            let found = names.iter().find(|name| existing == Existing::Error && held(name));
            found.map_or(Ok(()), |found| {
                let error = io::Error::from(io::ErrorKind::AlreadyExists);
                Err(already_there(failed("create the reject file", found, &error)))
            })
        };
        free()?;
        let lock = FileLock::take(path)?;
        // A load that held the lock may have written to the files before it ended.
        free()?;
        let whole = if existing == Existing::Append { u64::MAX } else { 0 };
        let opened = |path: &Path| outputs(path, whole).map_err(|e| failed("open", path, &e));
        let (mut name, mut last, mut pairs) = (path.to_owned(), opened(path)?, Vec::new());
        let mut number = 2;
        while whole > 0 && numbered(path, number).exists() {
            pairs.push(state(&name, &last, (0, 0)));
            name = numbered(path, number);
            last = opened(&name)?;
            number += 1;
        }
        if whole > 0 {
            // The first new reason must be a line by itself, also where it is checked later.
            last.1.end_line().map_err(|e| failed("write", &side_path(&name), &e))?;
        }
        pairs.push(state(&name, &last, (0, 0)));
        let mut reserved = Reserved { records: last.0, side: last.1, pairs, lock };
        reserved.cut()?;
        Ok(reserved)
    }

    /// Locks the files that an earlier load of these sources has written, in order, and removes
    /// uncommitted blocks from them.
    ///
    /// # Errors
    ///
    /// The files are in use, or their committed part has changed.
    pub fn again(kept: Vec<Kept>, sources: &[String]) -> Result<Reserved, Error> {
        let Some(first) = kept.first() else { return Err(Error::defect("no reject file")) };
        let owned = kept.iter().any(|kept| kept.bytes > 0);
        if owned && !Path::new(&first.file).exists() {
            return Err(lost(first, "is missing"));
        }
        let lock = FileLock::take(Path::new(&first.file))?;
        let mut last = None;
        for pair in &kept {
            last = Some(checked(pair, sources)?);
        }
        let Some((records, side)) = last else { return Err(Error::defect("no reject file")) };
        remove_begun(&lock.path, kept.len() as u32 + 1, sources)?;
        let mut reserved = Reserved { records, side, pairs: kept, lock };
        reserved.cut()?;
        Ok(reserved)
    }

    /// What to record of the files before anything is written to them.
    pub fn pairs(&self) -> &[Kept] {
        &self.pairs
    }

    fn cut(&mut self) -> Result<(), Error> {
        let cut = self.records.cut().and_then(|()| self.side.cut());
        cut.map_err(|e| failed("write", &self.lock.path, &e))
    }
}

/// Opens a pair, and checks that its recorded part has not changed.
fn checked(kept: &Kept, sources: &[String]) -> Result<(Output, Output), Error> {
    let path = Path::new(&kept.file);
    for (path, bytes) in [(path, kept.bytes), (side_path(path).as_path(), kept.reasons_bytes)] {
        if bytes > 0 && !path.exists() {
            let kept = Kept { file: path.display().to_string(), ..kept.clone() };
            return Err(lost(&kept, "is missing"));
        }
    }
    let read = || {
        let records = Output::read_in(open(path)?, kept.bytes)?;
        Ok((records, Output::read_in(open(&side_path(path))?, kept.reasons_bytes)?))
    };
    let (mut records, mut side) = read().map_err(|e| failed("read the reject file", path, &e))?;
    let same = |output: &Output, bytes: u64, hash: &str| {
        bytes == 0 || (output.bytes == bytes && output.hash() == hash)
    };
    let now = [
        (same(&records, kept.bytes, &kept.hash), path.to_owned()),
        (same(&side, kept.reasons_bytes, &kept.reasons_hash), side_path(path)),
    ];
    if let Some((_, path)) = now.iter().find(|(same, _)| !same) {
        let kept = Kept { file: path.display().to_string(), ..kept.clone() };
        return Err(lost(&kept, "was changed"));
    }
    if !follows(path, &records, &side, sources)? {
        return Err(Error::new(format!(
            "the reject file {} has more than this load has written, which is {} bytes, and {} in its .jsonl",
            kept.file, kept.bytes, kept.reasons_bytes
        ))
        .with_hint("move what follows into another file; a reject file is for one load until that is complete"));
    }
    let cut = records.cut().and_then(|()| side.cut());
    cut.map_err(|e| failed("write", path, &e))?;
    Ok((records, side))
}

/// Removes pairs that were begun in uncommitted transactions, from the last to the first, so that
/// there is never a gap in the numbers.
fn remove_begun(first: &Path, number: u32, sources: &[String]) -> Result<(), Error> {
    let mut begun = Vec::new();
    for number in number.. {
        let path = numbered(first, number);
        if !path.exists() && !side_path(&path).exists() {
            break;
        }
        let pair = outputs(&path, 0).map_err(|e| failed("read the reject file", &path, &e))?;
        if !follows(&path, &pair.0, &pair.1, sources)? {
            break;
        }
        begun.push(path);
    }
    for path in begun.iter().rev().flat_map(|path| [side_path(path), path.clone()]) {
        fs::remove_file(&path).map_err(|e| failed("remove", &path, &e))?;
    }
    Ok(())
}

/// Whether everything after the hashed bytes is a block of a load of these sources.
fn follows(
    path: &Path,
    records: &Output,
    side: &Output,
    sources: &[String],
) -> Result<bool, Error> {
    let look = || {
        if side.length()? <= side.bytes {
            return Ok(records.length()? <= records.bytes || only_trailer_follows(path, records)?);
        }
        let mut reasons = File::open(side_path(path))?;
        reasons.seek(SeekFrom::Start(side.bytes))?;
        let of_sources = |line: &[u8]| match serde_json::from_slice::<Value>(line) {
            Ok(reason) => {
                let file = reason["file"].as_str().and_then(|file| Path::new(file).file_name());
                file.is_some_and(|name| {
                    sources.iter().any(|s| Path::new(s).file_name() == Some(name))
                })
            }
            // The last line may be incomplete.
            Err(_) => !line.ends_with(b"\n") && b"{\"file\":".iter().zip(line).all(|(a, b)| a == b),
        };
        let mut reasons = BufReader::new(reasons);
        let mut line = Vec::new();
        while reasons.read_until(b'\n', &mut line)? > 0 {
            if !of_sources(&line) {
                return Ok(false);
            }
            line.clear();
        }
        Ok(true)
    };
    look().map_err(|e: io::Error| failed("read the reject file", path, &e))
}

/// Whether only the trailer of PGCOPY, or its first byte, follows the hashed bytes. The last
/// transaction writes it before its COMMIT, even without rejects.
fn only_trailer_follows(path: &Path, records: &Output) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut begin = Vec::new();
    (&mut file).take(HEADER.len() as u64).read_to_end(&mut begin)?;
    file.seek(SeekFrom::Start(records.bytes))?;
    let mut rest = Vec::new();
    file.take(TRAILER.len() as u64 + 1).read_to_end(&mut rest)?;
    Ok(records.bytes >= HEADER.len() as u64 && begin == HEADER && TRAILER.starts_with(&rest))
}

fn lost(kept: &Kept, what: &str) -> Error {
    Error::new(format!(
        "the reject file {} {what}: the load that this one continues has written to it",
        kept.file
    ))
    .with_hint(format!(
        "put it back as it was; if its records are not needed, use pgsluice loads forget {}",
        kept.file
    ))
}

/// Adds a hint to the error for reject files that already exist.
pub(super) fn already_there(error: Error) -> Error {
    error.with_hint(
        "the file and its .jsonl contain the rejects of an earlier load: use `reject-existing` append or replace, or {time} in the name",
    )
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::io(what, &path.display().to_string(), error)
}

/// Opens a file for reading and writing, or creates it. A symbolic link is an error: the name may
/// be from a row that another role has written, and a link in that role's folder could lead to any
/// file.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link"),
        _ => error,
    })
}

/// Opens the two files of a pair, and hashes at most `most` bytes of each.
pub(super) fn outputs(path: &Path, most: u64) -> io::Result<(Output, Output)> {
    Ok((Output::read_in(open(path)?, most)?, Output::read_in(open(&side_path(path))?, most)?))
}

/// What to record of a pair, with the number of records and lines in it.
pub(super) fn state(path: &Path, outputs: &(Output, Output), counts: (u64, u64)) -> Kept {
    of(path, &outputs.0, &outputs.1, counts)
}

pub(super) fn of(path: &Path, records: &Output, side: &Output, counts: (u64, u64)) -> Kept {
    Kept {
        file: path.display().to_string(),
        bytes: records.bytes,
        hash: records.hash(),
        reasons_bytes: side.bytes,
        reasons_hash: side.hash(),
        records: counts.0,
        lines: counts.1,
    }
}

/// The name of the pair with this number. The first pair has no number.
pub fn numbered(first: &Path, number: u32) -> PathBuf {
    let mut name = first.to_owned().into_os_string();
    name.push(format!(".{number}"));
    name.into()
}
