//! Finds likely causes of errors in a file, from a sample that is read before the first row.

use crate::error::Error;
use crate::infer::{Guess, Inference};
use crate::input::{can_be_read_again, HeldStart, Reader};
use crate::mapping::NOT_UTF8;
use crate::naming::numbered;
use crate::options::{Create, Header, Options, TargetOptions};
use crate::plan::Plan;
use crate::signs::Signs;
use crate::sniff::{option, sniff, Detected, Given, FIXED_WIDTH};
use crate::stray;
use crate::text::{text, Text};
use pgsluice_core::scan::{Dialect, Eol, Format, Next, Record, Scanner};

/// Most records of the sample that are checked.
const RECORDS: usize = 1000;

/// The hint for NUL bytes in text.
const NUL: &str = "PostgreSQL's text has no NUL bytes: tr -d '\\000' <FILE removes them";

/// The usual delimiters.
const DELIMITERS: [(u8, &str); 4] = [(b';', ";"), (b'\t', "\\t"), (b'|', "|"), (b',', ",")];

/// The contradictions between a sample and the options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// each record has one field with the delimiter of the options
    pub single: bool,
    /// another delimiter, in the form of the option, with which all records have the same number of
    /// fields, and that number
    pub delimiter: Option<(String, usize)>,
    /// that delimiter is also common within values, like a space
    pub rare: bool,
    /// the first record is a header according to its types, but no option says so
    pub header: bool,
    /// the first record may be a header, but no option says so, and the types do not show it
    undecided: bool,
    /// the number of fields of each record, if it is the same for all
    width: Option<usize>,
    /// several spaces are between the values of a single field
    aligned: bool,
    /// the fields of the first record, or of the skipped header
    first: Vec<String>,
    /// `first` is a header that is skipped
    passed: bool,
    /// the probable delimiter, if stray quotes come from a wrong one
    instead: Option<String>,
    /// the signs that the values show
    pub(crate) signs: Signs,
}

impl Causes {
    /// Checks the records at the start of the first file, including its header.
    pub(crate) fn find(reader: &Reader, options: &Options) -> Causes {
        let Some(dialect) = options.input.dialect() else { return Causes::default() };
        let HeldStart { bytes: sample, ended, .. } = reader.sample();
        let header = reader.header().map_or(&[][..], |header| &header.bytes);
        let bytes = &[header, &sample].concat();
        let own = fields(bytes, ended, &dialect);
        // A delimiter that splits records evenly is the right one.
        let doubtful = own.is_none_or(|fields| fields == 1);
        let mut delimiter = doubtful.then(|| other_delimiter(bytes, ended, &dialect)).flatten();
        let rare = own == Some(1) && delimiter.is_none();
        let mut aligned = false;
        if rare && dialect.format == Format::Csv {
            let (quote, escape) = (Some(dialect.quote), Some(dialect.escape));
            let found = sniff(bytes, ended, &Given { quote, escape, ..Given::default() });
            aligned = found.doubts.iter().any(|doubt| doubt.why.ends_with(FIXED_WIDTH));
            delimiter = rare_delimiter(&found, &dialect);
        }
        let single = own == Some(1) && delimiter.is_some();
        let look = options.input.header == Header::None && options.input.skip == 0;
        let (header, undecided, mut first) = match look {
            true => self::header(bytes, ended, &dialect),
            false => (false, false, Vec::new()),
        };
        let passed = reader.header().filter(|_| options.input.header == Header::Ignore);
        if let Some(line) = passed {
            let name = |field: &Vec<u8>| String::from_utf8_lossy(field).into_owned();
            first = line.fields.iter().flatten().map(name).collect();
        }
        let passed = passed.is_some();
        let instead = own.is_none().then(|| instead(bytes, ended, &dialect)).flatten();
        let mut signs = Signs::default();
        if dialect.format == Format::Csv {
            each(&sample, ended, &dialect, |record| {
                signs.see(&sample, record);
                true
            });
        }
        let width = own;
        Causes {
            single,
            delimiter,
            rare,
            header,
            undecided,
            width,
            aligned,
            first,
            passed,
            instead,
            signs,
        }
    }

