//! The error of a load: what happened, where, and what to do.

use crate::text::{text, Text};
use serde::Serialize;
use std::fmt;

/// Characters of a value that are shown. A value may be a gigabyte, but messages must be readable.
const SHOWN: usize = 80;

/// Bytes of a binary value that are shown.
const SHOWN_BYTES: usize = 32;

/// The longest server message that is passed on, in bytes.
const MAX_MESSAGE: usize = 800;

/// A place in the input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// the file as the user named it, `-` for standard input
    pub file: String,
    /// the number of the record in the file, from 1, without the header
    pub record: Option<u64>,
    /// the line that COPY would report: the last line of the record, from 1
    pub line: Option<u64>,
    /// the start of the record, in bytes of the uncompressed file
    pub offset: Option<u64>,
    /// the column's name
    pub column: Option<String>,
    /// the value, cut to a readable length
    pub value: Option<String>,
}

/// The parts of the server's error besides its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSays {
    /// five characters
    pub sqlstate: String,
    /// `DETAIL`
    pub detail: Option<String>,
    /// `CONTEXT`
    pub context: Option<String>,
    /// the column with the error
    pub column: Option<String>,
    /// the constraint that is violated
    pub constraint: Option<String>,
    /// the server's function that raised it; its name does not depend on the language
    pub function: Option<String>,
}

/// The kind of a failure, from which the calling program can decide what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// the arguments contradict each other; nothing was connected or read
    Usage,
    /// the cause must be removed first: a file, the table, a privilege, the disk
    Failed,
    /// the input has bad records, or too many of them, or none
    Data,
    /// the server cannot be reached, or the connection is lost: nothing is loaded, and the same
    /// load may succeed later
    Connection,
    /// a lock, a deadlock, a time limit, or DDL of another session: nothing is loaded, and the same
    /// load may succeed later
    Busy,
    /// the user, or an administrator, stopped it
    Cancelled,
    /// a bug in the loader or in the server
    Internal,
}

impl Kind {
    /// The kind of an SQLSTATE by itself.
    fn of_sqlstate(sqlstate: &str) -> Kind {
        match sqlstate {
            // Too many connections; the server is starting or shutting down; it ended the session.
            "53300" | "57P01" | "57P02" | "57P03" | "57P05" => Kind::Connection,
            "55P03" | "25P03" | "25P04" => Kind::Busy,
            "57014" => Kind::Cancelled,
            // A protocol violation; a setting that the server rejects.
            "08P01" | "22023" => Kind::Failed,
            _ => match sqlstate.get(..2) {
                Some("08") => Kind::Connection,
                Some("40") => Kind::Busy,
                Some("22" | "23" | "44") => Kind::Data,
                Some("XX") => Kind::Internal,
                _ => Kind::Failed,
            },
        }
    }
}

/// The error type of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: Option<Kind>,
    message: Text,
    place: Option<Place>,
    /// the file that it is about, if the message and not the place names it
    file: Option<String>,
    server: Option<ServerSays>,
    hint: Option<Text>,
    changed: Option<String>,
    repeatable: bool,
    open_nodes: Vec<String>,
    of_leaf: bool,
    leaves_prepared: bool,
}

impl Error {
    /// A failed load. The message is in lower case, without a full stop.
    pub fn new(message: impl Into<Text>) -> Error {
        Error(Box::new(Inner {
            kind: None,
            message: message.into(),
            place: None,
            file: None,
            server: None,
            hint: None,
            changed: None,
            repeatable: false,
            open_nodes: Vec::new(),
            of_leaf: false,
            leaves_prepared: false,
        }))
    }

    /// Wrong or contradictory arguments.
    pub fn usage(message: impl Into<Text>) -> Error {
        Error::new(message).of_kind(Kind::Usage)
    }

    /// Records that cannot be loaded.
    pub fn data(message: impl Into<Text>) -> Error {
        Error::new(message).of_kind(Kind::Data)
    }

    /// A bug in the loader.
    pub fn defect(message: impl fmt::Display) -> Error {
        Error::new(format!("{message}; this is a defect"))
            .of_kind(Kind::Internal)
            .with_hint("nothing was loaded; please report it")
    }

