//! The runner against real servers: right answers kept, wrong ones caught, a
//! killed run continued, nothing left behind.

#[path = "../../crates/pgserver/tests/support/aloud.rs"]
mod aloud;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aloud::left_out;
use pgsluice_bench::environment;
use pgsluice_bench::proc::{server_usage, signal};
use pgsluice_bench::result::{MethodResult, MethodStatus, SuiteResult};
use rustix::process::Signal;

/// Folders of server programs by major version: Debian's 15, and what scripts/servers fetched.
fn servers() -> BTreeMap<u32, PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let named = std::env::var_os("PGSLUICE_SERVERS").map(PathBuf::from);
    let servers = named.unwrap_or_else(|| root.join("build/servers"));
    let fetched = [15, 18].map(|major| (major, servers.join(format!("{major}/bin"))));
    let debian = [15, 18].map(|m| (m, PathBuf::from(format!("/usr/lib/postgresql/{m}/bin"))));
    let found: BTreeMap<u32, PathBuf> = fetched
        .into_iter()
        .chain(debian)
        .filter(|(_, dir)| dir.join("postgres").exists())
        .collect();
    assert!(!found.is_empty(), "no PostgreSQL to test on: run scripts/servers");
    for major in [15, 18].iter().filter(|m| !found.contains_key(m)) {
        left_out(&format!("the runner on PostgreSQL {major}, which is not here"));
    }
    found
}

/// One folder for a test's results and servers, which the server's user can reach.
struct Place(tempfile::TempDir);

impl Place {
    /// Among the temporary files, which may be in memory.
    fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// Where written bytes are counted, and what is read can be dropped from memory.
    fn on_disk() -> Self {
        Self::below(Path::new("/var/tmp"))
    }

    /// Whether the kernel counts what is written there, as it does not on every file system.
    fn counts_writes(&self) -> bool {
        let written = || server_usage(std::process::id()).written_bytes;
        // Another test may remove what was not written yet, which counts the other way.
        let counts = (0..9).any(|_| {
            let before = written();
            fs::write(self.0.path().join("counted"), vec![1; 1 << 20]).unwrap();
            written() > before
        });
        if !counts {
            left_out(
                "the runner's count of bytes written, which the kernel does not count in /var/tmp",
            );
        }
        counts
    }

    fn below(parent: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("bench-test-").tempdir_in(parent).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(dir.path(), mode).unwrap();
        Self(dir)
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    fn command(&self, suite: &str, pg_bin: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice-bench"));
        command.arg(suite).arg("--pg-bin").arg(pg_bin);
        command.arg("--suites").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites"));
        command.arg("--out").arg(self.out()).arg("--work").arg(self.work());
        command
    }

    fn run(&self, suite: &str, pg_bin: &Path) -> Output {
        self.command(suite, pg_bin).output().unwrap()
    }

    fn result(&self, suite: &str) -> SuiteResult {
        SuiteResult::read(&self.out().join(format!("{suite}.json"))).unwrap()
    }
}

fn method<'a>(result: &'a SuiteResult, name: &str) -> &'a MethodResult {
    result.methods.iter().find(|m| m.name == name).unwrap()
}

