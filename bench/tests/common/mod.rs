//! Results made by hand, for the tests that need no server.

use std::collections::BTreeMap;

use pgsluice_bench::checksum::Checksum;
use pgsluice_bench::definition::{By, Durability, PageCache, Published};
use pgsluice_bench::environment::Environment;
use pgsluice_bench::result::{
    Answer, DataResult, MethodResult, MethodStatus, Parameters, PhaseTime, Run, SuiteResult, SCHEMA,
};
use pgsluice_bench::summary;

/// A method with a run for each of these seconds.
pub fn method(name: &str, by: By, rows: u64, seconds: &[f64]) -> MethodResult {
    let runs = seconds.iter().enumerate().map(|(i, s)| run(i as u32, *s, rows)).collect();
    MethodResult {
        name: name.to_owned(),
        title: format!("Title of {name} <b>&</b>"),
        by,
        durability: Durability::Kept,
        gives_up: Vec::new(),
        settings: BTreeMap::new(),
        data: "votes".to_owned(),
        of_rows: rows,
        rows,
        bytes: rows * 22,
        sampled: false,
        against: Some("copy".to_owned()),
        published_seconds: Some(67.799),
        published_rows_per_second: None,
        published_note: None,
        status: if seconds.is_empty() { MethodStatus::Unavailable } else { MethodStatus::Ok },
        message: seconds.is_empty().then(|| "no such program".to_owned()),
        versions: BTreeMap::new(),
        runs,
        seconds: None,
        rows_per_second: None,
        extrapolated_seconds: None,
        ratio: None,
    }
}

fn run(round: u32, seconds: f64, rows: u64) -> Run {
    let phase =
        |name: &str, share: f64| PhaseTime { name: name.to_owned(), seconds: share * seconds };
    Run {
        round,
        seconds,
        whole_seconds: 3.0 * seconds,
        phases: vec![phase("copy", 0.6), phase("index", 0.4)],
        wal_bytes: Some(rows * 40 + (seconds * 1e6) as u64),
        table_bytes: Some(rows * 60),
        index_bytes: Some(rows * 30),
        server_cpu_seconds: Some(seconds * 0.9),
        client_cpu_seconds: 0.01,
        server_peak_bytes: Some(100_000_000 + rows),
        client_peak_bytes: 9_000_000,
        written_bytes: Some(rows * 80),
        floor_seconds: Some(0.1),
        notes: Vec::new(),
        figures: BTreeMap::from([("MB_per_second".to_owned(), 100.0 / seconds)]),
        answer: Answer {
            checksum: Checksum { rows, sum: 5 },
            compared: "values".to_owned(),
            indexes: BTreeMap::new(),
            questions: BTreeMap::new(),
            definitions: BTreeMap::new(),
        },
        after_crash: None,
    }
}

/// A complete suite of these methods.
pub fn suite(name: &str, rows: &[u64], methods: Vec<MethodResult>) -> SuiteResult {
    let mut result = SuiteResult {
        schema: SCHEMA,
        suite: name.to_owned(),
        title: format!("Suite {name}"),
        about: "What it is about.".to_owned(),
        left_out: None,
        published: Some(Published {
            title: "An article".to_owned(),
            machine: "a machine".to_owned(),
            rows: 7_500_000,
            figures: "single runs".to_owned(),
        }),
        started: "2026-01-01T00:00:00Z".to_owned(),
        updated: "2026-01-01T00:00:00Z".to_owned(),
        complete: true,
        environment: Environment { postgres: "15.20".to_owned(), ..Environment::default() },
        parameters: Parameters {
            profile: "full".to_owned(),
            rows: rows.to_vec(),
            once_from: None,
            runs: 3,
            seed: 1,
            lanes: 2,
            page_cache: PageCache::Warm,
            settings: BTreeMap::new(),
            against: None,
            only: Vec::new(),
        },
        data: vec![DataResult {
            name: "votes".to_owned(),
            rows: rows[0],
            bytes: rows[0] * 22,
            derived: BTreeMap::new(),
            text_checksum: Checksum { rows: rows[0], sum: 5 },
            typed_checksum: Checksum { rows: rows[0], sum: 5 },
        }],
        methods,
        growth: Vec::new(),
        demands: Vec::new(),
        peak_disk_bytes: 0,
        departs: Some(Vec::new()),
    };
    summary::summarise(&mut result, false);
    result
}

/// Stock, ours and a rival at one row count; `slower` stretches ours.
pub fn votes(slower: f64) -> SuiteResult {
    let ours: Vec<f64> = [1.1, 1.0, 1.2].iter().map(|s| s * slower).collect();
    let mut unlogged = method("unlogged", By::Stock, 1_000_000, &[0.5, 0.55, 0.6]);
    unlogged.durability = Durability::WholeTable;
    let methods = vec![
        method("copy", By::Stock, 1_000_000, &[2.0, 2.1, 2.5]),
        unlogged,
        method("ours", By::Pgsluice, 1_000_000, &ours),
        method("rival", By::Rival, 1_000_000, &[0.9, 0.8, 1.0]),
        method("absent", By::Rival, 1_000_000, &[]),
    ];
    suite("votes", &[1_000_000], methods)
}

/// Two methods at three row counts.
pub fn scaling() -> SuiteResult {
    let rows = [1_000_000, 2_000_000, 4_000_000];
    let at = |name: &str, by: By, factor: f64| -> Vec<MethodResult> {
        rows.iter().map(|n| method(name, by, *n, &[factor * *n as f64 / 1e6])).collect()
    };
    let methods = [at("copy", By::Stock, 2.0), at("ours", By::Pgsluice, 1.0)].concat();
    suite("scaling", &rows, methods)
}
