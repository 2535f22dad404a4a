//! Records in the database which objects a load drops or disables.
//!
//! The schema is `pgsluice_loads`. A row is written before its object is dropped or disabled, in
//! the same transaction, and marked in the transaction that recreates the object. So a row without
//! a mark means that its object is missing or disabled: `repair` recreates it. A trigger of a
//! partitioned table is marked after that, when it is enabled on new partitions, too.
//!
//! The rows hold statements that `repair` runs. They can be trusted for two reasons only. Row-level
//! security lets each role write rows only in its own name, and only a superuser, the owner of the
//! database or the role itself owns the schema and its tables: another owner could write any row
//! and add triggers. `repair` runs only rows that its role has written.

pub mod node_commits;

use crate::error::Error;
pub use crate::facts::LedgerState as State;
use crate::plan::policy::Choice;
use crate::session::conn::Conn;
use crate::session::transaction::BEGIN;
use std::collections::HashSet;

/// Created in one transaction when the ledger is first needed.
pub(crate) const CREATE: &str = "
CREATE SCHEMA pgsluice_loads;
COMMENT ON SCHEMA pgsluice_loads IS 'bookkeeping of pgsluice: see its command repair';
CREATE TABLE pgsluice_loads.taken_down (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    load uuid NOT NULL,
    relation oid NOT NULL,
    relation_name text NOT NULL,
    object text NOT NULL,
    choice jsonb NOT NULL,
    search_path text NOT NULL,
    taken_down_by name NOT NULL DEFAULT current_user,
    taken_down_at timestamptz NOT NULL DEFAULT now(),
    put_back_at timestamptz
);
COMMENT ON TABLE pgsluice_loads.taken_down IS
    'indexes, constraints and triggers that loads took down; still down where put_back_at is null';
CREATE INDEX taken_down_still ON pgsluice_loads.taken_down (load) WHERE put_back_at IS NULL;
ALTER TABLE pgsluice_loads.taken_down ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON pgsluice_loads.taken_down
    USING (taken_down_by = current_user) WITH CHECK (taken_down_by = current_user);
GRANT USAGE ON SCHEMA pgsluice_loads TO PUBLIC;
GRANT SELECT, INSERT, UPDATE ON pgsluice_loads.taken_down TO PUBLIC;
";

/// A transaction that creates tables in the schema takes this lock.
pub(crate) const LOCK: &str =
    "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgsluice_loads'))";

/// One row: whether the ledger exists, its owners that cannot be trusted, whether the role may use
/// it, whether the role could create it, and whether the schema exists. Each table of a schema
/// depends on it in `pg_depend`, which has an index for that.
const STATE: &str = "
SELECT t.oid IS NOT NULL,
  (SELECT pg_catalog.string_agg(r.rolname::text, ', ')
    FROM pg_catalog.pg_roles r, pg_catalog.pg_database d
    WHERE d.datname = pg_catalog.current_database()
      AND r.oid IN (SELECT n.nspowner UNION ALL SELECT c.relowner FROM pg_catalog.pg_depend e
        JOIN pg_catalog.pg_class c ON c.oid = e.objid
        WHERE e.classid = 'pg_catalog.pg_class'::regclass::oid AND e.refobjid = n.oid
          AND e.refclassid = 'pg_catalog.pg_namespace'::regclass::oid)
      AND NOT r.rolsuper AND r.oid <> d.datdba
      AND r.rolname NOT IN (current_user, 'pg_database_owner')),
  pg_catalog.has_schema_privilege(n.oid, 'USAGE')
    AND pg_catalog.has_table_privilege(t.oid, 'SELECT, INSERT')
    AND pg_catalog.has_table_privilege(t.oid, 'UPDATE'),
  pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
  n.oid IS NOT NULL
FROM (SELECT 1) AS one
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'pgsluice_loads'
LEFT JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = 'taken_down'";

/// Checks whether the ledger exists and can be trusted. Changes nothing.
///
/// # Errors
///
/// The connection is lost.
pub fn state(conn: &mut Conn) -> Result<State, Error> {
    let row = &conn.exec(STATE)?[0];
    let is = |i: usize| row[i].as_deref() == Some("t");
    Ok(if let Some(owner) = &row[1] {
        State::Unusable(format!("the schema pgsluice_loads, or a table in it, belongs to {owner}"))
    } else if is(0) && is(2) {
        State::Ready
    } else if is(0) {
        State::Unusable("the role may not write to the schema pgsluice_loads".into())
    } else if is(4) {
        State::Unusable("the schema pgsluice_loads exists without its table".into())
    } else if is(3) {
        State::Missing
    } else {
        State::Unusable("the role may not create the schema pgsluice_loads".into())
    })
}

