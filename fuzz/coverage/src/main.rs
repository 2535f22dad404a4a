//! One program for all targets: `PGSLUICE_FUZZ_TARGET` names the one to run.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use pgsluice_fuzz::{Target, TARGETS};

fn chosen() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let wanted = std::env::var("PGSLUICE_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(name, _)| *name == wanted);
        found.expect("PGSLUICE_FUZZ_TARGET names a target").1
    })
}

fuzz_target!(|bytes: &[u8]| chosen()(bytes));
