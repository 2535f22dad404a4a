//! The locks of a load that make other sessions wait: named before it begins.

use super::Plan;
use crate::options::{Method, Options};
use crate::session::surroundings::policy::Decision;
use serde::Serialize;
use std::fmt;

/// The rate that a load is taken to have at least, in bytes a second, to estimate how long it takes.
const SLOW_RATE: u64 = 20 << 20;

/// A lock that makes readers or writers wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lock {
    /// as PostgreSQL names it
    pub mode: &'static str,
    /// what is locked
    pub relation: String,
    /// from when
    pub from: &'static str,
    /// to when
    pub until: &'static str,
    /// who waits
    pub waits: &'static str,
    /// seconds that the rows take at 20 MB/s, where the size of the input is known; the building
    /// of indexes comes on top
    pub seconds: Option<u64>,
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lock { mode, relation, from, until, waits, .. } = self;
        write!(f, "{mode} on {relation} from {from} until {until}: {waits} wait")?;
        match self.seconds {
            Some(seconds) => write!(f, ", about {seconds} s plus the time to build indexes"),
            None => Ok(()),
        }
    }
}

/// The locks of a plan, given what is taken down around the rows. `bytes` is the size of the
/// input, 0 if it is not known.
pub fn locks(plan: &Plan, options: &Options, decision: &Decision, bytes: u64) -> Vec<Lock> {
    // Other sessions do not see a new table before the commit.
    if plan.made.is_some() && plan.lanes == 1 {
        return Vec::new();
    }
    let seconds = (bytes > 0).then(|| (bytes / SLOW_RATE).max(1));
    let exclusive = |relation: &str| Lock {
        mode: "ACCESS EXCLUSIVE",
        relation: relation.to_owned(),
        from: "before the first row",
        until: "the commit",
        waits: "all other sessions, readers too,",
        seconds,
    };
    let mut locks = Vec::new();
    let index_down = decision.down().any(|c| c.kind == "index");
    let within = !plan.commits_first();
    let whole = plan.method.exclusive()
        || plan.private
        || plan.before.iter().any(|s| s.starts_with("TRUNCATE"))
        || within && decision.any_down();
    if whole && plan.method != Method::Insert {
        locks.push(exclusive(&plan.table));
    }
    for choice in decision.down().filter(|c| c.kind == "foreign key") {
        let referenced = choice.object.rsplit_once(" to ").map_or("", |(_, table)| table);
        locks.push(exclusive(referenced));
    }
    if !within && index_down {
        locks.push(Lock {
            mode: "SHARE",
            relation: plan.table.clone(),
            from: "the last row",
            until: "the indexes are built",
            waits: "all writers",
            seconds: None,
        });
    }
    let triggers = decision.down().any(|c| c.kind == "trigger");
    if triggers && options.target.method == Method::Lanes {
        locks.push(Lock {
            mode: "SHARE ROW EXCLUSIVE",
            relation: plan.table.clone(),
            from: "before the first row",
            until: "the triggers are disabled",
            waits: "all writers",
            seconds: None,
        });
    }
    locks
}
