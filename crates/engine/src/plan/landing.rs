//! The landing table of the method `staged`, and the statement that moves its rows on.

use super::Plan;
use crate::facts::{ColumnFacts, TableFacts};
use crate::options::TargetOptions;
use crate::quote::quote_ident;

/// The column of the landing table that numbers the records. If the table has a column of this
/// name, another name is used.
const NUMBER: &str = "pgsluice_record";

/// The most columns of the file: a table has at most 1,600 (`MaxHeapAttributeNumber`), and the
/// landing table has the number of the record besides.
pub(super) const MOST_COLUMNS: usize = 1_599;

/// The hint if the landing table cannot hold a record that the table itself may hold.
pub(crate) fn without_landing(expressions: bool) -> &'static str {
    match expressions {
        true => {
            "`expr` first stores each record as text in a landing table, where it must fit into \
             one page: load without `expr`, or fewer columns"
        }
        false => {
            "staged first stores each record as text in a landing table, where it must fit into \
             one page: `method` insert-batch needs no such table"
        }
    }
}

/// The landing table, and the statement that moves its rows on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landing {
    /// quoted, and qualified unless it is temporary
    pub table: String,
    /// the same as the server names it in an error's context
    pub relation: String,
    /// `CREATE TABLE`
    pub create: String,
    /// the column that numbers the records
    pub(crate) number: String,
    /// `INSERT … SELECT`: the text before and after the range of records
    pub(crate) insert: [String; 2],
    /// the expression for each column's text
    pub(crate) casts: Vec<String>,
    /// some of these are expressions of the user
    has_expressions: bool,
}

impl Landing {
    /// Whether some values are computed by the user's expressions.
    pub fn has_expressions(&self) -> bool {
        self.has_expressions
    }
}

/// The landing table for these columns. It is in the table's schema, or temporary if the role may
/// not create a table there. Its name contains `id`, a number that no other session has.
pub(super) fn landing(
    plan: &Plan,
    table: &TableFacts,
    options: &TargetOptions,
    id: u32,
) -> Landing {
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
    // A condition is about the values that the columns will have.
    let value = |(cast, column): (&String, &String)| match column_of(column, table) {
        Some(facts) if plan.filter.is_some() => exact(cast, facts),
        _ => cast.clone(),
    };
    let values = casts.iter().zip(&plan.columns).map(value);
    let named = values.zip(&quoted).map(|(value, name)| format!("{value} AS {name}"));
    let named: Vec<String> = named.chain(defaults(plan, table)).collect();
    let filter = plan.filter.as_ref().map_or(String::new(), |f| format!(" WHERE {f}"));
    let head = format!(
        "INSERT INTO {} ({list}) OVERRIDING SYSTEM VALUE SELECT {list} FROM (SELECT {} FROM {name} \
         WHERE {number} BETWEEN ",
        plan.table,
        named.join(", "),
        list = quoted.join(", "),
    );
    // A condition may use the table's name, as with COPY.
    let tail = format!(" OFFSET 0) AS {}{filter}", quote_ident(&table.name));
    let has_expressions = !options.fields.expressions.is_empty();
    Landing { table: name, relation, create, number, insert: [head, tail], casts, has_expressions }
}

fn column_of<'t>(name: &str, table: &'t TableFacts) -> Option<&'t ColumnFacts> {
    table.columns.iter().find(|facts| facts.name == name)
}

/// The SQL for the value that a column will have, from `cast`, which has its base type. COPY applies
/// the modifier of a type, and checks a domain, before it evaluates a condition.
fn exact(cast: &str, column: &ColumnFacts) -> String {
    /// numeric, time, timetz, timestamp, timestamptz, interval, and arrays of these: a cast rounds as
    /// their input functions do
    const ROUNDED: [u32; 12] =
        [1700, 1083, 1266, 1114, 1184, 1186, 1231, 1183, 1270, 1115, 1185, 1187];
    let (oid, modifier) = column.base;
    // A cast of these types cuts a value off that is too long. Their input functions fail.
    let input =
        |function: &str| format!("pg_catalog.{function}(({cast})::text::cstring, 0, {modifier})");
    // array_in returns `anyarray`, which can be converted to the type only by way of text.
    let array = |element: u32| {
        format!(
            "pg_catalog.array_in(({cast})::text::cstring, {element}, {modifier})::text::{}",
            column.plain_type
        )
    };
    let value = match oid {
        _ if modifier < 0 => cast.to_owned(),
        1042 => input("bpcharin"),
        1043 => input("varcharin"),
        1560 => input("bit_in"),
        1562 => input("varbit_in"),
        1014 => array(1042),
        1015 => array(1043),
        1561 => array(1560),
        1563 => array(1562),
        _ if ROUNDED.contains(&oid) => format!("({cast})::{}", column.base_name),
        _ => cast.to_owned(),
    };
    match column.type_id.0 == oid {
        true => value,
        false => format!("({value})::{}", column.type_name),
    }
}

/// The defaults of columns that are not in the file, if the condition may name them. A default that
/// differs from row to row has no value before the row is inserted.
fn defaults<'a>(plan: &'a Plan, table: &'a TableFacts) -> impl Iterator<Item = String> + 'a {
    let filter = plan.filter.as_deref().unwrap_or_default().to_lowercase();
    let left_out = table.columns.iter().filter(move |column| {
        let steady = |default: &String| !column.volatile_default && !default.contains("nextval(");
        filter.contains(&column.name.to_lowercase())
            && !plan.columns.contains(&column.name)
            && !(column.generated || column.identity)
            && column.default.iter().all(steady)
    });
    left_out.map(|column| {
        let default = column.default.as_deref().unwrap_or("NULL");
        format!("({default})::{} AS {}", column.type_name, quote_ident(&column.name))
    })
}

/// The expression that converts a text to the column's value.
pub(crate) fn cast(
    column: &str,
    text: &str,
    table: &TableFacts,
    options: &TargetOptions,
) -> String {
    let facts = column_of(column, table);
    let text = match options.fields.expression_of(column) {
        Some(expression) => expression.of(text),
        // COPY calls the input function of the type, and not the function of a cast.
        None if facts.is_some_and(|f| f.cast_by_user) => format!("{text}::pg_catalog.varchar"),
        None => text.to_owned(),
    };
    if let Some(reader) = facts.and_then(|f| f.reader.as_ref()) {
        return reader.replacen('$', &format!("{text}::text::cstring"), 1);
    }
    // The assignment applies the type modifier. It reports an error where a cast would truncate.
    format!("{text}::{}", facts.map_or("text", |f| f.plain_type.as_str()))
}
