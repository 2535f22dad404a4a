//! Loads through PgBouncer in transaction mode, where each transaction may get another session of
//! the server. Every method works and leaves nothing in the server's sessions.

use crate::common::{each_major, left_out, on_first_and_last_major, wait_until, Port, World};
use pgsluice_engine::internals::Conn;
use pgsluice_pgserver::Installation;
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The ids of `nobody`: PgBouncer refuses to run as root.
const NOBODY: u32 = 65_534;

/// PgBouncer in front of a world's server. Dropping it ends it.
struct Pooler {
    child: Child,
    port: Port,
    command: Command,
}

impl Pooler {
    /// `sessions` is the size of the pool, and `more` are settings.
    fn start(world: &World, program: &str, server: u16, sessions: u16, more: &str) -> Pooler {
        let port = Port::keep();
        let users = world.file("users.txt", b"\"loader\" \"secret\"\n");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\npool_mode = transaction\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = plain\n\
             auth_file = {users}\ndefault_pool_size = {sessions}\nserver_fast_close = 1\n{more}",
            port.number
        );
        let file = world.file("pgbouncer.ini", settings.as_bytes());
        for path in [&users, &file] {
            fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        }
        let mut command = Command::new(program);
        // In the world's folder: processes there do not outlast a test that is killed.
        command.arg("-q").arg(&file).current_dir(world.path("")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0) {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut pooler = Pooler { child: command.spawn().unwrap(), port, command };
        pooler.wait();
        pooler
    }

    /// Waits until PgBouncer can be reached.
    fn wait(&mut self) {
        let is_reached = || {
            assert!(self.child.try_wait().unwrap().is_none(), "PgBouncer ended at its start");
            TcpStream::connect(("127.0.0.1", self.port.number)).is_ok()
        };
        wait_until(|| "PgBouncer does not start".into(), is_reached);
    }

    /// Kills PgBouncer and all connections through it.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts PgBouncer again after that.
    fn start_again(&mut self) {
        self.child = self.command.spawn().unwrap();
        self.wait();
    }

    fn url(&self) -> String {
        format!("postgresql://loader@127.0.0.1:{}/postgres", self.port.number)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pgbouncer() -> Option<&'static str> {
    let found = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
    let found = found.into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        left_out("PgBouncer, which is not here (Debian: apt-get install pgbouncer)");
    }
    found
}

