//! The cost of processes as the kernel accounts it: CPU, memory, bytes written.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};
use wait4::Wait4;

/// Interval between two readings of the server's memory.
const SAMPLING: Duration = Duration::from_millis(50);

/// Set by SIGINT (Ctrl-C) and SIGTERM. The runner then starts nothing new and ends the running
/// programs.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The longest time that a client may take. A client that hangs fails its method, not the whole
/// run.
const CLIENT_LIMIT: Duration = Duration::from_secs(3600);

/// The running clients, each with its start. An interruption or the time limit ends them.
static CLIENTS: Mutex<Vec<(u32, Instant)>> = Mutex::new(Vec::new());

/// Ends the clients on SIGINT and SIGTERM, and those that exceed the time limit. The runner then
/// cleans up after itself.
pub fn heed_signals() -> Result<()> {
    thread::spawn(|| loop {
        thread::sleep(Duration::from_secs(5));
        end_clients(CLIENT_LIMIT);
    });
    ctrlc::set_handler(|| {
        INTERRUPTED.store(true, Ordering::SeqCst);
        end_clients(Duration::ZERO);
    })
    .context("cannot listen for signals")
}

/// Ends the clients that have run for at least `limit`.
fn end_clients(limit: Duration) {
    for (pid, since) in CLIENTS.lock().expect("no panic while held").iter() {
        if since.elapsed() >= limit {
            signal(*pid, Signal::TERM);
        }
    }
}

/// True after Ctrl-C or SIGTERM.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Sends a signal. It is no error if the process has gone already.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Ends one of our servers at once. It sends SIGQUIT repeatedly, because a server that has just
/// started may not handle it yet. After `patience` it sends SIGKILL.
pub fn end(child: &mut Child, patience: Duration) {
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        let late = begun.elapsed() > patience;
        signal(child.id(), if late { Signal::KILL } else { Signal::QUIT });
        thread::sleep(SAMPLING);
    }
}

/// Resources that a finished client used, including its own children.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientUsage {
    /// User and system seconds.
    pub cpu_seconds: f64,
    /// Largest resident set of one process.
    pub peak_bytes: u64,
}

impl ClientUsage {
    /// The sum of both. CPU adds up; peaks add up only if both ran at the same time.
    pub fn plus(self, other: Self, at_once: bool) -> Self {
        let peak_bytes = if at_once {
            self.peak_bytes + other.peak_bytes
        } else {
            self.peak_bytes.max(other.peak_bytes)
        };
        Self { cpu_seconds: self.cpu_seconds + other.cpu_seconds, peak_bytes }
    }
}

/// A running client.
#[derive(Debug)]
pub struct Client(Child);

impl Client {
    /// Starts a command as a client of the run.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        CLIENTS.lock().expect("no panic while held").push((child.id(), Instant::now()));
        Ok(Self(child))
    }

    /// Waits for the client and returns what it used.
    pub fn wait(mut self) -> Result<(ExitStatus, ClientUsage)> {
        let pid = self.0.id();
        let used = self.0.wait4().context("cannot wait for a client")?;
        CLIENTS.lock().expect("no panic while held").retain(|(p, _)| *p != pid);
        let cpu = used.rusage.utime + used.rusage.stime;
        let usage = ClientUsage { cpu_seconds: cpu.as_secs_f64(), peak_bytes: used.rusage.maxrss };
        Ok((used.status, usage))
    }
}

/// Runs a command that is not timed, and returns its output. An interruption ends it like any
/// client.
pub fn output(command: &mut Command) -> Result<Output> {
    let mut client = Client::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let (out, err) = (client.0.stdout.take(), client.0.stderr.take());
    // Read both pipes at the same time, so that neither fills while the other is read.
    let reader = thread::spawn(move || read_all(err));
    let stdout = read_all(out)?;
    let stderr = reader.join().unwrap_or_else(|_| Ok(Vec::new()))?;
    let (status, _) = client.wait()?;
    ensure!(!interrupted(), "interrupted");
    Ok(Output { status, stdout, stderr })
}

fn read_all(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    pipe.map(|mut pipe| pipe.read_to_end(&mut text)).transpose()?;
    Ok(text)
}

/// CPU time of a server and the bytes it has written, since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerUsage {
    /// User and system seconds of all its processes, the finished ones included.
    pub cpu_seconds: f64,
    /// Bytes that it caused to be sent to storage; `None` if the kernel does not report them.
    pub written_bytes: Option<i64>,
}

/// Reads the usage of a postmaster and its children. The kernel adds the time and bytes of a
/// finished child to its parent, so the sum loses none.
pub fn server_usage(postmaster: u32) -> ServerUsage {
    let mut usage = stat_seconds(postmaster, true);
    let mut written = written_bytes(postmaster);
    for child in children(postmaster) {
        usage += stat_seconds(child, false);
        // The kernel has already added a child that has just ended to its parent.
        written = written.map(|sum| sum + written_bytes(child).unwrap_or(0));
    }
    ServerUsage { cpu_seconds: usage, written_bytes: written }
}

