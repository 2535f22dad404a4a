//! What a node has of the files of a load, if the nodes commit one after another.
//!
//! A slice is the rows of a file for one table of a node. Its row in `slices` is written on the
//! node, in the transaction of the rows. So either both or neither are committed, whatever happens
//! to the other nodes and to the coordinator. The next load leaves out the slices that a node has.
//! The coordinator records a file as loaded after all nodes have committed.
//!
//! A slice is recognised by its content: the BLAKE3 hash of the bytes of the whole file. Name,
//! size, and the first and last 64 kB of the file find the rows that may be about it. These are
//! compared at the end of the input, before any node commits. The options and the bound of the
//! table's partition must be the same.
//!
//! Two loads of a file cannot both commit its slice: the primary key is the table and the content.
//! Before that, each load takes the locks of its files on every node, in the order of the nodes,
//! and then reads the rows. A transaction holds the locks until it has committed, prepared or not.
//! So a load waits for an earlier one that is about to commit there, even if the program of that
//! one is dead or cannot be reached.

use super::fingerprint::Fingerprint;
use super::lookup::{claim, number};
use super::outcome::looked_up;
use super::record::Recording;
use crate::error::{Error, Kind};
use crate::input::{changed, compare, Compared, Counts, KnownPiece};
use crate::ledger::{self, under_policies, State};
use crate::session::conn::{Conn, Rows};
use crate::session::transaction::{BEGIN, SYNCHRONOUS};
use crate::watch::{Stop, Watch};
use blake3::Hash;
use serde::Serialize;
use serde_json::{json, Value};
use std::ops::Range;

/// Creates the table. It belongs to the tables of the schema, and is used on nodes.
pub(crate) const CREATE: &str = "
CREATE TABLE pgsluice_loads.slices (
    target regclass,
    hash bytea CHECK (length(hash) = 32),
    name text NOT NULL,
    size bigint NOT NULL,
    head bytea NOT NULL,
    tail bytea NOT NULL,
    start_byte bigint NOT NULL,
    end_byte bigint NOT NULL CHECK (end_byte > start_byte),
    options jsonb NOT NULL,
    bound text NOT NULL,
    rows bigint NOT NULL,
    load bigint NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (target, hash)
);
COMMENT ON TABLE pgsluice_loads.slices IS
    'on a node: files whose rows for a table here are loaded';
CREATE INDEX slices_by_name ON pgsluice_loads.slices (target, name);
CREATE INDEX slices_by_content ON pgsluice_loads.slices (target, head);
ALTER TABLE pgsluice_loads.slices ENABLE ROW LEVEL SECURITY;
CREATE POLICY may_insert ON pgsluice_loads.slices
    USING (pg_catalog.has_any_column_privilege(target::oid, 'INSERT'));
GRANT SELECT, INSERT, UPDATE, DELETE ON pgsluice_loads.slices TO PUBLIC;
";

/// The maximum number of slices in one INSERT.
const BATCH: usize = 10_000;

/// A table of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceTable<'a> {
    /// an index into the leaves of the plan
    pub leaf: usize,
    /// quoted and qualified
    pub table: &'a str,
    /// the partition bound of its rows, as the coordinator shows it
    pub bound: &'a str,
}

/// A range of a source, and the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// an index into the sources of the load
    pub source: usize,
    pub bytes: Range<u64>,
    pub hash: Hash,
}

/// A slice that a node has.
#[derive(Clone, Debug)]
pub(crate) struct NodeSlice {
    pub leaf: usize,
    pub content: Content,
}

/// A slice that is to be committed on a node.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NewSlice<'a> {
    table: &'a str,
    bound: &'a str,
    name: &'a str,
    size: u64,
    head: &'a str,
    tail: &'a str,
    start_byte: u64,
    end_byte: u64,
    hash: String,
    rows: u64,
}

