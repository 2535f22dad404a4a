//! `--create`: infers a table from the input.

use super::conn::Conn;
use super::header;
use super::spare_connection::SpareConnection;
use super::transaction::BEGIN;
use crate::causes::Causes;
use crate::error::Error;
use crate::facts::NewTable;
use crate::fields::ValuePart;
use crate::infer::{by_alignment, row_bytes, Guess, Inference, InferredColumns, NewColumn};
use crate::input::{can_be_read_again, HeaderLine, Part, Reader};
use crate::mapping::{check_map, mapped, named_once, AS_DATA, PACKED};
use crate::naming::{self, numbered};
use crate::options::{Create, Header, InputOptions, Options};
use crate::plan::Plan;
use crate::quote::{cut_name, quote_ident, quote_literal};
use crate::text::{text, Text};
use pgsluice_core::scan::{Dialect, Next, Record, Scanner};

/// The most columns that a table has: `MaxHeapAttributeNumber` in htup_details.h.
const MAX_COLUMNS: usize = 1600;

/// Number of bytes of the input that are examined, unless all are.
const SAMPLE: usize = 512 << 10;

/// Infers the table from the first records of the load, or from all of them.
///
/// # Errors
///
/// The input is binary, does not show which columns the table has, has the same name twice, or
/// cannot be read twice although it must be.
pub fn infer(conn: &mut Conn, reader: &Reader, options: &Options) -> Result<NewTable, Error> {
    let Some(dialect) = options.input.dialect() else {
        return Err(Error::new("a binary file does not say which types it holds")
            .with_hint("create the table first"));
    };
    let mut notes = Vec::new();
    let header = header::read(conn, reader, options)?;
    Causes::find(reader, options).refuse(None, options)?;
    let fields = fields(reader, &dialect, options.input.skip);
    let given = given_names(header.as_ref(), fields, options, &mut notes)?;
    let inference = given.as_ref().map(|names| {
        let names: Vec<String> = names.iter().map(|n| n.clone().unwrap_or_default()).collect();
        Inference::new(&names, &options.target)
    });
    let (record, left) = (Record::default(), options.input.limit);
    let mut look = Look { inference, record, left, unexamined: false };
    let whole = look.at(reader, options, &dialect, &mut notes)?;
    let Some(inference) = look.inference else {
        let name = options.input.sources.first().map_or(String::new(), |s| s.name());
        let empty = reader.sample().bytes.is_empty();
        let why = if empty { format!("{name} is empty: ") } else { String::new() };
        return Err(Error::new(format!("{why}no record says which columns the table has"))
            .with_hint("create the table first, or name the columns with `columns`"));
    };
    not_too_many(inference.fields(), &options.input)?;
    let numbers = || numbered(inference.fields()).into_iter().map(Some).collect();
    let names: Vec<Option<String>> = given.unwrap_or_else(numbers);
    if names.iter().all(Option::is_none) {
        return Err(Error::new("every field of the file is left out"));
    }
    let strings: Vec<String> = names.iter().map(|name| name.clone().unwrap_or_default()).collect();
    let all = inference.columns(&strings, whole).into_iter().zip(&names);
    let of_file = all.filter(|(_, name)| name.is_some()).map(|(column, _)| column);
    let set = options.target.fields.set.iter().map(|(name, value)| {
        let is_line = matches!(value[..], [ValuePart::Line]);
        NewColumn::set(cut_name(name), if is_line { Guess::Int8 } else { Guess::Text })
    });
    let columns: Vec<NewColumn> = of_file.chain(set).collect();
    named_once(&columns.iter().map(|c| c.name.clone()).collect::<Vec<_>>())?;
    if let Some(column) = columns.iter().find(|column| column.is_named_by_value()) {
        let (name, ask) = (&column.name, Text::from(AS_DATA));
        notes.push(text!("the column name \"{}\" looks like a value: {}", name, ask));
    }
    let empty: Vec<&str> =
        columns.iter().filter(|c| c.is_empty()).map(|c| c.name.as_str()).collect();
    if !empty.is_empty() {
        let among = if whole { "in the input" } else { "in the records that were examined" };
        notes.push(text!("columns without a value {} are text: {}", among, empty.join(", ")));
    }
    let table = table_name(conn, &options.target.table)?;
    let statement = statement(&table, &columns, options.target.pack_columns, &mut notes);
    // Several files are opened again, each in its turn. One may have been written to until then.
    let again = options.input.sources.len() > 1;
    let unseen = (!whole || again).then_some(InferredColumns { columns, whole });
    Ok(NewTable { statement, names, unseen, notes })
}