/// The live children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        return text.split_whitespace().filter_map(|p| p.parse().ok()).collect();
    }
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|e| e.file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter(|p| stat_fields(*p).get(1).and_then(|f| f.parse().ok()) == Some(pid)).collect()
}

/// Whether a process still holds memory. A zombie does not.
pub fn runs(pid: u32) -> bool {
    stat_fields(pid).first().is_some_and(|state| state != "Z" && state != "X")
}

/// The fields of /proc/PID/stat after the name: state, parent, …
fn stat_fields(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(str::to_owned).collect()
}

/// User and system seconds. With `with_reaped`, those of reaped children are included.
fn stat_seconds(pid: u32, with_reaped: bool) -> f64 {
    let fields = stat_fields(pid);
    let upto = if with_reaped { 15 } else { 13 };
    let ticks: u64 = (11..upto).filter_map(|i| fields.get(i)?.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Bytes that a process dirtied, less those that it cancelled by removing files before they were
/// written. The number is negative if the process removed what another had dirtied. Only the sum
/// over all processes is meaningful.
fn written_bytes(pid: u32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let field = |name| i64::try_from(number_after(&text, name)?).ok();
    Some(field("\nwrite_bytes:")? - field("cancelled_write_bytes:")?)
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.split_once(name)?.1;
    rest.split_whitespace().next()?.parse().ok()
}

/// The present memory of a server: the private memory of its processes, plus the shared memory once
/// (that of the process that has touched most of it).
pub fn server_memory(postmaster: u32) -> u64 {
    let mut private = 0;
    let mut shared = 0;
    for pid in children(postmaster).into_iter().chain([postmaster]) {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        private += 1024 * number_after(&text, "RssAnon:").unwrap_or(0);
        shared = shared.max(1024 * number_after(&text, "RssShmem:").unwrap_or(0));
    }
    private + shared
}

/// Watches the memory of a server in a separate thread.
pub struct MemoryWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl MemoryWatch {
    /// Begins to watch.
    pub fn start(postmaster: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut peak = 0;
            while !stopped.load(Ordering::Relaxed) {
                peak = peak.max(server_memory(postmaster));
                thread::sleep(SAMPLING);
            }
            peak.max(server_memory(postmaster))
        });
        Self { stop, thread }
    }

    /// Stops watching and returns the largest sum seen.
    pub fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }
}

/// Largest file that [`floor_seconds`] writes, in bytes.
const FLOOR_FILE: u64 = 4 << 30;

/// Seconds that plain `write` and `fsync` of `bytes` bytes take in a directory.
pub fn floor_seconds(dir: &Path, bytes: u64) -> Result<f64> {
    use std::io::Write;
    let path = dir.join("floor");
    let mut block = vec![0_u8; 1 << 20];
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    for chunk in block.chunks_exact_mut(8) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    let start = Instant::now();
    let mut left = bytes;
    // Write files of bounded size, one after another, so that the disk need not hold all bytes.
    loop {
        let mut file = fs::File::create(&path)?;
        let mut of_file = left.min(FLOOR_FILE);
        left -= of_file;
        while of_file > 0 {
            let n = of_file.min(block.len() as u64);
            file.write_all(&block[..n as usize])?;
            of_file -= n;
        }
        file.sync_all()?;
        if left == 0 {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(seconds)
}

/// Key and value of the lines `name: value` of a file under /proc.
pub fn proc_table(path: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    text.lines().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_accounted() {
        let mut command = Command::new("sh");
        command.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
        let (status, usage) = Client::spawn(&mut command).unwrap().wait().unwrap();
        assert!(status.success());
        assert!(usage.cpu_seconds > 0.0);
        assert!(usage.peak_bytes > 100 * 1024, "{usage:?}");
    }

    #[test]
    fn a_client_that_takes_too_long_is_ended() {
        let client = Client::spawn(Command::new("sleep").arg("1000")).unwrap();
        let pid = client.0.id();
        let ours = || CLIENTS.lock().unwrap().iter().any(|(p, _)| *p == pid);
        assert!(ours());
        // Set its start to the past. Other tests have clients too.
        let before = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        CLIENTS.lock().unwrap().iter_mut().filter(|(p, _)| *p == pid).for_each(|c| c.1 = before);
        end_clients(Duration::from_secs(50));
        let (status, _) = client.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
        assert!(!ours());
    }

    #[test]
    fn a_server_that_does_not_listen_is_ended() {
        let deaf = ["-c", "trap '' QUIT; echo; exec sleep 1000"];
        let mut child = Command::new("sh").args(deaf).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        end(&mut child, Duration::ZERO);
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }

    #[test]
    fn own_usage_is_seen() {
        let pid = std::process::id();
        assert!(server_memory(pid) > 100 * 1024);
        let dir = tempfile::tempdir().unwrap();
        assert!(floor_seconds(dir.path(), 3 << 20).unwrap() > 0.0);
        assert!(floor_seconds(dir.path(), 0).unwrap() > 0.0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the file is gone");
    }
}
