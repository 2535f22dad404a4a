//! Plans rows that are sent straight to the servers that have the partitions.

use super::Plan;
use crate::encode::dot_is_marker;
use crate::error::Error;
use crate::facts::{Facts, Node, Nodes, Partition, Purpose, RemoteLeaf};
use crate::options::{Create, ForeignKeys, Indexes, Method, Options, Route, Triggers};
use crate::quote::quote_ident;
use crate::route::router;
use crate::text::{text, Text};
use crate::wire::Wire;
use pgsluice_core::shape::Type;

/// The destination of the rows of each leaf.
#[derive(Clone, Debug)]
pub struct ToNodes {
    /// the servers
    pub nodes: Vec<Node>,
    /// the leaves, in the router's order
    pub leaves: Vec<LeafTarget>,
    /// the leaves as they were compared with the tables on the nodes
    pub compared: Vec<RemoteLeaf>,
    /// all nodes commit or none, by two-phase commit
    pub together: bool,
    /// the tables on the nodes are emptied before the rows
    pub truncate: bool,
    /// the columns that are sent, each with its type
    pub types: Vec<String>,
}

impl ToNodes {
    /// Whether each node records its rows and commits independently of the others.
    pub fn in_turn_once(&self, once: bool) -> bool {
        once && !self.together
    }
}

/// The table of one leaf.
#[derive(Clone, Debug)]
pub struct LeafTarget {
    /// an index into [`ToNodes::nodes`]
    pub node: usize,
    /// the table on the node, quoted and qualified
    pub table: String,
    /// the same as the server names it in an error's context
    pub relation: String,
    /// the partition
    pub partition: String,
    /// its COPY statement
    pub copy: String,
    /// the columns' names on the node, in the order in which they are sent
    pub columns: Vec<String>,
    /// the constraint on its rows, without the OID of the partitioned table
    pub bound: String,
    /// a query to the coordinator: does a row with these key values belong to the leaf?
    pub belongs: Option<String>,
}

/// The hint for options that do not work on nodes.
const BY_ROOT: &str = "`route` root loads through the server that has the partitioned table";

/// Rejects options that are not supported for rows sent to nodes. This is checked before anything
/// is read.
///
/// # Errors
///
/// One of them is given.
pub(crate) fn refuse_beside_nodes(options: &Options) -> Result<(), Error> {
    let target = &options.target;
    if target.route != Route::Nodes {
        return match (target.atomic, target.nodes.first()) {
            (true, _) => Err(Error::usage("`atomic` is for `route` nodes")
                .with_hint("without it a load is one transaction, or says what it gives up")),
            (_, Some(_)) => Err(Error::usage("`node` is for `route` nodes")),
            _ => Ok(()),
        };
    }
    if target.atomic && !target.ledger {
        let why = "the decision to commit is recorded in pgsluice_loads";
        return Err(Error::usage(text!("`ledger` none cannot be used with `atomic`: {}", why)));
    }
    let alone = options.once.is_some() && !target.atomic;
    let marks = options.input.dialect().is_some_and(|dialect| dialect.default.is_some());
    let given: [(bool, Text, &str); 14] = [
        (
            alone && options.rejects.is_some(),
            "`on-error` reject with `once` and without `atomic`".into(),
            "with `atomic`, the rejects are recorded with the rows of all nodes, or not at all",
        ),
        (
            alone && options.once.as_ref().is_some_and(|once| once.append),
            "`on-change` append without `atomic`".into(),
            "add `atomic`",
        ),
        (
            options.in_pieces(),
            "`commit-every`".into(),
            "leave it out: a load is one transaction on each node",
        ),
        (
            target.create != Create::No,
            "`create`".into(),
            "create the partitioned table, its foreign tables and the tables on the nodes first",
        ),
        (target.filter.is_some(), "`where`".into(), "filter the records before the load"),
        (options.input.encoding.is_some(), "`encoding`".into(), BY_ROOT),
        (marks, "`default`".into(), BY_ROOT),
        (options.input.dialect().is_none(), "`format` binary".into(), BY_ROOT),
        (target.lanes.is_some(), "`lanes`".into(), "leave it out: each node has one connection"),
        (!target.fields.expressions.is_empty(), "`expr`".into(), BY_ROOT),
        (
            target.indexes == Indexes::Rebuild,
            "`indexes` rebuild".into(),
            "drop the indexes on the nodes before the load, and create them after it",
        ),
        (target.triggers == Triggers::Off, "`triggers` off".into(), BY_ROOT),
        (
            target.foreign_keys == ForeignKeys::Revalidate,
            "`foreign-keys` revalidate".into(),
            BY_ROOT,
        ),
        (
            !matches!(target.method, Method::Auto | Method::CopyBinary),
            text!("`method` {}", target.method),
            "leave it out: rows go to nodes by copy-binary",
        ),
    ];
    match given.into_iter().find(|(is, ..)| *is) {
        Some((_, option, hint)) => {
            let message = text!("`route` nodes does not support {}", option);
            Err(Error::usage(message).with_hint(hint))
        }
        None => Ok(()),
    }
}

