//! `--create`: a table made from what the input shows.

use super::conn::{quote_ident, Conn};
use crate::error::Error;
use crate::infer::{by_alignment, row_bytes, Guess, Inference, NewColumn};
use crate::input::{Chunk, Part, Reader};
use crate::options::{Create, Header, Options};
use pgsluice_core::scan::{Dialect, Next, Record};

/// The most columns that a table has: `MaxHeapAttributeNumber` in htup_details.h.
const MAX_COLUMNS: usize = 1600;

/// The statement that makes the table, and what the user should know of it.
#[derive(Clone, Debug)]
pub struct NewTable {
    /// `CREATE TABLE`
    pub statement: String,
    /// the columns in the order of the file's fields
    pub names: Vec<String>,
    /// their types, where there are records that the types were not inferred from
    pub unseen: Option<Vec<Guess>>,
    /// how much the order of columns saves, and what was inferred from what
    pub notes: Vec<String>,
}

/// Infers the table from the sample that the reader holds, or from the whole input.
///
/// # Errors
///
/// The input has no delimited form, is empty, or cannot be read twice.
pub fn infer(conn: &mut Conn, reader: &Reader, options: &Options) -> Result<NewTable, Error> {
    let Some(dialect) = options.input.dialect() else {
        return Err(Error::new("a binary file does not say which types it holds")
            .with_hint("create the table first"));
    };
    let (sample, is_all) = reader.sample();
    let mut inferring = Inferring { inference: None, record: Record::default() };
    let mut whole = is_all;
    if options.target.create == Create::TextOnDoubt && !is_all {
        inferring.whole_input(options, &dialect)?;
        whole = true;
    } else {
        inferring.see(sample, is_all, &dialect);
    }
    let names = names(reader, options, inferring.fields())?;
    if names.len() > MAX_COLUMNS {
        return Err(Error::new(format!(
            "the first record of {} has {} fields, and a table at most {MAX_COLUMNS} columns",
            options.input.sources.first().map_or(String::new(), |s| s.name()),
            names.len()
        ))
        .with_hint("is --delimiter what stands between the fields?"));
    }
    let inference = inferring.inference.unwrap_or_else(|| Inference::new(names.len()));
    let columns = inference.columns(&names, whole);
    let kept: Vec<usize> = (0..columns.len()).collect();
    let order = if options.target.keep_order { kept.clone() } else { by_alignment(&columns) };
    let saved = row_bytes(&columns, &kept).saturating_sub(row_bytes(&columns, &order));
    let mut notes = vec![if whole {
        "the types were inferred from the whole input".into()
    } else {
        format!("the types were inferred from the first {} kB", sample.len() >> 10)
    }];
    if saved > 0 {
        notes.push(format!("the order of columns saves {saved} bytes in each row"));
    }
    let table = table_name(conn, &options.target.table)?;
    let unseen = (!whole).then(|| columns.iter().map(|c| c.guess).collect());
    Ok(NewTable { statement: statement(&table, &columns, &order), names, unseen, notes })
}

struct Inferring {
    inference: Option<Inference>,
    record: Record,
}

impl Inferring {
    fn fields(&self) -> Option<usize> {
        self.inference.as_ref().map(Inference::fields)
    }

    fn see(&mut self, bytes: &[u8], last: bool, dialect: &Dialect) {
        let eol = pgsluice_core::scan::Eol::Unknown;
        let mut scanner = pgsluice_core::scan::Scanner::new(bytes, last, dialect, eol);
        // A malformed record is the load's to report.
        while scanner.next(&mut self.record) == Ok(Next::Record) {
            let fields = self.record.len();
            let inference = self.inference.get_or_insert_with(|| Inference::new(fields));
            inference.see(bytes, &self.record);
        }
    }

    fn whole_input(&mut self, options: &Options, dialect: &Dialect) -> Result<(), Error> {
        if options.input.sources.contains(&crate::options::Source::Stdin) {
            return Err(Error::new("standard input cannot be read twice, as text-on-doubt must")
                .with_hint("take --create=typed, or a file"));
        }
        let mut reader = Reader::open(&options.input)?;
        while let Some(chunk) = reader.next(Vec::new())? {
            if chunk.part == Part::Whole {
                self.see_chunk(&chunk, dialect);
            }
        }
        Ok(())
    }

    fn see_chunk(&mut self, chunk: &Chunk, dialect: &Dialect) {
        let mut scanner = chunk.scanner(dialect);
        while scanner.next(&mut self.record) == Ok(Next::Record) {
            let fields = self.record.len();
            let inference = self.inference.get_or_insert_with(|| Inference::new(fields));
            inference.see(&chunk.bytes, &self.record);
        }
    }
}

fn names(reader: &Reader, options: &Options, fields: Option<usize>) -> Result<Vec<String>, Error> {
    if let Some(names) = &options.target.columns {
        return Ok(names.clone());
    }
    let header = reader.header().filter(|_| options.input.header != Header::Ignore);
    if let Some(header) = header {
        let text = |f: &Option<Vec<u8>>| {
            String::from_utf8(f.clone().unwrap_or_default()).map_err(|_| {
                Error::new("the header is not UTF-8, as names of columns have to be").with_hint(
                    "name the columns with --columns, and pass the header over by --header=ignore",
                )
            })
        };
        return header.fields.iter().map(text).collect();
    }
    let Some(fields) = fields else {
        return Err(Error::new("an empty input does not say which columns the table has")
            .with_hint("create the table first, or name the columns with --columns"));
    };
    Ok((1..=fields).map(|i| format!("c{i}")).collect())
}

/// The name as SQL reads it, quoted anew.
fn table_name(conn: &mut Conn, name: &str) -> Result<String, Error> {
    let rows = conn.query(
        "SELECT string_agg(quote_ident(part), '.' ORDER BY at) \
         FROM unnest(parse_ident($1)) WITH ORDINALITY AS p(part, at)",
        &[Some(name)],
    )?;
    Ok(rows.first().and_then(|r| r[0].clone()).unwrap_or_default())
}

fn statement(table: &str, columns: &[NewColumn], order: &[usize]) -> String {
    let column =
        |i: &usize| format!("{} {}", quote_ident(&columns[*i].name), columns[*i].guess.sql());
    let list: Vec<String> = order.iter().map(column).collect();
    format!("CREATE TABLE {table} ({})", list.join(", "))
}
