//! The program: arguments in, exit code out.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use pgsluice_bench::definition::Suite;
use pgsluice_bench::environment::Environment;
use pgsluice_bench::run::{self, Options};
use pgsluice_bench::{measure, proc};

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
}

#[derive(Args, Debug)]
struct RunArguments {
    /// Suites to run, or `all`
    #[arg(value_name = "SUITE")]
    suite: Vec<String>,
    /// Fewer rows and runs: all suites in about a quarter of an hour
    #[arg(long)]
    quick: bool,
    /// Rows, instead of the suite's
    #[arg(long)]
    rows: Option<u64>,
    /// Runs of each method, instead of the suite's
    #[arg(long)]
    runs: Option<u32>,
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
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            measure::say(&format!("error: {error:#}"));
            ExitCode::from(1)
        }
    }
}

/// The project's folder: the nearest one upwards that has the definitions.
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

fn run_suites(arguments: RunArguments) -> Result<ExitCode> {
    proc::heed_signals()?;
    let names = arguments.suite.clone();
    let options = options(arguments)?;
    let names = if names == ["all"] { Suite::names(&options.suites)? } else { names };
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let result = run::suite(&options, &name).with_context(|| format!("suite {name}"))?;
        let failed = result.methods.iter().filter(|m| run::is_fatal(m)).count();
        if failed > 0 {
            measure::say(&format!("{name}: {failed} methods failed"));
            code = ExitCode::from(1);
        }
    }
    Ok(code)
}

fn options(arguments: RunArguments) -> Result<Options> {
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
    Ok(Options {
        quick: arguments.quick,
        rows: arguments.rows,
        runs: arguments.runs,
        pg_bin: arguments.pg_bin,
        only: arguments.only,
        against: arguments.against,
        lanes: arguments.lanes.unwrap_or(cores as u32),
        seed: arguments.seed,
        pgsluice: default_to(arguments.pgsluice, "target/release/pgsluice")?,
        python,
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
    let machine = Environment::look(Path::new("/nonexistent"), "", Path::new("true")).machine();
    format!("{date}-{machine}{}", if quick { "-quick" } else { "" })
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
