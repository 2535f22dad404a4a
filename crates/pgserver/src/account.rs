//! The operating-system user that the server runs as.
//!
//! `postgres` and `initdb` refuse to run as root, so root runs them as somebody else, and the
//! files must lie where that somebody can reach them.

use super::error::ServerError;
use nix::unistd::{Gid, Uid, User};
use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Users that root runs a server as, best first.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// An operating-system user.
#[derive(Clone, Debug)]
pub(super) struct Account {
    uid: Uid,
    gid: Gid,
    /// Root starts the server's programs as this user.
    switch: bool,
}

impl Account {
    /// The user for a server with this data folder: the caller, unless that is root; then the
    /// owner of the data, if there is some already, or the first unprivileged user there is.
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

    /// Root must hand files over to this user, and may have to copy programs for it.
    pub(super) fn is_other(&self) -> bool {
        self.switch
    }

    /// Lets a command run as this user.
    pub(super) fn apply(&self, command: &mut Command) {
        if self.switch {
            command.uid(self.uid.as_raw()).gid(self.gid.as_raw());
            // Variables of root's session would point the server at root's files.
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

    /// Whether every folder above the path lets this user through.
    ///
    /// Looks at permission bits only: access lists may allow more, which costs a copy at worst.
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
