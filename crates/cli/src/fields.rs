//! The arguments on the fields of the files.

use crate::arguments::{FormatName, HeaderUse, SourceArguments, TargetArguments};
use crate::failure::Failure;
use crate::names::{Fields, Pairs};
use clap::{Args, ValueEnum};
use pgsluice_engine::options::Expression;
use pgsluice_engine::options::Method;
use pgsluice_engine::options::{pair, pieces, FieldOptions};
use pgsluice_engine::Error;

/// What to do with a field that has no column of its name
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnknownColumns {
    /// fail before the first row
    Error,
    /// leave the field out
    Ignore,
}

/// What to do with a column that is not in the header
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MissingColumns {
    /// fail before the first row
    Error,
    /// use the default of the column, or NULL
    Default,
}

/// Which field goes where.
#[derive(Args, Debug)]
#[command(next_help_heading = "Fields")]
pub struct FieldArguments {
    /// The column of each field, in the order of the file; - leaves a field out. "a,b" in
    /// quotes is one name
    #[arg(long, value_name = "A,-,B,…", allow_hyphen_values = true)]
    pub columns: Vec<Fields>,
    /// With --header: the columns of fields whose names in the header differ; - leaves the
    /// field out
    #[arg(long, value_name = "NAME=COLUMN,…")]
    pub map: Vec<Pairs>,
    /// With --header: what to do with a field that has no column of its name [default: error]
    #[arg(long, value_enum, value_name = "HOW")]
    pub unknown_columns: Option<UnknownColumns>,
    /// With --header: what to do with a column that is not in the header, unless it is a
    /// generated or identity column [default: default]
    #[arg(long, value_enum, value_name = "HOW")]
    pub missing_columns: Option<MissingColumns>,
    /// The value of a column that is not in the file. {file} is replaced by the name of the
    /// file, {line} by the number of the record's first line
    #[arg(long, value_name = "COLUMN=TEXT")]
    pub set: Vec<String>,
    /// Compute the value of a column by an SQL expression, in which ? is the text of the field.
    /// The server evaluates it, and the load uses the method staged, which is slower
    #[arg(long, value_name = "COLUMN=SQL")]
    pub expr: Vec<String>,
}

impl FieldArguments {
    /// The columns that are given by position.
    pub fn columns(&self) -> Option<Vec<Option<String>>> {
        let all = || self.columns.iter().flat_map(|list| list.0.clone()).collect();
        (!self.columns.is_empty()).then(all)
    }

    /// The options of the engine for these arguments.
    ///
    /// # Errors
    ///
    /// A value is malformed.
    pub fn options(&self, source: &SourceArguments) -> Result<FieldOptions, Failure> {
        let set = |given: &String| {
            let (column, value) = pair("--set", given)?;
            Ok((column, pieces(&value)))
        };
        Ok(FieldOptions {
            map: self.map.iter().flat_map(|pairs| pairs.0.clone()).collect(),
            ignore_unknown: self.unknown_columns == Some(UnknownColumns::Ignore),
            all_columns: self.missing_columns == Some(MissingColumns::Error),
            nulls: spellings(&source.null)?,
            set: self.set.iter().map(set).collect::<Result<_, Error>>()?,
            expressions: self.expressions()?,
        })
    }

    fn expressions(&self) -> Result<Vec<Expression>, Error> {
        let mut all: Vec<Expression> = Vec::new();
        for given in &self.expr {
            let (column, sql) = pair("--expr", given)?;
            if all.iter().any(|expression| expression.column == column) {
                return Err(Error::usage(format!("--expr names column \"{column}\" twice")));
            }
            all.push(Expression::new(&column, &sql)?);
        }
        Ok(all)
    }