/// The prepared transactions of lanes in this database, of all roles, as a table. `load` is the
/// transaction ID of the first lane.
pub(crate) const PREPARED_LANES: &str = "(SELECT gid, m[1] AS load, owner, transaction, prepared \
     FROM pg_catalog.pg_prepared_xacts, \
     LATERAL pg_catalog.regexp_match(gid, '^pgsluice_([0-9]+)_[0-9]+$') AS m \
     WHERE m IS NOT NULL AND database = pg_catalog.current_database()) AS lanes";

/// A prepared transaction of a lane.
pub(crate) struct LaneInDoubt {
    /// the transaction's name
    pub gid: String,
    /// the transaction ID of the first lane
    pub load: String,
    /// its owner, if that is another role
    pub role: Option<String>,
}

/// The prepared transactions of lanes in this database, of all roles.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn prepared(conn: &mut Conn) -> Result<Vec<LaneInDoubt>, Error> {
    let rows = conn.exec(&format!(
        "SELECT gid, load, NULLIF(owner, current_user) FROM {PREPARED_LANES} ORDER BY prepared"
    ))?;
    let text = |cell: &Option<String>| cell.clone().unwrap_or_default();
    let lane = |row: &Vec<Option<String>>| {
        let (gid, load) = (text(&row[0]), text(&row[1]));
        LaneInDoubt { gid, load, role: row[2].clone() }
    };
    Ok(rows.iter().map(lane).collect())
}

/// What earlier loads of this role have left: in words, the missing or disabled objects of a table,
/// of its partitions and of the tables that it is a partition of, and prepared transactions (also
/// those of other roles); and the objects of the table. Excludes what belongs to a load that
/// still runs. `once`: the planned load recreates the objects of the table.
///
/// # Errors
///
/// The connection is lost.
pub fn left(
    conn: &mut Conn,
    relation: u32,
    once: bool,
) -> Result<(Vec<String>, Vec<Choice>), Error> {
    let in_doubt = prepared(conn)?;
    let (mut commits, mut entries) = match state(conn)? {
        State::Ready => (node_commits::recorded(conn)?, still_down(conn)?.0),
        _ => (Vec::new(), Vec::new()),
    };
    commits.retain(|commit| commit.target == relation);
    retain_related(conn, relation, &mut entries)?;
    if in_doubt.is_empty() && commits.is_empty() && entries.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    conn.exec("SAVEPOINT pgsluice_left")?;
    let (mut down, mut near, mut on_nodes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lanes, mut of_others) = (Vec::new(), Vec::new());
    for lane in in_doubt {
        if lock(conn, &lane.load)? {
            match lane.role {
                Some(role) => of_others.push(format!("{} of the role {role}", lane.gid)),
                None => lanes.push(lane.gid),
            }
        }
    }
    for commit in commits {
        if node_commits::take(conn, &commit.load)? {
            match &commit.role {
                Some(role) => of_others.push(format!("{} of the role {role}", commit.told())),
                None => on_nodes.push(commit.told()),
            }
        }
    }
    for entry in entries {
        if !lock(conn, &entry.load)? {
            continue;
        }
        match entry.relation == relation {
            true => down.extend(entry.choices),
            false => near.push(format!("{} of {}", entry.objects(), entry.relation_name)),
        }
    }
    // Releases the locks, which `repair` needs.
    conn.exec("ROLLBACK TO SAVEPOINT pgsluice_left; RELEASE SAVEPOINT pgsluice_left")?;
    let note = |what: &str, left: Vec<String>, how: &str| {
        let note = format!("an earlier load {what}: {}; {how}", left.join(", "));
        (!left.is_empty()).then_some(note)
    };
    let ends = "pgsluice repair ends them";
    let what = "left prepared transactions, which hold their locks";
    let prepared = note(what, lanes, ends);
    let of_others = note(what, of_others, "pgsluice repair as that role ends them");
    let on_nodes = note("left nodes with prepared transactions", on_nodes, ends);
    let recreates =
        if once { "this load recreates it first" } else { "pgsluice repair recreates it" };
    let what = "dropped or disabled";
    let objects = note(what, down.iter().map(|c| c.object.clone()).collect(), recreates);
    let near = note(what, near, "pgsluice repair recreates it");
    let notes = [prepared, of_others, on_nodes, objects, near];
    Ok((notes.into_iter().flatten().collect(), down))
}

