//! What the tests that run servers share, here and in the program's tests.

// Each test program uses a part of it.
#![allow(dead_code, unused_imports)]

mod aloud;
mod port;

pub use aloud::left_out;
pub use port::Port;

use pgsluice_pgserver::{find_all, Installation};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// One installation for each major version that pgsluice supports, in the order of [`find_all`]. If
/// there are more than three, the first, the last and one of those between (in CI: 18, 15, and one
/// of 16, 17 and 19), unless `PGSLUICE_SOAK` is set. Panics if there is none, as nothing would be
/// tested.
///
/// The name of a test decides on which of those between it runs, so that each version has its share
/// of the tests.
pub fn each_major() -> Vec<Installation> {
    static ALL: OnceLock<Vec<Installation>> = OnceLock::new();
    let mut all = ALL.get_or_init(find_each_major).clone();
    if !soak() && all.len() > 3 {
        let name_sum: usize = thread::current().name().unwrap_or("").bytes().map(usize::from).sum();
        let between = all.remove(1 + name_sum % (all.len() - 2));
        all.drain(1..all.len() - 1);
        all.insert(1, between);
    }
    all
}

/// Whether everything is to run, however long it takes.
fn soak() -> bool {
    std::env::var_os("PGSLUICE_SOAK").is_some()
}

fn find_each_major() -> Vec<Installation> {
    let mut all = find_all();
    let mut seen = Vec::new();
    all.retain(|i| (15..=19).contains(&i.version.major));
    all.retain(|i| !seen.contains(&i.version.major) && (seen.push(i.version.major), true).1);
    assert!(!all.is_empty(), "no PostgreSQL server here: run scripts/servers");
    for major in 15..=19 {
        if !seen.contains(&major) {
            left_out(&format!("PostgreSQL {major}, which is not here"));
        }
    }
    all
}

/// A psql of any version: some packages have none.
pub fn psql() -> PathBuf {
    let own = each_major().into_iter().map(|i| i.program("psql")).find(|p| p.is_file());
    own.unwrap_or("psql".into())
}

/// Waits until `is_so` is true, however slow the machine is. If that takes too long, panics with
/// `what`.
pub fn wait_until(what: impl FnOnce() -> String, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > Duration::from_secs(180) {
            panic!("{}", what());
        }
        sleep(Duration::from_millis(10));
    }
}

/// Runs the test on each major version, two at a time: a single one keeps no more than one core
/// busy.
pub fn on_each_major(test: impl Fn(&Installation) + Sync) {
    two_at_a_time(each_major(), test);
}

/// As [`on_each_major`], on the first and the last of them only, unless `PGSLUICE_SOAK` is set.
pub fn on_first_and_last_major(test: impl Fn(&Installation) + Sync) {
    let mut all = each_major();
    if !soak() && all.len() > 2 {
        all.drain(1..all.len() - 1);
    }
    two_at_a_time(all, test);
}

/// As [`on_each_major`], on the last of them only, unless `PGSLUICE_SOAK` is set. For tests that
/// hardly depend on the server.
pub fn on_last_major(test: impl Fn(&Installation) + Sync) {
    let mut all = each_major();
    if !soak() {
        all.drain(..all.len() - 1);
    }
    two_at_a_time(all, test);
}

fn two_at_a_time(all: Vec<Installation>, test: impl Fn(&Installation) + Sync) {
    let left = Mutex::new(all.into_iter());
    let next = || left.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(installation) = next() {
                    test(&installation);
                }
            });
        }
    });
}
