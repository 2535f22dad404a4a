//! Converts files to PGCOPY, the binary form of COPY, with or without a server.

use crate::error::{shown, Error, Place};
use crate::facts::Purpose;
use crate::input::{Chunk, Counts, Layout, Part, Reader};
use crate::inspect::make_plan;
use crate::options::{FileFormat, InputOptions, Options};
use crate::session::conn::Conn;
use crate::session::transaction;
use crate::stray;
use pgsluice_core::error::{Malformed, Refusal};
use pgsluice_core::row::{self, NoRow};
use pgsluice_core::scan::{valid_utf8, Dialect, Eol, Format, Next, Record};
use pgsluice_core::shape::{Column, Env, RowShape, Type, ValueSource};
use pgsluice_core::sink::{PgCopySink, HEADER, TRAILER};
use std::io::Write;

/// Rows are written when they take more than this number of bytes.
const WRITTEN: usize = 2 << 20;

/// The longest row, in bytes. Columns of `char(n)` may pad a row to more; it is rejected.
const LONGEST: usize = 32 << 20;

/// Returns the shape of rows of these types, one for each field, at most 32,767. Since there is no
/// server, the format of `money` is that of `lc_monetary = 'C'`.
pub fn shape_of_types(types: Vec<Type>, utc: bool) -> RowShape {
    let fields = types.len();
    let column = |(i, ty)| Column::new(&format!("{}", i + 1), ty, i);
    let columns = types.into_iter().enumerate().map(column).collect();
    RowShape { columns, fields, env: Env { utc, money_c: true, ..Env::default() } }
}

/// Returns the shape of rows for a table, and for files that [`open`] has opened. The columns are
/// in the order of the table, not in that of the header, because PGCOPY has no names.
///
/// # Errors
///
/// As for [`Loader::plan`](crate::Loader::plan); or only the server can read the type of a column.
pub fn shape_of_table(reader: &Reader, options: &Options) -> Result<RowShape, Error> {
    options.check()?;
    let options = &options.reading(reader)?;
    let mut conn = Conn::open(&options.target.url)?;
    transaction::begin(&mut conn, options)?;
    let plan = make_plan(&mut conn, reader, options, Purpose::Convert, false)?;
    let rows = conn.query(
        "SELECT attname FROM pg_catalog.pg_attribute \
         WHERE attrelid = $1::regclass::oid AND attnum > 0 ORDER BY attnum",
        &[Some(&plan.table)],
    )?;
    conn.exec("ROLLBACK")?;
    let mut shape = plan.shape.clone();
    let place = |column: &Column| rows.iter().position(|row| row[0].as_ref() == Some(&column.name));
    shape.columns.sort_by_key(place);
    match shape.columns.iter().find(|c| c.ty == Type::Server) {
        None => Ok(shape),
        Some(column) => {
            Err(Error::new(format!("only the server reads the type of column {}", column.name))
                .with_hint("load the file as it is"))
        }
    }
}

/// Opens the files before anything is written.
///
/// # Errors
///
/// Files of this form are not converted, or they cannot be read.
pub fn open(input: &InputOptions) -> Result<Reader, Error> {
    if input.format == FileFormat::Binary {
        return Err(binary_already());
    }
    if input.encoding.is_some() {
        return Err(Error::usage("convert reads UTF-8 only")
            .with_hint("convert the encoding first: iconv -t UTF-8"));
    }
    input.check()?;
    Reader::open(input)
}

fn binary_already() -> Error {
    Error::usage("the input is already binary")
}

/// Writes the records of files that [`open`] has opened as PGCOPY. Returns their number.
///
/// # Errors
///
/// A record cannot be encoded with certainty, or reading or writing fails. The output is then not a
/// complete PGCOPY stream.
pub fn convert(
    mut reader: Reader,
    input: &InputOptions,
    shape: &RowShape,
    out: &mut dyn Write,
) -> Result<u64, Error> {
    let input = &reader.settled(input);
    let Some(dialect) = &input.dialect() else { return Err(binary_already()) };
    let names: Vec<String> = input.sources.iter().map(|s| s.name()).collect();
    out.write_all(HEADER).map_err(|e| unwritten(&e))?;
    let mut converter = Converter {
        shape,
        dialect,
        names,
        sink: PgCopySink::new(shape.columns.len()).within(LONGEST),
        record: Record::default(),
        out,
    };
    let (mut records, mut before, mut file) = (0, Counts::default(), 0);
    let mut free = Vec::new();
    reader.pass_blank_ends(shape.fields);
    while let Some(chunk) = reader.next(free)? {
        if chunk.file != file {
            file = chunk.file;
            before = Counts::default();
        }
        before += chunk.passed;
        let counts = converter.chunk(&chunk, before)?;
        before += counts;
        records += counts.records;
        free = chunk.bytes;
    }
    out.write_all(TRAILER).and_then(|()| out.flush()).map_err(|e| unwritten(&e))?;
    Ok(records)
}

