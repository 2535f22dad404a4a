//! Moves sequences past the keys that a load has supplied.
//!
//! If a committed row has a key that its sequence has not passed, another session draws that key
//! later, and its row is a duplicate. So a sequence is moved just before the COMMIT of the rows. It
//! does not roll back: a skipped number does no harm. If rows are committed more than once, and no
//! index finds the farthest key, it is moved when all rows are committed. If each row is committed
//! by itself, the key that was sent is the farthest one.

use super::catalog;
use super::conn::{quote_ident, quote_literal, Conn};
use super::transaction::{check_deferred, in_pg_catalog};
use crate::error::Error;
use serde::Deserialize;

/// Up to this many steps, a sequence is moved by nextval, which cannot undo the draws of other
/// sessions. For more steps setval is used: no session draws as many numbers between the read and
/// the setval.
const DRAWN: i128 = 1000;

/// A sequence that gives values to a column.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct KeySequence {
    name: String,
    column: String,
    increment: i64,
    least: i64,
    greatest: i64,
    /// a session draws several numbers at once and keeps those that it does not need yet
    cached: bool,
    /// it is not cached, or rows draw from no other sequence that is, as far as that is known
    alone: bool,
    may_move: bool,
    may_read: bool,
    /// an index finds the farthest key
    indexed: bool,
    /// no trigger changes a key before the row is inserted
    as_sent: bool,
}

impl KeySequence {
    /// Whether the role may move it, and the farthest key is found without reading the whole table.
    fn is_quickly_moved(&self) -> bool {
        self.may_read && self.may_move && self.indexed
    }

    /// Of two numbers, the one that is farther in its direction.
    pub(crate) fn farther(&self, a: i128, b: i128) -> i128 {
        if self.increment > 0 {
            a.max(b)
        } else {
            a.min(b)
        }
    }

    /// How far a key is from a number, in its direction.
    fn ahead(&self, key: i128, number: i128) -> i128 {
        if self.increment > 0 {
            key - number
        } else {
            number - key
        }
    }

    /// The statements that move it past a key, if it is behind that. If it is, the last one returns
    /// one row: the number that it has then, or NULL if it ends before the key.
    pub(crate) fn past(&self, key: i128) -> String {
        let KeySequence { name, increment: step, least, greatest, .. } = self;
        let literal = quote_literal(name);
        // Move by whole steps, so that a sequence that counts by tens keeps its last digit.
        let (whole, target) = (step - step.signum(), format!("number + steps * {step}::numeric"));
        // nextval would first give what the session has kept, and leave the sequence where it is. A
        // session of a pooler may have kept numbers before the load. This drops what it has kept of
        // all sequences.
        let fresh = if self.cached { "DISCARD SEQUENCES; " } else { "" };
        format!(
            "{fresh}SELECT CASE WHEN {target} NOT BETWEEN {least}::numeric AND {greatest}::numeric THEN NULL \
               WHEN steps <= {DRAWN}::numeric \
                 THEN (SELECT pg_catalog.max(pg_catalog.nextval({literal}::regclass)) \
                   FROM pg_catalog.generate_series(1, steps::int + (NOT is_called)::int)) \
               ELSE pg_catalog.setval({literal}::regclass, ({target})::bigint) END \
             FROM (SELECT last_value::numeric AS number, is_called, pg_catalog.div( \
               {key}::numeric - last_value::numeric + {whole}::numeric, {step}::numeric) AS steps \
               FROM {name}) AS moves \
             WHERE steps > 0::numeric OR NOT is_called AND number = {key}::numeric"
        )
    }

    fn moved(&self, key: Option<i128>, left: Option<&str>) -> Moved {
        let (sequence, column) = (self.name.clone(), self.column.clone());
        Moved { sequence, column, key, left: left.map(str::to_string) }
    }
}

