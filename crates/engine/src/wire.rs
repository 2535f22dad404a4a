//! The form in which records are sent to the server.

use crate::encode;
use crate::error::Error;
use crate::facts::InputFacts;
use crate::facts::{ServerFacts, TableFacts};
use crate::input::{Chunk, Counts, Part};
use crate::options::{FileFormat, Options};
use crate::plan::Plan;
use pgsluice_core::scan::{Dialect, Eol, Format};
use pgsluice_core::shape::{RowShape, Type};

/// If at least this share of the columns is not text, binary rows cost less than lines that the
/// server parses. Measured: with one such column in three, lines of text take the server no longer
/// than binary rows, and take this program a third of the time. If most columns are typed, binary
/// rows take 38 % less time than CSV.
const TYPED_SHARE: f64 = 0.4;

/// The form in which records are sent to the server if nothing is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// as they are in the file
    AsIs,
    /// rows in the binary form, encoded here
    Binary,
    /// CSV that is written again
    Csv,
    /// the text format: the file's own lines if they mean the same in it, otherwise written again
    Text,
    /// values of INSERT statements, this many rows in each
    Insert(usize),
}

/// The statement that inserts the rows into the table.
pub(crate) fn statement(plan: &Plan) -> &'static str {
    match (plan.wire, &plan.landing) {
        (Wire::Insert(_), _) | (_, Some(_)) => "INSERT",
        _ => "COPY",
    }
}

pub(crate) fn is_csv(options: &Options) -> bool {
    matches!(&options.input.format, FileFormat::Delimited(d) if d.format == Format::Csv)
}

/// Why the rows of a file should be one COPY. In other forms than that of the file, a chunk that the
/// program cannot encode begins another COPY.
pub(crate) fn one_copy(table: &TableFacts) -> Option<&'static str> {
    if table.statement_triggers() {
        Some("a statement trigger must fire once for a file")
    } else if table.refers_to_itself {
        Some("rows may refer to later rows of the file")
    } else {
        table.after_row_triggers().then_some("an AFTER ROW trigger sees all rows of its file")
    }
}

/// Chooses the cheapest exact form for this file and this table.
pub(crate) fn best_wire(
    input: &InputFacts,
    table: &TableFacts,
    options: &Options,
    shape: &RowShape,
) -> (Wire, String) {
    if options.input.format == FileFormat::Binary {
        return (Wire::AsIs, format!("{} holds binary rows already", input.name));
    }
    if options.input.encoding.is_some() {
        return (Wire::AsIs, "the server converts the encoding".into());
    }
    if let Some(why) = one_copy(table) {
        return (Wire::AsIs, format!("{why}: each file is one COPY, passed through"));
    }
    let unread = shape.columns.iter().find(|c| c.ty == Type::Server);
    if let Some(column) = unread {
        return (Wire::AsIs, format!("only the server reads the type of column {}", column.name));
    }
    let is_text = |ty: &Type| matches!(ty, Type::Text | Type::Varchar(_) | Type::Json);
    let typed = shape.columns.iter().filter(|c| !is_text(&c.ty)).count();
    let all = shape.columns.len().max(1);
    if (typed as f64) < TYPED_SHARE * all as f64 {
        let own =
            matches!(&options.input.format, FileFormat::Delimited(d) if lines_are_text(d, shape));
        return (
            if own { Wire::Text } else { Wire::AsIs },
            format!("{} of {all} columns are text, which needs no parsing", all - typed),
        );
    }
    (
        Wire::Binary,
        format!(
            "{typed} of {all} columns are typed: binary rows save the server from parsing them"
        ),
    )
}

/// Whether a line of this CSV without quotes and backslashes is the same row in COPY's text format,
/// with this delimiter and this NULL marker. In the text format, the server need not handle quotes,
/// which saves a sixth of the time for the table `votes`.
pub(crate) fn lines_are_text(d: &Dialect, shape: &RowShape) -> bool {
    // ProcessCopyOptions rejects these delimiters, because they can be part of escapes.
    let escape = |c: u8| matches!(c, b'\\' | b'.' | b'a'..=b'z' | b'0'..=b'9');
    d.format == Format::Csv
        && !escape(d.delimiter)
        && !d.null.contains(&b'\\')
        && d.default.is_none()
        && !shape.columns.iter().any(|c| c.force_null || c.force_not_null)
}

/// Returns the records and lines of a chunk of CSV, if the text format reads the same rows from it
/// and reports the same errors; otherwise `None`.
pub(crate) fn same_as_text(plan: &Plan, dialect: &Dialect, chunk: &Chunk) -> Option<Counts> {
    let lines = plan.wire == Wire::Text
        && plan.plain
        && chunk.part == Part::Whole
        && memchr::memchr3(dialect.quote, b'\\', b'\r', &chunk.bytes).is_none()
        && chunk.line_end(&plan.layout) == Eol::Nl;
    lines.then(|| chunk.count(&plan.layout))
}

/// Returns another form if records with certain content cannot be sent as they are.
pub(crate) fn passable(
    wire: Wire,
    dialect: Option<&Dialect>,
    shape: &RowShape,
    server: &ServerFacts,
    options: &Options,
) -> Result<Wire, Error> {
    let stuck = |d: &&Dialect| encode::dot_is_marker(d, shape.fields, server.major());
    match (wire, dialect.filter(stuck)) {
        (Wire::Insert(_), _) | (_, None) => Ok(wire),
        (_, Some(_)) if options.input.encoding.is_some() => Err(Error::new(format!(
            "PostgreSQL {} takes a line of \\. for the end of the data, even where it is a marker",
            server.major()
        ))
        .with_hint("choose another marker, or convert the file to UTF-8 first")),
        _ => Ok(Wire::Text),
    }
}