fn unwritten(e: &std::io::Error) -> Error {
    Error::io("write", "the output", e)
}

/// Writes the rows in the sink, and empties the sink.
fn write(sink: &mut PgCopySink, out: &mut dyn Write) -> Result<(), Error> {
    out.write_all(sink.bytes()).map_err(|e| unwritten(&e))?;
    sink.clear();
    Ok(())
}

struct Converter<'a> {
    shape: &'a RowShape,
    dialect: &'a Dialect,
    names: Vec<String>,
    sink: PgCopySink,
    record: Record,
    out: &'a mut dyn Write,
}

impl Converter<'_> {
    fn chunk(&mut self, chunk: &Chunk, before: Counts) -> Result<Counts, Error> {
        let place = |records: u64, lines: u64, start: usize| Place {
            file: self.names[chunk.file].clone(),
            record: Some(before.records + records + 1),
            line: Some(before.lines + lines),
            offset: Some(chunk.offset + start as u64),
            ..Place::default()
        };
        if chunk.part != Part::Whole {
            return Err(Error::new("a record is too long to be converted").at(place(0, 1, 0)));
        }
        if let Err(bad) = valid_utf8(&chunk.bytes) {
            let layout = Layout::Lines(self.dialect.clone());
            let end = if chunk.line_end(&layout) == Eol::Cr { b'\r' } else { b'\n' };
            let line = 1 + memchr::memchr_iter(end, &chunk.bytes[..bad.offset]).count() as u64;
            let (records, start, _) = chunk.record_at_byte(&layout, bad.offset);
            return Err(Error::new(bad.message()).at(place(records, line, start)));
        }
        let csv = self.dialect.format == Format::Csv;
        let mut scanner = chunk.scanner(self.dialect);
        let mut records = 0;
        loop {
            match scanner.next(&mut self.record) {
                Ok(Next::Record) => {}
                Ok(_) => {
                    write(&mut self.sink, self.out)?;
                    return Ok(Counts { records, lines: scanner.lines() });
                }
                Err(fault) => {
                    let place = place(records, self.record.line, self.record.start);
                    let error = Error::new(fault.message(csv, "")).at(place);
                    let (start, end) = scanner.skip_record().unwrap_or_default();
                    let record = &chunk.bytes[start..end];
                    return Err(stray::explained(error, fault, record, self.dialect));
                }
            }
            if let Err(no) = row::put(self.shape, &chunk.bytes, &self.record, &mut self.sink) {
                let place = place(records, self.record.line, self.record.start);
                return Err(self.refused(chunk, no, place));
            }
            if self.sink.is_full() {
                let place = place(records, self.record.line, self.record.start);
                return Err(Error::new("a record is too long to be converted").at(place));
            }
            if self.sink.bytes().len() > WRITTEN {
                write(&mut self.sink, self.out)?;
            }
            records += 1;
        }
    }

    fn refused(&self, chunk: &Chunk, no: NoRow, mut place: Place) -> Error {
        let (index, refusal) = match no {
            NoRow::Value(index, refusal) => (index, refusal),
            NoRow::Malformed(fault) => {
                let csv = self.dialect.format == Format::Csv;
                let column = match fault {
                    Malformed::MissingData(i) => {
                        let mut columns = self.shape.columns.iter();
                        columns.find(|c| c.source == ValueSource::Field(i)).map_or("", |c| &c.name)
                    }
                    _ => "",
                };
                return Error::new(fault.message(csv, column)).at(place);
            }
        };
        let column = &self.shape.columns[index];
        place.column = Some(column.name.clone());
        if let ValueSource::Field(field) = column.source {
            place.value = Some(shown(self.record.field(&chunk.bytes, field).1));
        }
        let message = match refusal {
            Refusal::Syntax => "the value is not one of the column's type",
            Refusal::Range => "the value is out of the type's range",
            Refusal::TooLong => "the value is too long for the type",
            Refusal::Null => "the column forbids NULL",
            _ => "only the server can read this value",
        };
        Error::new(message).at(place).with_hint(
            "convert reads ISO dates and other standard forms; load lets the server read the rest",
        )
    }
}
