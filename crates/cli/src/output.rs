//! Data for standard output, messages for standard error.
//!
//! The standard macros end the program where a stream cannot be written to. Here a reader that
//! has seen enough and gone changes nothing: neither what is done nor the exit code.

use crate::failure::Failure;
use crate::moment::Moment;
use clap::ValueEnum;
use pgsluice_engine::io_message;
use serde_json::{json, Map, Value};
use std::fmt::Display;
use std::io::{stderr, stdout, ErrorKind, Write};
use std::sync::OnceLock;

/// The form of messages, if they go to a log
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// lines, each with a timestamp
    Text,
    /// one object per line, with time, level and message
    Json,
}

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// From here on, messages have this form. Without it they are lines without a time.
pub fn log_as(format: Option<LogFormat>) {
    if let Some(format) = format {
        let _ = FORMAT.set(format);
    }
}

/// Whether messages go to a log: nothing moves on the screen then.
pub fn logs() -> bool {
    FORMAT.get().is_some()
}

/// Whether messages are objects, which have the hint apart.
pub fn objects() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Prints a line (or several) of data.
///
/// # Errors
///
/// The data cannot be written, though somebody wants them: a full disk.
pub fn print(text: impl Display) -> Result<(), Failure> {
    match writeln!(stdout(), "{text}").and_then(|()| stdout().flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {}", io_message(&e))))
        }
        _ => Ok(()),
    }
}

/// Writes a line (or several) to standard error; if nobody can read it, nothing is lost.
pub fn say(text: impl Display) {
    say_at("info", text, Map::new());
}

/// As [`say`], at a level, with what is known beside the message for logs of objects.
pub fn say_at(level: &str, text: impl Display, more: Map<String, Value>) {
    let text = text.to_string();
    let written = match FORMAT.get() {
        None => text,
        Some(LogFormat::Text) => {
            let now = Moment::now().written();
            let lines = text.trim_start_matches('\n').lines().map(|line| format!("{now} {line}"));
            lines.collect::<Vec<String>>().join("\n")
        }
        Some(LogFormat::Json) => {
            let message = text.trim();
            let message = message.strip_prefix("error: ").unwrap_or(message);
            let mut object = Map::new();
            object.insert("time".into(), json!(Moment::now().written()));
            object.insert("level".into(), json!(level));
            object.insert("message".into(), json!(message));
            object.extend(more);
            Value::Object(object).to_string()
        }
    };
    let _ = writeln!(stderr(), "{}", written);
}