/// A sequence that was behind a loaded key, or may still be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// quoted and qualified
    pub sequence: String,
    /// the column that the sequence is for
    pub column: String,
    /// the key that the sequence must pass, if the role may read it
    pub key: Option<i128>,
    /// why the sequence was not moved, if it was not
    pub left: Option<String>,
}

impl Moved {
    /// In words, for the steps of a load and for the report of `repair`.
    pub(crate) fn told(&self) -> String {
        let past = self.key.map_or(String::new(), |key| format!(" past {key}"));
        match &self.left {
            Some(why) => format!("sequence {} not moved{past}: {why}", self.sequence),
            None => format!("sequence {} moved{past}", self.sequence),
        }
    }
}

/// Moves the sequences of `columns`, which the file supplied, past the keys that the table `oid`
/// now has; never back. `table` is its name in SQL. Call this last before the commit.
///
/// # Errors
///
/// A row violates a deferred constraint, the connection is lost, or the server reports an error.
pub fn sequences(
    conn: &mut Conn,
    oid: u32,
    table: &str,
    columns: &[String],
) -> Result<Vec<Moved>, Error> {
    let found = find(conn, oid, columns)?;
    if !found.is_empty() {
        // A sequence does not roll back with the rows.
        check_deferred(conn)?;
    }
    let mut all = Vec::new();
    for sequence in &found {
        all.extend(pass(conn, table, sequence)?);
    }
    Ok(all)
}

/// Finds those of these sequences that can be moved before each of many commits: the role may move
/// them, and the farthest key is found without reading the whole table.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn quickly_moved(
    conn: &mut Conn,
    oid: u32,
    columns: &[String],
) -> Result<Vec<KeySequence>, Error> {
    Ok(by_speed(conn, oid, columns)?.0)
}

/// Finds the sequences of these columns: those of [`quickly_moved`], and the names of the others.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn by_speed(
    conn: &mut Conn,
    oid: u32,
    columns: &[String],
) -> Result<(Vec<KeySequence>, Vec<String>), Error> {
    let found = find(conn, oid, columns)?;
    let (quick, slow): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|sequence| sequence.is_quickly_moved());
    Ok((quick, slow.into_iter().map(|sequence| sequence.name).collect()))
}

/// Finds the sequences that can be moved by the key of each row that is sent: the role may move them,
/// no trigger changes the key, and the move drops no numbers that rows draw from other sequences:
/// with each row, these would lose a whole CACHE. Each has the index of its column.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn by_sent_key(
    conn: &mut Conn,
    oid: u32,
    columns: &[String],
) -> Result<Vec<(usize, KeySequence)>, Error> {
    let by_row = |s: &KeySequence| s.may_move && s.as_sent && s.alone;
    let found = find(conn, oid, columns)?.into_iter().filter(by_row);
    let at = |name: &str| columns.iter().position(|column| column == name);
    Ok(found.filter_map(|sequence| Some((at(&sequence.column)?, sequence))).collect())
}

/// Finds the sequences of all columns of a table that its keys have passed, or may have passed. It
/// moves none, because only the load knew which columns the file supplied. Call this in a transaction.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn behind(conn: &mut Conn, oid: u32, table: &str) -> Result<Vec<Moved>, Error> {
    let columns = conn.query(
        "SELECT attname FROM pg_catalog.pg_attribute \
         WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped",
        &[Some(&oid.to_string())],
    )?;
    let columns: Vec<String> = columns.into_iter().filter_map(|row| row[0].clone()).collect();
    let mut all = Vec::new();
    for sequence in find(conn, oid, &columns)? {
        if !sequence.may_read || !sequence.may_move {
            all.push(sequence.moved(None, Some("the role may not compare it with the keys")));
            continue;
        }
        let Some(key) = farthest(conn, table, &sequence)? else { continue };
        let (last, called) = last_number(conn, &sequence)?;
        let ahead = sequence.ahead(key, last);
        if ahead > 0 || (ahead == 0 && !called) {
            let by_setval = "move it by setval before the next row is inserted";
            all.push(sequence.moved(Some(key), Some(by_setval)));
        }
    }
    Ok(all)
}

