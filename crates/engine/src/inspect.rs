//! From the server and the files to the facts, and from these to the plan.

use crate::blame::of_condition;
use crate::causes::Causes;
use crate::error::Error;
use crate::facts::{Facts, InputFacts, Purpose, TableFacts, TableObjects};
use crate::input::{can_be_read_again, Reader};
use crate::ledger;
use crate::maintenance::ledger_state;
use crate::options::Options;
use crate::plan::{plan, Plan};
use crate::session::advice_facts::advice_facts;
use crate::session::conn::Conn;
use crate::session::lane::Form;
use crate::session::{header, staged, statement, transaction};
use std::sync::Arc;
use std::thread::available_parallelism;

/// Inspects the table and decides; locks the table first if it is in earnest.
///
/// # Errors
///
/// The options do not fit the table or the files, or the connection is lost.
pub(crate) fn make_plan(
    conn: &mut Conn,
    reader: &Reader,
    options: &Options,
    purpose: Purpose,
    lock: bool,
) -> Result<Arc<Plan>, Error> {
    let facts = facts(conn, reader, options, purpose, lock)?;
    let plan = plan(&facts, options)?;
    read_by_server(conn, &plan, &facts.table, options)?;
    Ok(plan)
}

fn facts(
    conn: &mut Conn,
    reader: &Reader,
    options: &Options,
    purpose: Purpose,
    lock: bool,
) -> Result<Facts, Error> {
    let (server, table, new) = transaction::inspect(conn, reader, options, lock)?;
    let causes = Causes::find(reader, options);
    if new.is_none() {
        causes.refuse(Some(table.columns.len()), options)?;
    }
    let input = InputFacts {
        name: options.input.sources.first().map_or(String::new(), |s| s.name()),
        header: header::read(conn, reader, options)?,
        names: new.as_ref().map(|n| n.names.clone()),
        bytes: reader.total_bytes(),
        again: can_be_read_again(&options.input),
        compressed: reader.compression().is_some(),
        records: reader.estimate(),
        notes: reader.notes(),
    };
    let objects = match purpose {
        Purpose::Load => Some(TableObjects::read(conn, table.oid)?),
        _ => None,
    };
    Ok(Facts {
        advice: advice_facts(conn, &table)?,
        ledger: ledger_state(conn, options)?,
        left: ledger::left(conn, table.oid)?,
        cores: available_parallelism().map_or(1, usize::from),
        input,
        server,
        table,
        new,
        objects,
        causes,
        purpose,
    })
}

/// Has the server read the user's SQL before the first row.
fn read_by_server(
    conn: &mut Conn,
    plan: &Plan,
    table: &TableFacts,
    options: &Options,
) -> Result<(), Error> {
    if let Some(condition) = &plan.filter {
        // One that goes on to another statement would have that run, too.
        let read = conn.read(&statement::direct(plan, Form::Text));
        read.map_err(|e| of_condition(e, Some(condition)))?;
    }
    staged::read_expressions(conn, table, &options.target)
}