/// How many fields each record has, if all available records have the same number.
fn fields(reader: &Reader, dialect: &Dialect, skip: u64) -> Option<usize> {
    let sample = reader.sample();
    let mut scanner = sample.scanner(dialect);
    let (mut record, mut skip, mut fields) = (Record::default(), skip, None);
    while scanner.next(&mut record) == Ok(Next::Record) {
        let blank = record.len() == 1 && record.field(&sample.bytes, 0).1.is_empty();
        if skip > 0 || blank {
            skip = skip.saturating_sub(1);
        } else if fields.is_some_and(|fields| fields != record.len()) {
            return None;
        } else {
            fields = Some(record.len());
        }
    }
    fields
}

/// Examines the records that types are inferred from.
struct Look {
    inference: Option<Inference>,
    record: Record,
    /// how many records may still be examined
    left: Option<u64>,
    /// a record was too long to be held in memory
    unexamined: bool,
}

impl Look {
    /// Examines the records that will be loaded, as many as the options require. Returns whether
    /// these were all.
    fn at(
        &mut self,
        reader: &Reader,
        options: &Options,
        dialect: &Dialect,
        notes: &mut Vec<Text>,
    ) -> Result<bool, Error> {
        let input = &options.input;
        let all = options.target.create == Create::TextOnDoubt;
        let (seen, whole) = if can_be_read_again(input) {
            self.again(options, dialect, if all { usize::MAX } else { SAMPLE })?
        } else {
            let sample = reader.sample();
            let whole = sample.ended && input.sources.len() == 1;
            if all && !whole {
                return Err(Error::new("a pipe cannot be read twice, as text-on-doubt must")
                    .with_hint("use `create`=typed, or a file"));
            }
            self.see(options, &sample.bytes, sample.scanner(dialect), input.skip);
            (sample.bytes.len(), whole)
        };
        if !whole {
            notes.push(text!(
                "the types were inferred from the first {} kB",
                seen.div_ceil(1 << 10)
            ));
        }
        if self.unexamined {
            notes.push("a record that does not fit in memory was not examined for types".into());
        }
        Ok(whole && !self.unexamined)
    }

    /// Reads the input again, up to about `most` bytes. If some column has no value in these, reads
    /// all of the input. Returns how many bytes were read, and whether these were all.
    fn again(
        &mut self,
        options: &Options,
        dialect: &Dialect,
        mut most: usize,
    ) -> Result<(usize, bool), Error> {
        let mut reader = Reader::open(&options.input)?;
        let (mut seen, mut free) = (0, Vec::new());
        while let Some(chunk) = reader.next(free)? {
            // A record that is too long to be held is checked in the load, against the types of the
            // others.
            match chunk.part {
                Part::Whole => self.see(options, &chunk.bytes, chunk.scanner(dialect), 0),
                Part::Piece | Part::LastPiece => self.unexamined = true,
            }
            seen += chunk.bytes.len();
            free = chunk.bytes;
            if seen >= most {
                if self.inference.as_ref().is_none_or(|i| i.without_value() == 0) {
                    return Ok((seen, false));
                }
                most = usize::MAX;
            }
        }
        Ok((seen, true))
    }

    /// Examines the records that a scanner of these bytes finds after the first `skip` records.
    fn see(&mut self, options: &Options, bytes: &[u8], mut scanner: Scanner, mut skip: u64) {
        while self.left != Some(0) {
            let well_formed = match scanner.next(&mut self.record) {
                Ok(Next::Record) => true,
                // The load reports it, and may continue with the records after it.
                Err(_) if scanner.skip_record().is_some_and(|(from, to)| from < to) => false,
                _ => return,
            };
            if skip > 0 {
                skip -= 1;
                continue;
            }
            self.left = self.left.map(|left| left - 1);
            if !well_formed {
                continue;
            }
            let fields = self.record.len();
            let inference = self
                .inference
                .get_or_insert_with(|| Inference::new(&numbered(fields), &options.target));
            inference.see(bytes, &self.record);
        }
    }
}

/// Returns the column names that the user or the header gives, cut as the server cuts names.
fn given_names(
    header: Option<&HeaderLine>,
    fields: Option<usize>,
    options: &Options,
    notes: &mut Vec<Text>,
) -> Result<Option<Vec<Option<String>>>, Error> {
    let header = header.filter(|_| options.input.header != Header::Ignore);
    let names = match (&options.target.columns, header) {
        (Some(names), _) => names.clone(),
        (None, Some(header)) => {
            not_too_many(header.fields.len(), &options.input)?;
            let wanted = &options.target.fields;
            check_map(header, wanted)?;
            let names = naming::from_header(header, fields, notes)?.into_iter().enumerate();
            let mapped =
                names.map(|(i, name)| mapped(header, i, wanted).cloned().unwrap_or(Some(name)));
            mapped.collect()
        }
        (None, None) => return Ok(None),
    };
    let long = names.iter().flatten().filter(|name| cut_name(name) != *name);
    notes.extend(long.map(|name| {
        text!("the name \"{}\" is cut to \"{}\", as the server would", name, cut_name(name))
    }));
    let cut = |name: &String| cut_name(name).to_owned();
    let names: Vec<Option<String>> = names.iter().map(|name| name.as_ref().map(cut)).collect();
    named_once(&names.iter().flatten().cloned().collect::<Vec<_>>())?;
    if let Some(name) = names.iter().flatten().find(|name| naming::SYSTEM.contains(&name.as_str()))
    {
        return Err(Error::usage(format!("no column can be named {name}: a system column is"))
            .with_hint("give it another name"));
    }
    Ok(Some(names))
}

