//! Memory runs out at every allocation, one after the other. Each time the library must refuse
//! cleanly, never abort, and free everything that it allocated. With memory for all allocations,
//! the result is the same as without failures.

mod indexes;
mod rows;
mod teams;

use crate::memory::failing;
use std::fmt::Debug;

/// A call of the library failed for lack of memory.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused;

/// Runs the calls in which allocations are counted and fail: those of the test itself do not.
pub(crate) struct Gate {
    left: Option<usize>,
    once: bool,
    failed: usize,
    live: isize,
    calls: usize,
}

impl Gate {
    fn new(left: Option<usize>, once: bool) -> Self {
        Gate { left, once, failed: 0, live: 0, calls: 0 }
    }

    /// Calls the library.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        if let Some(left) = self.left {
            failing::after(left, self.once);
        }
        failing::count(Some(self.live));
        let result = call();
        self.live = failing::count(None);
        (self.left, self.failed, self.calls) = {
            let (left, failed) = failing::stop();
            (left, self.failed + failed, self.calls + 1)
        };
        result
    }
}

/// Does the work with memory for none of its allocations, for one, for two and so on, until there
/// is enough; returns how many allocations there are. Then the same again, with memory after the
/// one allocation that fails.
pub(crate) fn every_allocation<T: Debug + PartialEq>(
    what: &str,
    work: impl Fn(&mut Gate) -> Result<T, Refused>,
) -> usize {
    let mut gate = Gate::new(None, false);
    let expected = work(&mut gate).unwrap_or_else(|_| panic!("{what}: refused with all memory"));
    assert_eq!(gate.live, 0, "{what}: pieces that were not given back");
    let mut allocations = 0;
    for once in [false, true] {
        for left in 0.. {
            let mut gate = Gate::new(Some(left), once);
            let result = work(&mut gate);
            assert_eq!(gate.live, 0, "{what}, {left} allocations: pieces that were not given back");
            match result {
                Ok(result) => assert_eq!(result, expected, "{what}, {left} allocations"),
                Err(Refused) => assert!(gate.failed > 0, "{what}, {left} allocations: refused"),
            }
            if gate.failed == 0 {
                allocations = left;
                break;
            }
        }
    }
    allocations
}