/// Decides where the rows are sent. If the nodes are requested, there is no fallback.
pub(super) fn to_nodes(plan: &mut Plan, facts: &Facts, options: &Options) -> Result<(), Error> {
    if options.target.route != Route::Nodes || !matches!(facts.purpose, Purpose::Load) {
        return Ok(());
    }
    let refused = |why: Text| {
        Error::new(text!("`route` nodes cannot load {}: {}", facts.table.sql, why))
            .with_hint("`route` root loads it through this server")
    };
    if let Some(why) = barrier(plan, facts) {
        return Err(refused(why));
    }
    let Some(found) = &facts.nodes else {
        return Err(refused("its partitions are not known".into()));
    };
    let made =
        router(&as_tables(&facts.partitions), &facts.table.columns, &plan.columns, &facts.server);
    let (router, left) = made.map_err(|why| refused(why.into()))?;
    if let Some(left) = left.first() {
        return Err(refused(text!("{}: {}", left.partition, left.why)));
    }
    let leaf = |sql: &String| found.leaves.iter().find(|leaf| leaf.partition == *sql);
    let mut leaves = Vec::new();
    for sql in &router.leaves {
        let leaf = leaf(sql).ok_or_else(|| refused(text!("{} is on no node", sql)))?;
        let filled =
            |c: &&crate::facts::RemoteColumn| c.filled_by_node && !plan.columns.contains(&c.name);
        if let Some(column) = leaf.columns.iter().find(filled) {
            return Err(refused(text!(
                "column {} is not in the input, and node {} has its own value for it",
                column.name,
                found.nodes[leaf.node].name
            )));
        }
        let keys: Vec<&String> = router.needed().iter().map(|at| &plan.columns[*at]).collect();
        leaves.push(leaf_target(plan, leaf, &keys));
    }
    let together = together(facts, found, options)?;
    refuse_truncate(facts, found, options)?;
    refuse_shared(found, options, together)?;
    plan.route = Some(text!(
        "straight to {} tables on {} nodes: {}; the nodes commit {}",
        leaves.len(),
        found.nodes.len(),
        names(&found.nodes),
        if together { "together, by two-phase commit" } else { "one after another" }
    ));
    let truncate = options.target.truncate;
    // The coordinator's own TRUNCATE would reach the nodes over other connections.
    plan.before.retain(|statement| !statement.starts_with("TRUNCATE"));
    plan.notes.extend(notes(together, truncate, options.once.is_some()));
    plan.notes.extend(found.nodes.iter().filter_map(down_note));
    plan.nodes = Some(ToNodes {
        nodes: found.nodes.clone(),
        leaves,
        compared: found.leaves.clone(),
        together,
        truncate,
        types: types(plan, facts),
    });
    plan.router = Some(router);
    plan.wire = Wire::Binary;
    plan.method = Method::CopyBinary;
    plan.reason = "rows are sent to the nodes in the binary form".into();
    if found.nodes.len() > 1 && !together {
        plan.cost = cost(options);
    }
    plan.freeze = false;
    plan.may_drop_rows = false;
    Ok(())
}

/// What a load gives up if the nodes commit one after another.
fn cost(options: &Options) -> String {
    let once = match options.once {
        Some(_) => ", and the same command loads the rest",
        None => "",
    };
    format!("a single commit: if a node fails while the nodes commit, the others' rows stay{once}")
}

/// The columns that are sent, each with its type.
fn types(plan: &Plan, facts: &Facts) -> Vec<String> {
    let of = |name: &String| facts.table.columns.iter().find(|column| column.name == *name);
    let typed = |name: &String| {
        let sql_type = of(name).map_or("text", |column| column.type_name.as_str());
        format!("{} {sql_type}", quote_ident(name))
    };
    plan.columns.iter().map(typed).collect()
}

