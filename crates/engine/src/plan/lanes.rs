//! How several connections differ from one.

use super::once::amount;
use super::{Plan, Wire};
use crate::facts::{ServerFacts, TableFacts};
use crate::options::{Method, Options};
use crate::text::{text, Text};

/// Why several connections would not check the rows like one: none of them sees the rows of the
/// others before the end.
pub(super) fn alone(table: &TableFacts, options: &Options) -> Option<&'static str> {
    if table.refers_to_itself {
        return Some("rows may refer to rows of the same load");
    }
    if options.target.truncate && table.keeps_apart && !table.empty {
        return Some("the keys of the deleted rows are not free before the commit");
    }
    let rejects = options.rejects.is_some() && table.keeps_apart;
    rejects.then_some("a duplicate of another connection's row could not be rejected by record")
}

/// How the lanes commit. With `once`, no lane depends on the others: the next load continues after
/// those that have committed.
pub(super) fn committed_how(two_phase: bool, once: bool) -> String {
    if once {
        return "the lanes are committed one after another; after a crash, the same command loads the rest"
            .into();
    }
    if two_phase {
        return "the lanes are committed together, by two-phase commit".into();
    }
    "the lanes are committed one after another; a crash of the server between the first and the last \
     commit leaves some of the rows (max_prepared_transactions of at least the number of lanes avoids this)"
        .into()
}

/// Sets what the load gives up because it commits more than once.
pub(super) fn commits(plan: &mut Plan, options: &Options) {
    let pieces = options.once.as_ref().and_then(|once| once.commits_every());
    if plan.method == Method::Lanes {
        plan.cost = match (plan.lanes, plan.two_phase || pieces.is_some()) {
            (1, _) => "nothing",
            (_, true) => "the order of the rows",
            (_, false) => {
                "a single commit: the lanes commit one after another; the order of the rows"
            }
        }
        .into();
    }
    let Some(bytes) = pieces else { return };
    let shared = options.once.as_ref().is_some_and(|once| once.share.is_some());
    let who = if shared { "each machine" } else { "each connection" };
    let pieces = format!("all or nothing: {who} commits after {} of input", amount(bytes));
    plan.cost = match plan.cost.starts_with("nothing") {
        true => pieces,
        false => format!("{pieces}; {}", plan.cost),
    };
}

/// How often statement triggers fire, if that is not once for the load.
pub(super) fn fired_for(plan: &Plan, options: &Options) -> Option<Text> {
    let files = options.input.sources.len() > 1;
    let several = options.once.as_ref().is_some_and(|once| once.commits_every().is_some());
    let each = match (files, several, plan.lanes > 1) {
        _ if matches!(plan.wire, Wire::Insert(_)) => "INSERT",
        _ if options.rejects.is_some() => "chunk",
        // All rows are moved from the temporary table by one statement.
        _ if plan.landing.is_some() => return None,
        (true, true, _) => "file in each transaction",
        (false, true, _) => "transaction",
        (true, false, true) => "file in each lane",
        (false, false, true) => "lane",
        (true, false, false) => "file",
        (false, false, false) => return None,
    };
    Some(text!("the statement triggers fire once for each {}", each))
}

/// A note if several connections are requested with a method that has one.
pub(super) fn without_lanes(plan: &Plan, options: &Options) -> Option<Text> {
    let lanes = options.target.lanes.filter(|lanes| *lanes > 1 && plan.method != Method::Lanes)?;
    Some(text!(
        "`lanes` {} has no effect without `method` lanes: one connection sends the rows",
        lanes
    ))
}

/// One connection for each core, but at most half of the server's connections. Other sessions need
/// some, and the server would reject those above the limit.
pub(super) fn default_lanes(cores: usize, server: &ServerFacts) -> usize {
    cores.min(server.max_connections as usize / 2).max(1)
}

/// The connections that a load has at the same time while it sends rows, each number with their
/// purpose.
pub(super) fn connections(plan: &Plan, options: &Options) -> Vec<(usize, &'static str)> {
    let nodes = plan.nodes.as_ref().map_or(0, |to| to.nodes.len());
    let together = plan.nodes.as_ref().is_some_and(|to| to.together);
    let several = usize::from(plan.lanes > 1);
    let down = usize::from(plan.lanes > 1 && plan.maintenance.any_down());
    let once = options.once.as_ref();
    let shared = once.is_some_and(|once| once.share.is_some());
    let all = [
        (if nodes == 0 { plan.lanes } else { 0 }, "for rows"),
        (nodes, "for rows, one on each node"),
        (usize::from(nodes > 0), "to lock the partitioned table"),
        (usize::from(together), "to record the commit of the nodes"),
        (several, "to detect lanes that wait for each other"),
        (down, "to lock the record of what is dropped or disabled"),
        (usize::from(once.is_some()), "to claim the files, in a transaction until the end"),
        (usize::from(shared), "to show that this machine is alive"),
    ];
    all.into_iter().filter(|(number, _)| *number > 0).collect()
}
