//! The content of each column: its type, spellings of NULL, decimal commas, the order of dates.

use super::cell::{is_null, CellKind, Class, PartOrder};
use super::layout::{form, FileLayout};
use super::reading::{Reading, SampleRow};
use super::{DetectedColumn, Head, Sample};
use crate::infer::{Guess, Inference};
use crate::naming::numbered;
use crate::options::TargetOptions;
use pgsluice_core::scan::{self, Eol, Next, Scanner};

/// The findings of all columns.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub columns: Vec<DetectedColumn>,
    /// the only spelling of NULL, if the whole file was read and it is no value of any column, with
    /// evidence
    pub null: Option<(String, String)>,
    /// spellings of NULL that may also be values
    pub nulls: Vec<String>,
    /// `DMY` or `MDY`, with evidence
    pub date_style: Option<(&'static str, String)>,
    /// columns of dates whose order is not clear
    pub dates: Vec<String>,
}

/// Examines the columns of the table.
pub(super) fn find(
    sample: Sample<'_>,
    reading: &Reading,
    layout: &FileLayout,
    names: &[Vec<u8>],
) -> Columns {
    let fits = |row: &&SampleRow| row.width == reading.width && !row.is_blank();
    let end = layout.end.max(layout.first);
    let rows: Vec<&SampleRow> = reading.rows[layout.first..end].iter().filter(fits).collect();
    let named = layout.head == Head::Names;
    let name = |i: usize| match names.get(i).filter(|name| named && !name.is_empty()) {
        Some(name) => String::from_utf8_lossy(name).trim().to_owned(),
        None => format!("c{}", i + 1),
    };
    let types = types(sample, reading, &rows);
    let mut found = Columns::default();
    let mut nulls: Vec<Spelling> = Vec::new();
    let mut empties = false;
    for (i, guess) in types.iter().enumerate() {
        let kinds = || rows.iter().map(|row| (row.line, row.kind(i)));
        let class = form(kinds().map(|(_, kind)| kind));
        let mut column =
            DetectedColumn { name: name(i), sql: guess.sql(), why: String::new(), also: None };
        describe(sample, reading, &rows, i, class, *guess, &mut column);
        order(&mut found, &column.name, kinds());
        spellings(sample, reading, &rows, i, class, &mut nulls);
        // In columns of text, too: with another marker, their empty values would not be NULL.
        empties |= kinds().any(|(_, kind)| kind == CellKind::Empty);
        found.columns.push(column);
    }
    let shown = |s: &Spelling| {
        let more = if s.text { ", in a column of text as well" } else { "" };
        format!("{:?} from line {} on, {} times{more}", s.spelling, s.line, s.count)
    };
    // The setting replaces COPY's marker in all columns. Records that were not read may have empty
    // values, which would not be NULL then, or this spelling in a column of text.
    match nulls.as_slice() {
        [one] if reading.whole && !one.text && !empties && !is_number(&one.spelling) => {
            found.null =
                Some((one.spelling.clone(), format!("{} in columns of other values", shown(one))));
        }
        _ => found.nulls = nulls.iter().map(shown).collect(),
    }
    found
}

/// A spelling of NULL.
struct Spelling {
    spelling: String,
    line: u64,
    count: u64,
    /// it is also in a column of text
    text: bool,
}

/// Whether a spelling of NULL is also a number of the server, which COPY keeps.
fn is_number(spelling: &str) -> bool {
    spelling.eq_ignore_ascii_case("nan")
}

/// The types of the columns that `--create` would choose.
fn types(sample: Sample<'_>, reading: &Reading, rows: &[&SampleRow]) -> Vec<Guess> {
    let mut inference = Inference::new(&numbered(reading.width), &TargetOptions::new("", ""));
    let mut record = scan::Record::default();
    for row in rows {
        let bytes = &sample.bytes[row.start..row.end];
        let mut scanner = Scanner::new(bytes, true, &reading.dialect, Eol::Unknown);
        if scanner.next_naive(&mut record) == Ok(Next::Record) {
            inference.see(bytes, &record);
        }
    }
    let columns = inference.columns(&numbered(reading.width), reading.whole);
    columns.iter().map(|column| column.guess).collect()
}

