//! A coordinator and three nodes, each a separate server, and loads that are held, cut and killed.

use crate::common::proxy::Proxy;
use crate::common::{each_major, left_out, wait_until, World};
use pgsluice_pgserver::{Installation, StopMode};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};

pub const NODES: usize = 3;

/// The partitions of the tables `t` and `s`, one for each remainder of 4, and the node of each.
const LEAVES: [usize; 4] = [0, 1, 0, 2];

/// The number of rows in a file.
pub const ROWS: usize = 12_000;

pub struct Servers {
    pub coordinator: World,
    pub nodes: Vec<World>,
    /// files so far
    files: usize,
}

impl Servers {
    fn new(installation: &Installation) -> Option<Servers> {
        let mut coordinator = World::new(installation);
        if coordinator.conn.exec("CREATE EXTENSION postgres_fdw").is_err() {
            left_out(&format!("PostgreSQL {}: it has no postgres_fdw", coordinator.major()));
            return None;
        }
        let nodes = (0..NODES).map(|_| World::new(installation)).collect();
        let mut servers = Servers { coordinator, nodes, files: 0 };
        for node in 0..NODES {
            servers.coordinator.sql(&format!(
                "CREATE SERVER n{node} FOREIGN DATA WRAPPER postgres_fdw
                   OPTIONS (host '-', port '5432', dbname 'postgres', batch_size '1000')"
            ));
            servers.coordinator.sql(&format!(
                "CREATE USER MAPPING FOR CURRENT_USER SERVER n{node} OPTIONS (user 'postgres')"
            ));
            servers.directly(node);
        }
        for name in ["t", "s"] {
            let columns = "a int, b text";
            servers
                .coordinator
                .sql(&format!("CREATE TABLE {name} ({columns}) PARTITION BY HASH (a)"));
            for (leaf, node) in LEAVES.into_iter().enumerate() {
                servers.nodes[node].sql(&format!("CREATE TABLE {name}_{leaf} ({columns})"));
                servers.coordinator.sql(&format!(
                    "CREATE FOREIGN TABLE {name}_{leaf} PARTITION OF {name}
                       FOR VALUES WITH (MODULUS 4, REMAINDER {leaf}) SERVER n{node}"
                ));
            }
        }
        Some(servers)
    }

    /// From now on, the loader connects directly to the node.
    pub fn directly(&mut self, node: usize) {
        let host = self.nodes[node].server.socket_dir().to_str().unwrap().to_owned();
        self.reached_at(node, &host, 5432);
    }

    /// From now on, the loader connects to the node through a proxy.
    pub fn through(&mut self, node: usize, proxy: &Proxy) {
        self.reached_at(node, &proxy.host(), proxy.port());
    }

    fn reached_at(&mut self, node: usize, host: &str, port: u16) {
        self.coordinator
            .sql(&format!("ALTER SERVER n{node} OPTIONS (SET host '{host}', SET port '{port}')"));
    }

    /// Creates a file that no load has seen, empties the tables, and loads the file into `s` by
    /// stock COPY.
    pub fn file(&mut self) -> String {
        let file = self.more();
        for name in ["t", "s"] {
            for (leaf, node) in LEAVES.into_iter().enumerate() {
                self.nodes[node].sql(&format!("TRUNCATE {name}_{leaf}"));
            }
        }
        self.expect(&file);
        file
    }

    /// Creates a file that no load has seen.
    pub fn more(&mut self) -> String {
        self.files += 1;
        let number = self.files;
        let rows: String = (0..ROWS).map(|i| format!("{i},file {number}\n")).collect();
        self.coordinator.file(&format!("{number}.csv"), rows.as_bytes())
    }

    /// Adds the rows of a file to the table `s`, by stock COPY through the coordinator.
    pub fn expect(&mut self, file: &str) {
        let rows = fs::read(file).unwrap();
        self.coordinator.stock("COPY s FROM STDIN CSV", &rows).unwrap();
    }

