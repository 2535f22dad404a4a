//! Functions that the tests of several modules share.

/// The CPU time of this thread in ms.
pub(crate) fn computed() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<u64>().unwrap() / 1_000_000
}
