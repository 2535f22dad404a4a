//! Runs a suite from its definition to its JSON file in interleaved rounds. The file is written
//! after every run, so that an interruption loses at most one run.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};

use crate::check;
use crate::data::{Dataset, Workshop};
use crate::definition::{By, Data, MethodDefinition, PageCache, Suite};
use crate::demand::{Demand, Judged};
use crate::environment::{self, now, Environment};
use crate::estimate;
use crate::measure::{say, Bench, Case};
use crate::order;
use crate::proc;
use crate::result::{DataResult, MethodResult, MethodStatus, Parameters, Run, SuiteResult, SCHEMA};
use crate::server::{self, BenchServer, Binaries};
use crate::summary;
use crate::tools::Tools;
use crate::whole;
use crate::work::Work;

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The quarter-hour profile.
    pub quick: bool,
    /// Row counts instead of the suite's.
    pub rows: Vec<u64>,
    /// Runs of each method instead of the suite's.
    pub runs: Option<u32>,
    /// State of the page cache instead of the suite's.
    pub page_cache: Option<PageCache>,
    /// Folder of the server's programs.
    pub pg_bin: Option<PathBuf>,
    /// Only these methods.
    pub only: Vec<String>,
    /// The method that all others are compared with.
    pub against: Option<String>,
    /// Connections of parallel methods.
    pub lanes: u32,
    /// Seed of the samples.
    pub seed: u64,
    /// The loader.
    pub pgsluice: PathBuf,
    /// The Python with the rivals' modules.
    pub python: PathBuf,
    /// Folder of the definitions.
    pub suites: PathBuf,
    /// Folder of the result.
    pub out: PathBuf,
    /// Folder for data and servers.
    pub work: PathBuf,
    /// Whether a sampled method's time is extrapolated to all rows.
    pub extrapolate: bool,
    /// Discard an existing result instead of continuing it.
    pub fresh: bool,
}

/// Runs one suite. An unfinished result with the same parameters is continued.
pub fn suite(options: &RunOptions, name: &str) -> Result<SuiteResult> {
    let suite = Suite::read(&options.suites, name)?;
    let methods = chosen(&suite, options)?;
    let path = options.out.join(format!("{name}.json"));
    let binaries = Binaries::find(options.pg_bin.as_deref())?;
    let parameters = parameters(&suite, options);
    let built = environment::built(&options.pgsluice, &binaries);
    let existing =
        if options.fresh { None } else { existing(&path, &parameters, &binaries, &built)? };
    if let Some(done) = existing.as_ref().filter(|r| r.complete) {
        say(&format!("{name}: complete in {} (--fresh runs it again)", path.display()));
        return Ok(done.clone());
    }
    let work = Work::claim(&options.work, &binaries)?;
    let template = server::make_template(&binaries, &work.dir, &suite.settings)?;
    let mut tools = look_at_tools(&binaries, &work, &template, &suite, options)?;
    let mut result = match existing {
        Some(result) => result,
        None => empty(
            &suite,
            parameters,
            Environment::look(&work.dir, &binaries.version()?, &binaries.psql, built),
        ),
    };
    let of_chosen = |d: &&Demand| methods.iter().any(|m| m.name == d.method);
    let demands: Vec<Demand> = suite.demand.iter().filter(of_chosen).cloned().collect();
    result.demands = demands.into_iter().map(|d| Judged::new(d, &result)).collect();
    let variables = variables(&suite, options, &binaries);
    let bench = Bench {
        binaries: &binaries,
        work: &work.dir,
        template: &template,
        settings: &suite.settings,
        variables: &variables,
        lanes: options.lanes,
        page_cache: result.parameters.page_cache,
        crash: suite.crash,
        setups: suite.keep_setups.then(RefCell::default),
        questions: &suite.question,
        peak: Cell::new(result.peak_disk_bytes),
    };
    let mut rounds = Rounds { suite: &suite, methods, options, bench, result, path };
    fs::create_dir_all(&options.out)?;
    for rows in rounds.result.parameters.rows.clone() {
        rounds.at(rows, &mut tools)?;
    }
    summary::complete(&mut rounds.result);
    rounds.keep()?;
    Ok(rounds.result)
}

fn chosen<'a>(suite: &'a Suite, options: &RunOptions) -> Result<Vec<&'a MethodDefinition>> {
    for name in options.only.iter().chain(&options.against) {
        ensure!(
            suite.method.iter().any(|m| m.name == *name),
            "suite {} has no method {name}\nhint: pgsluice-bench list",
            suite.suite
        );
    }
    let wanted = |m: &&MethodDefinition| {
        options.only.is_empty()
            || options.only.contains(&m.name)
            || options.against.as_ref() == Some(&m.name)
    };
    Ok(suite.method.iter().filter(wanted).collect())
}

