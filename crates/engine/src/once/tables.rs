//! The tables of the schema `pgsluice_loads`: what loads with `once` have loaded, on a node the
//! slices that it has of files, and what several nodes commit together.
//!
//! A role can read and write the rows about the tables into which it may insert: a role that may
//! insert rows may also record which ones are loaded. `target` is a `regclass`. So a dump restores
//! it by name, and a table that was dropped and created again begins without a history.
//!
//! An upgrade only creates tables. A running load has read `sources` in the transaction that holds
//! its claims. A statement that alters such a table would wait for the end of that load, and the
//! lanes of the load would wait for that statement.

use super::slices;
use crate::error::Error;
use crate::ledger::{self, node_commits, State};
use crate::session::conn::Conn;
use crate::session::transaction::{refuse_read_only, BEGIN};
use crate::text::text;

/// The version of these tables.
const VERSION: i32 = 7;

/// What version 2 adds.
const REJECT_FILES: &str = "
CREATE TABLE pgsluice_loads.reject_files (
    load bigint REFERENCES pgsluice_loads.loads,
    file text,
    bytes bigint NOT NULL,
    hash bytea NOT NULL,
    reasons_bytes bigint NOT NULL,
    reasons_hash bytea NOT NULL,
    records bigint NOT NULL,
    lines bigint NOT NULL,
    PRIMARY KEY (load, file)
);
COMMENT ON TABLE pgsluice_loads.reject_files IS
    'reject files of loads that are not complete, with the bytes of committed transactions';
ALTER TABLE pgsluice_loads.reject_files ENABLE ROW LEVEL SECURITY;
CREATE POLICY may_insert ON pgsluice_loads.reject_files
    USING (EXISTS (SELECT FROM pgsluice_loads.loads l WHERE l.number = load));
GRANT SELECT, INSERT, UPDATE, DELETE ON pgsluice_loads.reject_files TO PUBLIC;
";

/// What version 5 adds.
const PARTS: &str = "
CREATE TABLE pgsluice_loads.leases (
    load bigint PRIMARY KEY REFERENCES pgsluice_loads.loads ON DELETE CASCADE,
    machine text NOT NULL,
    expires timestamptz NOT NULL
);
COMMENT ON TABLE pgsluice_loads.leases IS 'machines at work on loads that are shared';
CREATE TABLE pgsluice_loads.parts (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source bigint NOT NULL REFERENCES pgsluice_loads.sources ON DELETE CASCADE,
    head_bytes bigint NOT NULL DEFAULT 0,
    start_byte bigint NOT NULL,
    end_byte bigint CHECK (end_byte > start_byte),
    records_before bigint NOT NULL DEFAULT 0,
    lines_before bigint NOT NULL DEFAULT 0,
    line_end text CHECK (line_end IN ('lf', 'cr', 'crlf')),
    bytes bigint NOT NULL,
    to_split boolean NOT NULL,
    load bigint REFERENCES pgsluice_loads.loads ON DELETE SET NULL,
    error text
);
COMMENT ON TABLE pgsluice_loads.parts IS
    'what is left of files that several machines load; load: the one that has it';
CREATE INDEX parts_by_source ON pgsluice_loads.parts (source);
CREATE INDEX parts_by_load ON pgsluice_loads.parts (load) WHERE load IS NOT NULL;
ALTER TABLE pgsluice_loads.leases ENABLE ROW LEVEL SECURITY;
ALTER TABLE pgsluice_loads.parts ENABLE ROW LEVEL SECURITY;
CREATE POLICY may_insert ON pgsluice_loads.leases
    USING (EXISTS (SELECT FROM pgsluice_loads.loads l WHERE l.number = load));
CREATE POLICY may_insert ON pgsluice_loads.parts
    USING (EXISTS (SELECT FROM pgsluice_loads.sources s WHERE s.number = source));
GRANT SELECT, INSERT, UPDATE, DELETE ON pgsluice_loads.leases, pgsluice_loads.parts TO PUBLIC;
";

/// What version 7 adds. Version 6, of a few hours, had a column of `sources` for it.
const HEADERS: &str = "
CREATE TABLE pgsluice_loads.headers (
    source bigint PRIMARY KEY REFERENCES pgsluice_loads.sources ON DELETE CASCADE,
    hash bytea
);
COMMENT ON TABLE pgsluice_loads.headers IS 'BLAKE3 hashes of the headers of sources';
ALTER TABLE pgsluice_loads.headers ENABLE ROW LEVEL SECURITY;
CREATE POLICY may_insert ON pgsluice_loads.headers
    USING (EXISTS (SELECT FROM pgsluice_loads.sources s WHERE s.number = source));
GRANT SELECT, INSERT, UPDATE, DELETE ON pgsluice_loads.headers TO PUBLIC;
";

