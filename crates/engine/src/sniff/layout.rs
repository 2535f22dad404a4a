//! Finds the lines of the table: what comes before and after it, and whether its first record is a
//! header.

use super::cell::{CellKind, Class};
use super::reading::{Reading, SampleRow};
use super::{Doubt, Given, Head, Sample, Setting};

/// The most lines before the table.
const BEFORE: usize = 50;

/// The most lines after the table.
const AFTER: usize = 5;

/// A column has a form if at least this share of its values has it.
const MOST: f64 = 0.9;

/// The position of the table in the sample.
#[derive(Debug)]
pub(super) struct FileLayout {
    /// number of lines before the header, or before the first record
    pub before: u64,
    /// number of lines after the last record
    pub after: u64,
    pub head: Head,
    /// the first record, as an index of the reading's rows
    pub first: usize,
    /// the row after the last record
    pub end: usize,
    /// evidence for each finding
    pub evidence: Vec<(&'static str, String)>,
    pub doubts: Vec<Doubt>,
}

/// Finds the table in the rows of a reading.
pub(super) fn find(sample: Sample<'_>, reading: &Reading, given: &Given) -> FileLayout {
    let rows = &reading.rows;
    let fits = |row: &SampleRow| {
        row.width == reading.width && !row.is_blank() && (row.width < 3 || row.filled > 1)
    };
    let mut layout = FileLayout {
        before: 0,
        after: 0,
        head: Head::Unknown,
        first: 0,
        end: rows.len(),
        evidence: Vec::new(),
        doubts: Vec::new(),
    };
    let Some(start) = rows.iter().position(fits) else {
        layout.doubts.push(Doubt {
            what: "records",
            why: "the sample has no record".into(),
            candidates: Vec::new(),
        });
        return layout;
    };
    layout.footer(sample, reading);
    // A record with values in many fields is a damaged header, not a title.
    let many = |row: &SampleRow| row.filled > 1 && row.filled * 2 >= reading.width;
    let unfit = rows[..start].iter().rposition(many);
    let top = unfit.unwrap_or(start);
    if given.skip_lines == 0 {
        layout.before = rows[..top].last().map_or(0, |row| row.last);
    }
    match unfit {
        Some(at) => layout.unfit(reading, &rows[at], start, given),
        None => layout.header(sample, reading, start, given),
    }
    layout.preamble(sample, reading, top, given);
    layout
}

impl FileLayout {
    /// Handles a first record with another number of fields than the others.
    fn unfit(&mut self, reading: &Reading, row: &SampleRow, start: usize, given: &Given) {
        self.first = start;
        self.head = Head::Unfit;
        let trailing = row.width == reading.width + 1 && row.kinds.last() == Some(&CellKind::Empty);
        if trailing {
            self.head = Head::Names;
        }
        let why = format!(
            "line {} has {} fields, and the records have {}",
            row.line, row.width, reading.width
        );
        if !trailing && given.header.is_none() {
            let candidates = vec![Setting("header", "ignore".into())];
            self.doubts.push(Doubt { what: "header", why: why.clone(), candidates });
        }
        self.evidence.push(("header", why));
    }

    /// Decides whether the row `start` is a header.
    fn header(&mut self, sample: Sample<'_>, reading: &Reading, start: usize, given: &Given) {
        let (head, why) = header(sample, reading, start);
        self.head = match given.header {
            Some(true) => Head::Names,
            Some(false) => Head::None,
            None => head,
        };
        self.first = start + usize::from(self.head == Head::Names);
        if self.head == Head::Unknown {
            let candidates =
                vec![Setting("header", "names".into()), Setting("no-header", String::new())];
            self.doubts.push(Doubt { what: "header", why: why.clone(), candidates });
        }
        self.evidence.push(("header", why));
    }

