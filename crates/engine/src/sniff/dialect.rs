//! Finds the delimiter, quote and escape of a sample. Each plausible dialect reads it. One is
//! chosen only if it fits clearly better than every other.

use super::cell::{CellKind, Class};
use super::reading::{Reading, SampleRow};
use super::{counted, option, Doubt, Given, Sample, Setting};
use pgsluice_core::scan::StrayQuotes;

/// The usual delimiters.
const USUAL: [u8; 6] = [b',', b';', b'\t', b'|', 0x01, 0x1f];

/// Bytes that are accepted as delimiters only if there is no usual one, because they are frequent
/// within values.
const RARE: [u8; 5] = [b' ', b':', b'^', b'~', b'#'];

/// The remark on lines that no delimiter splits.
pub(crate) const FIXED_WIDTH: &str =
    "several spaces stand between values: columns of a fixed width are not split";

/// A byte that does not occur in text. With it as the delimiter, each line is one value.
const ONE_VALUE: u8 = 0x02;

/// The reading that fits, with its doubts.
pub(super) struct DialectChoice {
    pub reading: Reading,
    pub doubts: Vec<Doubt>,
    /// other delimiters that were tried, and the result of each
    pub others: Vec<String>,
}

/// Finds the dialect of a sample.
pub(super) fn choose(sample: Sample<'_>, given: &Given) -> DialectChoice {
    let mut readings = Vec::new();
    for delimiter in delimiters(sample, given) {
        readings.push(best_quotes(sample, delimiter, given));
    }
    if given.delimiter.is_some() {
        let (reading, doubt) = readings.swap_remove(0);
        return DialectChoice { reading, doubts: doubt.into_iter().collect(), others: Vec::new() };
    }
    let plausible: Vec<&(Reading, Option<Doubt>)> =
        readings.iter().filter(|(reading, _)| is_plausible(reading)).collect();
    let winner = plausible.iter().find(|(a, _)| {
        let mut others = plausible.iter().map(|(b, _)| b);
        others.all(|b| {
            let same = a.dialect.delimiter == b.dialect.delimiter;
            let explained = in_numbers(sample, b, a.dialect.delimiter);
            same || (is_better(a, b) && !explained) || explains(sample, a, b.dialect.delimiter)
        })
    });
    let others = |chosen: u8| {
        let tried = readings.iter().filter(|(r, _)| r.dialect.delimiter != chosen && r.width > 1);
        tried.map(|(r, _)| of(r)).collect::<Vec<_>>()
    };
    let Some((reading, doubt)) = winner else {
        return unclear(sample, given, &plausible);
    };
    let mut doubts: Vec<Doubt> = doubt.iter().cloned().collect();
    doubts.extend(one_column(sample, reading));
    doubts.extend(spaces(reading));
    DialectChoice { reading: reading.clone(), doubts, others: others(reading.dialect.delimiter) }
}

/// The delimiters to try.
fn delimiters(sample: Sample<'_>, given: &Given) -> Vec<u8> {
    if let Some(delimiter) = given.delimiter {
        return vec![delimiter];
    }
    let all = USUAL.iter().chain(&RARE).copied();
    let taken = |d: u8| given.quote == Some(d) || given.escape == Some(d);
    all.filter(|d| !taken(*d) && memchr::memchr(*d, sample.bytes).is_some()).collect()
}

/// A description of the records with this delimiter.
fn of(reading: &Reading) -> String {
    format!(
        "'{}' gives {} in {} of {} records",
        option(reading.dialect.delimiter),
        counted(reading.width, "field"),
        reading.fitting(),
        reading.records()
    )
}

fn is_rare(reading: &Reading) -> bool {
    RARE.contains(&reading.dialect.delimiter)
}

/// Whether the records may have this dialect. If many records have another number of fields, their
/// values must support it.
fn is_plausible(r: &Reading) -> bool {
    let (records, fitting) = (r.records(), r.fitting());
    let enough = fitting > 1 || (records == 1 && !is_rare(r));
    let even = r.even >= 0.75 || (r.even >= 0.4 && (r.typed >= 0.3 || r.width >= 4));
    r.width > 1 && enough && even && r.stray < 0.7 && (!is_rare(r) || r.even >= 0.9)
}

