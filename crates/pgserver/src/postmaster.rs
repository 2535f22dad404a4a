//! The server's first process: whether it is alive and ready, and how it is ended.

use super::error::ServerError;
use nix::errno::Errno;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval for checks while waiting for a process or a file.
const POLL: Duration = Duration::from_millis(10);

/// How a server is stopped. The names are those of `pg_ctl stop --mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended, their transactions are rolled back, a checkpoint is written.
    Fast,
    /// Everything stops at once. The next start recovers from the WAL, as after a crash.
    Immediate,
}

/// A running server's first process, started by this program or found by its pid file.
#[derive(Debug)]
pub(super) struct Postmaster {
    pid: Pid,
    /// Set if this program is the parent and must collect the exit status.
    child: Option<Child>,
}

impl Postmaster {
    pub(super) fn started(child: Child) -> Self {
        Self { pid: Pid::from_raw(child.id() as i32), child: Some(child) }
    }

    /// The process in a data folder's pid file, if it is alive.
    pub(super) fn of(data: &Path) -> Option<Self> {
        let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let pid = text.lines().next()?.trim().parse::<i32>().ok().filter(|pid| *pid > 1)?;
        let mut found = Self { pid: Pid::from_raw(pid), child: None };
        // After a crash, the pid in the file may belong to any process. A server's current folder
        // is its data folder.
        let works_in = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (works_in == fs::canonicalize(data).ok()? && found.alive()).then_some(found)
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub(super) fn alive(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => is_running(self.pid),
        }
    }

    /// Waits until the server accepts connections. `Ok(false)`: it has ended instead.
    pub(super) fn wait_ready(&mut self, data: &Path, limit: Duration) -> Result<bool, ServerError> {
        let start = Instant::now();
        loop {
            if is_ready(data, self.pid.as_raw()) {
                return Ok(true);
            }
            if !self.alive() {
                return Ok(false);
            }
            if start.elapsed() > limit {
                return Err(ServerError::new(format!(
                    "the server was not ready within {} seconds",
                    limit.as_secs()
                )));
            }
            sleep(POLL);
        }
    }

    /// Signals the server to stop and waits for its end.
    pub(super) fn stop(&mut self, mode: StopMode, limit: Duration) -> Result<(), ServerError> {
        let signal = match mode {
            StopMode::Fast => Signal::SIGINT,
            StopMode::Immediate => Signal::SIGQUIT,
        };
        self.signal(self.pid, signal)?;
        let start = Instant::now();
        while self.alive() {
            if start.elapsed() > limit {
                return Err(ServerError::new(format!(
                    "the server (process {}) did not stop within {} seconds",
                    self.pid,
                    limit.as_secs()
                )));
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Kills every process of the server with SIGKILL and waits until all are gone. Otherwise the
    /// next start would find their shared memory.
    pub(super) fn kill9(&mut self) -> Result<(), ServerError> {
        // SIGSTOP first, so that it cannot start another process between the listing and the kill.
        self.signal(self.pid, Signal::SIGSTOP)?;
        let children = children_of(self.pid);
        self.signal(self.pid, Signal::SIGKILL)?;
        for child in &children {
            self.signal(*child, Signal::SIGKILL)?;
        }
        while self.alive() || children.iter().any(|c| is_running(*c)) {
            sleep(POLL);
        }
        Ok(())
    }

    fn signal(&self, pid: Pid, signal: Signal) -> Result<(), ServerError> {
        match kill(pid, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(e) => Err(ServerError::new(format!("cannot send {signal} to process {pid}: {e}"))),
        }
    }
}

/// Line 8 of the pid file is the server's state. `pg_ctl` waits for the same words.
fn is_ready(data: &Path, pid: i32) -> bool {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = text.lines();
    let of_this_process = lines.next().and_then(|l| l.trim().parse().ok()) == Some(pid);
    of_this_process && lines.nth(6).is_some_and(|s| matches!(s.trim_end(), "ready" | "standby"))
}

/// The direct children of a process. All processes of a server are children of its first one.
fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|p| p.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| stat_field(*pid, 1).and_then(|f| f.parse().ok()) == Some(parent.as_raw()))
        .map(Pid::from_raw)
        .collect()
}

/// Whether a process still holds memory. A zombie does not.
fn is_running(pid: Pid) -> bool {
    stat_field(pid.as_raw(), 0).is_some_and(|state| state != "Z" && state != "X")
}

/// A field of `/proc/<pid>/stat`, counted from the state, which follows the parenthesised name.
fn stat_field(pid: i32, index: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text[text.rfind(')')? + 1..].split_whitespace().nth(index).map(str::to_owned)
}
