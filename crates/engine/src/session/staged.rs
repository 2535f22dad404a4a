//! The method `staged`: loads raw text into a landing table, then runs a typed INSERT … SELECT.

use super::conn::Conn;
use super::lane::Form;
use super::statement;
use crate::blame::{is_of_a_literal, is_of_a_policy, may_be_of_a_record, of_condition};
use crate::error::{shown, Error, Place};
use crate::facts::TableFacts;
use crate::options::TargetOptions;
use crate::plan::{cast, without_landing, Landing, Plan};
use crate::quote::quote_ident;
use crate::rewrite::{self, Value};
use crate::text::text;

/// Makes the server parse the expressions before the first row.
///
/// # Errors
///
/// The server cannot parse an expression, or the connection is lost.
pub fn read_expressions(
    conn: &mut Conn,
    table: &TableFacts,
    options: &TargetOptions,
) -> Result<(), Error> {
    for expression in &options.fields.expressions {
        let cast = cast(&expression.column, "pgsluice_landing.field", table, options);
        // In a condition, the server rejects aggregates and set-returning functions. These would
        // change the number of rows. An aggregate in a subquery whose argument is the field belongs
        // to the outer query.
        let read = format!(
            "SELECT FROM (SELECT ''::text AS field) AS pgsluice_landing WHERE ({cast}) IS NULL"
        );
        conn.read(&read).map_err(|e| {
            let says = e.server().cloned().unwrap_or_default();
            let (column, sql) = (&expression.column, &expression.sql);
            Error::new(text!("`expr` {}: {}", column, e.message().clone()))
                .with_server(says)
                .with_hint(format!("the expression is: {sql}; ? is the field's text"))
        })?;
    }
    Ok(())
}

/// If the landing table cannot hold a row, returns the error with a hint. No record is at fault: as
/// text, a value may take more bytes than in the table. So nothing may be rejected for it.
pub fn too_wide(error: &Error, plan: &Plan) -> Option<Error> {
    let (landing, says) = (plan.landing.as_ref()?, error.server()?);
    // The table itself may raise the same error for a record, but then no COPY is in the context.
    let of_landing = |line: &str| statement::place_in(line, &landing.relation, &[]).is_some();
    let too_big = says.sqlstate == "54000"
        && says.function.as_deref() == Some("RelationGetBufferForTuple")
        && says.context.as_deref()?.lines().any(of_landing);
    too_big.then(|| error.clone().with_hint(without_landing(landing.has_expressions())))
}

/// Makes the server parse the condition before the first row. The landing table must exist.
///
/// # Errors
///
/// The server cannot parse it, or the connection is lost.
pub fn read_condition(conn: &mut Conn, plan: &Plan) -> Result<(), Error> {
    let (Some(landing), Some(condition)) = (&plan.landing, &plan.filter) else { return Ok(()) };
    let [head, tail] = &landing.insert;
    conn.read(&format!("{head}1 AND 1{tail}")).map_err(|e| of_condition(e, Some(condition)))
}

/// Inserts the records `from` to `to` (counted from 1) into the table. Returns the number of rows.
///
/// # Errors
///
/// The server rejects a record.
pub fn insert_rows(conn: &mut Conn, landing: &Landing, from: u64, to: u64) -> Result<u64, Error> {
    let [head, tail] = &landing.insert;
    let (_, rows) = conn.exec_counted(&format!("{head}{from} AND {to}{tail}"))?;
    Ok(rows)
}

/// Inserts all records into the table. If the server rejects one, finds the first such record.
/// `place` returns the place of a record in the files.
///
/// # Errors
///
/// The server's error with the place of the record; the transaction has failed.
pub fn convert(
    conn: &mut Conn,
    plan: &Plan,
    landing: &Landing,
    records: u64,
    place: &dyn Fn(u64) -> Place,
) -> Result<u64, Error> {
    conn.exec("SAVEPOINT landed")?;
    let error = match insert_rows(conn, landing, 1, records) {
        Ok(rows) => return Ok(rows),
        Err(error) if !may_be_of_one(plan, &error) => return Err(error),
        Err(error) => error,
    };
    conn.exec("ROLLBACK TO landed")?;
    let (record, why) = first_refused(conn, plan, landing, records, error)?;
    let mut place = place(record);
    conn.exec("ROLLBACK TO landed")?;
    if let Some((column, value)) = column_of(conn, plan, landing, record, &why)? {
        // In the file, the marker stands for NULL.
        let marker = plan.dialect().map(|d| shown(&d.null));
        place.column = Some(column);
        place.value = value.map(|v| shown(v.as_bytes())).or(marker);
    }
    Err(why.at(place))
}

