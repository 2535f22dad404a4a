//! A suite as its TOML file defines it: the data, the server's settings, the methods and the
//! published figures of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};

use crate::demand::Demand;
use crate::template;

/// One suite: a published comparison rebuilt here.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Name, equal to the file's.
    pub suite: String,
    /// Heading of the report.
    pub title: String,
    /// What is measured and how, in a few sentences.
    pub about: String,
    /// What is left out of the published comparison, and why.
    #[serde(default)]
    pub left_out: Option<String>,
    /// The published table that is shown beside ours.
    #[serde(default)]
    pub published: Option<Published>,
    /// Row counts by profile; several make a scaling curve.
    pub rows: Profile<Vec<u64>>,
    /// Runs of each method by profile.
    pub runs: Profile<u32>,
    /// From this row count on, each method is run once, whatever `runs` says.
    #[serde(default)]
    pub once_from: Option<u64>,
    /// Whether source files are in the page cache before a run.
    pub page_cache: PageCache,
    /// Whether the server is killed after each method's last run, to see which rows are left.
    #[serde(default)]
    pub crash: bool,
    /// Whether each set-up is made only once. Each run then starts a server on a copy of the folder
    /// that the set-up left.
    #[serde(default)]
    pub keep_setups: bool,
    /// Settings of the server. They override those of initdb.
    pub settings: BTreeMap<String, String>,
    /// Text that methods share. `{name}` inserts it.
    #[serde(default)]
    pub snippets: BTreeMap<String, String>,
    /// The inputs. A method that names none uses the first.
    pub data: Vec<Data>,
    /// Queries whose answers must agree on every method's table.
    #[serde(default)]
    pub question: Vec<Question>,
    /// The figures that the suite must reach.
    #[serde(default)]
    pub demand: Vec<Demand>,
    /// The methods, in the order of the report.
    pub method: Vec<MethodDefinition>,
}

/// A value for a full run and one for the quarter-hour profile.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Profile<T> {
    /// For a run that is kept.
    pub full: T,
    /// For `--quick`.
    pub quick: T,
}

/// Where the published figures come from.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Title of the article.
    pub title: String,
    /// Server version and machine, in its own words.
    pub machine: String,
    /// Rows loaded there.
    pub rows: u64,
    /// How its figures were taken.
    pub figures: String,
}

/// State of the page cache for the source file at the start of a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PageCache {
    /// Read once just before.
    Warm,
    /// Dropped from the kernel's cache just before.
    Dropped,
}

impl PageCache {
    /// The word of the definitions, the JSON and the tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Dropped => "dropped",
        }
    }
}

/// One input: a CSV file without header, and files derived from it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Name, for methods to refer to.
    pub name: String,
    /// The suite that describes the data of this name. Rows and seed are given here.
    #[serde(default)]
    pub from: Option<String>,
    /// Rows by profile, where they differ from the suite's.
    #[serde(default)]
    pub rows: Option<Profile<u64>>,
    /// Added to the seed, so that two inputs of one kind differ.
    #[serde(default)]
    pub seed: u64,
    /// Kind of `pgsluice sample`.
    #[serde(default)]
    pub sample: Option<String>,
    /// Or a query whose result is the input; `{rows}` is the row count.
    #[serde(default)]
    pub sql: Option<String>,
    /// Or a file that exists already.
    #[serde(default)]
    pub file: Option<String>,
    /// The columns of the file, in order: `name type`.
    #[serde(default)]
    pub columns: Vec<String>,
    /// True if the server's text of each value equals the file's text. The expected answer then
    /// needs no cast by a server.
    #[serde(default)]
    pub canonical: bool,
    /// The expression to check, for columns whose output differs from the file's text.
    #[serde(default)]
    pub check: BTreeMap<String, String>,
    /// Further files that a server makes from the table `source`, by name.
    #[serde(default)]
    pub derived: BTreeMap<String, String>,
}

impl Data {
    /// Names of the columns.
    pub fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|c| c.split_whitespace().next().unwrap_or_default()).collect()
    }

    /// The expression whose text form is checked, for each column in order.
    pub fn expressions(&self) -> Vec<String> {
        let expression = |name: &str| self.check.get(name).map_or(name, String::as_str).to_owned();
        self.names().into_iter().map(expression).collect()
    }
}

/// A query that runs on every loaded table.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Name in the result.
    pub name: String,
    /// The query; its rows are compared as a sorted list.
    pub sql: String,
}

/// What is lost if the server crashes right after the command has returned.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Nothing. WAL or data files are synced; replicas and archives get the rows.
    Kept,
    /// Nothing on this server. A standby or a point-in-time recovery does not get the rows.
    LocalOnly,
    /// The commits of the last moments (`synchronous_commit = off`).
    LastCommits,
    /// The whole table: it is unlogged.
    WholeTable,
    /// It is not PostgreSQL: another program's own guarantees.
    Foreign,
}

