//! Errors of the embedded server.

use std::fmt;
use std::io;
use std::path::Path;

/// The reason why the embedded server could not be found, started, stopped or queried.
///
/// The message is in lower case, without a full stop. The hint, if any, says what the user can do.
/// The caller prints it on a separate line after `hint: `.
#[derive(Debug)]
pub struct ServerError {
    message: String,
    hint: Option<String>,
}

impl ServerError {
    /// An error without a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// The same error with a hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What the user can do.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// A failed system call on a path: `cannot <what> "<path>": <reason>`.
    pub(super) fn io(what: &str, path: &Path, error: io::Error) -> Self {
        Self::new(format!("cannot {what} {path:?}: {error}"))
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServerError {}
