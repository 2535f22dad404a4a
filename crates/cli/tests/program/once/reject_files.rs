//! Reject files of loads that commit in pieces: long records, trailers, and names that are in use.

use super::rejects::{load, mixed};
use super::world;
use std::fs;

/// A record that is longer than what is held comes in pieces, and its COPY is open until the last
/// one: no commit comes before that, whether the record is loaded or rejected.
#[test]
fn long_records_are_loaded_or_rejected_whole() {
    let mut world = world();
    let (mut bytes, mut bad) = mixed(0, 20_000);
    let text = "long, \n".repeat(900_000);
    for i in 0..4 {
        let key = if i == 2 { "x2".into() } else { format!("{}", 100_000 + i) };
        let long = format!("{key},\"{text}\"\n");
        let (more, worse) = mixed(30_000 + i * 10_000, 10_000);
        bytes.extend([long.as_bytes(), more.as_slice()].concat());
        bad.extend((i == 2).then_some(long));
        bad.extend(worse);
    }
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let summary = load(&world, &path, &rejects, "none", &["--commit-every", "1MB"]).unwrap();
    assert!(summary["transactions"].as_u64().unwrap() > 4, "{summary}");
    assert_eq!(summary["rejected"], bad.len(), "{summary}");
    let records = fs::read_to_string(&rejects).unwrap();
    assert!(records == bad.concat(), "{} of {} bytes", records.len(), bad.concat().len());
    let long = "SELECT count(*) || ' ' || sum(length(b)) FROM t WHERE length(b) > 1000";
    assert_eq!(world.sql(long), format!("3 {}", 3 * text.len()));
    let rows = 60_004 - bad.len();
    let sums = "SELECT sum(read) || ' ' || sum(loaded) || ' ' || sum(rejected) \
        FROM pgsluice_loads.commits";
    assert_eq!(world.sql(sums), format!("60004 {rows} {}", bad.len()));
    assert_eq!(world.sql("SELECT count(*) FROM t"), rows.to_string());
}
