//! PostgreSQL servers for the runs. Each set of settings has one template. Each run uses a fresh
//! copy of it and crashes or stops its server at the end.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use rustix::process::Signal;

use crate::proc;
use crate::psql::Psql;

/// Role and database of every run.
pub const USER: &str = "bench";

/// The longest time for a server to start, including recovery.
const START_LIMIT: Duration = Duration::from_secs(600);

/// The folder of the programs, and the user who runs them.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The folder of `initdb` and `postgres`.
    pub dir: PathBuf,
    /// The program psql: the folder's own, or the one on the path.
    pub psql: PathBuf,
    /// User and group of the server, if the runner is root.
    pub owner: Option<(u32, u32)>,
}

impl Binaries {
    /// Finds the programs. If the runner is root, servers run as `postgres` or `nobody`.
    pub fn find(dir: Option<&Path>) -> Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => newest_installed().context(
                "no PostgreSQL server found\nhint: name its folder of programs with --pg-bin",
            )?,
        };
        // Resolve links: the server's user may have no access to a link in a private clone.
        let dir = fs::canonicalize(&dir).unwrap_or(dir);
        for program in ["initdb", "postgres"] {
            let path = dir.join(program);
            ensure!(path.exists(), "there is no {}", path.display());
        }
        let own = dir.join("psql");
        let psql = if own.exists() { own } else { PathBuf::from("psql") };
        let root = rustix::process::geteuid().is_root();
        let owner = if root { Some(unprivileged_user()?) } else { None };
        Ok(Self { dir, psql, owner })
    }

    /// The version that the server reports: `postgres (PostgreSQL) 15.20 …`.
    pub fn version(&self) -> Result<String> {
        let output = self.command("postgres").arg("--version").output().with_context(|| {
            format!(
                "cannot run {} as the server's user\nhint: root's servers run as postgres or nobody, \
                 who must be able to reach that folder",
                self.dir.join("postgres").display()
            )
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
        Ok(version.context("postgres --version tells no version")?.to_owned())
    }

    /// A program of the server, run as the server's user.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.dir.join(program));
        if let Some((uid, gid)) = self.owner {
            command.uid(uid).gid(gid);
        }
        command.current_dir("/").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    /// Makes a folder that the server's user owns and that others may read.
    pub fn make_dir(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        if let Some((uid, gid)) = self.owner {
            chown(path, Some(uid), Some(gid))?;
        }
        Ok(())
    }
}

/// The newest `/usr/lib/postgresql/N/bin`, or the folder that pg_config names.
fn newest_installed() -> Option<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let majors = debian.filter_map(|e| e.file_name().to_string_lossy().parse::<u32>().ok());
    if let Some(major) = majors.max() {
        return Some(PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")));
    }
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// User and group of `postgres`, or of `nobody` if there is no `postgres`.
fn unprivileged_user() -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd")?;
    for name in ["postgres", "nobody"] {
        for line in passwd.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if fields[0] == name && fields.len() > 3 {
                return Ok((fields[2].parse()?, fields[3].parse()?));
            }
        }
    }
    bail!("a server does not run as root, and there is neither a user postgres nor nobody")
}

/// Settings of a server, by name.
pub type ServerSettings = BTreeMap<String, String>;

/// Makes an initialised cluster that has the database of the runs. It is copied for each run.
pub fn make_template(
    binaries: &Binaries,
    work: &Path,
    settings: &ServerSettings,
) -> Result<PathBuf> {
    let dir = work.join("template");
    let output = binaries
        .command("initdb")
        .args(["--auth=trust", "--data-checksums", "--encoding=UTF8", "--locale=C.UTF-8"])
        .args(["--no-sync", "--username", USER, "-D"])
        .arg(&dir)
        .output()
        .context("cannot run initdb")?;
    ensure!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
    let server = BenchServer::start(binaries, &dir, work, settings)?;
    server.psql().query(&format!("CREATE DATABASE {USER}"), "postgres")?;
    server.stop()?;
    Ok(dir)
}

/// Copies a template to a new data directory.
pub fn fresh_copy(template: &Path, data: &Path) -> Result<()> {
    remove_dir(data)?;
    let status = Command::new("cp").arg("-a").arg(template).arg(data).status()?;
    ensure!(status.success(), "cannot copy {} to {}", template.display(), data.display());
    Ok(())
}

/// Removes a folder with everything in it. A missing folder is no error.
pub fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A running server. Dropping it stops the server at once.
pub struct BenchServer {
    child: Child,
    data: PathBuf,
    psql: Psql,
    port: Port,
}