/// Treats foreign leaves as plain tables, because the rows are sent to the tables themselves.
fn as_tables(partitions: &[Partition]) -> Vec<Partition> {
    partitions
        .iter()
        .map(|partition| match partition.kind {
            'f' => Partition {
                kind: 'r',
                writable: true,
                row_security: false,
                statement_triggers: false,
                other_defaults: Vec::new(),
                ..partition.clone()
            },
            _ => partition.clone(),
        })
        .collect()
}

/// Whether the nodes use two-phase commit.
///
/// # Errors
///
/// They should, but a node has no prepared transactions; or `once` meets an UNLOGGED table.
fn together(facts: &Facts, found: &Nodes, options: &Options) -> Result<bool, Error> {
    // A single node commits all rows or none without it. But the record of `once` is on this
    // server.
    let together = options.target.atomic && (found.nodes.len() > 1 || options.once.is_some());
    let unlogged = found.leaves.iter().find(|leaf| leaf.unlogged);
    if let (Some(once), Some(leaf)) = (&options.once, unlogged) {
        if !once.force_unlogged {
            let name = &found.nodes[leaf.node].name;
            let message = text!(
                "`once` does not work on {}: {} of node {} is UNLOGGED, and a crash would empty it",
                facts.table.sql,
                leaf.table,
                name
            );
            return Err(Error::new(message).with_hint(
                "ALTER TABLE ... SET LOGGED there, or accept that with `force-unlogged`",
            ));
        }
    }
    let unable = found.nodes.iter().find(|node| node.max_prepared_transactions == 0);
    match unable.filter(|_| together) {
        Some(node) => {
            let message = text!("node {}: its max_prepared_transactions is 0", node.name);
            Err(Error::new(message).with_hint(
                "`atomic` needs a prepared transaction on each node: set it there, which takes a restart",
            ))
        }
        None => Ok(together),
    }
}

/// Rejects a truncate that the coordinator would reject.
fn refuse_truncate(facts: &Facts, found: &Nodes, options: &Options) -> Result<(), Error> {
    if !options.target.truncate {
        return Ok(());
    }
    if !found.may_truncate {
        return Err(Error::new(format!("the role may not truncate {}", facts.table.sql))
            .with_hint("the table's owner can GRANT it"));
    }
    if let Some(triggers) = &found.truncate_triggers {
        return Err(Error::new(format!(
            "{} has triggers for TRUNCATE, which fire on this server: {triggers}",
            facts.table.sql
        ))
        .with_hint("truncate it first, and load without `truncate`"));
    }
    match found.leaves.iter().find(|leaf| !leaf.truncatable) {
        Some(leaf) => {
            let message = format!(
                "{} does not allow truncates: its option truncatable is false",
                leaf.partition
            );
            Err(Error::new(message)
                .with_hint("the owner of the foreign table or of its server can change the option"))
        }
        None => Ok(()),
    }
}

/// Rejects nodes or tables that are the same: the load would wait for its own locks, or find its
/// own slices.
fn refuse_shared(found: &Nodes, options: &Options, together: bool) -> Result<(), Error> {
    let once = options.once.is_some();
    let same = |node: &Node| node.same_as.clone().map(|other| (node.name.clone(), other));
    let same = found.nodes.iter().find_map(same);
    if let Some((node, other)) = same.filter(|_| once || options.target.truncate) {
        let option = if once { "once" } else { "truncate" };
        return Err(Error::new(text!(
            "node {} is the same database as {}, and with {} the load could wait there for itself",
            node,
            other,
            Text::setting(option)
        ))
        .with_hint(
            "let the partitions of one database use one foreign server; `route` root loads them \
             through the coordinator",
        ));
    }
    for (i, leaf) in found.leaves.iter().enumerate().filter(|_| once && !together) {
        let same = |other: &&RemoteLeaf| (other.node, &other.table) == (leaf.node, &leaf.table);
        if let Some(other) = found.leaves[..i].iter().find(same) {
            let (node, table) = (&found.nodes[leaf.node].name, &leaf.table);
            let message = text!(
                "`once` cannot record what the partitions {} and {} have: both are the table {} of node {}",
                other.partition,
                leaf.partition,
                table,
                node
            );
            return Err(Error::new(message)
                .with_hint("let each foreign table name its own table on the node"));
        }
    }
    Ok(())
}

