//! The embedded server: a private PostgreSQL for first use and for tests.
//!
//! A server is in one folder, which has `data` (its cluster), `socket`, `log` and `pgpass`. Its
//! Unix socket is in a folder that only its own user can enter. No other user of the machine can
//! connect, although the socket requires no password. With a port, the server also listens on
//! 127.0.0.1, where it requires a random password (SCRAM), which is in `pgpass`. Checksums are on,
//! the encoding is UTF-8 and the collation C.UTF-8.
//!
//! Root cannot run a server, so root's servers run as `postgres`, or as `nobody` if there is no
//! such user.

mod account;
mod error;
mod find;
mod postmaster;
mod private_paths;
mod setup;
mod temporary;

pub use error::ServerError;
pub use find::{find, find_all, Installation, Origin, ServerVersion};
pub use postmaster::StopMode;
pub use setup::default_dir;
pub use temporary::scratch;

use account::Account;
use postmaster::Postmaster;
use setup::ServerFolder;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest time for a server to stop: it may write a checkpoint of a large cache.
const STOP_LIMIT: Duration = Duration::from_secs(300);

/// The options for a start.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The folder of the server's programs. The default is that of [`find`].
    pub pg_bin: Option<PathBuf>,
    /// The major version. The default is that of existing data, or the best available.
    pub major: Option<u32>,
    /// The server's folder. The default is a temporary one. It is removed when the [`Server`] is
    /// dropped or this process ends, even if it is killed. No server is left running.
    pub dir: Option<PathBuf>,
    /// A port on 127.0.0.1 to listen on as well. Without it there is only the Unix socket.
    pub port: Option<u16>,
    /// Server settings by name and value, as on the server's command line. They override
    /// `postgresql.conf` and `ALTER SYSTEM`.
    pub settings: Vec<(String, String)>,
    /// Allows every session to use the server extension, if it is installed.
    pub offer_extension: bool,
    /// The longest time until the server accepts connections, including crash recovery.
    pub start_limit: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            pg_bin: None,
            major: None,
            dir: None,
            port: None,
            settings: Vec::new(),
            offer_extension: false,
            start_limit: Duration::from_secs(120),
        }
    }
}

/// A server that this program has started, or found running.
///
/// Dropping it stops the server, except after [`Server::detach`] or [`Server::attach`].
#[derive(Debug)]
pub struct Server {
    installation: Installation,
    account: Account,
    place: ServerFolder,
    port: Option<u16>,
    settings: Vec<(String, String)>,
    start_limit: Duration,
    postmaster: Option<Postmaster>,
    /// true if dropping stops the server
    owned: bool,
    /// true if dropping removes the folder
    temporary: bool,
}

impl Server {
    /// Makes the cluster if there is none, and starts it.
    ///
    /// Fails if a server is already running in the folder.
    pub fn start(mut options: ServerOptions) -> Result<Self, ServerError> {
        let (dir, temporary) = match options.dir {
            Some(dir) => (dir, false),
            None => (temporary::folder()?, true),
        };
        let place = ServerFolder::at(&dir)?;
        let account = Account::choose(&place.data())?;
        let _lock = place.lock(&account)?;
        let installation = place.choose(options.pg_bin.as_deref(), options.major)?;
        const PRELOAD: &str = "session_preload_libraries";
        let preloads = options.settings.iter().any(|(name, _)| name == PRELOAD);
        if options.offer_extension && installation.has_extension() && !preloads {
            options.settings.push((PRELOAD.into(), "pgsluice".into()));
        }
        let mut server = Self {
            installation: private_paths::reachable(&installation, &account)?,
            account,
            place,
            port: options.port,
            settings: options.settings,
            start_limit: options.start_limit,
            postmaster: None,
            owned: true,
            temporary,
        };
        server.place.prepare(&server.installation, &server.account, temporary)?;
        server.launch()?;
        Ok(server)
    }

    /// The server that is running in a folder, if any. Dropping the result leaves it running.
    pub fn attach(dir: &Path) -> Result<Option<Self>, ServerError> {
        let place = ServerFolder::at(dir)?;
        let Some(postmaster) = Postmaster::of(&place.data()) else { return Ok(None) };
        let account = Account::choose(&place.data())?;
        let installation = place.running_installation(&postmaster, &account)?;
        Ok(Some(Self {
            installation,
            account,
            port: place.running_port(),
            place,
            settings: Vec::new(),
            start_limit: ServerOptions::default().start_limit,
            postmaster: Some(postmaster),
            owned: false,
            temporary: false,
        }))
    }

    /// The requested options that a running server does not have, by their names in `pgsluice
    /// server start`. The server must be one that [`Server::attach`] has found.
    pub fn lacks(&self, asked: &ServerOptions) -> Result<Vec<String>, ServerError> {
        let started = self.place.started_with();
        let mut lacks = Vec::new();
        if let Some(major) = asked.major.filter(|major| *major != self.version().major) {
            lacks.push(format!("--major {major}"));
        }
        if let Some(bin) = &asked.pg_bin {
            // Root runs a copy of the programs in another folder, so compare versions.
            let same = find(Some(bin.as_path()), None)?.version == *self.version();
            lacks.extend((!same).then(|| format!("--pg-bin {}", bin.display())));
        }
        if let Some(port) = asked.port.filter(|port| self.port != Some(*port)) {
            lacks.push(format!("--port {port}"));
        }
        for (name, value) in &asked.settings {
            let set = started.contains(&format!(" \"{}\"", setting(name, value)));
            lacks.extend((!set).then(|| format!("--set {name}={value}")));
        }
        Ok(lacks)
    }

    /// Leaves the server running after the end of this program.
    pub fn detach(mut self) {
        self.owned = false;
        self.temporary = false;
    }

