//! The embedded server, on every PostgreSQL that this machine has.

mod support;

use pgsluice_pgserver::{find_all, scratch, Installation, Server, ServerOptions, StopMode};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{each_major, left_out, wait_until, Port};

fn options(installation: &Installation) -> ServerOptions {
    ServerOptions {
        pg_bin: Some(installation.bin.clone()),
        settings: vec![("fsync".into(), "off".into())],
        ..ServerOptions::default()
    }
}

/// Runs SQL by a psql of any version, as some packages have none.
fn psql(url: &str, sql: &str) -> Result<String, String> {
    let output = Command::new(support::psql())
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql])
        .output()
        .expect("psql runs");
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// A separate folder for a test, removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, mode: u32) -> Self {
        let dir = scratch().unwrap().join(name);
        fs::DirBuilder::new().mode(mode).create(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn process_uid(pid: i32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}

/// Every major version starts, not as root, with its defaults and a socket that no other user can
/// reach. After it stops, neither its folder nor its process is left.
#[test]
fn every_major_starts_answers_and_stops() {
    for installation in each_major() {
        let mut server = Server::start(options(&installation)).unwrap();
        let url = server.url("postgres");
        let facts = "SELECT current_setting('server_version_num')::int / 10000, \
             current_setting('data_checksums'), current_setting('server_encoding'), \
             (SELECT datcollate FROM pg_database WHERE datname = 'postgres'), \
             current_setting('listen_addresses'), current_setting('fsync')";
        let expected = format!("{}|on|UTF8|C.UTF-8||off", installation.version.major);
        assert_eq!(psql(&url, facts).unwrap(), expected);
        assert_eq!(server.version(), &installation.version);
        let pid = server.pid().unwrap();
        assert_ne!(process_uid(pid), 0, "no server runs as root");
        let socket_mode = fs::metadata(server.socket_dir()).unwrap().permissions().mode();
        assert_eq!(socket_mode & 0o777, 0o700, "nobody else reaches the socket");

        let dir = server.data().parent().unwrap().to_owned();
        server.stop(StopMode::Fast).unwrap();
        assert_eq!(server.pid(), None);
        assert!(psql(&url, "SELECT 1").is_err());
        drop(server);
        assert!(!dir.exists(), "a temporary server leaves nothing behind");
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}

/// Committed rows survive SIGKILL, an immediate stop, and a restart with other settings. Recovery
/// empties unlogged tables.
#[test]
fn committed_rows_survive_kill_9_and_an_immediate_stop() {
    for installation in each_major() {
        let mut server = Server::start(options(&installation)).unwrap();
        let url = server.url("postgres");
        psql(&url, "CREATE TABLE t (a int); CREATE UNLOGGED TABLE u (a int)").unwrap();
        psql(&url, "INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)").unwrap();
        server.kill9().unwrap();
        server.restart().unwrap();
        let both = "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u)";
        assert_eq!(psql(&url, both).unwrap(), "1|0", "recovery empties unlogged tables");
        psql(&url, "INSERT INTO t VALUES (2)").unwrap();
        server.stop(StopMode::Immediate).unwrap();
        server.restart().unwrap();
        assert_eq!(psql(&url, both).unwrap(), "2|0");
        server.restart_with(vec![("wal_level".into(), "logical".into())]).unwrap();
        assert_eq!(psql(&url, "SHOW wal_level").unwrap(), "logical");
        assert_eq!(psql(&url, both).unwrap(), "2|0");
    }
}

/// A server that is kept is found by its folder and keeps its data. A second start in the same
/// folder is refused and does no harm.
#[test]
fn a_kept_server_is_found_again_and_keeps_its_data() {
    let scratch = Scratch::new("kept server", 0o755);
    let dir = scratch.0.join("it's, a \"folder\"");
    let installation = &each_major()[0];
    let kept = || ServerOptions { dir: Some(dir.clone()), ..options(installation) };

    assert!(Server::attach(&dir).unwrap().is_none());
    Server::start(kept()).unwrap().detach();
    let mut found = Server::attach(&dir).unwrap().expect("it runs on");
    let url = found.url("postgres");
    psql(&url, "CREATE TABLE t AS SELECT 7 AS a").unwrap();
    assert_eq!(found.version(), &installation.version);

    let error = Server::start(kept()).unwrap_err();
    assert!(error.to_string().contains("already runs"), "{error}");
    assert_eq!(psql(&url, "SELECT a FROM t").unwrap(), "7", "the second start did no harm");

    found.stop(StopMode::Fast).unwrap();
    assert!(Server::attach(&dir).unwrap().is_none());
    let again = Server::start(kept()).unwrap();
    assert_eq!(psql(&again.url("postgres"), "SELECT a FROM t").unwrap(), "7");
}

/// Over TCP, the server asks for a password, over its socket it does not. Only the owner can read
/// the password file.
#[test]
fn over_tcp_the_server_asks_for_its_password() {
    let kept = Port::keep();
    let (port, installation) = (kept.number, &each_major()[0]);
    let server =
        Server::start(ServerOptions { port: Some(port), ..options(installation) }).unwrap();
    let with_password = server.tcp_url("postgres").unwrap();
    assert_eq!(psql(&with_password, "SELECT inet_server_port()").unwrap(), port.to_string());
    assert_eq!(psql(&server.url("postgres"), "SELECT 1").unwrap(), "1");
    let without = format!("postgresql://postgres@127.0.0.1:{port}/postgres?passfile=/dev/null");
    let error = psql(&without, "SELECT 1").unwrap_err();
    assert!(error.contains("password"), "{error}");
    let pgpass = server.data().with_file_name("pgpass");
    assert_eq!(fs::metadata(pgpass).unwrap().permissions().mode() & 0o777, 0o600);
}

/// If the process that started a temporary server is killed, the server ends and its folder is
/// removed.
#[test]
fn a_killed_process_leaves_no_server_and_no_folder() {
    const KILLED: &str = "PGSLUICE_TEST_TO_BE_KILLED";
    if env::var_os(KILLED).is_some() {
        let server = Server::start(options(&each_major()[0])).unwrap();
        println!("\nserver {}\nfolder {}", server.pid().unwrap(), scratch().unwrap().display());
        loop {
            std::thread::park();
        }
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_killed_process_leaves_no_server_and_no_folder", "--nocapture"])
        .env(KILLED, "yes")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said =
        |name: &str| lines.find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap();
    let (server, folder) = (said("server "), said("folder "));
    assert!(Path::new(&folder).is_dir());
    child.kill().unwrap();
    child.wait().unwrap();
    // A zombie process has no command line.
    let command = || fs::read(format!("/proc/{server}/cmdline")).unwrap_or_default();
    wait_until(
        || format!("{folder} or process {server} is left behind"),
        || !Path::new(&folder).exists() && command().is_empty(),
    );
}

/// Two servers of one process run at the same time. They share one initdb, but no data.
#[test]
fn two_servers_run_side_by_side() {
    let installation = &each_major()[0];
    let (one, two) = std::thread::scope(|scope| {
        let start = || scope.spawn(|| Server::start(options(installation)).unwrap());
        let (one, two) = (start(), start());
        (one.join().unwrap(), two.join().unwrap())
    });
    let identifier = |of: &Server| {
        psql(&of.url("postgres"), "SELECT system_identifier FROM pg_control_system()").unwrap()
    };
    assert_eq!(identifier(&one), identifier(&two), "one initdb for all of a process");
    psql(&one.url("postgres"), "CREATE TABLE only_here ()").unwrap();
    assert!(psql(&two.url("postgres"), "SELECT FROM only_here").is_err());
}

/// If a server does not start, the hint has the reason and the path of the log.
#[test]
fn a_server_that_does_not_start_says_why() {
    let scratch = Scratch::new("refusing", 0o755);
    let installation = &each_major()[0];
    let mut bad = options(installation);
    bad.dir = Some(scratch.0.join("server"));
    bad.settings = vec![("shared_buffers".into(), "much".into())];
    let error = Server::start(bad).unwrap_err();
    assert!(error.to_string().contains("did not start"), "{error}");
    let hint = error.hint().expect("a hint");
    assert!(hint.contains("shared_buffers") && hint.contains("/log"), "{hint}");
}

/// Data of another major version are refused, and the message names that version.
#[test]
fn data_of_another_major_version_are_refused() {
    let all = each_major();
    let [one, other, ..] = all.as_slice() else {
        return left_out("data of another major version, since only one PostgreSQL is here");
    };
    let scratch = Scratch::new("majors", 0o755);
    let dir = Some(scratch.0.join("server"));
    drop(Server::start(ServerOptions { dir: dir.clone(), ..options(one) }).unwrap());
    let error = Server::start(ServerOptions { dir: dir.clone(), ..options(other) }).unwrap_err();
    let major = Some(other.version.major);
    let by_number =
        Server::start(ServerOptions { dir, major, ..ServerOptions::default() }).unwrap_err();
    let expected = format!("was made by PostgreSQL {}, not", one.version.major);
    assert!(error.to_string().contains(&expected), "{error}");
    assert!(by_number.to_string().contains(&expected), "{by_number}");
}

/// A folder with other files, or to which others can write, is refused and left unchanged. An empty
/// folder is used.
#[test]
fn a_folder_with_other_things_is_left_alone() {
    let scratch = Scratch::new("other things", 0o755);
    let installation = &each_major()[0];
    let start = |dir: &Path| {
        Server::start(ServerOptions { dir: Some(dir.into()), ..options(installation) })
    };
    fs::write(scratch.0.join("thesis.txt"), "dear").unwrap();
    let error = start(&scratch.0).unwrap_err();
    assert!(error.to_string().contains("contains other files"), "{error}");
    let names: Vec<_> = fs::read_dir(&scratch.0).unwrap().collect();
    assert_eq!(names.len(), 1);

    let shared = scratch.0.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let error = start(&shared).unwrap_err();
    assert!(error.to_string().contains("others can write"), "{error}");
    assert_eq!(fs::metadata(&shared).unwrap().permissions().mode() & 0o777, 0o777);

    let empty = scratch.0.join("empty");
    fs::create_dir(&empty).unwrap();
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o755)).unwrap();
    start(&empty).unwrap();
}

/// A PID file whose process is not a server does not count as a running server.
#[test]
fn a_stale_pid_file_names_no_server() {
    let scratch = Scratch::new("stale", 0o755);
    fs::create_dir(scratch.0.join("data")).unwrap();
    // This process is alive, but it is not a server.
    let text = format!("{}\n", std::process::id());
    fs::write(scratch.0.join("data/postmaster.pid"), text).unwrap();
    assert!(Server::attach(&scratch.0).unwrap().is_none());
}

/// A relocatable installation, and the folder of its package.
fn relocatable() -> Option<(Installation, PathBuf)> {
    let embedded = find_all().into_iter().find(|i| !i.bin.starts_with("/usr"))?;
    let package = embedded.bin.parent()?.parent()?.to_owned();
    Some((embedded, package))
}

/// If root's programs are in a folder that the server's user cannot read, the server runs from a
/// copy, which is used again.
#[test]
fn programs_in_a_private_folder_are_run_from_a_copy_by_root() {
    let Some((installation, package)) = relocatable() else {
        return left_out("programs in a private folder, since no embedded PostgreSQL is here");
    };
    let private = Scratch::new("private", 0o700);
    let above = package.parent().unwrap();
    for folder in fs::read_dir(above).unwrap().flatten() {
        let wanted = folder
            .file_name()
            .to_string_lossy()
            .starts_with(package.file_name().unwrap().to_str().unwrap());
        if wanted {
            let copied = Command::new("cp").arg("-a").arg(folder.path()).arg(&private.0).status();
            assert!(copied.unwrap().success());
        }
    }
    let bin = private.0.join(installation.bin.strip_prefix(above).unwrap());
    let moved = Installation { bin: bin.clone(), ..installation };
    let server = Server::start(options(&moved)).unwrap();
    assert_eq!(psql(&server.url("postgres"), "SELECT 1").unwrap(), "1");
    if is_root() {
        assert!(server.installation().bin.starts_with("/var/tmp/pgsluice-0"));
        assert_ne!(process_uid(server.pid().unwrap()), 0);
        let copy = server.installation().bin.clone();
        drop(server);
        let again = Server::start(options(&moved)).unwrap();
        assert_eq!(again.installation().bin, copy, "the copy is used again");
        drop(again);
        let root_of_copy = copy.ancestors().nth(3).unwrap();
        fs::remove_dir_all(root_of_copy).unwrap();
    } else {
        assert_eq!(server.installation().bin, fs::canonicalize(bin).unwrap());
    }
}

/// If the server's user cannot reach the folder that root has chosen, the start fails with a hint.
#[test]
fn a_folder_that_the_servers_user_cannot_reach_is_an_error() {
    if !is_root() {
        return left_out("a folder that root's server cannot reach, since this is not root");
    }
    let private = Scratch::new("unreachable", 0o700);
    let dir = Some(private.0.join("server"));
    let error = Server::start(ServerOptions { dir, ..options(&each_major()[0]) }).unwrap_err();
    assert!(error.to_string().contains("cannot reach"), "{error}");
    assert!(error.hint().is_some());
}
