//! `pgsluice sniff`: detects a file's dialect and writes it as a plan to edit.

use crate::failure::Failure;
use crate::output::print;
use crate::wording::words;
use clap::Args;
use pgsluice_engine::options::one_byte;
use pgsluice_engine::sniff::{counted, peek, sniff, Detected, Doubt, Given, Head, Peek, Setting};
use pgsluice_engine::{stdin, Error, FileSource, Source};
use serde_json::{json, Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
The keys of the plan are options of load; the comment above each has the evidence. What the file
does not decide is listed, with the candidates as comments: choose one of them. load, check, plan
and convert read the plan with --plan. Of a file of more than 512 kB the first 2000 records are read.

Examples:
  pgsluice sniff votes.csv
  pgsluice sniff votes.csv --json | jq .delimiter";

/// Detect a file's dialect (delimiter, quotes, header, types …) and write it as a plan to edit
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The file; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write a JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(a: &Arguments) -> Result<ExitCode, Failure> {
    let source = match a.file.as_os_str() == "-" {
        true => stdin(),
        false => Arc::new(FileSource::new(&a.file)) as Arc<dyn Source>,
    };
    let (name, sample) = (source.name(), peek(source.as_ref())?);
    if sample.bytes.is_empty() && sample.whole {
        return Err(Error::data(format!("{name} is empty")).into());
    }
    let mut found = sniff(&sample.bytes, sample.whole, &Given::default());
    if sample.whole && found.doubts.iter().any(|doubt| doubt.what == "records") {
        return Err(Error::data(format!("{name} has no record")).into());
    }
    dependent(&sample, &mut found)?;
    if a.json {
        let text = serde_json::to_string_pretty(&as_json(&name, &found));
        print(text.unwrap_or_default())?;
    } else {
        print(plan(&name, &found))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// If the delimiter is undecided, then a setting that depends on the delimiter is undecided too.
fn dependent(sample: &Peek, found: &mut Detected) -> Result<(), Error> {
    let open = found.doubts.iter().find(|doubt| doubt.what == "delimiter");
    let candidates = open.map_or_else(Vec::new, |doubt| doubt.candidates.clone());
    let mut by = Vec::new();
    for Setting(_, delimiter) in &candidates {
        let given = one_byte("delimiter", Some(delimiter))?;
        let given = Given { delimiter: given, ..Given::default() };
        by.push((delimiter, sniff(&sample.bytes, sample.whole, &given)));
    }
    for name in ["quote", "escape", "header", "skip-lines", "skip-footer"] {
        let all: Vec<Vec<String>> = by.iter().map(|(_, found)| values(found, name)).collect();
        if all.windows(2).all(|pair| pair[0] == pair[1]) {
            continue;
        }
        let with = |(values, by): (&Vec<String>, &(&String, Detected))| {
            format!("{} with '{}'", values.join(" or "), by.0)
        };
        let each: Vec<String> = all.iter().zip(&by).map(with).collect();
        let why = format!("depends on the delimiter: {}", each.join(", "));
        let values: BTreeSet<String> = all.into_iter().flatten().collect();
        let setting = |value: String| match value.as_str() {
            "none" => Setting("no-header", String::new()),
            _ => Setting(name, value),
        };
        let candidates = values.into_iter().map(setting).collect();
        found.doubts.retain(|doubt| key(doubt) != name);
        found.doubts.push(Doubt { what: name, why, candidates });
    }
    Ok(())
}

/// The value of a setting, or its candidates if it is undecided.
fn values(found: &Detected, name: &str) -> Vec<String> {
    let value = |setting: &Setting| match setting.0 {
        "no-header" => "none".into(),
        _ => setting.1.clone(),
    };
    let own = settings(found).iter().find(|setting| setting.0 == name).map(value);
    match found.doubts.iter().find(|doubt| key(doubt) == name) {
        Some(doubt) => doubt.candidates.iter().map(value).collect(),
        None => vec![own.unwrap_or("0".into())],
    }
}

/// The detected settings, as settings of `load`, including those with COPY's default.
fn settings(found: &Detected) -> Vec<Setting> {
    let byte = |byte: u8| char::from(byte).to_string();
    let mut all = vec![
        Setting("delimiter", byte(found.delimiter)),
        Setting("quote", byte(found.quote)),
        Setting("escape", byte(found.escape)),
    ];
    all.push(Setting("header", header(found.head).into()));
    if found.utf8 {
        all.push(Setting("encoding", "UTF8".into()));
    }
    if found.skip_lines > 0 {
        all.push(Setting("skip-lines", found.skip_lines.to_string()));
    }
    if found.skip_footer > 0 {
        all.push(Setting("skip-footer", found.skip_footer.to_string()));
    }
    all.extend(found.null.iter().map(|null| Setting("null", null.clone())));
    all.extend(found.date_style.map(|style| Setting("date-style", style.into())));
    all
}

fn header(head: Head) -> &'static str {
    match head {
        Head::Names => "names",
        Head::Unfit => "ignore",
        Head::None | Head::Unknown => "none",
    }
}

/// A line of TOML.
fn line(setting: &Setting) -> String {
    let Setting(name, value) = setting;
    match (*name, value.as_str()) {
        ("no-header", _) | ("header", "none") => "header = false".into(),
        (name, value) if value.parse::<u32>().is_ok() && name.starts_with("skip") => {
            format!("{name} = {value}")
        }
        ("delimiter" | "quote" | "escape", value) if value.starts_with("\\x") => {
            let byte = u8::from_str_radix(&value[2..], 16).unwrap_or_default();
            format!("{name} = {}", Quoted(&char::from(byte).to_string()))
        }
        ("delimiter", "\\t") => "delimiter = \"\\t\"".into(),
        (name, value) => format!("{name} = {}", Quoted(value)),
    }
}

/// A quoted string of TOML.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", toml::Value::String(self.0.to_owned()))
    }
}