/// Describes remarkable properties of a column.
fn describe(
    sample: Sample<'_>,
    reading: &Reading,
    rows: &[&SampleRow],
    i: usize,
    class: Class,
    guess: Guess,
    column: &mut DetectedColumn,
) {
    let line_of = |wanted: &dyn Fn(CellKind) -> bool| rows.iter().find(|row| wanted(row.kind(i)));
    if line_of(&CellKind::is_value).is_none() {
        column.why = "no value".into();
        return;
    }
    let commas = line_of(&|kind| kind == CellKind::Comma);
    let points = line_of(&|kind| kind == CellKind::Decimal);
    if let (Some(row), None, Class::Number) = (commas, points, class) {
        column.why = format!("decimal comma, as in line {}", row.line);
        column.also = Some("numeric");
        return;
    }
    if let (Some(row), Class::Number) = (line_of(&|kind| kind == CellKind::Grouped), class) {
        column.why = format!("numbers in groups of three digits, as in line {}", row.line);
        column.also = Some("numeric");
        return;
    }
    let other = line_of(&|kind| kind.is_value() && kind.class() != class);
    if let (Some(row), Guess::Text, true) = (other, guess, class != Class::Text) {
        let values = reading.values(sample, row);
        let value = String::from_utf8_lossy(&values[i]);
        let value: String = value.chars().take(30).collect();
        column.why =
            format!("but for {value:?} in line {}, all values are {}", row.line, of(class));
        column.also = plain_type(class);
        return;
    }
    if let (Guess::Text, Some(also)) = (guess, plain_type(class)) {
        column.why =
            format!("the values are {}, not all in a form that comes back as written", of(class));
        column.also = Some(also);
    }
}

fn of(class: Class) -> &'static str {
    match class {
        Class::Number => "numbers",
        Class::Date => "dates",
        Class::Time => "times",
        Class::Bool => "true or false",
        _ => "alike",
    }
}

fn plain_type(class: Class) -> Option<&'static str> {
    match class {
        Class::Number => Some("numeric"),
        Class::Date => Some("date"),
        Class::Time => Some("time"),
        Class::Bool => Some("boolean"),
        _ => None,
    }
}

/// Finds the order of day and month.
fn order(found: &mut Columns, name: &str, kinds: impl Iterator<Item = (u64, CellKind)>) {
    let (mut day, mut month, mut unknown) = (None, None, None);
    for (line, kind) in kinds {
        let (CellKind::Date(order) | CellKind::Timestamp(order)) = kind else { continue };
        let place = match order {
            PartOrder::Day => &mut day,
            PartOrder::Month => &mut month,
            PartOrder::Unknown => &mut unknown,
            PartOrder::Year => continue,
        };
        place.get_or_insert(line);
    }
    let (style, line) = match (day, month, unknown) {
        (Some(line), None, _) => ("DMY", line),
        (None, Some(line), _) => ("MDY", line),
        (Some(day), Some(month), _) => {
            let both = format!("{name}: the day is first in line {day}, the month in line {month}");
            found.dates.push(both);
            return;
        }
        (None, None, Some(line)) => {
            found.dates.push(format!("{name}: no value shows the order, as in line {line}"));
            return;
        }
        (None, None, None) => return,
    };
    let first = if style == "DMY" { "day" } else { "month" };
    match &found.date_style {
        Some((other, _)) if *other != style => {
            found.dates.push(format!("{name}: the {first} is first in line {line}"));
        }
        Some(_) => {}
        None => {
            let why = format!("{name}: the {first} is first in line {line}");
            found.date_style = Some((style, why));
        }
    }
}

/// Collects spellings of NULL in a column.
fn spellings(
    sample: Sample<'_>,
    reading: &Reading,
    rows: &[&SampleRow],
    i: usize,
    class: Class,
    nulls: &mut Vec<Spelling>,
) {
    let text = matches!(class, Class::Text | Class::Code | Class::None);
    for row in rows.iter().filter(|row| row.kind(i) == CellKind::Null && !row.quoted[i]) {
        let values = reading.values(sample, row);
        if !is_null(&values[i]) {
            continue;
        }
        let spelling = String::from_utf8_lossy(&values[i]).into_owned();
        match nulls.iter_mut().find(|n| n.spelling == spelling) {
            Some(found) => {
                found.count += 1;
                found.text |= text;
            }
            None => nulls.push(Spelling { spelling, line: row.line, count: 1, text }),
        }
    }
}