    /// Adds a doubt if the lines before the table may be a header of another form.
    fn preamble(&mut self, sample: Sample<'_>, reading: &Reading, top: usize, given: &Given) {
        if self.before == 0 {
            return;
        }
        let shown = |row: &SampleRow| {
            let text = String::from_utf8_lossy(&sample.bytes[row.start..row.end]);
            let text: String = text.trim_end().chars().take(30).collect();
            format!("{text:?}")
        };
        let titles: Vec<String> =
            reading.rows[..top].iter().filter(|r| !r.is_blank()).take(3).map(shown).collect();
        let titles = titles.join(", ");
        let why = match self.before {
            1 => format!("line 1 is no record: {titles}"),
            before => format!("lines 1 to {before} are no records: {titles}"),
        };
        let blank = reading.rows[..top].iter().all(SampleRow::is_blank);
        let sure = blank || matches!(self.head, Head::Names | Head::Unfit);
        if !sure || top > BEFORE || given.header == Some(false) && !blank {
            let candidates = vec![Setting("skip-lines", self.before.to_string())];
            let why = format!("{why}; they may be a title, or damaged records");
            self.doubts.push(Doubt { what: "preamble", why, candidates });
        }
        self.evidence.push(("skip-lines", why));
    }

    /// Finds lines after the last record. They have one value, which is not of the form of its
    /// column.
    fn footer(&mut self, sample: Sample<'_>, reading: &Reading) {
        let rows = &reading.rows;
        let fits = |row: &SampleRow| row.width == reading.width && !row.is_blank();
        let Some(last) = rows.iter().rposition(fits).filter(|_| reading.whole) else { return };
        let after = &rows[last + 1..];
        let texts: Vec<&SampleRow> = after.iter().filter(|row| !row.is_blank()).collect();
        if texts.is_empty() || after.len() > AFTER || reading.width < 2 {
            return;
        }
        // The first record may be the header.
        let records = rows[..=last].iter().filter(|row| fits(row)).skip(1);
        let class = form(records.map(|row| row.kinds[0]));
        let ended = matches!(sample.bytes.last(), Some(b'\n' | b'\r'));
        let is_text = |row: &&SampleRow| {
            // A record that is cut off may begin with an empty field.
            let own = row.kinds.first().map_or(Class::None, |kind| kind.class());
            let other = own != Class::None && own != class;
            row.filled == 1 && row.width < reading.width && other && class.is_form()
        };
        let lines = after.iter().map(|row| row.last + 1 - row.line).sum();
        if texts.iter().all(is_text) && ended {
            self.after = lines;
            self.end = last + 1;
            let line = after[0].line;
            self.evidence.push((
                "skip-footer",
                format!("line {line} and what follows are no records: their first value is none of the column's form"),
            ));
        }
    }
}

impl Class {
    /// Whether values of this class can be distinguished from names.
    fn is_form(self) -> bool {
        !matches!(self, Class::None | Class::Text)
    }
}

/// The form of most values.
pub(super) fn form(kinds: impl Iterator<Item = CellKind>) -> Class {
    let mut counts: Vec<(Class, usize)> = Vec::new();
    for class in kinds.map(CellKind::class).filter(|class| *class != Class::None) {
        match counts.iter_mut().find(|(c, _)| *c == class) {
            Some((_, count)) => *count += 1,
            None => counts.push((class, 1)),
        }
    }
    let all: usize = counts.iter().map(|(_, count)| count).sum();
    let most = counts.iter().max_by_key(|(_, count)| *count);
    match most {
        Some((class, count)) if *count as f64 >= MOST * all as f64 => *class,
        Some(_) => Class::Text,
        None => Class::None,
    }
}

/// Whether the row is a header according to the forms of the values below it, with evidence.
fn header(sample: Sample<'_>, reading: &Reading, start: usize) -> (Head, String) {
    let row = &reading.rows[start];
    let below: Vec<&SampleRow> = reading.rows[start + 1..]
        .iter()
        .filter(|r| r.width == row.width && !r.is_blank())
        .collect();
    if below.is_empty() {
        return (Head::Unknown, format!("line {} is the only record", row.line));
    }
    let (mut contrasts, mut fits, mut weak) = (Vec::new(), Vec::new(), 0);
    for (i, kind) in row.kinds.iter().enumerate() {
        let column = || below.iter().filter_map(|row| row.kinds.get(i).copied());
        let class = form(column());
        if class == Class::Number && quoted_alone(row, &below, i) {
            contrasts.push(i);
            continue;
        }
        if !class.is_form() || kind.class() == Class::None {
            continue;
        }
        match kind.class() {
            // Names may also have digits.
            Class::Code if class == Class::Code => {}
            own if own == class => fits.push(i),
            Class::Text if class == Class::Code => weak += 1,
            Class::Text | Class::Code => contrasts.push(i),
            _ => fits.push(i),
        }
    }
    let values = reading.values(sample, row);
    let years = are_labels(fits.iter().map(|i| values[*i].as_slice()));
    let line = row.line;
    let list = |columns: &[usize]| {
        let shown: Vec<String> = columns.iter().take(3).map(|i| (i + 1).to_string()).collect();
        shown.join(", ")
    };
    let repeated = repeated(sample, reading, &values, &below);
    let nameless = nameless(row, &below);
    let names = contrasts.len() * 2 + weak;
    let enough = names > 2 || (names > 1 && below.len() > 2 && are_distinct(&values));
    if enough && (fits.is_empty() || years) && repeated.is_none() {
        let columns = if contrasts.is_empty() { String::new() } else { list(&contrasts) };
        let of = if columns.is_empty() {
            "values with digits below".into()
        } else {
            format!("values of other types below in columns {columns}")
        };
        return (Head::Names, format!("line {line} has text, and {of}"));
    }
    if contrasts.is_empty() && weak == 0 && !fits.is_empty() && !years && !nameless {
        return (
            Head::None,
            format!("line {line} has values of the same types as below in columns {}", list(&fits)),
        );
    }
    let values_alone = contrasts.is_empty() && weak == 0 && !nameless;
    if let (Some((column, other)), true) = (repeated, values_alone) {
        let value = String::from_utf8_lossy(&values[column]);
        let value: String = value.chars().take(30).collect();
        let why = format!(
            "value {value:?} of line {line} is in line {other} as well, in the same column"
        );
        return (Head::None, why);
    }
    (Head::Unknown, format!("line {line} may be names or values: the types below do not decide"))
}

/// Whether numbers may be names of columns: years, or 0, 1, 2 and so on.
fn are_labels<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let numbers: Vec<Option<u32>> =
        values.map(|v| std::str::from_utf8(v).ok().and_then(|v| v.trim().parse().ok())).collect();
    if numbers.is_empty() || numbers.iter().any(Option::is_none) {
        return false;
    }
    let numbers: Vec<u32> = numbers.into_iter().flatten().collect();
    numbers.iter().all(|n| (1800..=2100).contains(n))
        || (numbers.len() > 1 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1))
}

