//! Rejects a method that the user has requested, if it cannot do the load.

use super::landing::{without_landing, MOST_COLUMNS};
use crate::error::Error;
use crate::facts::{ServerFacts, TableFacts};
use crate::options::{FileFormat, Method, Options};
use crate::text::{text, Text};
use pgsluice_core::shape::RowShape;

/// The hint for a table that neither TRUNCATE nor DELETE can empty alone.
const TOGETHER: &str =
    "empty it before the load, together with those tables, by TRUNCATE ... CASCADE";

/// The fault of an installed extension.
pub(super) fn unusable(fault: &str) -> String {
    format!("the extension pgsluice is in this database and cannot be used: {fault}")
}

/// Checks that the method supports these files and options, on this server and for this table.
pub(super) fn refuse(
    asked: Method,
    server: &ServerFacts,
    table: &TableFacts,
    options: &Options,
    shape: &RowShape,
) -> Result<(), Error> {
    refuse_policies(asked, table, options)?;
    refuse_rules(asked, table)?;
    if goes_by_insert(asked) && shape.columns.is_empty() {
        let sql = &table.sql;
        return Err(Error::new(format!(
            "{asked} uses INSERT, and {sql} has no column to insert into"
        ))
        .with_hint("the COPY methods load each empty line as a row, as COPY does"));
    }
    let as_text =
        [Method::Insert, Method::InsertBatch, Method::CopyCsv, Method::CopyText, Method::Staged];
    if options.input.format == FileFormat::Binary && as_text.contains(&asked) {
        return Err(Error::new(format!("a binary file cannot be loaded by {asked}"))
            .with_hint("use copy-binary, or another format"));
    }
    let inserts = matches!(asked, Method::Insert | Method::InsertBatch);
    if inserts && (options.target.filter.is_some() || options.input.encoding.is_some()) {
        return Err(Error::new(text!("{} supports neither `where` nor `encoding`", asked))
            .with_hint("use one of the COPY methods"));
    }
    if asked == Method::Staged && shape.columns.len() > MOST_COLUMNS {
        let columns = shape.columns.len() + 1;
        return Err(Error::new(format!(
            "staged needs a landing table of {columns} columns, and a table has at most 1600"
        ))
        .with_hint(without_landing(!options.target.fields.expressions.is_empty())));
    }
    let default = matches!(&options.input.format, FileFormat::Delimited(d) if d.default.is_some());
    if asked == Method::Staged && default {
        return Err(Error::new("staged does not support `default`"));
    }
    if default && !inserts && server.major() < 16 {
        let major = server.major();
        return Err(Error::new(format!("COPY of PostgreSQL {major} does not support DEFAULT"))
            .with_hint("use insert or insert-batch"));
    }
    if let (Method::Extension, Some(fault)) = (asked, &server.extension_fault) {
        return Err(Error::new(unusable(fault))
            .with_hint("install it again for this server, or use another method"));
    }
    if asked == Method::Extension && server.extension.is_none() {
        return Err(Error::new("the extension pgsluice is not in this database")
            .with_hint("CREATE EXTENSION pgsluice, or use another method"));
    }
    Ok(())
}

/// The method that `auto` chooses if the server does not accept COPY. It is the faster one, unless
/// there is a marker for DEFAULT.
pub(super) fn without_copy(options: &Options) -> Method {
    match &options.input.format {
        FileFormat::Delimited(d) if d.default.is_some() => Method::InsertBatch,
        _ => Method::Staged,
    }
}

fn goes_by_insert(method: Method) -> bool {
    matches!(method, Method::Insert | Method::InsertBatch | Method::Staged)
}

/// The server does not accept COPY if row-level security policies apply to its rows.
fn refuse_policies(asked: Method, table: &TableFacts, options: &Options) -> Result<(), Error> {
    let binary = options.input.format == FileFormat::Binary;
    if !table.row_security || goes_by_insert(asked) && !binary {
        return Ok(());
    }
    let error = Error::new(format!(
        "row-level security applies to this role on {}, and with it the server does not accept COPY",
        table.sql
    ));
    Err(error.with_hint(if binary {
        "a binary file needs COPY: load CSV or text, or load as the table's owner"
    } else {
        "`method` staged, insert-batch and insert use INSERT; auto chooses staged"
    }))
}

/// Rules rewrite an INSERT and may change its number of rows. COPY ignores them.
fn refuse_rules(asked: Method, table: &TableFacts) -> Result<(), Error> {
    if !goes_by_insert(asked) || table.rules.is_empty() {
        return Ok(());
    }
    let (sql, rules) = (&table.sql, table.rules.join(", "));
    let error = Error::new(format!("{asked} uses INSERT, which rules of {sql} rewrite: {rules}"));
    Err(error.with_hint(
        "the COPY methods ignore rules, as COPY does; ALTER TABLE ... DISABLE RULE disables one",
    ))
}

/// The note on rules if the method uses COPY.
pub(super) fn rules_passed_by(table: &TableFacts) -> Vec<Text> {
    let rules = table.rules.join(", ");
    let told = (!table.rules.is_empty()).then(|| text!("COPY ignores rules for INSERT: {}", rules));
    told.into_iter().collect()
}

/// The server does not truncate a table that foreign keys of other tables refer to, even if those
/// tables are empty.
pub(super) fn refuse_truncate(before: &[String], table: &TableFacts) -> Result<(), Error> {
    if !table.referenced || !before.iter().any(|s| s.starts_with("TRUNCATE")) {
        return Ok(());
    }
    let error = Error::new(format!(
        "{} cannot be truncated: foreign keys of other tables refer to it",
        table.sql
    ));
    Err(error.with_hint(match table.cascades {
        true => TOGETHER,
        false => {
            "`method` lanes deletes its rows instead; or empty it before the load, together with those \
             tables, by TRUNCATE ... CASCADE"
        }
    }))
}

/// Foreign keys of other tables may delete or change rows there when rows of the table are deleted.
pub(super) fn refuse_delete(table: &TableFacts) -> Result<(), Error> {
    if !table.cascades {
        return Ok(());
    }
    let error = Error::new(format!(
        "{} cannot be emptied by DELETE: foreign keys with ON DELETE CASCADE, SET NULL or SET DEFAULT \
         would delete or change rows of other tables",
        table.sql
    ));
    Err(error.with_hint(TOGETHER))
}
