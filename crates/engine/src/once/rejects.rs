//! The reject files of a load in the ledger: which of their bytes belong to committed transactions.
//!
//! The ledger has rows only for loads that are not complete. If a load continues another one, it
//! takes over its rows, in the transaction that stops the other load and after the stop. It must
//! have all files that the other load has begun: which reject is of which file is not recorded.
//! `reject::owned` explains why files and rows agree.

use super::lookup::number;
use super::record::Target;
use crate::error::Error;
use crate::options::RejectOptions;
use crate::reject::{numbered, Amount, Kept, Reserved};
use crate::session::conn::Conn;
use serde_json::json;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The reject files of a load that begins.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// the files that it writes to
    pub reserved: Option<Reserved>,
    /// rejects of the loads that it continues
    pub rejected: Amount,
    /// how much of each file belongs to committed transactions
    kept: Vec<Kept>,
}

/// The loads of the sources that a load continues.
const OF_BEGUN: &str = "(SELECT s.load FROM pgsluice_loads.sources s WHERE s.number IN \
    (SELECT n::bigint FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n))";

/// Takes over the reject files of the loads that `load` continues, which are already stopped, and
/// reserves the files that it writes to. `names` are the names of its sources.
///
/// # Errors
///
/// A file is missing or has changed, belongs to another load, or cannot be written; or it has
/// rejects of a load that has begun other files as well.
pub(super) fn take_over(
    conn: &mut Conn,
    load: i64,
    target: &Target,
    begun: Option<&str>,
    names: Vec<String>,
    wanted: Option<&RejectOptions>,
) -> Result<Taken, Error> {
    let own = wanted.map(|wanted| absolute(&wanted.file)).transpose()?;
    let mut taken = match begun {
        Some(begun) => continued(conn, target, begun, names, own.as_deref())?,
        None => Taken::default(),
    };
    if let (Some(wanted), Some(own), None) = (wanted, own, &taken.reserved) {
        free(conn, target, &own)?;
        let reserved = Reserved::fresh(&own, wanted.existing)?;
        taken.kept.extend_from_slice(reserved.pairs());
        taken.reserved = Some(reserved);
    }
    record_kept(conn, load, &taken.kept)?;
    Ok(taken)
}

/// Takes the reject files of the loads that have begun these files from them. `own` is the file
/// that the load writes to.
fn continued(
    conn: &mut Conn,
    target: &Target,
    begun: &str,
    names: Vec<String>,
    own: Option<&Path>,
) -> Result<Taken, Error> {
    check_whole(conn, target, begun)?;
    let mut sources = names;
    let found = conn.query(
        &format!("SELECT name FROM pgsluice_loads.sources WHERE load IN {OF_BEGUN}"),
        &[Some(begun)],
    )?;
    sources.extend(found.into_iter().filter_map(|row| row.into_iter().next().flatten()));
    let mut taken = Taken::default();
    for group in groups(rows(conn, begun)?) {
        let is_own = own.is_some_and(|own| Path::new(&group[0].file) == own);
        let amount = group.iter().fold(Amount::default(), |sum, pair| {
            sum + Amount { records: pair.records, lines: pair.lines }
        });
        // There is nothing to take over, so the file is not even opened. Any role that may insert
        // into the table may have written the row, with the name of any file.
        if !is_own && (amount.records == 0 || group.iter().all(|pair| pair.bytes == 0)) {
            continue;
        }
        let reserved = match Reserved::again(group, &sources) {
            Ok(reserved) => reserved,
            // The file has no rejects of the earlier load, so nothing is lost.
            Err(_) if amount.records == 0 => continue,
            Err(error) => return Err(error),
        };
        taken.rejected += amount;
        taken.kept.extend_from_slice(reserved.pairs());
        if is_own {
            taken.reserved = Some(reserved);
        }
    }
    conn.query(
        &format!("DELETE FROM pgsluice_loads.reject_files WHERE load IN {OF_BEGUN}"),
        &[Some(begun)],
    )?;
    Ok(taken)
}

/// Checks that this load has all files of the loads whose rejects it takes over. When it is
/// complete, the reject files belong to the user.
fn check_whole(conn: &mut Conn, target: &Target, begun: &str) -> Result<(), Error> {
    let rows = conn.query(
        &format!(
            "SELECT r.file, r.load, s.name FROM pgsluice_loads.reject_files r \
               JOIN pgsluice_loads.sources s ON s.load = r.load \
             WHERE r.load IN {OF_BEGUN} AND r.records > 0 AND s.state = 'loading' \
               AND s.number NOT IN (SELECT n::bigint \
                 FROM pg_catalog.jsonb_array_elements_text($1::jsonb) n) \
               AND EXISTS (SELECT FROM pgsluice_loads.pieces p WHERE p.source = s.number) \
             ORDER BY r.file, s.number LIMIT 1"
        ),
        &[Some(begun)],
    )?;
    let Some([Some(file), Some(load), Some(name)]) = rows.first().map(Vec::as_slice) else {
        return Ok(());
    };
    Err(Error::new(format!(
        "the reject file {file} belongs to load {load}, which has also begun {name}"
    ))
    .with_hint(format!(
        "load these files together (pgsluice loads show {load} lists them all); or move the reject \
         file, and use pgsluice loads forget {file} (table {})",
        target.sql
    )))
}

