//! The objects that are dropped or disabled for the load, and what that costs other sessions.

use super::locks::{locks, refuse_to_put_back, size, to_put_back};
use super::policy::{self, Course, Request};
use super::Plan;
use crate::error::Error;
use crate::facts::{Facts, LedgerState};
use crate::options::{Method, Options};
use crate::text::text;

impl Plan {
    /// The request to the rule that decides on indexes, foreign keys and triggers.
    pub fn request(&self, options: &Options, recorded: bool) -> Request {
        let target = &options.target;
        Request {
            indexes: target.indexes,
            triggers: target.triggers,
            foreign_keys: target.foreign_keys,
            rejects: options.rejects.is_some(),
            course: match self.method {
                Method::Insert => Course::RowByRow,
                _ if options.in_pieces() => Course::InPieces,
                _ if self.lanes > 1 => Course::Lanes { recorded },
                _ => Course::OneTransaction,
            },
            truncates: target.truncate,
            locked: self.locked_first,
            private: self.private,
            no_lock_out: target.no_lock_out,
            new_rows: self.records.map(|n| n as f64),
        }
    }
}

/// Plans the objects to drop or disable, the locks for that, and their costs for other sessions.
pub(super) fn maintenance(plan: &mut Plan, facts: &Facts, options: &Options) -> Result<(), Error> {
    let Some(objects) = &facts.objects else { return Ok(()) };
    let recorded = !matches!(facts.ledger, LedgerState::Unusable(_));
    plan.maintenance = policy::decide(objects, &plan.request(options, recorded));
    plan.makes_ledger =
        plan.lanes > 1 && facts.ledger == LedgerState::Missing && plan.maintenance.any_down();
    plan.locks = locks(plan, options, &plan.maintenance, size(plan, options, objects, facts));
    if let (Some(lock), true) = (plan.locks.first(), options.target.no_lock_out) {
        return Err(Error::new(text!("`no-lock-out` forbids this load: {}", lock)).with_hint(
            "`indexes` keep, `method` lanes and a load without `truncate` need no such lock",
        ));
    }
    let first = to_put_back(&plan.table, &facts.down);
    refuse_to_put_back(&first, options)?;
    plan.locks.splice(0..0, first);
    Ok(())
}
