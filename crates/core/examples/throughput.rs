//! The core alone on one thread: a file in memory to PGCOPY bytes in memory.
//!
//! usage: cargo run --release -p pgsluice-core --example throughput [votes|events|text|all] [MB] [rounds]
//!
//! Prints MB of input per second, and the ratios to `memcpy` of the same bytes,
//! to counting their newlines, and to `wc -l` of the same bytes in a file, all
//! in the same run. Before a figure is
//! printed the answer is checked: rows, length and checksum of every round, and
//! the first round's bytes against the byte-by-byte scanner's.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use pgsluice_core::row;
use pgsluice_core::scan::{valid_utf8, Dialect, Eol, Next, Record, Scanner, Splitter};
use pgsluice_core::shape::{Column, Env, RowShape, Type};
use pgsluice_core::sink::PgCopySink;

/// What the loader reads at a time.
const CHUNK: usize = 1 << 20;

/// The median time of `rounds` runs.
fn median(rounds: usize, mut run: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// A small generator of its own: the same file on every machine.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state >> 33
}

/// `username,link,score`: about 22 bytes a row.
fn votes(size: usize) -> Vec<u8> {
    let (mut out, mut state) = (Vec::with_capacity(size + 64), 1);
    while out.len() < size {
        let user = random(&mut state) % 30_000;
        let name = "abcdefghijklmnop".get(..3 + (user % 9) as usize).unwrap();
        let link = random(&mut state) % 2_000_000;
        let score = if random(&mut state).is_multiple_of(4) { -1 } else { 1 };
        out.extend_from_slice(format!("{name}{user},t3_{link:x},{score}\n").as_bytes());
    }
    out
}

/// The same in text format, every eighth score NULL, every eighth link escaped.
fn text(size: usize) -> Vec<u8> {
    let (votes, mut out, mut state) = (votes(size), Vec::with_capacity(size + 64), 3);
    for line in votes.split_inclusive(|b| *b == b'\n') {
        let [user, link, score] =
            line.splitn(3, |b| *b == b',').collect::<Vec<_>>().try_into().expect("three fields");
        let dice = random(&mut state);
        out.extend_from_slice(user);
        out.extend_from_slice(if dice.is_multiple_of(8) { b"\ta\\tb" } else { b"\t" });
        out.extend_from_slice(link);
        out.push(b'\t');
        out.extend_from_slice(if (dice / 8).is_multiple_of(8) { b"\\N\n" } else { score });
    }
    out
}

/// Events as of GitHub's archive: about 250 bytes a row, half of them JSON.
fn events(size: usize) -> Vec<u8> {
    let kinds = ["PushEvent", "WatchEvent", "PullRequestEvent", "IssueCommentEvent"];
    let (mut out, mut state) = (Vec::with_capacity(size + 512), 2);
    let mut id = 30_000_000_000_u64;
    while out.len() < size {
        let kind = kinds[(random(&mut state) % 4) as usize];
        let (actor, repo) = (random(&mut state) % 9_000_000, random(&mut state) % 90_000_000);
        let (second, sha) = (id / 7 % 86_400, random(&mut state) * 0x1_0000_0001);
        let payload = format!(
            "{{\"\"push_id\"\": {}, \"\"size\"\": {}, \"\"ref\"\": \"\"refs/heads/main\"\", \
             \"\"head\"\": \"\"{sha:040x}\"\", \"\"distinct\"\": true}}",
            id + 17,
            sha % 9,
        );
        let line = format!(
            "{id},{kind},{actor},user{actor},{repo},owner{}/repo-{repo},{},2024-03-{:02} \
             {:02}:{:02}:{:02}+00,\"{payload}\"\n",
            repo % 1000,
            if sha % 16 == 0 { "f" } else { "t" },
            1 + id % 28,
            second / 3600,
            second / 60 % 60,
            second % 60,
        );
        out.extend_from_slice(line.as_bytes());
        id += 1 + sha % 5;
    }
    out
}

fn shape(columns: &[(&str, Type)]) -> RowShape {
    let column = |(i, (name, ty)): (usize, &(&str, Type))| Column::new(name, ty.clone(), i);
    RowShape {
        columns: columns.iter().enumerate().map(column).collect(),
        fields: columns.len(),
        env: Env { utc: true, ..Env::default() },
    }
}

/// Rows, bytes and a checksum of all that was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Made {
    rows: u64,
    bytes: u64,
    sum: u64,
}

