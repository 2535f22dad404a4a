//! The operating-system user that the server runs as.
//!
//! `postgres` and `initdb` do not run as root. Root therefore runs them as another user, who must
//! be able to reach the files.

use super::error::ServerError;
use nix::unistd::{Gid, Uid, User};
use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The users as which root runs a server, the preferred one first.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// An operating-system user.
#[derive(Clone, Debug)]
pub(super) struct Account {
    uid: Uid,
    gid: Gid,
    /// true if root starts the server's programs as this user
    switch: bool,
}

impl Account {
    /// The user for a server with this data folder: the caller, unless that is root. For root, it
    /// is the owner of existing data, or the first unprivileged user that exists.
    pub(super) fn choose(data: &Path) -> Result<Self, ServerError> {
        if !Uid::effective().is_root() {
            return Ok(Self { uid: Uid::effective(), gid: Gid::effective(), switch: false });
        }
        if let Ok(meta) = fs::metadata(data) {
            if meta.uid() != 0 {
                let (uid, gid) = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
                return Ok(Self { uid, gid, switch: true });
            }
        }
        let known = UNPRIVILEGED.iter().find_map(|name| User::from_name(name).ok().flatten());
        match known {
            Some(user) => Ok(Self { uid: user.uid, gid: user.gid, switch: true }),
            None => Err(ServerError::new(
                "PostgreSQL refuses to run as root, and there is no other user to run it as",
            )
            .with_hint("create a user named postgres (useradd --system postgres)")),
        }
    }

    /// Whether root runs the server as this user. Then root must give files to this user, and may
    /// have to copy programs.
    pub(super) fn is_other(&self) -> bool {
        self.switch
    }

    /// Sets a command to run as this user.
    pub(super) fn apply(&self, command: &mut Command) {
        if self.switch {
            command.uid(self.uid.as_raw()).gid(self.gid.as_raw());
            // Variables of root's session would make the server use root's files.
            command.env("HOME", "/").env_remove("PGDATA").env_remove("TMPDIR");
        }
    }

    /// Gives a file or folder to this user.
    pub(super) fn own(&self, path: &Path) -> Result<(), ServerError> {
        if !self.switch {
            return Ok(());
        }
        chown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
            .map_err(|e| ServerError::io("give the server's user", path, e))
    }

    /// Whether this user may enter every folder above the path.
    ///
    /// It checks only permission bits. Access lists may allow more, but then there is only a
    /// needless copy.
    pub(super) fn can_reach(&self, path: &Path) -> bool {
        !self.switch
            || path.ancestors().skip(1).all(|folder| match fs::metadata(folder) {
                Ok(meta) => self.may_enter(meta.uid(), meta.gid(), meta.mode()),
                Err(_) => folder.as_os_str().is_empty(),
            })
    }

    fn may_enter(&self, owner: u32, group: u32, mode: u32) -> bool {
        let bit = if owner == self.uid.as_raw() {
            0o100
        } else if group == self.gid.as_raw() {
            0o010
        } else {
            0o001
        };
        mode & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_class_of_permission_bits_decides() {
        let account = Account { uid: Uid::from_raw(7), gid: Gid::from_raw(8), switch: true };
        assert!(account.may_enter(7, 0, 0o700));
        assert!(!account.may_enter(7, 0, 0o077), "the owner's own bits decide");
        assert!(account.may_enter(0, 8, 0o710));
        assert!(!account.may_enter(0, 8, 0o701), "the group's own bits decide");
        assert!(account.may_enter(0, 0, 0o701));
        assert!(!account.may_enter(0, 0, 0o770));
    }
}