/// Returns the names of the sequences of these columns.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn names(conn: &mut Conn, oid: u32, columns: &[String]) -> Result<Vec<String>, Error> {
    Ok(find(conn, oid, columns)?.into_iter().map(|sequence| sequence.name).collect())
}

/// Whether a column of the table, or of a table that it is a partition of, owns a sequence or has a
/// default. Many tables have neither, and this query takes a millisecond, the one for the sequences
/// eight.
const MAY_HAVE: &str = "WITH tables AS ( \
      SELECT $1::oid AS oid UNION SELECT relid::oid FROM pg_partition_ancestors($1::oid::regclass)) \
    SELECT EXISTS (SELECT FROM tables JOIN pg_attrdef f ON f.adrelid = tables.oid) \
      OR EXISTS (SELECT FROM tables JOIN pg_depend d ON d.refobjid = tables.oid \
        JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' \
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass)";

fn find(conn: &mut Conn, oid: u32, columns: &[String]) -> Result<Vec<KeySequence>, Error> {
    let list: Vec<String> = columns.iter().map(|c| quote_literal(c)).collect();
    let sql = include_str!("sequences.sql")
        .replace("$2::text[]", &format!("ARRAY[{}]::text[]", list.join(", ")));
    in_pg_catalog(conn, |conn| {
        match conn.query(MAY_HAVE, &[Some(&oid.to_string())])?[0][0].as_deref() {
            Some("f") => Ok(Vec::new()),
            _ => catalog::objects(conn, &sql, oid),
        }
    })
}

/// Moves one sequence, if it is behind the farthest key in its direction. If two lanes did this at
/// the same time, one could move it back.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn pass(
    conn: &mut Conn,
    table: &str,
    sequence: &KeySequence,
) -> Result<Option<Moved>, Error> {
    if !sequence.may_read {
        return Ok(Some(sequence.moved(None, Some("the role cannot see all keys"))));
    }
    match farthest(conn, table, sequence)? {
        Some(key) => pass_key(conn, sequence, key),
        None => Ok(None),
    }
}

/// The farthest key of the table in the direction of the sequence; `None` if it has none.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn farthest(
    conn: &mut Conn,
    table: &str,
    sequence: &KeySequence,
) -> Result<Option<i128>, Error> {
    let farthest = if sequence.increment > 0 { "max" } else { "min" };
    let column = quote_ident(&sequence.column);
    // The column may be numeric. Only the whole part can be equal to a number of the sequence.
    let rows = conn.exec(&format!(
        "SELECT pg_catalog.trunc(pg_catalog.{farthest}({column})::numeric) FROM {table}"
    ))?;
    Ok(rows[0][0].as_deref().and_then(|key| key.parse().ok()))
}

/// The last number of a sequence, and whether it was drawn.
fn last_number(conn: &mut Conn, sequence: &KeySequence) -> Result<(i128, bool), Error> {
    let rows = conn.exec(&format!("SELECT last_value, is_called FROM {}", sequence.name))?;
    let last: i128 = rows[0][0].as_deref().and_then(|v| v.parse().ok()).unwrap_or_default();
    Ok((last, rows[0][1].as_deref() == Some("t")))
}

/// As [`pass`], for this key.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn pass_key(
    conn: &mut Conn,
    sequence: &KeySequence,
    key: i128,
) -> Result<Option<Moved>, Error> {
    let moved = |left| Ok(Some(sequence.moved(Some(key), left)));
    if !sequence.may_move {
        return moved(Some("the role may not move it"));
    }
    let rows = conn.exec(&sequence.past(key))?;
    match rows.first() {
        None => Ok(None),
        Some(row) if row[0].is_none() => moved(Some("it ends before that key")),
        Some(_) => moved(None),
    }
}
