//! Faults that a test requests by the data that it sends. Compiled in only by the feature `faults`.

use crate::memory::failing;

const PANIC: &[u8] = b"fault: panic";
const MEMORY: &[u8] = b"fault: memory";

fn asks(data: &[u8], fault: &[u8]) -> bool {
    data.windows(fault.len()).any(|window| window == fault)
}

/// The faults that `data` requests: a panic at once, or no more memory from here until this value
/// is dropped.
pub(crate) fn of(data: &[u8]) -> Faults {
    assert!(!asks(data, PANIC), "asked for by the data");
    if asks(data, MEMORY) {
        failing::after(0, false);
    }
    Faults
}

/// While it lives, there is no more memory, if the data has requested that.
pub(crate) struct Faults;

impl Drop for Faults {
    fn drop(&mut self) {
        failing::no_more();
    }
}
