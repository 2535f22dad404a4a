//! Builds the statements that carry rows, and parses the CONTEXT lines of the server.

use super::lane::Form;
use crate::plan::Plan;
use crate::quote::{quote_ident, quote_literal};
use crate::rewrite::{self, Value};
use crate::wire::Wire;
use pgsluice_core::error::Malformed;
use pgsluice_core::scan::{valid_utf8, Dialect, Eol, Format, Record, Scanner};

/// The COPY for data in this form, into the landing table if there is one.
pub fn copy(plan: &Plan, form: Form) -> String {
    let options = options(plan, form);
    match &plan.landing {
        Some(landing) => {
            format!("COPY {}{} FROM STDIN WITH ({options})", landing.table, plan.column_list())
        }
        None => direct(plan, form),
    }
}

/// The COPY into the table itself, even if there is a landing table.
pub fn direct(plan: &Plan, form: Form) -> String {
    let filter = plan.filter.as_ref().map_or(String::new(), |f| format!(" WHERE {f}"));
    let (table, columns, options) = (&plan.table, plan.column_list(), options(plan, form));
    format!("COPY {table}{columns} FROM STDIN WITH ({options}){filter}")
}

/// The COPY of binary rows into another table of the same columns: a partition.
pub fn into(plan: &Plan, table: &str, frozen: bool) -> String {
    let freeze = if frozen { ", FREEZE" } else { "" };
    let (columns, options) = (plan.column_list(), options(plan, Form::Binary));
    format!("COPY {table}{columns} FROM STDIN WITH ({options}{freeze})")
}

fn options(plan: &Plan, form: Form) -> String {
    let mut options = match (form, plan.dialect()) {
        (Form::Binary, _) | (Form::AsIs | Form::Plain, None) => vec!["FORMAT binary".to_string()],
        (Form::Csv, _) => vec!["FORMAT csv".to_string()],
        (Form::Text, _) => text(plan),
        (Form::Plain, Some(dialect)) => plain(dialect),
        (Form::AsIs, Some(dialect)) => as_is(plan, dialect),
    };
    if form == Form::AsIs && plan.dialect().is_some() && plan.encoding != "UTF8" {
        options.push(format!("ENCODING {}", quote_literal(&plan.encoding)));
    }
    if plan.freeze {
        options.push("FREEZE".into());
    }
    if plan.method == crate::options::Method::Extension {
        let asked = if plan.required { "require" } else { "on" };
        options.push(format!("pgsluice '{asked}'"));
    }
    options.join(", ")
}

/// The options for the text format that [`rewrite`] writes.
fn text(plan: &Plan) -> Vec<String> {
    let mut options = vec!["FORMAT text".to_string()];
    if plan.dialect().is_some_and(|d| d.default.is_some()) {
        options.push(format!("DEFAULT {}", quote_literal(rewrite::DEFAULT)));
    }
    options
}

/// The options for lines that mean the same in the text format and in CSV.
fn plain(d: &Dialect) -> Vec<String> {
    let delimiter = quote_literal(&char::from(d.delimiter).to_string());
    let null = quote_literal(&String::from_utf8_lossy(&d.null));
    vec!["FORMAT text".into(), format!("DELIMITER {delimiter}"), format!("NULL {null}")]
}

/// Gives only options that differ from the defaults: the statement is read by poolers and people.
fn as_is(plan: &Plan, d: &Dialect) -> Vec<String> {
    let csv = d.format == Format::Csv;
    let plain = if csv { Dialect::csv() } else { Dialect::text() };
    let mut options = vec![format!("FORMAT {}", if csv { "csv" } else { "text" })];
    let byte = |b: u8| quote_literal(&char::from(b).to_string());
    let text = |t: &[u8]| quote_literal(&String::from_utf8_lossy(t));
    if d.delimiter != plain.delimiter {
        options.push(format!("DELIMITER {}", byte(d.delimiter)));
    }
    if d.null != plain.null {
        options.push(format!("NULL {}", text(&d.null)));
    }
    if csv && d.quote != plain.quote {
        options.push(format!("QUOTE {}", byte(d.quote)));
    }
    if csv && d.escape != d.quote {
        options.push(format!("ESCAPE {}", byte(d.escape)));
    }
    if let Some(default) = &d.default {
        options.push(format!("DEFAULT {}", text(default)));
    }
    let forced = |forced: fn(&pgsluice_core::shape::Column) -> bool| {
        let names = plan.shape.columns.iter().filter(|c| forced(c));
        names.map(|c| quote_ident(&c.name)).collect::<Vec<_>>().join(", ")
    };
    let lists = [
        ("FORCE_NULL", forced(|c| c.force_null)),
        ("FORCE_NOT_NULL", forced(|c| c.force_not_null)),
    ];
    for (option, names) in lists.into_iter().filter(|(_, names)| !names.is_empty()) {
        options.push(format!("{option} ({names})"));
    }
    options
}

/// Why a record cannot be added to an INSERT.
pub enum NoInsert {
    /// it is malformed
    Malformed(Malformed),
    /// a value is not valid in the encoding
    Encoding(String),
    /// it has the marker of a default for this column, which has none
    NoDefault(String),
}

