//! Reports, comparison and the figures of the README, from results made by hand.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use pgsluice_bench::definition::{By, Durability, MethodDefinition, Suite};
use pgsluice_bench::demand::{Demand, DemandKind, Judged};
use pgsluice_bench::result::{MethodStatus, SuiteResult};
use pgsluice_bench::{estimate, losses, summary, whole};

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgsluice-bench")).args(arguments).output().unwrap()
}

fn keep(dir: &Path, results: &[SuiteResult]) {
    fs::create_dir_all(dir).unwrap();
    for result in results {
        result.write(&dir.join(format!("{}.json", result.suite))).unwrap();
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn markdown_has_published_measured_and_unlike_durability() {
    let dir = tempfile::tempdir().unwrap();
    let mut votes = common::votes(1.0);
    votes.methods[1].gives_up = vec!["order".to_owned(), "checks".to_owned()];
    votes.methods[1].settings.insert("wal_level".to_owned(), "minimal".to_owned());
    keep(dir.path(), &[votes]);
    assert!(program(&["report", dir.path().to_str().unwrap()]).status.success());
    let page = fs::read_to_string(dir.path().join("votes.md")).unwrap();
    assert!(page.contains("† of Title of copy <b>&</b> | – | order; checks |"), "{page}");
    assert!(page.contains("\n† unlike durability: "), "{page}");
    assert!(page.contains("settings wal_level = minimal. seconds by phase: copy 0.330"), "{page}");
    assert!(page.contains("- 3 interleaved rounds of all methods"), "{page}");
    assert!(
        page.contains("| 67.8 s for 7,500,000 rows | 2.10 (2.00 to 2.50) | 476,190 | 10 |"),
        "{page}"
    );
    assert!(page.contains("0.25 (0.24 to 0.26) † of Title of copy"), "{page}");
    assert!(page.contains("not available here: no such program"), "{page}");
    let losses = fs::read_to_string(dir.path().join("losses.md")).unwrap();
    assert!(losses.contains("Where pgsluice loses"), "{losses}");
}

#[test]
fn losses_come_from_the_data() {
    let found = losses::find(&[common::votes(1.0)]);
    let times: Vec<&str> =
        found.iter().filter(|l| l.what == "time").map(|l| l.theirs.as_str()).collect();
    assert_eq!(times.len(), 2, "{found:#?}");
    assert!(times[0].contains("unlogged") && times[1].contains("rival"), "{times:?}");
    assert!(found[0].note.contains("unlike durability"), "{:?}", found[0]);
    assert!((found[1].ratio - 1.1 / 0.9).abs() < 1e-9);

    let slow = losses::find(&[common::votes(3.0)]);
    assert!(slow.iter().any(|l| l.what == "CPU"), "{slow:#?}");
    let own = slow.iter().filter(|l| l.what == "time" && l.theirs.contains("of copy"));
    assert_eq!(own.count(), 1, "named twice: {slow:#?}");
    let mut fast = common::votes(0.1);
    fast.methods.retain(|m| m.status == MethodStatus::Ok);
    assert!(losses::find(&[fast]).is_empty());

    // What only a demand compares counts as well.
    let mut demanded = common::votes(3.0);
    demanded.methods.iter_mut().for_each(|m| m.against = None);
    let of_rival = |result: &SuiteResult| {
        let found = losses::find(std::slice::from_ref(result));
        found.iter().any(|l| l.what == "CPU" && l.theirs.contains("of rival"))
    };
    assert!(!of_rival(&demanded));
    let demand =
        r#"{"work": "load", "method": "ours", "against": "rival", "kind": "speedup", "must": 1.0}"#;
    let demand = serde_json::from_str(demand).unwrap();
    demanded.demands = vec![Judged::new(demand, &demanded)];
    assert!(of_rival(&demanded));
}

/// A method of ours that is faster because it promises less, or because a server has the extension, is
/// no excuse for one that is slower.
#[test]
fn a_loss_is_not_hidden_by_another_method_of_ours() {
    let mut votes = common::votes(1.0);
    let mut unlogged = common::method("ours-unlogged", By::Pgsluice, 1_000_000, &[0.1, 0.1, 0.1]);
    unlogged.durability = Durability::WholeTable;
    let mut extension = common::method("extension", By::Pgsluice, 1_000_000, &[0.7, 0.7, 0.7]);
    extension.versions.insert("extension:pgsluice".to_owned(), "0.1".to_owned());
    votes.methods.extend([unlogged, extension]);
    summary::summarise(&mut votes, false);
    let lost_in = |votes: &SuiteResult, ours: &str, theirs: &str| {
        let found = losses::find(std::slice::from_ref(votes));
        let of = |l: &&losses::Loss| l.what == "time" && l.theirs.contains(theirs);
        found.iter().filter(of).any(|l| l.ours.contains(&format!("of {ours} <b>")))
    };
    let lost = |ours: &str, theirs: &str| lost_in(&votes, ours, theirs);
    assert!(lost("ours", "of rival"), "the rival keeps the rows, our fastest does not");
    assert!(!lost("ours", "of unlogged"), "our own unlogged one is faster");
    assert!(lost("extension", "of unlogged") && !lost("extension", "of rival"));
    let mut keyed = votes.clone();
    let runs = keyed.methods.iter_mut().filter(|m| m.name == "extension").flat_map(|m| &mut m.runs);
    runs.for_each(|run| drop(run.answer.indexes.insert("pkey".to_owned(), "amcheck".to_owned())));
    assert!(!lost_in(&keyed, "extension", "of unlogged"), "with a key it is other work");
}

#[test]
fn compare_detects_a_planted_slowdown() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    keep(&dir.path().join("a"), &[common::votes(1.0), common::scaling()]);
    keep(&dir.path().join("same"), &[common::votes(1.05), common::scaling()]);
    keep(&dir.path().join("slow"), &[common::votes(1.3), common::scaling()]);
    let (a, same, slow) = (path("a"), path("same"), path("slow"));

    let output = program(&["compare", &a, &same]);
    assert!(output.status.success(), "{}", out(&output));
    assert!(out(&output).contains("10 compared, 1 not compared, 0 worse"), "{}", out(&output));
    let output = program(&["compare", &a, &slow]);
    assert_eq!(output.status.code(), Some(1));
    assert!(out(&output).contains("votes ours of 1,000,000 rows: 1.30 WORSE"), "{}", out(&output));
    assert!(out(&output).contains("1 worse"), "{}", out(&output));
    assert!(program(&["compare", &a, &slow, "--tolerance", "0.4"]).status.success());
    assert_eq!(program(&["compare", &a, &slow, "--relative"]).status.code(), Some(1));
    // A machine of half the speed: every time is twice as long, and no ratio another.
    let mut weak = common::votes(1.0);
    weak.methods.iter_mut().flat_map(|m| &mut m.runs).for_each(|run| run.seconds *= 2.0);
    summary::summarise(&mut weak, false);
    keep(&dir.path().join("weak"), &[weak]);
    let weak = dir.path().join("weak").display().to_string();
    assert_eq!(program(&["compare", &a, &weak]).status.code(), Some(1));
    let output = program(&["compare", &a, &weak, "--relative"]);
    assert!(output.status.success(), "{}", out(&output));
    assert!(out(&output).contains("copy of 1,000,000 rows: not compared: no counterpart"));
    let output = program(&["compare", &slow, &a]);
    assert!(output.status.success() && out(&output).contains("better"), "{}", out(&output));
}

#[test]
fn compare_refuses_unlike_durability_and_sees_failures() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = common::votes(0.5);
    other.methods[2].durability = Durability::WholeTable;
    other.methods[3].status = MethodStatus::Failed;
    other.methods[3].seconds = None;
    keep(&dir.path().join("a"), &[common::votes(1.0)]);
    keep(&dir.path().join("b"), &[other]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let output = program(&["compare", &path("a"), &path("b")]);
    let text = out(&output);
    assert!(
        text.contains(
            "ours of 1,000,000 rows: not compared: durability was kept and is whole-table"
        ),
        "{text}"
    );
    assert!(text.contains("rival of 1,000,000 rows: WORSE: fails now"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn figures_of_the_readme_follow_the_kept_run() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    keep(&runs.join("2026-01-01-old"), &[common::votes(5.0)]);
    keep(&runs.join("2026-02-01-new"), &[common::votes(1.0)]);
    let readme = dir.path().join("README.md");
    let text = "# Title\n\n<!-- bench: run suite=votes --><!-- /bench -->\n\
        <!-- bench: table suite=votes methods=copy,ours -->\nold\n<!-- /bench -->\n\
        It is <!-- bench: figure suite=votes method=ours of=speedup -->9.9<!-- /bench --> times as fast.\n";
    fs::write(&readme, text).unwrap();
    let arguments = |check: bool| {
        let mut all = vec!["readme", "--runs", runs.to_str().unwrap(), readme.to_str().unwrap()];
        all.extend(check.then_some("--check"));
        program(&all)
    };
    assert_eq!(arguments(true).status.code(), Some(1));
    assert!(arguments(false).status.success());
    let page = fs::read_to_string(&readme).unwrap();
    assert!(page.contains("of=speedup -->2.1<!-- /bench --> times as fast"), "{page}");
    assert!(page.contains("bench/runs/2026-02-01-new"), "{page}");
    assert!(page.contains("1.10 (1.00 to 1.20)") && !page.contains("old\n"), "{page}");
    assert!(arguments(true).status.success());

    fs::write(&readme, page.replace("1.10 (", "1.01 (")).unwrap();
    let output = arguments(true);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("figures differ"));
    fs::write(&readme, "<!-- bench: figure suite=votes method=nobody --><!-- /bench -->").unwrap();
    assert!(!arguments(true).status.success());
}

fn demand(kind: DemandKind, against: Option<&str>, must: f64, goal: f64) -> Judged {
    let demand = Demand {
        work: "votes".to_owned(),
        method: "ours".to_owned(),
        against: against.map(str::to_owned),
        kind,
        figure: (kind == DemandKind::Figure).then(|| "MB_per_second".to_owned()),
        must,
        must_on: [("18".to_owned(), must / 2.0)].into(),
        goal: Some(goal),
    };
    demand.validate().unwrap();
    Judged::new(demand, &common::votes(1.0))
}

#[test]
fn demands_are_judged_by_the_runs() {
    // Ours took 1.1, 1.0 and 1.2 s, copy 2.0, 2.1 and 2.5 s in the same rounds.
    let speedup = demand(DemandKind::Speedup, Some("copy"), 2.0, 3.0);
    let reached = speedup.reached.unwrap();
    assert!((reached.median - 2.5 / 1.2).abs() < 1e-9 && (reached.min - 2.0 / 1.1).abs() < 1e-9);
    assert_eq!((speedup.must_met, speedup.goal_met), (Some(true), Some(false)));
    assert_eq!(speedup.verdict(Some(2.0), speedup.must_met), "≥ 2.00x: met");
    assert_eq!(speedup.reached(), "2.08x (1.82x to 2.10x)");
    let ratio = demand(DemandKind::TimeRatio, Some("rival"), 1.1, 1.2);
    assert_eq!((ratio.must_met, ratio.goal_met), (Some(false), Some(false)), "{ratio:?}");
    let ratio = demand(DemandKind::TimeRatio, Some("rival"), 1.3, 0.7);
    assert_eq!(ratio.verdict(Some(1.3), ratio.must_met), "≤ 1.30: met");
    assert_eq!(ratio.goal_met, Some(false));
    let share = demand(DemandKind::Share, Some("rival"), 0.6, 0.9);
    assert_eq!((share.must_met, share.goal_met), (Some(true), Some(false)), "{share:?}");
    assert!(share.verdict(Some(0.6), share.must_met).contains("≥ 60 %: met"));
    let peak = demand(DemandKind::ClientPeak, None, 256.0, 8.0);
    assert_eq!((peak.must_met, peak.goal_met), (Some(true), Some(false)), "9 MB: {peak:?}");
    let rate = demand(DemandKind::MegabytesPerSecond, None, 20.0, 20.1);
    assert_eq!((rate.must_met, rate.goal_met), (Some(true), Some(false)), "22 MB in 1.1 s");
    let figure = demand(DemandKind::Figure, None, 90.0, 91.0);
    assert_eq!((figure.must_met, figure.goal_met), (Some(true), Some(false)), "{figure:?}");
    let unlike = demand(DemandKind::Speedup, Some("unlogged"), 0.1, 0.2);
    assert!(!unlike.same_durability && unlike.reached().ends_with(" †"));
    let nobody = demand(DemandKind::Speedup, Some("absent"), 0.1, 0.2);
    assert_eq!((nobody.must_met, nobody.reached().as_str()), (None, "–"));
    assert_eq!(nobody.verdict(Some(0.1), None), "≥ 0.10x: no figure");
    let wal = demand(DemandKind::WalRatio, Some("copy"), 1.0, 0.5);
    assert_eq!((wal.must_met, wal.goal_met), (Some(true), Some(false)), "40 bytes for each row");
}

#[test]
fn another_figure_is_asked_on_some_versions() {
    let asked = demand(DemandKind::Speedup, Some("copy"), 4.0, 5.0).demand;
    let mut on_18 = common::votes(1.0);
    on_18.environment.postgres = "18.4 (Debian 18.4-1)".to_owned();
    assert_eq!(Judged::new(asked.clone(), &common::votes(1.0)).must_met, Some(false));
    let judged = Judged::new(asked, &on_18);
    assert_eq!((judged.demand.must, judged.must_met), (2.0, Some(true)));
}

#[test]
fn growth_is_judged_through_all_row_counts() {
    let mut scaling = common::scaling();
    let demand = demand(DemandKind::TimeExponent, None, 1.01, 0.9).demand;
    let judged = Judged::new(demand.clone(), &scaling);
    assert_eq!((judged.must_met, judged.goal_met), (Some(true), Some(false)), "{judged:?}");
    assert_eq!(judged.verdict(Some(1.01), judged.must_met), "≤ 1.01: met");
    let largest = scaling.methods.iter_mut().filter(|m| m.of_rows == 4_000_000);
    largest.for_each(|m| m.status = MethodStatus::Failed);
    summary::summarise(&mut scaling, false);
    let judged = Judged::new(demand, &scaling);
    assert_eq!(judged.must_met, None, "the largest row count has no time: {judged:?}");
}

/// The real suite votes has 7.5 million rows, three rounds and more methods than these two.
fn part_of_votes() -> SuiteResult {
    let mut part = common::votes(1.0);
    part.parameters.only = vec!["copy-csv".to_owned(), "unlogged".to_owned()];
    part.parameters.runs = 2;
    part
}

#[test]
fn a_part_of_a_suite_says_so() {
    let dir = tempfile::tempdir().unwrap();
    // An old run does not say where it departs from its suite: it is compared with the current definition.
    let old = SuiteResult { departs: None, ..part_of_votes() };
    keep(dir.path(), &[old]);
    assert!(program(&["report", dir.path().to_str().unwrap()]).status.success());
    let page = fs::read_to_string(dir.path().join("votes.md")).unwrap();
    let words =
        "**Not the whole suite: 1,000,000 rows instead of 7,500,000; 2 rounds instead of 3; 2 of ";
    assert!(page.contains(words), "{page}");
    let mut more = SuiteResult { departs: None, ..part_of_votes() };
    more.parameters.runs = 4;
    keep(dir.path(), &[more]);
    assert!(program(&["report", dir.path().to_str().unwrap()]).status.success());
    let page = fs::read_to_string(dir.path().join("votes.md")).unwrap();
    let words = "**Not the whole suite: 1,000,000 rows instead of 7,500,000; 2 of ";
    assert!(page.contains(words), "more rounds leave nothing out: {page}");
    let whole = SuiteResult { departs: Some(Vec::new()), ..part_of_votes() };
    keep(dir.path(), &[whole]);
    assert!(program(&["report", dir.path().to_str().unwrap()]).status.success());
    let page = fs::read_to_string(dir.path().join("votes.md")).unwrap();
    assert!(!page.contains("Not the whole suite"), "what the run has kept counts: {page}");
    let mut grown = SuiteResult { departs: Some(Vec::new()), ..part_of_votes() };
    grown.parameters.only.clear();
    keep(dir.path(), &[grown]);
    assert!(program(&["report", dir.path().to_str().unwrap()]).status.success());
    let page = fs::read_to_string(dir.path().join("votes.md")).unwrap();
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
    let words = format!(" of {} methods.", Suite::read(&suites, "votes").unwrap().method.len());
    assert!(page.contains(&words), "the suite has more methods since then: {page}");
}

/// An older run of the whole suite comes before a newer one of a part; where there is no other, the
/// page says what it is.
#[test]
fn the_readme_takes_whole_runs_or_says_that_they_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let part =
        SuiteResult { departs: Some(vec!["2 rounds instead of 3".to_owned()]), ..part_of_votes() };
    keep(&runs.join("2026-02-01-part"), &[part]);
    let readme = dir.path().join("README.md");
    let write = || {
        fs::write(&readme, "<!-- bench: table suite=votes methods=ours --><!-- /bench -->\n")
            .unwrap();
        let [runs, suites, readme] =
            [runs.as_path(), dir.path(), readme.as_path()].map(|p: &Path| p.to_str().unwrap());
        // Without a definition: the real suite has other methods.
        let output = program(&["readme", "--runs", runs, "--suites", suites, readme]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read_to_string(readme).unwrap()
    };
    let page = write();
    assert!(page.contains("`bench/runs/2026-02-01-part/votes.md`: 2 interleaved rounds"), "{page}");
    assert!(page.contains("Not the whole suite: 2 rounds instead of 3."), "{page}");
    keep(&runs.join("2026-01-01-whole"), &[common::votes(1.0)]);
    let page = write();
    assert!(
        page.contains("`bench/runs/2026-01-01-whole/votes.md`: 3 interleaved rounds"),
        "{page}"
    );
    assert!(!page.contains("Not the whole suite"), "{page}");
    fs::write(&readme, "<!-- bench: figure suite=votes method=ours --><!-- /bench -->").unwrap();
    let output = program(&["readme", "--runs", runs.to_str().unwrap(), readme.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("does not say which run it is of"), "no figure without its run: {said}");
}

#[test]
fn demands_are_shown_where_a_run_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut votes = common::votes(1.0);
    votes.demands = vec![demand(DemandKind::Speedup, Some("copy"), 2.0, 3.0)];
    votes.methods[2].durability = Durability::LocalOnly;
    votes.methods[2].gives_up = vec!["order".to_owned()];
    let runs = dir.path().join("runs");
    keep(&runs.join("2026-01-01-one"), &[votes]);
    let line = "| votes | 1,000,000 | ours: times as fast as copy | 2.08x (1.82x to 2.10x) | ≥ 2.00x: met | ≥ 3.00x: not met | durability: local-only; order |";
    // Without a definition of the suite, the demands that the run has kept are shown.
    let none = dir.path().join("none").display().to_string();
    let folder = runs.join("2026-01-01-one").display().to_string();
    assert!(program(&["report", "--suites", &none, &folder]).status.success());
    let page = fs::read_to_string(runs.join("2026-01-01-one/votes.md")).unwrap();
    assert!(page.contains(line), "{page}");

    let readme = dir.path().join("README.md");
    let markers = "<!-- bench: demands suite=votes --><!-- /bench -->\n\
        <!-- bench: demands suite=copy --><!-- /bench -->\n";
    fs::write(&readme, markers).unwrap();
    let (runs, file) = (runs.to_str().unwrap(), readme.to_str().unwrap());
    let generated = program(&["readme", "--suites", &none, "--runs", runs, file]);
    assert!(generated.status.success(), "{}", String::from_utf8_lossy(&generated.stderr));
    let page = fs::read_to_string(&readme).unwrap();
    assert!(page.contains(line) && page.contains("No run of this suite is kept yet"), "{page}");
}

/// Each run of `common::votes` took three times its seconds whole.
#[test]
fn the_time_left_follows_from_the_runs_so_far() {
    let mut votes = common::votes(1.0);
    let names = ["copy", "unlogged", "ours", "rival", "absent"];
    let mut methods = names.map(|name| {
        let text =
            format!("name = '{name}'\ntitle = ''\nby = 'stock'\ndurability = 'kept'\nstep = []");
        toml::from_str::<MethodDefinition>(&text).unwrap()
    });
    methods[3].once = true;
    let methods: Vec<&MethodDefinition> = methods.iter().collect();
    let left = |votes: &SuiteResult| estimate::seconds_left(votes, &methods);
    assert_eq!(left(&votes), Some(0.0));
    votes.methods[0].runs.truncate(1);
    assert_eq!(left(&votes), Some(2.0 * 6.0), "two runs as long as the first");
    votes.parameters.rows.push(2_000_000);
    votes.parameters.once_from = Some(2_000_000);
    let one_of_each = 3.0 * (2.0 + 0.55 + 1.1 + 0.9);
    let due = 12.0 + 2.0 * one_of_each;
    assert!((left(&votes).unwrap() - due).abs() < 1e-9, "two more rounds, at twice the rows");
    votes.methods[3].runs.clear();
    let mean = (2.0 + 0.55 + 1.1) / 3.0;
    let due = due + 3.0 * (mean - 2.0 * 0.9 + 2.0 * mean);
    assert!((left(&votes).unwrap() - due).abs() < 1e-9, "one that has not run, as the others");
    votes.methods.iter_mut().for_each(|m| m.runs.clear());
    assert_eq!(left(&votes), None, "nothing to judge by");
}

#[test]
fn a_run_is_judged_by_what_its_suite_asks_today() {
    let mut run = common::votes(1.0);
    run.suite = "copy".to_owned();
    run.demands = vec![demand(DemandKind::Speedup, Some("copy"), 1.0, 1.0)];
    let names: Vec<String> = run.methods.iter().map(|m| m.name.clone()).collect();
    let stock = names.iter().position(|name| name == "copy").unwrap();
    let ours = names.iter().position(|name| name == "ours").unwrap();
    run.methods[stock].name = "live-stock".to_owned();
    run.methods[ours].name = "live-extension".to_owned();
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
    whole::annotate(&mut run, &suites);
    // What the run has no methods for is shown, without a figure.
    let (measured, open): (Vec<_>, Vec<_>) = run.demands.iter().partition(|d| d.must_met.is_some());
    let judged: Vec<_> =
        measured.iter().map(|d| (d.demand.method.as_str(), d.demand.must, d.must_met)).collect();
    assert_eq!(judged, [("live-extension", 3.0, Some(false))]);
    assert!(open.iter().any(|d| d.demand.method == "key-extension"), "{open:?}");
    // The command line had left them out.
    run.demands.clear();
    run.parameters.only = vec!["live-extension".to_owned(), "live-stock".to_owned()];
    whole::annotate(&mut run, &suites);
    assert!(run.demands.iter().all(|d| d.must_met.is_some()), "{:?}", run.demands);
}

/// A suite that compares other methods today takes no demand away from a run that has the old ones.
#[test]
fn a_run_without_the_methods_of_today_keeps_what_was_asked_of_it() {
    let mut run = common::votes(1.0);
    run.suite = "copy".to_owned();
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
    let mut all = Suite::read(&suites, "copy").unwrap().demand;
    let (number, today) = (all.len(), all.remove(0));
    let mut asked = demand(DemandKind::Speedup, Some("copy"), 1.0, 1.0);
    asked.demand.work = today.work;
    let mut gone = demand(DemandKind::Speedup, Some("copy"), 1.0, 1.0);
    gone.demand.work = "work that no suite has".to_owned();
    run.demands = vec![asked.clone(), gone];
    whole::annotate(&mut run, &suites);
    assert_eq!(run.demands.len(), number);
    assert_eq!(run.demands[0].demand, asked.demand);
    assert!(run.demands[1..].iter().all(|d| d.reached.is_none()));
}