    /// Rejects a file whose options are certainly wrong.
    ///
    /// # Errors
    ///
    /// Each record has one field, but several with another delimiter. Or a table is to be created,
    /// and the first record is its header.
    pub(crate) fn refuse(&self, columns: Option<usize>, options: &Options) -> Result<(), Error> {
        let create = options.target.create != Create::No;
        let name = options.input.sources.first().map_or(String::new(), |s| s.name());
        let given = options.target.columns.as_ref().map(Vec::len).or(columns);
        if let (Some((delimiter, fields)), true) = (&self.delimiter, self.single && !self.rare) {
            let one = given == Some(1);
            if !one && (create || given.is_some()) {
                return Err(Error::data(format!(
                    "each record of {name} has one field, but would have {fields} with the delimiter '{delimiter}'"
                ))
                .of_file(&name)
                .with_hint(text!(
                    "`delimiter` '{}'; to load each line into one column, name it with `columns`",
                    delimiter
                )));
            }
        }
        if create && self.header && !options.input.first_is_data && given.is_none() {
            return Err(Error::data(format!(
                "the first record of {name} looks like a header: its fields are not of the \
                 types of the fields below"
            ))
            .with_hint("`header` takes the names of the columns from it; `no-header` loads it"));
        }
        Ok(())
    }

    /// The notes before the first row.
    pub(crate) fn notes(&self, plan: &Plan, options: &Options) -> Vec<Text> {
        let columns = &plan.columns;
        let mut notes = Vec::new();
        let unnamed = options.target.columns.is_none() && !options.input.first_is_data;
        if plan.made.is_some() && self.undecided && unnamed {
            notes.push(
                "the first record is loaded as data: if it has the names of the columns, add `header`"
                    .into(),
            );
        }
        if let (Some((delimiter, fields)), true) = (&self.delimiter, self.single) {
            notes.push(text!(
                "each record has one field, but would have {} with `delimiter` '{}'",
                fields,
                delimiter
            ));
        }
        if self.aligned {
            notes.push(text!("each record has one field: {}", FIXED_WIDTH));
        }
        let (mut first, mut columns) = (bare(&self.first), bare(columns));
        let in_order = first == columns;
        first.sort();
        columns.sort();
        let named = columns.len() > 1 && first == columns;
        if self.passed && named && !in_order {
            notes.push(
                "the header has the columns in another order, and the fields are loaded by \
                 position: `header` loads them by name"
                    .into(),
            );
        }
        if !self.passed && (self.header || named) {
            notes.push(
                "the first record looks like a header and is loaded as data: `header` reads the names of the columns from it"
                    .into(),
            );
        }
        notes
    }

