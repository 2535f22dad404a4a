//! How a command fails: what is printed, and the exit code.

use crate::output::say;
use pgsluice_engine::error::Error;
use pgsluice_engine::server::ServerError;
use std::process::ExitCode;

/// The exit codes, which are stable. `docs/guide/scheduler.md` and `--help` say what they mean.
pub mod code {
    use pgsluice_engine::error::Kind;

    /// Something must be put right first.
    pub const FAILED: u8 = 1;
    /// The arguments are wrong; clap's own code for it.
    pub const USAGE: u8 = 2;
    /// Loaded, and some records were rejected.
    pub const REJECTED: u8 = 3;
    /// The data cannot be loaded.
    pub const DATA: u8 = 4;
    /// No connection, or it was lost.
    pub const CONNECTION: u8 = 5;
    /// A lock or a time limit.
    pub const BUSY: u8 = 6;
    /// Stopped by a signal, or by an administrator of the server.
    pub const CANCELLED: u8 = 7;
    /// A defect.
    pub const INTERNAL: u8 = 8;

    /// The exit code of an error.
    pub fn of(kind: Kind) -> u8 {
        match kind {
            Kind::Failed => FAILED,
            Kind::Usage => USAGE,
            Kind::Data => DATA,
            Kind::Connection => CONNECTION,
            Kind::Busy => BUSY,
            Kind::Cancelled => CANCELLED,
            Kind::Internal => INTERNAL,
        }
    }
}

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
        Self { message: message.into(), hint: None, code: code::FAILED }
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
        Self {
            message: error.to_string(),
            hint: error.hint().map(str::to_owned),
            code: code::of(error.kind()),
        }
    }
}