    /// Checks that `t` has the rows of `s` on the same nodes, but none on the nodes that are
    /// `open`, and that no transaction is prepared.
    pub fn has_all_but(&mut self, open: &[usize], what: &str) {
        for (leaf, node) in LEAVES.into_iter().enumerate() {
            let world = &mut self.nodes[node];
            if open.contains(&node) {
                let rows = world.sql(&format!("SELECT count(*) FROM t_{leaf}"));
                assert_eq!(rows, "0", "{what}: leaf {leaf}");
            } else {
                let (t, s) = (format!("t_{leaf}"), format!("s_{leaf}"));
                assert_eq!(world.difference(&t, &s), "", "{what}: leaf {leaf}");
            }
        }
        assert_eq!(self.prepared(), 0, "{what}");
    }

    pub fn has_all(&mut self, what: &str) {
        self.has_all_but(&[], what);
    }

    /// The number of transactions that are prepared on the nodes.
    pub fn prepared(&mut self) -> usize {
        let count = |node: &mut World| node.sql("SELECT count(*) FROM pg_prepared_xacts");
        self.nodes.iter_mut().map(|node| count(node).parse::<usize>().unwrap()).sum()
    }

    /// Kills a node's server, or shuts it down in immediate mode.
    pub fn kill(&mut self, node: usize, at_once: bool) {
        kill(&mut self.nodes[node], at_once);
    }

    pub fn load(&self, to: &str, file: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        self.arguments(&mut command, to, file, more);
        command
    }

    pub fn arguments(&self, command: &mut Command, to: &str, file: &str, more: &[&str]) {
        let summary = self.coordinator.path("summary.json");
        command.args(["load", file, "--table", "t", "--route", "nodes", "--quiet"]);
        command.args(["--summary", &summary, "--to", to]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Starts a load.
    pub fn start(&self, file: &str, more: &[&str]) -> Child {
        let url = self.coordinator.server.url("postgres");
        self.load(&url, file, more).spawn().unwrap()
    }

    /// Runs a load; returns its outcome.
    pub fn run(&self, file: &str, more: &[&str]) -> Ended {
        self.ended(self.start(file, more).wait_with_output().unwrap())
    }

    pub fn wait(&self, load: Child) -> Ended {
        self.ended(load.wait_with_output().unwrap())
    }

    pub fn ended(&self, output: Output) -> Ended {
        let summary = fs::read(self.coordinator.path("summary.json")).unwrap();
        Ended {
            code: output.status.code(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
            summary: serde_json::from_slice(&summary).unwrap(),
        }
    }
}

/// Kills a server, or shuts it down in immediate mode.
pub fn kill(world: &mut World, at_once: bool) {
    match at_once {
        true => world.server.kill9().unwrap(),
        false => world.server.stop(StopMode::Immediate).unwrap(),
    }
}

/// The outcome of a load.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub said: String,
    pub summary: Value,
}

impl Ended {
    /// Checks that the load has left these nodes open.
    pub fn left_open(&self, code: i32, open: &[&str], what: &str) {
        assert_eq!(self.code, Some(code), "{what}: {self:?}");
        let named = self.summary["error"]["open_nodes"].as_array().unwrap();
        assert_eq!(named, open, "{what}: {self:?}");
        let words = format!("those of {} are open", open.join(", "));
        assert!(self.said.contains(&words), "{what}: {self:?}");
        assert!(self.said.contains("the same command loads what is missing"), "{what}: {self:?}");
    }

    /// Checks that the load has succeeded; returns the number of its rows.
    pub fn loaded(&self, what: &str) -> usize {
        assert_eq!(self.code, Some(0), "{what}: {self:?}");
        self.summary["loaded"].as_u64().unwrap() as usize
    }
}

/// Runs the test on the first major version that has `postgres_fdw`.
pub fn on_servers(test: impl Fn(&mut Servers)) {
    if let Some(mut servers) = each_major().iter().find_map(Servers::new) {
        test(&mut servers);
    }
}

/// Waits until a server has noticed that a client is gone.
pub fn wait_for_end(world: &mut World) {
    wait_until(
        || "a session of the load is still there".into(),
        || {
            let others = "SELECT count(*) FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
                AND application_name <> 'postgres_fdw'";
            world.sql(others) == "0"
        },
    );
}

/// Waits until the load has reached the proxy's statement.
pub fn held(proxy: &Proxy, load: &mut Child) {
    wait_until(
        || "the statement never came".into(),
        || {
            if let (Some(_), false) = (load.try_wait().unwrap(), proxy.sprung()) {
                let mut said = String::new();
                load.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the load has ended before the statement came: {said}");
            }
            proxy.sprung()
        },
    );
}
