//! The effects of rejects on the plan.

use super::Plan;
use crate::facts::TableFacts;
use crate::options::{Method, Options, Route};
use crate::text::text;

/// Adds the notes on rejected records, and the changes to the plan that they need.
pub(super) fn rejected_records(plan: &mut Plan, table: &TableFacts, options: &Options) {
    let Some(rejects) = &options.rejects else { return };
    let unit = match options.target.route {
        Route::Nodes => "each COPY to a node is within a savepoint",
        _ => "each chunk is a COPY within a savepoint",
    };
    plan.notes.push(text!(
        "rejected records go to {} (limit {}); {}",
        rejects.file.display(),
        rejects.limit,
        unit
    ));
    plan.one_statement = false;
    if table.refers_to_itself {
        plan.notes.push(text!(
            "{} refers to itself: a record that refers to a later one may be rejected, and can be loaded from the reject file afterwards",
            plan.table
        ));
    }
    if plan.method == Method::CopyFresh {
        plan.notes.push("the rows are not frozen: FREEZE does not work within savepoints".into());
    }
}