fn parameters(suite: &Suite, options: &RunOptions) -> Parameters {
    let (rows, runs) = if options.quick {
        (&suite.rows.quick, suite.runs.quick)
    } else {
        (&suite.rows.full, suite.runs.full)
    };
    Parameters {
        profile: if options.quick { "quick" } else { "full" }.to_owned(),
        rows: if options.rows.is_empty() { rows.clone() } else { options.rows.clone() },
        runs: options.runs.unwrap_or(runs),
        once_from: suite.once_from.filter(|_| options.runs.is_none()),
        seed: options.seed,
        lanes: options.lanes,
        page_cache: options.page_cache.unwrap_or(suite.page_cache),
        settings: suite.settings.clone(),
        against: options.against.clone(),
        only: options.only.clone(),
    }
}

/// The existing result, if it can be continued.
///
/// # Errors
///
/// It has other parameters or another server version, or is unfinished and of another commit or build.
fn existing(
    path: &Path,
    parameters: &Parameters,
    binaries: &Binaries,
    built: &BTreeMap<String, String>,
) -> Result<Option<SuiteResult>> {
    if !path.exists() {
        return Ok(None);
    }
    let result = SuiteResult::read(path)?;
    let (then, now) = (&result.environment, environment::commit());
    let otherwise = if result.parameters != *parameters || then.postgres != binaries.version()? {
        "with other parameters".to_owned()
    } else if result.complete {
        return Ok(Some(result));
    } else if then.commit != now {
        format!("at commit {}, and this is {now}", then.commit)
    } else if then.built != *built {
        "with another build of the loader or the extension".to_owned()
    } else {
        return Ok(Some(result));
    };
    bail!(
        "{} was made {otherwise}\nhint: --fresh replaces it, --out writes elsewhere",
        path.display()
    )
}

fn look_at_tools(
    binaries: &Binaries,
    work: &Work,
    template: &Path,
    suite: &Suite,
    options: &RunOptions,
) -> Result<Tools> {
    let server = BenchServer::start(binaries, template, &work.dir, &suite.settings)?;
    let python = options.python.display().to_string();
    let tools = Tools::look(server.psql(), &options.pgsluice, &python)?;
    server.stop()?;
    Ok(tools)
}

fn variables(suite: &Suite, options: &RunOptions, binaries: &Binaries) -> BTreeMap<String, String> {
    let mut variables = suite.snippets.clone();
    let mut put = |name: &str, path: &Path| {
        variables.insert(name.to_owned(), path.display().to_string());
    };
    put("pgsluice", &options.pgsluice);
    put("python", &options.python);
    put("psql", &binaries.psql);
    put("bench", options.suites.parent().unwrap_or(&options.suites));
    variables.insert("seed".to_owned(), options.seed.to_string());
    variables
}

fn empty(suite: &Suite, parameters: Parameters, environment: Environment) -> SuiteResult {
    let departs = whole::departures(suite, &parameters);
    SuiteResult {
        schema: SCHEMA,
        suite: suite.suite.clone(),
        title: suite.title.clone(),
        about: suite.about.clone(),
        left_out: suite.left_out.clone(),
        published: suite.published.clone(),
        started: now(),
        updated: now(),
        complete: false,
        environment,
        parameters,
        data: Vec::new(),
        methods: Vec::new(),
        growth: Vec::new(),
        demands: Vec::new(),
        peak_disk_bytes: 0,
        departs: Some(departs),
    }
}

/// The rounds of one suite.
struct Rounds<'a> {
    suite: &'a Suite,
    methods: Vec<&'a MethodDefinition>,
    options: &'a RunOptions,
    bench: Bench<'a>,
    result: SuiteResult,
    path: PathBuf,
}

/// Inputs by name and row count.
type Datasets = BTreeMap<(String, u64), Dataset>;

