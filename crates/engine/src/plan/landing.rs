//! The landing table of the method `staged`, and the statement that moves its rows on.

use super::Plan;
use crate::facts::TableFacts;
use crate::options::TargetOptions;
use crate::quote::quote_ident;

/// The column of the landing table that numbers the records. If the table has a column of this
/// name, another name is used.
const NUMBER: &str = "pgsluice_record";

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
    let value = |(cast, column): (&String, &String)| match exact_type(column, table) {
        Some(exact) if plan.filter.is_some() => format!("({cast})::{exact}"),
        _ => cast.clone(),
    };
    let values = casts.iter().zip(&plan.columns).map(value);
    let named: Vec<String> =
        values.zip(&quoted).map(|(value, name)| format!("{value} AS {name}")).collect();
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

/// The type of a column with its modifier, if a cast to it rounds a value as its input function does,
/// and truncates nothing.
fn exact_type<'t>(column: &str, table: &'t TableFacts) -> Option<&'t str> {
    /// numeric, time, timetz, timestamp, timestamptz, interval
    const ROUNDED: [u32; 6] = [1700, 1083, 1266, 1114, 1184, 1186];
    let facts = table.columns.iter().find(|f| f.name == column)?;
    let (oid, modifier) = facts.type_id;
    (modifier >= 0 && ROUNDED.contains(&oid)).then_some(facts.type_name.as_str())
}

/// The expression that converts a text to the column's value.
pub(crate) fn cast(
    column: &str,
    text: &str,
    table: &TableFacts,
    options: &TargetOptions,
) -> String {
    let facts = table.columns.iter().find(|f| f.name == column);
    let text = match options.fields.expression_of(column) {
        Some(expression) => expression.of(text),
        None => text.to_owned(),
    };
    if let Some(reader) = facts.and_then(|f| f.reader.as_ref()) {
        return reader.replacen('$', &format!("{text}::text::cstring"), 1);
    }
    // The assignment applies the type modifier. It reports an error where a cast would truncate.
    format!("{text}::{}", facts.map_or("text", |f| f.plain_type.as_str()))
}
