//! Lists recorded loads and their files for users, and compares the files with what is recorded.

use super::identity::Seen;
use super::lookup::{number, pieces, pieces_until};
use super::tables;
use crate::error::Error;
use crate::input::{compare, Compared, KnownPiece};
use crate::ledger::SETTINGS;
use crate::session::conn::{Conn, Rows};
use crate::session::transaction::{BEGIN, NO_TIMEOUTS};
use crate::source::FileSource;
use serde::Serialize;
use std::ops::Range;

/// A load that was recorded.
#[derive(Clone, Debug, Serialize)]
pub struct LoadRow {
    /// its number
    pub load: i64,
    /// the name of the table at that time, quoted and qualified
    pub table: String,
    /// `running` (also if it was killed), `complete` or `stopped`
    pub state: String,
    /// the role that ran the load
    pub role: String,
    /// when it began
    pub started: String,
    /// when it ended
    pub ended: Option<String>,
    /// why it was stopped
    pub error: Option<String>,
    /// number of files of which it has loaded something
    pub files: u64,
    /// number of its transactions
    pub commits: u64,
    /// number of records read
    pub read: u64,
    /// number of rows loaded
    pub loaded: u64,
    /// number of rejected records
    pub rejected: u64,
    /// number of skipped records
    pub skipped: u64,
}

/// A recorded file.
#[derive(Clone, Debug, Serialize)]
pub struct SourceRow {
    /// its path
    pub file: String,
    /// `loading` or `complete`
    pub state: String,
    /// its stored size in bytes
    pub size: u64,
    /// number of loaded pieces
    pub pieces: u64,
    /// total decompressed size of these pieces in bytes
    pub bytes: u64,
    /// number of records in these pieces
    pub records: u64,
    /// the first record (from 1) that is not loaded; `None` if the file is complete
    pub next_record: Option<u64>,
    /// the line after the records before it, counted from 1; `None` if it is the first
    pub next_line: Option<u64>,
    /// the byte offset after the records before it; `None` if it is the first
    pub next_byte: Option<u64>,
}

/// The result of the comparison of a file with what is recorded of it.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// its path
    pub file: String,
    /// what differs; `None` if nothing does
    pub difference: Option<String>,
    /// why it cannot be compared, which is no difference; `None` if it was compared
    pub not_compared: Option<String>,
}

/// Lists the loads that the role may see, or the one with the number `load`.
///
/// # Errors
///
/// The server cannot be reached, or reports an error.
pub fn list(url: &str, load: Option<i64>) -> Result<Vec<LoadRow>, Error> {
    let Some(mut conn) = open(url)? else { return Ok(Vec::new()) };
    let load = load.map(|load| load.to_string());
    let rows = conn.query(
        "SELECT l.number, l.target_name, l.state, l.role, \
             pg_catalog.to_json(l.started) #>> '{}', pg_catalog.to_json(l.ended) #>> '{}', l.error, \
             f.files, c.commits, c.read, c.loaded, c.rejected, c.skipped \
           FROM pgsluice_loads.loads l \
           LEFT JOIN (SELECT load, count(*) AS commits, sum(read) AS read, sum(loaded) AS loaded, \
               sum(rejected) AS rejected, sum(skipped) AS skipped \
             FROM pgsluice_loads.commits GROUP BY load) c ON c.load = l.number \
           LEFT JOIN (SELECT c.load, count(DISTINCT p.source) AS files \
             FROM pgsluice_loads.commits c JOIN pgsluice_loads.pieces p ON p.commit = c.number \
             GROUP BY c.load) f ON f.load = l.number \
           WHERE $1::bigint IS NULL OR l.number = $1::bigint ORDER BY l.number",
        &[load.as_deref()],
    )?;
    let row = |row: Vec<Option<String>>| {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        LoadRow {
            load: number(&row[0]),
            table: text(1),
            state: text(2),
            role: text(3),
            started: text(4),
            ended: row[5].clone(),
            error: row[6].clone(),
            files: number(&row[7]),
            commits: number(&row[8]),
            read: number(&row[9]),
            loaded: number(&row[10]),
            rejected: number(&row[11]),
            skipped: number(&row[12]),
        }
    };
    Ok(rows.into_iter().map(row).collect())
}

/// Lists the files of a load: those of which it has loaded something, and those that it was the
/// last load of.
///
/// # Errors
///
/// As for [`list`].
pub fn files(url: &str, load: i64) -> Result<Vec<SourceRow>, Error> {
    let Some(mut conn) = open(url)? else { return Ok(Vec::new()) };
    let rows = of_load(&mut conn, load)?;
    let optional = |cell: &Option<String>| cell.as_ref().map(|_| number(cell));
    let row = |row: Vec<Option<String>>| SourceRow {
        file: row[1].clone().unwrap_or_default(),
        state: row[2].clone().unwrap_or_default(),
        size: number(&row[3]),
        pieces: number(&row[4]),
        bytes: number(&row[5]),
        records: number(&row[6]),
        next_record: optional(&row[8]),
        next_line: optional(&row[9]),
        next_byte: optional(&row[10]),
    };
    Ok(rows.into_iter().map(row).collect())
}