    /// Adds a hint at the cause to an error that has no hint, if the cause is likely.
    pub(crate) fn explain(&self, error: Error, plan: &Plan, options: &Options) -> Error {
        if let (Some(delimiter), true) = (&self.instead, stray::is_one(&error)) {
            return error.with_hint(is_it(delimiter));
        }
        if error.hint().is_some() {
            return error;
        }
        let (state, message) = (error.sqlstate().to_owned(), error.message());
        // The value is not valid for the type, or out of its range.
        let of_value = matches!(state.as_str(), "22P02" | "22003" | "22007" | "22008" | "22032");
        let uneven = ["missing data for column", "extra data after last expected column"];
        let uneven = uneven.iter().any(|text| message.contains(text));
        if let (Some((delimiter, _)), true) = (&self.delimiter, uneven || of_value) {
            return error.with_hint(is_it(delimiter));
        }
        if uneven && plan.made.is_some() && options.rejects.is_none() {
            return error
                .with_hint("`on-error` reject loads the other records and writes these to a file");
        }
        if state == "22021" && message.ends_with(": 0x00") {
            return error.with_hint(NUL);
        }
        if state == "22021" && options.input.encoding.is_none() {
            return error.with_hint(NOT_UTF8);
        }
        if !of_value && !uneven {
            return error;
        }
        let first = error.place().is_some_and(|place| place.record == Some(1));
        let (names, columns) = (bare(&self.first), bare(&plan.columns));
        let named = !names.is_empty() && names.iter().all(|name| columns.contains(name));
        if first && !self.passed && (self.header || named) {
            return error.with_hint(
                "is the first line a header? `header` reads the names of the columns from it",
            );
        }
        let by_position = matches!(options.input.header, Header::None | Header::Ignore);
        let (fields, given) = (plan.fields.len(), options.target.columns.is_some());
        if let Some(width) = self.width.filter(|width| *width != fields && by_position && !given) {
            let s = if width == 1 { "" } else { "s" };
            return error.with_hint(text!(
                "each record has {} field{}, and the table takes {}: `columns` A,-,B,… names the \
                 columns of the fields, and leaves out a field by -",
                width,
                s,
                fields
            ));
        }
        if !of_value {
            return error;
        }
        // If all records were examined, another cause is more likely.
        match plan.inferred.as_ref().is_some_and(|inferred| !inferred.whole) {
            false => error,
            true if can_be_read_again(&options.input) => {
                error.with_hint("`create`=text-on-doubt reads the whole input first")
            }
            true => error.with_hint(
                "the types were inferred from the first records: create the table first, or load \
                 from a file with `create`=text-on-doubt",
            ),
        }
    }
}

/// Names in the form for comparisons.
fn bare(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.trim().to_lowercase()).collect()
}

/// The hint at another delimiter.
pub(crate) fn is_it(delimiter: &str) -> Text {
    text!("is the delimiter '{}'? `delimiter` '{}' names it", delimiter, delimiter)
}

/// A delimiter other than the dialect's, in the form of the option, with which all records have the
/// same number of fields, and that number. The one with the most fields is chosen.
fn other_delimiter(bytes: &[u8], ended: bool, dialect: &Dialect) -> Option<(String, usize)> {
    let split = DELIMITERS.iter().filter_map(|(delimiter, name)| {
        let is_free = *delimiter != dialect.delimiter
            && *delimiter != dialect.quote
            && !dialect.null.contains(delimiter)
            && !(dialect.format == Format::Text && *delimiter == b'\\');
        let other = Dialect { delimiter: *delimiter, ..dialect.clone() };
        let fields = is_free.then(|| fields(bytes, ended, &other)).flatten()?;
        (fields > 1).then(|| ((*name).to_owned(), fields))
    });
    split.max_by_key(|(_, fields)| *fields)
}

/// The delimiter that is detected without a doubt if none of the usual ones splits the records, and
/// the number of fields.
fn rare_delimiter(found: &Detected, dialect: &Dialect) -> Option<(String, usize)> {
    let fields = found.columns.len();
    let sure = found.doubts.iter().all(|doubt| !matches!(doubt.what, "delimiter" | "records"));
    (sure && fields > 1 && found.delimiter != dialect.delimiter)
        .then(|| (option(found.delimiter), fields))
}

/// Another delimiter that a file with stray quotes may have. With a wrong delimiter, quotes are in
/// the middle of fields, and no record has several fields.
pub(crate) fn instead(bytes: &[u8], ended: bool, dialect: &Dialect) -> Option<String> {
    let mut scanner = Scanner::new(bytes, ended, dialect, Eol::Unknown);
    let mut record = Record::default();
    for _ in 0..RECORDS {
        match scanner.next(&mut record) {
            Ok(Next::Record) if record.len() > 1 => return None,
            Ok(Next::Record) => {}
            Err(_) if scanner.skip_record().is_some_and(|(from, to)| from < to) => {}
            _ => break,
        }
    }
    other_delimiter(bytes, ended, dialect).map(|(delimiter, _)| delimiter)
}

