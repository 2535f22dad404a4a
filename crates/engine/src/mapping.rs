//! Which column each field of the file goes to.

use crate::error::{shown, Error};
use crate::options::{FileFormat, Header, Options};
use crate::plan::{header_place, InputFacts};
use crate::session::catalog::{ColumnFacts, TableFacts};

/// The columns of the fields, in the file's order.
///
/// # Errors
///
/// A name is unknown, given twice, generated or missing; or the header does
/// not match.
pub fn columns(
    input: &InputFacts,
    table: &TableFacts,
    options: &Options,
) -> Result<Vec<String>, Error> {
    let writable = || table.columns.iter().filter(|c| !c.generated).map(|c| c.name.clone());
    let given = options.target.columns.as_ref();
    let (names, from_file) = match (given, options.input.header, &input.header) {
        (Some(names), _, _) => (names.clone(), false),
        _ if input.names.is_some() => (input.names.clone().unwrap_or_default(), false),
        (None, Header::Names, Some(header)) => (header_names(input, &header.fields)?, true),
        _ => (writable().collect(), false),
    };
    let located = |error: Error| if from_file { error.at(header_place(input)) } else { error };
    for (i, name) in names.iter().enumerate() {
        check(name, table, from_file).map_err(located)?;
        if names[..i].contains(name) {
            return Err(located(Error::new(format!("column \"{name}\" is named twice"))));
        }
    }
    if let (Header::Match, Some(header)) = (options.input.header, &input.header) {
        match_header(&header.fields, &names).map_err(|e| e.at(header_place(input)))?;
    }
    if options.input.format != FileFormat::Binary {
        check_missing(&names, table)?;
    }
    Ok(names)
}

fn header_names(input: &InputFacts, fields: &[Option<Vec<u8>>]) -> Result<Vec<String>, Error> {
    let name = |(i, field): (usize, &Option<Vec<u8>>)| {
        let field = field.as_deref().filter(|f| !f.is_empty()).ok_or_else(|| {
            Error::new(format!("field {} of the header has no name", i + 1)).at(header_place(input))
        })?;
        String::from_utf8(field.to_vec()).map_err(|_| {
            Error::new(format!("field {} of the header is not UTF-8: {}", i + 1, shown(field)))
                .at(header_place(input))
                .with_hint("--header=ignore with --columns names the columns instead")
        })
    };
    fields.iter().enumerate().map(name).collect()
}

fn check(name: &str, table: &TableFacts, from_file: bool) -> Result<(), Error> {
    let Some(column) = table.columns.iter().find(|c| c.name == name) else {
        let names: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
        let error = Error::new(format!("table {} has no column \"{name}\"", table.sql));
        return Err(error.with_hint(if from_file {
            format!("it has: {}; --header=ignore loads by position", names.join(", "))
        } else {
            format!("it has: {}", names.join(", "))
        }));
    };
    if column.generated {
        return Err(Error::new(format!("column \"{name}\" is generated and takes no values"))
            .with_hint("leave it out of the file, or name the others with --columns"));
    }
    Ok(())
}

/// COPY's HEADER MATCH, with its messages.
fn match_header(fields: &[Option<Vec<u8>>], names: &[String]) -> Result<(), Error> {
    if fields.len() != names.len() {
        return Err(Error::new(format!(
            "wrong number of fields in header line: got {}, expected {}",
            fields.len(),
            names.len()
        )));
    }
    for (i, (field, name)) in fields.iter().zip(names).enumerate() {
        let got = match field {
            Some(field) if field == name.as_bytes() => continue,
            Some(field) => format!("\"{}\"", shown(field)),
            None => "null value".into(),
        };
        return Err(Error::new(format!(
            "column name mismatch in header line field {}: got {got}, expected \"{name}\"",
            i + 1
        )));
    }
    Ok(())
}

/// Columns that the file lacks must have a default, or take NULL; a BEFORE
/// trigger may fill them all the same.
fn check_missing(names: &[String], table: &TableFacts) -> Result<(), Error> {
    if table.triggers.iter().any(|t| t.row && t.before && !t.internal) {
        return Ok(());
    }
    let lacks = |c: &&ColumnFacts| {
        c.not_null && !c.generated && !c.identity && c.default.is_none() && !names.contains(&c.name)
    };
    match table.columns.iter().find(lacks) {
        Some(column) => Err(Error::new(format!(
            "column \"{}\" of {} is not in the file, has no default and forbids NULL",
            column.name, table.sql
        ))
        .with_hint("--columns and --header say which columns the file has")),
        None => Ok(()),
    }
}