/// Whether a node has the table.
///
/// # Errors
///
/// The node has the table, but the role cannot read it, or others could have forged its rows. If
/// this was taken for "no slices", rows would be loaded again, and slices would not be forgotten.
fn there(conn: &mut Conn) -> Result<bool, Error> {
    let found = "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
        ON n.oid = c.relnamespace WHERE n.nspname = 'pgsluice_loads' AND c.relname = 'slices'";
    if conn.exec(found)?.is_empty() {
        return Ok(false);
    }
    match ledger::state(conn)? {
        State::Unusable(why) => Err(Error::new(format!(
            "which files the node has is not known, since its table pgsluice_loads.slices cannot be used: {why}"
        ))
        .with_hint(
            "the schema and all its tables must belong to the role, to the owner of the database \
             or to a superuser; change their owner (ALTER SCHEMA, ALTER TABLE) only if you trust \
             the present one, whose triggers other roles would run; and the role needs the rights \
             that pgsluice loads init `print` grants",
        )),
        State::Ready | State::Missing => Ok(true),
    }
}

/// Whether pieces, which are in order, cover a range.
fn covers(known: &[KnownPiece], bytes: &Range<u64>) -> bool {
    let mut end = bytes.start;
    for piece in known.iter().filter(|piece| !piece.bytes.is_empty()) {
        if piece.bytes.start <= end {
            end = end.max(piece.bytes.end);
        }
    }
    end >= bytes.end
}

/// The error for a file that has grown before all nodes had loaded it.
fn unfinished(name: &str, bytes: &Range<u64>, more: u64) -> Error {
    Error::new(format!(
        "{name} has grown before all nodes had it: {more} bytes follow byte {}, where it ended",
        bytes.end
    ))
    .with_hint(
        "load it as it was to the end, and then with `on-change` append and `atomic`; or forget it \
         with pgsluice loads forget, and load it again where its rows are gone",
    )
}

