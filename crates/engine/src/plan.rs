//! The plan of a load, with reasons: a pure function of facts and options.

use crate::advice::advice;
use crate::causes::Causes;
use crate::error::Error;
use crate::fields::names;
use crate::infer::InferredColumns;
use crate::input::Layout;

use crate::facts::{Facts, InputFacts, Purpose, ServerFacts, TableFacts};
use crate::mapping::{self, values};
use crate::options::{FileFormat, Method, Options, Triggers};
use crate::recast::Recast;
use crate::route::Router;
use crate::text::{text, Text};
use crate::wire::{best_wire, is_csv, lines_are_text, one_copy, passable, statement};
use pgsluice_core::scan::Dialect;
use pgsluice_core::shape::{Column, RowShape, Type};
use std::sync::Arc;

mod fields;
mod landing;
mod lanes;
pub mod locks;
mod maintenance;
mod nodes;
mod once;
pub mod policy;
mod refuse;
mod rejects;
mod route;
mod settings;
mod steps;

use fields::left_out;
use lanes::{alone, commits, committed_how, connections, default_lanes, fired_for, without_lanes};
use locks::{locked_first, Lock};
use maintenance::maintenance;
pub(crate) use nodes::refuse_beside_nodes;
pub use nodes::{LeafTarget, ToNodes};
use once::once_notes;
use policy::Policy;
use refuse::{refuse, rules_passed_by, unusable, without_copy};
use rejects::rejected_records;

pub use crate::wire::Wire;
pub use landing::Landing;
pub(crate) use landing::{cast, without_landing};
use settings::session_settings;
pub use settings::settings;
pub(crate) use settings::INDEX_BUILD;
use steps::steps;

/// What the load will do. It is shared by an `Arc`, so nothing can change it later.
#[derive(Clone, Debug)]
pub struct Plan {
    /// how rows are written
    pub method: Method,
    /// why this method was chosen
    pub reason: Text,
    /// what the load gives up, apart from concurrent access: see [`Plan::gives_up`]
    pub cost: String,
    /// the format in which the data are sent
    pub wire: Wire,
    /// `pg_class.oid` of the table
    pub oid: u32,
    /// the table, quoted and qualified
    pub table: String,
    /// the table as the server names it in an error's context
    pub relation: String,
    /// the column of each field of the file; `None` if the field is left out
    pub fields: Vec<Option<String>>,
    /// how records are converted for that, if they cannot be sent unchanged
    pub recast: Option<Recast>,
    /// the statement that locks the table as an INSERT does; `None` if it is not locked by name
    pub(crate) shared_lock: Option<String>,
    /// the load locks the table against all other sessions before it inspects it
    pub(crate) locked_first: bool,
    /// the columns of the rows that are sent, in the file's order
    pub columns: Vec<String>,
    /// the type of each column: `atttypid` and `atttypmod`
    pub types: Vec<(u32, i32)>,
    /// for each column, how an INSERT reads a text `$`, if the type alone does not determine that
    pub readers: Vec<Option<String>>,
    /// for each column, whether it has a default, which a marker in the file may stand for
    pub defaults: Vec<bool>,
    /// how records are encoded
    pub shape: RowShape,
    /// the format of the files
    pub layout: Layout,
    /// each file must be one statement, because statement triggers fire for each
    pub one_statement: bool,
    /// each file should be one COPY, if its form allows that: see `wire::one_copy`
    pub(crate) one_copy: bool,
    /// lines without quotes and backslashes may be sent unchanged as text
    pub plain: bool,
    /// `COPY … WITH (FREEZE)`
    pub freeze: bool,
    /// the sent rows are discarded chunk by chunk: they are only checked
    pub discard: bool,
    /// the hash of each chunk is recorded
    pub once: bool,
    /// the condition on rows
    pub filter: Option<String>,
    /// the files' encoding
    pub encoding: String,
    /// the server's major version
    pub major: u32,
    /// number of connections that send rows
    pub lanes: usize,
    /// the connections that the load has while it sends rows, each number with their purpose
    pub connections: Vec<(usize, &'static str)>,
    /// number of encoding threads
    pub encoders: usize,
    /// the number of inserted rows may differ from the number of records sent
    pub may_drop_rows: bool,
    /// the statement that has created the table, if the load has
    pub made: Option<String>,
    /// its columns, if records may be loaded that were not examined for types
    pub inferred: Option<InferredColumns>,
    /// statements in the load's transaction before the rows
    pub before: Vec<String>,
    /// statements in the load's transaction after the rows
    pub after: Vec<String>,
    /// with a partitioned table: where its rows are sent, if that was requested
    pub route: Option<Text>,
    /// finds the partition of each row, if rows are sent straight to partitions
    pub(crate) router: Option<Router>,
    /// the servers that have the partitions, if rows are sent straight to them
    pub nodes: Option<ToNodes>,
    /// settings of the session, each with its value
    pub settings: Vec<(String, String)>,
    /// the table is empty and the load's own: COPY builds its indexes after all rows
    pub private: bool,
    /// with `extension`: an error instead of falling back to stock COPY
    pub required: bool,
    /// with `staged`: the table into which records are loaded first
    pub landing: Option<Landing>,
    /// with `staged`: each chunk is moved on when it is loaded, because the files cannot be read
    /// again to find the place of a record
    pub lands_by_chunk: bool,
    /// lanes are committed together, by two-phase commit
    pub two_phase: bool,
    /// what is done with indexes, foreign keys and triggers
    pub maintenance: Policy,
    /// the ledger's schema is created to record that
    pub makes_ledger: bool,
    /// likely causes of errors, from a sample
    pub causes: Causes,
    /// locks that make other sessions wait
    pub locks: Vec<Lock>,
    /// estimated number of records in the input
    pub records: Option<u64>,
    /// notes for the user before the load begins
    pub notes: Vec<Text>,
}

impl Plan {
    /// Whether the statements before the rows are committed before them.
    pub fn commits_first(&self) -> bool {
        self.method == Method::Insert || self.lanes > 1
    }