/// Reads the rows of the files.
fn rows(conn: &mut Conn, begun: &str) -> Result<Vec<Kept>, Error> {
    let rows = conn.query(
        &format!(
            "SELECT file, bytes, E'\\\\x' || pg_catalog.encode(hash, 'hex'), reasons_bytes, \
               E'\\\\x' || pg_catalog.encode(reasons_hash, 'hex'), records, lines \
             FROM pgsluice_loads.reject_files WHERE load IN {OF_BEGUN}"
        ),
        &[Some(begun)],
    )?;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let row = |row: &Vec<Option<String>>| Kept {
        file: text(&row[0]),
        bytes: number(&row[1]),
        hash: text(&row[2]),
        reasons_bytes: number(&row[3]),
        reasons_hash: text(&row[4]),
        records: number(&row[5]),
        lines: number(&row[6]),
    };
    Ok(rows.iter().map(row).collect())
}

/// Groups pairs of files by the name of the first pair, in the order of their numbers.
fn groups(rows: Vec<Kept>) -> Vec<Vec<Kept>> {
    let mut rows: BTreeMap<String, Kept> =
        rows.into_iter().map(|row| (row.file.clone(), row)).collect();
    let mut all = Vec::new();
    // A name sorts before longer names that begin with it.
    while let Some((first, row)) = rows.pop_first() {
        let mut group = vec![row];
        let next = |n: usize| numbered(Path::new(&first), n as u32).display().to_string();
        while let Some(row) = rows.remove(&next(group.len() + 1)) {
            group.push(row);
        }
        all.push(group);
    }
    all
}

/// Checks that no incomplete load has rejects in a file.
fn free(conn: &mut Conn, target: &Target, file: &Path) -> Result<(), Error> {
    let name = file.display().to_string();
    let rows = conn.query(
        "SELECT load FROM pgsluice_loads.reject_files WHERE file = $1 AND records > 0 LIMIT 1",
        &[Some(&name)],
    )?;
    if let Some(row) = rows.first() {
        let load: i64 = number(&row[0]);
        return Err(Error::new(format!(
            "the reject file {name} belongs to load {load}, which is not complete"
        ))
        .with_hint(format!(
            "complete that load, or name another file, or use pgsluice loads forget (table {})",
            target.sql
        )));
    }
    conn.query("DELETE FROM pgsluice_loads.reject_files WHERE file = $1", &[Some(&name)]).map(drop)
}

/// Records how much of the files belongs to committed transactions, in the open transaction.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn record_kept(conn: &mut Conn, load: i64, kept: &[Kept]) -> Result<(), Error> {
    if kept.is_empty() {
        return Ok(());
    }
    conn.query(
        "INSERT INTO pgsluice_loads.reject_files (load, file, bytes, hash, reasons_bytes, \
           reasons_hash, records, lines) \
         SELECT $2::bigint, f.* FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS f(file text, \
           bytes bigint, hash bytea, reasons_bytes bigint, reasons_hash bytea, records bigint, \
           lines bigint) \
         ON CONFLICT (load, file) DO UPDATE SET (bytes, hash, reasons_bytes, reasons_hash, records, \
           lines) = (excluded.bytes, excluded.hash, excluded.reasons_bytes, excluded.reasons_hash, \
           excluded.records, excluded.lines)",
        &[Some(&json!(kept).to_string()), Some(&load.to_string())],
    )?;
    Ok(())
}

/// Deletes the rows of the files of a load that is complete.
///
/// # Errors
///
/// The connection is lost.
pub(super) fn release(conn: &mut Conn, load: &str) -> Result<(), Error> {
    conn.query("DELETE FROM pgsluice_loads.reject_files WHERE load = $1::bigint", &[Some(load)])?;
    Ok(())
}

/// The absolute name of a file that need not exist yet, without symbolic links in its folder.
/// `reject::owned` does not open the file if it is one itself.
///
/// # Errors
///
/// The folder does not exist, or the name is not that of a file.
pub(super) fn absolute(file: &Path) -> Result<PathBuf, Error> {
    let failed =
        |e: &io::Error| Error::io("create the reject file", &file.display().to_string(), e);
    let folder = file.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize().map_err(|e| failed(&e))?;
    let name = file.file_name().ok_or_else(|| failed(&io::ErrorKind::InvalidInput.into()))?;
    let path = folder.join(name);
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(Error::new(format!("{}: the name is not UTF-8", file.display()))
            .with_hint("`once` records names in the database")),
    }
}