impl Rounds<'_> {
    /// All rounds of all methods at one row count. Each round has its own order.
    fn at(&mut self, rows: u64, tools: &mut Tools) -> Result<()> {
        for method in self.methods.clone() {
            self.enter(method, rows, tools);
        }
        let mut pending = self.methods.clone();
        pending.retain(|m| self.entry(m, rows).status == MethodStatus::Pending);
        let sets = self.make_data(&pending, rows)?;
        let runs = self.result.parameters.runs_at(rows);
        // Methods are compared with others that have the same input.
        let inputs: Vec<&str> =
            pending.iter().map(|m| self.suite.data_of(m).name.as_str()).collect();
        for round in 0..runs {
            for place in order::of_groups(&inputs, round) {
                let method = pending[place];
                let entry = self.entry(method, rows);
                let done = entry.runs.iter().any(|r| r.round == round);
                let due = method.runs(runs);
                if done || round >= due || entry.status != MethodStatus::Pending {
                    continue;
                }
                let data = self.suite.data_of(method);
                let set = &sets[&(data.name.clone(), self.rows_of(method, rows))];
                let base = self.suite.base_of(method);
                let base = base.map(|b| &sets[&(b.name.clone(), self.rows_in(b, rows))]);
                let last = round + 1 == due;
                let outcome = self.bench.run(Case { method, data, set, base }, round, last);
                self.result.peak_disk_bytes =
                    self.result.peak_disk_bytes.max(self.bench.peak.get());
                if proc::interrupted() {
                    bail!("interrupted; the same command goes on from here");
                }
                self.take(method, rows, set, outcome);
                self.keep()?;
                self.say_time_left();
            }
        }
        for method in pending {
            let entry = self.entry(method, rows);
            if entry.status == MethodStatus::Pending {
                entry.status = MethodStatus::Ok;
            }
        }
        for set in sets.values() {
            set.remove()?;
        }
        self.keep()
    }

    /// Prints the estimated time of the runs to come.
    fn say_time_left(&self) {
        if let Some(left) = estimate::seconds_left(&self.result, &self.methods) {
            say(&format!("    {} of this suite left", estimate::words(left)));
        }
    }

    /// Rows of an input, where the suite has `rows` rows.
    fn rows_in(&self, data: &Data, rows: u64) -> u64 {
        let own = data.rows.as_ref().filter(|_| self.options.rows.is_empty());
        own.map_or(rows, |own| if self.options.quick { own.quick } else { own.full })
    }

    /// Rows that a method loads, where the suite has `rows` rows.
    fn rows_of(&self, method: &MethodDefinition, rows: u64) -> u64 {
        let all = self.rows_in(self.suite.data_of(method), rows);
        method.sample_rows.map_or(all, |n| n.min(all))
    }

    /// Adds an entry for the method if there is none, and reports it if the method cannot run here.
    fn enter(&mut self, method: &MethodDefinition, rows: u64, tools: &mut Tools) {
        let rows_loaded = self.rows_of(method, rows);
        let sampled = rows_loaded < self.rows_in(self.suite.data_of(method), rows);
        let known = |m: &MethodResult| m.name == method.name && m.of_rows == rows;
        if self.result.methods.iter().any(known) {
            return;
        }
        let mut versions = BTreeMap::new();
        let mut missing = None;
        for need in &method.needs {
            match tools.version(need) {
                Ok(version) => {
                    if !need.starts_with("setting:") {
                        versions.insert(need.clone(), version);
                    }
                }
                Err(reason) => missing = missing.or(Some(reason)),
            }
        }
        if let Some(reason) = &missing {
            say(&format!("{} {}: not available here: {reason}", self.suite.suite, method.name));
        }
        self.result.methods.push(MethodResult {
            name: method.name.clone(),
            title: method.title.clone(),
            by: method.by,
            durability: method.durability,
            gives_up: method.gives_up.clone(),
            settings: method.settings.clone(),
            data: self.suite.data_of(method).name.clone(),
            of_rows: rows,
            rows: if method.self_checked { 0 } else { rows_loaded * u64::from(method.copies) },
            bytes: 0,
            sampled,
            against: self.options.against.clone().or_else(|| method.against.clone()),
            published_seconds: method.published_seconds,
            published_rows_per_second: method.published_rows_per_second,
            published_note: method.published_note.clone(),
            status: if missing.is_some() {
                MethodStatus::Unavailable
            } else {
                MethodStatus::Pending
            },
            message: missing,
            versions,
            runs: Vec::new(),
            seconds: None,
            rows_per_second: None,
            extrapolated_seconds: None,
            ratio: None,
        });
    }

    fn entry(&mut self, method: &MethodDefinition, rows: u64) -> &mut MethodResult {
        let entry = self.result.methods.iter_mut();
        let mut ours = entry.filter(|m| m.name == method.name && m.of_rows == rows);
        ours.next().expect("every method was entered")
    }

    /// Makes the inputs of these methods, with the files and shares that they use.
    fn make_data(&mut self, methods: &[&MethodDefinition], rows: u64) -> Result<Datasets> {
        let mut sets = Datasets::new();
        for method in methods {
            let base = self.suite.base_of(method).map(|base| (base, self.rows_in(base, rows)));
            let own = (self.suite.data_of(method), self.rows_of(method, rows));
            for (data, n) in base.into_iter().chain([own]) {
                let key = (data.name.clone(), n);
                if sets.contains_key(&key) {
                    continue;
                }
                let uses = |m: &&MethodDefinition| {
                    self.suite.data_of(m).name == data.name && self.rows_of(m, rows) == n
                };
                let users: Vec<&MethodDefinition> = methods.iter().copied().filter(uses).collect();
                let set = self.make_one(data, n, &users)?;
                self.record(&key, &set)?;
                sets.insert(key, set);
            }
        }
        Ok(sets)
    }

    /// Makes one input, with the files and shares that its methods need.
    fn make_one(&self, data: &Data, rows: u64, users: &[&MethodDefinition]) -> Result<Dataset> {
        let workshop = Workshop {
            binaries: self.bench.binaries,
            work: self.bench.work,
            template: self.bench.template,
            pgsluice: &self.options.pgsluice,
            seed: self.options.seed + data.seed,
            settings: &self.suite.settings,
        };
        let used = |name: &&str| users.iter().any(|m| m.uses(name));
        let derived: Vec<&str> = data.derived.keys().map(String::as_str).filter(used).collect();
        let lanes = users.iter().filter(|m| m.step.iter().any(|s| s.each_lane.is_some()));
        let lanes: Vec<u32> = lanes.map(|m| self.bench.lanes_of(m)).collect();
        say(&format!("{}: making {rows} rows of {}", self.suite.suite, data.name));
        workshop.make(data, rows, &derived, &lanes)
    }

    /// Records an input in the result. An input that is already recorded must have the same
    /// checksum.
    fn record(&mut self, (name, rows): &(String, u64), set: &Dataset) -> Result<()> {
        let size = |path: &PathBuf| fs::metadata(path).map(|m| m.len());
        let mut derived = BTreeMap::new();
        for (name, path) in &set.derived {
            derived.insert(name.clone(), size(path)?);
        }
        let known = self.result.data.iter().find(|d| d.name == *name && d.rows == *rows);
        if let Some(known) = known {
            ensure!(
                known.text_checksum == set.text,
                "data {name} is not what it was when this result was begun\nhint: --fresh"
            );
            return Ok(());
        }
        self.result.data.push(DataResult {
            name: name.clone(),
            rows: *rows,
            bytes: set.bytes,
            derived,
            text_checksum: set.text,
            typed_checksum: set.typed,
        });
        Ok(())
    }

    /// Adds a run to the result, or the reason of its failure.
    fn take(&mut self, method: &MethodDefinition, rows: u64, set: &Dataset, outcome: Result<Run>) {
        let outcome = outcome.and_then(|run| {
            self.agree(&run)?;
            check::counterpart(self.suite, &self.result, method, rows, &run)?;
            Ok(run)
        });
        let suite = self.suite.suite.clone();
        let entry = self.entry(method, rows);
        entry.bytes = if method.self_checked { 0 } else { set.bytes * u64::from(method.copies) };
        match outcome {
            Ok(run) => {
                say(&format!("{suite} {} round {}: {:.3} s", method.name, run.round, run.seconds));
                entry.runs.push(run);
            }
            Err(reason) => {
                say(&format!("{suite} {}: failed: {reason:#}", method.name));
                entry.status = MethodStatus::Failed;
                entry.message = Some(format!("{reason:#}"));
            }
        }
    }

    /// Checks that the questions have the same answers as in earlier runs on the same rows.
    fn agree(&self, run: &Run) -> Result<()> {
        for other in self.result.methods.iter() {
            let same = |r: &&Run| r.answer.checksum == run.answer.checksum;
            for earlier in other.runs.iter().filter(same) {
                for (question, answer) in &run.answer.questions {
                    let theirs = earlier.answer.questions.get(question);
                    ensure!(
                        theirs.is_none_or(|a| a == answer),
                        "question {question}: {answer}, where {} had {}",
                        other.name,
                        theirs.map_or("none", String::as_str)
                    );
                }
            }
        }
        Ok(())
    }

    /// Writes the result so far.
    fn keep(&mut self) -> Result<()> {
        self.result.updated = now();
        summary::summarise(&mut self.result, self.options.extrapolate);
        self.result.write(&self.path).context("cannot keep the result")
    }
}

/// Whether a failure of this method fails the whole run. A rival's failure is only reported.
pub fn is_fatal(method: &MethodResult) -> bool {
    method.status == MethodStatus::Failed && method.by != By::Rival
}
