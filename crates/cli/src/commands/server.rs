//! `pgsluice server`: controls the embedded server.

mod cluster;

use crate::failure::Failure;
use crate::output::{print, say};
use clap::{Args, Subcommand};
use pgsluice_pgserver::{default_dir, find_all, Server, ServerOptions, StopMode};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code of `server status` if no server runs, as of `pg_ctl status`.
const NOT_RUNNING: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  pgsluice server start
  psql \"$(pgsluice server url)\"
  pgsluice server start --nodes 4 --dir /tmp/cluster
  pgsluice server stop";

/// Start and stop a private PostgreSQL server for first use and for tests
///
/// The server listens on a Unix socket that only its own user can reach; with --port also on
/// 127.0.0.1, where it asks for a password that is kept in a file. Run as root, it runs as the
/// user postgres, or nobody.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// The server's folder [default: in the clone, or in the user's state folder]
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Start the server; create it first if there is none
    Start(Start),
    /// End all sessions and stop the server
    Stop {
        /// Stop at once without a checkpoint; the next start recovers
        #[arg(long)]
        immediate: bool,
    },
    /// Print the connection URL
    Url {
        /// Database
        #[arg(default_value = "postgres")]
        database: String,
        /// Print the URL for 127.0.0.1 instead of that of the Unix socket; the server must have
        /// been started with --port
        #[arg(long)]
        tcp: bool,
    },
    /// Report whether the server runs: exit code 0 if it does, 3 if not
    Status,
    /// List the PostgreSQL servers found on this machine, the preferred one first
    List,
}

#[derive(Args)]
struct Start {
    /// Folder of the server's programs [default: $PGSLUICE_PG_BIN, the embedded package,
    /// pg_config's, Debian's]
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Major version [default: that of existing data, or the best there is]
    #[arg(long, value_name = "N")]
    major: Option<u32>,
    /// Also listen on this port of 127.0.0.1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Start a cluster instead: the server as coordinator, and N nodes, in folders below its own.
    /// The table lineitem (see sample) is spread over them by foreign tables of postgres_fdw
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: Option<u16>,
    /// A setting of the server for this start; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("not of the form NAME=VALUE".into()),
    }
}

pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let dir = match arguments.dir {
        Some(dir) => dir,
        None => default_dir()?,
    };
    let running = || {
        Server::attach(&dir)?.ok_or_else(|| {
            Failure::new(format!("no server runs in {dir:?}"))
                .with_hint("start one with pgsluice server start")
        })
    };
    match arguments.action {
        Action::Start(asked) => start(dir, asked)?,
        Action::Stop { immediate } => {
            let mode = if immediate { StopMode::Immediate } else { StopMode::Fast };
            if !cluster::stop(&dir, mode)? {
                // Report that no server runs.
                running()?;
            }
            say(format_args!("the server in {dir:?} is stopped"));
        }
        Action::Url { database, tcp: false } => print(running()?.url(&database))?,
        Action::Url { database, tcp: true } => match running()?.tcp_url(&database) {
            Some(url) => print(url)?,
            None => {
                return Err(Failure::new("the server listens on no port")
                    .with_hint("stop it, and start it with --port N"));
            }
        },
        Action::Status => match Server::attach(&dir)? {
            Some(server) => print(status(&server)?)?,
            None => {
                print(format!("no server runs in {dir:?}"))?;
                return Ok(ExitCode::from(NOT_RUNNING));
            }
        },
        Action::List => {
            for found in find_all() {
                let bin = found.bin.display();
                print(format!("{}\t{}\t{bin}", found.version, found.origin))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn start(dir: PathBuf, asked: Start) -> Result<(), Failure> {
    let number = cluster::number(&dir, asked.nodes)?;
    let mut options = ServerOptions {
        pg_bin: asked.pg_bin,
        major: asked.major,
        dir: Some(dir.clone()),
        port: asked.port,
        settings: asked.settings,
        offer_extension: true,
        ..ServerOptions::default()
    };
    if number > 0 {
        cluster::add_setting(&mut options);
    }
    if let Some(server) = Server::attach(&dir)? {
        let running = format!("PostgreSQL {} already runs in {dir:?}", server.version());
        let lacks = server.lacks(&options)?;
        if !lacks.is_empty() {
            return Err(Failure::new(format!("{running}, without {}", lacks.join(", ")))
                .with_hint("stop it first: pgsluice server stop"));
        }
        say(running);
        start_nodes(&server, number, &options)?;
        return print(server.url("postgres"));
    }
    let server = Server::start(options.clone())?;
    let url = server.url("postgres");
    say(format_args!("PostgreSQL {} runs in {dir:?}", server.version()));
    start_nodes(&server, number, &options)?;
    server.detach();
    print(url)
}

/// Starts the nodes of a cluster. They keep running afterwards.
fn start_nodes(
    coordinator: &Server,
    number: usize,
    options: &ServerOptions,
) -> Result<(), Failure> {
    if number == 0 {
        return Ok(());
    }
    let nodes = cluster::start_nodes(coordinator.dir(), number, options)?;
    cluster::connect(coordinator, &nodes)?;
    nodes.into_iter().for_each(Server::detach);
    say(format_args!("{number} nodes run in folders below it"));
    Ok(())
}

fn status(server: &Server) -> Result<String, Failure> {
    let mut lines = vec![
        format!("version\t{}", server.version()),
        format!("process\t{}", server.pid().unwrap_or_default()),
        format!("programs\t{}", server.installation().bin.display()),
        format!("data\t{}", server.data().display()),
        format!("log\t{}", server.log().display()),
        format!("url\t{}", server.url("postgres")),
    ];
    lines.extend(server.tcp_url("postgres").map(|url| format!("tcp\t{url}")));
    if server.installation().has_extension() {
        lines.push("extension\tinstalled; SET pgsluice.copy = on".to_owned());
    }
    for (i, dir) in cluster::nodes_in(server.dir()).iter().enumerate() {
        let node = Server::attach(dir)?.map(|node| node.url("postgres"));
        lines.push(format!("node{}\t{}", i + 1, node.unwrap_or_else(|| "does not run".into())));
    }
    Ok(lines.join("\n"))
}
