//! Assigns the fields of the file to columns.

use crate::error::{shown, Error, Kind, Place};
use crate::facts::InputFacts;
use crate::facts::{ColumnFacts, TableFacts};
use crate::fields::FieldOptions;
use crate::input::HeaderLine;
use crate::options::{ColumnSet, FileFormat, Header, Options, TargetOptions};
use crate::quote::cut_name;
use crate::text::{text, Text};

pub(crate) mod values;

/// How the comment on a table begins that `--pack-columns` has created. After that follow the names
/// of the columns, in the order of the file.
pub(crate) const PACKED: &str = "packed by pgsluice; the file's order of columns: ";

/// The hint for bytes that are not UTF-8.
pub(crate) const NOT_UTF8: &str =
    "is the file in a Western encoding? `encoding` WIN1252, or LATIN1";

/// The maximum number of wrong, missing or swapped letters in a misspelled name.
const SLIPS: usize = 2;

/// The hint if the names do not look like names.
pub(crate) const AS_DATA: &str = "is the first line data? `no-header` loads it";

/// Returns the columns of the fields, in the file's order; `None` for a field that is left out.
///
/// # Errors
///
/// A name is unknown, given twice, generated or missing, the header does not match, or an option
/// names a column that is not among these.
pub fn fields(
    input: &InputFacts,
    table: &TableFacts,
    options: &Options,
) -> Result<Vec<Option<String>>, Error> {
    let writable = || table.columns.iter().filter(|c| !c.generated).map(|c| c.name.clone());
    let given = options.target.columns.as_ref();
    let (names, from_file) = match (given, options.input.header, &input.header) {
        (Some(names), _, _) => (names.clone(), false),
        _ if input.names.is_some() => (input.names.clone().unwrap_or_default(), false),
        (None, Header::Names, Some(header)) => {
            let names = by_header(header, table, &options.target.fields);
            (names.map_err(|e| e.of_kind(Kind::Data))?, true)
        }
        (None, header, _) => {
            if header != Header::Match {
                not_packed(table)?;
            }
            (writable().map(Some).collect(), false)
        }
    };
    let known = |name: String| as_known(name, table);
    let fields: Vec<Option<String>> = names.into_iter().map(|name| name.map(known)).collect();
    let names: Vec<String> = fields.iter().flatten().cloned().collect();
    let place = input.header.as_ref().map(HeaderLine::place);
    let located = |error: Error| match &place {
        Some(place) if from_file => error.at(place.clone()).of_kind(Kind::Data),
        _ => error,
    };
    names.iter().try_for_each(|name| check(name, &names, table, from_file)).map_err(located)?;
    if names.is_empty() && !fields.is_empty() {
        return Err(located(Error::new("every field of the file is left out")));
    }
    named_once(&names).map_err(|e| located(if from_file { e.with_hint(AS_DATA) } else { e }))?;
    if options.input.header == Header::Match {
        // COPY treats the missing first line of an empty file as an empty line.
        let empty = vec![None];
        let header = input.header.as_ref().map_or(&empty, |header| &header.fields);
        let first = || Place { file: input.name.clone(), line: Some(1), ..Place::default() };
        let null = options.input.dialect().map(|d| d.null).unwrap_or_default();
        match_header(header, &fields, &null)
            .map_err(|e| e.at(place.clone().unwrap_or_else(first)).of_kind(Kind::Data))?;
    }
    if let (Some(given), Header::Names, Some(header)) = (given, options.input.header, &input.header)
    {
        check_order(header, given).map_err(|e| e.of_kind(Kind::Data))?;
    }
    check_forced(&names, &options.target)?;
    if options.input.format != FileFormat::Binary {
        let set = options.target.fields.set.iter().map(|(name, _)| as_known(name.clone(), table));
        let names: Vec<String> = names.into_iter().chain(set).collect();
        check_missing(&names, table, options.target.fields.all_columns).map_err(|e| {
            if from_file {
                e.of_kind(Kind::Data)
            } else {
                e
            }
        })?;
    }
    Ok(fields)
}

/// Returns the columns that a header and `--map` assign to the fields. With the option to ignore
/// them, fields without a column of the same name are left out.
fn by_header(
    header: &HeaderLine,
    table: &TableFacts,
    options: &FieldOptions,
) -> Result<Vec<Option<String>>, Error> {
    check_map(header, options)?;
    let column = |i: usize| {
        if let Some(column) = mapped(header, i, options) {
            return Ok(column.clone());
        }
        let known = |name: &String| {
            let cut = cut_name(name);
            table.columns.iter().any(|c| c.name == *name || c.name == cut)
        };
        match header_name(header, i) {
            Err(_) if options.ignore_unknown => Ok(None),
            Ok(name) if options.ignore_unknown && !known(&name) => Ok(None),
            name => name.map(Some),
        }
    };
    (0..header.fields.len()).map(column).collect()
}

