//! Decides whether rows are sent straight to the leaves of a partitioned table.

use super::Plan;
use crate::encode::dot_is_marker;
use crate::facts::{ColumnFacts, Facts, Purpose};
use crate::options::{Method, Options, Route};
use crate::route::{router, NotRouted};
use crate::text::{text, Text};
use crate::wire::Wire;
use pgsluice_core::shape::Type;

/// A note names this many partitions. If there are more, it gives their number.
const NAMED: usize = 3;

/// The smallest input that is sent to partitions without a request: one batch.
const WORTH: u64 = 32 << 20;

/// Inputs up to this size are read a second time to find a record that a partition has rejected.
const SOON: u64 = 1 << 30;

/// The most partitions to which rows are sent without a request. With more, each gets too little of
/// a batch.
const FEW: usize = 256;

/// Decides the route. If the user has requested partitions, the plan says why they cannot be used.
pub(super) fn route(plan: &mut Plan, facts: &Facts, options: &Options) {
    let table = &facts.table;
    let named = options.target.route == Route::Leaf;
    let auto = options.target.route == Route::Auto && worth(plan, facts, options);
    if !(named || auto) || !matches!(facts.purpose, Purpose::Load) {
        return;
    }
    let made = match barrier(plan, facts, options) {
        Some(why) => Err(why),
        None => router(&facts.partitions, &table.columns, &plan.columns, &facts.server)
            .map_err(Text::from),
    };
    match made {
        Ok((router, refused)) if auto && (router.leaves.len() > FEW || !refused.is_empty()) => {}
        Ok((mut router, refused)) => {
            router.freeze = freezes(plan, facts, options, named);
            let why = if auto { ", since they have indexes" } else { "" };
            let frozen = if router.freeze { "; their rows are frozen" } else { "" };
            let leaves = router.leaves.len();
            plan.route = Some(text!("straight to {} partitions{}{}", leaves, why, frozen));
            plan.notes.extend(left_to_root(&refused));
            plan.router = Some(router);
            plan.wire = Wire::Binary;
            if options.target.method == Method::Auto && plan.method != Method::CopyBinary {
                plan.method = Method::CopyBinary;
                plan.reason = "rows are sent to partitions in the binary form".into();
            }
        }
        Err(_) if auto => {}
        Err(why) => plan.route = Some(text!("through the root: {}", why)),
    }
}

/// Whether partitions are faster. According to measurements they are if each has an index, which
/// then gets larger batches. Without an index they are as fast as the root. With triggers they are
/// not used: row triggers would see the rows in another order than that of the input.
fn worth(plan: &Plan, facts: &Facts, options: &Options) -> bool {
    let indexed = facts.objects.as_ref().is_some_and(|objects| !objects.indexes.is_empty());
    let triggers = facts.objects.as_ref().is_some_and(|objects| !objects.triggers.is_empty());
    // If a partition rejects a row, the whole batch is sent a second time.
    let strict = options.rejects.is_none();
    let enough = facts.input.bytes >= WORTH;
    indexed && !triggers && strict && enough && plan.method == Method::CopyBinary
}

/// Whether the rows are frozen, because the load has emptied the partitions. COPY freezes only
/// outside savepoints, so a rejected row ends the transaction, and the load runs again through the
/// root to find it. If that would take long, rows are frozen only if the user has requested
/// partitions.
fn freezes(plan: &Plan, facts: &Facts, options: &Options, named: bool) -> bool {
    let emptied = plan.before.iter().any(|statement| statement.starts_with("TRUNCATE"));
    emptied
        && plan.lanes == 1
        && options.rejects.is_none()
        && facts.input.again
        && (named || facts.input.bytes <= SOON)
}

/// Why all rows must be sent through the root.
fn barrier(plan: &Plan, facts: &Facts, options: &Options) -> Option<Text> {
    let Facts { table, server, .. } = facts;
    if table.kind != 'p' {
        return Some(text!("{} is not partitioned", table.sql));
    }
    let auto = options.target.method == Method::Auto;
    let by_copy = matches!(plan.method, Method::CopyText | Method::CopyCsv);
    let binary = matches!(plan.method, Method::CopyBinary | Method::Lanes);
    if !(binary || auto && by_copy) {
        return Some(text!(
            "the method is {}; `method` copy-binary and lanes send rows to partitions",
            plan.method
        ));
    }
    let Some(dialect) = plan.dialect() else {
        return Some("the input holds binary rows".into());
    };
    let unread = plan.shape.columns.iter().find(|column| column.ty == Type::Server);
    if let Some(column) = unread {
        return Some(text!("only the server reads the type of column {}", column.name));
    }
    // Batches are sent partition by partition, so the numbers would not follow the order of the
    // input.
    let numbered = |c: &&ColumnFacts| {
        c.volatile_default || c.default.as_ref().is_some_and(|d| d.contains("nextval("))
    };
    let mut left_out = table.columns.iter().filter(|c| !plan.columns.contains(&c.name));
    if let Some(column) = left_out.find(numbered) {
        return Some(text!("the default of column {} depends on the order of rows", column.name));
    }
    let barriers: [(bool, &'static str); 6] = [
        (table.refers_to_itself, "rows may refer to rows of other partitions"),
        (table.statement_triggers(), "a statement trigger of the table must fire once"),
        (table.after_row_triggers(), "an AFTER ROW trigger sees all rows of its file"),
        (plan.filter.is_some(), "`where` is a condition on rows of the table"),
        (plan.encoding != "UTF8", "the server converts the encoding"),
        (dot_is_marker(dialect, plan.shape.fields, server.major()), "\\. is a marker"),
    ];
    barriers.into_iter().find(|(bars, _)| *bars).map(|(_, why)| why.into())
}

/// The notes on partitions whose rows are sent through the root.
fn left_to_root(refused: &[NotRouted]) -> Vec<Text> {
    if refused.len() > NAMED {
        let (count, first) = (refused.len(), &refused[0]);
        return vec![text!(
            "the rows of {} partitions go through the root, those of {} since {}",
            count,
            first.partition,
            first.why
        )];
    }
    let note = |refused: &NotRouted| {
        text!("the rows of {} go through the root: {}", refused.partition, refused.why)
    };
    refused.iter().map(note).collect()
}
