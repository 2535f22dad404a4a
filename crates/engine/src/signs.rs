//! Notes about values that cause no error: the server accepts them, but perhaps not as the user
//! means them. Each note is based on the first records, and printed before the first row.

use crate::facts::{ColumnFacts, Facts};
use crate::options::Options;
use crate::sniff::{moment_of, spelling, PartOrder, Spelling};
use crate::text::{text, Text};
use pgsluice_core::scan::{FieldKind, Record};
use pgsluice_core::shape::{DateOrder, Type};

/// The most columns that a note names.
const LISTED: usize = 3;

/// What the values of a field show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Field {
    /// the first date that may begin with the day or with the month
    date: Option<String>,
    /// a date shows which of them is first
    ordered: bool,
    /// the first time with a zone
    zone: Option<String>,
    /// number of values, and number of values that begin with a space
    values: usize,
    spaced: usize,
    /// a value is `\N`
    marker: bool,
    /// the first common spelling of NULL; number of values that are numbers; number of such
    /// spellings
    null: Option<String>,
    numbers: usize,
    nulls: usize,
}

/// What the values of all fields show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs(Vec<Field>);

impl Signs {
    /// Examines a record.
    pub(crate) fn see(&mut self, bytes: &[u8], record: &Record) {
        if self.0.len() < record.len() {
            self.0.resize(record.len(), Field::default());
        }
        for (i, field) in self.0.iter_mut().enumerate().take(record.len()) {
            let (kind, value) = record.field(bytes, i);
            if value.is_empty() {
                continue;
            }
            field.values += 1;
            field.spaced += usize::from(value[0] == b' ');
            field.marker |= value == b"\\N" && matches!(kind, FieldKind::Plain);
            let shown = || Some(String::from_utf8_lossy(value).into_owned());
            match spelling(value) {
                Spelling::Null => {
                    field.nulls += 1;
                    field.null = field.null.take().or_else(shown);
                }
                Spelling::Number => field.numbers += 1,
                _ => {}
            }
            let Some((order, zone)) = moment_of(value) else { continue };
            match order {
                PartOrder::Unknown if field.date.is_none() => field.date = shown(),
                PartOrder::Day | PartOrder::Month => field.ordered = true,
                _ => {}
            }
            if zone && field.zone.is_none() {
                field.zone = shown();
            }
        }
    }

    /// Returns the notes. `fields` are the columns of the fields.
    pub(crate) fn notes(
        &self,
        fields: &[Option<String>],
        facts: &Facts,
        options: &Options,
    ) -> Vec<Text> {
        let target = &options.target.fields;
        let computed = |name: &str| target.expressions.iter().any(|e| e.column == name);
        let column = |name: &String| facts.table.columns.iter().find(|c| c.name == *name);
        let seen: Vec<(&Field, &ColumnFacts)> = self
            .0
            .iter()
            .zip(fields)
            .filter_map(|(field, name)| Some((field, column(name.as_ref()?)?)))
            .filter(|(_, column)| !computed(&column.name))
            .collect();
        let notes =
            [date(&seen, facts, options), zone(&seen), spaces(&seen), marker(&seen, options)];
        let nulls = facts.new.as_ref().and_then(|_| numbers_but(&seen));
        notes.into_iter().flatten().chain(nulls).collect()
    }
}

/// Returns the names of columns, as they appear in a note.
fn names(columns: &[&str]) -> String {
    let more = if columns.len() > LISTED { " and others" } else { "" };
    let s = if columns.len() > 1 { "s" } else { "" };
    format!("column{s} {}{more}", columns[..columns.len().min(LISTED)].join(", "))
}

/// The note about dates that the server reads by its `DateStyle`.
fn date(seen: &[(&Field, &ColumnFacts)], facts: &Facts, options: &Options) -> Option<Text> {
    let is_date = |ty: &Type| matches!(ty, Type::Date | Type::Timestamp(_) | Type::TimestampTz(_));
    let (field, column) = seen
        .iter()
        .find(|(field, column)| field.date.is_some() && !field.ordered && is_date(&column.ty))?;
    let first = match facts.server.env().date_order {
        _ if options.target.date_style.is_some() => return None,
        DateOrder::Mdy => "month",
        DateOrder::Dmy => "day",
        DateOrder::Ymd => return None,
    };
    Some(text!(
        "column {} has dates such as {}, and none of the first records shows whether the day or the \
         month is first: the server takes the {}; `date-style` 'ISO, DMY' or 'ISO, MDY' says which",
        column.name,
        field.date.as_deref()?,
        first
    ))
}

/// The note about time zones that the server ignores.
fn zone(seen: &[(&Field, &ColumnFacts)]) -> Option<Text> {
    let (field, column) = seen
        .iter()
        .find(|(field, column)| field.zone.is_some() && matches!(column.ty, Type::Timestamp(_)))?;
    Some(text!(
        "column {} has times with a zone, such as {}, and its type drops the zone: timestamptz \
         keeps the moment",
        column.name,
        field.zone.as_deref()?
    ))
}

/// The note about spaces that text keeps.
fn spaces(seen: &[(&Field, &ColumnFacts)]) -> Option<Text> {
    let kept = seen.iter().filter(|(field, column)| {
        let text = matches!(column.ty, Type::Text | Type::Varchar(_) | Type::Bpchar(_));
        text && field.values > 1 && field.spaced == field.values
    });
    let kept: Vec<&str> = kept.map(|(_, column)| column.name.as_str()).collect();
    let first = kept.first()?;
    Some(text!(
        "each value of {} begins with a space, which is kept: `expr` \"{}=ltrim(?)\" drops it",
        names(&kept),
        first
    ))
}

/// The note about a new table's column of text that has only numbers and spellings of NULL.
fn numbers_but(seen: &[(&Field, &ColumnFacts)]) -> Option<Text> {
    let (field, column) = seen.iter().find(|(field, column)| {
        let all = field.numbers > 0 && field.numbers + field.nulls == field.values;
        all && field.nulls > 0 && !field.marker && column.ty == Type::Text
    })?;
    let (name, null) = (&column.name, field.null.as_deref()?);
    Some(text!(
        "column {} is text, since some values are {} and all others are numbers: `null` '{}={}' \
         makes these NULL",
        name,
        null,
        name,
        null
    ))
}

/// The note about NULL markers that CSV does not have.
fn marker(seen: &[(&Field, &ColumnFacts)], options: &Options) -> Option<Text> {
    let dialect = options.input.dialect()?;
    let target = &options.target;
    // The options say what \N means there.
    let own = |name: &str| {
        target.force_not_null.has(name) || target.nulls_of(name).iter().any(|null| null == b"\\N")
    };
    let text = |ty: &Type| matches!(ty, Type::Text | Type::Varchar(_) | Type::Bpchar(_));
    let kept = seen.iter().filter(|(field, column)| {
        field.marker && text(&column.ty) && dialect.null != b"\\N" && !own(&column.name)
    });
    let kept: Vec<&str> = kept.map(|(_, column)| column.name.as_str()).collect();
    (!kept.is_empty()).then(|| {
        text!("{} has \\N, which is text in CSV: `null` '*=\\N' makes it NULL", names(&kept))
    })
}
