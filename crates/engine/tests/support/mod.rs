//! What the tests that run servers share, here and in the program's tests.

// Each test program uses a part of it.
#![allow(dead_code)]

mod aloud;
mod port;

pub use aloud::left_out;
pub use port::Port;

use pgsluice_engine::server::{find_all, Installation};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// One installation for each major version. Without any, nothing would be tested.
pub fn each_major() -> Vec<Installation> {
    let mut all = find_all();
    let mut seen = Vec::new();
    all.retain(|i| !seen.contains(&i.version.major) && (seen.push(i.version.major), true).1);
    assert!(!all.is_empty(), "no PostgreSQL server here: run scripts/servers");
    for major in [15, 16, 18] {
        if !seen.contains(&major) {
            left_out(&format!("PostgreSQL {major}, which is not here"));
        }
    }
    all
}

/// Waits for what comes true however slow the machine is; `what` says what is wrong if it does not.
pub fn wait_until(what: impl FnOnce() -> String, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > Duration::from_secs(180) {
            panic!("{}", what());
        }
        sleep(Duration::from_millis(10));
    }
}