impl Made {
    /// One multiplication for each 8 bytes: the order of bytes counts.
    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.sum = (self.sum ^ u64::from_le_bytes(padded)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
}

/// Encodes the whole file in chunks; `each` is given every chunk's rows.
fn encode(
    shape: &RowShape,
    data: &[u8],
    dialect: &Dialect,
    sink: &mut PgCopySink,
    naive: bool,
    mut each: impl FnMut(u64, &[u8]),
) {
    let (mut record, mut eol) = (Record::default(), Eol::Unknown);
    let mut start = 0;
    while start < data.len() {
        let end = data.len().min(start + CHUNK);
        let chunk = &data[start..end];
        let mut scanner = Scanner::new(chunk, end == data.len(), dialect, eol);
        valid_utf8(chunk).expect("the file is valid");
        let mut rows = 0;
        loop {
            let next =
                if naive { scanner.next_naive(&mut record) } else { scanner.next(&mut record) };
            if next.expect("the file is well formed") != Next::Record {
                break;
            }
            row::put(shape, chunk, &record, sink).expect("every value can be read");
            rows += 1;
        }
        each(rows, sink.bytes());
        sink.clear();
        eol = scanner.eol();
        start += scanner.position();
    }
}

fn measure(name: &str, data: &[u8], dialect: &Dialect, shape: &RowShape, rounds: usize) {
    let mut sink = PgCopySink::new(shape.columns.len());
    let mut checked = |naive| {
        let mut made = Made::default();
        encode(shape, data, dialect, &mut sink, naive, |rows, bytes| {
            made.rows += rows;
            made.add(bytes);
        });
        made
    };
    let expected = checked(true);
    assert_eq!(checked(false), expected, "the two scanners differ");
    let newlines = bytecount(data);
    assert_eq!(expected.rows, newlines, "one row for each line");

    let (mut target, mut found) = (vec![0; data.len()], (0, 0));
    target.copy_from_slice(data);
    let copied = median(rounds, || black_box(&mut target).copy_from_slice(black_box(data)));
    let counted = median(rounds, || assert_eq!(bytecount(black_box(data)), newlines));
    let split = median(rounds, || {
        let mut splitter = Splitter::new(dialect, Eol::Unknown);
        let cuts = black_box(data).chunks(CHUNK).map(|block| splitter.feed(block));
        assert_eq!(cuts.last().map(|c| c.lines), Some(newlines));
    });
    let scanned = median(rounds, || {
        let mut scanner = Scanner::new(black_box(data), true, dialect, Eol::Unknown);
        let (mut record, mut rows) = (Record::default(), 0);
        while scanner.next(&mut record) == Ok(Next::Record) {
            rows += 1;
        }
        assert_eq!(rows, newlines);
    });
    let encoded = median(rounds, || {
        found = (0, 0);
        encode(shape, black_box(data), dialect, &mut sink, false, |rows, bytes| {
            found.0 += rows;
            found.1 += black_box(bytes).len() as u64;
        });
        assert_eq!(found, (expected.rows, expected.bytes));
    });
    let by_wc = wc(data, newlines, rounds);
    let rate = |time: Duration| data.len() as f64 / 1e6 / time.as_secs_f64();
    println!(
        "{name}: {} rows, {:.1} bytes a row, PGCOPY sum {:016x}",
        expected.rows,
        data.len() as f64 / expected.rows as f64,
        expected.sum
    );
    for (what, time) in [
        ("memcpy", copied),
        ("newlines", counted),
        ("wc -l", by_wc),
        ("split", split),
        ("scan", scanned),
        ("to PGCOPY", encoded),
    ] {
        println!(
            "  {what:<10} {:>8.0} MB/s  {:>6.1}x memcpy's time  {:>6.2}x newlines' time  {:>6.2}x wc -l's time",
            rate(time),
            time.as_secs_f64() / copied.as_secs_f64(),
            time.as_secs_f64() / counted.as_secs_f64(),
            time.as_secs_f64() / by_wc.as_secs_f64()
        );
    }
}

/// The median time of `wc -l` of the same bytes in a file that lies in the page cache.
fn wc(data: &[u8], newlines: u64, rounds: usize) -> Duration {
    let path = std::env::temp_dir().join(format!("throughput-{}", std::process::id()));
    std::fs::write(&path, data).expect("the temporary folder takes the file");
    let time = median(rounds, || {
        let output = Command::new("wc").arg("-l").arg(&path).output().expect("wc can be run");
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.split_whitespace().next().and_then(|n| n.parse().ok());
        assert_eq!(lines, Some(newlines), "wc says {text}");
    });
    std::fs::remove_file(&path).expect("the file is there");
    time
}

fn bytecount(data: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', data).count() as u64
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "all".into());
    let mut number = |or| arguments.next().map_or(or, |n| n.parse().expect("a number"));
    let (size, rounds) = (number(64) * 1_000_000, number(7));
    let columns = [("username", Type::Text), ("link", Type::Text), ("score", Type::Int4)];
    if what == "votes" || what == "all" {
        measure("votes", &votes(size), &Dialect::csv(), &shape(&columns), rounds);
    }
    if what == "text" || what == "all" {
        measure("text", &text(size), &Dialect::text(), &shape(&columns), rounds);
    }
    if what == "events" || what == "all" {
        let columns = [
            ("id", Type::Int8),
            ("type", Type::Text),
            ("actor_id", Type::Int8),
            ("actor_login", Type::Text),
            ("repo_id", Type::Int8),
            ("repo_name", Type::Text),
            ("public", Type::Bool),
            ("created_at", Type::TimestampTz(-1)),
            ("payload", Type::Jsonb),
        ];
        measure("events", &events(size), &Dialect::csv(), &shape(&columns), rounds);
    }
}
