//! What went wrong, where, and what to do about it.

use serde::Serialize;
use std::fmt;

/// How much of a value is shown, in characters: a value may be a gigabyte, and
/// messages are for reading.
const SHOWN: usize = 80;

/// The longest message that is passed on, in bytes.
const MAX_MESSAGE: usize = 800;

/// Where in the input something is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// the file as the user named it, `-` for standard input
    pub file: String,
    /// the record's number in the file, from 1, the header not counted
    pub record: Option<u64>,
    /// the line that COPY would name: the record's last, from 1
    pub line: Option<u64>,
    /// where the record begins, in bytes of the uncompressed file
    pub offset: Option<u64>,
    /// the column's name
    pub column: Option<String>,
    /// the value, cut to what can be read
    pub value: Option<String>,
}

/// What the server says about an error beside its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSays {
    /// five characters
    pub sqlstate: String,
    /// `DETAIL`
    pub detail: Option<String>,
    /// `CONTEXT`
    pub context: Option<String>,
    /// the column that the error is about
    pub column: Option<String>,
    /// the constraint that the error is about
    pub constraint: Option<String>,
    /// the server's function that has raised it, in no language
    pub function: Option<String>,
}

/// What makes an error's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// the arguments contradict each other: nothing was connected or read
    Usage,
    /// the load failed
    Failed,
    /// the user stopped it
    Cancelled,
}

/// The error of every function of this crate. Its text does not have the hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    class: Class,
    message: String,
    place: Option<Place>,
    server: Option<ServerSays>,
    hint: Option<String>,
    changed: Option<String>,
}

impl Error {
    /// A failed load; the message is lower case, without a full stop.
    pub fn new(message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            class: Class::Failed,
            message: message.into(),
            place: None,
            server: None,
            hint: None,
            changed: None,
        }))
    }

    /// Arguments that cannot be meant.
    pub fn usage(message: impl Into<String>) -> Error {
        let mut error = Error::new(message);
        error.0.class = Class::Usage;
        error
    }

    /// The user has stopped the load.
    pub fn cancelled() -> Error {
        let mut error = Error::new("stopped; the server has rolled everything back");
        error.0.class = Class::Cancelled;
        error
    }

    /// A system call on a file that failed.
    pub fn io(what: &str, file: &str, error: &std::io::Error) -> Error {
        Error::new(format!("cannot {what} {file}: {error}"))
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds where it is.
    #[must_use]
    pub fn at(mut self, place: Place) -> Error {
        self.0.place = Some(place);
        self
    }

    /// Adds what the server says beside the message.
    #[must_use]
    pub fn with_server(mut self, server: ServerSays) -> Error {
        self.0.server = Some(server);
        self
    }

    /// Names what the failed load has changed nevertheless.
    #[must_use]
    pub fn with_changed(mut self, changed: impl Into<String>) -> Error {
        self.0.changed = Some(changed.into());
        self
    }

    /// What makes the exit code.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// The message alone.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Where it is, if it is in the input.
    pub fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    /// What the server says beside the message, if the server said it.
    pub fn server(&self) -> Option<&ServerSays> {
        self.0.server.as_ref()
    }

    /// The SQLSTATE, or an empty string where the server has not spoken.
    pub fn sqlstate(&self) -> &str {
        self.server().map_or("", |s| s.sqlstate.as_str())
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// What the failed load has changed nevertheless.
    pub fn changed(&self) -> Option<&str> {
        self.0.changed.as_deref()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.file == "-" { "standard input" } else { &self.file })?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(record) = self.record {
            write!(f, ", record {record}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte offset {offset}")?;
        }
        if let Some(column) = &self.column {
            write!(f, ", column {column}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        if let Some(place) = &inner.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(value) = inner.place.as_ref().and_then(|p| p.value.as_ref()) {
            // The server's message often has it already.
            if value.is_empty() || !inner.message.contains(value.as_str()) {
                write!(f, " (value {value:?})")?;
            }
        }
        if let Some(server) = &inner.server {
            if let Some(detail) = &server.detail {
                write!(f, "\ndetail: {detail}")?;
            }
        }
        if let Some(changed) = &inner.changed {
            write!(f, "\nchanged: {changed}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// A value for a message: cut, and valid UTF-8 whatever it was.
pub fn shown(value: &[u8]) -> String {
    let head = &value[..value.len().min(4 * SHOWN)];
    let text = String::from_utf8_lossy(head);
    if text.chars().count() <= SHOWN && head.len() == value.len() {
        return text.into_owned();
    }
    let cut: String = text.chars().take(SHOWN).collect();
    format!("{cut}…")
}

/// A message of the server, which may hold a value of a gigabyte.
pub fn cut(text: &str) -> String {
    let (head, tail) = (MAX_MESSAGE * 3 / 4, MAX_MESSAGE / 4);
    if text.len() <= MAX_MESSAGE {
        return text.to_owned();
    }
    let floor = |at: usize| (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    format!("{}…{}", &text[..floor(head)], &text[floor(text.len() - tail)..])
}
