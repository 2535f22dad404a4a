//! Moves sequences past the keys that a load has supplied.
//!
//! If a committed row has a key that its sequence has not passed, another session draws that key
//! later, and its row is a duplicate. So a sequence is moved just before the COMMIT of the rows. It
//! does not roll back: a skipped number does no harm.

use super::catalog;
use super::conn::{quote_ident, quote_literal, Conn};
use super::transaction::search_path;
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
    may_move: bool,
    may_read: bool,
    /// an index finds the farthest key
    indexed: bool,
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

/// Moves the sequences of `columns`, which the file supplied, past the keys that the table `oid`
/// now has; never back. `table` is its name in SQL. Call this last before the commit.
///
/// # Errors
///
/// The connection is lost, or the server reports an error.
pub fn sequences(
    conn: &mut Conn,
    oid: u32,
    table: &str,
    columns: &[String],
) -> Result<Vec<Moved>, Error> {
    let mut all = Vec::new();
    for sequence in find(conn, oid, columns)? {
        all.extend(pass(conn, table, &sequence)?);
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
    let mut found = find(conn, oid, columns)?;
    found.retain(|sequence| sequence.may_read && sequence.may_move && sequence.indexed);
    Ok(found)
}

/// Returns the names of the sequences of these columns.
///
/// # Errors
///
/// As for [`sequences`].
pub(crate) fn names(conn: &mut Conn, oid: u32, columns: &[String]) -> Result<Vec<String>, Error> {
    Ok(find(conn, oid, columns)?.into_iter().map(|sequence| sequence.name).collect())
}

fn find(conn: &mut Conn, oid: u32, columns: &[String]) -> Result<Vec<KeySequence>, Error> {
    let list: Vec<String> = columns.iter().map(|c| quote_literal(c)).collect();
    let sql = include_str!("sequences.sql")
        .replace("$2::text[]", &format!("ARRAY[{}]::text[]", list.join(", ")));
    let path = search_path(conn, "pg_catalog")?;
    let found = catalog::objects(conn, &sql, oid)?;
    search_path(conn, &path)?;
    Ok(found)
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
    let moved = |key, left: Option<&str>| {
        Ok(Some(Moved {
            sequence: sequence.name.clone(),
            column: sequence.column.clone(),
            key,
            left: left.map(str::to_string),
        }))
    };
    if !sequence.may_read {
        return moved(None, Some("the role cannot see all keys"));
    }
    let step = i128::from(sequence.increment);
    let farthest = if step > 0 { "max" } else { "min" };
    let column = quote_ident(&sequence.column);
    // The column may be numeric. Only the whole part can be equal to a number of the sequence.
    let rows =
        conn.exec(&format!("SELECT pg_catalog.trunc({farthest}({column})::numeric) FROM {table}"))?;
    let Some(key) = rows[0][0].as_deref().and_then(|k| k.parse::<i128>().ok()) else {
        return Ok(None);
    };
    if !sequence.may_move {
        return moved(Some(key), Some("the role may not move it"));
    }
    let rows = conn.exec(&format!("SELECT last_value, is_called FROM {}", sequence.name))?;
    let last: i128 = rows[0][0].as_deref().and_then(|v| v.parse().ok()).unwrap_or_default();
    let called = rows[0][1].as_deref() == Some("t");
    let ahead = if step > 0 { key - last } else { last - key };
    if ahead < 0 || (ahead == 0 && called) {
        return Ok(None);
    }
    // Move by whole steps, so that a sequence that counts by tens keeps its last digit.
    let steps = (ahead + step.abs() - 1) / step.abs();
    let target = last + steps * step;
    if target > i128::from(sequence.greatest) || target < i128::from(sequence.least) {
        return moved(Some(key), Some("it ends before that key"));
    }
    let draws = steps + i128::from(!called);
    let name = quote_literal(&sequence.name);
    if draws <= DRAWN {
        let draw = format!("SELECT max(pg_catalog.nextval({name}::regclass)) FROM pg_catalog.generate_series(1, {draws})");
        conn.exec(&draw)?;
    } else {
        // Another load may have moved it farther since it was read.
        let behind = if step > 0 { "<" } else { ">" };
        let set = format!("SELECT pg_catalog.setval({name}::regclass, {target})");
        let from = &sequence.name;
        conn.exec(&format!("{set} FROM {from} WHERE last_value {behind} {target}"))?;
    }
    moved(Some(key), None)
}