/// The number of fields of each record, if it is the same for all. An incomplete last record does
/// not count, nor do empty lines.
fn fields(bytes: &[u8], ended: bool, dialect: &Dialect) -> Option<usize> {
    let (mut fields, mut records) = (None, 0);
    let even = each(bytes, ended, dialect, |record| {
        records += 1;
        *fields.get_or_insert(record.len()) == record.len()
    });
    fields.filter(|_| even && records > 1)
}

/// Calls `see` for each record until it returns false. Returns whether it never did and no record
/// was malformed.
fn each(
    bytes: &[u8],
    ended: bool,
    dialect: &Dialect,
    mut see: impl FnMut(&Record) -> bool,
) -> bool {
    let mut scanner = Scanner::new(bytes, ended, dialect, Eol::Unknown);
    let mut record = Record::default();
    for _ in 0..RECORDS {
        match scanner.next(&mut record) {
            Ok(Next::Record) => {
                let blank = record.len() == 1 && record.field(bytes, 0).1.is_empty();
                if !blank && !see(&record) {
                    return false;
                }
            }
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// Whether the first record looks like a header, whether it may be one, and its fields.
///
/// It looks like a header if its fields are different names, none of them a value of a type, and if
/// there are at least two more records that have a type in some column. It may be a header if only
/// the types of the other records do not show it.
fn header(bytes: &[u8], ended: bool, dialect: &Dialect) -> (bool, bool, Vec<String>) {
    let mut first: Vec<String> = Vec::new();
    let (mut below, mut alone, mut records) = (None, None, 0);
    let even = each(bytes, ended, dialect, |record| {
        let names = numbered(record.len());
        let inference = || Inference::new(&names, &TargetOptions::new("", ""));
        if records == 0 {
            let text = |i| String::from_utf8_lossy(record.field(bytes, i).1).into_owned();
            first = (0..record.len()).map(text).collect();
            alone.get_or_insert_with(inference).see(bytes, record);
        } else {
            below.get_or_insert_with(inference).see(bytes, record);
        }
        records += 1;
        record.len() == first.len()
    });
    let types = |inference: &Option<Inference>| -> Vec<Guess> {
        let columns = inference.as_ref().map(|i| i.columns(&numbered(i.fields()), true));
        columns.unwrap_or_default().iter().map(|column| column.guess).collect()
    };
    let are_names = types(&alone).iter().all(|guess| *guess == Guess::Text)
        && first.iter().enumerate().all(|(i, name)| !first[..i].contains(name))
        && first.iter().skip(1).all(|name| !name.is_empty());
    let typed = types(&below).iter().any(|guess| *guess != Guess::Text);
    let names = even && records > 1 && are_names;
    let shown = records > 2 && typed;
    (names && shown, names && !shown, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(csv: &str) -> (bool, bool) {
        (
            fields(csv.as_bytes(), true, &Dialect::csv()).is_some(),
            header(csv.as_bytes(), true, &Dialect::csv()).0,
        )
    }

    #[test]
    fn a_header_is_of_other_types_than_what_follows() {
        for (csv, is_header) in [
            ("id,name\n1,a\n2,b\n", true),
            (",x\n1,2.5\n2,3.5\n", true),
            ("day\n2024-01-01\n2024-01-02\n", true),
            ("a,b\nx,y\nz,w\n", false),
            ("5.1,setosa\n4.9,setosa\n4.7,virginica\n", false),
            ("n/a,1\n2,2\n3,3\n", false),
            ("id,id\n1,2\n3,4\n", false),
            ("id,name\n1,a\n", false),
            ("id,name\n1,a\n2\n", false),
        ] {
            assert_eq!(look(csv).1, is_header, "{csv:?}");
        }
        for (csv, may_be) in [
            ("id,name\n1,a\n", true),
            ("a,b\nx,y\nz,w\n", true),
            ("id,name\n1,a\n2,b\n", false),
            ("5.1,setosa\n4.9,setosa\n4.7,virginica\n", false),
            ("x,x\ny,z\n", false),
            ("id,name\n", false),
        ] {
            assert_eq!(header(csv.as_bytes(), true, &Dialect::csv()).1, may_be, "{csv:?}");
        }
    }
}
