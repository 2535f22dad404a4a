//! Taking down and putting back within the load's own transaction, and what
//! both ways of putting back share.

use super::settings;
use crate::error::Error;
use crate::facts::TableObjects;
use crate::ledger::{self, LedgerEntry, State};
use crate::options::Indexes;
use crate::plan::policy::{decide, Choice, Policy, Request};
use crate::session::conn::Conn;
use crate::text::text;
use std::time::Instant;

/// What was decided, and what of it is down now.
#[derive(Clone, Debug)]
pub struct TakenDown {
    /// all choices, for the report
    pub decision: Policy,
    /// what is down, and how it is put back
    pub entry: LedgerEntry,
    /// the ledger has it
    pub recorded: bool,
}

/// An object that was put back.
#[derive(Clone, Debug)]
pub struct Restored {
    /// what it is, in words
    pub object: String,
    /// what it took
    pub seconds: f64,
    /// somebody else had put it back already
    pub was_back: bool,
}

/// What was done to put everything back.
#[derive(Clone, Debug, Default)]
pub struct PutBack {
    /// the setting that was changed for the builds, as `name = value`
    pub setting: Option<String>,
    /// the objects, in the order of their making
    pub restored: Vec<Restored>,
}

/// Decides, records and takes down, in the transaction that is open. Commit
/// and rollback are the caller's: nothing here is visible before.
///
/// A choice made by rule gives way, where the table is in use or the server
/// refuses; what the user asked for by name waits or fails.
///
/// # Errors
///
/// The connection is lost, or the server refuses what was asked for by name.
pub fn take_down(
    conn: &mut Conn,
    oid: u32,
    request: &Request,
    ledger: &State,
) -> Result<TakenDown, Error> {
    let objects = TableObjects::read(conn, oid)?;
    let mut decision = decide(&objects, request);
    let by_rule = request.indexes == Indexes::Auto;
    if decision.down().any(|c| c.kind == "index") {
        let waits = !by_rule || request.truncates;
        if lock_table(conn, &objects.relation.name, waits)? {
            // Only now nobody can change what is read.
            decision = decide(&TableObjects::read(conn, oid)?, request);
        } else {
            decision.keep_indexes(&"other sessions are using the table".into());
        }
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
            decision.keep_indexes(error.message());
            record_and_drop(conn, &objects, &decision, ledger)
        }
    }
}

/// Takes the lock that dropping an index needs; false where it is not to be
/// had at once and `waits` is not set.
fn lock_table(conn: &mut Conn, name: &str, waits: bool) -> Result<bool, Error> {
    let lock = format!("LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE");
    if waits {
        return conn.exec(&lock).map(|_| true);
    }
    conn.exec("SAVEPOINT pgsluice_lock")?;
    match conn.exec(&format!("{lock} NOWAIT")) {
        Ok(_) => {
            conn.exec("RELEASE SAVEPOINT pgsluice_lock")?;
            Ok(true)
        }
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
    let recorded = !choices.is_empty() && *ledger == State::Ready;
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

/// Puts back everything in the transaction that took it down, compares it with
/// what it was, and marks it in the ledger.
///
/// # Errors
///
/// The server refuses, as it does where rows violate a constraint; or an object
/// is not what it was. The transaction cannot be committed then.
pub fn put_back(conn: &mut Conn, taken: &TakenDown) -> Result<PutBack, Error> {
    let entry = &taken.entry;
    if entry.choices.is_empty() {
        return Ok(PutBack::default());
    }
    // Checks that wait for the commit would keep the server from altering the table.
    conn.exec("SET CONSTRAINTS ALL IMMEDIATE")?;
    let setting = settings::for_builds(conn)?.map(|(name, value)| format!("{name} = {value}"));
    let mut restored = Vec::new();
    for kind in ["index", "foreign key", "trigger"] {
        for choice in entry.choices.iter().filter(|c| c.kind == kind) {
            let start = Instant::now();
            build(conn, choice)?;
            attach(conn, entry.relation, choice)?;
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

/// The server's refusal, with what to do about it.
fn refused(error: Error, choice: &Choice) -> Error {
    if error.hint().is_some() {
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

/// Makes an object again, beside its table.
pub(super) fn build(conn: &mut Conn, choice: &Choice) -> Result<(), Error> {
    for sql in &choice.steps.build {
        conn.exec(sql).map_err(|e| refused(e, choice))?;
    }
    Ok(())
}

/// Makes an object part of its table again.
pub(super) fn attach(conn: &mut Conn, relation: u32, choice: &Choice) -> Result<(), Error> {
    for sql in &choice.steps.attach {
        conn.exec(sql).map_err(|e| refused(e, choice))?;
    }
    if choice.kind == "index" {
        rename_columns(conn, relation, choice)?;
    }
    Ok(())
}

/// The server names an index's columns by the table's present ones; where
/// somebody had renamed one of either, the index's own names are put back.
fn rename_columns(conn: &mut Conn, relation: u32, choice: &Choice) -> Result<(), Error> {
    let rows = conn.query(
        "SELECT a.attname FROM pg_catalog.pg_index i \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indexrelid \
         WHERE i.indrelid = $1::oid AND i.indexrelid = $2::regclass ORDER BY a.attnum",
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
            .map_err(|e| refused(e, choice))
    };
    // By way of names that nobody has, since two may have changed places.
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

/// Whether the object is there as it was.
///
/// # Errors
///
/// It is not there, or something about it is different.
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
