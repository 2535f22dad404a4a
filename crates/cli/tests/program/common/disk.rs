//! A small file system that a test can fill up.

use super::{left_out, World};
use std::fs;
use std::process::{Command, Stdio};

/// A small tmpfs, which only root can mount.
pub struct SmallDisk(String);

impl SmallDisk {
    /// Mounts one of `size` in the world's folder, or returns `None`. The server may write to it.
    pub fn new(world: &World, size: &str) -> Option<SmallDisk> {
        let path = world.path("disk");
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("mode=0700,size={size}"), "pgsluice-test", &path])
            .stderr(Stdio::null())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            let mut own = Command::new("chown");
            own.arg("--reference").arg(world.server.data()).arg(&path);
            assert!(own.status().unwrap().success());
            return Some(SmallDisk(path));
        }
        left_out("a disk that is full, which only root can mount");
        None
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.0
    }

    /// The path of a file.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// Changes its size.
    pub fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let mounted = Command::new("mount").args(["-o", &options, &self.0]).status();
        assert!(mounted.unwrap().success());
    }

    /// Removes its files.
    pub fn empty(&self) {
        for entry in fs::read_dir(&self.0).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A server may still use it.
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}
