//! One run of one method: fresh server, timed steps, check, crash.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};

use crate::cache;
use crate::check;
use crate::data::Dataset;
use crate::definition::{Data, Durability, MethodDefinition, PageCache, Question};
use crate::proc::{self, ClientUsage, MemoryWatch};
use crate::psql::{Captured, Psql, Told};
use crate::result::{AfterCrash, Answer, Run};
use crate::server::{self, BenchServer, Binaries, ServerSettings, USER};
use crate::template;
use crate::timed::Timed;
use crate::work::bytes_below;

/// The things that a run of any method needs.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The server's programs.
    pub binaries: &'a Binaries,
    /// The folder for all files of a run.
    pub work: &'a Path,
    /// An initialised cluster.
    pub template: &'a Path,
    /// The suite's settings of the server.
    pub settings: &'a ServerSettings,
    /// Variables of every method.
    pub variables: &'a BTreeMap<String, String>,
    /// Connections of parallel steps.
    pub lanes: u32,
    /// State of the page cache at the start.
    pub page_cache: PageCache,
    /// Whether the server is killed after the last round.
    pub crash: bool,
    /// The kept set-ups: the folder of each, by settings and text.
    pub setups: Option<RefCell<BTreeMap<String, PathBuf>>>,
    /// Queries to run on each table.
    pub questions: &'a [Question],
    /// Largest size of the work folder seen, in bytes.
    pub peak: Cell<u64>,
}

/// One method with its input.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The method.
    pub method: &'a MethodDefinition,
    /// Its input's definition.
    pub data: &'a Data,
    /// The input.
    pub set: &'a Dataset,
    /// The data that the setup loads into the table beforehand.
    pub base: Option<&'a Dataset>,
}

/// Durations and sizes of the timed steps, taken when they have just ended.
struct Taken {
    timed: Timed,
    wal_bytes: u64,
    table_bytes: u64,
    index_bytes: u64,
    cpu_seconds: f64,
    peak_bytes: u64,
    written: Option<u64>,
}