    /// Ends sessions and stops the server.
    pub fn stop(&mut self, mode: StopMode) -> Result<(), ServerError> {
        match &mut self.postmaster {
            Some(postmaster) => postmaster.stop(mode, STOP_LIMIT)?,
            None => return Ok(()),
        }
        self.postmaster = None;
        // Each start makes it again. If it is not in the server's folder, it would be left behind.
        let _ = fs::remove_dir(self.place.socket_dir());
        Ok(())
    }

    /// Kills every process of the server at once, like a power failure (but the operating system's
    /// cache survives). [`Server::restart`] recovers.
    pub fn kill9(&mut self) -> Result<(), ServerError> {
        if let Some(mut postmaster) = self.postmaster.take() {
            postmaster.kill9()?;
        }
        Ok(())
    }

    /// Stops the server if it is running, and starts it with the same settings.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.stop(StopMode::Fast)?;
        self.launch()
    }

    /// Stops the server if it is running, and starts it with these settings instead.
    pub fn restart_with(&mut self, settings: Vec<(String, String)>) -> Result<(), ServerError> {
        self.settings = settings;
        self.restart()
    }

    /// The installation whose programs are running.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// A command for one of these programs, which runs as the server's user and without the
    /// caller's `PG` variables. Do not run them in another way: if root has found the server
    /// running, that user has chosen the programs.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.installation.program(program));
        setup::isolate(&mut command, &self.account);
        command
    }

    /// The server's version.
    pub fn version(&self) -> &ServerVersion {
        &self.installation.version
    }

    /// The process ID of the postmaster, if the server is running.
    pub fn pid(&self) -> Option<i32> {
        self.postmaster.as_ref().map(Postmaster::pid)
    }

    /// The server's folder.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// The cluster's data folder.
    pub fn data(&self) -> PathBuf {
        self.place.data()
    }

    /// The server's log file.
    pub fn log(&self) -> PathBuf {
        self.place.log()
    }

    /// The folder of the Unix socket, for libpq's `host`.
    pub fn socket_dir(&self) -> &Path {
        self.place.socket_dir()
    }

    /// A connection URL for a database over the Unix socket.
    pub fn url(&self, database: &str) -> String {
        let host = setup::percent(&self.place.socket_dir().to_string_lossy());
        let port = self.port.unwrap_or(setup::SOCKET_PORT);
        format!("postgresql://postgres@/{}?host={host}&port={port}", setup::percent(database))
    }

    /// A connection URL over the loopback interface, if the server has a port. The password is not
    /// in the URL, but in a file that the URL names.
    pub fn tcp_url(&self, database: &str) -> Option<String> {
        let passfile = setup::percent(&self.place.pgpass().to_string_lossy());
        let database = setup::percent(database);
        self.port.map(|port| {
            format!("postgresql://postgres@127.0.0.1:{port}/{database}?passfile={passfile}")
        })
    }

    fn launch(&mut self) -> Result<(), ServerError> {
        let data = self.place.data();
        if let Some(running) = Postmaster::of(&data) {
            return Err(ServerError::new(format!(
                "a server (process {}) already runs on {data:?}",
                running.pid()
            )));
        }
        self.place.make_socket_dir(&self.account)?;
        let log = self.place.log();
        let open = || File::options().append(true).create(true).open(&log);
        let output = open().map_err(|e| ServerError::io("open", &log, e))?;
        let errors = output.try_clone().map_err(|e| ServerError::io("open", &log, e))?;
        let written = fs::metadata(&log).map_or(0, |m| m.len());
        let program = self.installation.program("postgres");
        let mut command = Command::new(&program);
        command.arg("-D").arg(&data).current_dir(&data).stdin(Stdio::null());
        command.stdout(output).stderr(errors).args(self.arguments());
        setup::isolate(&mut command, &self.account);
        let child = command.spawn().map_err(|e| ServerError::io("run", &program, e))?;
        let mut postmaster = Postmaster::started(child);
        match postmaster.wait_ready(&data, self.start_limit) {
            Ok(true) => {
                self.postmaster = Some(postmaster);
                return Ok(());
            }
            Ok(false) => {}
            Err(late) => {
                postmaster.stop(StopMode::Immediate, STOP_LIMIT)?;
                return Err(late.with_hint(format!("its log is {log:?}")));
            }
        }
        let error = ServerError::new(format!("PostgreSQL {} did not start", self.version()));
        Err(error.with_hint(match setup::complaint(&log, written) {
            Some(line) => format!("it says: {line}; more is in {log:?}"),
            None => format!("its log is {log:?}"),
        }))
    }

    /// The server's settings as command-line arguments.
    fn arguments(&self) -> Vec<String> {
        let address = if self.port.is_some() { "127.0.0.1" } else { "" };
        let port = self.port.unwrap_or(setup::SOCKET_PORT);
        // The value is a list of folders. In quotes, a comma is part of a path.
        let sockets = self.place.socket_dir().to_string_lossy().replace('"', "\"\"");
        let mut all = vec![
            format!("--listen_addresses={address}"),
            format!("--port={port}"),
            format!("--unix_socket_directories=\"{sockets}\""),
        ];
        all.extend(self.settings.iter().map(|(name, value)| setting(name, value)));
        all
    }
}

/// A setting as an argument of the server's command line.
fn setting(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // No one can receive an error here. The data of a temporary server need no checkpoint.
        let mode = if self.temporary { StopMode::Immediate } else { StopMode::Fast };
        if self.stop(mode).is_err() {
            let _ = self.kill9();
        }
        if self.temporary {
            let _ = fs::remove_dir_all(self.place.dir());
        }
    }
}