/// Returns for each file of a load, unless it was only begun under that name: the row of `sources` that has its pieces, its name, state and
/// size, the number, bytes and records of its pieces, whichever load has loaded them, the hash of
/// its last bytes; if it is not complete, the first record that is in no piece, with the line
/// and the byte after the piece before it; whether it is another name of a content; and its last
/// load.
fn of_load(conn: &mut Conn, load: i64) -> Result<Rows, Error> {
    conn.query(
        "SELECT coalesce(s.same_as, s.number), s.name, s.state, s.size, count(p.source), \
             sum(p.end_byte - p.start_byte), sum(p.records), \
             E'\\\\x' || pg_catalog.encode(s.tail, 'hex'), \
             CASE WHEN s.state = 'loading' THEN coalesce(run.record, 1) END, run.line, run.byte, s.same_as IS NOT NULL, s.load \
           FROM pgsluice_loads.sources s LEFT JOIN pgsluice_loads.pieces p \
             ON p.source = coalesce(s.same_as, s.number) \
           LEFT JOIN LATERAL (SELECT e.first_record + e.records AS record, \
               e.first_line + e.lines AS line, e.end_byte AS byte \
             FROM pgsluice_loads.pieces e \
             WHERE s.state = 'loading' AND e.source = coalesce(s.same_as, s.number) \
               AND NOT EXISTS (SELECT FROM pgsluice_loads.pieces n WHERE n.source = e.source \
                 AND n.start_byte > e.start_byte AND (n.start_byte = e.end_byte \
                   OR n.first_record = e.first_record + e.records)) \
               AND EXISTS (SELECT FROM pgsluice_loads.pieces f WHERE f.source = e.source \
                 AND f.first_record = 1) \
             ORDER BY e.start_byte LIMIT 1) run ON true \
           WHERE (s.load = $1::bigint OR s.number IN (SELECT p.source FROM pgsluice_loads.pieces p \
             JOIN pgsluice_loads.commits c ON c.number = p.commit WHERE c.load = $1::bigint)) \
             AND (s.same_as IS NULL OR s.completed IS NOT NULL) \
           GROUP BY s.number, run.record, run.line, run.byte ORDER BY s.number",
        &[Some(&load.to_string())],
    )
}

/// Compares the files of a load with what is recorded of them.
///
/// # Errors
///
/// As for [`list`].
pub fn verify(url: &str, load: i64) -> Result<Vec<Verified>, Error> {
    let Some(mut conn) = open(url)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for row in of_load(&mut conn, load)? {
        let other_name = row[11].as_deref() == Some("t");
        // The content may have grown since another name was recorded.
        let known = match other_name {
            true => pieces_until(&mut conn, number(&row[0]), number(&row[12]))?,
            false => pieces(&mut conn, number(&row[0]))?,
        };
        let file = row[1].clone().unwrap_or_default();
        let complete = row[2].as_deref() == Some("complete");
        let stream = !file.starts_with('/');
        let end = complete.then_some((&row[3], &row[7]));
        let found = match stream {
            true => Ok(None),
            false => difference(&file, &known, end, other_name),
        };
        let difference = match found {
            Ok(None) if !complete => Some("it is not complete".into()),
            Ok(found) => found,
            Err(error) => Some(error.message().to_string()),
        };
        let is_stream = "it is a stream: load it again, and it is compared";
        let not_compared = (stream && complete).then(|| is_stream.into());
        all.push(Verified { file, difference, not_compared });
    }
    Ok(all)
}

/// Compares a file with its pieces, and, if all of it is loaded, its end with the recorded size and
/// hash. If it is another name of a content, that may have grown since.
fn difference(
    file: &str,
    known: &[KnownPiece],
    end: Option<(&Option<String>, &Option<String>)>,
    other_name: bool,
) -> Result<Option<String>, Error> {
    let source = FileSource::new(file);
    let differs = |bytes: &Range<u64>| {
        Ok(Some(format!("bytes {} to {} are not the same", bytes.start, bytes.end)))
    };
    let (pieces, more) = match compare(&source, known, &|| false)? {
        Compared::Differs { bytes, .. } => return differs(&bytes),
        Compared::Same(more) => (known.len(), more),
        Compared::Ended { pieces, more } if other_name => (pieces, more),
        Compared::Ended { pieces, .. } => return differs(&known[pieces].bytes),
    };
    let later = known.get(pieces);
    let Some((size, tail)) = end.filter(|_| more > 0 || later.is_some()) else { return Ok(None) };
    // What follows the records, such as a footer, is in no piece. If it is as it was, so is the end
    // of the file.
    let seen = Seen::of(&source, None)?;
    if seen.size == number::<u64>(size) && Some(seen.ends()?.tail) == *tail {
        return Ok(None);
    }
    if let Some(piece) = later {
        return differs(&piece.bytes);
    }
    let last = known.last().map_or(0, |piece| piece.bytes.end);
    Ok(Some(format!("the {more} bytes after byte {last} are new or not the same")))
}

/// Opens a connection and begins a transaction. Returns `None` if the ledger does not exist.
fn open(url: &str) -> Result<Option<Conn>, Error> {
    let mut conn = Conn::open(url)?;
    if !tables::there(&mut conn)? {
        return Ok(None);
    }
    begin(&mut conn)?;
    Ok(Some(conn))
}

/// Begins a transaction that uses the ledger. It may be idle for long, while files are compared.
pub(super) fn begin(conn: &mut Conn) -> Result<(), Error> {
    conn.exec(&format!("{BEGIN}; {NO_TIMEOUTS}; {SETTINGS}")).map(drop)
}
