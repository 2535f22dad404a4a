//! `pgsluice server`, installed in a separate folder, as root and as an ordinary user.

use crate::common::left_out;
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::{find_all, scratch};
use std::fs::{self, Permissions};
use std::os::unix::fs::{chown, symlink, DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The IDs of `nobody`, the ordinary user as which root runs a program here.
const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// The program and an embedded server, installed in a separate folder.
struct Installed {
    prefix: PathBuf,
    ordinary: bool,
}

impl Installed {
    /// Returns `None` if there is no embedded server to install.
    fn new(name: &str, mode: u32, ordinary: bool) -> Option<Self> {
        let embedded = find_all().into_iter().find(|i| !i.bin.starts_with("/usr"));
        if embedded.is_none() {
            left_out("`pgsluice server`, since no embedded PostgreSQL is here to be installed");
        }
        let embedded = embedded?;
        let prefix = scratch().unwrap().join(name);
        fs::DirBuilder::new().mode(mode).create(&prefix).unwrap();
        for folder in ["bin", "home", "lib/pgsluice/servers"] {
            fs::create_dir_all(prefix.join(folder)).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_pgsluice"), prefix.join("bin/pgsluice")).unwrap();
        // The package, with the libraries beside it.
        let package = embedded.bin.ancestors().nth(3).unwrap();
        let copied = prefix.join("lib/pgsluice/package");
        assert!(Command::new("cp").arg("-a").args([package, &copied]).status().unwrap().success());
        let inside = embedded.bin.parent().unwrap().strip_prefix(package).unwrap();
        let link = prefix.join("lib/pgsluice/servers").join(embedded.version.major.to_string());
        symlink(copied.join(inside), link).unwrap();
        if ordinary && is_root() {
            chown(prefix.join("home"), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Some(Self { prefix, ordinary })
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.prefix.join("bin/pgsluice"));
        command.arg("server").args(arguments).current_dir("/");
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.prefix.join("home"));
        if self.ordinary && is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().unwrap()
    }

    /// Runs a command that must succeed; returns its standard output.
    fn expect(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn line<'a>(status: &'a str, name: &str) -> &'a str {
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('\t'));
        line.unwrap_or_else(|| panic!("no {name} in {status}"))
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = self.run(&["stop", "--immediate"]);
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

/// An ordinary user's server runs as that user, with its data in the state folder. A second start
/// finds it running, and refuses other settings.
#[test]
fn an_ordinary_user_has_the_server_in_their_state_folder() {
    let Some(installed) = Installed::new("ordinary", 0o755, true) else { return };
    assert_eq!(installed.run(&["status"]).status.code(), Some(3));
    let error = installed.run(&["url"]);
    assert_eq!(error.status.code(), Some(1));
    let stderr = String::from_utf8(error.stderr).unwrap();
    assert!(stderr.contains("error: no server runs in"), "{stderr}");
    assert!(stderr.contains("\nhint: start one with pgsluice server start\n"), "{stderr}");

    let url = installed.expect(&["start", "--set", "work_mem=7MB"]);
    assert_eq!(installed.expect(&["url"]), url);
    assert_eq!(installed.expect(&["start"]), url, "a second start finds it running");
    assert_eq!(installed.expect(&["start", "--set", "work_mem=7MB"]), url);
    for other in [["--set", "work_mem=8MB"], ["--major", "12"], ["--port", "1"]] {
        let refused = installed.run(&[&["start"], &other[..]].concat());
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("without {}", other.join(" "))), "{said}");
        assert!(said.contains("hint: stop it first"), "{said}");
    }
    let status = installed.expect(&["status"]);
    let data = Path::new(Installed::line(&status, "data"));
    assert_eq!(data, installed.prefix.join("home/.local/state/pgsluice/server/data"));
    let owner =
        fs::metadata(format!("/proc/{}", Installed::line(&status, "process"))).unwrap().uid();
    let expected = if is_root() { NOBODY } else { fs::metadata("/proc/self").unwrap().uid() };
    assert_eq!(owner, expected);
    let programs = Path::new(Installed::line(&status, "programs"));
    assert!(programs.starts_with(installed.prefix.join("lib/pgsluice")), "{programs:?}");
    installed.expect(&["stop"]);
    assert_eq!(installed.run(&["status"]).status.code(), Some(3));
}

/// If root starts a server from a folder that only root can read, it runs as another user, in
/// /var/tmp/pgsluice-0.
#[test]
fn root_starts_a_server_from_a_private_folder() {
    if !is_root() {
        return left_out("a server that root starts from a private folder, since this is not root");
    }
    let Some(installed) = Installed::new("private", 0o700, false) else { return };
    installed.expect(&["start"]);
    let status = installed.expect(&["status"]);
    let process = Installed::line(&status, "process");
    assert_ne!(fs::metadata(format!("/proc/{process}")).unwrap().uid(), 0);
    let data = Path::new(Installed::line(&status, "data")).to_owned();
    let programs = Path::new(Installed::line(&status, "programs")).to_owned();
    for path in [&data, &programs] {
        assert!(path.starts_with("/var/tmp/pgsluice-0"), "{path:?}");
    }
    installed.expect(&["stop"]);
    fs::remove_dir_all(data.parent().unwrap()).unwrap();
    fs::remove_dir_all(programs.ancestors().nth(3).unwrap()).unwrap();
}

