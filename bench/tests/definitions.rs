//! The definitions, the published columns, the description of the JSON and the kept runs.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pgsluice_bench::definition::{By, Durability, MethodDefinition, Suite};
use pgsluice_bench::demand::Judged;
use pgsluice_bench::result::SuiteResult;
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn suite(name: &str) -> Suite {
    Suite::read(&folder("suites"), name).unwrap()
}

#[test]
fn every_definition_is_sound_and_honest() {
    let names = Suite::names(&folder("suites")).unwrap();
    let published = ["events", "lineitem", "rivals", "scaling", "tricks", "votes", "wide"];
    let demanding = ["copy", "index-curve", "indexes", "loader", "once", "small"];
    assert!(published.iter().chain(&demanding).all(|n| names.iter().any(|m| m == n)), "{names:?}");
    for name in names {
        let suite = suite(&name);
        assert!(suite.method.iter().any(|m| m.by == By::Pgsluice), "{name} has nothing of ours");
        for method in &suite.method {
            let label = format!("{name} {}", method.name);
            check_durability(&label, &suite, method);
            check_order(&label, method);
            let cut = method.step.iter().any(|s| s.each_lane.is_some()) && method.lanes != Some(1);
            let said = method.gives_up.iter().any(|words| words.contains("cutting of the file"));
            assert!(!cut || said, "{label}: the shares were there before");
        }
    }
    assert_eq!(suite("wide").data[0].columns.len(), 105);
}

/// Unlogged tables, a server that writes no WAL and commits that do not wait are named in the row.
fn check_durability(label: &str, suite: &Suite, method: &MethodDefinition) {
    let landing = method.setup.contains("landing") && method.table != "landing";
    let logged = landing || method.step.iter().any(|s| s.phase == "set logged");
    let unlogged = method.setup.contains("UNLOGGED") && !logged;
    assert!(!unlogged || method.durability == Durability::WholeTable, "{label}: unlogged");
    let setting = |name: &str| method.settings.get(name).or(suite.settings.get(name));
    let is = |name: &str, value: &str| setting(name).is_some_and(|v| v == value);
    let kept = method.durability == Durability::Kept;
    assert!(!is("wal_level", "minimal") || !kept, "{label}: no WAL");
    let hurried = is("synchronous_commit", "off")
        || method.texts().any(|text| text.contains("synchronous_commit"));
    assert!(!hurried || method.durability == Durability::LastCommits, "{label}: commits");
    for safety in ["fsync", "full_page_writes"] {
        assert!(setting(safety).is_none(), "{label}: {safety}");
    }
}

/// The extension keeps the order of the file: one COPY of it does not give that up.
fn check_order(label: &str, method: &MethodDefinition) {
    let has = |words: &str| method.texts().any(|text| text.contains(words));
    let ours = method.needs.iter().any(|need| need == "extension:pgsluice") && has("pgsluice.copy");
    let cut = method.step.iter().any(|s| s.each_lane.is_some());
    let said = method.gives_up.iter().any(|words| words.contains("order of the file"));
    assert!(!ours || cut || !said, "{label}: order");
}

/// The published seconds of a suite's methods, in their order.
fn published(name: &str) -> Vec<f64> {
    suite(name).method.iter().filter_map(|m| m.published_seconds).collect()
}

/// Each figure of the articles' tables stands at a method.
#[test]
fn the_published_columns_are_the_articles() {
    let votes = [67.799, 65.189, 66.406, 88.054, 34.219, 25.314, 51.810, 42.569, 36.634];
    assert_eq!(published("votes"), votes);
    assert_eq!(published("events"), [1017.0, 30.37, 3.91, 3.24, 1.29]);
    assert_eq!(published("tricks"), [80.883, 2.646, 59.296, 0.618, 8.396, 7.028]);
    assert_eq!(published("lineitem"), [444.0, 458.0]);
    let streams = suite("lineitem");
    let rates: Vec<f64> =
        streams.method.iter().filter_map(|m| m.published_rows_per_second).collect();
    assert_eq!(rates, [6_550_314.0, 6_756_856.0], "as the article prints them");
    let notes: Vec<String> =
        streams.method.iter().filter_map(|m| m.published_note.clone()).collect();
    assert!(notes[0].contains("662 MB/s") && notes[0].contains("8,474,700"), "{notes:?}");
    assert!(notes[1].contains("683 MB/s") && notes[1].contains("9,036,277"), "{notes:?}");
    assert!(streams.left_out.unwrap().contains("the suite `cluster` has several nodes"));
    let wal = suite("tricks").method.into_iter().find(|m| m.name == "set-logged").unwrap();
    assert_eq!(wal.published_note.unwrap(), "80 MB of WAL");
    let scaling = [1, 2, 5, 10, 20, 50, 100].map(|millions| millions * 1_000_000);
    assert_eq!(suite("scaling").rows.full, scaling);
}

/// The words between backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(|w| w.trim_end_matches("[]").to_owned()).collect()
}

/// The names and the description of each row of the tables in a text.
fn rows(text: &str) -> Vec<(BTreeSet<String>, BTreeSet<String>)> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    cells.map(|(names, rest)| (quoted(&format!("`{names}")), quoted(rest))).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

/// docs/benchmark.md has every field that is written, and no other.
#[test]
fn the_json_is_as_documented() {
    [common::votes(1.0), common::scaling()].into_iter().for_each(check_documented);
}

fn check_documented(mut result: SuiteResult) {
    let demand = r#"{"work": "growth", "method": "ours", "kind": "time-exponent", "must": 2.0}"#;
    result.demands = vec![Judged::new(serde_json::from_str(demand).unwrap(), &result)];
    let json = serde_json::to_value(&result).unwrap();
    let method = json["methods"].as_array().unwrap().iter().find(|m| m["name"] == "ours").unwrap();
    let page = fs::read_to_string(folder("../docs/benchmark.md")).unwrap();
    let (_, part) = page.split_once("## The JSON").unwrap();
    let (part, _) = part.split_once("## Figures in the README and in results.md").unwrap();
    let (top, part) = part.split_once("`methods[]`:").unwrap();
    let (methods, runs) = part.split_once("`runs[]`:").unwrap();
    for (text, written) in [(top, &json), (methods, method), (runs, &method["runs"][0])] {
        let rows = rows(text);
        let told: BTreeSet<String> = rows.iter().flat_map(|(names, _)| names).cloned().collect();
        assert_eq!(told, keys(written));
        let parts = ["published", "environment", "parameters", "data", "demands", "growth"];
        for name in parts.into_iter().chain(["seconds", "ratio", "answer"]) {
            let part = written.get(name).map(|v| v.get(0).unwrap_or(v)).filter(|v| v.is_object());
            let Some(part) = part else { continue };
            let (_, words) = rows.iter().find(|(names, _)| names.contains(name)).unwrap();
            assert!(keys(part).is_subset(words), "{name}: {:?} in {words:?}", keys(part));
        }
    }
}

/// One folder holds every suite as the published comparisons have it.
#[test]
fn a_full_run_of_every_suite_is_kept() {
    let names = Suite::names(&folder("suites")).unwrap();
    let kept: Vec<_> =
        fs::read_dir(folder("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let full = |name: &String| {
        kept.iter().any(|dir| {
            let result = SuiteResult::read(&dir.join(format!("{name}.json")));
            result.is_ok_and(|r| r.complete && r.parameters.profile == "full" && r.suite == *name)
        })
    };
    let missing: Vec<&String> = names.iter().filter(|name| !full(name)).collect();
    assert!(missing.is_empty(), "no folder has a whole run of {missing:?}");
}