/// Returns what `--map` says about a field of the header; `None` if it says nothing.
pub(crate) fn mapped<'a>(
    header: &HeaderLine,
    field: usize,
    options: &'a FieldOptions,
) -> Option<&'a Option<String>> {
    let name = header.fields.get(field)?.as_deref().unwrap_or_default();
    options.map.iter().find(|(given, _)| given.as_bytes() == name).map(|(_, column)| column)
}

/// Checks that the header has every name that `--map` gives.
///
/// # Errors
///
/// Names the first one that is missing.
pub(crate) fn check_map(header: &HeaderLine, options: &FieldOptions) -> Result<(), Error> {
    let all = || header.fields.iter().map(|f| f.as_deref().unwrap_or_default());
    let Some((name, _)) =
        options.map.iter().find(|(name, _)| !all().any(|field| field == name.as_bytes()))
    else {
        return Ok(());
    };
    let names: Vec<String> = all().map(shown).collect();
    let error = Error::new(text!("`map` names \"{}\", which the header does not have", name));
    Err(error.at(header.place()).with_hint(format!(
        "{}it has: {}",
        did_you_mean(name, &names, &[]),
        names.join(", ")
    )))
}

/// Suggests a known name for one that is unknown. It is the same except for case, spaces and signs,
/// or it is a free name (without a field) with few different letters.
fn did_you_mean(name: &str, known: &[String], taken: &[String]) -> String {
    let bare_name = bare(name);
    let far = |known: &&String| strsim::damerau_levenshtein(&bare(known), &bare_name);
    let free = known.iter().filter(|known| !taken.contains(known));
    let most = SLIPS.min(bare_name.chars().count() / 3);
    let near = free.min_by_key(far).filter(|known| far(known) <= most);
    let same = known.iter().find(|known| bare(known) == bare_name);
    let meant = same.filter(|_| !bare_name.is_empty()).or(near);
    meant.map_or(String::new(), |known| format!("did you mean \"{known}\"? "))
}

/// The names in a header.
///
/// # Errors
///
/// A field is empty, has a NUL, or is not UTF-8.
pub(crate) fn header_names(header: &HeaderLine) -> Result<Vec<String>, Error> {
    (0..header.fields.len()).map(|i| header_name(header, i)).collect()
}

fn header_name(header: &HeaderLine, i: usize) -> Result<String, Error> {
    let field = header.fields[i].as_deref().filter(|f| !f.is_empty());
    name_of(header, i, field.ok_or_else(|| wrong_name(header, i, "has no name"))?)
}

/// A field of a header as a name.
pub(crate) fn name_of(header: &HeaderLine, i: usize, field: &[u8]) -> Result<String, Error> {
    if field.contains(&0) {
        return Err(wrong_name(header, i, "has a NUL in its name"));
    }
    String::from_utf8(field.to_vec()).map_err(|_| {
        wrong_name(header, i, &format!("is not UTF-8: {}", shown(field))).with_hint(NOT_UTF8)
    })
}

fn wrong_name(header: &HeaderLine, i: usize, what: &str) -> Error {
    Error::new(format!("field {} of the header {what}", i + 1))
        .at(header.place())
        .with_hint("`header`=ignore loads by position, or by `columns`")
}

/// A load by position would swap values if the order of the table's columns is not that of its
/// first file. So `--columns` must give the order.
fn not_packed(table: &TableFacts) -> Result<(), Error> {
    let order = table.comment.as_deref().and_then(|comment| comment.strip_prefix(PACKED));
    let Some(order) = order else { return Ok(()) };
    Err(Error::new(text!(
        "table {} was created with `pack-columns`, so its order of columns is not the file's",
        table.sql
    ))
    .with_hint(text!(
        "`columns` '{}' if this file's order is that of the first file; the table's comment keeps \
         that order",
        order
    )))
}

/// Checks `--columns` against a header. `--columns` takes precedence over the names in the header,
/// and these may differ. The same names in another order are an error, which would swap columns.
fn check_order(header: &HeaderLine, given: &[Option<String>]) -> Result<(), Error> {
    let Ok(own) = header_names(header) else { return Ok(()) };
    let Some(given) = given.iter().cloned().collect::<Option<Vec<String>>>() else {
        return Ok(());
    };
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    if own == given || sorted(&own) != sorted(&given) {
        return Ok(());
    }
    let message = text!("the header has `columns` in another order: {}", own.join(", "));
    Err(Error::new(message)
        .at(header.place())
        .with_hint("leave `columns` out to use the order of the header, or use `header`=ignore for that of `columns`"))
}

/// If a name is too long for any column, returns it as the server would cut it.
fn as_known(name: String, table: &TableFacts) -> String {
    let known = |name: &str| table.columns.iter().any(|c| c.name == name);
    let cut = cut_name(&name);
    if !known(&name) && known(cut) {
        return cut.to_owned();
    }
    name
}