fn run(url: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(arguments)
        .args(["--to", url])
        .env("PGPASSWORD", "secret")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

const TABLE: &str = "DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, c date); \
    CREATE INDEX t_b ON t (b); ALTER TABLE t OWNER TO loader";

fn every_method(world: &mut World, pooler: &Pooler) {
    let rows = |i: u32| format!("{i},text {},02/03/2024\n", i % 10);
    let file = world.file("rows.csv", (1..60_000).map(rows).collect::<String>().as_bytes());
    let few = world.file("few.csv", (1..300).map(rows).collect::<String>().as_bytes());
    for method in [
        "auto",
        "copy-csv",
        "copy-text",
        "copy-binary",
        "copy-fresh",
        "insert-batch",
        "insert",
        "unlogged-logged",
        "lanes",
        "staged",
    ] {
        world.sql(TABLE);
        let file = if method == "insert" { &few } else { &file };
        let load = ["load", file, "--table", "t", "--method", method, "--date-style", "ISO, DMY"];
        let (code, said) = run(&pooler.url(), &load);
        assert_eq!(code, Some(0), "{method}: {said}");
        let rows = if method == "insert" { "299" } else { "59999" };
        let facts = "SELECT count(*) || ' ' || min(c) || ' ' || count(DISTINCT b) FROM t";
        assert_eq!(world.sql(facts), format!("{rows} 2024-03-02 10"), "{method}");
        assert_eq!(world.sql("SELECT count(*) FROM pg_indexes WHERE tablename = 't'"), "2");
        // A second load is refused: nothing stays, not even a transaction or a lock.
        if method != "insert" {
            let load = ["load", file, "--table", "t", "--method", method, "--truncate"];
            let bad = world.file("bad.csv", b"1,x,2024-02-03\n2,y,yesterday and so on\n");
            let (code, said) = run(&pooler.url(), &[&load[..1], &[&bad], &load[2..]].concat());
            assert_eq!(code, Some(4), "{method}: {said}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), rows, "{method}");
        }
        nothing_stays(world, method);
    }
    // With rejects, a COPY stands between other statements of its message.
    let (bad, rejects) = (world.path("bad.csv"), world.path("bad.rejects"));
    world.sql("TRUNCATE t");
    let load = ["load", &bad, "--table", "t", "--on-error", "reject", "--reject-file", &rejects];
    let (code, said) = run(&pooler.url(), &load);
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
    nothing_stays(world, "rejects");
}

/// `--once` works in one transaction and in several.
fn once(world: &mut World, pooler: &Pooler) {
    let rows = |i: u32| format!("{i},text {},2024-03-02\n", i % 10);
    let file = world.file("once.csv", (1..60_000).map(rows).collect::<String>().as_bytes());
    let lanes = ["--commit-every", "256kB", "--method", "lanes", "--lanes", "2"];
    for more in [&lanes[..0], &lanes[..2], &lanes] {
        world.sql(TABLE);
        for _ in 0..2 {
            let load = [&["load", &file, "--table", "t", "--once"], more].concat();
            let (code, said) = run(&pooler.url(), &load);
            assert_eq!(code, Some(0), "{more:?}: {said}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), "59999", "{more:?}");
        }
        nothing_stays(world, "once");
    }
}

/// PgBouncer is restarted in the middle of a load; the same command continues it.
fn once_continues(world: &mut World, pooler: &mut Pooler) {
    world.sql(TABLE);
    world.sql("ALTER TABLE t DROP COLUMN c");
    let rows = (1..300_000).map(|i| format!("{i},text {}\n", i % 10));
    let file = world.file("many.csv", rows.collect::<String>().as_bytes());
    let load = ["load", &file, "--table", "t", "--once", "--commit-every", "64kB", "--quiet"];
    world.shut_gate();
    let child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(load)
        .args(["--to", &pooler.url()])
        .env("PGPASSWORD", "secret")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    world.wait_for_a_row();
    pooler.kill();
    world.open_gate();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(5) && said.contains("connection"), "{output:?}");
    nothing_stays(world, "a killed pooler");
    let before: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(before > 0 && before < 299_999, "{before}");
    pooler.start_again();
    let (code, said) = run(&pooler.url(), &load);
    assert_eq!(code, Some(0), "{said}");
    let counts = "SELECT count(*) || ' ' || count(DISTINCT a) FROM t";
    assert_eq!(world.sql(counts), "299999 299999");
    let (code, said) = run(&pooler.url(), &load[..7]);
    assert!(code == Some(0) && said.contains("nothing new"), "{said}");
}

/// Checks that no session of the load is active, and that no prepared transaction or table is left.
fn nothing_stays(world: &mut World, method: &str) {
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'loader' AND state <> 'idle'";
    wait_until(|| format!("{method} leaves a session at work"), || world.sql(busy) == "0");
    assert_eq!(world.sql("SELECT count(*) FROM pg_prepared_xacts"), "0", "{method}");
    assert_eq!(
        world
            .sql("SELECT count(*) FROM pg_class WHERE relname LIKE 'pgsluice_%' AND relkind = 'r'"),
        "0",
        "{method}"
    );
}

/// With one session in the pool, the next client gets the session that the load had. It must have
/// no settings of the load.
fn settings_do_not_leak(world: &mut World, program: &str, server: u16) {
    let pooler = Pooler::start(world, program, server, 1, "");
    let file = world.file("one.csv", b"1,x,02/03/2024\n2,y,02/03/2024\n");
    let shown = |pooler: &Pooler| {
        let url = pooler.url().replace("loader@", "loader:secret@");
        let mut conn = Conn::open(&url).unwrap();
        let all = "SELECT string_agg(name || '=' || setting, ', ' ORDER BY name) FROM pg_settings \
            WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding')";
        conn.exec(all).unwrap()[0][0].clone().unwrap_or_default()
    };
    let before = shown(&pooler);
    for method in ["auto", "copy-csv", "insert-batch", "insert", "staged", "unlogged-logged"] {
        world.sql(TABLE);
        let load = ["load", &file, "--table", "t", "--method", method, "--lock-timeout", "7s"];
        let (code, said) = run(&pooler.url(), &load);
        assert_eq!(code, Some(0), "{method}: {said}");
        assert_eq!(shown(&pooler), before, "{method} leaves settings in the server's session");
    }
    // The connection that would wake the WAL writer gets no session from the pool.
    world.sql(TABLE);
    let rows = (1..200_000).map(|i| format!("{i},text,02/03/2024\n")).collect::<String>();
    let many = world.file("many.csv", rows.as_bytes());
    let (code, said) = run(&pooler.url(), &["load", &many, "--table", "t"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "199999");
    assert_eq!(shown(&pooler), before);
    for command in ["plan", "check"] {
        let (code, said) = run(&pooler.url(), &[command, &file, "--table", "t"]);
        assert_eq!(code, Some(0), "{command}: {said}");
    }
    let (code, said) = run(&pooler.url(), &["repair"]);
    assert_eq!(code, Some(0), "repair: {said}");
    assert_eq!(shown(&pooler), before);
}

/// A server with the role `loader`, which PgBouncer uses.
fn with_loader(installation: &Installation, port: u16) -> World {
    let mut world = World::with(installation, Some(port), &[]);
    world.sql(
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE loader LOGIN PASSWORD 'secret'; \
         GRANT ALL ON SCHEMA public TO loader; GRANT CREATE ON DATABASE postgres TO loader",
    );
    world
}

/// Through PgBouncer in transaction mode, every method and `--once` work. A load continues after
/// PgBouncer is restarted, and no setting stays in the server's sessions.
#[test]
fn transaction_mode() {
    let Some(program) = pgbouncer() else { return };
    on_first_and_last_major(|installation| {
        let kept = Port::keep();
        let server = kept.number;
        let mut world = with_loader(installation, server);
        let mut pooler = Pooler::start(&world, program, server, 6, "");
        every_method(&mut world, &pooler);
        once(&mut world, &pooler);
        once_continues(&mut world, &mut pooler);
        drop(pooler);
        settings_do_not_leak(&mut world, program, server);
    });
}

/// Rows with these keys.
fn keyed(keys: Range<u32>) -> Vec<u8> {
    let words = "x".repeat(92);
    keys.flat_map(|key| format!("{key:07},{words}\n").into_bytes()).collect()
}

/// Through PgBouncer, each transaction of a lane may have another session of the server. If a lane waits
/// for another one in a later transaction, that one commits, and the load ends with the duplicate.
#[test]
fn lanes_that_wait_for_one_another_end_in_other_sessions() {
    let Some(program) = pgbouncer() else { return };
    let kept = Port::keep();
    let mut world = with_loader(&each_major().remove(0), kept.number);
    let next = "server_round_robin = 1\n";
    let pooler = Pooler::start(&world, program, kept.number, 12, next);
    world.sql("CREATE TABLE t (a int PRIMARY KEY, b text); ALTER TABLE t OWNER TO loader");
    // The pool has sessions that wait for work, so that no transaction gets the one before.
    let url = pooler.url().replace("loader@", "loader:secret@");
    let mut others: Vec<Conn> = (0..8).map(|_| Conn::open(&url).unwrap()).collect();
    others.iter_mut().for_each(|conn| conn.exec("BEGIN; SELECT 1").map(drop).unwrap());
    others.iter_mut().for_each(|conn| conn.exec("COMMIT").map(drop).unwrap());
    let lanes = ["load", "-", "--quiet", "--table", "t", "--method", "lanes", "--lanes", "2"];
    let once = ["--once", "--source-name", "rows", "--commit-every", "768kB"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(lanes)
        .args(once)
        .args(["--to", &pooler.url()])
        .env("PGPASSWORD", "secret")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // Two chunks of 512 kB for each lane, and each commits.
    input.write_all(&keyed(0..20_800)).unwrap();
    let loaded = "SELECT count(*) > 20700 FROM t";
    wait_until(|| "the lanes do not commit".into(), || world.sql(loaded) == "t");
    // A chunk for each lane, with the same keys. The first lane commits its chunk when the input has
    // ended, so that the other one finds the key there.
    input.write_all(&keyed(30_000..35_200)).unwrap();
    input.write_all(&keyed(30_000..33_000)).unwrap();
    drop(input);
    wait_until(|| "the load does not end".into(), || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("duplicate key value violates unique constraint \"t_pkey\""), "{said}");
    let rows = world.sql("SELECT count(*) FROM t");
    assert!(said.contains(&format!("changed: {rows} rows are committed")), "{said}");
}