/// The tables of version 1. The first load that needs them creates them in one transaction,
/// together with [`REJECT_FILES`], [`node_commits::CREATE`] (version 3), [`slices::CREATE`]
/// (version 4), [`PARTS`] and [`HEADERS`].
///
/// `pieces.commit` has no foreign key: the row of `commits` is inserted by the same transaction, and
/// deleted after its pieces. The check was more than half of the time of an INSERT into `pieces`,
/// which has a row for each 512 kB. Tables that earlier builds have created still have it.
const CREATE: &str = "
CREATE TABLE pgsluice_loads.version (
    one_row boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    version integer NOT NULL
);
COMMENT ON TABLE pgsluice_loads.version IS 'version of the tables of loads with once';
INSERT INTO pgsluice_loads.version (version) VALUES (7);
CREATE TABLE pgsluice_loads.loads (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target regclass NOT NULL,
    target_name text NOT NULL,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'complete', 'stopped')),
    role name NOT NULL DEFAULT current_user,
    program text NOT NULL,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended timestamptz,
    error text
);
COMMENT ON TABLE pgsluice_loads.loads IS 'loads that recorded what they loaded';
CREATE TABLE pgsluice_loads.sources (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target regclass NOT NULL,
    name text NOT NULL,
    size bigint NOT NULL,
    modified bigint NOT NULL,
    head bytea NOT NULL,
    tail bytea NOT NULL,
    options jsonb NOT NULL,
    state text NOT NULL DEFAULT 'loading' CHECK (state IN ('loading', 'complete')),
    load bigint NOT NULL REFERENCES pgsluice_loads.loads,
    same_as bigint REFERENCES pgsluice_loads.sources ON DELETE CASCADE,
    completed timestamptz,
    UNIQUE (target, name)
);
COMMENT ON TABLE pgsluice_loads.sources IS
    'files that are loaded or partly loaded; same_as: another name of the same content';
CREATE INDEX sources_by_content ON pgsluice_loads.sources (target, head);
CREATE INDEX sources_by_load ON pgsluice_loads.sources (load);
CREATE INDEX sources_same_as ON pgsluice_loads.sources (same_as) WHERE same_as IS NOT NULL;
CREATE TABLE pgsluice_loads.commits (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    load bigint NOT NULL REFERENCES pgsluice_loads.loads,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    read bigint NOT NULL,
    loaded bigint NOT NULL,
    rejected bigint NOT NULL,
    skipped bigint NOT NULL CHECK (read = loaded + rejected + skipped),
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE pgsluice_loads.commits IS 'transactions of loads, with the numbers of their records';
CREATE INDEX commits_by_load ON pgsluice_loads.commits (load);
CREATE TABLE pgsluice_loads.pieces (
    source bigint REFERENCES pgsluice_loads.sources ON DELETE CASCADE,
    start_byte bigint,
    end_byte bigint NOT NULL CHECK (end_byte > start_byte),
    first_record bigint NOT NULL,
    first_line bigint NOT NULL,
    records bigint NOT NULL,
    lines bigint NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32),
    commit bigint NOT NULL,
    PRIMARY KEY (source, start_byte)
);
COMMENT ON TABLE pgsluice_loads.pieces IS
    'byte ranges of sources that are in the table, with their BLAKE3 hashes';
ALTER TABLE pgsluice_loads.loads ENABLE ROW LEVEL SECURITY;
ALTER TABLE pgsluice_loads.sources ENABLE ROW LEVEL SECURITY;
ALTER TABLE pgsluice_loads.commits ENABLE ROW LEVEL SECURITY;
ALTER TABLE pgsluice_loads.pieces ENABLE ROW LEVEL SECURITY;
CREATE POLICY may_insert ON pgsluice_loads.loads
    USING (pg_catalog.has_any_column_privilege(target::oid, 'INSERT'));
CREATE POLICY may_insert ON pgsluice_loads.sources
    USING (pg_catalog.has_any_column_privilege(target::oid, 'INSERT'));
CREATE POLICY may_insert ON pgsluice_loads.commits
    USING (EXISTS (SELECT FROM pgsluice_loads.loads l WHERE l.number = load));
CREATE POLICY may_insert ON pgsluice_loads.pieces
    USING (EXISTS (SELECT FROM pgsluice_loads.sources s WHERE s.number = source));
GRANT SELECT ON pgsluice_loads.version TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgsluice_loads.loads, pgsluice_loads.sources,
    pgsluice_loads.commits, pgsluice_loads.pieces TO PUBLIC;
";

/// Returns the statements that create the schema and all of its tables, for an administrator to
/// run.
pub fn statements() -> String {
    let (of_3, of_4) = (node_commits::CREATE, slices::CREATE);
    format!("BEGIN;{}{CREATE}{REJECT_FILES}{of_3}{of_4}{PARTS}{HEADERS}COMMIT;", ledger::CREATE)
}

