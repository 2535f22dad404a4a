//! The failure of a command: its message and its exit code.

use crate::output::{self, say, say_at};
use crate::wording::words;
use pgsluice_engine::{Error, Kind, Place};
use pgsluice_pgserver::ServerError;
use serde::Serialize;
use serde_json::{Map, Value};
use std::process::ExitCode;

/// The exit codes, which are stable. `docs/guide/scheduler.md` and `--help` describe them.
pub mod code {
    use pgsluice_engine::Kind;

    /// The cause must be removed first.
    pub const FAILED: u8 = 1;
    /// The arguments are wrong. clap uses the same code.
    pub const USAGE: u8 = 2;
    /// The rows are loaded, but some records were rejected.
    pub const REJECTED: u8 = 3;
    /// The data cannot be loaded.
    pub const DATA: u8 = 4;
    /// There is no connection, or it was lost.
    pub const CONNECTION: u8 = 5;
    /// A lock was not available, or a time limit was exceeded.
    pub const BUSY: u8 = 6;
    /// Stopped by a signal, or by an administrator of the server.
    pub const CANCELLED: u8 = 7;
    /// A bug in the program.
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

/// An error to be reported to the user.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
    /// the engine's error, if it is one
    error: Option<Error>,
}

impl Failure {
    /// A failure with a message: lower case, no full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code: code::FAILED, error: None }
    }

    /// Adds a hint: what the user can do.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints the failure and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if output::logs() {
            let more = match serde_json::to_value(self.problem()) {
                Ok(Value::Object(more)) => more,
                _ => Map::new(),
            };
            let mut text = format!("error: {}", self.message);
            if let (Some(hint), false) = (&self.hint, output::objects()) {
                text += &format!("\nhint: {hint}");
            }
            say_at("error", text, more);
            return ExitCode::from(self.code);
        }
        say(format_args!("error: {}", self.message));
        if let Some(hint) = &self.hint {
            say(format_args!("hint: {hint}"));
        }
        ExitCode::from(self.code)
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// The failure in the form of the summary.
    pub fn problem(&self) -> Problem<'_> {
        let error = self.error.as_ref();
        let server = error.and_then(Error::server);
        Problem {
            kind: error.map_or(Kind::Failed, Error::kind),
            message: error.map_or_else(|| self.message.clone(), |e| words(e.message())),
            sqlstate: server.map(|s| s.sqlstate.as_str()).filter(|s| !s.is_empty()),
            detail: server.and_then(|s| s.detail.as_deref()),
            place: error.and_then(Error::place),
            hint: self.hint.as_deref(),
            changed: error.and_then(Error::changed),
            open_nodes: error.map_or(&[], Error::open_nodes),
        }
    }
}

/// The object `error` in a summary and in a JSON log.
#[derive(Debug, Serialize)]
pub struct Problem<'f> {
    /// the kind of the error, which determines the exit code
    kind: Kind,
    /// what happened
    message: String,
    /// five characters, if the error is from the server
    sqlstate: Option<&'f str>,
    /// the server's DETAIL
    detail: Option<&'f str>,
    /// the place in the input
    place: Option<&'f Place>,
    /// what to do
    hint: Option<&'f str>,
    /// what the failed load has changed in the database
    changed: Option<&'f str>,
    /// nodes without their rows, while other nodes have committed theirs
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    open_nodes: &'f [String],
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
            message: words(&error.text()),
            hint: error.hint().map(words),
            code: code::of(error.kind()),
            error: Some(error),
        }
    }
}
