//! Reading values of each type on one thread: nanoseconds a value, MB of text per second.
//!
//! usage: cargo run --release -p pgsluice-core --example types [rounds]
//!
//! Of the rounds the fastest counts: other work on the machine can only add time.
//! Before a figure is printed, all values were put and their bytes counted.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, clippy::disallowed_types)]

use pgsluice_core::shape::{Env, Type};
use pgsluice_core::sink::{PgCopySink, RowSink};
use pgsluice_core::types::{self, jsonb::JsonbBuilder};
use std::hint::black_box;
use std::time::Instant;

/// How many values a round puts.
const VALUES: usize = 20_000;

/// A small generator of its own: the same values on every machine.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state >> 24
}

fn payload(r: u64) -> String {
    format!(
        "{{\"push_id\": {}, \"size\": {}, \"ref\": \"refs/heads/main\", \"head\": \"{r:040x}\", \
         \"distinct\": true}}",
        r % 10_000_000_000,
        r % 9
    )
}

/// A type, a name for it, and how its values are written.
type FieldKind = (&'static str, Type, fn(u64) -> String);

const KINDS: [FieldKind; 14] = [
    ("bool", Type::Bool, |r| if r % 3 == 0 { "f" } else { "t" }.into()),
    ("int4", Type::Int4, |r| (r as i32 >> (r % 20)).to_string()),
    ("int8", Type::Int8, |r| (r % 40_000_000_000).to_string()),
    ("float8", Type::Float8, |r| format!("{}", r as f64 / 1e7)),
    ("float8 17 digits", Type::Float8, |r| format!("{}", (r as f64).sqrt())),
    ("numeric(12,2)", Type::Numeric((12 << 16 | 2) + 4), |r| {
        format!("{}.{:02}", r % 9_999_999, r % 100)
    }),
    ("numeric", Type::Numeric(-1), |r| format!("{}.{:02}", r % 9_999_999, r % 100)),
    ("text", Type::Text, |r| "abcdefghijklmnopqrstuvwx"[..(r % 24) as usize].into()),
    ("varchar(20)", Type::Varchar(Some(20)), |r| {
        "abcdefghijklmnopqrstuvwx"[..(r % 20) as usize].into()
    }),
    ("date", Type::Date, |r| format!("20{:02}-{:02}-{:02}", r % 99, r % 12 + 1, r % 28 + 1)),
    ("timestamptz", Type::TimestampTz(-1), |r| {
        format!(
            "2024-{:02}-{:02} {:02}:{:02}:{:02}+00",
            r % 12 + 1,
            r % 28 + 1,
            r % 24,
            r % 59,
            r % 57
        )
    }),
    ("timestamptz .f Z", Type::TimestampTz(-1), |r| {
        format!(
            "2024-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            r % 12 + 1,
            r % 28 + 1,
            r % 24,
            r % 59,
            r % 57,
            r % 1_000_000
        )
    }),
    ("uuid", Type::Uuid, |r| format!("{:08x}-9c0b-4ef8-bb6d-{:012x}", r as u32, r)),
    ("jsonb", Type::Jsonb, payload),
];

/// The value's binary form rather than its text.
fn jsonb_on_disk(rounds: usize) {
    let mut state = 7;
    let values: Vec<String> = (0..VALUES).map(|_| payload(random(&mut state))).collect();
    let text: usize = values.iter().map(String::len).sum();
    let mut builder = JsonbBuilder::default();
    let mut round = || {
        let start = Instant::now();
        for value in &values {
            let made = builder.build(black_box(value.as_bytes())).expect("a good value");
            assert!(black_box(made).len() > value.len() / 2);
        }
        start.elapsed()
    };
    let fastest = (0..rounds).map(|_| round()).min().expect("a round").as_secs_f64();
    println!(
        "{:<18} {:>7.1} ns a value  {:>7.0} MB/s",
        "jsonb on disk",
        fastest * 1e9 / VALUES as f64,
        text as f64 / 1e6 / fastest
    );
}

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(100, |n| n.parse().expect("a number"));
    let env = Env { utc: true, ..Env::default() };
    jsonb_on_disk(rounds);
    for (name, ty, write) in KINDS {
        let mut state = 7;
        let values: Vec<String> = (0..VALUES).map(|_| write(random(&mut state))).collect();
        let text: usize = values.iter().map(String::len).sum();
        let mut sink = PgCopySink::new(1);
        let mut round = || {
            sink.clear();
            let start = Instant::now();
            for value in &values {
                sink.begin();
                types::put(&ty, black_box(value.as_bytes()), &env, &mut sink)
                    .expect("a good value");
                sink.end();
            }
            let time = start.elapsed();
            assert!(sink.bytes().len() > 7 * VALUES - 1);
            time
        };
        let fastest = (0..rounds).map(|_| round()).min().expect("a round").as_secs_f64();
        println!(
            "{name:<18} {:>7.1} ns a value  {:>7.0} MB/s",
            fastest * 1e9 / VALUES as f64,
            text as f64 / 1e6 / fastest
        );
    }
}
