//! Recreates what was dropped or disabled in a separate transaction: after lanes, and after a
//! crash. Several connections build indexes at the same time.

use super::change::{attach, build, same, Restored};
use super::settings;
use crate::error::{Error, Kind};
use crate::facts::TableObjects;
use crate::ledger::{self, LedgerEntry};
use crate::plan::policy::Choice;
use crate::session::conn::Conn;
use crate::session::transaction::{begin_long, search_path};
use std::sync::Mutex;
use std::time::Instant;

/// Opens another connection to the same database.
pub type Connect<'a> = dyn Fn() -> Result<Conn, Error> + Sync + 'a;

/// The result for one object.
pub type Outcome = (String, Result<Restored, Error>);

/// The objects to recreate, the longest wait for a lock, and whether to stop.
#[derive(Clone, Copy)]
struct Work<'a> {
    entry: &'a LedgerEntry,
    lock_timeout: Option<&'a str>,
    stopped: &'a (dyn Fn() -> bool + Sync),
}

/// Recreates the objects of `entry`, each in a separate transaction together with its mark in the
/// ledger. This may be called again at any time and after any failure: objects that exist already
/// are left alone, and objects that were dropped meanwhile are marked. The caller must hold the
/// load's lock. It opens one connection, and up to `workers` in all if they are to be had.
/// `lock_timeout`, in the server's form, limits the wait for each lock of the table.
/// Once `stopped` returns true, no other object is begun.
///
/// # Errors
///
/// The connection is lost, the table is not the same, or another session has locked it for longer
/// than `lock_timeout`. The server's errors for single objects are among the outcomes.
pub fn put_back_committed(
    open: &Connect,
    workers: usize,
    entry: &LedgerEntry,
    lock_timeout: Option<&str>,
    stopped: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Outcome>, Error> {
    let mut conn = open()?;
    let work = Work { entry, lock_timeout, stopped };
    begin_long(&mut conn, lock_timeout)?;
    let name = relation_name(&mut conn, entry.relation)?;
    if name.as_ref() != Some(&entry.relation_name) {
        return gone(conn, entry, name);
    }
    let objects = TableObjects::read(&mut conn, entry.relation)?;
    conn.exec("COMMIT")?;
    let missing: Vec<&Choice> = entry
        .choices
        .iter()
        .filter(|c| !c.steps.build.is_empty() && !is_built(&objects, c))
        .collect();
    let built = build_all(&mut conn, open, workers, work, &missing);
    let mut outcomes = Vec::new();
    for choice in &entry.choices {
        let at = missing.iter().position(|c| c.name == choice.name && c.kind == choice.kind);
        let outcome = match at.map(|i| &built[i]) {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(seconds)) => finish(&mut conn, work, choice, *seconds),
            None => finish(&mut conn, work, choice, 0.0),
        };
        let outcome = outcome.or_else(|error| settle(&mut conn, work, choice, error));
        outcomes.push((choice.object.clone(), outcome));
    }
    Ok(outcomes)
}

fn relation_name(conn: &mut Conn, oid: u32) -> Result<Option<String>, Error> {
    let rows = conn.query(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::oid",
        &[Some(&oid.to_string())],
    )?;
    Ok(rows.first().and_then(|r| r[0].clone()))
}

/// The table was dropped or renamed. If it was dropped, all objects are marked as done. If it was
/// renamed, or another table has its name, a person must decide.
fn gone(mut conn: Conn, entry: &LedgerEntry, name: Option<String>) -> Result<Vec<Outcome>, Error> {
    let by_hand = format!(
        "what pgsluice_loads.taken_down holds for load {} by hand and set put_back_at",
        entry.load
    );
    if let Some(name) = name {
        return Err(Error::new(format!(
            "the table {} is now called {name}, so that the recorded statements do not fit it",
            entry.relation_name
        ))
        .with_hint(format!("give it its old name back and run repair again, or run {by_hand}")));
    }
    let other = "SELECT 1 WHERE pg_catalog.to_regclass($1) IS NOT NULL";
    if !conn.query(other, &[Some(&entry.relation_name)])?.is_empty() {
        return Err(Error::new(format!(
            "the table {} is not the one whose objects were dropped or disabled: it was replaced, \
             or the database was restored from a dump",
            entry.relation_name
        ))
        .with_hint(format!("compare the two: run {by_hand}")));
    }
    for choice in &entry.choices {
        ledger::mark(&mut conn, &entry.load, choice)?;
    }
    conn.exec("COMMIT")?;
    let settled = |c: &Choice| {
        let object = format!("{} (its table was dropped)", c.object);
        (c.object.clone(), Ok(Restored { object, seconds: 0.0, was_back: true }))
    };
    Ok(entry.choices.iter().map(settled).collect())
}

