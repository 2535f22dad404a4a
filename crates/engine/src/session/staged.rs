//! The method `staged`: raw text into a landing table, then a typed INSERT … SELECT.

use super::catalog::TableFacts;
use super::conn::{quote_ident, Conn};
use super::lane::Form;
use super::statement;
use crate::blame::{is_of_a_literal, is_of_a_policy, may_be_of_a_record};
use crate::error::{shown, Error, Place};
use crate::options::TargetOptions;
use crate::plan::Plan;
use crate::rewrite::{self, Value};

/// The column of the landing table that numbers the records, unless one of its own has the name.
const NUMBER: &str = "pgsluice_record";

/// The landing table, and the statement that moves its rows on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landing {
    /// quoted, and qualified unless it is temporary
    pub table: String,
    /// as the server names it in the context of an error
    pub relation: String,
    /// `CREATE TABLE`
    pub create: String,
    /// the column that numbers the records
    number: String,
    /// `INSERT … SELECT`, before and behind the range of records
    insert: [String; 2],
    /// what becomes of the text of each column
    casts: Vec<String>,
    /// some of these are the user's expressions
    has_expressions: bool,
}

impl Landing {
    /// Whether some values are made by the user's expressions.
    pub fn has_expressions(&self) -> bool {
        self.has_expressions
    }
}

/// The landing for these columns: in the table's own schema, or temporary where the
/// role may not create there. The name has `id`, a number that no other session has.
pub fn landing(plan: &Plan, table: &TableFacts, options: &TargetOptions, id: u32) -> Landing {
    let relation = format!("pgsluice_landing_{id}");
    let in_schema = table.schema_open && table.persistence != 't';
    let name = if in_schema {
        format!("{}.{}", quote_ident(&table.schema), quote_ident(&relation))
    } else {
        quote_ident(&relation)
    };
    let kind = match (in_schema, options.logged_landing) {
        (true, true) => "",
        (true, false) => "UNLOGGED ",
        (false, _) => "TEMPORARY ",
    };
    let mut number = NUMBER.to_owned();
    while plan.columns.contains(&number) {
        number.push('_');
    }
    let quoted: Vec<String> = plan.columns.iter().map(|c| quote_ident(c)).collect();
    let texts: Vec<String> = quoted.iter().map(|c| format!("{c} text, ")).collect();
    let create = format!(
        "CREATE {kind}TABLE {name} ({}{number} bigint GENERATED ALWAYS AS IDENTITY)",
        texts.concat()
    );
    let of_landing = |c: &String| format!("{}.{}", quote_ident(&relation), quote_ident(c));
    let cast = |c: &String| cast(c, &of_landing(c), table, options);
    let casts: Vec<String> = plan.columns.iter().map(cast).collect();
    let named: Vec<String> =
        casts.iter().zip(&quoted).map(|(cast, name)| format!("{cast} AS {name}")).collect();
    let filter = plan.filter.as_ref().map_or(String::new(), |f| format!(" WHERE {f}"));
    let head = format!(
        "INSERT INTO {} ({list}) OVERRIDING SYSTEM VALUE SELECT {list} FROM (SELECT {} FROM {name} \
         WHERE {number} BETWEEN ",
        plan.table,
        named.join(", "),
        list = quoted.join(", "),
    );
    // A condition may name the table, as it may with COPY.
    let tail = format!(" OFFSET 0) AS {}{filter}", quote_ident(&table.name));
    let has_expressions = !options.fields.expressions.is_empty();
    Landing { table: name, relation, create, number, insert: [head, tail], casts, has_expressions }
}

/// What becomes of a text as the column's value.
fn cast(column: &str, text: &str, table: &TableFacts, options: &TargetOptions) -> String {
    let facts = table.columns.iter().find(|f| f.name == column);
    let text = match options.fields.expression_of(column) {
        Some(expression) => expression.of(text),
        None => text.to_owned(),
    };
    if let Some(reader) = facts.and_then(|f| f.reader.as_ref()) {
        return reader.replacen('$', &format!("{text}::text::cstring"), 1);
    }
    // The modifier is applied by the assignment, which refuses where a cast would cut.
    format!("{text}::{}", facts.map_or("text", |f| f.plain_type.as_str()))
}