fn are_distinct(values: &[Vec<u8>]) -> bool {
    values.iter().enumerate().all(|(i, value)| !values[..i].contains(value))
}

/// Whether the first value of a column is quoted and no other value is.
fn quoted_alone(first: &SampleRow, below: &[&SampleRow], i: usize) -> bool {
    let quoted = |row: &SampleRow| row.quoted.get(i) == Some(&true);
    quoted(first) && below.len() > 1 && !below.iter().any(|row| quoted(row))
}

/// Whether the first record lacks only the first value, which the others have. Programs write this
/// as the header of a column of row names.
fn nameless(first: &SampleRow, below: &[&SampleRow]) -> bool {
    let filled = |row: &SampleRow| row.kinds.first().is_some_and(|kind| *kind != CellKind::Empty);
    first.width > 1 && !filled(first) && below.iter().all(|row| filled(row))
}

/// Texts of the first record that later records have in the same columns: the first of these
/// columns, and the line. A single such column may be a coincidence, like `ID` above country codes.
/// A record that repeats all values is a repeated header.
fn repeated(
    sample: Sample<'_>,
    reading: &Reading,
    first: &[Vec<u8>],
    below: &[&SampleRow],
) -> Option<(usize, u64)> {
    let mut found: Vec<(usize, u64)> = Vec::new();
    for row in below.iter().take(500) {
        let values = reading.values(sample, row);
        let same = |i: &usize| !first[*i].is_empty() && values.get(*i) == Some(&first[*i]);
        let same: Vec<usize> = (0..first.len()).filter(same).collect();
        if same.len() == first.len() {
            continue;
        }
        let text = |i: usize| matches!(CellKind::of(&first[i]), CellKind::Text | CellKind::Code);
        for i in same.into_iter().filter(|i| text(*i)) {
            if !found.iter().any(|(column, _)| *column == i) {
                found.push((i, row.line));
            }
        }
    }
    found.first().copied().filter(|_| found.len() > 1)
}
