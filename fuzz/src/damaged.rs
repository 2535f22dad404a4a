//! CSV files of good records with damaged lines among them.

use crate::rng::Random;
use pgsluice_core::scan::{Dialect, StrayQuotes};

/// A file, and what is damaged in it.
#[derive(Debug)]
pub struct Damaged {
    /// the whole file
    pub data: Vec<u8>,
    /// its good records alone
    pub good: Vec<u8>,
    /// the damaged lines alone
    pub bad: Vec<u8>,
    /// how many good records there are
    pub records: usize,
    /// where each damaged line begins and ends
    pub places: Vec<(usize, usize)>,
    /// stray quotes are errors
    pub dialect: Dialect,
}

impl Damaged {
    /// A file of up to `records` records, of which every `every`th or so is damaged.
    pub fn new(rng: &mut Random, records: usize, every: usize) -> Damaged {
        let dialect = Dialect { stray_quotes: StrayQuotes::Error, ..Dialect::csv() };
        let mut file = Damaged {
            data: vec![],
            good: vec![],
            bad: vec![],
            records: 0,
            places: vec![],
            dialect,
        };
        let eol = rng.pick(&["\n", "\r\n", "\r"]);
        for _ in 0..1 + rng.below(records) {
            if rng.once_in(every) {
                let line = damaged(rng).to_owned() + eol;
                let start = file.data.len();
                file.data.extend_from_slice(line.as_bytes());
                file.bad.extend_from_slice(line.as_bytes());
                file.places.push((start, file.data.len()));
            } else {
                let record = [good(rng), good(rng), good(rng)].join(",") + eol;
                file.data.extend_from_slice(record.as_bytes());
                file.good.extend_from_slice(record.as_bytes());
                file.records += 1;
            }
        }
        file
    }
}

/// A line with stray quotes. A letter follows the first of them, so that it is never the one
/// that an open quote before it waits for.
fn damaged(rng: &mut Random) -> &'static str {
    rng.pick(&[
        "5,x\"x,y",
        "5\"x,\"a, b\",y",
        "5,\"abc\"def,y",
        "5,\"abc,y",
        "\"abc,x,y",
        "5,y,\"abc",
        "5,\"H. \\\"B\\\" E\",y",
        "5, \"USA\",y",
        "5,x\"x,\"a\"b",
        "a\"b\"c\"d,x,y",
    ])
}

/// A field; quoted, it begins with a letter: an open quote before it would take another
/// character for what follows the end of its field.
fn good(rng: &mut Random) -> String {
    let length = rng.below(6);
    if rng.once_in(2) {
        return "abcde"[..length].into();
    }
    let parts = ["a", ",", "\"\"", "\n", "\r\n", "\r", "b c", "\\", " "];
    let mut value = String::new();
    for i in 0..length {
        value.push_str(if i == 0 { "q" } else { rng.pick(&parts) });
    }
    format!("\"{value}\"")
}
