//! Values of `jsonb`: they are sent as text, in text and in binary COPY, and only the server checks
//! them.

use crate::common::{on_each_major, World};
use std::fs;

const TABLE: &str = "DROP TABLE IF EXISTS t; CREATE TABLE t (id int, j jsonb, n int)";

/// Values that `jsonb` refuses, each for a different reason.
const BAD: [&str; 12] = [
    "",
    "{\"a\":}",
    "{\"a\":1,}",
    "[1 2]",
    "nul",
    "01",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\x\"",
    "\"a\nb\"",
    "{\"a\":1e999999}",
    "{\"a\":\"b",
];

/// Values that `jsonb` accepts and stores in another form than they are written.
const GOOD: [&str; 8] = [
    "{\"a\":1,\"b\":2,\"a\":[3]}",
    "{\"bb\":1,\"a\":{\"z\":0.10,\"y\":-0.0,\"z\":1E+2}}",
    "[1.50, 12345678901234567890.12345678901234567890]",
    "\"\\ud83d\\ude00 \\u00e4 \\/\\n\"",
    " { \"\" : null } ",
    "{\"a\\u0062\":1,\"ab\":2}",
    "1e400",
    "[[[[[[[[[[[[1]]]]]]]]]]]]",
];

fn record(id: usize, json: &str) -> String {
    format!("{id},\"{}\",{}\n", json.replace('"', "\"\""), id * 3)
}

/// `bad` between other records, which do not fit into one chunk. Their values contain line ends.
fn around(bad: &str) -> Vec<u8> {
    let good = |id| record(id, &format!("{{\"k\":\n\"{}\"}}", "x".repeat(id % 90)));
    let before: String = (0..9_000).map(good).collect();
    let after: String = (9_000..11_000).map(good).collect();
    (before + &record(77, bad) + &after).into_bytes()
}

/// If `jsonb` refuses a value, the load fails with stock COPY's message and with the line, record
/// and column of the value.
#[test]
fn what_jsonb_refuses_is_the_servers_error_at_its_place() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        world.sql(TABLE);
        for bad in BAD {
            let bytes = around(bad);
            let stock = world.stock("COPY t FROM STDIN (FORMAT csv)", &bytes);
            let (message, context) = stock.expect_err(bad);
            let at = context.split_once("COPY t, ").expect("a place").1;
            let line = at.split_once(", column j").expect("a line").0;
            let path = world.file("bad.csv", &bytes);
            for method in ["copy-binary", "lanes"] {
                let said = world.load(&[&path, "--table", "t", "--method", method]);
                let said = said.expect_err(bad);
                let place = format!("bad.csv, {line}, record 9001, ");
                for part in [place.as_str(), &message, "column j"] {
                    assert!(said.contains(part), "{method} {bad:?}: {part}: {said}");
                }
                assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{method} {bad:?}");
            }
        }
    });
}

/// Values that `jsonb` refuses are rejected. The others are loaded by binary COPY and equal those
/// of stock COPY.
#[test]
fn jsonb_is_stored_as_by_stock_copy_and_what_it_refuses_is_rejected() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        // Nested more deeply than the loader itself reads.
        let deep = "[".repeat(300) + &"]".repeat(300);
        let all = GOOD.into_iter().chain([deep.as_str()]).cycle().take(4_000);
        let good: String = all.enumerate().map(|(i, json)| record(i, json)).collect();
        world.sql(&format!("{TABLE}; DROP TABLE IF EXISTS s; CREATE TABLE s (LIKE t)"));
        world.stock("COPY s FROM STDIN (FORMAT csv)", good.as_bytes()).unwrap();
        let bad: String = BAD.iter().map(|json| record(5, json)).collect();
        let rejects = world.path("rejects.csv");
        for (method, bytes, rejected) in [
            ("copy-binary", good.clone(), ""),
            ("lanes", good.clone(), ""),
            ("copy-binary", good.clone() + &bad, bad.as_str()),
            ("lanes", bad.clone() + &good, bad.as_str()),
        ] {
            world.sql("TRUNCATE t");
            let _ = fs::remove_file(&rejects);
            let _ = fs::remove_file(format!("{rejects}.jsonl"));
            let path = world.file("good.csv", bytes.as_bytes());
            let with = ["--method", method, "--on-error", "reject", "--reject-file", &rejects];
            let summary = world.load(&[&[&path, "--table", "t"][..], &with].concat()).unwrap();
            assert_eq!(summary["rejected"], if rejected.is_empty() { 0 } else { BAD.len() });
            assert_eq!(fs::read_to_string(&rejects).unwrap_or_default(), rejected);
            assert_eq!(world.difference("s", "t"), "", "{method}");
            if rejected.is_empty() {
                assert_eq!(
                    summary["chunks_as_is"], 0,
                    "{method}: all rows went in the binary form"
                );
            }
        }
    });
}