/// Whether the index exists with its definition. Its marks may be missing.
fn is_built(objects: &TableObjects, choice: &Choice) -> bool {
    objects
        .steps(&choice.kind, &choice.name)
        .is_some_and(|now| now.state["definition"] == choice.steps.state["definition"])
}

/// Builds over `conn`, and over other connections as far as they are to be had. Returns the seconds
/// of each build.
fn build_all(
    conn: &mut Conn,
    open: &Connect,
    workers: usize,
    work: Work<'_>,
    missing: &[&Choice],
) -> Vec<Result<f64, Error>> {
    let next = Mutex::new(0..missing.len());
    let results = Mutex::new(Vec::new());
    let build_some = |conn: &mut Conn, of_caller: bool| {
        let mut may_open = of_caller;
        loop {
            let Some(i) = next.lock().unwrap_or_else(|e| e.into_inner()).next() else { return };
            let start = Instant::now();
            let result = in_transaction(conn, work, |conn| {
                settings::for_builds(conn)?;
                build(conn, missing[i])?;
                check_table(conn, work.entry, missing[i])
            });
            let lost = result.as_ref().is_err_and(|error| error.kind() == Kind::Connection);
            let result = result.map(|()| start.elapsed().as_secs_f64());
            results.lock().unwrap_or_else(|e| e.into_inner()).push((i, result));
            if lost && !of_caller {
                return;
            }
            // The caller builds what is left, and attaches all objects afterwards.
            if lost && may_open {
                may_open = false;
                if let Ok(other) = open() {
                    *conn = other;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers.clamp(1, missing.len().max(1)) {
            scope.spawn(|| {
                let Ok(mut conn) = open() else { return };
                // Through a pooler, only a statement shows that there is a session.
                if conn.exec("SELECT").is_ok() {
                    build_some(&mut conn, false);
                }
            });
        }
        build_some(conn, true);
    });
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Checks that the index that was just built is on the load's table. Its definition names the table,
/// and another one may have got that name while this session waited for the lock.
fn check_table(conn: &mut Conn, entry: &LedgerEntry, choice: &Choice) -> Result<(), Error> {
    let found = conn.query(
        "SELECT 1 FROM pg_catalog.pg_index \
         WHERE indexrelid = pg_catalog.to_regclass($1)::oid AND indrelid = $2::oid",
        &[Some(&choice.name), Some(&entry.relation.to_string())],
    )?;
    if found.is_empty() {
        let table = &entry.relation_name;
        return Err(Error::new(format!("the table {table} was renamed or replaced meanwhile")));
    }
    Ok(())
}

/// Attaches one object if it is not yet in its previous state, compares it and marks it. A trigger is
/// marked when its new copies are enabled, too.
fn finish(
    conn: &mut Conn,
    work: Work<'_>,
    choice: &Choice,
    seconds: f64,
) -> Result<Restored, Error> {
    let entry = work.entry;
    let start = Instant::now();
    let mut was_back = true;
    in_transaction(conn, work, |conn| {
        if is_back(conn, entry.relation, choice).is_err() {
            was_back = false;
            attach(conn, entry.relation, choice)?;
            is_back(conn, entry.relation, choice)?;
        }
        match choice.copies {
            Some(_) => Ok(()),
            None => ledger::mark(conn, &entry.load, choice),
        }
    })?;
    if let Some(known) = &choice.copies {
        // In another transaction: this one may wait for writers of the new partitions, and no writer
        // of the partitioned table should wait for that.
        in_transaction(conn, work, |conn| {
            was_back &= !enable_new_copies(conn, choice, known)?;
            ledger::mark(conn, &entry.load, choice)
        })?;
    }
    let was_back = was_back && seconds == 0.0;
    let seconds = seconds + start.elapsed().as_secs_f64();
    Ok(Restored { object: choice.object.clone(), seconds, was_back })
}

/// Whether the object has its previous state. A trigger is looked up by itself: its table may no
/// longer be a partition of the load's table.
fn is_back(conn: &mut Conn, relation: u32, choice: &Choice) -> Result<(), Error> {
    if choice.kind != "trigger" {
        return same(&TableObjects::read(conn, relation)?, choice);
    }
    let then = choice.steps.state["enabled"].as_str().unwrap_or_default();
    let states = trigger_states(conn, choice)?;
    if !states.is_empty() && states.iter().all(|now| now == then) {
        return Ok(());
    }
    // The statement has enabled another trigger, which has its name now.
    Err(Error::new(format!("{} was renamed, or its table was", choice.object)))
}

/// Enables the copies of a trigger on partitions that were attached while it was disabled: the server
/// has created them disabled. They get its previous state, as by ALTER TABLE … ENABLE TRIGGER on the
/// partitioned table. The copies that are `known` from before the load keep their own. Returns whether
/// there is a new copy.
fn enable_new_copies(conn: &mut Conn, choice: &Choice, known: &[u32]) -> Result<bool, Error> {
    let state = &choice.steps.state;
    let oid = state["oid"].as_u64().unwrap_or(0);
    let known: Vec<String> = known.iter().map(|oid| oid.to_string()).collect();
    // Without ONLY: a new partition may have partitions itself.
    let rows = conn.query(
        "SELECT pg_catalog.format('ALTER TABLE %I.%I %s TRIGGER %I', n.nspname, c.relname, \
           CASE $2::text WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'A' THEN 'ENABLE ALWAYS' \
             ELSE 'ENABLE' END, g.tgname) \
         FROM pg_catalog.pg_trigger g \
         JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE g.tgparentid = $1::oid AND g.tgenabled = 'D' AND g.oid <> ALL ($3::oid[]) \
         ORDER BY g.oid",
        &[
            Some(&oid.to_string()),
            state["enabled"].as_str(),
            Some(&format!("{{{}}}", known.join(","))),
        ],
    )?;
    for row in &rows {
        conn.exec(row[0].as_deref().unwrap_or_default())?;
    }
    Ok(!rows.is_empty())
}

/// `tgenabled` of a trigger, on whatever table. It is found by its name, and after a rename by its
/// oid.
fn trigger_states(conn: &mut Conn, choice: &Choice) -> Result<Vec<String>, Error> {
    let oid = choice.steps.state["oid"].as_u64().unwrap_or(0);
    let rows = conn.query(
        "SELECT g.tgenabled FROM pg_catalog.pg_trigger g \
         JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE NOT g.tgisinternal AND (g.oid = $2::oid \
           OR pg_catalog.format('%s on %I.%I', g.tgname, n.nspname, c.relname) = $1)",
        &[Some(&choice.name), Some(&oid.to_string())],
    )?;
    Ok(rows.iter().map(|r| r[0].clone().unwrap_or_default()).collect())
}

/// Marks an object that could not be recreated if it was dropped meanwhile. Otherwise, the result is
/// `error`.
fn settle(
    conn: &mut Conn,
    work: Work<'_>,
    choice: &Choice,
    error: Error,
) -> Result<Restored, Error> {
    let entry = work.entry;
    let mut dropped = false;
    let looked = in_transaction(conn, work, |conn| {
        dropped = was_dropped(conn, entry.relation, choice)?;
        if dropped {
            ledger::mark(conn, &entry.load, choice)?;
        }
        Ok(())
    });
    if looked.is_err() || !dropped {
        return Err(error);
    }
    let object = format!("{} (was dropped)", choice.object);
    Ok(Restored { object, seconds: 0.0, was_back: true })
}

/// Whether a trigger, or a column of an index, was dropped. The server would have dropped the index
/// with the column. A renamed trigger still has its oid, and a renamed column its number.
fn was_dropped(conn: &mut Conn, relation: u32, choice: &Choice) -> Result<bool, Error> {
    if choice.kind == "trigger" {
        return Ok(trigger_states(conn, choice)?.is_empty());
    }
    let numbers: Vec<String> = choice.attnums.iter().map(|number| number.to_string()).collect();
    let dropped = conn.query(
        "SELECT 1 FROM pg_catalog.pg_attribute \
         WHERE attrelid = $1::oid AND attisdropped AND attnum = ANY ($2::int2[])",
        &[Some(&relation.to_string()), Some(&format!("{{{}}}", numbers.join(",")))],
    )?;
    Ok(!dropped.is_empty())
}

/// Calls `run` in a transaction with the `search_path` of the load. The only time limit is that of
/// `work` for locks.
fn in_transaction(
    conn: &mut Conn,
    work: Work<'_>,
    run: impl FnOnce(&mut Conn) -> Result<(), Error>,
) -> Result<(), Error> {
    if (work.stopped)() {
        return Err(Error::cancelled());
    }
    begin_long(conn, work.lock_timeout)?;
    let result = search_path(conn, &work.entry.search_path).and_then(|_| run(conn));
    match result {
        Ok(()) => conn.exec("COMMIT").map(drop),
        Err(error) => {
            // If this fails, the connection is lost, which `error` reports already.
            let _ = conn.exec("ROLLBACK");
            Err(error)
        }
    }
}