impl Bench<'_> {
    /// Runs a method once. The last round makes all checks. In a suite with `crash`, it also kills
    /// the server: before the checks if the method claims durability, after them if not.
    pub fn run(&self, case: Case<'_>, round: u32, last: bool) -> Result<Run> {
        let start = Instant::now();
        let scratch = self.work.join("scratch");
        server::remove_dir(&scratch)?;
        self.binaries.make_dir(&scratch)?;
        let outcome = if case.method.has_server() {
            self.run_with_server(case, round, last, &scratch)
        } else {
            self.run_foreign(case, round, &scratch)
        };
        self.peak.set(self.peak.get().max(bytes_below(self.work)?));
        server::remove_dir(&self.work.join("data"))?;
        server::remove_dir(&scratch)?;
        outcome.map(|run| Run { whole_seconds: start.elapsed().as_secs_f64(), ..run })
    }

    fn run_with_server(
        &self,
        case: Case<'_>,
        round: u32,
        last: bool,
        scratch: &Path,
    ) -> Result<Run> {
        let data = self.work.join("data");
        let mut settings = self.settings.clone();
        settings.extend(case.method.settings.clone());
        let server = self.set_up(case, &data, &settings, scratch)?;
        let values = self.values(case, Some(&server), scratch);
        self.prepare_cache(case)?;
        let Taken { timed, wal_bytes, table_bytes, index_bytes, cpu_seconds, peak_bytes, written } =
            self.timed(case, &server, &values, scratch)?;
        let claimed = case.method.durability;
        let crash = last && self.crash;
        // Durable rows must survive a crash right after the command has returned. So crash first:
        // even a check could make the server write out its buffers.
        let kept = matches!(claimed, Durability::Kept | Durability::LocalOnly);
        let alive = if crash && kept {
            server.crash()?;
            None
        } else {
            Some(server)
        };
        let floor_seconds = written.map(|n| proc::floor_seconds(self.work, n)).transpose()?;
        let server = alive.map_or_else(|| self.recovered(&data, &settings), Ok)?;
        let answer = check::table(server.psql(), case, self.questions, last);
        let answer = if crash && kept {
            answer.with_context(|| format!("after kill -9, `{}` being said", claimed.word()))?
        } else {
            answer?
        };
        let after_crash = match (crash, kept) {
            (false, _) => None,
            (true, true) => Some(AfterCrash { rows: answer.checksum.rows, same: true }),
            (true, false) => Some(self.look_after_crash(case, server, &data, &settings)?),
        };
        Ok(Run {
            round,
            seconds: timed.seconds,
            whole_seconds: 0.0,
            phases: timed.phases,
            wal_bytes: Some(wal_bytes),
            table_bytes: Some(table_bytes),
            index_bytes: Some(index_bytes),
            server_cpu_seconds: Some(cpu_seconds),
            client_cpu_seconds: timed.usage.cpu_seconds,
            server_peak_bytes: Some(peak_bytes),
            client_peak_bytes: timed.usage.peak_bytes,
            written_bytes: written,
            floor_seconds,
            notes: timed.told.notes,
            figures: timed.told.figures,
            answer,
            after_crash,
        })
    }

    /// A server on which the method's set-up was made, either by running it or from a copy of the
    /// folder that it left.
    fn set_up(
        &self,
        case: Case<'_>,
        data: &Path,
        settings: &ServerSettings,
        scratch: &Path,
    ) -> Result<BenchServer> {
        let Some(kept) = &self.setups else {
            return self.run_setup(case, data, settings, scratch);
        };
        // The text of a kept set-up must not depend on the server's address.
        let text = template::fill(&case.method.setup, &self.values(case, None, scratch))?;
        let key = format!("{settings:?} {:?} {text}", case.method.database);
        let mut kept = kept.borrow_mut();
        if !kept.contains_key(&key) {
            self.run_setup(case, data, settings, scratch)?.stop()?;
            let dir = self.work.join(format!("setup-{}", kept.len()));
            fs::rename(data, &dir)?;
            kept.insert(key.clone(), dir);
        }
        // The first run has a copy as well, as all others have.
        server::fresh_copy(&kept[&key], data)?;
        BenchServer::start(self.binaries, data, self.work, settings)
    }

    fn run_setup(
        &self,
        case: Case<'_>,
        data: &Path,
        settings: &ServerSettings,
        scratch: &Path,
    ) -> Result<BenchServer> {
        server::fresh_copy(self.template, data)?;
        let server = BenchServer::start(self.binaries, data, self.work, settings)?;
        if let Some(options) = &case.method.database {
            server.remake_database(options)?;
        }
        let setup = template::fill(&case.method.setup, &self.values(case, Some(&server), scratch))?;
        server.psql().script(&setup, scratch).context("setup")?;
        server.psql().query("CHECKPOINT", USER)?;
        Ok(server)
    }

    /// Runs the steps and measures their cost. The queries here write nothing.
    fn timed(
        &self,
        case: Case<'_>,
        server: &BenchServer,
        values: &BTreeMap<String, String>,
        scratch: &Path,
    ) -> Result<Taken> {
        let psql = server.psql();
        let wal = psql.query("SELECT pg_current_wal_insert_lsn()", USER)?;
        let before = proc::server_usage(server.pid());
        let watch = MemoryWatch::start(server.pid());
        let timed = self.steps(case, Some(psql), values, scratch);
        let peak_bytes = watch.finish();
        let after = proc::server_usage(server.pid());
        let timed = timed?;
        let table = &case.method.table;
        let sizes = format!(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{wal}'), \
             sum(pg_table_size(relid)), sum(pg_indexes_size(relid)) \
             FROM (SELECT relid FROM pg_partition_tree('{table}') \
               UNION SELECT '{table}'::regclass) AS relations"
        );
        let sizes = psql.query(&sizes, USER)?;
        let sizes: Vec<u64> = sizes.split('|').map(str::parse::<u64>).collect::<Result<_, _>>()?;
        let [wal_bytes, table_bytes, index_bytes] = sizes[..] else { bail!("sizes: {sizes:?}") };
        let written = after.written_bytes.zip(before.written_bytes);
        Ok(Taken {
            timed,
            wal_bytes,
            table_bytes,
            index_bytes,
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            peak_bytes,
            written: written.and_then(|(a, b)| u64::try_from(a - b).ok()),
        })
    }

    /// Starts a server again after it was killed.
    fn recovered(&self, data: &Path, settings: &ServerSettings) -> Result<BenchServer> {
        // This server only reads the rows left, so it need not sync the whole folder first.
        let mut settings = settings.clone();
        settings.insert("fsync".to_owned(), "off".to_owned());
        BenchServer::start(self.binaries, data, self.work, &settings)
            .context("after kill -9 of the server")
    }

    /// Counts the rows left after a crash of a server whose rows may be lost. An unlogged table
    /// must be empty.
    fn look_after_crash(
        &self,
        case: Case<'_>,
        server: BenchServer,
        data: &Path,
        settings: &ServerSettings,
    ) -> Result<AfterCrash> {
        server.crash()?;
        let server = self.recovered(data, settings)?;
        let left = check::checksum(server.psql(), case)?;
        server.stop()?;
        let claimed = case.method.durability;
        ensure!(
            claimed != Durability::WholeTable || left.rows == 0,
            "durability is said to be `{}`, but {} rows are left after kill -9",
            claimed.word(),
            left.rows
        );
        Ok(AfterCrash { rows: left.rows, same: check::matches(case, left) })
    }

    /// Runs a program that keeps the rows itself. It writes them out as CSV for the check.
    fn run_foreign(&self, case: Case<'_>, round: u32, scratch: &Path) -> Result<Run> {
        self.prepare_cache(case)?;
        let values = self.values(case, None, scratch);
        let timed = self.steps(case, None, &values, scratch)?;
        let bytes = bytes_below(scratch)?;
        let answer = match &case.method.answer {
            Some(arguments) => {
                self.program(arguments, &values, scratch, "answer")?;
                check::csv(&scratch.join("answer.csv"), case)?
            }
            None => Answer::of_itself(),
        };
        Ok(Run {
            round,
            seconds: timed.seconds,
            whole_seconds: 0.0,
            phases: timed.phases,
            wal_bytes: None,
            table_bytes: None,
            index_bytes: None,
            server_cpu_seconds: None,
            client_cpu_seconds: timed.usage.cpu_seconds,
            server_peak_bytes: None,
            client_peak_bytes: timed.usage.peak_bytes,
            written_bytes: Some(bytes),
            floor_seconds: Some(proc::floor_seconds(self.work, bytes)?),
            notes: timed.told.notes,
            figures: timed.told.figures,
            answer,
            after_crash: None,
        })
    }

    fn values(
        &self,
        case: Case<'_>,
        server: Option<&BenchServer>,
        scratch: &Path,
    ) -> BTreeMap<String, String> {
        let mut values = self.variables.clone();
        let mut put = |name: &str, value: String| values.insert(name.to_owned(), value);
        put("csv", case.set.csv.display().to_string());
        put("typed_columns", case.data.columns.join(", "));
        put("column_names", case.data.names().join(", "));
        put("rows", case.set.text.rows.to_string());
        put("copies", case.method.copies.to_string());
        put("lanes", self.lanes_of(case.method).to_string());
        put("scratch", scratch.display().to_string());
        put("summary", scratch.join("summary.json").display().to_string());
        put("answer", scratch.join("answer.csv").display().to_string());
        if let Some(base) = case.base {
            put("base", base.csv.display().to_string());
        }
        for (name, path) in &case.set.derived {
            put(name, path.display().to_string());
        }
        if let Some(server) = server {
            put("url", server.psql().url());
            put("host", server.psql().host.display().to_string());
            put("port", server.port().to_string());
            put("user", USER.to_owned());
            put("database", USER.to_owned());
        }
        values
    }

    /// Connections of a method's parallel steps.
    pub fn lanes_of(&self, method: &MethodDefinition) -> u32 {
        method.lanes.unwrap_or(self.lanes)
    }

    /// Brings the input files into the page cache, or drops them from it.
    fn prepare_cache(&self, case: Case<'_>) -> Result<()> {
        // Without this, pending writes of one run would slow down the next one, which is the same
        // method in every round. A suite without fsync is not for measuring.
        if self.settings.get("fsync").is_none_or(|on| on != "off") {
            rustix::fs::syncfs(File::open(self.work)?)?;
        }
        let lanes = self.lanes_of(case.method);
        let parts = case.set.parts.get(&lanes).into_iter().flatten();
        for path in case.set.derived.values().chain(parts).chain([&case.set.csv]) {
            match self.page_cache {
                PageCache::Warm => {
                    io::copy(&mut File::open(path)?, &mut io::sink())?;
                }
                PageCache::Dropped => cache::drop_file(path)?,
            }
        }
        Ok(())
    }

    /// Runs the timed steps. Adjacent SQL steps share one session.
    fn steps(
        &self,
        case: Case<'_>,
        psql: Option<&Psql>,
        values: &BTreeMap<String, String>,
        scratch: &Path,
    ) -> Result<Timed> {
        let mut timed = Timed::default();
        let steps = &case.method.step;
        let mut at = 0;
        while let Some(step) = steps.get(at) {
            let psql = || psql.context("SQL steps need a server");
            let name = format!("step-{at}");
            if step.sql.is_some() {
                let sql = steps[at..].iter().map_while(|s| Some((&*s.phase, s.sql.as_deref()?)));
                let filled: Vec<(&str, String)> = sql
                    .map(|(phase, sql)| Ok((phase, template::fill(sql, values)?)))
                    .collect::<Result<_>>()?;
                at += filled.len();
                let phases: Vec<(&str, &str)> = filled.iter().map(|(p, s)| (*p, &**s)).collect();
                timed.session(psql()?, &phases, scratch, &name)?;
                continue;
            }
            if let Some(statements) = self.at_once(case, step, values)? {
                timed.at_once(psql()?, &step.phase, &statements, scratch, &name)?;
            } else if let Some(run) = &step.run {
                let start = Instant::now();
                let (usage, told) = self.program(run, values, scratch, &name)?;
                timed.add(start.elapsed().as_secs_f64(), usage);
                timed.told.add(told);
                timed.phase(&step.phase, start.elapsed().as_secs_f64());
            }
            at += 1;
        }
        let rows = case.set.text.rows * u64::from(case.method.copies);
        timed.read_summary(&scratch.join("summary.json"), rows)?;
        Ok(timed)
    }

    /// The statements of a step that several sessions run at once; `None` for other steps.
    fn at_once(
        &self,
        case: Case<'_>,
        step: &crate::definition::MethodStep,
        values: &BTreeMap<String, String>,
    ) -> Result<Option<Vec<String>>> {
        if let Some(statements) = &step.at_once {
            return statements
                .iter()
                .map(|s| template::fill(s, values))
                .collect::<Result<_>>()
                .map(Some);
        }
        let Some(sql) = &step.each_lane else { return Ok(None) };
        let lanes = self.lanes_of(case.method);
        let parts = case.set.parts.get(&lanes).context("the shares were not made")?;
        let one = |(lane, part): (usize, &PathBuf)| {
            let mut values = values.clone();
            values.insert("part".to_owned(), part.display().to_string());
            values.insert("lane".to_owned(), lane.to_string());
            template::fill(sql, &values)
        };
        parts.iter().enumerate().map(one).collect::<Result<_>>().map(Some)
    }

    /// Runs a program to its end. Returns its resource usage and its report.
    fn program(
        &self,
        arguments: &[String],
        values: &BTreeMap<String, String>,
        scratch: &Path,
        name: &str,
    ) -> Result<(ClientUsage, Told)> {
        let filled: Vec<String> =
            arguments.iter().map(|a| template::fill(a, values)).collect::<Result<_>>()?;
        let Some((program, rest)) = filled.split_first() else { bail!("an empty command") };
        let mut command = Command::new(program);
        command.args(rest).current_dir(scratch).stdin(std::process::Stdio::null());
        let files = Captured::new(scratch, name);
        let client = files.spawn(&mut command)?;
        let what =
            Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((files.wait(client, &what)?, files.told()))
    }
}

/// Prints one line of progress to standard error.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