/// Creates or upgrades the tables, for roles that may not. Returns their version.
///
/// # Errors
///
/// The server cannot be reached, or is read-only by default, other roles would not use tables of
/// this role, or as for a load that needs the tables.
pub fn init(url: &str) -> Result<i32, Error> {
    let mut conn = Conn::open(url)?;
    refuse_read_only(&mut conn)?;
    if version(&mut conn)? != Some(VERSION) {
        for_all(&mut conn)?;
    }
    ensure(&mut conn)?;
    Ok(VERSION)
}

/// Checks that other roles use tables that this role creates, unless the schema is its own already.
/// A member of the owner is not trusted as the owner is.
fn for_all(conn: &mut Conn) -> Result<(), Error> {
    let rows = conn.exec(
        "SELECT r.rolname, pg_catalog.pg_get_userbyid(d.datdba) \
         FROM pg_catalog.pg_roles r, pg_catalog.pg_database d \
         WHERE r.rolname = current_user AND d.datname = pg_catalog.current_database() \
           AND NOT r.rolsuper AND r.oid <> d.datdba \
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n \
             WHERE n.nspname = 'pgsluice_loads' AND n.nspowner = r.oid)",
    )?;
    let Some(row) = rows.first() else { return Ok(()) };
    let [role, owner] = [0, 1].map(|i| row[i].as_deref().unwrap_or_default());
    Err(Error::new(format!("the tables would belong to {role}, and other roles would not use them"))
        .with_hint(text!(
            "run this as {}, which owns the database, or as a superuser; members set PGOPTIONS='-c role={}'; \
             a load with `once` creates them for its own role",
            owner,
            owner
        )))
}

/// Creates the tables if they are missing, and upgrades tables of earlier versions. Call this
/// outside a transaction.
///
/// # Errors
///
/// The role may not create the tables, or they are of a later version.
pub(crate) fn ensure(conn: &mut Conn) -> Result<(), Error> {
    if version(conn)? == Some(VERSION) {
        return Ok(());
    }
    if let State::Unusable(why) = ledger::ensure(conn)? {
        return Err(unusable(&why));
    }
    // Two loads may find the tables missing at the same time. Under the lock, the second one checks
    // again.
    conn.exec(&format!("{BEGIN}; {}", ledger::LOCK))?;
    let (of_2, of_3, of_4) = (REJECT_FILES, node_commits::CREATE, slices::CREATE);
    let now = format!("UPDATE pgsluice_loads.version SET version = {VERSION}");
    let missing = match version(conn)? {
        None => format!("{CREATE}{of_2}{of_3}{of_4}{PARTS}{HEADERS}"),
        Some(1) => format!("{of_2}{of_3}{of_4}{PARTS}{HEADERS}{now}"),
        Some(2) => format!("{of_3}{of_4}{PARTS}{HEADERS}{now}"),
        Some(3) => format!("{of_4}{PARTS}{HEADERS}{now}"),
        Some(4) => format!("{PARTS}{HEADERS}{now}"),
        Some(5 | 6) => format!("{HEADERS}{now}"),
        Some(VERSION) => String::new(),
        Some(other) => return Err(of_another(other)),
    };
    if let Err(error) = conn.exec(&missing) {
        return Err(if error.sqlstate().is_empty() { error } else { unusable(error.message()) });
    }
    conn.exec("COMMIT").map(drop)
}

/// Whether the tables exist, in a version that this program can use.
///
/// # Errors
///
/// The tables are of another version, or cannot be trusted.
pub(super) fn there(conn: &mut Conn) -> Result<bool, Error> {
    match version(conn)? {
        None => Ok(false),
        Some(VERSION) => Ok(true),
        Some(other) => Err(of_another(other)),
    }
}

/// Returns the version of the tables; `None` if they are missing.
fn version(conn: &mut Conn) -> Result<Option<i32>, Error> {
    let found = "SELECT 1 FROM pg_catalog.pg_class c \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = 'pgsluice_loads' AND c.relname = 'version'";
    if conn.exec(found)?.is_empty() {
        return Ok(None);
    }
    if let State::Unusable(why) = ledger::state(conn)? {
        return Err(unusable(&why));
    }
    let rows = conn.exec("SELECT version FROM pgsluice_loads.version")?;
    Ok(Some(rows.first().and_then(|row| row[0].as_ref()?.parse().ok()).unwrap_or(0)))
}

fn of_another(version: i32) -> Error {
    Error::new(format!(
        "the tables of the schema pgsluice_loads have version {version}, and this program needs {VERSION}"
    ))
    .with_hint(match version < VERSION {
        true => {
            "pgsluice loads init, or the next load with `once`, brings them to this version if the \
             owner of the database runs it"
        }
        false => "use the version of pgsluice that created them, or a later one",
    })
}

fn unusable(why: &str) -> Error {
    Error::new(text!("tables in the schema pgsluice_loads are needed: {}", why)).with_hint(
        "pgsluice loads init creates or upgrades them if the owner of the database runs it; a schema that \
         belongs to another role must be dropped before that",
    )
}