/// The note on a node that cannot be reached.
fn down_note(node: &Node) -> Option<Text> {
    let why = node.down.as_ref()?.message().clone();
    Some(text!("{}: the slices of this node stay open, and the same command loads them later", why))
}

fn notes(together: bool, truncate: bool, once: bool) -> impl Iterator<Item = Text> {
    let recorded = "the decision to commit is recorded in the schema pgsluice_loads, which is created if it is missing";
    let truncated = "the tables on the nodes are truncated in the transactions of their rows: their readers and writers wait";
    let slices = "each node records its slices of the files in its schema pgsluice_loads, which is created if it is missing";
    let notes = [
        together.then_some(recorded),
        truncate.then_some(truncated),
        (once && !together).then_some(slices),
    ];
    notes.into_iter().flatten().map(Text::from)
}

fn names(nodes: &[Node]) -> String {
    nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn barrier(plan: &Plan, facts: &Facts) -> Option<Text> {
    let table = &facts.table;
    if table.kind != 'p' {
        return Some("it is not partitioned".into());
    }
    if table.row_security {
        return Some("row-level security applies to this role".into());
    }
    if facts.server.encoding != "UTF8" {
        return Some("the encoding of its database is not UTF8".into());
    }
    if let Some(trigger) = table.triggers.first() {
        return Some(text!("its trigger {} fires on this server", trigger.name));
    }
    if let Some(column) = plan.shape.columns.iter().find(|column| column.ty == Type::Server) {
        return Some(text!("only the server reads the type of column {}", column.name));
    }
    let left_out = |name: &String| !plan.columns.contains(name);
    let given = |c: &&crate::facts::ColumnFacts| {
        left_out(&c.name) && (c.default.is_some() || c.generated || c.identity)
    };
    if let Some(column) = table.columns.iter().find(given) {
        let name = &column.name;
        return Some(text!("column {} is not in the input, and has a default", name));
    }
    let dialect = plan.dialect()?;
    dot_is_marker(dialect, plan.shape.fields, facts.server.major())
        .then(|| "\\. is a marker".into())
}

fn leaf_target(plan: &Plan, leaf: &RemoteLeaf, keys: &[&String]) -> LeafTarget {
    let of = |name: &String| leaf.columns.iter().find(|column| column.name == *name);
    let columns: Vec<String> = plan
        .columns
        .iter()
        .map(|name| of(name).map_or_else(|| name.clone(), |column| column.remote.clone()))
        .collect();
    let quoted: Vec<String> = columns.iter().map(|name| quote_ident(name)).collect();
    // The node can check constraints on ranges and lists for each row. It cannot check that of a
    // DEFAULT partition: COPY fails on NOT in its condition ("cache lookup failed for function 0"),
    // because the operators that negate others are never looked up.
    let same_names = leaf.columns.iter().all(|column| column.name == column.remote);
    let by_node = leaf
        .constraint
        .as_ref()
        .filter(|text| !text.contains("satisfies_hash_partition") && !text.contains("(NOT "))
        .filter(|_| same_names);
    let checked = by_node.map_or(String::new(), |text| format!(" WHERE ({text})"));
    let value = |(i, name): (usize, &&String)| {
        let sql_type = of(name).map_or("text", |column| column.sql_type.as_str());
        format!("${}::{} AS {}", i + 1, sql_type, quote_ident(name))
    };
    let values: Vec<String> = keys.iter().enumerate().map(value).collect();
    LeafTarget {
        node: leaf.node,
        copy: format!(
            "COPY {} ({}) FROM STDIN WITH (FORMAT binary){checked}",
            leaf.table,
            quoted.join(", ")
        ),
        table: leaf.table.clone(),
        relation: leaf.relation.clone(),
        partition: leaf.partition.clone(),
        bound: bound(leaf.constraint.as_deref().unwrap_or_default()),
        columns,
        belongs: leaf.constraint.as_ref().map(|constraint| {
            format!("SELECT ({constraint}) FROM (SELECT {}) AS pgsluice_row", values.join(", "))
        }),
    }
}

/// A partition's constraint without the OID of the partitioned table, which may be created again.
fn bound(constraint: &str) -> String {
    let mut parts = constraint.split("satisfies_hash_partition('");
    let mut bound = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        bound += "satisfies_hash_partition('";
        bound += rest;
    }
    bound
}
