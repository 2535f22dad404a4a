//! Drops or disables objects and recreates them within the load's own transaction. Also the code
//! that both ways of recreating share.

use super::settings;
use crate::error::Error;
use crate::facts::TableObjects;
use crate::ledger::{self, LedgerEntry, State};
use crate::options::Indexes;
use crate::plan::policy::{decide, Choice, Policy, Request};
use crate::session::conn::Conn;
use crate::session::prepared::refuse_to_wait;
use crate::session::transaction::check_deferred;
use crate::text::text;
use std::time::Instant;

/// The decisions, and the objects that are dropped or disabled now.
#[derive(Clone, Debug)]
pub struct TakenDown {
    /// all decisions, for the report
    pub decision: Policy,
    /// the dropped or disabled objects, and how they are recreated
    pub entry: LedgerEntry,
    /// the ledger has the entry
    pub recorded: bool,
}

impl TakenDown {
    /// Nothing is dropped or disabled.
    pub(super) fn nothing(relation: u32, table: &str, decision: Policy) -> TakenDown {
        let entry = LedgerEntry {
            load: String::new(),
            relation,
            relation_name: table.to_owned(),
            search_path: String::new(),
            choices: Vec::new(),
        };
        TakenDown { decision, entry, recorded: false }
    }
}

/// An object that was recreated.
#[derive(Clone, Debug)]
pub struct Restored {
    /// the object, in words
    pub object: String,
    /// duration in seconds
    pub seconds: f64,
    /// there was nothing to do: another session had recreated it, or it was dropped
    pub was_back: bool,
}

/// What was done to recreate all objects.
#[derive(Clone, Debug, Default)]
pub struct PutBack {
    /// the setting that was changed for the index builds, as `name = value`
    pub setting: Option<String>,
    /// the objects, in the order in which they were recreated
    pub restored: Vec<Restored>,
}

/// Decides, records and drops or disables objects in the open transaction. The caller must commit
/// or roll back. Nothing is visible to other sessions before.
///
/// If the table is in use, or the server reports an error, indexes chosen by the automatic rule are
/// kept. Objects that the user has requested wait for the lock, or fail.
///
/// # Errors
///
/// The connection is lost, the server rejects what the user has requested, or prepared lanes of a
/// load that is gone hold locks of the table, or of one that a dropped foreign key refers to.
pub fn take_down(
    conn: &mut Conn,
    oid: u32,
    request: &Request,
    ledger: &State,
) -> Result<TakenDown, Error> {
    let objects = TableObjects::read(conn, oid)?;
    let mut decision = decide(&objects, request);
    let by_rule = request.indexes == Indexes::Auto;
    let waits = !by_rule || request.truncates;
    // A session that holds the lock looked for such lanes before it waited, and none can follow.
    if !request.locked && decision.down().any(|c| c.kind != "index" || waits) {
        refuse_to_wait(conn, oid, &objects.relation.name)?;
    }
    // To drop a foreign key, the server locks the other table, too.
    let drops = |name: &str| decision.down().any(|c| c.kind == "foreign key" && c.name == name);
    for key in objects.foreign_keys.iter().filter(|key| drops(&key.name)) {
        refuse_to_wait(conn, key.referenced_oid, &key.referenced)?;
    }
    if decision.down().any(|c| c.kind == "index") {
        if lock_table(conn, &objects.relation.name, waits)? {
            // Only now can no session change the objects, so read them again.
            decision = decide(&TableObjects::read(conn, oid)?, request);
        } else {
            decision.keep_indexes(&"other sessions are using the table".into());
        }
    }
    if !decision.any_down() {
        return Ok(TakenDown::nothing(oid, &objects.relation.name, decision));
    }
    let asked = decision.down().any(|c| c.kind != "index") || !by_rule;
    conn.exec("SAVEPOINT pgsluice_maintenance")?;
    match record_and_drop(conn, &objects, &decision, ledger) {
        Ok(taken) => {
            conn.exec("RELEASE SAVEPOINT pgsluice_maintenance")?;
            Ok(taken)
        }
        Err(error) if asked || error.sqlstate().is_empty() => Err(error),
        Err(error) => {
            conn.exec(
                "ROLLBACK TO SAVEPOINT pgsluice_maintenance; \
                 RELEASE SAVEPOINT pgsluice_maintenance",
            )?;
            // Nothing but indexes was to be dropped.
            decision.keep_indexes(error.message());
            Ok(TakenDown::nothing(oid, &objects.relation.name, decision))
        }
    }
}