/// An INSERT to which rows are added.
pub struct Insert {
    head: String,
    sql: String,
    rows: u64,
}

impl Insert {
    /// Creates an INSERT without rows.
    pub fn new(plan: &Plan) -> Insert {
        // COPY accepts values for GENERATED ALWAYS AS IDENTITY; INSERT needs OVERRIDING.
        let overriding = if plan.columns.is_empty() { "" } else { " OVERRIDING SYSTEM VALUE" };
        // If each row is a separate transaction, each statement includes the settings. The lane
        // decides whether its commit waits (`NO_WAIT`).
        let own = |(name, _): &&(String, String)| {
            plan.wire == Wire::Insert(1) && name != "synchronous_commit"
        };
        let local = |(name, value): &(String, String)| {
            let (name, value) = (quote_literal(name), quote_literal(value));
            format!("SELECT pg_catalog.set_config({name}, {value}, true); ")
        };
        let settings = plan.settings.iter().filter(own).map(local);
        let head = format!(
            "{}INSERT INTO {}{}{overriding} VALUES ",
            settings.collect::<String>(),
            plan.table,
            plan.column_list()
        );
        Insert { sql: head.clone(), head, rows: 0 }
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// [`NoInsert`]; nothing is added.
    pub fn add(&mut self, plan: &Plan, chunk: &[u8], record: &Record) -> Result<(), NoInsert> {
        if record.len() != plan.shape.fields {
            return Err(NoInsert::Malformed(if record.len() > plan.shape.fields {
                Malformed::ExtraData
            } else {
                Malformed::MissingData(record.len())
            }));
        }
        let raw = &chunk[record.start..record.end];
        valid_utf8(raw).map_err(|bad| NoInsert::Encoding(bad.message()))?;
        let escapes = Escapes::of(plan, raw)?;
        let mut row = String::from(if self.rows == 0 { "(" } else { ", (" });
        for (i, value) in rewrite::values(&plan.shape, chunk, record).enumerate() {
            if i > 0 {
                row.push_str(", ");
            }
            match (value, &escapes) {
                (Value::Null, _) => row.push_str("NULL"),
                // DEFAULT would be NULL. COPY does not accept the marker.
                (Value::Default, _) if !plan.defaults[i] => {
                    return Err(NoInsert::NoDefault(plan.columns[i].clone()));
                }
                (Value::Default, _) => row.push_str("DEFAULT"),
                (Value::Text(text), Some(escapes)) => {
                    row.push_str(&plan.read(i, escapes.literal(i, text)?));
                }
                (Value::Text(text), None) => {
                    let literal = quote_literal(&String::from_utf8_lossy(text));
                    row.push_str(&plan.read(i, literal));
                }
            }
        }
        row.push(')');
        self.sql.push_str(&row);
        self.rows += 1;
        Ok(())
    }

    /// Returns the statement, and begins a new one.
    pub fn take(&mut self) -> String {
        self.rows = 0;
        std::mem::replace(&mut self.sql, self.head.clone())
    }
}

/// A record of the text format in which a placeholder replaces every non-ASCII byte. The non-ASCII
/// bytes that its values still have come from escapes. If the encoding of the database is not
/// UTF-8, these are bytes of the encoding of the *database*.
struct Escapes {
    bytes: Vec<u8>,
    record: Record,
}

impl Escapes {
    /// Returns `None` if no bytes need to be distinguished.
    fn of(plan: &Plan, raw: &[u8]) -> Result<Option<Escapes>, NoInsert> {
        let text = plan.dialect().filter(|d| d.format == Format::Text && !d.utf8);
        let Some(dialect) = text.filter(|_| raw.contains(&b'\\')) else { return Ok(None) };
        // This byte is neither an escape nor a delimiter.
        let stand_in = if dialect.delimiter == b'_' { b'~' } else { b'_' };
        let bytes: Vec<u8> = raw.iter().map(|b| if b.is_ascii() { *b } else { stand_in }).collect();
        let mut record = Record::default();
        let scanned = Scanner::new(&bytes, true, dialect, Eol::Unknown).next(&mut record);
        scanned.map_err(NoInsert::Malformed)?;
        Ok(Some(Escapes { bytes, record }))
    }

