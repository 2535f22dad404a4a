//! A table of 105 columns of mixed types: page views of a web analytics service, in the shape of
//! ClickBench's `hits`, with some columns that may be NULL.

use super::rng::Rng;
use super::row::{push_date, push_hex, push_int, push_padded, push_time, RowWriter};
use std::fmt::Write;

pub(super) const BLOCK_ROWS: u64 = 1 << 11;

/// 2013-07-01 00:00:00 UTC, the month that the original covers.
const FIRST_SECOND: u64 = 1_372_636_800;
const SECONDS: u64 = 31 * 86_400;

/// The content of a column.
#[derive(Clone, Copy)]
enum Column {
    /// Any `bigint`.
    Id,
    /// A `bigint` key that ascends with the rows.
    Serial,
    /// An `integer` from 0 to a bound.
    Int(u64),
    /// A `smallint` from 0 to a bound.
    Small(u64),
    Bool,
    Stamp,
    Day,
    /// Words: short text, often empty.
    Title,
    Url,
    /// A fixed number of letters.
    Code,
    Float,
    Price,
    Uuid,
    Address,
    /// A `jsonb` object or NULL.
    Params,
    /// An `integer` that is NULL in most rows.
    Rare,
}

use Column::*;

/// Runs of columns: the beginning of their names, their number, their content.
const RUNS: [(&str, usize, Column); 30] = [
    ("watch_id", 1, Serial),
    ("java_enabled", 1, Small(1)),
    ("title", 1, Title),
    ("good_event", 1, Small(1)),
    ("event_time", 1, Stamp),
    ("event_date", 1, Day),
    ("counter_id", 1, Int(100_000)),
    ("client_address", 1, Address),
    ("region_id", 1, Int(6_000)),
    ("user_id", 1, Id),
    ("agent", 8, Small(120)),
    ("url", 1, Url),
    ("referer", 1, Url),
    ("is_refresh", 1, Bool),
    ("category", 6, Int(20_000)),
    ("resolution", 4, Small(2_560)),
    ("flash", 12, Small(15)),
    ("search_phrase", 1, Title),
    ("flag", 10, Bool),
    ("client_event_time", 1, Stamp),
    ("timing", 14, Int(60_000)),
    ("language", 3, Code),
    ("hash", 6, Id),
    ("session", 1, Uuid),
    ("price", 3, Price),
    ("score", 3, Float),
    ("tag", 8, Title),
    ("goal", 10, Rare),
    ("params", 1, Params),
    ("local_time", 1, Stamp),
];

const SITES: [&str; 6] = ["shop", "news", "forum", "wiki", "maps", "mail"];
const WORDS: [&str; 12] = [
    "red",
    "shoes",
    "cheap",
    "weather",
    "купить",
    "how to",
    "recipe",
    "news, today",
    "日本",
    "map",
    "\"best\"",
    "2013",
];

/// The table.
pub(super) fn ddl() -> String {
    let lines: Vec<String> = columns().map(|(name, c)| format!("    {name} {}", c.sql())).collect();
    format!("CREATE TABLE wide (\n{}\n);\n", lines.join(",\n"))
}

/// Every column's name and content.
fn columns() -> impl Iterator<Item = (String, Column)> {
    RUNS.iter().flat_map(|(name, count, column)| {
        (1..=*count).map(move |number| match count {
            1 => (name.to_string(), *column),
            _ => (format!("{name}_{number}"), *column),
        })
    })
}

impl Column {
    fn sql(self) -> &'static str {
        match self {
            Id | Serial => "bigint NOT NULL",
            Int(_) => "integer NOT NULL",
            Small(_) => "smallint NOT NULL",
            Bool => "boolean NOT NULL",
            Stamp => "timestamp NOT NULL",
            Day => "date NOT NULL",
            Title | Url => "text NOT NULL",
            Code => "char(5) NOT NULL",
            Float => "double precision NOT NULL",
            Price => "numeric(12,2) NOT NULL",
            Uuid => "uuid NOT NULL",
            Address => "inet NOT NULL",
            Params => "jsonb",
            Rare => "integer",
        }
    }

    fn write(self, rng: &mut Rng, number: u64, scratch: &mut Vec<u8>, row: &mut RowWriter) {
        scratch.clear();
        match self {
            Id => return row.int(rng.next() as i64),
            Serial => return row.int(number as i64 + 1),
            Int(most) | Small(most) => return row.int(small_mostly(rng, most)),
            Bool => return row.plain(if rng.chance(30) { b"t" } else { b"f" }),
            Stamp => push_time(scratch, FIRST_SECOND + rng.below(SECONDS), b' '),
            Day => push_date(scratch, (FIRST_SECOND + rng.below(SECONDS)) / 86_400),
            Title => return title(rng, scratch, row),
            Url => url(rng, scratch),
            Code => scratch
                .extend_from_slice(rng.pick(&["en-US", "de-DE", "ru", "ja-JP", "tr"]).as_bytes()),
            Float => float(rng, scratch),
            Price => price(rng, scratch),
            Uuid => uuid(rng, scratch),
            Address => address(rng, scratch),
            Params if rng.chance(70) => return row.null(),
            Params => return params(rng, scratch, row),
            Rare if rng.chance(85) => return row.null(),
            Rare => return row.int(rng.between(-1_000_000, 1_000_000)),
        }
        row.plain(scratch);
    }
}

