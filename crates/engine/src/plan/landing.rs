//! The landing table of the method `staged`, and the statement that moves its rows on.

use super::Plan;
use crate::facts::TableFacts;
use crate::options::TargetOptions;
use crate::quote::quote_ident;

/// The column of the landing table that numbers the records, unless one of the table's columns has that name.
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
    pub(crate) number: String,
    /// `INSERT … SELECT`, before and behind the range of records
    pub(crate) insert: [String; 2],
    /// what becomes of the text of each column
    pub(crate) casts: Vec<String>,
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
    // The modifier is applied by the assignment, which refuses where a cast would cut.
    format!("{text}::{}", facts.map_or("text", |f| f.plain_type.as_str()))
}
