//! `pgsluice server start --nodes N`: a coordinator and nodes, each a separate server in one
//! folder, and a table whose hash partitions are on the nodes.

use crate::failure::Failure;
use crate::sample_data::SampleTable;
use pgsluice_pgserver::{Server, ServerOptions, StopMode};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The setting that every server of a cluster needs for loads that commit on all nodes together.
const SETTING: (&str, &str) = ("max_prepared_transactions", "16");

/// The folders of the nodes in a server's folder.
pub(super) fn nodes_in(dir: &Path) -> Vec<PathBuf> {
    (1..).map(|node| node_dir(dir, node)).take_while(|dir| dir.is_dir()).collect()
}

fn node_dir(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("node{node}"))
}

/// The number of nodes to start: the existing ones, or as many as requested.
///
/// # Errors
///
/// There are nodes already, but not as many as requested.
pub(super) fn number(dir: &Path, asked: Option<u16>) -> Result<usize, Failure> {
    let there = nodes_in(dir).len();
    match asked.map(usize::from) {
        Some(asked) if there > 0 && asked != there => {
            Err(Failure::new(format!("the cluster in {dir:?} has {there} nodes, not {asked}"))
                .with_hint("use another folder: the rows are where the number of nodes puts them"))
        }
        asked => Ok(asked.unwrap_or(there)),
    }
}

/// Adds the setting for a cluster, unless it is given.
pub(super) fn add_setting(options: &mut ServerOptions) {
    if options.settings.iter().all(|(name, _)| name != SETTING.0) {
        options.settings.push((SETTING.0.into(), SETTING.1.into()));
    }
}

/// Starts the nodes that are not running.
pub(super) fn start_nodes(
    dir: &Path,
    number: usize,
    coordinator: &ServerOptions,
) -> Result<Vec<Server>, Failure> {
    let node = |n| {
        let dir = node_dir(dir, n);
        if let Some(running) = Server::attach(&dir)? {
            return Ok(running);
        }
        Ok(Server::start(ServerOptions { dir: Some(dir), port: None, ..coordinator.clone() })?)
    };
    (1..=number).map(node).collect()
}

/// Creates the tables if they are missing, and the foreign servers on the coordinator.
pub(super) fn connect(coordinator: &Server, nodes: &[Server]) -> Result<(), Failure> {
    let ddl = SampleTable::Lineitem.ddl().replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS");
    let table = ddl.trim_end().trim_end_matches(';');
    let mut sql = "CREATE EXTENSION IF NOT EXISTS postgres_fdw;\n".to_owned();
    let modulus = nodes.len();
    let partitioned = format!("{table} PARTITION BY HASH (l_orderkey);\n");
    for (i, node) in nodes.iter().enumerate() {
        run(node, &ddl)?;
        let name = format!("node{}", i + 1);
        let host = node.socket_dir().to_string_lossy().replace('\'', "''");
        // Writing to a string cannot fail. Set the host again, because the folder may have been
        // moved.
        let _ = write!(
            sql,
            "CREATE SERVER IF NOT EXISTS {name} FOREIGN DATA WRAPPER postgres_fdw \
               OPTIONS (host '', port '5432', dbname 'postgres');\n\
             ALTER SERVER {name} OPTIONS (SET host '{host}');\n\
             CREATE USER MAPPING IF NOT EXISTS FOR CURRENT_USER SERVER {name} \
               OPTIONS (user 'postgres');\n"
        );
    }
    sql.push_str(&partitioned);
    for remainder in 0..modulus {
        let n = remainder + 1;
        let _ = writeln!(
            sql,
            "CREATE FOREIGN TABLE IF NOT EXISTS lineitem_{n} PARTITION OF lineitem \
               FOR VALUES WITH (MODULUS {modulus}, REMAINDER {remainder}) \
               SERVER node{n} OPTIONS (table_name 'lineitem');"
        );
    }
    run(coordinator, &sql)
}

/// Stops all servers in a folder. Returns false if none runs.
pub(super) fn stop(dir: &Path, mode: StopMode) -> Result<bool, Failure> {
    let mut any = false;
    for dir in [dir.to_owned()].into_iter().chain(nodes_in(dir)) {
        if let Some(mut server) = Server::attach(&dir)? {
            server.stop(mode)?;
            any = true;
        }
    }
    Ok(any)
}

/// Runs statements in one transaction, with the server's own psql.
fn run(server: &Server, sql: &str) -> Result<(), Failure> {
    let psql = server.installation().program("psql");
    let failed = |what: String| {
        Failure::new(format!("cannot set up the nodes: {what}"))
            .with_hint("a cluster needs a PostgreSQL with psql and postgres_fdw: see --pg-bin")
    };
    let mut child = server
        .command("psql")
        .args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", "-", "-d"])
        .arg(server.url("postgres"))
        .env("PGOPTIONS", "-c client_min_messages=warning")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(format!("{}: {e}", psql.display())))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If psql stops reading, it has printed an error message, which is reported below.
        let _ = stdin.write_all(sql.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