pub(super) fn block(rng: &mut Rng, block: u64, rows: u64, row: &mut RowWriter) {
    let columns: Vec<Column> = columns().map(|(_, column)| column).collect();
    let mut scratch = Vec::with_capacity(256);
    for number in block * BLOCK_ROWS..block * BLOCK_ROWS + rows {
        for column in &columns {
            column.write(rng, number, &mut scratch, row);
        }
        row.end();
    }
}

/// Mostly 0, like most values of such columns in the original.
fn small_mostly(rng: &mut Rng, most: u64) -> i64 {
    if most > 1 && rng.chance(50) {
        0
    } else {
        rng.below(most + 1) as i64
    }
}

fn title(rng: &mut Rng, scratch: &mut Vec<u8>, row: &mut RowWriter) {
    if !rng.chance(60) {
        for number in 0..=rng.below(5) {
            if number > 0 {
                scratch.push(b' ');
            }
            scratch.extend_from_slice(rng.pick(&WORDS).as_bytes());
        }
    }
    row.text(scratch);
}

fn url(rng: &mut Rng, scratch: &mut Vec<u8>) {
    scratch.extend_from_slice(b"http://");
    scratch.extend_from_slice(rng.pick(&SITES).as_bytes());
    scratch.extend_from_slice(b".example/");
    push_hex(scratch, rng.next(), 1 + rng.below(12) as u32);
    scratch.extend_from_slice(b"?id=");
    push_int(scratch, rng.between(1, 10_000_000));
}

fn float(rng: &mut Rng, scratch: &mut Vec<u8>) {
    // Write digits instead of a float, so that nothing depends on the formatting of floats.
    push_int(scratch, rng.between(-1_000, 1_000));
    scratch.push(b'.');
    push_padded(scratch, rng.below(1_000_000), 6);
}

fn price(rng: &mut Rng, scratch: &mut Vec<u8>) {
    push_int(scratch, rng.between(0, 99_999));
    scratch.push(b'.');
    push_padded(scratch, rng.below(100), 2);
}

fn uuid(rng: &mut Rng, scratch: &mut Vec<u8>) {
    let (high, low) = (rng.next(), rng.next());
    for (value, digits) in [(high >> 32, 8), (high >> 16, 4), (high, 4), (low >> 48, 4), (low, 12)]
    {
        if !scratch.is_empty() {
            scratch.push(b'-');
        }
        push_hex(scratch, value, digits);
    }
}

fn address(rng: &mut Rng, scratch: &mut Vec<u8>) {
    let bits = rng.next();
    for byte in 0..4 {
        if byte > 0 {
            scratch.push(b'.');
        }
        push_int(scratch, (bits >> (8 * byte) & 255) as i64);
    }
}

fn params(rng: &mut Rng, scratch: &mut Vec<u8>, row: &mut RowWriter) {
    let mut text = String::from("{\"goods\":[");
    for number in 0..rng.below(4) {
        let comma = if number > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{{\"id\":{},\"count\":{}}}", rng.below(9_999), rng.below(9));
    }
    text.push_str("]}");
    scratch.extend_from_slice(text.as_bytes());
    row.text(scratch);
}

#[cfg(test)]
mod tests {
    use super::super::{Sample, SampleFormat, SampleTable};

    #[test]
    fn a_wide_row_has_105_columns() {
        assert_eq!(super::columns().count(), 105);
        let mut row = Vec::new();
        let sample =
            Sample { kind: SampleTable::Wide, rows: 1, seed: 1, format: SampleFormat::Text };
        sample.write(1, &mut row).unwrap();
        assert_eq!(row.iter().filter(|b| **b == b'\t').count(), 104);
    }
}
