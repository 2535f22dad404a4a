//! Files that the server's user must reach but cannot in their own place: copies of a private
//! clone's programs, and sockets whose paths would be too long.
//!
//! They are under `/var/tmp/pgsluice-<uid>`, a folder that only the caller can write to. Any user
//! may have made a folder of that name before, so its owner and mode are checked each time.

use super::account::Account;
use super::error::ServerError;
use super::find::Installation;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use std::collections::hash_map::DefaultHasher;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::{Hash, Hasher};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{symlink, DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The caller's folder under `/var/tmp`. It is made, or checked if it exists.
pub(super) fn base() -> Result<PathBuf, ServerError> {
    let uid = Uid::effective().as_raw();
    let base = PathBuf::from(format!("/var/tmp/pgsluice-{uid}"));
    match DirBuilder::new().mode(0o755).create(&base) {
        // The caller's umask may have removed permissions that the server's user needs.
        Ok(()) => chmod(&base, 0o755)?,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(ServerError::io("make the folder", &base, e)),
    }
    let meta = fs::symlink_metadata(&base).map_err(|e| ServerError::io("look at", &base, e))?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(ServerError::new(format!("{base:?} is not this user's own folder"))
            .with_hint("somebody else may have made it; remove it and try again"));
    }
    Ok(base)
}

/// A short name for a path, the same in every run.
pub(super) fn short_name(path: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The installation, or a copy of it that the account can run if it cannot reach the original.
pub(super) fn reachable(
    installation: &Installation,
    account: &Account,
) -> Result<Installation, ServerError> {
    if account.can_reach(&installation.program("postgres")) {
        return Ok(installation.clone());
    }
    let prefix = parent(&installation.bin)?;
    let package = parent(prefix)?;
    let base = base()?;
    // No other user may open the lock file, because they could hold the lock.
    let mut lock = File::options();
    let lock = lock.write(true).create(true).truncate(false).mode(0o600);
    let lock = lock.open(base.join("lock")).map_err(|e| ServerError::io("open", &base, e))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, e)| ServerError::io("lock", &base, e.into()))?;
    let copies = base.join("servers");
    make_folder(&copies)?;
    let copy = copies.join(short_name(&installation.bin));
    make_folder(&copy)?;
    // The programs of the embedded package find their libraries in `<package>.libs` beside the
    // package's folder. So the copy keeps this part of the layout above the prefix.
    let package_copy = copy.join(name(package)?);
    make_folder(&package_copy)?;
    mirror(prefix, &package_copy.join(name(prefix)?))?;
    let mut libraries = name(package)?;
    libraries.push(".libs");
    if let Some(beside) = package.parent().map(|p| p.join(&libraries)).filter(|p| p.is_dir()) {
        mirror(&beside, &copy.join(&libraries))?;
    }
    let bin = package_copy.join(name(prefix)?).join(name(&installation.bin)?);
    Ok(Installation { bin, ..installation.clone() })
}

fn parent(path: &Path) -> Result<&Path, ServerError> {
    path.parent().ok_or_else(|| ServerError::new(format!("{path:?} is no installation's folder")))
}

fn name(path: &Path) -> Result<OsString, ServerError> {
    path.file_name()
        .map(OsString::from)
        .ok_or_else(|| ServerError::new(format!("{path:?} is no installation's folder")))
}

fn chmod(path: &Path, mode: u32) -> Result<(), ServerError> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|e| ServerError::io("set the permissions of", path, e))
}

fn make_folder(path: &Path) -> Result<(), ServerError> {
    match fs::create_dir(path) {
        Ok(()) => chmod(path, 0o755),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(ServerError::io("make the folder", path, e)),
    }
}

/// Makes `to` a copy of `from` that all users can read. Only changed files are copied.
///
/// Running programs keep their open files, because a changed file is replaced by a rename.
fn mirror(from: &Path, to: &Path) -> Result<(), ServerError> {
    make_folder(to)?;
    let mut kept = HashSet::new();
    for entry in fs::read_dir(from).map_err(|e| ServerError::io("read the folder", from, e))? {
        let entry = entry.map_err(|e| ServerError::io("read the folder", from, e))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if is_for_building(&source) {
            continue;
        }
        kept.insert(entry.file_name());
        let kind = entry.file_type().map_err(|e| ServerError::io("look at", &source, e))?;
        if kind.is_dir() {
            mirror(&source, &target)?;
        } else {
            copy_if_changed(&source, &target, kind.is_symlink())
                .map_err(|e| ServerError::io("copy", &source, e))?;
        }
    }
    remove_others(to, &kept).map_err(|e| ServerError::io("clean up the folder", to, e))
}

/// Whether a file is needed only for builds: headers, static libraries and make files.
fn is_for_building(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "a")
        || path.file_name().is_some_and(|n| n == "include" || n == "pgxs")
}

fn copy_if_changed(from: &Path, to: &Path, is_link: bool) -> io::Result<()> {
    let scratch = to.with_file_name(".incoming");
    if is_link {
        let destination = fs::read_link(from)?;
        if fs::read_link(to).is_ok_and(|there| there == destination) {
            return Ok(());
        }
        let _ = fs::remove_file(&scratch);
        symlink(destination, &scratch)?;
        return fs::rename(&scratch, to);
    }
    let (source, there) = (fs::metadata(from)?, fs::symlink_metadata(to));
    let modified = source.modified()?;
    if there.is_ok_and(|t| {
        t.is_file() && t.len() == source.len() && t.modified().is_ok_and(|m| m == modified)
    }) {
        return Ok(());
    }
    let _ = fs::remove_file(&scratch);
    fs::copy(from, &scratch)?;
    let mode = if source.mode() & 0o111 != 0 { 0o755 } else { 0o644 };
    fs::set_permissions(&scratch, Permissions::from_mode(mode))?;
    File::options().write(true).open(&scratch)?.set_modified(modified)?;
    fs::rename(&scratch, to)
}

fn remove_others(folder: &Path, kept: &HashSet<OsString>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if kept.contains(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_follows_its_source() {
        let scratch = std::env::temp_dir().join(format!("pgsluice-mirror-{}", std::process::id()));
        let (from, to) = (scratch.join("from"), scratch.join("to"));
        fs::create_dir_all(from.join("bin/include")).unwrap();
        fs::write(from.join("bin/postgres"), "one").unwrap();
        fs::set_permissions(from.join("bin/postgres"), Permissions::from_mode(0o700)).unwrap();
        fs::write(from.join("bin/old"), "old").unwrap();
        fs::write(from.join("bin/include/c.h"), "").unwrap();
        symlink("postgres", from.join("bin/link")).unwrap();

        mirror(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("bin/link")).unwrap(), "one");
        assert_eq!(fs::metadata(to.join("bin/postgres")).unwrap().mode() & 0o777, 0o755);
        assert!(!to.join("bin/include").exists(), "headers stay behind");
        let inode = fs::metadata(to.join("bin/postgres")).unwrap().ino();

        fs::remove_file(from.join("bin/old")).unwrap();
        mirror(&from, &to).unwrap();
        assert!(!to.join("bin/old").exists(), "what the source lost, the copy loses");
        let unchanged = fs::metadata(to.join("bin/postgres")).unwrap().ino();
        assert_eq!(unchanged, inode, "an unchanged file is not copied again");

        fs::write(from.join("bin/postgres"), "another").unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("bin/link")).unwrap(), "another");
        fs::remove_dir_all(&scratch).unwrap();
    }
}