/// The option that a doubt is about.
fn key(doubt: &Doubt) -> &'static str {
    match doubt.what {
        "preamble" => "skip-lines",
        what => what,
    }
}

/// The plan: each setting, with its evidence in the lines above it.
fn plan(name: &str, found: &Detected) -> String {
    let mut out = Vec::new();
    let records = counted(found.records, "record");
    out.push(match found.whole {
        true => format!("# {}: {records} in the whole file", comment(name)),
        false => format!("# {}: the first {records}", comment(name)),
    });
    out.push("# The keys are options of `pgsluice load`, which reads this file by --plan.".into());
    let open: Vec<&Doubt> = found.doubts.iter().collect();
    if !open.is_empty() {
        let keys: Vec<String> = open.iter().map(|doubt| Quoted(key(doubt)).to_string()).collect();
        out.push(String::new());
        out.push(
            "# The file does not decide these. Choose one of the lines given for each.".into(),
        );
        out.push(format!("undecided = [{}]", keys.join(", ")));
    }
    for doubt in &open {
        out.push(String::new());
        out.push(format!("# {}: {}", doubt.what, comment(&doubt.why)));
        out.extend(doubt.candidates.iter().map(|candidate| format!("# {}", line(candidate))));
    }
    for setting in settings(found).iter().filter(|s| open.iter().all(|doubt| key(doubt) != s.0)) {
        out.push(String::new());
        out.extend(found.why(setting.0).map(|why| format!("# {}", comment(why))));
        out.push(line(setting));
    }
    let more = [
        ("comment", "comments"),
        ("stray-quotes", "stray quotes"),
        ("nulls", "NULL"),
        ("dates", "dates"),
        ("line-ends", "line ends"),
    ];
    out.push(String::new());
    for (property, shown) in more {
        let all = found.evidence.iter().filter(|(name, _)| *name == property);
        out.extend(all.map(|(_, why)| format!("# {shown}: {}", comment(why))));
    }
    if found.comments {
        out.push("# comment = \"#\"".into());
    }
    if found.strays {
        out.push("# stray-quotes = \"literal\"".into());
    }
    out.push("#".into());
    out.push("# column: type that --create gives it".into());
    out.extend(found.columns.iter().map(|column| {
        let also = column.also.map_or(String::new(), |also| format!(", or {also}"));
        let why = if column.why.is_empty() { String::new() } else { format!(" ({})", column.why) };
        comment(&format!("# {}: {}{also}{why}", column.name, column.sql))
    }));
    out.join("\n")
}

/// Text in one line, so that it stays inside its comment.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn as_json(name: &str, found: &Detected) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.into(), value);
    put("file", name.into());
    put("records", found.records.into());
    put("whole", found.whole.into());
    for Setting(name, value) in settings(found) {
        put(&name.replace('-', "_"), value.into());
    }
    put("skip_lines", found.skip_lines.into());
    put("skip_footer", found.skip_footer.into());
    put("line_ends", found.eol.into());
    let columns = found.columns.iter().map(|column| {
        json!({ "name": column.name, "type": column.sql, "or": column.also, "why": column.why })
    });
    put("columns", columns.collect());
    let evidence = found.evidence.iter().map(|(of, why)| json!({ "of": of, "why": why }));
    put("evidence", evidence.collect());
    let doubts = found.doubts.iter().map(|doubt| {
        let all: Vec<String> = doubt.candidates.iter().map(|c| words(&c.text())).collect();
        json!({ "of": doubt.what, "why": doubt.why, "candidates": all })
    });
    put("undecided", doubts.collect());
    Value::Object(object)
}
