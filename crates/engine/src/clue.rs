//! Hints for errors that a wrong dialect may have caused: what the file itself shows, if it differs
//! from the options.

use crate::error::{Error, Kind};
use crate::input::{can_be_read_again, peek};
use crate::options::{Header, Options};
use crate::sniff::{option, sniff, spelling, Detected, Given, Head, Setting, Spelling};
use crate::text::{text, Text};
use pgsluice_core::scan::Format;

const LINE_ENDS: &str = "the lines before end in another way: make all alike (sed 's/\\r$//' \
                         removes CR), or put a value of several lines in quotes";

/// Adds a hint to an error that has none: what the first file shows in contrast to the options, or
/// else what the value looks like.
pub(crate) fn explained(error: Error, options: &Options) -> Error {
    let state = error.sqlstate();
    let of_content = state.is_empty() || state.starts_with("22");
    let may_be = matches!(error.kind(), Kind::Failed | Kind::Data) && of_content;
    // The server's hint says that there are other styles of dates, but not which one is right.
    let of_moment = matches!(state, "22007" | "22008");
    // For lines with different line ends, the server's hint is to use quotes.
    let of_line_end = ["unquoted newline", "unquoted carriage return"];
    if may_be && of_line_end.iter().any(|text| error.message().contains(text)) {
        return error.with_hint(LINE_ENDS);
    }
    let said = error.hint().is_some() && !of_moment;
    if said || !may_be {
        return error;
    }
    match of_file(&error, options).or_else(|| of_value(&error, options)) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Returns what the first file shows in contrast to the options.
fn of_file(error: &Error, options: &Options) -> Option<Text> {
    let of_moment = matches!(error.sqlstate(), "22007" | "22008");
    let source = options.input.sources.first().filter(|_| can_be_read_again(&options.input))?;
    let sample = peek(source.as_ref()).ok()?;
    let found = sniff(&sample.bytes, sample.whole, &Given::default());
    let mut other = other(&found, options);
    let style = found.date_style.filter(|_| of_moment && options.target.date_style.is_none());
    other.extend(style.map(|style| Setting("date-style", style.into())));
    if other.is_empty() {
        return None;
    }
    let shown: Vec<Text> = other.iter().map(Setting::text).collect();
    Some(text!(
        "the file looks as if it needs {}; `pgsluice sniff {}` shows why",
        Text::join(&shown, " "),
        source.name()
    ))
}

/// Returns the hint for a value that its column's type rejects: what it is in another spelling.
fn of_value(error: &Error, options: &Options) -> Option<Text> {
    let place = error.place().filter(|_| matches!(error.sqlstate(), "22P02" | "22007"))?;
    let (column, value) = (place.column.as_deref()?, place.value.as_deref()?);
    if options.input.dialect()?.format != Format::Csv {
        return None;
    }
    if value.is_empty() {
        return Some(text!("`force-null` '{}' makes \"\" NULL, as an empty value is", column));
    }
    let converted = |how: &str| text!("`expr` \"{}={}\"", column, how);
    // If the value has no point, do not treat points in later values as separators.
    let comma = match value.contains('.') {
        true => converted("replace(replace(?, '.', ''), ',', '.')"),
        false => converted("replace(?, ',', '.')"),
    };
    let groups = converted("replace(?, ',', '')");
    match spelling(value.as_bytes()) {
        Spelling::Null => {
            let null = Setting("null", format!("{column}={value}"));
            Some(text!("if {} stands for NULL: {}", value, null.text()))
        }
        Spelling::DecimalComma => Some(text!("if the comma is the decimal mark: {}", comma)),
        Spelling::Grouped => Some(text!("if commas separate thousands: {}", groups)),
        Spelling::Either => Some(text!(
            "if the comma is the decimal mark: {}; if it separates thousands: {}",
            comma,
            groups
        )),
        Spelling::Number | Spelling::Other => None,
    }
}

/// Returns the settings that were detected without a doubt and differ from the options.
fn other(found: &Detected, options: &Options) -> Vec<Setting> {
    let Some(dialect) = options.input.dialect() else { return Vec::new() };
    let sure = |what: &str| found.doubts.iter().all(|doubt| doubt.what != what);
    let mut other = Vec::new();
    if !sure("delimiter") || !sure("records") {
        return other;
    }
    if found.delimiter != dialect.delimiter {
        other.push(Setting("delimiter", option(found.delimiter)));
    }
    if found.quote != dialect.quote && sure("quote") {
        other.push(Setting("quote", option(found.quote)));
    }
    if found.escape != dialect.escape && found.escape != found.quote && sure("escape") {
        other.push(Setting("escape", option(found.escape)));
    }
    let none = options.input.header == Header::None && !options.input.first_is_data;
    if found.head == Head::Names && none {
        other.push(Setting("header", "names".into()));
    }
    let frame = &options.input.frame;
    if found.skip_lines > 0 && frame.skip_lines == 0 && sure("preamble") {
        other.push(Setting("skip-lines", found.skip_lines.to_string()));
    }
    if found.skip_footer > 0 && frame.skip_footer == 0 {
        other.push(Setting("skip-footer", found.skip_footer.to_string()));
    }
    if found.comments && frame.comment.is_none() {
        other.push(Setting("comment", "#".into()));
    }
    other
}