impl BenchServer {
    /// Starts a server on a data directory and waits until it accepts connections.
    pub fn start(
        binaries: &Binaries,
        data: &Path,
        sockets: &Path,
        settings: &ServerSettings,
    ) -> Result<Self> {
        let port = Port::keep()?;
        let log = fs::File::create(data.with_extension("log"))?;
        let mut command = binaries.command("postgres");
        command.arg("-D").arg(data).arg("-k").arg(sockets);
        command.args(["-p", &port.number.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let child = command
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot start postgres")?;
        let psql =
            Psql { program: binaries.psql.clone(), host: sockets.to_owned(), port: port.number };
        let mut server = Self { child, data: data.to_owned(), psql, port };
        server.wait_ready()?;
        Ok(server)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_LIMIT && !proc::interrupted() {
            if self.child.try_wait()?.is_some() {
                bail!("the server did not start:\n{}", self.log_tail());
            }
            let status = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
            if status.lines().nth(7).is_some_and(|s| s.trim() == "ready")
                && self.psql.query("SELECT 1", "postgres").is_ok()
            {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("the server was not ready in time:\n{}", self.log_tail())
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.data.with_extension("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// Process id of the postmaster.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The TCP port on 127.0.0.1. The socket has the same number.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// psql for this server.
    pub fn psql(&self) -> &Psql {
        &self.psql
    }

    /// Drops and creates the database of the runs, with options of CREATE DATABASE.
    pub fn remake_database(&self, options: &str) -> Result<()> {
        self.psql.query(&format!("DROP DATABASE {USER}"), "postgres")?;
        let sql = format!("CREATE DATABASE {USER} TEMPLATE template0 {options}");
        self.psql.query(&sql, "postgres").map(|_| ())
    }

    /// Stops the server by a fast shutdown, with its checkpoint.
    pub fn stop(mut self) -> Result<()> {
        proc::signal(self.pid(), Signal::INT);
        let status = self.child.wait()?;
        ensure!(status.success(), "the server stopped with {status}:\n{}", self.log_tail());
        Ok(())
    }

    /// Kills every process of the server with SIGKILL. The postmaster comes first, so that it
    /// cannot clean up.
    pub fn crash(mut self) -> Result<()> {
        let children = proc::children(self.pid());
        proc::signal(self.pid(), Signal::KILL);
        for child in &children {
            proc::signal(*child, Signal::KILL);
        }
        self.child.wait()?;
        // A process that waits for a busy disk takes some time to end.
        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            if !children.iter().any(|pid| proc::runs(*pid)) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("processes of the killed server are still there")
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        proc::end(&mut self.child, Duration::from_secs(10));
    }
}

/// A port of the loopback interface, reserved for one server while this value exists.
///
/// A port that is merely free may go to another process before the server binds it. This port has a
/// connection. The system therefore does not give it to a process that requests any free port. A
/// server that names the port can still listen on it (SO_REUSEADDR).
struct Port {
    number: u16,
    _ends: [TcpStream; 2],
}

impl Port {
    fn keep() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let there = listener.local_addr()?;
        let client = TcpStream::connect(there)?;
        let (server, _) = listener.accept()?;
        Ok(Self { number: there.port(), _ends: [server, client] })
    }
}

/// The programs that a killed runner may have left running in its folder.
const LEFTOVERS: [&str; 4] = ["cp", "initdb", "postgres", "psql"];

/// Ends the programs that an earlier, killed runner left running in its folder: those whose
/// arguments name the folder. The server's children end with their postmaster.
pub fn end_leftovers(work: &Path) -> Result<()> {
    for _ in 0..1000 {
        let left = leftovers(work);
        if left.is_empty() {
            return Ok(());
        }
        for pid in left {
            proc::signal(pid, Signal::QUIT);
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("programs left by an earlier run in {} do not end", work.display())
}

fn leftovers(work: &Path) -> Vec<u32> {
    let ours = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        LEFTOVERS.contains(&name.trim()) && names(&String::from_utf8_lossy(&line), work)
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|e| e.file_name().to_string_lossy().parse().ok()).filter(ours).collect()
}

/// Whether one of the arguments, separated by NUL, is this folder or a path in it. Whole path
/// components are compared, so a name with the same beginning does not match.
fn names(arguments: &str, dir: &Path) -> bool {
    arguments.split('\0').any(|argument| Path::new(argument).starts_with(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_works_in_the_folder_is_ours() {
        let dir = Path::new("/var/tmp/bench");
        assert!(names("psql\0-h\0/var/tmp/bench\0-p\x005432\0", dir));
        assert!(names("postgres\0-D\0/var/tmp/bench/data\0-k\0/var/tmp/bench\0", dir));
        assert!(!names("postgres\0-D\0/var/tmp/bench2/data\0-k\0/var/tmp/bench2\0", dir));
        assert!(!names("postgres\0-D\0/elsewhere\0", dir));
    }
}