    /// Sets the kind of failure, which is then not taken from the SQLSTATE.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Error {
        self.0.kind = Some(kind);
        self
    }

    /// The load was stopped by the user.
    pub fn cancelled() -> Error {
        Error::new("stopped; the server has rolled everything back").of_kind(Kind::Cancelled)
    }

    /// Makes it the error of a load that the user has stopped. It keeps what is changed nevertheless
    /// and what to do, but not where the load was.
    #[must_use]
    pub(crate) fn stopped(mut self) -> Error {
        self.0.message = "stopped".into();
        self.0.kind = Some(Kind::Cancelled);
        self.0.place = None;
        self.0.file = None;
        self.0.server = None;
        self
    }

    /// A failed system call on a file.
    pub fn io(what: &str, file: &str, error: &std::io::Error) -> Error {
        Error::new(format!("cannot {what} {file}: {}", io_message(error)))
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Text>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the place.
    #[must_use]
    pub fn at(mut self, place: Place) -> Error {
        self.0.place = Some(place);
        self
    }

    /// Adds the name of the file that it is about. The text stays the same.
    #[must_use]
    pub(crate) fn of_file(mut self, name: &str) -> Error {
        self.0.file.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Adds the parts of the server's error besides its message.
    #[must_use]
    pub fn with_server(mut self, server: ServerSays) -> Error {
        self.0.server = Some(server);
        self
    }

    /// Adds what the failed load has changed in the database.
    #[must_use]
    pub fn with_changed(mut self, changed: impl Into<String>) -> Error {
        self.0.changed = Some(changed.into());
        self
    }

    /// Marks a load that can be run again even if it has changed something, because it continues.
    #[must_use]
    pub fn repeatable(mut self) -> Error {
        self.0.repeatable = true;
        self
    }

    /// Marks an error of a partition that rejected a row. The parent would report the row by its
    /// line.
    #[must_use]
    pub(crate) fn of_leaf(mut self) -> Error {
        self.0.of_leaf = true;
        self
    }

    /// Whether it is an error of a partition that rejected a row: see [`Error::of_leaf`].
    pub(crate) fn is_of_leaf(&self) -> bool {
        self.0.of_leaf
    }

    /// Marks an error after which prepared transactions of the load may be left, with their locks.
    #[must_use]
    pub(crate) fn leaving_prepared(mut self) -> Error {
        self.0.leaves_prepared = true;
        self
    }

    /// Whether prepared transactions may be left: see [`Error::leaving_prepared`].
    pub(crate) fn leaves_prepared(&self) -> bool {
        self.0.leaves_prepared
    }

    /// Adds the names of the nodes without their rows, while other nodes have committed theirs.
    #[must_use]
    pub fn with_open_nodes(mut self, names: Vec<String>) -> Error {
        self.0.open_nodes = names;
        self
    }

    /// Adds to a temporary failure that nothing was loaded, if that is so.
    #[must_use]
    pub fn nothing_loaded(mut self) -> Error {
        if self.changed().is_none() && matches!(self.kind(), Kind::Connection | Kind::Busy) {
            self.0.message = text!("{}; nothing was loaded", self.0.message);
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> Kind {
        let stated = self.0.kind.unwrap_or_else(|| Kind::of_sqlstate(self.sqlstate()));
        match self.place() {
            // If the same load ran again, it could load rows twice.
            _ if self.changed().is_some()
                && !self.0.repeatable
                && matches!(stated, Kind::Connection | Kind::Busy) =>
            {
                Kind::Failed
            }
            _ if self.sqlstate() == "57014" && self.message().contains("timeout") => Kind::Busy,
            // A trigger may raise any error for a record, and a file may be malformed.
            Some(place) if stated == Kind::Failed && place.record.is_some() => Kind::Data,
            _ => stated,
        }
    }

    /// The message without the other parts.
    pub fn message(&self) -> &Text {
        &self.0.message
    }

    /// The message with its place and value, and with the additions of the server and the load.
    pub fn text(&self) -> Text {
        let inner = &self.0;
        let place = inner.place.as_ref().map_or(String::new(), |place| format!("{place}: "));
        let mut more = String::new();
        if let Some(value) = inner.place.as_ref().and_then(|p| p.value.as_ref()) {
            // The server's message often contains it.
            if value.is_empty() || !inner.message.contains(value.as_str()) {
                more += &format!(" (value {value:?})");
            }
        }
        if let Some(detail) = inner.server.as_ref().and_then(|server| server.detail.as_ref()) {
            more += &format!("\ndetail: {detail}");
        }
        if let Some(changed) = &inner.changed {
            more += &format!("\nchanged: {changed}");
        }
        text!("{}{}{}", place, inner.message, more)
    }

    /// The place in the input, if there is one.
    pub fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    /// The file that it is about, if that is known.
    pub(crate) fn file(&self) -> Option<&str> {
        self.place().map(|place| place.file.as_str()).or(self.0.file.as_deref())
    }

    /// The parts of the server's error, if it is one.
    pub fn server(&self) -> Option<&ServerSays> {
        self.0.server.as_ref()
    }

    /// The SQLSTATE; empty if the error is not from the server.
    pub fn sqlstate(&self) -> &str {
        self.server().map_or("", |s| s.sqlstate.as_str())
    }

    /// The hint.
    pub fn hint(&self) -> Option<&Text> {
        self.0.hint.as_ref()
    }

    /// The nodes without their rows, while other nodes have committed theirs.
    pub fn open_nodes(&self) -> &[String] {
        &self.0.open_nodes
    }

    /// What the failed load has changed in the database.
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

/// The text, with the plain names of settings.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl std::error::Error for Error {}

/// The message of a system call, without the number of the error.
pub fn io_message(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".into(),
        _ => {
            let text = error.to_string();
            let end = text.find(" (os error ").unwrap_or(text.len());
            text[..end].to_owned()
        }
    }
}

/// A value for a message: cut, and valid UTF-8 in any case.
pub fn shown(value: &[u8]) -> String {
    let head = &value[..value.len().min(4 * SHOWN)];
    let text = String::from_utf8_lossy(head);
    if text.chars().count() <= SHOWN && head.len() == value.len() {
        return text.into_owned();
    }
    let cut: String = text.chars().take(SHOWN).collect();
    format!("{cut}…")
}

/// A binary value for a message: cut, in the form in which the server writes bytes.
pub fn shown_bytes(value: &[u8]) -> String {
    let digits: String = value.iter().take(SHOWN_BYTES).map(|b| format!("{b:02x}")).collect();
    let more = if value.len() > SHOWN_BYTES { "…" } else { "" };
    format!("\\x{digits}{more}")
}

/// A message of the server, cut, because it may contain a value of a gigabyte.
pub fn cut(text: &str) -> String {
    let (head, tail) = (MAX_MESSAGE * 3 / 4, MAX_MESSAGE / 4);
    if text.len() <= MAX_MESSAGE {
        return text.to_owned();
    }
    let floor = |at: usize| (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    format!("{}…{}", &text[..floor(head)], &text[floor(text.len() - tail)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_sqlstate(sqlstate: &str) -> Error {
        let says = ServerSays { sqlstate: sqlstate.into(), ..ServerSays::default() };
        Error::new("x").with_server(says)
    }

    #[test]
    fn kinds_follow_the_sqlstate_and_the_place() {
        for (sqlstate, kind) in [
            ("22P02", Kind::Data),
            ("23505", Kind::Data),
            ("08006", Kind::Connection),
            ("57P01", Kind::Connection),
            ("53300", Kind::Connection),
            ("55P03", Kind::Busy),
            ("40P01", Kind::Busy),
            ("40001", Kind::Busy),
            ("57014", Kind::Cancelled),
            ("XX000", Kind::Internal),
            ("42P01", Kind::Failed),
            ("53100", Kind::Failed),
            ("", Kind::Failed),
        ] {
            assert_eq!(of_sqlstate(sqlstate).kind(), kind, "{sqlstate}");
        }
        let place = Place { record: Some(3), ..Place::default() };
        assert_eq!(of_sqlstate("P0001").at(place.clone()).kind(), Kind::Data);
        assert_eq!(of_sqlstate("40P01").at(place).kind(), Kind::Busy);
        assert_eq!(Error::usage("x").kind(), Kind::Usage);
    }

    #[test]
    fn system_errors_are_said_in_words() {
        let none = std::io::Error::from_raw_os_error(2);
        assert_eq!(Error::io("open", "x.csv", &none).message(), "cannot open x.csv: no such file");
        let denied = io_message(&std::io::Error::from_raw_os_error(13));
        assert_eq!(denied, "Permission denied");
    }
}