/// Has the server read the expressions before the first row.
///
/// # Errors
///
/// It cannot read one; or the connection is lost.
pub fn read_expressions(
    conn: &mut Conn,
    table: &TableFacts,
    options: &TargetOptions,
) -> Result<(), Error> {
    for expression in &options.fields.expressions {
        let cast = cast(&expression.column, "$1::text", table, options);
        // A condition is a place where an aggregate or a set, which would change the number of
        // rows, is refused.
        conn.read(&format!("SELECT WHERE ({cast}) IS NULL")).map_err(|e| {
            let says = e.server().cloned().unwrap_or_default();
            let (column, sql) = (&expression.column, &expression.sql);
            Error::new(format!("--expr {column}: {}", e.message()))
                .with_server(says)
                .with_hint(format!("the expression is: {sql}; ? is the field's text"))
        })?;
    }
    Ok(())
}

/// Moves records `from` to `to` (from 1) on; gives the number of rows.
///
/// # Errors
///
/// The server refuses a record.
pub fn insert(conn: &mut Conn, landing: &Landing, from: u64, to: u64) -> Result<u64, Error> {
    let [head, tail] = &landing.insert;
    let (_, rows) = conn.exec_counted(&format!("{head}{from} AND {to}{tail}"))?;
    Ok(rows)
}

/// Moves all records on. If the server refuses, finds the first record that it
/// refuses; `place` tells where that one is in the files.
///
/// # Errors
///
/// The refusal, at its place; the transaction is at its end.
pub fn convert(
    conn: &mut Conn,
    plan: &Plan,
    landing: &Landing,
    records: u64,
    place: &dyn Fn(u64) -> Place,
) -> Result<u64, Error> {
    conn.exec("SAVEPOINT landed")?;
    let error = match insert(conn, landing, 1, records) {
        Ok(rows) => return Ok(rows),
        Err(error) if !may_be_of_one(plan, &error) => return Err(error),
        Err(error) => error,
    };
    conn.exec("ROLLBACK TO landed")?;
    let (record, why) = first_refused(conn, plan, landing, records, error)?;
    let mut place = place(record);
    conn.exec("ROLLBACK TO landed")?;
    if let Some((column, value)) = column_of(conn, plan, landing, record, &why)? {
        // NULL is what the marker stands for in the file.
        let marker = plan.dialect().map(|d| shown(&d.null));
        place.column = Some(column);
        place.value = value.map(|v| shown(v.as_bytes())).or(marker);
    }
    Err(why.at(place))
}

/// Whether it is worth looking for a record: a condition of the user's may be wrong by the
/// same codes as a value.
fn may_be_of_one(plan: &Plan, error: &Error) -> bool {
    may_be_of_a_record(error.sqlstate())
        || is_of_a_policy(error)
        || plan.filter.is_none() && is_of_a_literal(error.sqlstate())
}

/// Halves the records until one is left.
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
        match insert(conn, landing, from, middle) {
            Ok(_) => from = middle + 1,
            Err(error) if !may_be_of_one(plan, &error) => return Err(error),
            Err(error) => {
                why = error;
                to = middle;
                conn.exec("ROLLBACK TO part")?;
            }
        }
    }
    match insert(conn, landing, from, from) {
        Err(alone) if may_be_of_one(plan, &alone) => Ok((from, alone)),
        Err(error) => Err(error),
        Ok(_) => Ok((from, why)),
    }
}

/// The column whose text makes an expression or a cast fail with this code, of the rows that satisfy
/// a condition. It is only to tell more: what goes wrong here is left aside.
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

/// The column and the value that a refusal is about. INSERT does not say; COPY
/// of the same values does, where they are not made by expressions.
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
    if landing.has_expressions {
        let condition = format!("{number} = {record}");
        let column = refused_column(conn, plan, landing, &condition, why.sqlstate());
        return Ok(column.or(why.server().and_then(|s| s.column.clone())).map(with_value));
    }
    let mut line = Vec::new();
    let texts = values.iter().map(Option::as_deref);
    let fields = texts.map(|v| v.map_or(Value::Null, |v| Value::Text(v.as_bytes())));
    rewrite::text(fields, &mut line);
    // It is only to tell more, and under row-level security the server takes no COPY.
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