/// Whether `a` is clearly better than `b`. Both are plausible.
fn is_better(a: &Reading, b: &Reading) -> bool {
    let usual = !is_rare(a) && is_rare(b);
    let as_even = a.even >= b.even - 0.05;
    let as_typed = a.typed >= b.typed - 0.1;
    // Quotes that have a meaning in only one of the dialects.
    let closes = a.stray + 0.3 <= b.stray && a.even >= b.even - 0.2;
    let types = as_even && a.typed >= b.typed + 0.25;
    let evens = a.even >= b.even + 0.2 && as_typed;
    closes || types || evens || (usual && as_even && as_typed)
}

/// No dialect is plausible, or several are. If no delimiter splits the lines, they are one column.
fn unclear(
    sample: Sample<'_>,
    given: &Given,
    plausible: &[&(Reading, Option<Doubt>)],
) -> DialectChoice {
    let comma = || {
        let delimiter = if given.quote == Some(b',') { b';' } else { b',' };
        best_quotes(sample, delimiter, given)
    };
    let Some((first, _)) = plausible.first() else {
        let (reading, doubt) = comma();
        let usual = USUAL.iter().any(|d| memchr::memchr(*d, sample.bytes).is_some());
        let why = "no delimiter gives the records the same number of fields".to_owned();
        let mut doubts: Vec<Doubt> = doubt.into_iter().collect();
        if usual && !(reading.width == 1 && reading.even > 0.9 && reading.fitting() > 1) {
            doubts.push(Doubt { what: "delimiter", why, candidates: Vec::new() });
        }
        doubts.extend(aligned(sample, &reading));
        return DialectChoice { reading, doubts, others: Vec::new() };
    };
    let why: Vec<String> = plausible.iter().map(|(reading, _)| of(reading)).collect();
    let candidate = |r: &Reading| Setting("delimiter", option(r.dialect.delimiter));
    let doubt = Doubt {
        what: "delimiter",
        why: why.join("; "),
        candidates: plausible.iter().map(|(reading, _)| candidate(reading)).collect(),
    };
    DialectChoice { reading: first.clone(), doubts: vec![doubt], others: Vec::new() }
}

/// A doubt if the lines may also be one column.
fn one_column(sample: Sample<'_>, reading: &Reading) -> Option<Doubt> {
    let rare = is_rare(reading);
    let even = reading.even >= 0.98 && reading.width > 2 && reading.records() >= 5;
    let lines = Reading::of(sample, ONE_VALUE, reading.dialect.quote, reading.dialect.escape);
    let values = lines.typed >= 0.9 && lines.width == 1 && !has_names(sample, reading);
    if reading.records() < 2 || (!values && (!rare || even)) {
        return None;
    }
    let candidate = |d: u8| Setting("delimiter", option(d));
    Some(Doubt {
        what: "delimiter",
        why: format!("{}; each line may as well be one value", of(reading)),
        candidates: vec![candidate(reading.dialect.delimiter), candidate(ONE_VALUE)],
    })
}

/// Whether the first record has a name for each field. Then the number of columns is certain: a
/// name does not contain a delimiter followed by a space.
fn has_names(sample: Sample<'_>, reading: &Reading) -> bool {
    let Some(first) = reading.rows.iter().find(|row| row.width == reading.width) else {
        return false;
    };
    let is_name = |kind: &CellKind| matches!(kind, CellKind::Text | CellKind::Code);
    let mut values = reading.values(sample, first).into_iter();
    !is_rare(reading)
        && first.kinds.iter().all(is_name)
        && values.all(|value| value.trim_ascii() == value)
}

/// Whether `a` explains the other delimiter: the first record does not have it, and elsewhere it
/// occurs only in numbers.
fn explains(sample: Sample<'_>, a: &Reading, other: u8) -> bool {
    let first = a.rows.iter().find(|row| !row.is_blank());
    let without = first
        .filter(|row| row.width == a.width)
        .is_some_and(|row| memchr::memchr(other, &sample.bytes[row.start..row.end]).is_none());
    without && in_numbers(sample, a, other)
}