    /// Checks that these options can be used together and with the other options.
    ///
    /// # Errors
    ///
    /// They cannot.
    pub fn check(&self, source: &SourceArguments, target: &TargetArguments) -> Result<(), Failure> {
        let columns = self.columns().unwrap_or_default();
        let left_out = columns.iter().any(Option::is_none);
        if left_out && columns.iter().all(Option::is_none) {
            return Err(Error::usage("--columns leaves every field out").into());
        }
        if left_out && source.format == FormatName::Binary {
            let message = "--columns cannot leave out fields of a binary file";
            return Err(Error::usage(message)
                .with_hint("name the columns of all its fields")
                .into());
        }
        if source.format == FormatName::Binary && !self.set.is_empty() {
            return Err(Error::usage("--set cannot be used with --format binary").into());
        }
        if !self.expr.is_empty() {
            expressions_by(source, target)?;
        }
        let map = self.map.iter().flat_map(|pairs| &pairs.0);
        let names: Vec<&String> = map.map(|(name, _)| name).collect();
        if let Some((_, name)) =
            names.iter().enumerate().find(|(i, name)| names[..*i].contains(name))
        {
            return Err(Error::usage(format!("--map names \"{name}\" twice")).into());
        }
        let by_name = [
            ("--map", !self.map.is_empty()),
            ("--unknown-columns", self.unknown_columns.is_some()),
            ("--missing-columns", self.missing_columns.is_some()),
        ];
        let Some((option, _)) = by_name.iter().find(|(_, given)| *given) else { return Ok(()) };
        if !self.columns.is_empty() {
            let message = format!("{option} uses the names in the header, and --columns positions");
            return Err(Error::usage(message).with_hint("use one of them").into());
        }
        if source.header != Some(HeaderUse::Names) {
            return Err(Error::usage(format!("{option} needs --header")).into());
        }
        let of_table = by_name[1..].iter().find(|(_, given)| *given);
        match of_table {
            Some((option, _)) if target.create.is_some() => {
                let message = format!("{option} cannot be used with --create");
                Err(Error::usage(message).into())
            }
            _ => Ok(()),
        }
    }
}

/// Expressions need rows in the text form, in the landing table of the method staged.
fn expressions_by(source: &SourceArguments, target: &TargetArguments) -> Result<(), Failure> {
    let wrong =
        |message: String, hint: &'static str| Err(Error::usage(message).with_hint(hint).into());
    match target.method {
        _ if source.format == FormatName::Binary => {
            wrong("--expr cannot be used with --format binary".into(), "? is the text of a field")
        }
        _ if target.create.is_some() => wrong(
            "--expr cannot be used with --create, which infers types from the file".into(),
            "create the table first",
        ),
        Method::Auto | Method::Staged => Ok(()),
        method => wrong(
            format!("--expr needs the method staged, and --method names {method}"),
            "leave --method out",
        ),
    }
}

/// Whether a value of `--null` is for one column: it contains `=`, but not as first character.
fn of_column(given: &str) -> bool {
    given.find('=').is_some_and(|at| at > 0)
}

/// The marker of NULL for all columns: the value of `--null` without a column, if there is one.
///
/// # Errors
///
/// There are two.
pub fn marker(given: &[String]) -> Result<Option<String>, Failure> {
    let mut markers = given.iter().filter(|given| !of_column(given));
    match (markers.next().cloned(), markers.next()) {
        (_, Some(second)) => {
            let message = "--null gives two markers for all columns";
            let hint = format!("--null '*={second}' is one more spelling for all columns");
            Err(Error::usage(message).with_hint(hint).into())
        }
        (first, None) => Ok(first),
    }
}

/// The values of `--null` that name a column, or `*` for all columns.
fn spellings(given: &[String]) -> Result<Vec<(Option<String>, String)>, Error> {
    let one = |given: &String| {
        let (column, text) = pair("--null", given)?;
        if text.contains(['\r', '\n']) {
            let message = format!("--null {given:?}: a spelling of NULL has no line end");
            return Err(Error::usage(message));
        }
        Ok(((given.starts_with('"') || column != "*").then_some(column), text))
    };
    given.iter().filter(|given| of_column(given)).map(one).collect()
}

/// Rejects spellings of NULL for single columns.
///
/// # Errors
///
/// There is such a spelling.
pub fn no_spellings(source: &SourceArguments, command: &str) -> Result<(), Failure> {
    match source.null.iter().find(|given| of_column(given)) {
        Some(given) => {
            let message =
                format!("{command} has one marker of NULL for all columns, not {given:?}");
            Err(Error::usage(message).into())
        }
        None => Ok(()),
    }
}