/// The server's user chooses the process in the pid file, and so the folder of programs that the
/// commands look at. If root gives such a command, none of them runs as root.
#[test]
fn root_runs_programs_that_the_server_s_user_chooses_as_that_user() {
    if !is_root() {
        return left_out("programs that a server's user plants for root, since this is not root");
    }
    let dir = scratch().unwrap().join("planted");
    let (data, bin) = (dir.join("data"), dir.join("bin"));
    fs::create_dir(&dir).unwrap();
    for folder in [&data, &bin] {
        fs::create_dir(folder).unwrap();
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (process, told) = (bin.join("process"), bin.join("told"));
    // If this process wrote the file, one that another test starts meanwhile could hold it open.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&process).status();
    assert!(copied.unwrap().success());
    fs::write(bin.join("initdb"), "").unwrap();
    let script = "#!/bin/sh\nid -u >\"${0%/*}/told\"\necho 'postgres (PostgreSQL) 18.0'\n";
    fs::write(bin.join("postgres"), script).unwrap();
    fs::set_permissions(bin.join("postgres"), Permissions::from_mode(0o755)).unwrap();
    let mut server = Command::new(&process);
    let mut server = server.arg("600").current_dir(&data).uid(NOBODY).gid(NOBODY).spawn().unwrap();
    fs::write(data.join("postmaster.pid"), format!("{}\n", server.id())).unwrap();
    for action in ["status", "url"] {
        let _ = fs::remove_file(&told);
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        let output = command.args(["server", action, "--dir"]).arg(&dir).output().unwrap();
        assert!(output.status.success(), "{action}: {output:?}");
        let user = fs::read_to_string(&told).unwrap();
        assert_eq!(user.trim(), NOBODY.to_string(), "{action}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
    fs::remove_dir_all(&dir).unwrap();
}

/// Invalid values of `--set` and `--port` exit with 2.
#[test]
fn wrong_settings_are_wrong_usage() {
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(arguments).output().unwrap()
    };
    for bad in [&["server", "start", "--set", "work_mem"][..], &["server", "start", "--port", "0"]]
    {
        assert_eq!(run(bad).status.code(), Some(2), "{bad:?}");
    }
}

/// `server start --nodes` starts a coordinator and nodes in one folder. A load reaches the nodes;
/// all stop, and start again with their rows.
#[test]
fn a_local_cluster_takes_rows_and_comes_back_after_a_stop() {
    let complete = find_all().into_iter().find(|found| {
        let wrapper = Command::new(found.program("pg_config")).arg("--pkglibdir").output();
        let wrapper = wrapper.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        wrapper.is_ok_and(|dir| Path::new(&dir).join("postgres_fdw.so").exists())
            && found.program("psql").exists()
    });
    let Some(installation) = complete else {
        return left_out("a local cluster, since no PostgreSQL here has postgres_fdw");
    };
    let dir = scratch().unwrap().join("cluster");
    let run = |arguments: &[&str]| {
        let dir = dir.to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        command.args(["server"]).args(arguments).args(["--dir", dir]).output().unwrap()
    };
    let expect = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    let bin = installation.bin.to_str().unwrap();
    let url = expect(&["start", "--nodes", "2", "--pg-bin", bin]);
    assert_eq!(expect(&["start", "--nodes", "2"]), url, "a second start finds it running");
    let other = run(&["start", "--nodes", "3"]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("has 2 nodes, not 3"), "{other:?}");
    let sample = dir.join("lineitem.csv");
    let (program, file) = (env!("CARGO_BIN_EXE_pgsluice"), sample.to_str().unwrap());
    for arguments in [
        &["sample", "lineitem", "--rows", "1000", "--out", file][..],
        &["load", file, "--to", &url, "--table", "lineitem", "--route", "nodes", "--atomic"],
    ] {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    expect(&["stop"]);
    assert_eq!(run(&["status"]).status.code(), Some(3));
    assert_eq!(run(&["stop"]).status.code(), Some(1), "a node ran on");
    let url = expect(&["start"]);
    let count = |url: &str| -> u64 {
        let mut conn = Conn::open(url).unwrap();
        let rows = conn.exec("SELECT count(*) FROM lineitem").unwrap();
        rows[0][0].as_ref().unwrap().parse().unwrap()
    };
    assert_eq!(count(&url), 1_000);
    let status = expect(&["status"]);
    let on_nodes = ["node1", "node2"].map(|node| count(Installed::line(&status, node)));
    assert!(on_nodes.iter().all(|rows| *rows > 0), "{on_nodes:?}");
    assert_eq!(on_nodes.iter().sum::<u64>(), 1_000);
    expect(&["stop", "--immediate"]);
    fs::remove_dir_all(&dir).unwrap();
}