/// Whether the other delimiter occurs only in numbers, like a decimal comma, and `a` splits nearly
/// all records evenly.
fn in_numbers(sample: Sample<'_>, a: &Reading, other: u8) -> bool {
    let has = |bytes: &[u8]| memchr::memchr(other, bytes).is_some();
    let stands = |row: &SampleRow| {
        let is_number = |i| row.kind(i).class() == Class::Number;
        let mut values = a.values(sample, row).into_iter().enumerate();
        values.all(|(i, value)| !has(&value) || is_number(i))
    };
    let mut rows = a.rows.iter().filter(|row| has(&sample.bytes[row.start..row.end]));
    a.even >= 0.98 && rows.all(stands)
}

/// A doubt if the lines have columns of a fixed width, which no delimiter splits: nearly all lines
/// have values with several spaces between them.
fn aligned(sample: Sample<'_>, reading: &Reading) -> Option<Doubt> {
    let has_gap = |row: &&SampleRow| {
        let line = sample.bytes[row.start..row.end].trim_ascii();
        memchr::memmem::find(line, b"  ").is_some()
    };
    let mut with = reading.rows.iter().filter(has_gap);
    let line = with.next()?.line;
    if reading.width != 1 || ((with.count() + 1) as f64) < 0.9 * reading.records() as f64 {
        return None;
    }
    let why = format!("from line {line} on, {FIXED_WIDTH}");
    Some(Doubt {
        what: "delimiter",
        why,
        candidates: vec![Setting("delimiter", option(ONE_VALUE))],
    })
}

/// The reading in which quotes may open after spaces, as in COPY.
fn spaced(
    sample: Sample<'_>,
    delimiter: u8,
    given: &Given,
    literal: &Reading,
) -> Option<(Reading, Option<Doubt>)> {
    let other = given.stray_quotes.is_some_and(|how| how != StrayQuotes::Copy);
    if other || given.escape.is_some() || delimiter == b' ' || literal.stray == 0.0 {
        return None;
    }
    let reading = Reading::spaced(sample, delimiter, b'"')?;
    let line = reading.rows.iter().find(|row| row.quoted.contains(&true) || row.filled > 0);
    let doubt = Doubt {
        what: "stray-quotes",
        why: format!(
            "from line {} on, spaces stand before quotes: COPY reads such quotes and keeps the \
             spaces",
            line.map_or(1, |row| row.line)
        ),
        candidates: vec![Setting("stray-quotes", "copy".into())],
    };
    Some((reading, given.stray_quotes.is_none().then_some(doubt)))
}

/// A doubt if several spaces may be one delimiter.
fn spaces(reading: &Reading) -> Option<Doubt> {
    let between = |row: &&SampleRow| {
        let seen = row.kinds.iter().zip(&row.quoted);
        let last = row.kinds.len().saturating_sub(1);
        seen.take(last).any(|(kind, quoted)| *kind == CellKind::Empty && !quoted)
    };
    let delimiter = reading.dialect.delimiter;
    let row = reading.rows.iter().filter(|_| delimiter == b' ').find(between)?;
    Some(Doubt {
        what: "delimiter",
        why: format!("line {} has spaces side by side, which may be one delimiter", row.line),
        candidates: vec![Setting("delimiter", " ".into())],
    })
}

/// The quote and the escape with which the records of a delimiter fit best.
fn best_quotes(sample: Sample<'_>, delimiter: u8, given: &Given) -> (Reading, Option<Doubt>) {
    let read = |quote: u8| {
        let escape = given.escape.unwrap_or(quote);
        let doubled = Reading::of(sample, delimiter, quote, escape);
        with_backslash(sample, given, doubled)
    };
    if let Some(quote) = given.quote {
        return read(quote);
    }
    let double = read(b'"');
    if let Some(spaced) = spaced(sample, delimiter, given, &double.0) {
        return spaced;
    }
    if delimiter == b'\'' || memchr::memchr(b'\'', sample.bytes).is_none() {
        return double;
    }
    let single = read(b'\'');
    let (d, s) = (&double.0, &single.0);
    if s.quoted == 0 || is_part_of_text(s) {
        return double;
    }
    let fits = s.even * (1.0 - s.stray) - d.even * (1.0 - d.stray);
    if fits > 0.2 || (fits > 0.0 && d.quoted == 0 && s.stray == 0.0) {
        return single;
    }
    // If many values have one kind of quotes, the other kind is part of values.
    if d.quoted > 10 * s.quoted || fits < -0.2 || (fits < 0.0 && d.quoted == 0) {
        return double;
    }
    if d.quoted == 0 && is_throughout(s) {
        return single;
    }
    let line = s.rows.iter().find(|row| row.quoted.contains(&true)).map_or(0, |row| row.line);
    let doubt = Doubt {
        what: "quote",
        why: format!("line {line} has a value between ', which may be quotes or part of it"),
        candidates: vec![Setting("quote", "'".into()), Setting("quote", "\"".into())],
    };
    (double.0, Some(doubt))
}

