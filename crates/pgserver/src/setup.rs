//! A server's folder: the places of its parts, and how its cluster is made.
//!
//! The folder, the log and the password belong to the caller. Only `data` and `socket` belong to
//! the server's user. If root runs a server as another user, that user cannot plant links that
//! redirect root's writes, nor programs that root would run as itself.

use super::account::Account;
use super::error::ServerError;
use super::find::{find, Installation, Origin};
use super::postmaster::Postmaster;
use super::private_paths;
use super::temporary;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use std::env;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{self, Path, PathBuf};
use std::process::{Command, Stdio};

/// The number in the socket's name if the server has no TCP port.
pub(super) const SOCKET_PORT: u16 = 5432;

/// A socket's path has at most 107 bytes, of which its name `/.s.PGSQL.65535` takes 15.
const SOCKET_DIR_BYTES: usize = 107 - 15;

/// The folder of one server.
#[derive(Debug)]
pub(super) struct ServerFolder {
    dir: PathBuf,
    socket_dir: PathBuf,
}

impl ServerFolder {
    pub(super) fn at(dir: &Path) -> Result<Self, ServerError> {
        let dir = path::absolute(dir).map_err(|e| ServerError::io("use the folder", dir, e))?;
        let mut socket_dir = dir.join("socket");
        // libpq reads a comma as the end of a host name.
        let text = socket_dir.as_os_str().as_encoded_bytes();
        if text.len() > SOCKET_DIR_BYTES || text.contains(&b',') {
            socket_dir =
                private_paths::base()?.join(format!("socket-{}", private_paths::short_name(&dir)));
        }
        Ok(Self { dir, socket_dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(super) fn pgpass(&self) -> PathBuf {
        self.dir.join("pgpass")
    }

    pub(super) fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// The major version of the existing data, if there are any.
    pub(super) fn major(&self) -> Option<u32> {
        fs::read_to_string(self.data().join("PG_VERSION")).ok()?.trim().parse().ok()
    }

    /// The installation to run. If there are data, it has the same major version.
    pub(super) fn choose(
        &self,
        pg_bin: Option<&Path>,
        wanted: Option<u32>,
    ) -> Result<Installation, ServerError> {
        let Some(major) = self.major() else { return find(pg_bin, wanted) };
        let clash = |other: String| {
            ServerError::new(format!("{:?} was made by PostgreSQL {major}, not {other}", self.dir))
                .with_hint("choose another folder, or that version")
        };
        if let Some(other) = wanted.filter(|w| *w != major) {
            return Err(clash(other.to_string()));
        }
        if pg_bin.is_none() {
            return find(None, Some(major));
        }
        let installation = find(pg_bin, None)?;
        if installation.version.major == major {
            Ok(installation)
        } else {
            Err(clash(installation.version.to_string()))
        }
    }

    /// The command line of the running server, with each argument in quotes; empty if it cannot be
    /// read.
    pub(super) fn started_with(&self) -> String {
        fs::read_to_string(self.data().join("postmaster.opts")).unwrap_or_default()
    }

    /// The TCP port of the running server, if it has one.
    pub(super) fn running_port(&self) -> Option<u16> {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let mut lines = text.lines().skip(3);
        let (port, _socket, address) = (lines.next()?, lines.next()?, lines.next()?);
        if address.trim().is_empty() {
            None
        } else {
            port.trim().parse().ok()
        }
    }

    /// The installation from which the running server was started. The process is that of the pid
    /// file, so it may be any one of the server's user.
    pub(super) fn running_installation(
        &self,
        postmaster: &Postmaster,
        account: &Account,
    ) -> Result<Installation, ServerError> {
        let link = PathBuf::from(format!("/proc/{}/exe", postmaster.pid()));
        let program = fs::read_link(&link).map_err(|e| ServerError::io("read", &link, e))?;
        let bin = program.parent().unwrap_or(Path::new("/"));
        Installation::open(bin, Origin::Named, Some(account))
    }

    /// Makes the folder, or checks the existing one, and takes its lock, so that two starts cannot
    /// make the same cluster.
    pub(super) fn lock(&self, account: &Account) -> Result<Flock<File>, ServerError> {
        if let Some(above) = self.dir.parent() {
            fs::create_dir_all(above).map_err(|e| ServerError::io("make the folder", above, e))?;
        }
        if self.dir.exists() {
            self.check_own()?;
        } else {
            make_folder(&self.dir, folder_mode(account))?;
        }
        let path = self.dir.join("lock");
        let file = private_file(&path).map_err(|e| ServerError::io("open", &path, e))?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, e)| ServerError::io("lock", &path, e.into()))
    }

    /// Checks the existing folder. If others can write to it, they could make root write to any
    /// place. If it has other files, it was named by mistake.
    fn check_own(&self) -> Result<(), ServerError> {
        let look = |e| ServerError::io("look at", &self.dir, e);
        let meta = fs::metadata(&self.dir).map_err(look)?;
        if meta.uid() != Uid::effective().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(ServerError::new(format!(
                "{:?} belongs to somebody else, or others can write to it",
                self.dir
            ))
            .with_hint("name a folder that does not exist yet"));
        }
        let is_empty = fs::read_dir(&self.dir).map_err(look)?.next().is_none();
        if !is_empty && !self.dir.join("lock").exists() {
            return Err(ServerError::new(format!("{:?} contains other files", self.dir))
                .with_hint("name a folder that does not exist yet"));
        }
        Ok(())
    }

