//! The events that a load reports while it runs.

use crate::plan::Plan;
use std::fmt;

/// An event of a load.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// it begins a phase
    Phase(Phase),
    /// it waits for another load of the same files, with `once`
    Waiting,
    /// it waits for other machines that load the rest, if the load is shared
    OtherMachines,
    /// the plan of the load, reported once, before anything of it is done
    Planned(&'a Plan),
}

/// The phases of a load, in order. If statistics are made before the commit, the phase is
/// `Finishing` again after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// the files and the connection are opened
    #[default]
    Opening,
    /// the catalog is read and the plan is made
    Inspecting,
    /// rows are read and sent
    Loading,
    /// indexes and constraints are recreated, sequences moved, the rows committed
    Finishing,
    /// statistics are made
    Analyzing,
    /// all is done
    Done,
}

impl Phase {
    pub(crate) const ALL: [Phase; 6] = [
        Phase::Opening,
        Phase::Inspecting,
        Phase::Loading,
        Phase::Finishing,
        Phase::Analyzing,
        Phase::Done,
    ];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Opening => "opening",
            Phase::Inspecting => "inspecting",
            Phase::Loading => "loading",
            Phase::Finishing => "finishing",
            Phase::Analyzing => "analyzing",
            Phase::Done => "done",
        })
    }
}
