//! The program: arguments in, exit code out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use pgsluice_bench::definition::{PageCache, Suite};
use pgsluice_bench::environment::Environment;
use pgsluice_bench::readme::KeptRuns;
use pgsluice_bench::run::{self, RunOptions};
use pgsluice_bench::{compare, measure, proc, readme, report};

/// Rebuilds the published loading benchmarks of the field on this machine.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Task>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Name the suites and their methods
    List {
        /// Folder of the definitions
        #[arg(long)]
        suites: Option<PathBuf>,
    },
    /// Write the Markdown and HTML pages of a folder of runs again
    Report {
        /// Folder with the suites' JSON files
        dir: PathBuf,
        /// Folder of the definitions [default: bench/suites]
        #[arg(long, value_name = "DIR")]
        suites: Option<PathBuf>,
    },
    /// Show the ratios of run B to run A; fail when a method became slower than tolerated
    Compare {
        /// The earlier run: a folder, or one suite's file
        a: PathBuf,
        /// The later run
        b: PathBuf,
        /// Share by which a method may be slower
        #[arg(long, default_value_t = 0.1)]
        tolerance: f64,
        /// Judge by each method's ratio to its counterpart in the same run, not by its seconds
        #[arg(long)]
        relative: bool,
    },
    /// Write the figures between the markers of pages again, from the kept runs
    Readme {
        /// Write nothing; fail when a figure differs
        #[arg(long)]
        check: bool,
        /// Folder of the kept runs [default: bench/runs]
        #[arg(long, value_name = "DIR")]
        runs: Option<PathBuf>,
        /// Folder of the definitions [default: bench/suites]
        #[arg(long, value_name = "DIR")]
        suites: Option<PathBuf>,
        /// The pages [default: README.md and docs/results.md]
        pages: Vec<PathBuf>,
    },
}

#[derive(Args, Debug)]
struct RunArguments {
    /// Suites to run, or `all`
    #[arg(value_name = "SUITE")]
    suite: Vec<String>,
    /// Fewer rows and runs: all suites in about a quarter of an hour
    #[arg(long)]
    quick: bool,
    /// Rows, instead of the suite's; several make a curve
    #[arg(long, value_delimiter = ',')]
    rows: Vec<u64>,
    /// Runs of each method, instead of the suite's
    #[arg(long)]
    runs: Option<u32>,
    /// State of the page cache for the source file, instead of what the suite says
    #[arg(long, value_enum)]
    page_cache: Option<PageCache>,
    /// Folder of the PostgreSQL programs to run [default: the newest installed]
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Only these methods
    #[arg(long, value_name = "METHOD", value_delimiter = ',')]
    only: Vec<String>,
    /// Compare every method with this one, instead of what the suite says
    #[arg(long, value_name = "METHOD")]
    against: Option<String>,
    /// Connections of parallel methods [default: the number of cores]
    #[arg(long)]
    lanes: Option<u32>,
    /// Seed of the samples
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The loader [default: target/release/pgsluice]
    #[arg(long, value_name = "PROGRAM")]
    pgsluice: Option<PathBuf>,
    /// Python with the rivals' modules [default: build/bench-venv/bin/python, else python3]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// Folder of the definitions [default: bench/suites]
    #[arg(long, value_name = "DIR")]
    suites: Option<PathBuf>,
    /// Folder of the result [default: bench/runs/<date>-<machine>]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder for data and servers, removed at the end [default: /var/tmp/pgsluice-bench-<uid>]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Extrapolate the time of sampled methods to all rows, and mark it
    #[arg(long)]
    extrapolate: bool,
    /// Replace an existing result instead of continuing it
    #[arg(long)]
    fresh: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        None => run_suites(cli.run),
        Some(Task::List { suites }) => list(suites),
        Some(Task::Report { dir, suites }) => report(&dir, suites),
        Some(Task::Compare { a, b, tolerance, relative }) => compare(&a, &b, tolerance, relative),
        Some(Task::Readme { check, runs, suites, pages }) => readme(check, runs, suites, pages),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            measure::say(&format!("error: {error:#}"));
            ExitCode::from(1)
        }
    }
}

/// The project's folder: the nearest parent of the current folder that has the definitions.
fn root() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let found = here.ancestors().find(|dir| dir.join("bench/suites").is_dir());
    Ok(found
        .context("run this inside the project's folder, or give --suites and --out")?
        .to_owned())
}

fn default_to(path: Option<PathBuf>, inside: &str) -> Result<PathBuf> {
    path.map_or_else(|| Ok(root()?.join(inside)), Ok)
}

/// A program's path in a form that works from any folder, because the clients of each run start in
/// their own folder. A bare name is looked up on the path.
fn from_anywhere(program: PathBuf) -> Result<PathBuf> {
    let bare = program.components().count() == 1;
    Ok(if bare { program } else { std::path::absolute(program)? })
}

