//! Columns whose values are not in the file, and columns with further texts for NULL.

use super::{as_known, check};
use crate::error::Error;
use crate::facts::TableFacts;
use crate::fields::ValuePart;
use crate::options::Options;
use crate::text::text;
use pgsluice_core::scan::{Dialect, Format};

/// Returns the columns of the rows that are sent: those of the fields, and then those of `--set`,
/// in the order given there.
///
/// # Errors
///
/// A column of `--set` is in the file, is named twice or cannot be written; `--null` names a column
/// that is not in the file, or one of `--force-not-null`; `--expr` names a column that has no text;
/// or a text cannot be written in the file's form.
pub(crate) fn columns(
    fields: &[Option<String>],
    table: &TableFacts,
    options: &Options,
) -> Result<Vec<String>, Error> {
    let target = &options.target;
    let known = |name: &String| as_known(name.clone(), table);
    let set: Vec<String> = target.fields.set.iter().map(|(name, _)| known(name)).collect();
    for (i, name) in set.iter().enumerate() {
        check(name, &[], table, false)?;
        if fields.iter().flatten().any(|field| field == name) {
            let message = text!("`set` names column \"{}\", which is in the file", name);
            return Err(Error::new(message).with_hint(
                "leave its field out: `columns` with - in its place, or `map` NAME=- with `header`",
            ));
        }
        if set[..i].contains(name) {
            return Err(Error::usage(text!("`set` names column \"{}\" twice", name)));
        }
    }
    let of_file = |name: &String| fields.iter().flatten().any(|field| field == name);
    for (name, text) in &target.fields.nulls {
        let Some(name) = name else { continue };
        if !of_file(&known(name)) {
            let message = text!("`null` names column \"{}\", which is not in the file", name);
            return Err(Error::new(message).with_hint(text!(
                "`null` '*={}={}' is a spelling for all columns",
                name,
                text
            )));
        }
        if target.force_not_null.has(name) {
            let message =
                text!("`null` and `force-not-null` contradict each other for column \"{}\"", name);
            return Err(Error::usage(message));
        }
    }
    for expression in &target.fields.expressions {
        let name = known(&expression.column);
        check(&name, &[], table, false)?;
        if !of_file(&name) && !set.contains(&name) {
            let message = text!("`expr` names column \"{}\", which is not in the file", name);
            return Err(Error::new(message).with_hint(
                "`expr` takes the text of a field; a column without one has its default",
            ));
        }
    }
    let dialect = options.input.dialect();
    dialect.map_or(Ok(()), |dialect| writable(&dialect, options))?;
    Ok(fields.iter().flatten().cloned().chain(set).collect())
}

/// Checks that the texts can be compared with fields, or written as fields, of this form.
fn writable(dialect: &Dialect, options: &Options) -> Result<(), Error> {
    let wanted = &options.target.fields;
    let file = |piece: &ValuePart| match piece {
        ValuePart::Text(text) => !text.is_ascii(),
        ValuePart::File => options.input.sources.iter().any(|source| !source.name().is_ascii()),
        ValuePart::Line => false,
    };
    // Each spelling is replaced by the marker.
    let beyond = !wanted.nulls.is_empty() && !dialect.null.is_ascii()
        || wanted.nulls.iter().any(|(_, text)| !text.is_ascii())
        || wanted.set.iter().any(|(_, value)| value.iter().any(file));
    if let (Some(encoding), true) = (&options.input.encoding, beyond) {
        let message = text!(
            "`null` and `set` take characters beyond ASCII for files in UTF-8, not {}",
            encoding
        );
        return Err(Error::usage(message).with_hint("convert the file first: iconv -t UTF-8"));
    }
    let empty = wanted.set.iter().find(|(_, value)| value.is_empty());
    if let (Some((name, _)), Format::Text, b"") = (empty, dialect.format, &dialect.null[..]) {
        let message = text!("`set` {}= would be NULL, since the empty text means NULL", name);
        return Err(Error::usage(message).with_hint("choose another text for NULL: `null` TEXT"));
    }
    Ok(())
}
