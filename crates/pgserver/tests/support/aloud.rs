//! Reports what tests leave out, even if they pass.

use std::io::Write;

/// Reports what a test leaves out, and why. `eprintln!` would not do: cargo hides the output of a
/// test that passes.
pub fn left_out(what: &str) {
    let _ = std::io::stderr().write_all(format!("left out: {what}\n").as_bytes());
}