fn run_suites(arguments: RunArguments) -> Result<ExitCode> {
    proc::heed_signals()?;
    let names = arguments.suite.clone();
    let options = options(arguments)?;
    let names = if names == ["all"] { Suite::names(&options.suites)? } else { names };
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let outcome = run::suite(&options, &name);
        // Report the runs there are, however the suite ended.
        let reported = report::write(&options.out, &options.suites);
        let result = match outcome {
            Ok(result) => reported.map(|()| result)?,
            // A failed suite does not stop the others.
            Err(e) if !proc::interrupted() => {
                measure::say(&format!("error: suite {name}: {e:#}"));
                code = ExitCode::from(1);
                continue;
            }
            Err(e) => return Err(e.context(format!("suite {name}"))),
        };
        let failed = result.methods.iter().filter(|m| run::is_fatal(m)).count();
        if failed > 0 {
            measure::say(&format!("{name}: {failed} methods failed"));
            code = ExitCode::from(1);
        }
    }
    Ok(code)
}

fn options(arguments: RunArguments) -> Result<RunOptions> {
    let uid = rustix::process::geteuid().as_raw();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let python = match arguments.python {
        Some(python) => python,
        None => root()
            .map(|r| r.join("build/bench-venv/bin/python"))
            .ok()
            .filter(|p| p.exists())
            .unwrap_or_else(|| PathBuf::from("python3")),
    };
    let out = match arguments.out {
        Some(out) => out,
        None => root()?.join("bench/runs").join(run_name(arguments.quick)),
    };
    Ok(RunOptions {
        quick: arguments.quick,
        rows: arguments.rows,
        runs: arguments.runs,
        page_cache: arguments.page_cache,
        pg_bin: arguments.pg_bin,
        only: arguments.only,
        against: arguments.against,
        lanes: arguments.lanes.unwrap_or(cores as u32),
        seed: arguments.seed,
        pgsluice: from_anywhere(default_to(arguments.pgsluice, "target/release/pgsluice")?)?,
        python: from_anywhere(python)?,
        suites: default_to(arguments.suites, "bench/suites")?,
        out,
        work: arguments.work.unwrap_or_else(|| format!("/var/tmp/pgsluice-bench-{uid}").into()),
        extrapolate: arguments.extrapolate,
        fresh: arguments.fresh,
    })
}

/// Name of the folder of a run: date, machine, and the profile where it is the quick one.
fn run_name(quick: bool) -> String {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let here = Environment::look(Path::new("/nonexistent"), "", Path::new("true"), BTreeMap::new());
    let machine = here.machine();
    format!("{date}-{machine}{}", if quick { "-quick" } else { "" })
}

/// This also works outside the project's folder. Then only the results are used.
fn report(dir: &Path, suites: Option<PathBuf>) -> Result<ExitCode> {
    let suites = default_to(suites, "bench/suites").unwrap_or_default();
    report::write(dir, &suites).map(|()| ExitCode::SUCCESS)
}

fn compare(a: &Path, b: &Path, tolerance: f64, relative: bool) -> Result<ExitCode> {
    let found = compare::runs(a, b, tolerance, relative)?;
    for line in &found.lines {
        println!("{line}");
    }
    println!(
        "{} compared, {} not compared, {} worse",
        found.compared, found.not_compared, found.worse
    );
    Ok(if found.worse > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn readme(
    check: bool,
    runs: Option<PathBuf>,
    suites: Option<PathBuf>,
    pages: Vec<PathBuf>,
) -> Result<ExitCode> {
    let kept = KeptRuns {
        runs: default_to(runs, "bench/runs")?,
        suites: default_to(suites, "bench/suites").unwrap_or_default(),
    };
    let pages = if pages.is_empty() {
        let root = root()?;
        vec![root.join("README.md"), root.join("docs/results.md")]
    } else {
        pages
    };
    let mut code = ExitCode::SUCCESS;
    for path in pages {
        let page =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let generated =
            readme::generate(&page, &kept).with_context(|| path.display().to_string())?;
        if generated == page {
            continue;
        }
        if check {
            measure::say(&format!(
                "{}: figures differ from the kept runs\nhint: pgsluice-bench readme",
                path.display()
            ));
            code = ExitCode::from(1);
        } else {
            fs::write(&path, generated)?;
        }
    }
    Ok(code)
}

fn list(suites: Option<PathBuf>) -> Result<ExitCode> {
    let dir = default_to(suites, "bench/suites")?;
    for name in Suite::names(&dir)? {
        let suite = Suite::read(&dir, &name)?;
        println!("{name}: {}", suite.title);
        for method in &suite.method {
            println!("    {:<24} {} ({})", method.name, method.title, method.durability.word());
        }
    }
    Ok(ExitCode::SUCCESS)
}
