//! Data for standard output.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{stdout, ErrorKind, Write};

/// Prints a line (or several). A reader that has seen enough and gone is no error.
pub fn print(text: impl Display) -> Result<(), Failure> {
    match writeln!(stdout(), "{text}") {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}