fn not_too_many(fields: usize, input: &InputOptions) -> Result<(), Error> {
    if fields <= MAX_COLUMNS {
        return Ok(());
    }
    Err(Error::new(format!(
        "the first record of {} has {fields} fields, and a table at most {MAX_COLUMNS} columns",
        input.sources.first().map_or(String::new(), |s| s.name()),
    ))
    .with_hint("is `delimiter` right?"))
}

/// Returns the name as SQL reads it, quoted again.
fn table_name(conn: &mut Conn, name: &str) -> Result<String, Error> {
    let rows = conn.query(
        "SELECT pg_catalog.string_agg(pg_catalog.quote_ident(part), '.' ORDER BY at) \
         FROM pg_catalog.unnest(pg_catalog.parse_ident($1)) WITH ORDINALITY AS p(part, at)",
        &[Some(name)],
    )?;
    Ok(rows.first().and_then(|r| r[0].clone()).unwrap_or_default())
}

/// Drops a table that `--create` has made and that had to be committed before the rows. Keeps the
/// table if the method leaves rows in it, or if others have inserted rows, and another table that has
/// got its name. Prepared transactions of the load hold locks of the table, so this would wait for
/// them forever.
pub(crate) fn take_back(
    error: Error,
    plan: &Plan,
    options: &Options,
    spare: &mut SpareConnection,
) -> Error {
    let is_dropped = plan.made.is_some() && plan.commits_first();
    if !is_dropped || error.changed().is_some() || error.leaves_prepared() {
        return error;
    }
    let table = &plan.table;
    let dropped = spare.take(&options.target.url).and_then(|mut conn| {
        let locked = conn.exec(&format!("{BEGIN}; LOCK TABLE {table}"));
        // The load may have ended before others could see the table.
        if locked.as_ref().is_err_and(|e| e.sqlstate() == "42P01") {
            return Ok(true);
        }
        locked?;
        // Another session that waited for the load may have replaced the table.
        let is_own = "SELECT 1 WHERE pg_catalog.to_regclass($1)::oid = $2::oid";
        if conn.query(is_own, &[Some(table), Some(&plan.oid.to_string())])?.is_empty() {
            return Ok(true);
        }
        if !conn.exec(&format!("SELECT FROM {table} LIMIT 1"))?.is_empty() {
            return Ok(false);
        }
        conn.exec(&format!("DROP TABLE {table}; COMMIT"))?;
        Ok(true)
    });
    match dropped {
        Ok(true) => error,
        Ok(false) => error.with_changed(format!("the table {table} is kept, because it has rows")),
        Err(_) => error.with_changed(format!("the table {table} is kept, empty")),
    }
}

/// Returns the statement that creates the table. If its column order differs from the file's, a
/// comment on the table records that, so that a later load by position is rejected
/// (`mapping::not_packed`).
fn statement(table: &str, columns: &[NewColumn], pack: bool, notes: &mut Vec<Text>) -> String {
    let kept: Vec<usize> = (0..columns.len()).collect();
    let order = if pack { by_alignment(columns) } else { kept.clone() };
    let saved = row_bytes(columns, &kept).saturating_sub(row_bytes(columns, &order));
    if saved > 0 {
        notes.push(text!("the order of columns saves {} bytes in each row", saved));
    }
    let name = |i: &usize| quote_ident(&columns[*i].name);
    let column = |i: &usize| format!("{} {}", name(i), columns[*i].guess.sql());
    let list: Vec<String> = order.iter().map(column).collect();
    let create = format!("CREATE TABLE {table} ({})", list.join(", "));
    if order == kept {
        return create;
    }
    notes.push(
        "the table's comment keeps the file's order of columns: a load by position needs `columns`"
            .into(),
    );
    let names: Vec<String> = kept.iter().map(name).collect();
    let comment = quote_literal(&format!("{PACKED}{}", names.join(",")));
    format!("{create}; COMMENT ON TABLE {table} IS {comment}")
}
