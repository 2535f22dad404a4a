//! What can go wrong around the embedded server.

use std::fmt;
use std::io;
use std::path::Path;

/// Why the embedded server could not be found, started, stopped or asked.
///
/// The message is lower case without a full stop; the hint, where there is one, says what the
/// user can do about it. The caller prints it on a line of its own after `hint: `.
#[derive(Debug)]
pub struct ServerError {
    message: String,
    hint: Option<String>,
}

impl ServerError {
    /// An error without advice.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// The same error with advice.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What the user can do about it.
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
