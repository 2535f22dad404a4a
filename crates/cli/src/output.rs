//! Data for standard output, talk for standard error.
//!
//! The standard macros end the program where a stream cannot be written to. Here a reader that
//! has seen enough and gone changes nothing: neither what is done nor the exit code.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{stderr, stdout, ErrorKind, Write};

/// Prints a line (or several) of data.
///
/// # Errors
///
/// The data cannot be written, though somebody wants them: a full disk.
pub fn print(text: impl Display) -> Result<(), Failure> {
    match writeln!(stdout(), "{text}").and_then(|()| stdout().flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Says a line (or several) on standard error; where nobody can hear it, nothing is lost.
pub fn say(text: impl Display) {
    let _ = writeln!(stderr(), "{text}");
}