impl Recording {
    /// Waits for other loads of the same files on a node, and reads which slices the node has. This
    /// is done in the transaction of the rows, before the first row. `root` is the table's OID on
    /// the coordinator.
    ///
    /// # Errors
    ///
    /// A slice has other content, options or bounds, or the connection is lost.
    pub(crate) fn slices_of(
        &self,
        conn: &mut Conn,
        root: u32,
        tables: &[SliceTable<'_>],
        watch: &Watch,
    ) -> Result<Vec<NodeSlice>, Error> {
        let files: Vec<_> = self.files.iter().map(|file| (&file.seen, &file.ends)).collect();
        watch.interruptible(conn.canceller(), || claim(conn, root, &files, false, &|| ()))?;
        conn.exec("RELEASE SAVEPOINT pgsluice_claim")?;
        if !there(conn)? {
            return Ok(Vec::new());
        }
        let rows = under_policies(conn, |conn| self.candidates(conn, tables))?;
        let (fingerprint, mut found) = (Fingerprint::of(&self.options), Vec::new());
        for row in &rows {
            let bytes = number(&row[7])..number(&row[8]);
            // All nodes have what the coordinator has recorded, and it was compared already. Its
            // bytes are skipped, and the slice may be of the file before it has grown.
            if covers(&self.known[number::<usize>(&row[1])], &bytes) {
                continue;
            }
            if let Some(slice) = self.slice(row, tables, &fingerprint, &watch.stop)? {
                found.push(slice);
            }
        }
        Ok(found)
    }

    /// Finds the rows of the node that may be about a file of the load.
    fn candidates(&self, conn: &mut Conn, tables: &[SliceTable<'_>]) -> Result<Rows, Error> {
        let file = |(source, file): (usize, &super::record::Wanted)| {
            let (seen, ends) = (&file.seen, &file.ends);
            json!({ "source": source, "name": seen.name, "size": seen.size, "head": ends.head,
                "tail": ends.tail, "stream": seen.stream })
        };
        let files = Value::from_iter(self.files.iter().enumerate().map(file)).to_string();
        let table =
            |(at, table): (usize, &SliceTable<'_>)| json!({ "at": at, "name": table.table });
        let tables = Value::from_iter(tables.iter().enumerate().map(table)).to_string();
        let select = |by: &str| {
            format!(
                "SELECT t.at, f.source, s.name = f.name, \
                   (s.size, s.head, s.tail) = (f.size, f.head, f.tail), s.name, s.bound, s.options, \
                   s.start_byte, s.end_byte, pg_catalog.encode(s.hash, 'hex') \
                 FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS f(source integer, name text, \
                     size bigint, head bytea, tail bytea, stream boolean), \
                   pg_catalog.jsonb_to_recordset($2::jsonb) AS t(at integer, name text), \
                   pgsluice_loads.slices s \
                 WHERE s.target = pg_catalog.to_regclass(t.name) AND {by}"
            )
        };
        let by_name = select("s.name = f.name");
        let by_content = select(
            "NOT f.stream AND s.name <> f.name AND s.head = f.head \
             AND (s.size, s.tail) = (f.size, f.tail)",
        );
        // Few of the rows match, of which there may be many; the planner has no estimate of how
        // many.
        conn.exec("SET LOCAL enable_seqscan = off")?;
        let rows = conn
            .query(&format!("{by_name} UNION ALL {by_content}"), &[Some(&files), Some(&tables)])?;
        conn.exec("SET LOCAL enable_seqscan = on")?;
        Ok(rows)
    }

    /// Returns the slice that a row is about; `None` if it is about another file.
    fn slice(
        &self,
        row: &[Option<String>],
        tables: &[SliceTable<'_>],
        fingerprint: &Fingerprint,
        stop: &Stop,
    ) -> Result<Option<NodeSlice>, Error> {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let (table, source) = (tables[number::<usize>(&row[0])], number::<usize>(&row[1]));
        let (by_name, same_ends) = (row[2].as_deref() == Some("t"), row[3].as_deref() == Some("t"));
        let (file, own) = (&self.files[source], &self.options.input.sources[source]);
        let hash = Hash::from_hex(text(9))
            .map_err(|e| Error::new(format!("a row of pgsluice_loads.slices: {e}")))?;
        let content = Content { source, bytes: number(&row[7])..number(&row[8]), hash };
        let compared = || {
            let (bytes, counts) = (content.bytes.clone(), Counts::default());
            compare(own.as_ref(), &[KnownPiece { bytes, counts, hash }], &|| stop.is_set())
        };
        if by_name && !file.seen.stream && !same_ends {
            return Err(match compared()? {
                Compared::Same(more) if more > 0 => unfinished(&own.name(), &content.bytes, more),
                Compared::Same(_) => changed(&own.name(), &(0..content.bytes.start)),
                Compared::Differs { bytes, .. } => changed(&own.name(), &bytes),
                Compared::Ended { .. } => changed(&own.name(), &content.bytes),
            });
        }
        if !by_name && !matches!(compared()?, Compared::Same(_)) {
            return Ok(None);
        }
        fingerprint.check(&text(6), &own.name())?;
        if text(5) != table.bound {
            let message = format!(
                "{} has rows of {} from when the bound of its partition was another one: {}",
                table.table,
                text(4),
                text(5)
            );
            return Err(Error::new(message).with_hint(
                "load it without `once`, or forget it with pgsluice loads forget and load it again",
            ));
        }
        Ok(Some(NodeSlice { leaf: table.leaf, content }))
    }

    /// The error for a slice whose file has other bytes now.
    pub(crate) fn other_content(&self, slice: &NodeSlice) -> Error {
        let name = self.options.input.sources[slice.content.source].name();
        changed(&name, &slice.content.bytes)
    }

    /// Returns a slice to record.
    pub(crate) fn new_slice<'a>(
        &'a self,
        table: SliceTable<'a>,
        content: &Content,
        rows: u64,
    ) -> NewSlice<'a> {
        let file = &self.files[content.source];
        NewSlice {
            table: table.table,
            bound: table.bound,
            name: &file.seen.name,
            size: file.seen.size,
            head: &file.ends.head,
            tail: &file.ends.tail,
            start_byte: content.bytes.start,
            end_byte: content.bytes.end,
            hash: format!("\\x{}", content.hash.to_hex()),
            rows,
        }
    }

    /// Records slices in the transaction of their rows, which is about to commit.
    ///
    /// # Errors
    ///
    /// Another load has committed one of them, or the connection is lost.
    pub(crate) fn put_slices(&self, conn: &mut Conn, all: &[NewSlice<'_>]) -> Result<(), Error> {
        let (load, fingerprint) = (self.load.to_string(), Fingerprint::of(&self.options).json());
        // Later, the coordinator records the file as loaded, and no load looks at the node any
        // more. So the node must not lose this commit in a crash.
        conn.exec(SYNCHRONOUS)?;
        under_policies(conn, |conn| {
            for slices in all.chunks(BATCH) {
                let json = serde_json::to_string(slices).unwrap_or_default();
                let put = conn.query(
                    "INSERT INTO pgsluice_loads.slices (target, hash, name, size, head, tail, \
                       start_byte, end_byte, options, bound, rows, load) \
                     SELECT s.\"table\"::regclass, hash, name, size, head, tail, start_byte, end_byte, \
                       $2::jsonb, bound, rows, $3::bigint \
                     FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS s(\"table\" text, bound text, \
                       name text, size bigint, head bytea, tail bytea, start_byte bigint, \
                       end_byte bigint, hash bytea, rows bigint)",
                    &[Some(&json), Some(&fingerprint), Some(&load)],
                );
                if let Err(error) = put {
                    return Err(match error.sqlstate() {
                        "23505" => self.recorded_before(conn, &json)?,
                        _ => error,
                    });
                }
            }
            Ok(())
        })
    }

    /// The error if a node already has one of the slices: of the same file, loaded by another load,
    /// or of a file that differs only in bytes that are not hashed.
    fn recorded_before(&self, conn: &mut Conn, slices: &str) -> Result<Error, Error> {
        conn.exec("ROLLBACK")?;
        conn.exec("SELECT pg_catalog.set_config('row_security', 'on', false)")?;
        let rows = conn.query(
            "SELECT n.\"table\", n.name, s.name, (s.size, s.head, s.tail) = (n.size, n.head, n.tail) \
               AND (n.size > 0 OR s.name = n.name) \
             FROM pg_catalog.jsonb_to_recordset($1::jsonb) AS n(\"table\" text, name text, \
                 size bigint, head bytea, tail bytea, hash bytea) \
               JOIN pgsluice_loads.slices s \
                 ON s.target::oid = pg_catalog.to_regclass(n.\"table\")::oid AND s.hash = n.hash \
             ORDER BY 4 LIMIT 1",
            &[Some(slices)],
        )?;
        let found = rows.first().filter(|row| row[3].as_deref() == Some("f"));
        let Some([Some(table), Some(own), Some(other), _]) = found.map(Vec::as_slice) else {
            return Ok(Error::new("another load has loaded the same files there meanwhile")
                .of_kind(Kind::Busy)
                .with_hint("the same command loads what is missing"));
        };
        Ok(Error::new(format!(
            "{table} has the records of {own} from {other}, which differs only in its name, its \
             header, other lines around the records, or its compression"
        ))
        .with_hint(
            "to load them again, use `atomic`, with which the coordinator records both files, or \
             leave `once` out",
        ))
    }

    /// Whether a node has a slice that the transaction `xid` has recorded.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub(crate) fn has_slice(
        &self,
        conn: &mut Conn,
        xid: &str,
        slice: &NewSlice<'_>,
    ) -> Result<bool, Error> {
        looked_up(conn, |conn| {
            conn.query(
                "SELECT FROM pgsluice_loads.slices WHERE target = pg_catalog.to_regclass($1) \
                   AND hash = $2::bytea AND load = $3::bigint AND xid = $4::text::xid8",
                &[Some(slice.table), Some(&slice.hash), Some(&self.load.to_string()), Some(xid)],
            )
        })
    }
}

/// Forgets the slices of a file on a node: by name, and by size and ends if the coordinator has
/// them. Returns whether there were any.
///
/// # Errors
///
/// The node reports an error, or the connection is lost.
pub(super) fn forget(
    conn: &mut Conn,
    tables: &[String],
    name: &str,
    content: Option<&Vec<Option<String>>>,
) -> Result<bool, Error> {
    // If a crash undid this, the next load would treat the file as loaded.
    conn.exec(&format!("{BEGIN}; {SYNCHRONOUS}"))?;
    conn.exec(ledger::SETTINGS)?;
    if !there(conn)? {
        return Ok(false);
    }
    let of = |i: usize| content.and_then(|row| row[i].as_deref());
    let (_, gone) = conn.query_counted(
        "DELETE FROM pgsluice_loads.slices WHERE target = ANY (ARRAY(SELECT \
           pg_catalog.to_regclass(t) FROM pg_catalog.jsonb_array_elements_text($1::jsonb) t)) \
         AND (name = $2 OR size > 0 AND (size, head, tail) = ($3::bigint, $4::bytea, $5::bytea))",
        &[Some(&Value::from(tables.to_vec()).to_string()), Some(name), of(0), of(1), of(2)],
    )?;
    conn.exec("COMMIT")?;
    Ok(gone > 0)
}