/// Keeps the entries of a table, of its partitions and of the tables that it is a partition of: a
/// trigger that is disabled for one of them may be missing in a load of another. Takes no locks.
fn retain_related(
    conn: &mut Conn,
    relation: u32,
    entries: &mut Vec<LedgerEntry>,
) -> Result<(), Error> {
    let others: Vec<String> = entries
        .iter()
        .filter(|entry| entry.relation != relation)
        .map(|entry| entry.relation.to_string())
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    let rows = conn.query(
        "SELECT r FROM pg_catalog.unnest($2::oid[]) AS r \
         WHERE $1::oid IN (SELECT relid::oid FROM pg_catalog.pg_partition_ancestors(r::regclass)) \
           OR r IN (SELECT relid::oid FROM pg_catalog.pg_partition_ancestors($1::oid::regclass))",
        &[Some(&relation.to_string()), Some(&format!("{{{}}}", others.join(",")))],
    )?;
    let related: HashSet<&str> = rows.iter().filter_map(|row| row[0].as_deref()).collect();
    entries.retain(|entry| {
        entry.relation == relation || related.contains(entry.relation.to_string().as_str())
    });
    Ok(())
}

/// Creates the ledger if it is missing. Call this outside a transaction. It uses a separate short
/// transaction, so that no other load waits for this one.
///
/// # Errors
///
/// The connection is lost. If the server reports an error, the result is [`State::Unusable`].
pub fn ensure(conn: &mut Conn) -> Result<State, Error> {
    let now = state(conn)?;
    if now != State::Missing {
        return Ok(now);
    }
    // Two loads may find it missing at the same time. Under the lock, the second one checks again.
    conn.exec(&format!("{BEGIN}; {LOCK}"))?;
    let now = state(conn)?;
    let made = if now == State::Missing { conn.exec(CREATE).err() } else { None };
    match made {
        Some(error) if error.sqlstate().is_empty() => Err(error),
        Some(error) => {
            conn.exec("ROLLBACK")?;
            Ok(State::Unusable(format!("the schema pgsluice_loads: {}", error.message().plain())))
        }
        None => {
            conn.exec("COMMIT")?;
            state(conn)
        }
    }
}

/// Returns a new name for a load in the ledger.
///
/// # Errors
///
/// The connection is lost.
pub fn new_load(conn: &mut Conn) -> Result<String, Error> {
    let rows = conn.exec("SELECT pg_catalog.gen_random_uuid()")?;
    Ok(rows[0][0].clone().unwrap_or_default())
}

/// Takes the lock of a load until the transaction ends. A session that holds it works on what the
/// load has dropped or disabled. Returns false if another session holds it.
///
/// # Errors
///
/// The connection is lost.
pub fn lock(conn: &mut Conn, load: &str) -> Result<bool, Error> {
    let rows = conn.query(
        "SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))",
        &[Some(&format!("pgsluice_loads {load}"))],
    )?;
    Ok(rows[0][0].as_deref() == Some("t"))
}

/// Waits for the session that holds the lock of a load, and takes it until the transaction ends.
///
/// # Errors
///
/// The connection is lost, or the wait takes too long.
pub fn wait(conn: &mut Conn, load: &str) -> Result<(), Error> {
    let sql = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))";
    conn.query(sql, &[Some(&format!("pgsluice_loads {load}"))]).map(drop)
}

/// Missing or disabled objects of one load.
#[derive(Clone, Debug)]
pub struct LedgerEntry {
    /// the load's name
    pub load: String,
    /// `pg_class.oid` of the table
    pub relation: u32,
    /// the table's name at that time, quoted and qualified
    pub relation_name: String,
    /// `search_path` of the session that dropped or disabled them
    pub search_path: String,
    /// what they are and how they are recreated, in the order of their creation
    pub choices: Vec<Choice>,
}

impl LedgerEntry {
    /// All the objects, in words.
    pub(crate) fn objects(&self) -> String {
        let objects: Vec<&str> = self.choices.iter().map(|c| c.object.as_str()).collect();
        objects.join(", ")
    }
}

/// A missing or disabled object of a load of another role.
#[derive(Clone, Debug)]
pub struct OthersObject {
    /// the load's name
    pub load: String,
    /// `pg_class.oid` of the table
    pub relation: u32,
    /// the table's name at that time, quoted and qualified
    pub relation_name: String,
    /// the object, its table and the role, in words
    pub words: String,
    /// whether the role exists; it may have been renamed or dropped
    pub role_exists: bool,
}

impl OthersObject {
    /// How it can be recreated.
    pub(crate) fn hint(&self) -> &'static str {
        match self.role_exists {
            true => "run pgsluice repair as that role",
            false => {
                "that role was renamed or dropped; a superuser can set taken_down_by in \
                 pgsluice_loads.taken_down to the role that is to run pgsluice repair, which then \
                 runs the statements in these rows"
            }
        }
    }
}