impl Durability {
    /// Whether it guarantees at least as much as another.
    pub fn covers(self, other: Self) -> bool {
        self == other
            || self == Self::Kept
            || other == Self::Foreign
            || (other == Self::WholeTable && self != Self::Foreign)
    }

    /// The word of the definitions, the JSON and the tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::LocalOnly => "local-only",
            Self::LastCommits => "last-commits",
            Self::WholeTable => "whole-table",
            Self::Foreign => "foreign",
        }
    }
}

/// One way of loading.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MethodDefinition {
    /// Name, unique in the suite.
    pub name: String,
    /// Its title in the report.
    pub title: String,
    /// Who provides it: `stock`, `pgsluice` or `rival`.
    pub by: By,
    /// The method it is compared with, if any.
    #[serde(default)]
    pub against: Option<String>,
    /// What is lost if the server crashes right after it.
    pub durability: Durability,
    /// What else it gives up: atomicity, order, checks, types.
    #[serde(default)]
    pub gives_up: Vec<String>,
    /// The published seconds.
    #[serde(default)]
    pub published_seconds: Option<f64>,
    /// The published rows per second, where the published seconds are for another row count.
    #[serde(default)]
    pub published_rows_per_second: Option<f64>,
    /// A published factor or range, where no time is published.
    #[serde(default)]
    pub published_note: Option<String>,
    /// What must be available: a program, `extension:NAME`, `setting:NAME`, `icu`, `python:MODULE`,
    /// or `example:NAME`, built beside the loader.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The input, by name.
    #[serde(default)]
    pub data: Option<String>,
    /// Data that the setup loads into the table beforehand, from `{base}`.
    #[serde(default)]
    pub base: Option<String>,
    /// Loads a sample of this many rows instead of all. The report says so.
    #[serde(default)]
    pub sample_rows: Option<u64>,
    /// A slow method: it runs once, in the first round, however often the others run.
    #[serde(default)]
    pub once: bool,
    /// Settings of the server. They override the suite's.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Connections of `each_lane` steps. The default is the runner's `--lanes`.
    #[serde(default)]
    pub lanes: Option<u32>,
    /// Options of CREATE DATABASE, for methods that need another locale than the cluster's.
    #[serde(default)]
    pub database: Option<String>,
    /// SQL that runs before the clock starts.
    #[serde(default)]
    pub setup: String,
    /// The timed steps.
    pub step: Vec<MethodStep>,
    /// The relation to check.
    #[serde(default)]
    pub table: String,
    /// True if the table holds the file's text, not typed values (a landing table).
    #[serde(default)]
    pub text: bool,
    /// Indexes that must exist and be valid. There must be no others.
    #[serde(default)]
    pub indexes: Vec<String>,
    /// Conditions that every row must fulfil, for columns that are not in the file.
    #[serde(default)]
    pub holds: Vec<String>,
    /// Queries whose count by an index must be the one without it, for indexes that amcheck does not
    /// compare with the table.
    #[serde(default)]
    pub probe: Vec<IndexProbe>,
    /// How many times the file is in the table.
    #[serde(default = "one")]
    pub copies: u32,
    /// A program that writes the loaded rows as CSV to `{answer}`, for methods without a server.
    #[serde(default)]
    pub answer: Option<Vec<String>>,
    /// True for a program that loads nothing and checks its own answer. Only the figures that it
    /// reports count.
    #[serde(default)]
    pub self_checked: bool,
    /// False if the values are changed on purpose (a trigger). Then only the count is checked.
    #[serde(default = "yes")]
    pub values_kept: bool,
}

/// A query that an index answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct IndexProbe {
    /// The index that the server must use.
    pub index: String,
    /// A query of one row, the count of rows found. It must not be 0.
    pub count: String,
}

/// Who provides a method.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// PostgreSQL itself.
    Stock,
    /// This project.
    Pgsluice,
    /// Another project.
    Rival,
}

/// One timed step. Exactly one of `sql`, `each_lane`, `at_once` and `run` is given.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MethodStep {
    /// Name of the phase to which its time is added.
    pub phase: String,
    /// SQL for psql. Adjacent SQL steps share one session.
    #[serde(default)]
    pub sql: Option<String>,
    /// SQL that one psql for each lane runs at the same time. `{part}` is the lane's share of the
    /// CSV.
    #[serde(default)]
    pub each_lane: Option<String>,
    /// Or a list of statements. One psql for each runs them all at the same time.
    #[serde(default)]
    pub at_once: Option<Vec<String>>,
    /// A program and its arguments.
    #[serde(default)]
    pub run: Option<Vec<String>>,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

