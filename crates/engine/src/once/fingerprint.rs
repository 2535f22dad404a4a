//! The options that determine which rows are made of a file. They must be the same in each load.

use crate::error::Error;
use crate::options::{ColumnSet, FileFormat, Options};
use crate::text::{text, Text};
use pgsluice_core::scan::Format;
use serde_json::{Map, Value};

/// Each option by the name of its setting; the values are readable text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(Map<String, Value>);

impl Fingerprint {
    /// The options of a load.
    pub fn of(options: &Options) -> Fingerprint {
        let mut all = Map::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                all.insert(name.to_owned(), Value::String(value));
            }
        };
        let (input, target) = (&options.input, &options.target);
        let byte = |b: u8| Some(char::from(b).to_string());
        let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
        let some = |any: bool, value: &dyn std::fmt::Debug| any.then(|| format!("{value:?}"));
        match &input.format {
            FileFormat::Binary => add("format", Some("binary".into())),
            FileFormat::Delimited(d) => {
                let csv = d.format == Format::Csv;
                add("format", Some(if csv { "csv" } else { "text" }.into()));
                add("delimiter", byte(d.delimiter));
                add("quote", byte(d.quote).filter(|_| csv));
                add("escape", byte(d.escape).filter(|_| csv));
                add("null", text(&d.null));
                add("default", d.default.as_deref().and_then(text));
                add("stray-quotes", some(csv, &d.stray_quotes));
            }
        }
        add("header", Some(format!("{:?}", input.header)));
        add("encoding", input.encoding.clone());
        let frame = &input.frame;
        add("skip-lines", some(frame.skip_lines > 0, &frame.skip_lines));
        add("skip-footer", some(frame.skip_footer > 0, &frame.skip_footer));
        add("comment", frame.comment.and_then(byte));
        add("columns", target.columns.as_ref().map(|columns| columns_of(columns)));
        let fields = &target.fields;
        add("map", some(!fields.map.is_empty(), &fields.map));
        add("nulls", some(!fields.nulls.is_empty(), &fields.nulls));
        add("set", some(!fields.set.is_empty(), &fields.set));
        add("expr", some(!fields.expressions.is_empty(), &fields.expressions));
        add("where", target.filter.clone());
        add("force-null", set(&target.force_null));
        add("force-not-null", set(&target.force_not_null));
        add("date-style", target.date_style.clone());
        add("time-zone", target.time_zone.clone());
        Fingerprint(all)
    }

    /// As JSON.
    pub fn json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }

    /// Checks that a file was loaded with the same options. `recorded` are the options as JSON.
    ///
    /// # Errors
    ///
    /// The options differ; the error names the differences.
    pub fn check(&self, recorded: &str, name: &str) -> Result<(), Error> {
        let recorded: Map<String, Value> = serde_json::from_str(recorded)
            .map_err(|e| Error::new(format!("a row of pgsluice_loads.sources: {e}")))?;
        if recorded == self.0 {
            return Ok(());
        }
        let shown = |value: Option<&Value>| value.map_or("not given".into(), Value::to_string);
        let mut names: Vec<&String> = recorded.keys().chain(self.0.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let differ = names.into_iter().filter(|n| recorded.get(*n) != self.0.get(*n));
        let differences = differ.map(|n| {
            // The option for COPY's NULL also sets further spellings of NULL.
            let option = Text::setting(if n == "nulls" { "null" } else { n });
            text!("{} was {} and is {}", option, shown(recorded.get(n)), shown(self.0.get(n)))
        });
        let differences = Text::join(&differences.collect::<Vec<_>>(), "; ");
        Err(Error::new(text!("{} was loaded with other options: {}", name, differences))
            .with_hint("load it with the same options, or without `once`"))
    }
}

fn columns_of(columns: &[Option<String>]) -> String {
    let names: Vec<&str> = columns.iter().map(|c| c.as_deref().unwrap_or("")).collect();
    names.join(",")
}

fn set(columns: &ColumnSet) -> Option<String> {
    match columns {
        ColumnSet::None => None,
        ColumnSet::All => Some("*".into()),
        ColumnSet::Named(names) => Some(names.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{InputOptions, TargetOptions};

    #[test]
    fn a_difference_is_named() {
        let target = TargetOptions::new("", "t");
        let mut options =
            Options { input: InputOptions::default(), target, rejects: None, once: None };
        let first = Fingerprint::of(&options).json();
        assert!(Fingerprint::of(&options).check(&first, "a.csv").is_ok());
        options.target.lanes = Some(3);
        assert!(Fingerprint::of(&options).check(&first, "a.csv").is_ok());
        options.target.filter = Some("a > 1".into());
        let error = Fingerprint::of(&options).check(&first, "a.csv").unwrap_err();
        let said = "a.csv was loaded with other options: where was not given and is \"a > 1\"";
        assert_eq!(error.message(), said);
    }
}