/// Checks that each column has at most one field.
///
/// # Errors
///
/// Names the column that has two.
pub(crate) fn named_once(names: &[String]) -> Result<(), Error> {
    let twice = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name));
    twice.map_or(Ok(()), |(_, name)| Err(Error::new(format!("column \"{name}\" is named twice"))))
}

/// As in COPY, FORCE_NULL must not name a column that is not loaded.
fn check_forced(names: &[String], target: &TargetOptions) -> Result<(), Error> {
    let sets = [("force-null", &target.force_null), ("force-not-null", &target.force_not_null)];
    for (option, set) in sets {
        let (ColumnSet::Named(forced), option) = (set, Text::setting(option)) else { continue };
        if let Some(name) = forced.iter().find(|name| !names.contains(name)) {
            let error =
                Error::new(text!("{} names column \"{}\", which is not loaded", option, name));
            return Err(error.with_hint(format!("the load has: {}", names.join(", "))));
        }
    }
    Ok(())
}

fn check(name: &str, all: &[String], table: &TableFacts, from_file: bool) -> Result<(), Error> {
    let Some(column) = table.columns.iter().find(|c| c.name == name) else {
        let names: Vec<String> = table.columns.iter().map(|c| c.name.clone()).collect();
        let error = Error::new(format!("table {} has no column \"{name}\"", table.sql));
        let meant = did_you_mean(name, &names, all);
        return Err(error.with_hint(if from_file {
            text!(
                "{}it has: {}; `map` '{}=COLUMN' names the column, `map` '{}=-' leaves the field \
                 out; `header`=ignore loads by position",
                meant,
                names.join(", "),
                name,
                name
            )
        } else {
            text!("{}it has: {}", meant, names.join(", "))
        }));
    };
    if column.generated {
        return Err(Error::new(format!("column \"{name}\" is generated and takes no values"))
            .with_hint("leave it out of the file, or name the others with `columns`"));
    }
    Ok(())
}

/// A name in lower case, without spaces and signs.
fn bare(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Checks the header as COPY's HEADER MATCH does, with the same messages.
fn match_header(
    fields: &[Option<Vec<u8>>],
    names: &[Option<String>],
    null: &[u8],
) -> Result<(), Error> {
    if fields.len() != names.len() {
        return Err(Error::new(format!(
            "wrong number of fields in header line: got {}, expected {}",
            fields.len(),
            names.len()
        )));
    }
    for (i, (field, name)) in fields.iter().zip(names).enumerate() {
        let Some(name) = name else { continue };
        let got = match field {
            Some(field) if field == name.as_bytes() => continue,
            Some(field) => format!("\"{}\"", shown(field)),
            None => format!("null value (\"{}\")", shown(null)),
        };
        return Err(Error::new(format!(
            "column name mismatch in header line field {}: got {got}, expected \"{name}\"",
            i + 1
        )));
    }
    Ok(())
}

/// With the option to require all columns, checks that the file has every column. Otherwise columns
/// that are missing must have a default or allow NULL, unless a BEFORE trigger may fill them.
fn check_missing(names: &[String], table: &TableFacts, all: bool) -> Result<(), Error> {
    let left = |c: &&ColumnFacts| !c.generated && !c.identity && !names.contains(&c.name);
    if let Some(column) = table.columns.iter().filter(|_| all).find(left) {
        let message = format!("column \"{}\" of {} is not in the file", column.name, table.sql);
        return Err(Error::new(message)
            .with_hint("`missing-columns` default gives such columns their defaults"));
    }
    if table.triggers.iter().any(|t| t.row && t.before && !t.internal) {
        return Ok(());
    }
    let lacks = |c: &&ColumnFacts| {
        c.not_null && !c.generated && !c.identity && c.default.is_none() && !names.contains(&c.name)
    };
    match table.columns.iter().find(lacks) {
        Some(column) => Err(Error::new(format!(
            "column \"{}\" of {} is not in the file, has no default and forbids NULL",
            column.name, table.sql
        ))
        .with_hint("`columns` and `header` say which columns the file has")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_suggested_if_it_is_surely_meant() {
        let known = ["id", "name", "street_name", "zip"].map(str::to_owned);
        for (name, taken, meant) in [
            ("ID", &["name"][..], Some("id")),
            (" Street Name", &[], Some("street_name")),
            ("nmae", &["id"], Some("name")),
            ("stret_name", &[], Some("street_name")),
            // The name already has a field.
            ("names", &["name"], None),
            ("id2", &["id"], None),
            ("sip code", &[], None),
            ("x", &[], None),
            ("--", &[], None),
        ] {
            let taken: Vec<String> = taken.iter().map(|n| (*n).to_owned()).collect();
            let expected = meant.map_or(String::new(), |m| format!("did you mean \"{m}\"? "));
            assert_eq!(did_you_mean(name, &known, &taken), expected, "{name}");
        }
    }
}