/// Whether apostrophes are parts of words: most fields that begin with one do not end with one.
fn is_part_of_text(s: &Reading) -> bool {
    s.quoted < s.rows.iter().filter(|row| row.stray).count() / 2
}

/// Whether some column is quoted in every record, including the first.
fn is_throughout(s: &Reading) -> bool {
    let rows = || s.rows.iter().filter(|row| row.width == s.width && !row.is_blank());
    let quoted = |i: usize| rows().all(|row| row.quoted.get(i) == Some(&true));
    rows().count() > 2 && (0..s.width).any(quoted)
}

/// Uses a backslash as the escape instead, if quotes are escaped like that.
fn with_backslash(sample: Sample<'_>, given: &Given, doubled: Reading) -> (Reading, Option<Doubt>) {
    let (delimiter, quote) = (doubled.dialect.delimiter, doubled.dialect.quote);
    let no_backslash = memchr::memchr(b'\\', sample.bytes).is_none();
    if given.escape.is_some() || no_backslash || delimiter == b'\\' || quote == b'\\' {
        return (doubled, None);
    }
    if memchr::memmem::find(sample.bytes, &[b'\\', quote]).is_some() {
        let escaped = Reading::of(sample, delimiter, quote, b'\\');
        let (worse, better) = (stray_rows(&doubled), stray_rows(&escaped));
        if better * 2 <= worse && worse > 0 && escaped.even >= doubled.even - 0.02 {
            let doubt = kept_backslash(sample, &escaped).map(|line| Doubt {
                what: "escape",
                why: format!(
                    "line {line} has a backslash before a character that is no quote: COPY keeps \
                     such a backslash, other programs drop it"
                ),
                candidates: vec![Setting("escape", "\\".into())],
            });
            return (escaped, doubt);
        }
    }
    match backslashes(sample, &doubled) {
        Some(line) => {
            let why = format!(
                "line {line} has two backslashes in a quoted value: one that is escaped, or two"
            );
            let candidates = vec![Setting("escape", "\\".into()), Setting("escape", option(quote))];
            (doubled, Some(Doubt { what: "escape", why, candidates }))
        }
        None => (doubled, None),
    }
}

/// The first line with an escape in quotes that escapes neither a quote nor itself.
fn kept_backslash(sample: Sample<'_>, escaped: &Reading) -> Option<u64> {
    let quote = escaped.dialect.quote;
    let keeps = |bytes: &[u8]| {
        let (mut open, mut at) = (false, 0);
        while let Some(&byte) = bytes.get(at) {
            if byte == quote {
                open = !open;
            } else if byte == b'\\' && open {
                at += 1;
                if bytes.get(at).is_some_and(|next| *next != quote && *next != b'\\') {
                    return true;
                }
            }
            at += 1;
        }
        false
    };
    let mut rows = escaped.rows.iter().filter(|row| row.quoted.contains(&true));
    rows.find(|row| keeps(&sample.bytes[row.start..row.end])).map(|row| row.line)
}

fn stray_rows(reading: &Reading) -> usize {
    reading.rows.iter().filter(|row| row.stray).count()
}

/// The first line with backslashes in quotes, if all of them are in pairs.
fn backslashes(sample: Sample<'_>, reading: &Reading) -> Option<u64> {
    let mut first = None;
    for row in reading.rows.iter().filter(|row| row.quoted.contains(&true)) {
        let bytes = &sample.bytes[row.start..row.end];
        if memchr::memchr(b'\\', bytes).is_none() {
            continue;
        }
        for (value, _) in reading.values(sample, row).iter().zip(&row.quoted).filter(|(_, q)| **q) {
            let mut runs = value.split(|c| *c != b'\\').filter(|run| !run.is_empty());
            if runs.clone().any(|run| run.len() % 2 == 1) {
                return None;
            }
            if runs.next().is_some() && first.is_none() {
                first = Some(row.line);
            }
        }
    }
    first
}
