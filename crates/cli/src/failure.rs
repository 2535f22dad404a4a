//! How a command fails: what is printed, and the exit code.

use crate::output::say;
use pgsluice_engine::error::{Class, Error};
use pgsluice_engine::server::ServerError;
use std::process::ExitCode;

/// The exit code of a command that could not do its work. Wrong usage exits with 2, which is
/// clap's own code for it.
pub const FAILED: u8 = 1;

/// The exit code for arguments that contradict each other.
const USAGE: u8 = 2;

/// An error on its way to the user.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// A failure with a message: lower case, no full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code: FAILED }
    }

    /// Adds what the user can do about it.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints the failure and gives the exit code.
    pub fn report(&self) -> ExitCode {
        say(format_args!("error: {}", self.message));
        if let Some(hint) = &self.hint {
            say(format_args!("hint: {hint}"));
        }
        ExitCode::from(self.code)
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let failure = Self::new(error.to_string());
        match error.hint() {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = if error.class() == Class::Usage { USAGE } else { FAILED };
        Self { message: error.to_string(), hint: error.hint().map(str::to_owned), code }
    }
}
