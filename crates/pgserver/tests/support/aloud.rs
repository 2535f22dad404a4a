//! What the tests of a green run have left out.

use std::io::Write;

/// Says what a test leaves out, and why. By `eprintln!` nobody would hear it: cargo shows nothing
/// of a test that passes.
pub fn left_out(what: &str) {
    let _ = std::io::stderr().write_all(format!("left out: {what}\n").as_bytes());
}