/// Sets, until the transaction ends, what queries of the ledger need. If `row_security` is off for
/// the role, the server rejects queries from which a policy would hide rows. For the path see
/// [`in_pg_catalog`](crate::session::transaction::in_pg_catalog).
pub(crate) const SETTINGS: &str = "SELECT pg_catalog.current_setting('row_security'), \
    pg_catalog.current_setting('search_path'), pg_catalog.set_config('row_security', 'on', true), \
    pg_catalog.set_config('search_path', 'pg_catalog', true)";

/// Uses the ledger's tables in the open transaction, with [`SETTINGS`]. After an error, the
/// transaction must be rolled back.
pub(crate) fn under_policies<T>(
    conn: &mut Conn,
    work: impl FnOnce(&mut Conn) -> Result<T, Error>,
) -> Result<T, Error> {
    let rows = conn.exec(SETTINGS)?;
    let done = work(conn)?;
    let restore = "SELECT pg_catalog.set_config('row_security', $1, true), \
        pg_catalog.set_config('search_path', $2, true)";
    conn.query(restore, &[rows[0][0].as_deref(), rows[0][1].as_deref()])?;
    Ok(done)
}

/// Records objects in the transaction that is about to drop or disable them.
///
/// # Errors
///
/// The server reports an error.
pub fn record(conn: &mut Conn, entry: &LedgerEntry) -> Result<(), Error> {
    under_policies(conn, |conn| add_entry(conn, entry))
}

fn add_entry(conn: &mut Conn, entry: &LedgerEntry) -> Result<(), Error> {
    for choice in &entry.choices {
        let json = serde_json::to_string(choice).unwrap_or_default();
        conn.query(
            "INSERT INTO pgsluice_loads.taken_down \
             (load, relation, relation_name, object, choice, search_path) \
             VALUES ($1::uuid, $2::oid, $3, $4, $5::jsonb, $6)",
            &[
                Some(&entry.load),
                Some(&entry.relation.to_string()),
                Some(&entry.relation_name),
                Some(&choice.object),
                Some(&json),
                Some(&entry.search_path),
            ],
        )?;
    }
    Ok(())
}

/// Marks an object of a load as recreated, in the transaction that recreates it.
///
/// # Errors
///
/// The server reports an error.
pub fn mark(conn: &mut Conn, load: &str, choice: &Choice) -> Result<(), Error> {
    let update = "UPDATE pgsluice_loads.taken_down SET put_back_at = now() \
        WHERE load = $1::uuid AND put_back_at IS NULL \
          AND choice ->> 'kind' = $2 AND choice ->> 'name' = $3";
    let parameters = [Some(load), Some(choice.kind.as_str()), Some(choice.name.as_str())];
    under_policies(conn, |conn| conn.query(update, &parameters).map(drop))
}

/// The condition that a row counts. Any role may insert rows about any table, so those of other
/// roles that may not load into it do not count.
const COUNTS: &str = "(taken_down_by = current_user \
    OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = taken_down_by AND \
      pg_catalog.has_any_column_privilege(r.oid, relation, 'INSERT') IS NOT TRUE))";

/// Returns the objects that this role has dropped or disabled and that are not recreated, for each
/// load; and those of other roles, as far as this role may see them.
///
/// # Errors
///
/// The connection is lost, or a row was not written by this program.
pub fn still_down(conn: &mut Conn) -> Result<(Vec<LedgerEntry>, Vec<OthersObject>), Error> {
    let select = format!(
        "SELECT load, relation, relation_name, search_path, choice, \
         taken_down_by = current_user, \
         object || ' of ' || relation_name || ' (taken down by ' || taken_down_by || ')', \
         EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = taken_down_by) \
         FROM pgsluice_loads.taken_down WHERE put_back_at IS NULL AND {COUNTS} ORDER BY id"
    );
    let rows = under_policies(conn, |conn| conn.exec(&select))?;
    let (mut entries, mut others) = (Vec::<LedgerEntry>::new(), Vec::new());
    for row in rows {
        let text = |i: usize| row[i].clone().unwrap_or_default();
        let (load, relation, relation_name) = (text(0), text(1).parse().unwrap_or(0), text(2));
        if text(5) != "t" {
            let (words, role_exists) = (text(6), text(7) == "t");
            others.push(OthersObject { load, relation, relation_name, words, role_exists });
            continue;
        }
        let choice = serde_json::from_str(&text(4))
            .map_err(|e| Error::new(format!("a row of pgsluice_loads.taken_down: {e}")))?;
        match entries.iter_mut().find(|e| e.load == load) {
            Some(entry) => entry.choices.push(choice),
            None => entries.push(LedgerEntry {
                load,
                relation,
                relation_name,
                search_path: text(3),
                choices: vec![choice],
            }),
        }
    }
    Ok((entries, others))
}