    /// Makes the cluster, unless there is one. For a temporary server, it is a copy.
    pub(super) fn prepare(
        &self,
        installation: &Installation,
        account: &Account,
        temporary: bool,
    ) -> Result<(), ServerError> {
        let data = self.data();
        if !account.can_reach(&data) {
            return Err(ServerError::new(format!(
                "the server's unprivileged user cannot reach {data:?}"
            ))
            .with_hint("choose a folder that other users can enter, such as one under /var/tmp"));
        }
        if data.exists() {
            return Ok(());
        }
        if temporary {
            return temporary::copy_cluster(installation, account, self);
        }
        self.make_cluster(installation, account, true)
    }

    /// Makes the cluster.
    pub(super) fn make_cluster(
        &self,
        installation: &Installation,
        account: &Account,
        sync: bool,
    ) -> Result<(), ServerError> {
        let data = self.data();
        let fresh = self.dir.join("data.new");
        if fresh.exists() {
            fs::remove_dir_all(&fresh).map_err(|e| ServerError::io("remove", &fresh, e))?;
        }
        make_folder(&fresh, 0o700)?;
        account.own(&fresh)?;
        let password = random_password()?;
        self.initdb(installation, account, &fresh, &password, sync)?;
        let line = format!("127.0.0.1:*:*:postgres:{password}\n");
        self.write_private("pgpass", &line)?;
        // Rename only a complete cluster: one that a killed initdb left incomplete is never
        // started.
        fs::rename(&fresh, &data).map_err(|e| ServerError::io("rename", &fresh, e))
    }

