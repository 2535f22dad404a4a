//! Things that are removed when this process ends in any way: temporary servers, and the files of
//! tests.
//!
//! All of them are in one folder. A shell waits on a pipe that only this process holds open. When
//! the pipe is closed, the shell ends the servers that work in the folder, and removes the folder.
//!
//! A temporary server's cluster is a copy. All temporary servers of this process have the same
//! password and system identifier.

use super::account::Account;
use super::error::ServerError;
use super::find::Installation;
use super::private_paths;
use super::setup::{self, ServerFolder};
use std::env;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The folder, and the shell with the pipe.
static SCRATCH: Mutex<Option<(PathBuf, Child)>> = Mutex::new(None);

/// A folder that is removed when this process ends, even if it is killed. Servers that work in it
/// are ended then.
pub fn scratch() -> Result<PathBuf, ServerError> {
    let mut scratch = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((folder, _)) = &*scratch {
        return Ok(folder.clone());
    }
    let folder = numbered(&env::temp_dir(), &format!("pgsluice-{}", process::id()))?;
    let shell = Command::new("sh")
        .args(["-c", include_str!("behind.sh"), "behind.sh"])
        .arg(&folder)
        .current_dir("/")
        // Ctrl-C at the caller's terminal must not end the shell first.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| ServerError::io("run", Path::new("sh"), e))?;
    *scratch = Some((folder.clone(), shell));
    Ok(folder)
}

/// Makes a new folder for a server.
pub(super) fn folder() -> Result<PathBuf, ServerError> {
    numbered(&scratch()?, "server")
}

/// Makes a cluster by copying a template. This process makes one template for each installation,
/// because initdb takes a second.
pub(super) fn copy_cluster(
    installation: &Installation,
    account: &Account,
    to: &ServerFolder,
) -> Result<(), ServerError> {
    let name = format!("template-{}", private_paths::short_name(&installation.bin));
    let template = ServerFolder::at(&scratch()?.join(name))?;
    let lock = template.lock(account)?;
    if !template.data().exists() {
        template.make_cluster(installation, account, false)?;
    }
    drop(lock);
    let passwords = template.pgpass();
    fs::copy(&passwords, to.pgpass()).map_err(|e| ServerError::io("copy", &passwords, e))?;
    let (from, to) = (template.data(), to.data());
    let mut command = Command::new("cp");
    command.arg("-a").args([&from, &to]).stdin(Stdio::null());
    let output = command.output().map_err(|e| ServerError::io("run", Path::new("cp"), e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(ServerError::new(format!("cannot copy {from:?} to {to:?}: {}", said.trim())))
}

/// Makes a new folder with this name and a number.
fn numbered(above: &Path, name: &str) -> Result<PathBuf, ServerError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = above.join(format!("{name}-{number}"));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => {
                setup::make_folder(&folder, setup::folder_mode(&Account::choose(&folder)?))?;
                return Ok(folder);
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(ServerError::io("make the folder", &folder, e)),
        }
    }
}
