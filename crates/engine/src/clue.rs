//! A hint for an error that another dialect would explain: what the file itself shows, where the
//! options say something else.

use crate::error::{Error, Kind};
use crate::input::{can_be_read_again, peek};
use crate::options::{Header, Options};
use crate::sniff::{option, sniff, Detected, Given, Head, Setting};

/// The error with what the first file shows against the options, if it has no hint.
pub(crate) fn explained(error: Error, options: &Options) -> Error {
    let state = error.sqlstate();
    let of_content = state.is_empty() || state.starts_with("22");
    let may_be = matches!(error.kind(), Kind::Failed | Kind::Data) && of_content;
    // The server's own hint is that there are other styles of dates.
    let of_moment = matches!(state, "22007" | "22008");
    let said = error.hint().is_some() && !of_moment;
    if said || !may_be || !can_be_read_again(&options.input) {
        return error;
    }
    let Some(source) = options.input.sources.first() else { return error };
    let Ok(sample) = peek(source.as_ref()) else { return error };
    let found = sniff(&sample.bytes, sample.whole, &Given::default());
    let mut other = other(&found, options);
    let style = found.date_style.filter(|_| of_moment && options.target.date_style.is_none());
    other.extend(style.map(|style| Setting("date-style", style.into())));
    if other.is_empty() {
        return error;
    }
    let shown: Vec<String> = other.iter().map(Setting::to_string).collect();
    let name = source.name();
    error.with_hint(format!(
        "the file looks as if it needs {}; `pgsluice sniff {name}` shows why",
        shown.join(" ")
    ))
}

/// What is detected without a doubt and is not what the options say.
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
    if found.skip_lines > 0 && sure("preamble") {
        other.push(Setting("skip-lines", found.skip_lines.to_string()));
    }
    other
}