/// Whether a record may be the cause. An error in the user's condition may have the same codes as
/// one in a value.
fn may_be_of_one(plan: &Plan, error: &Error) -> bool {
    may_be_of_a_record(error)
        || is_of_a_policy(error)
        || plan.filter.is_none() && is_of_a_literal(error.sqlstate())
}

/// Bisects the records until one is left.
fn first_refused(
    conn: &mut Conn,
    plan: &Plan,
    landing: &Landing,
    records: u64,
    mut why: Error,
) -> Result<(u64, Error), Error> {
    let (mut from, mut to) = (1, records);
    while from < to {
        let middle = from + (to - from) / 2;
        conn.exec("SAVEPOINT part")?;
        match insert_rows(conn, landing, from, middle) {
            Ok(_) => from = middle + 1,
            Err(error) if !may_be_of_one(plan, &error) => return Err(error),
            Err(error) => {
                why = error;
                to = middle;
                conn.exec("ROLLBACK TO part")?;
            }
        }
    }
    match insert_rows(conn, landing, from, from) {
        Err(alone) if may_be_of_one(plan, &alone) => Ok((from, alone)),
        Err(error) => Err(error),
        Ok(_) => Ok((from, why)),
    }
}

/// Finds the column whose text makes an expression or a cast fail with this code, among the rows
/// that satisfy `condition`. This only adds detail to a message, so errors here are ignored.
pub fn refused_column(
    conn: &mut Conn,
    plan: &Plan,
    landing: &Landing,
    condition: &str,
    sqlstate: &str,
) -> Option<String> {
    for (column, cast) in plan.columns.iter().zip(&landing.casts) {
        conn.exec("SAVEPOINT pgsluice_one").ok()?;
        let tried = conn.exec(&format!("SELECT {cast} FROM {} WHERE {condition}", landing.table));
        conn.exec("ROLLBACK TO SAVEPOINT pgsluice_one; RELEASE SAVEPOINT pgsluice_one").ok()?;
        if tried.is_err_and(|e| e.sqlstate() == sqlstate) {
            return Some(column.clone());
        }
    }
    None
}

/// Finds the column and the value that the server's error is about. The error of INSERT does not
/// name them. COPY of the same values does, if the values are not computed by expressions.
fn column_of(
    conn: &mut Conn,
    plan: &Plan,
    landing: &Landing,
    record: u64,
    why: &Error,
) -> Result<Option<(String, Option<String>)>, Error> {
    let columns: Vec<String> = plan.columns.iter().map(|c| quote_ident(c)).collect();
    let columns = columns.join(", ");
    let (table, number) = (&landing.table, &landing.number);
    let select = format!("SELECT {columns} FROM {table} WHERE {number} = {record}");
    let Some(values) = conn.exec(&select)?.into_iter().next() else { return Ok(None) };
    let with_value = |column: String| {
        let at = plan.columns.iter().position(|c| *c == column);
        (column, at.and_then(|i| values[i].clone()))
    };
    if landing.has_expressions() {
        let condition = format!("{number} = {record}");
        let column = refused_column(conn, plan, landing, &condition, why.sqlstate());
        return Ok(column.or(why.server().and_then(|s| s.column.clone())).map(with_value));
    }
    let mut line = Vec::new();
    let texts = values.iter().map(Option::as_deref);
    let fields = texts.map(|v| v.map_or(Value::Null, |v| Value::Text(v.as_bytes())));
    rewrite::text(fields, &mut line);
    // Errors are ignored: this only adds detail, and with row-level security the server rejects
    // COPY FROM.
    let copied = conn
        .copy_start(&statement::direct(plan, Form::Text))
        .and_then(|()| conn.copy_data(&line))
        .and_then(|()| conn.copy_end());
    let Err(error) = copied else { return Ok(None) };
    if error.sqlstate() != why.sqlstate() {
        return Ok(None);
    }
    let says = error.server().cloned().unwrap_or_default();
    let context = says.context.unwrap_or_default();
    let column = statement::parse_context(&context, plan).and_then(|(_, column)| column);
    Ok(column.or(says.column).map(with_value))
}