    fn initdb(
        &self,
        installation: &Installation,
        account: &Account,
        data: &Path,
        password: &str,
        sync: bool,
    ) -> Result<(), ServerError> {
        let pwfile = self.write_private("initdb-password", &format!("{password}\n"))?;
        account.own(&pwfile)?;
        let program = installation.program("initdb");
        let mut command = Command::new(&program);
        command.arg("-D").arg(data).arg("--pwfile").arg(&pwfile).current_dir(data);
        command.args(["--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]);
        command.args(["--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums"]);
        command.arg("--no-instructions").stdin(Stdio::null());
        if !sync {
            command.arg("--no-sync");
        }
        isolate(&mut command, account);
        let output = command.output().map_err(|e| ServerError::io("run", &program, e));
        fs::remove_file(&pwfile).map_err(|e| ServerError::io("remove", &pwfile, e))?;
        let output = output?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = said.lines().rev().find(|l| l.contains("error:") || l.contains("FATAL"));
        Err(ServerError::new(format!(
            "cannot make a cluster in {data:?}: {}",
            reason.unwrap_or(said.trim())
        )))
    }

    /// Makes the socket's folder. Only the server's user (and root) can enter it.
    pub(super) fn make_socket_dir(&self, account: &Account) -> Result<(), ServerError> {
        make_folder(&self.socket_dir, 0o700)?;
        account.own(&self.socket_dir)
    }

    fn write_private(&self, name: &str, text: &str) -> Result<PathBuf, ServerError> {
        let path = self.dir.join(name);
        let _ = fs::remove_file(&path);
        private_file(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| ServerError::io("write", &path, e))?;
        Ok(path)
    }
}

/// The folder of the user's own server, if none is named: in the clone in which the program was
/// built (`build/server`), or in the user's state folder. If the server's user cannot reach that,
/// it is in the caller's folder under `/var/tmp`.
pub fn default_dir() -> Result<PathBuf, ServerError> {
    let program = env::current_exe().unwrap_or_default();
    let clone = program.ancestors().find(|folder| folder.join("build/servers").is_dir());
    let named = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = || {
        let state = named("XDG_STATE_HOME").or(named("HOME").map(|h| h.join(".local/state")));
        state.map(|state| state.join("pgsluice/server"))
    };
    let wanted = clone.map(|clone| clone.join("build/server")).or_else(state);
    let dir = wanted.unwrap_or_else(|| PathBuf::from("server"));
    if dir.is_absolute() && Account::choose(&dir.join("data"))?.can_reach(&dir) {
        return Ok(dir);
    }
    Ok(private_paths::base()?.join(format!("server-{}", private_paths::short_name(&dir))))
}

/// The mode of a server's folder. Only if another user runs the server may others pass through it.
pub(super) fn folder_mode(account: &Account) -> u32 {
    if account.is_other() {
        0o711
    } else {
        0o700
    }
}

/// Makes a folder with exactly these permissions. An existing folder keeps its content.
pub(super) fn make_folder(dir: &Path, mode: u32) -> Result<(), ServerError> {
    match DirBuilder::new().mode(mode).create(dir) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            return Err(ServerError::io("make the folder", dir, e));
        }
        _ => {}
    }
    fs::set_permissions(dir, Permissions::from_mode(mode))
        .map_err(|e| ServerError::io("set the permissions of", dir, e))
}

fn private_file(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// 128 random bits in hexadecimal.
fn random_password() -> Result<String, ServerError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| ServerError::io("read", path, e))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Isolates a server's program from the caller's terminal, variables and privileges.
pub(super) fn isolate(command: &mut Command, account: &Account) {
    // A separate process group, so that Ctrl-C at the caller's terminal does not stop the server.
    command.process_group(0);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C.UTF-8");
    account.apply(command);
}

/// The reason in a server's log why it does not run: the last fatal error, or the last line, after
/// position `from`.
pub(super) fn complaint(log: &Path, from: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(1 << 20).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let fatal = text.lines().rev().find(|l| l.contains("FATAL:") || l.contains("PANIC:"));
    fatal.or(text.lines().next_back()).map(str::to_owned)
}

/// Percent-encodes the characters that are not allowed in a part of a connection URL.
pub(super) fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_encoded() {
        assert_eq!(percent("/tmp/a b?c%é"), "/tmp/a%20b%3Fc%25%C3%A9");
    }

    #[test]
    fn a_path_that_no_client_could_name_gets_its_socket_elsewhere() {
        let comma = ServerFolder::at(Path::new("/tmp/one,two")).unwrap();
        assert!(comma.socket_dir().starts_with("/var/tmp"));
        let deep = PathBuf::from("/tmp").join("d".repeat(100));
        let place = ServerFolder::at(&deep).unwrap();
        assert!(place.socket_dir().as_os_str().len() <= SOCKET_DIR_BYTES);
        assert!(place.socket_dir().starts_with("/var/tmp"));
        assert_eq!(ServerFolder::at(&deep).unwrap().socket_dir(), place.socket_dir());
        let short = ServerFolder::at(Path::new("/tmp/short")).unwrap();
        assert_eq!(short.socket_dir(), Path::new("/tmp/short/socket"));
    }
}
