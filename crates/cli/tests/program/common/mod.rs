//! What the tests share: a server, the program, and stock COPY as the reference.

pub mod disk;
mod gate;
pub mod proxy;
pub mod realm;
#[path = "../../../../pgserver/tests/support/mod.rs"]
mod support;

pub use nix::sys::signal::Signal;
use nix::sys::signal::{kill, signal as set_action, SigHandler};
use nix::unistd::Pid;
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::{Installation, Server, ServerOptions};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
pub use support::{each_major, left_out, on_each_major, on_first_and_last_major, on_last_major};
pub use support::{psql, wait_until, Port};

/// A server with a connection and a folder for files.
pub struct World {
    /// the server, stopped when dropped
    pub server: Server,
    /// for SQL
    pub conn: Conn,
    dir: PathBuf,
}

impl World {
    /// Starts a server of this installation.
    pub fn new(installation: &Installation) -> World {
        World::with(installation, None, &[])
    }

    /// As [`World::new`], with a port on the loopback interface and more settings.
    pub fn with(installation: &Installation, port: Option<u16>, more: &[(&str, &str)]) -> World {
        // If a shell runs the tests in the background, SIGINT is ignored, also by the programs.
        // SAFETY: the default action runs no code of this process.
        unsafe { set_action(Signal::SIGINT, SigHandler::SigDfl) }.unwrap();
        let server = Server::start(ServerOptions {
            pg_bin: Some(installation.bin.clone()),
            port,
            settings: settings(more),
            ..ServerOptions::default()
        })
        .expect("the server starts");
        // It is removed together with the server.
        let dir = server.dir().join("files");
        fs::create_dir(&dir).unwrap();
        let conn = Conn::open(&server.url("postgres")).unwrap();
        World { server, conn, dir }
    }

    /// Restarts the server with these settings in addition to the usual ones.
    pub fn restart_with(&mut self, more: &[(&str, &str)]) {
        self.server.restart_with(settings(more)).expect("the server starts");
        self.conn = Conn::open(&self.server.url("postgres")).unwrap();
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.server.version().major
    }

    /// Runs SQL; returns the first value of the first row.
    pub fn sql(&mut self, sql: &str) -> String {
        let rows = self.conn.exec(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        rows.first().and_then(|r| r.first()?.clone()).unwrap_or_default()
    }

    /// Writes a file; returns its path.
    pub fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.dir.join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// Runs `pgsluice` against the server.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, b"")
    }

    /// As [`World::run`], with bytes on standard input.
    pub fn run_with(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        let mut child = self.start(arguments);
        // The program may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        child.wait_with_output().unwrap()
    }

    /// Starts `pgsluice` against the server, with pipes for its input and its output.
    pub fn start(&self, arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(arguments)
            .args(["--to", &self.server.url("postgres")])
            // A reject file lies in the working folder if no other is named.
            .current_dir(self.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs `load`; returns the summary, or the standard error of a load that failed.
    pub fn load(&self, arguments: &[&str]) -> Result<serde_json::Value, String> {
        let summary = self.path("summary.json");
        let _ = fs::remove_file(&summary);
        let mut all = vec!["load", "--quiet", "--summary", &summary];
        all.extend_from_slice(arguments);
        let output = self.run(&all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0 | 3) => {
                let summary: serde_json::Value =
                    serde_json::from_slice(&fs::read(&summary).unwrap()).unwrap();
                let n = |key: &str| summary[key].as_u64().unwrap();
                assert_eq!(n("read"), n("loaded") + n("rejected") + n("skipped"));
                Ok(summary)
            }
            code => {
                assert!(code.is_some_and(|c| c != 2), "{code:?} {said}");
                Err(said)
            }
        }
    }

    /// Runs `repair` until the server has noticed that the loader is gone; returns the last output.
    pub fn repair(&self) -> String {
        let mut said = String::new();
        wait_until(
            || "the load's lock is still held".into(),
            || {
                let output = self.run(&["repair"]);
                assert_eq!(output.status.code(), Some(0), "{output:?}");
                said = String::from_utf8(output.stdout).unwrap();
                !said.contains("a load is running")
            },
        );
        said
    }

    /// Waits until the server has no other sessions of clients.
    pub fn wait_until_alone(&mut self) {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
            AND backend_type = 'client backend'";
        wait_until(|| "a session stays".into(), || self.sql(others) == "0");
    }

    /// Runs stock COPY on these bytes; returns the number of rows, or the message and context of
    /// the error.
    pub fn stock(&mut self, sql: &str, bytes: &[u8]) -> Result<u64, (String, String)> {
        let said = |e: pgsluice_engine::Error| {
            let context = e.server().and_then(|s| s.context.clone()).unwrap_or_default();
            (e.message().to_string(), context)
        };
        self.conn.copy_start(sql).map_err(said)?;
        self.conn.copy_data(bytes).map_err(said)?;
        self.conn.copy_end().map_err(said)
    }

    /// The rows that only one of the two tables has.
    pub fn difference(&mut self, a: &str, b: &str) -> String {
        self.sql(&format!(
            "SELECT coalesce(string_agg(d, '; '), '') FROM (
               (SELECT '- ' || t::text AS d FROM (SELECT t::text FROM {a} t EXCEPT ALL SELECT t::text FROM {b} t) t)
               UNION ALL
               (SELECT '+ ' || t::text FROM (SELECT t::text FROM {b} t EXCEPT ALL SELECT t::text FROM {a} t) t)
             ) x"
        ))
    }

    /// What the server has logged since the last call.
    pub fn log(&self, from: &mut usize) -> String {
        let all = fs::read_to_string(self.server.log()).unwrap();
        let new = all[(*from).min(all.len())..].to_owned();
        *from = all.len();
        new
    }
}

/// Sends a signal to a process; returns false if the process is gone or belongs to another user.
pub fn signal(pid: u32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid.try_into().unwrap()), signal).is_ok()
}

/// The settings of every world, and `more`.
fn settings(more: &[(&str, &str)]) -> Vec<(String, String)> {
    let usual = [
        ("fsync", "off"),
        ("log_statement", "all"),
        ("max_prepared_transactions", "4"),
        // On a slow machine, autovacuum would run in the middle of a test.
        ("autovacuum_naptime", "1d"),
    ];
    usual.iter().chain(more).map(|(name, value)| (name.to_string(), value.to_string())).collect()
}