    /// The literal for field `index`. The server reads `\xHH` in a literal as in COPY data: a byte
    /// of its encoding, which is checked after that.
    fn literal(&self, index: usize, value: &[u8]) -> Result<String, NoInsert> {
        let (_, twin) = self.record.field(&self.bytes, index);
        if twin.len() != value.len() {
            return Err(NoInsert::Encoding(
                "the escape sequences in the value are ambiguous".into(),
            ));
        }
        let mut literal = b"E'".to_vec();
        for (byte, twin) in value.iter().zip(twin) {
            match byte {
                0 | 128.. if byte == twin => literal.extend(format!("\\x{byte:02x}").bytes()),
                b'\'' | b'\\' => literal.extend([*byte, *byte]),
                _ => literal.push(*byte),
            }
        }
        literal.push(b'\'');
        Ok(String::from_utf8_lossy(&literal).into_owned())
    }
}

/// Returns the line (or row) and the column that a CONTEXT line of COPY names, such as `COPY votes,
/// line 3, column score: "x"`, in any language of the server.
pub fn parse_context(context: &str, plan: &Plan) -> Option<(u64, Option<String>)> {
    context.lines().find_map(|line| parse_line(line, plan))
}

/// As [`parse_context`], for one of its lines.
pub fn parse_line(line: &str, plan: &Plan) -> Option<(u64, Option<String>)> {
    let mut relations = plan.landing.iter().map(|l| &l.relation).chain([&plan.relation]);
    relations.find_map(|relation| place_in(line, relation, &plan.columns))
}

/// The server translates the words and may change their order. In every language, the number
/// follows the table's name, and the column and a word for it follow a comma.
pub(super) fn place_in(
    line: &str,
    relation: &str,
    columns: &[String],
) -> Option<(u64, Option<String>)> {
    let starts = [line.strip_prefix("COPY "), Some(line)];
    let rest = starts.into_iter().flatten().find_map(|start| start.strip_prefix(relation))?;
    let (words, rest) = rest.split_at(rest.find(|c: char| c.is_ascii_digit())?);
    // CONTEXT lines of functions and statements contain quotes or other punctuation here.
    let plain = words.chars().all(|c| c.is_alphabetic() || " ,、".contains(c));
    if !plain || !words.starts_with(|c: char| !c.is_ascii_alphabetic()) {
        return None;
    }
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let number = rest[..end].parse().ok()?;
    Some((number, column_in(&rest[end..], columns)))
}

fn column_in(rest: &str, columns: &[String]) -> Option<String> {
    // After a colon follows the value, or the whole line of the data.
    let named = rest[rest.find([',', '、', ':'])?..].strip_prefix([',', '、'])?.trim_start();
    let ends = |rest: &str| rest.is_empty() || rest.trim_start().starts_with(':');
    let behind_word = |c: &&String| {
        let name = named.split_once(' ').and_then(|(_, name)| name.strip_prefix(c.as_str()));
        name.is_some_and(ends)
    };
    let before_word = |c: &&String| {
        let word = named.strip_prefix(c.as_str()).and_then(|rest| rest.strip_prefix(' '));
        word.is_some_and(|word| ends(word.trim_start_matches(char::is_alphabetic)))
    };
    let found = columns.iter().filter(behind_word).max_by_key(|c| c.len());
    found.or_else(|| columns.iter().filter(before_word).max_by_key(|c| c.len())).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of PostgreSQL 15 for `COPY %s, line %llu, column %s: "%s"`, for the same with
    /// null input, without a value, and without a column, in each of its languages.
    #[test]
    fn contexts_are_read_in_every_language() {
        let columns = ["a", "b: c", "score", "列"].map(str::to_owned);
        let place = |line: &str| place_in(line, "My t, 2", &columns);
        for line in [
            r#"COPY My t, 2, line 37, column score: "x, column a: 1""#,
            "COPY My t, 2, Zeile 37, Spalte score: »x«",
            "COPY My t, 2, línea 37, columna score: «x»",
            "COPY My t, 2, ligne 37, colonne score : « x »",
            "COPY My t, 2, riga 37, colonna score: input nullo",
            r#"My t, 2のCOPY、行 37、列 score: "x""#,
            r#"COPY My t, 2, ხაზი 37, სვეტი score: "x""#,
            r#"My t, 2 복사, 37번째 줄, score 열: "x""#,
            "COPY My t, 2, 37행, score 열: null 입력",
            "My t, 2 복사, 37번째 줄, score 열",
            r#"COPY My t, 2, строка 37, столбец score: "x""#,
            "COPY My t, 2, rad 37, kolumn score",
            r#"COPY My t, 2, рядок 37, стовпець score: "x""#,
            r#"COPY My t, 2, 第 37 行, 列 score: "x""#,
            "COPY My t, 2, 第 37 行, 欄位 score: NULL 輸入",
        ] {
            assert_eq!(place(line), Some((37, Some("score".into()))), "{line}");
        }
        for line in [
            r#"COPY My t, 2, line 37: "x, column score: 1""#,
            "COPY My t, 2, ligne 37 : « x, colonne score »",
            r#"My t, 2のCOPY、行 37: "x""#,
            r#"My t, 2 복사, 37번째 줄: "x, score 열""#,
            r#"COPY My t, 2, 第 37 行: "x, 列 score""#,
            "COPY My t, 2, line 37",
        ] {
            assert_eq!(place(line), Some((37, None)), "{line}");
        }
        let odd = r#"COPY My t, 2, line 1, column b: c: "x""#;
        assert_eq!(place(odd), Some((1, Some("b: c".into()))));
        for other in [
            r#"COPY My t, 22, line 1, column score: "x""#,
            r#"SQL statement "INSERT INTO My t, 2 line 3""#,
            "PL/pgSQL function f(integer) line 3 at RAISE",
        ] {
            assert_eq!(place(other), None, "{other}");
        }
        assert_eq!(place_in("SQL function \"f\" statement 1", "SQL", &columns), None);
    }
}