impl Suite {
    /// Reads and validates `NAME.toml` in a directory.
    pub fn read(dir: &Path, name: &str) -> Result<Self> {
        let (mut suite, path) = Self::parse(dir, name)?;
        for data in &mut suite.data {
            let Some(from) = &data.from else { continue };
            let described =
                Self::parse(dir, from)?.0.data.into_iter().find(|d| d.name == data.name);
            let described =
                described.with_context(|| format!("suite {from} has no data {}", data.name))?;
            *data = Data { rows: data.rows.clone(), seed: data.seed, ..described };
        }
        suite.validate().with_context(|| format!("in {}", path.display()))?;
        Ok(suite)
    }

    /// The definition exactly as in its file, and the path of that file.
    fn parse(dir: &Path, name: &str) -> Result<(Self, PathBuf)> {
        let path = dir.join(format!("{name}.toml"));
        let text = fs::read_to_string(&path)
            .with_context(|| format!("no suite {name}: cannot read {}", path.display()))?;
        let suite: Self =
            toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        ensure!(suite.suite == name, "{}: suite = {:?}", path.display(), suite.suite);
        Ok((suite, path))
    }

    /// The names of all suites in a directory, sorted.
    pub fn names(dir: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("no suites in {}", dir.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "toml") {
                names.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
            }
        }
        names.sort();
        Ok(names)
    }

    /// The input of a method.
    pub fn data_of(&self, method: &MethodDefinition) -> &Data {
        method.data.as_ref().map_or(&self.data[0], |name| self.data_named(name))
    }

    /// The input that a method's setup loads into the table beforehand.
    pub fn base_of(&self, method: &MethodDefinition) -> Option<&Data> {
        method.base.as_ref().map(|name| self.data_named(name))
    }

    fn data_named(&self, name: &str) -> &Data {
        self.data.iter().find(|d| d.name == name).expect("validated: the data is defined")
    }

    fn validate(&self) -> Result<()> {
        ensure!(!self.data.is_empty(), "no [[data]]");
        for data in &self.data {
            let sources = [&data.sample, &data.sql, &data.file].into_iter().flatten().count();
            ensure!(sources == 1, "data {}: one of sample, sql and file", data.name);
            for name in data.check.keys() {
                ensure!(data.names().contains(&name.as_str()), "data {}: no {name}", data.name);
            }
        }
        let mut seen = BTreeSet::new();
        for method in &self.method {
            ensure!(seen.insert(&method.name), "method {} defined twice", method.name);
        }
        for demand in &self.demand {
            for name in [Some(&demand.method), demand.against.as_ref()].into_iter().flatten() {
                ensure!(seen.contains(name), "demand {:?}: no method {name}", demand.work);
            }
            demand.validate()?;
        }
        self.method.iter().try_for_each(|m| self.validate_method(m))
    }

    fn validate_method(&self, method: &MethodDefinition) -> Result<()> {
        let name = &method.name;
        for data in [&method.data, &method.base].into_iter().flatten() {
            ensure!(self.data.iter().any(|d| d.name == *data), "method {name}: no data {data}");
        }
        if let Some(other) = &method.against {
            ensure!(self.method.iter().any(|m| m.name == *other), "method {name}: no {other}");
        }
        ensure!(!method.step.is_empty(), "method {name}: no step");
        let checks = [method.answer.is_some(), !method.table.is_empty(), method.self_checked];
        let checks = checks.into_iter().filter(|given| *given).count();
        ensure!(checks == 1, "method {name}: one of table, answer and self_checked");
        for step in &method.step {
            let kinds = [
                step.sql.is_some(),
                step.each_lane.is_some(),
                step.at_once.is_some(),
                step.run.is_some(),
            ];
            if kinds.into_iter().filter(|given| *given).count() != 1 {
                bail!("method {name}: one of sql, each_lane, at_once and run in a step");
            }
        }
        for text in method.texts() {
            for variable in template::variables(text) {
                let known = template::KNOWN.contains(&variable)
                    || self.snippets.contains_key(variable)
                    || self.data_of(method).derived.contains_key(variable);
                ensure!(known, "method {name}: nothing is called {{{variable}}}");
            }
        }
        Ok(())
    }
}

impl MethodDefinition {
    /// Every template of the method.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let steps = self.step.iter().flat_map(|s| {
            let one = s.sql.iter().chain(&s.each_lane);
            one.chain(s.run.iter().flatten()).chain(s.at_once.iter().flatten())
        });
        steps.chain(self.answer.iter().flatten()).chain([&self.setup]).map(String::as_str)
    }

    /// Whether any of its texts uses a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.texts().any(|text| template::variables(text).any(|v| v == variable))
    }

    /// How many times it runs, where other methods run `others` times.
    pub fn runs(&self, others: u32) -> u32 {
        if self.once {
            others.min(1)
        } else {
            others
        }
    }

    /// Whether the method uses a PostgreSQL server.
    pub fn has_server(&self) -> bool {
        !self.table.is_empty()
    }
}
