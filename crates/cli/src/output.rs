//! Prints data to standard output and messages to standard error.
//!
//! The standard macros panic if a stream cannot be written to. These functions ignore a reader that
//! has closed its end: the work and the exit code stay the same.

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

/// Sets the form of all later messages. Without it they are lines without a time.
pub fn log_as(format: Option<LogFormat>) {
    if let Some(format) = format {
        let _ = FORMAT.set(format);
    }
}

/// Whether messages go to a log. Then no progress line is redrawn.
pub fn logs() -> bool {
    FORMAT.get().is_some()
}

/// Whether messages are JSON objects, which have the hint in a separate member.
pub fn objects() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Prints one or more lines of data.
///
/// # Errors
///
/// The data cannot be written, for example because the disk is full. A closed pipe is no error.
pub fn print(text: impl Display) -> Result<(), Failure> {
    match writeln!(stdout(), "{text}").and_then(|()| stdout().flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {}", io_message(&e))))
        }
        _ => Ok(()),
    }
}

/// Writes one or more lines to standard error. Failures are ignored.
pub fn say(text: impl Display) {
    say_at("info", text, Map::new());
}

/// Like [`say`], with a level. `more` has further members for JSON logs.
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
