//! The method `staged`: raw text into a landing table, then a typed INSERT … SELECT.

use super::catalog::TableFacts;
use super::conn::{quote_ident, Conn};
use crate::error::{Error, Place};
use crate::plan::Plan;

/// The column of the landing table that numbers the records.
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
    /// `INSERT … SELECT`, with `$1` and `$2` for the range of records
    insert: String,
}

/// The landing for these columns. It is UNLOGGED in the table's own schema, or
/// temporary where the role may not create there (`schema` is false).
pub fn landing(plan: &Plan, table: &TableFacts, schema: bool, id: u32) -> Landing {
    let relation = format!("pgsluice_landing_{id}");
    let name = if schema {
        format!("{}.{}", quote_ident(&table.schema), quote_ident(&relation))
    } else {
        quote_ident(&relation)
    };
    let kind = if schema { "UNLOGGED" } else { "TEMPORARY" };
    let quoted: Vec<String> = plan.columns.iter().map(|c| quote_ident(c)).collect();
    let texts: Vec<String> = quoted.iter().map(|c| format!("{c} text, ")).collect();
    let create = format!(
        "CREATE {kind} TABLE {name} ({}{NUMBER} bigint GENERATED ALWAYS AS IDENTITY)",
        texts.concat()
    );
    let cast = |c: &String| {
        let facts = table.columns.iter().find(|f| f.name == *c);
        let ty = facts.map_or("text", |f| f.plain_type.as_str());
        // The modifier is applied by the assignment, which refuses where a
        // cast would cut.
        format!("{0}::{ty} AS {0}", quote_ident(c))
    };
    let casts: Vec<String> = plan.columns.iter().map(cast).collect();
    let filter = plan.filter.as_ref().map_or(String::new(), |f| format!(" WHERE {f}"));
    let insert = format!(
        "INSERT INTO {} ({list}) OVERRIDING SYSTEM VALUE SELECT {list} FROM (SELECT {} FROM {name} \
         WHERE {NUMBER} BETWEEN $1 AND $2 OFFSET 0) AS landed{filter}",
        plan.table,
        casts.join(", "),
        list = quoted.join(", "),
    );
    Landing { table: name, relation, create, insert }
}

/// Moves records `from` to `to` (from 1) on; gives the number of rows.
///
/// # Errors
///
/// The server refuses a record.
pub fn insert(conn: &mut Conn, landing: &Landing, from: u64, to: u64) -> Result<u64, Error> {
    let sql = landing.insert.replacen("$1", &from.to_string(), 1);
    let (_, rows) = conn.exec_counted(&sql.replacen("$2", &to.to_string(), 1))?;
    Ok(rows)
}

/// Moves all records on. If the server refuses, finds
/// the first record that it refuses.
///
/// # Errors
///
/// The refusal, with the record's number as its place; the transaction is at its end.
pub fn convert(
    conn: &mut Conn,
    landing: &Landing,
    records: u64,
    file: &dyn Fn(u64) -> (String, u64),
) -> Result<u64, Error> {
    conn.exec("SAVEPOINT landed")?;
    match insert(conn, landing, 1, records) {
        Ok(rows) => Ok(rows),
        Err(error) if error.sqlstate().is_empty() => Err(error),
        Err(error) => {
            conn.exec("ROLLBACK TO landed")?;
            let (mut from, mut to) = (1, records);
            let mut why = error;
            while from < to {
                let middle = from + (to - from) / 2;
                conn.exec("SAVEPOINT part")?;
                match insert(conn, landing, from, middle) {
                    Ok(_) => from = middle + 1,
                    Err(error) if error.sqlstate().is_empty() => return Err(error),
                    Err(error) => {
                        why = error;
                        to = middle;
                        conn.exec("ROLLBACK TO part")?;
                    }
                }
            }
            if let Err(alone) = insert(conn, landing, from, from) {
                why = alone;
            }
            let (file, record) = file(from);
            Err(why.at(Place { file, record: Some(record), ..Place::default() }))
        }
    }
}
