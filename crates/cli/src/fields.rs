//! The arguments on the fields of the files.

use crate::arguments::SourceArguments;
use crate::failure::Failure;
use crate::names::{Fields, Pairs};
use clap::{Args, ValueEnum};
use pgsluice_engine::options::Expression;
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
        let expression = |given: &String| {
            let (column, sql) = pair("--expr", given)?;
            Expression::new(&column, &sql)
        };
        Ok(FieldOptions {
            map: self.map.iter().flat_map(|pairs| pairs.0.clone()).collect(),
            ignore_unknown: self.unknown_columns == Some(UnknownColumns::Ignore),
            all_columns: self.missing_columns == Some(MissingColumns::Error),
            nulls: spellings(&source.null)?,
            set: self.set.iter().map(set).collect::<Result<_, Error>>()?,
            expressions: self.expr.iter().map(expression).collect::<Result<_, Error>>()?,
        })
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