/// Runs where the suite has two: the sample is marked to be run once.
fn due(method: &MethodResult) -> usize {
    if method.name == "sample" {
        1
    } else {
        2
    }
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn right_answers_are_kept_with_their_costs() {
    for (major, pg_bin) in servers() {
        let place = Place::on_disk();
        let output = place.run("small", &pg_bin);
        assert!(output.status.success(), "on {major}: {}", talk(&output));
        let result = place.result("small");
        assert!(result.complete);
        assert!(result.environment.postgres.starts_with(&major.to_string()));
        for name in ["copy", "binary-unlogged", "lanes", "landing", "sample", "foreign"] {
            let method = method(&result, name);
            assert_eq!(method.status, MethodStatus::Ok, "{name} on {major}: {:?}", method.message);
            assert_eq!(method.runs.len(), due(method));
            assert!(method.seconds.unwrap().min > 0.0);
            assert!(method.runs.iter().all(|r| r.client_peak_bytes > 0));
        }
        check_costs(&result, place.counts_writes());
        check_environment(&result);
        check_crash(&result);
        assert!(!place.work().exists(), "the work folder is left behind");
    }
}

fn check_costs(result: &SuiteResult, counts_writes: bool) {
    let copy = method(result, "copy");
    let run = &copy.runs[0];
    assert!(run.wal_bytes.unwrap() > 20_000);
    assert!(run.table_bytes.unwrap() > 20_000 && run.index_bytes.unwrap() > 8192);
    // One run of 500 rows may fit between two of the kernel's ticks of 10 ms; all runs do not.
    let cpu = |m: &MethodResult| m.runs.iter().filter_map(|r| r.server_cpu_seconds).sum::<f64>();
    assert!(result.methods.iter().map(cpu).sum::<f64>() > 0.0);
    assert!(run.server_peak_bytes.unwrap() > 1 << 20);
    assert!(!counts_writes || run.written_bytes > Some(20_000), "{:?}", run.written_bytes);
    assert_eq!(run.floor_seconds.is_some(), run.written_bytes.is_some());
    assert!(run.floor_seconds.is_none_or(|s| s > 0.0));
    assert_eq!(run.phases.iter().map(|p| &*p.name).collect::<Vec<_>>(), ["copy", "index"]);
    assert!(run.phases.iter().all(|p| p.seconds > 0.0));
    assert_eq!(run.answer.checksum.rows, 500);
    assert_eq!(run.answer.indexes.len(), 2);
    let last = &copy.runs[1].answer;
    assert!(last.indexes.values().all(|how| how.contains("every row")), "{last:?}");
    assert_eq!(last.questions.len(), 1);
    let walked = &method(result, "lanes").runs[1].answer.indexes;
    assert!(walked.values().all(|how| how.starts_with("walked")), "{walked:?}");
    let unlogged = method(result, "binary-unlogged");
    assert!(unlogged.runs[0].wal_bytes < run.wal_bytes);
    assert!(!unlogged.ratio.as_ref().unwrap().same_durability);
    assert!(method(result, "lanes").ratio.as_ref().unwrap().same_durability);
    assert_eq!(method(result, "landing").runs[0].answer.checksum.rows, 1000);
    let sample = method(result, "sample");
    assert!(sample.sampled && sample.rows == 10 && sample.extrapolated_seconds.is_none());
    assert!(sample.ratio.is_none(), "a sample is not compared with a whole");
    for absent in ["absent", "absent-program"] {
        let absent = method(result, absent);
        assert_eq!(absent.status, MethodStatus::Unavailable);
        assert!(absent.message.as_ref().unwrap().contains("no"), "{:?}", absent.message);
    }
}

fn check_environment(result: &SuiteResult) {
    let e = &result.environment;
    assert!(e.cores > 0 && e.memory_bytes > 1 << 20 && e.disk_bytes_per_second > 0.0, "{e:?}");
    for text in [&e.system, &e.kernel, &e.cpu, &e.file_system, &e.disk, &e.psql] {
        assert!(!text.is_empty(), "{e:?}");
    }
    assert_eq!(result.parameters.settings["fsync"], "off");
    assert_eq!(result.departs, Some(Vec::new()), "the whole suite");
    let settings = &method(result, "binary-unlogged").settings;
    assert_eq!(settings["wal_compression"], "on");
}

fn check_crash(result: &SuiteResult) {
    let after = |name: &str| method(result, name).runs[1].after_crash.clone().unwrap();
    assert!(after("copy").same);
    assert_eq!(after("binary-unlogged").rows, 0);
    assert!(method(result, "copy").runs[0].after_crash.is_none(), "only after the last run");
    assert!(method(result, "sample").runs[0].after_crash.is_some(), "its only one is its last");
}

#[test]
fn wrong_answers_are_caught() {
    let expected = [
        ("drops", "199 rows where the file has 200"),
        ("doubles", "values differ"),
        ("alters", "values differ"),
        ("stale-index", "index t_b"),
        ("stale-index-walked", "49|0 where 200|0 is due"),
        ("not-durable", "`kept` being said: wrong answer: 0 rows where the file has 200"),
        ("doubles-one", "201 rows where the file has 200"),
        ("exchanges", "values differ"),
        ("no-index", "are due"),
        ("invalid-index", "is not valid"),
        ("unique-in-name", "1 keys are in the table more than once"),
        ("hurried", "`kept` being said: wrong answer: 0 rows where the file has 200"),
        ("boasts", "201 rows loaded, where 200 are due"),
        ("other-answer", "question sum"),
        ("unlogged-leaf", "or a partition of it is not"),
        ("one-number", "199 rows have a number in id"),
        ("sequence-behind", "50 rows have a number in id that public.t_id_seq will give again"),
        ("fails", "out of luck"),
    ];
    for (i, (major, pg_bin)) in servers().into_iter().enumerate() {
        let place = Place::new();
        let mut command = place.command("wrong", &pg_bin);
        // What differs from one major version to the next is tried on each; the rest once.
        let chosen = if i == 0 { &expected[..] } else { &expected[..VERSIONED] };
        if i > 0 {
            let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
            command.arg("--only").arg(format!("right,{}", names.join(",")));
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "on {major}: {}", talk(&output));
        let result = place.result("wrong");
        assert_eq!(method(&result, "right").status, MethodStatus::Ok);
        for (name, words) in chosen {
            let method = method(&result, name);
            assert_eq!(method.status, MethodStatus::Failed, "{name} on {major}");
            let message = method.message.as_ref().unwrap();
            assert!(message.contains(words), "{name} on {major}: {message}");
            assert!(method.runs.is_empty() && method.seconds.is_none(), "a time was kept");
        }
    }
}

/// How many of the lying loaders are tried on every major version.
const VERSIONED: usize = 6;

/// Waits until a result with at least one run is there.
fn wait_for_a_run(path: &Path, child: &mut Child) -> SuiteResult {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(600), "no run was kept");
        if let Ok(result) = SuiteResult::read(path) {
            if result.methods.iter().any(|m| !m.runs.is_empty()) {
                return result;
            }
        }
        assert!(child.try_wait().unwrap().is_none(), "the runner has ended");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_run_is_continued_and_its_server_ended() {
    let (_, pg_bin) = servers().into_iter().next().unwrap();
    let place = Place::new();
    let path = place.out().join("small.json");
    let mut child = place.command("small", &pg_bin).stderr(Stdio::null()).spawn().unwrap();
    wait_for_a_run(&path, &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = SuiteResult::read(&path).unwrap();
    assert!(!kept.complete);
    let orphan = fs::read_to_string(place.work().join("data/postmaster.pid"))
        .ok()
        .and_then(|text| text.lines().next()?.trim().parse::<u32>().ok());

    let output = place.run("small", &pg_bin);
    assert!(output.status.success(), "{}", talk(&output));
    let result = place.result("small");
    assert!(result.complete && result.started == kept.started);
    for before in kept.methods.iter().filter(|m| !m.runs.is_empty()) {
        let after = method(&result, &before.name);
        for run in &before.runs {
            assert_eq!(run.seconds, after.runs[run.round as usize].seconds, "run again");
        }
        assert_eq!(after.runs.len(), due(after));
    }
    if let Some(pid) = orphan {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!command.contains(&place.work().display().to_string()), "the server still runs");
    }
    assert!(!place.work().exists());

    // Complete, it is not run again; other parameters are refused rather than mixed in.
    let output = place.run("small", &pg_bin);
    assert!(talk(&output).contains("complete"), "{}", talk(&output));
    let output = place.command("small", &pg_bin).args(["--rows", "7"]).output().unwrap();
    assert!(talk(&output).contains("other parameters"), "{}", talk(&output));
}

#[test]
fn an_interrupted_run_cleans_up_after_itself() {
    let (_, pg_bin) = servers().into_iter().next().unwrap();
    let place = Place::new();
    let mut child = place.command("small", &pg_bin).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_a_run(&place.out().join("small.json"), &mut child);
    signal(child.id(), Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(talk(&output).contains("interrupted"), "{}", talk(&output));
    assert!(!place.work().exists(), "the work folder is left behind");
    assert!(!place.result("small").complete);
    let failed = place.result("small").methods.iter().any(|m| m.status == MethodStatus::Failed);
    assert!(!failed, "an interruption is no failure of the method");
    let page = fs::read_to_string(place.out().join("small.md")).unwrap();
    assert!(page.contains("Not complete"), "what there is of it is reported: {page}");
    assert!(place.out().join("index.html").exists());

    // What another state of the project has begun is not mixed with this one's.
    let mut part = place.result("small");
    part.environment.commit = "0123456789ab".to_owned();
    part.write(&place.out().join("small.json")).unwrap();
    let output = place.run("small", &pg_bin);
    assert!(talk(&output).contains("made at commit 0123456789ab"), "{}", talk(&output));

    // Nor is what another build has begun.
    part.environment.commit = environment::commit();
    part.environment.built.insert("loader".to_owned(), "0123456789abcdef".to_owned());
    part.write(&place.out().join("small.json")).unwrap();
    let output = place.run("small", &pg_bin);
    assert!(talk(&output).contains("another build"), "{}", talk(&output));
}

#[test]
fn an_interruption_ends_the_making_of_data() {
    let (_, pg_bin) = servers().into_iter().next().unwrap();
    let place = Place::new();
    let mut command = place.command("endless", &pg_bin);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let making = place.work().join("data-slow-1/source.csv");
    let start = Instant::now();
    while !making.exists() {
        assert!(start.elapsed() < Duration::from_secs(600), "it makes no data");
        thread::sleep(Duration::from_millis(10));
    }
    signal(child.id(), Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(talk(&output).contains("interrupted"), "{}", talk(&output));
    assert!(!place.work().exists(), "the work folder is left behind");
}

#[test]
fn a_rows_option_and_a_choice_of_methods_are_obeyed() {
    let (_, pg_bin) = servers().into_iter().next().unwrap();
    let place = Place::new();
    let mut command = place.command("small", &pg_bin);
    command.args(["--rows", "30,60", "--runs", "2", "--only", "lanes,sample"]);
    let output = command.args(["--against", "lanes", "--extrapolate"]).output().unwrap();
    assert!(output.status.success(), "{}", talk(&output));
    let result = place.result("small");
    assert_eq!(result.methods.len(), 4);
    let departs = ["30, 60 rows instead of 500", "2 of 8 methods", "all compared with lanes"];
    assert_eq!(result.departs.as_ref().unwrap(), &departs);
    assert!(result.methods.iter().all(|m| m.runs.len() == due(m)));
    assert!(result.growth.iter().any(|g| g.method == "lanes" && g.points == 2));
    let sample = result.method("sample", 60).unwrap();
    let factor = sample.extrapolated_seconds.unwrap() / sample.seconds.unwrap().median;
    assert!((factor - 6.0).abs() < 1e-9);

    let output = place.command("small", &pg_bin).args(["--only", "nothing"]).output().unwrap();
    assert!(talk(&output).contains("no method nothing"), "{}", talk(&output));
}

#[test]
fn methods_of_unusual_shape_are_run_and_checked() {
    for (major, pg_bin) in servers() {
        let place = Place::on_disk();
        let output = place.command("shapes", &pg_bin).args(["--page-cache", "dropped"]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1), "one of them lies: {}", talk(&output));
        let result = place.result("shapes");
        assert!(result.complete && result.peak_disk_bytes > 10 << 20);
        assert_eq!(result.parameters.page_cache.word(), "dropped");
        let append = method(&result, "append");
        if append.status == MethodStatus::Failed {
            // A file system that keeps its pages whatever it is advised: said, not passed over.
            let message = append.message.as_ref().unwrap();
            assert!(message.contains("cannot be dropped here"), "on {major}: {message}");
            continue;
        }
        assert_eq!(append.runs.len(), 1, "once_from");
        assert_eq!((append.rows, append.runs[0].answer.checksum.rows), (70, 370));
        let forgets = method(&result, "append-forgets").message.as_ref().unwrap();
        assert!(forgets.contains("70 rows where the file has 370"), "on {major}: {forgets}");
        let unlogged = method(&result, "not-logged").message.as_ref().unwrap();
        assert!(unlogged.contains("the table is not logged"), "on {major}: {unlogged}");
        let icu = method(&result, "icu");
        match icu.status {
            MethodStatus::Unavailable => {
                assert!(icu.message.as_ref().unwrap().contains("without ICU"))
            }
            MethodStatus::Failed => panic!("on {major}: {:?}", icu.message),
            _ => assert_eq!(icu.runs[0].notes, ["i"]),
        }
        let itself = method(&result, "itself");
        assert_eq!(itself.runs[0].figures, BTreeMap::from([("speed".to_owned(), 42.5)]));
        assert_eq!(itself.runs[0].notes, ["as told"]);
        assert!(itself.rows_per_second.is_none(), "it loads nothing");
        let judged: Vec<_> = result.demands.iter().map(|d| (d.must_met, d.goal_met)).collect();
        assert_eq!(judged, [(Some(true), Some(false)), (None, None)]);
    }
}

#[test]
fn a_suite_that_cannot_be_run_does_not_end_the_others() {
    let (_, pg_bin) = servers().into_iter().next().unwrap();
    let place = Place::new();
    let mut command = place.command("no-such-suite", &pg_bin);
    command.args(["small", "--rows", "20", "--runs", "1", "--only", "copy"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(talk(&output).contains("no suite no-such-suite"), "{}", talk(&output));
    assert!(place.result("small").complete, "{}", talk(&output));
}
