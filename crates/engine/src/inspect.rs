//! Reads the facts from the server and the files, and makes the plan from them.

use crate::blame::of_condition;
use crate::causes::Causes;
use crate::error::Error;
use crate::facts::{Facts, InputFacts, Purpose, TableFacts, TableObjects};
use crate::input::{can_be_read_again, Reader};
use crate::ledger;
use crate::maintenance::{foretell, ledger_state, Settings};
use crate::options::{Options, Route};
use crate::plan::{plan, Plan};
use crate::session::advice_facts::advice_facts;
use crate::session::conn::Conn;
use crate::session::lane::Form;
use crate::session::transaction::in_pg_catalog;
use crate::session::{catalog, header, nodes, partitions, staged, statement, transaction};
use crate::text::Text;
use std::sync::Arc;
use std::thread::available_parallelism;

mod rights;

/// A plan that is not executed, with details that only the server can add to it.
pub struct Foretold {
    /// what a load would do
    pub plan: Arc<Plan>,
    /// what it would do with indexes, foreign keys and triggers, one line for each
    pub maintenance: Vec<Text>,
    /// the settings that it would change to build indexes
    pub settings: Settings,
}

/// Reports what a load would do, and changes nothing.
///
/// # Errors
///
/// As for a load, if they occur before the first row.
pub fn plan_only(options: &Options) -> Result<Foretold, Error> {
    let reader = Reader::open(&options.input)?;
    let options = &options.reading(&reader)?;
    let mut conn = Conn::open(&options.target.url)?;
    transaction::begin(&mut conn, options)?;
    let plan = make_plan(&mut conn, &reader, options, Purpose::Load, false)?;
    rights::check(&mut conn, &plan)?;
    let (maintenance, settings) = foretell(&mut conn, &plan)?;
    conn.exec("ROLLBACK")?;
    Ok(Foretold { plan, maintenance, settings })
}

/// Inspects the table and makes the plan. If `lock`, locks the table first.
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
    let (server, mut table, new) = transaction::inspect(conn, reader, options, &purpose, lock)?;
    let causes = Causes::find(reader, options);
    if new.is_none() {
        // Without a list of columns, no field belongs to a generated one.
        let columns = table.columns.iter().filter(|c| !c.generated).count();
        causes.refuse(Some(columns), options)?;
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
    // From here on, no query depends on the path of the session.
    in_pg_catalog(conn, |conn| {
        catalog::describe(conn, &mut table)?;
        let objects = match purpose {
            Purpose::Load => Some(TableObjects::read(conn, table.oid)?),
            _ => None,
        };
        let routed = objects.is_some() && table.kind == 'p' && options.target.route != Route::Root;
        let partitions = if routed { partitions::read(conn, table.oid)? } else { Vec::new() };
        let to_nodes = routed && options.target.route == Route::Nodes;
        // If each node records the rows that it has, a node may be down: a later load sends it its
        // rows.
        let tolerant = options.once.is_some() && !options.target.atomic;
        let nodes = match to_nodes {
            true => Some(nodes::read(conn, table.oid, &options.target.nodes, tolerant)?),
            false => None,
        };
        let (left, mut down) = ledger::left(conn, table.oid, options.once.is_some())?;
        if options.once.is_none() {
            down.clear();
        }
        Ok(Facts {
            partitions,
            nodes,
            advice: advice_facts(conn, &table)?,
            ledger: ledger_state(conn, options)?,
            left,
            down,
            cores: available_parallelism().map_or(1, usize::from),
            input,
            server,
            table,
            new,
            objects,
            causes,
            purpose,
        })
    })
}

/// Lets the server parse the user's SQL before the first row.
fn read_by_server(
    conn: &mut Conn,
    plan: &Plan,
    table: &TableFacts,
    options: &Options,
) -> Result<(), Error> {
    if let Some(condition) = &plan.filter {
        // If the condition contained a second statement, COPY would execute it, too.
        let read = conn.read(&statement::direct(plan, Form::Text));
        read.map_err(|e| of_condition(e, Some(condition)))?;
    }
    staged::read_expressions(conn, table, &options.target)
}
