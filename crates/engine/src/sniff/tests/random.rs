//! Random tables in random dialects: either the detected dialect reads the table unchanged, or
//! there is a doubt.

use super::super::reading::Reading;
use super::super::*;

/// Pseudo-random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A random dialect.
#[derive(Clone, Copy, Debug)]
struct Written {
    delimiter: u8,
    quote: u8,
    escape: u8,
    all_quoted: bool,
    end: &'static str,
}

impl Written {
    fn random(random: &mut Random) -> Written {
        let quote = random.one(b"\"\"\"'");
        let escape = if random.below(3) == 0 { b'\\' } else { quote };
        Written {
            delimiter: random.one(b",;\t|"),
            quote,
            escape,
            all_quoted: random.below(3) == 0,
            end: random.one(&["\n", "\n", "\r\n"]),
        }
    }

    fn field(&self, value: &str, out: &mut String) {
        let (quote, escape) = (char::from(self.quote), char::from(self.escape));
        let special = [char::from(self.delimiter), quote, '\n', '\r', escape];
        if !self.all_quoted && !value.contains(special) && !value.is_empty() {
            out.push_str(value);
            return;
        }
        out.push(quote);
        for c in value.chars() {
            if c == quote || c == escape {
                out.push(escape);
            }
            out.push(c);
        }
        out.push(quote);
    }

    fn file(&self, rows: &[Vec<String>]) -> String {
        let mut out = String::new();
        for row in rows {
            for (i, value) in row.iter().enumerate() {
                if i > 0 {
                    out.push(char::from(self.delimiter));
                }
                self.field(value, &mut out);
            }
            out.push_str(self.end);
        }
        out
    }
}

const WORDS: [&str; 24] = [
    "apple",
    "Rome",
    "a b",
    "Men's shoes",
    "it's",
    "5\" pipe",
    "x,y",
    "a;b",
    "tab\there",
    "p|q",
    "two\nlines",
    "C:\\dir\\",
    "\\\\host\\x",
    "\"quoted\"",
    "'single'",
    "Doe, Jane",
    "10:30",
    "key: value",
    "",
    "z",
    "NA",
    "e^x",
    "#1",
    "long text, with; several | marks",
];

fn value(kind: usize, random: &mut Random) -> String {
    let n = random.below(9000);
    match kind {
        0 => format!("{n}"),
        1 => format!("{}.{}", n / 7, n % 100),
        2 => format!("20{:02}-{:02}-{:02}", n % 30, n % 12 + 1, n % 28 + 1),
        3 => random.one(&["true", "false"]).into(),
        4 => format!("{:02}:{:02}", n % 24, n % 60),
        5 => format!("{},{}", n / 10, n % 10),
        6 => format!("w{}", random.below(5)),
        _ => {
            let words: Vec<&str> = (0..=random.below(2)).map(|_| random.one(&WORDS)).collect();
            words.join(" ")
        }
    }
}

/// A random table: its rows, and whether the first is a header.
fn table(random: &mut Random) -> (Vec<Vec<String>>, bool) {
    let kinds: Vec<usize> = (0..2 + random.below(5)).map(|_| random.below(9)).collect();
    let header = random.below(2) == 0;
    let mut rows: Vec<Vec<String>> = Vec::new();
    if header {
        rows.push(
            (0..kinds.len())
                .map(|i| format!("{}_{i}", random.one(&["id", "name", "the day"])))
                .collect(),
        );
    }
    for _ in 0..12 + random.below(40) {
        rows.push(kinds.iter().map(|kind| value(*kind, random)).collect());
    }
    (rows, header)
}

/// Everything that is detected without a doubt is right.
#[test]
fn a_dialect_is_found_or_doubted_and_never_wrong() {
    let cases = std::env::var("PGSLUICE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(3000);
    let (mut found, mut wrong) = (0, Vec::new());
    for seed in 0..cases {
        let mut random = Random(seed);
        let written = Written::random(&mut random);
        let (rows, header) = table(&mut random);
        let file = written.file(&rows);
        let sniffed = sniff(file.as_bytes(), true, &Given::default());
        if !sniffed.doubts.is_empty() {
            continue;
        }
        found += 1;
        let sample = Sample { bytes: file.as_bytes(), whole: true, before: 0 };
        let reading = Reading::of(sample, sniffed.delimiter, sniffed.quote, sniffed.escape);
        let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
        let values = |row| reading.values(sample, row).into_iter().map(text).collect();
        let read: Vec<Vec<String>> = reading.rows.iter().map(values).collect();
        let is_header = (sniffed.head == Head::Names) == header;
        if !is_header || (sniffed.skip_lines, sniffed.skip_footer) != (0, 0) || read != rows {
            let what = (sniffed.delimiter, sniffed.quote, sniffed.escape, sniffed.head);
            wrong
                .push(format!("seed {seed}: {written:?}, found {what:?}, header {header}\n{file}"));
        }
    }
    let shown: Vec<&String> = wrong.iter().take(5).collect();
    assert!(wrong.is_empty(), "{} of {cases} are wrong: {shown:#?}", wrong.len());
    assert!(found * 3 > cases, "only {found} of {cases} were found");
}