    /// The dialect, if the files are CSV or text.
    pub fn dialect(&self) -> Option<&Dialect> {
        self.layout.dialect()
    }
}

/// Makes the plan from facts and options alone.
///
/// # Errors
///
/// The options do not fit the table or the file.
pub fn plan(facts: &Facts, options: &Options) -> Result<Arc<Plan>, Error> {
    let Facts { input, server, table, cores, .. } = facts;
    check_kind(table)?;
    let fields = mapping::fields(input, table, options)?;
    let columns = values::columns(&fields, table, options)?;
    let shape = shape(&columns, server, table, options);
    let layout = layout(&columns, server, options);
    let choice = choose(input, server, table, options, &shape)?;
    let wire = passable(choice.wire, layout.dialect(), &shape, server, options)?;
    let mut plan = Plan {
        method: choice.method,
        reason: choice.reason,
        cost: choice.method.cost().into(),
        wire,
        oid: table.oid,
        table: table.sql.clone(),
        relation: table.name.clone(),
        shared_lock: table.is_table().then(|| table.shared_lock()),
        locked_first: table.is_table() && locked_first(table, &options.target),
        readers: readers(&columns, table),
        defaults: defaults(&columns, table),
        types: types(&columns, table),
        notes: rules_passed_by(table).into_iter().chain(left_out(&fields, input)).collect(),
        recast: Recast::new(&fields, options),
        fields,
        columns,
        shape,
        layout,
        one_statement: table.statement_triggers() && triggers_fire(choice.method, table, options),
        one_copy: false,
        plain: false,
        // FREEZE does not work within the savepoints of rejects.
        freeze: choice.freeze && options.rejects.is_none(),
        discard: matches!(facts.purpose, Purpose::Check { .. }),
        once: options.once.is_some(),
        filter: options.target.filter.clone(),
        encoding: options.input.encoding.clone().unwrap_or_else(|| "UTF8".into()),
        major: server.major(),
        lanes: 1,
        connections: Vec::new(),
        encoders: (*cores).clamp(1, 4),
        may_drop_rows: options.target.filter.is_some()
            || table.triggers.iter().any(|t| t.row && t.before)
            || matches!(table.kind, 'f' | 'v' | 'p'),
        made: facts.new.as_ref().map(|new| new.statement.clone()),
        inferred: inferred(facts),
        before: Vec::new(),
        after: Vec::new(),
        settings: session_settings(options, server, choice.method),
        private: table.private && choice.method == Method::Extension,
        route: None,
        router: None,
        nodes: None,
        required: options.target.method == Method::Extension,
        landing: None,
        lands_by_chunk: false,
        two_phase: false,
        maintenance: Policy::default(),
        makes_ledger: false,
        causes: facts.causes.clone(),
        locks: Vec::new(),
        records: input.records,
    };
    complete(&mut plan, facts, options)?;
    Ok(Arc::new(plan))
}

/// Adds to a plan of the method what the table, the options and the number of connections require.
fn complete(plan: &mut Plan, facts: &Facts, options: &Options) -> Result<(), Error> {
    steps(plan, &facts.table, options)?;
    rejected_records(plan, &facts.table, options);
    several_lanes(plan, facts, options);
    route::route(plan, facts, options);
    nodes::to_nodes(plan, facts, options)?;
    commits(plan, options);
    let fire = triggers_fire(plan.method, &facts.table, options);
    if facts.table.statement_triggers() && fire {
        plan.notes.extend(fired_for(plan, options));
    }
    plan.one_copy = facts.table.refers_to_itself || fire && one_copy(&facts.table).is_some();
    plan.plain = plain(plan, options) && one_copy(&facts.table).is_none();
    plan.lands_by_chunk = lands_by_chunk(plan, facts, options);
    around_a_check(plan);
    maintenance(plan, facts, options)?;
    plan.connections = connections(plan, options);
    all_notes(plan, facts, options);
    Ok(())
}

/// For a check, no statement is made except that for the landing table.
fn around_a_check(plan: &mut Plan) {
    if plan.discard {
        plan.before = plan.landing.iter().map(|landing| landing.create.clone()).collect();
    }
}

/// With `staged`: the files cannot be read again to find the place of a record.
fn lands_by_chunk(plan: &Plan, facts: &Facts, options: &Options) -> bool {
    let stops_unread = !facts.input.again && options.rejects.is_none();
    plan.landing.is_some() && stops_unread && !plan.one_copy
}

/// The columns of the new table, if some records may not fit the inferred types.
fn inferred(facts: &Facts) -> Option<InferredColumns> {
    let of_new = facts.new.as_ref().and_then(|new| new.unseen.clone());
    match &facts.purpose {
        Purpose::Check { inferred } => inferred.clone().or(of_new),
        _ => of_new,
    }
}

/// Orders the notes: what earlier loads left, advice, the plan's own, the input's.
fn all_notes(plan: &mut Plan, facts: &Facts, options: &Options) {
    let Facts { input, server, table, .. } = facts;
    let fire = triggers_fire(plan.method, table, options);
    let fired_by = fire.then(|| statement(plan));
    let mut found = facts.left.clone();
    found.extend(advice(input, server, table, &facts.advice, fired_by));
    let mut notes: Vec<Text> = found.into_iter().map(Text::from).collect();
    notes.append(&mut plan.notes);
    notes.extend(once_notes(options));
    notes.extend(facts.causes.notes(plan, options));
    notes.extend(facts.causes.signs.notes(&plan.fields, facts, options));
    notes.extend(input.notes.iter().cloned().map(Text::from));
    notes.extend(facts.new.iter().flat_map(|new| new.notes.iter().cloned()));
    plan.notes = notes;
}

/// How this server divides the files into records.
fn layout(columns: &[String], server: &ServerFacts, options: &Options) -> Layout {
    // In another encoding, the values of escapes cannot be checked here.
    let utf8 = server.encoding == "UTF8" && options.input.encoding.is_none();
    match options.input.dialect() {
        Some(d) => Layout::Lines(d.on_server(server.major(), utf8)),
        None => Layout::Tuples(columns.to_vec()),
    }
}

/// Whether lines may be sent unchanged as text. A chunk with other lines begins a second statement.
fn plain(plan: &Plan, options: &Options) -> bool {
    plan.wire == Wire::Text
        && !plan.one_statement
        && options.rejects.is_none()
        && options.input.encoding.is_none()
        && plan.dialect().is_some_and(|d| lines_are_text(d, &plan.shape))
}

fn check_kind(table: &TableFacts) -> Result<(), Error> {
    match table.kind {
        'r' | 'p' | 'f' => Ok(()),
        'v' if table.triggers.iter().any(|t| t.row && t.before) => Ok(()),
        kind => {
            let error =
                Error::new(format!("{} cannot be loaded into: it is not a table", table.sql));
            Err(match kind {
                'v' => error.with_hint("a view needs an INSTEAD OF INSERT trigger"),
                _ => error,
            })
        }
    }
}

/// Whether the table's triggers fire during the load.
fn triggers_fire(method: Method, table: &TableFacts, options: &Options) -> bool {
    options.target.triggers == Triggers::Keep || !table.owned || method == Method::Insert
}

fn readers(columns: &[String], table: &TableFacts) -> Vec<Option<String>> {
    columns.iter().map(|name| table.column(name)?.reader.clone()).collect()
}

fn defaults(columns: &[String], table: &TableFacts) -> Vec<bool> {
    let has = |name: &String| table.column(name).is_some_and(|c| c.default.is_some() || c.identity);
    columns.iter().map(has).collect()
}

fn types(columns: &[String], table: &TableFacts) -> Vec<(u32, i32)> {
    columns.iter().map(|name| table.column(name).map_or((0, -1), |c| c.type_id)).collect()
}

/// The row for each record on the wire. Its columns are in the file's order.
fn shape(
    columns: &[String],
    server: &ServerFacts,
    table: &TableFacts,
    options: &Options,
) -> RowShape {
    let column = |(field, name): (usize, &String)| {
        let facts = table.column(name);
        let mut column = Column::new(name, facts.map_or(Type::Server, |c| c.ty.clone()), field);
        column.not_null = facts.is_some_and(|c| c.not_null);
        // The NULL options do not apply to a value that is not from the file.
        let of_file = !options.target.fields.set.iter().any(|(set, _)| names(set, name));
        column.force_null = of_file && options.target.force_null.has(name);
        column.force_not_null = of_file && options.target.force_not_null.has(name);
        column
    };
    RowShape {
        columns: columns.iter().enumerate().map(column).collect(),
        fields: columns.len(),
        env: server.env(),
    }
}

struct MethodChoice {
    method: Method,
    reason: Text,
    wire: Wire,
    freeze: bool,
}

/// The rule of `auto`, and the wire format of every method.
fn choose(
    input: &InputFacts,
    server: &ServerFacts,
    table: &TableFacts,
    options: &Options,
    shape: &RowShape,
) -> Result<MethodChoice, Error> {
    let policies = options.target.method == Method::Auto && table.row_security;
    let expressions =
        options.target.method == Method::Auto && !options.target.fields.expressions.is_empty();
    let asked = match options.target.method {
        _ if expressions => Method::Staged,
        _ if policies => without_copy(options),
        method => method,
    };
    let binary_file = options.input.format == FileFormat::Binary;
    let (wire, why) = best_wire(input, table, options, shape);
    let choice = |method, wire, reason| {
        Ok(MethodChoice { method, reason, wire, freeze: method == Method::CopyFresh })
    };
    let named = Text::from(match policies {
        _ if expressions => {
            "the server runs the expressions of `expr`, as it does in INSERT ... SELECT"
        }
        true => "row-level security applies, and with it the server does not accept COPY",
        false => "chosen by `method`",
    });
    refuse(asked, server, table, options, shape)?;
    match asked {
        Method::Auto if server.extension.is_some() && !binary_file && options.rejects.is_none() => {
            let reason = "the extension pgsluice is in this database".into();
            choice(Method::Extension, Wire::AsIs, reason)
        }
        Method::Auto => {
            // Other sessions cannot see the table before the commit, or must not see its old rows
            // after it.
            let fresh = table.created || (options.target.truncate && !table.referenced);
            let fresh = fresh && table.is_plain() && !table.statement_triggers();
            let method = match wire {
                _ if fresh && table.owned => Method::CopyFresh,
                Wire::Binary => Method::CopyBinary,
                Wire::Text => Method::CopyText,
                _ if binary_file => Method::CopyBinary,
                _ if is_csv(options) => Method::CopyCsv,
                _ => Method::CopyText,
            };
            match &server.extension_fault {
                Some(fault) => choice(method, wire, text!("{}; {}", why, unusable(fault))),
                None => choice(method, wire, why.into()),
            }
        }
        Method::Insert => choice(asked, Wire::Insert(1), named),
        Method::InsertBatch => choice(asked, Wire::Insert(1000), named),
        Method::CopyCsv => {
            choice(asked, if is_csv(options) { Wire::AsIs } else { Wire::Csv }, named)
        }
        Method::CopyText => {
            choice(asked, if is_csv(options) { Wire::Text } else { Wire::AsIs }, named)
        }
        Method::CopyBinary => {
            choice(asked, if binary_file { Wire::AsIs } else { Wire::Binary }, named)
        }
        Method::Staged | Method::Extension => choice(asked, Wire::AsIs, named),
        _ => choice(asked, wire, named),
    }
}

/// The settings that only `lanes`, `staged` and `insert` need, and a note on those without effect.
fn several_lanes(plan: &mut Plan, facts: &Facts, options: &Options) {
    let Facts { server, table, cores, .. } = facts;
    plan.notes.extend(without_lanes(plan, options));
    match plan.method {
        Method::Lanes => {
            let alone = alone(table, options);
            plan.lanes = match alone {
                Some(_) => 1,
                None => options.target.lanes.unwrap_or_else(|| default_lanes(*cores, server)),
            };
            plan.two_phase = plan.lanes > 1
                && !plan.once
                && server.max_prepared_transactions as usize >= plan.lanes;
            plan.notes.extend(alone.map(|why| text!("one connection instead of several: {}", why)));
            let how = committed_how(plan.two_phase, plan.once);
            plan.notes.extend((plan.lanes > 1).then(|| how.into()));
        }
        Method::Insert => plan.notes.push(
            "commits do not wait for the disk, the last one waits for all: a crash of the server \
             during the load may lose the latest rows, a crash after it none"
                .into(),
        ),
        Method::Staged => {
            let landing = landing::landing(plan, table, &options.target, server.process);
            plan.before.push(landing.create.clone());
            plan.landing = Some(landing);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