/// Takes the lock for dropping an index. Returns false if it is not available at once and `waits`
/// is not set.
fn lock_table(conn: &mut Conn, name: &str, waits: bool) -> Result<bool, Error> {
    // Tables that inherit from this one have their own indexes.
    let lock = format!("LOCK TABLE ONLY {name} IN ACCESS EXCLUSIVE MODE");
    if waits {
        return conn.exec(&lock).map(|_| true);
    }
    let lock = format!("SAVEPOINT pgsluice_lock; {lock} NOWAIT; RELEASE SAVEPOINT pgsluice_lock");
    match conn.exec(&lock) {
        Ok(_) => Ok(true),
        Err(error) if error.sqlstate() == "55P03" => {
            conn.exec("ROLLBACK TO SAVEPOINT pgsluice_lock; RELEASE SAVEPOINT pgsluice_lock")?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn record_and_drop(
    conn: &mut Conn,
    objects: &TableObjects,
    decision: &Policy,
    ledger: &State,
) -> Result<TakenDown, Error> {
    let choices: Vec<Choice> = decision.down().cloned().collect();
    let recorded = *ledger == State::Ready;
    let entry = LedgerEntry {
        load: if recorded { ledger::new_load(conn)? } else { String::new() },
        relation: objects.relation.oid,
        relation_name: objects.relation.name.clone(),
        search_path: conn.exec("SHOW search_path")?[0][0].clone().unwrap_or_default(),
        choices,
    };
    if recorded {
        ledger::record(conn, &entry)?;
    }
    for choice in &entry.choices {
        conn.exec(&choice.steps.drop)?;
    }
    Ok(TakenDown { decision: decision.clone(), entry, recorded })
}

/// Recreates all objects in the transaction that dropped them, compares them with their previous
/// state, and marks them in the ledger.
///
/// # Errors
///
/// The server reports an error, for example because rows violate a constraint, or an object differs
/// from its previous state. The transaction then cannot be committed.
pub fn put_back(conn: &mut Conn, taken: &TakenDown) -> Result<PutBack, Error> {
    let entry = &taken.entry;
    if entry.choices.is_empty() {
        return Ok(PutBack::default());
    }
    // Pending deferred checks would prevent ALTER TABLE.
    check_deferred(conn)?;
    let setting = settings::for_builds(conn)?.map(|(name, value)| format!("{name} = {value}"));
    let mut restored = Vec::new();
    for kind in ["index", "foreign key", "trigger"] {
        for choice in entry.choices.iter().filter(|c| c.kind == kind) {
            let start = Instant::now();
            let built = build(conn, choice).and_then(|()| attach(conn, entry.relation, choice));
            built.map_err(|error| refused(error, choice))?;
            if taken.recorded {
                ledger::mark(conn, &entry.load, choice)?;
            }
            let seconds = start.elapsed().as_secs_f64();
            restored.push(Restored { object: choice.object.clone(), seconds, was_back: false });
        }
    }
    let objects = TableObjects::read(conn, entry.relation)?;
    for choice in &entry.choices {
        same(&objects, choice)?;
    }
    Ok(PutBack { setting, restored })
}

/// The server's error, with a hint for a load that can leave the object in place.
fn refused(error: Error, choice: &Choice) -> Error {
    // If the function of an index lacks something, the server's hint names neither the index nor
    // the way out.
    let lacks = matches!(error.sqlstate(), "42883" | "42P01" | "42704");
    if error.hint().is_some() && !(lacks && choice.kind == "index") {
        return error;
    }
    match (error.sqlstate(), choice.kind.as_str()) {
        ("23505" | "23P01", _) => {
            error.with_hint("with `indexes` keep, the message names the record")
        }
        ("23503", _) => error.with_hint("with `foreign-keys` keep, the message names the record"),
        (_, "index") => {
            let object = &choice.object;
            error.with_hint(text!(
                "while {} was recreated; `indexes` keep leaves it in place",
                object
            ))
        }
        _ => error,
    }
}

/// Recreates an object beside its table.
pub(super) fn build(conn: &mut Conn, choice: &Choice) -> Result<(), Error> {
    for sql in &choice.steps.build {
        conn.exec(sql)?;
    }
    Ok(())
}

/// Attaches an object to its table again.
pub(super) fn attach(conn: &mut Conn, relation: u32, choice: &Choice) -> Result<(), Error> {
    for sql in &choice.steps.attach {
        conn.exec(sql)?;
    }
    if choice.kind == "index" {
        rename_columns(conn, relation, choice)?;
    }
    Ok(())
}

/// Restores the names of an index's columns. The server takes them from the present columns of the
/// table, but someone may have renamed columns of the table or of the index.
fn rename_columns(conn: &mut Conn, relation: u32, choice: &Choice) -> Result<(), Error> {
    let rows = conn.query(
        "SELECT a.attname FROM pg_catalog.pg_index i \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indexrelid \
         WHERE i.indrelid = $1::oid AND i.indexrelid = $2::regclass::oid ORDER BY a.attnum",
        &[Some(&relation.to_string()), Some(&choice.name)],
    )?;
    let now = rows.iter().map(|r| r[0].as_deref().unwrap_or_default());
    let wrong: Vec<(usize, &str, &String)> = now
        .zip(&choice.columns)
        .enumerate()
        .filter(|(_, (now, then))| now != then)
        .map(|(i, (now, then))| (i, now, then))
        .collect();
    let mut rename = |from: &str, to: &str| {
        let (from, to) = (quote(from), quote(to));
        conn.exec(&format!("ALTER TABLE {} RENAME COLUMN {from} TO {to}", choice.name))
    };
    // Use temporary names first, because two columns may have exchanged their names.
    for (i, now, _) in &wrong {
        rename(now, &format!("pgsluice column {i}"))?;
    }
    for (i, _, then) in &wrong {
        rename(&format!("pgsluice column {i}"), then)?;
    }
    Ok(())
}

fn quote(name: &str) -> String {
    crate::session::conn::quote_ident(name)
}

/// Whether the object has its previous state.
///
/// # Errors
///
/// The object is missing, or something about it is different.
pub(super) fn same(objects: &TableObjects, choice: &Choice) -> Result<(), Error> {
    let Some(now) = objects.steps(&choice.kind, &choice.name) else {
        return Err(Error::new(format!("{} is missing", choice.object)));
    };
    let then = &choice.steps.state;
    if now.state == *then {
        return Ok(());
    }
    let fields = then.as_object().into_iter().flatten();
    let differences: Vec<String> = fields
        .filter(|(key, value)| now.state.get(key) != Some(value))
        .map(|(key, value)| format!("{key} was {value}, is {}", now.state[key]))
        .collect();
    Err(Error::new(format!(
        "{} differs from what it was: {}",
        choice.object,
        differences.join("; ")
    )))
}
