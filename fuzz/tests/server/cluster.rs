//! A PostgreSQL server of one's own for the length of a test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A running server; stopped and removed when dropped.
pub struct Cluster {
    bin: PathBuf,
    dir: PathBuf,
}

/// The servers of this machine: major version and folder of programs.
///
/// `scripts/servers` fetches those under `build/servers`; 15 is Debian's.
pub fn installed() -> Vec<(u32, PathBuf)> {
    let root = std::env::var_os("PGSLUICE_SERVERS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/servers"),
        PathBuf::from,
    );
    let mut found = Vec::new();
    for major in 15..=18 {
        let debian = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
        let fetched = root.join(major.to_string()).join("bin");
        found.extend([fetched, debian].into_iter().find(|b| b.join("initdb").exists()));
    }
    found
        .into_iter()
        .map(|bin: PathBuf| {
            let version = Command::new(bin.join("postgres")).arg("--version").output().unwrap();
            let version = String::from_utf8_lossy(&version.stdout).into_owned();
            let number = version.split_whitespace().find_map(|w| w.split('.').next()?.parse().ok());
            (number.expect("postgres --version names a number"), bin)
        })
        .collect()
}

impl Cluster {
    /// Makes a cluster in a temporary folder and starts it, on a Unix socket only.
    pub fn start(bin: &Path) -> Cluster {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("pgsluice-fuzz-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&dir));
        }
        let cluster = Cluster { bin: bin.into(), dir };
        let data = cluster.dir.join("data");
        run(cluster
            .program("initdb")
            .args(["-D", data.to_str().unwrap(), "-U", "postgres", "-A", "trust"])
            .args(["-E", "UTF8", "--locale=C", "-N"]));
        let settings = format!(
            "-c listen_addresses='' -c unix_socket_directories={} -c fsync=off",
            cluster.dir.display()
        );
        run(cluster
            .program("pg_ctl")
            .args(["-D", data.to_str().unwrap(), "-o", &settings, "-l"])
            .arg(cluster.dir.join("log"))
            .args(["-s", "-w", "start"]));
        cluster
    }

    /// Where its socket lies.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(".s.PGSQL.5432")
    }

    /// A program of the server's, run by a user it accepts.
    fn program(&self, name: &str) -> Command {
        let path = self.bin.join(name);
        if !is_root() {
            return Command::new(path);
        }
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(path).current_dir("/");
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = self.dir.join("data");
        let stop = ["-s", "-m", "immediate", "stop"];
        let _ = self.program("pg_ctl").arg("-D").arg(data).args(stop).status();
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::remove_dir_all(&self.dir).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

fn run(command: &mut Command) {
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(done.is_ok_and(|s| s.success()), "failed: {command:?}");
}
