//! The machine and the versions that a figure is from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::checksum::hash_bytes_extended;
use crate::proc;
use crate::server::Binaries;

/// Where a run was made.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Environment {
    /// Distribution.
    pub system: String,
    /// Kernel.
    pub kernel: String,
    /// Processor.
    pub cpu: String,
    /// Cores that the runner may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// File system of the data directories.
    pub file_system: String,
    /// Type of its disk as the kernel reports it.
    pub disk: String,
    /// Bytes per second of a plain `write` of 256 MB with one `fsync`, measured before the first
    /// run.
    pub disk_bytes_per_second: f64,
    /// Load of the machine over the last minute when the first run began.
    pub load_at_start: f64,
    /// Commit of the project, with `-dirty` where files differ from it.
    pub commit: String,
    /// Checksums of what is measured: `loader`, and `extension` where the server has it. Empty in
    /// older results.
    #[serde(default)]
    pub built: BTreeMap<String, String>,
    /// PostgreSQL's version.
    pub postgres: String,
    /// Version of psql.
    pub psql: String,
}

impl Environment {
    /// Collects the facts about the machine. `dir` is the folder for data directories.
    pub fn look(dir: &Path, postgres: &str, psql: &Path, built: BTreeMap<String, String>) -> Self {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let pretty = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
        let cpu = proc::proc_table("/proc/cpuinfo");
        let memory = proc::proc_table("/proc/meminfo");
        let kilobytes = memory.get("MemTotal").and_then(|m| m.split(' ').next()?.parse().ok());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let (file_system, disk) = disk_of(dir);
        Self {
            system: pretty.unwrap_or("unknown").trim_matches('"').to_owned(),
            kernel: first_line("uname", &["-r"]),
            cpu: cpu.get("model name").cloned().unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: 1024 * kilobytes.unwrap_or(0_u64),
            file_system,
            disk,
            disk_bytes_per_second: disk_speed(dir),
            load_at_start: load.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0),
            commit: commit(),
            built,
            postgres: postgres.to_owned(),
            psql: first_line(&psql.display().to_string(), &["--version"]),
        }
    }

    /// A short name of the machine for folders: processor, cores and memory.
    pub fn machine(&self) -> String {
        let gigabytes = (self.memory_bytes as f64 / f64::from(1 << 30)).round();
        let cpu = self.cpu.to_lowercase().replace("(r)", "").replace("(tm)", "");
        let skip = ["cpu", "processor", "@"];
        let words = cpu.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        let words: Vec<&str> =
            words.filter(|w| !w.is_empty() && !skip.contains(w) && !w.ends_with("ghz")).collect();
        let name = words[..words.len().min(3)].join("-");
        format!("{name}-{}c-{gigabytes}g", self.cores)
    }
}

/// Commit of the project, with `-dirty` where files differ from it; empty outside of a repository.
pub fn commit() -> String {
    first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"])
}

/// Checksums of the loader, and of the extension that is installed in the server: what a commit's name
/// alone does not tell.
pub fn built(loader: &Path, binaries: &Binaries) -> BTreeMap<String, String> {
    let pg_config = binaries.dir.join("pg_config").display().to_string();
    let library = Path::new(&first_line(&pg_config, &["--pkglibdir"])).join("pgsluice.so");
    let print = |path: &Path| Some(format!("{:016x}", hash_bytes_extended(&fs::read(path).ok()?)));
    let named = [("loader", print(loader)), ("extension", print(&library))];
    named.into_iter().filter_map(|(name, print)| Some((name.to_owned(), print?))).collect()
}

/// The present time in UTC, to the second.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// File system type, and whether the kernel calls its device rotational.
fn disk_of(dir: &Path) -> (String, String) {
    let path = dir.display().to_string();
    let mount = first_line("findmnt", &["-n", "-o", "FSTYPE,SOURCE", "-T", &path]);
    let mut words = mount.split_whitespace();
    let file_system = words.next().unwrap_or("unknown").to_owned();
    let device = words.next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let rotational = fs::read_to_string(format!("/sys/block/{device}/queue/rotational"));
    let disk = match rotational.as_deref().map(str::trim) {
        Ok("0") => "non-rotational",
        Ok(_) => "rotational",
        Err(_) => "unknown",
    };
    (file_system, disk.to_owned())
}

fn disk_speed(dir: &Path) -> f64 {
    let bytes = 256 << 20;
    proc::floor_seconds(dir, bytes).map_or(0.0, |seconds| bytes as f64 / seconds)
}

/// First line that a command prints; empty when it cannot be run.
pub fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}
