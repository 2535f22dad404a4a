//! A load is ended at any moment, by Ctrl-C or by a lost connection. Either all rows are loaded or
//! none, as the exit code says. After `repair`, the table has its indexes, constraints, triggers
//! and persistence as before.

mod commit;
mod outcome;
mod prepared;
mod refused;
mod underway;

use crate::common::{each_major, signal, wait_until, Signal, World};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const ROWS: usize = 60_000;

const METHODS: [&[&str]; 7] = [
    &["--method", "copy-binary", "--indexes", "rebuild"],
    &["--method", "copy-fresh", "--triggers", "off", "--foreign-keys", "revalidate"],
    &["--method", "unlogged-logged", "--indexes", "keep"],
    &["--method", "lanes", "--lanes", "2", "--triggers", "off"],
    &["--method", "staged", "--foreign-keys", "revalidate"],
    &["--method", "insert-batch"],
    &["--on-error", "reject"],
];

const TABLE: &str = "DROP TABLE IF EXISTS t, p; DROP FUNCTION IF EXISTS fire;
    CREATE TABLE p (k int PRIMARY KEY); INSERT INTO p SELECT generate_series(0, 9);
    CREATE TABLE t (id int PRIMARY KEY, k int REFERENCES p, b text CHECK (b <> ''), s serial);
    CREATE INDEX t_k ON t (k); CREATE UNIQUE INDEX t_b ON t (b, id) WHERE id > 5;
    COMMENT ON INDEX t_k IS 'of k'; CREATE INDEX t_s ON t (s) WITH (fillfactor = 60);
    CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
    CREATE TRIGGER fires AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fire();
    ALTER TABLE t ENABLE ALWAYS TRIGGER fires";

/// Waits until a load has ended; returns its exit code and standard error.
fn ended(mut child: Child) -> (Option<i32>, String) {
    wait_until(|| "the load does not end".into(), || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Everything that a load may take down, as one text.
fn facts(world: &mut World) -> String {
    world.sql(
        "SELECT (SELECT string_agg(pg_get_indexdef(indexrelid) || indisvalid ||
             coalesce(obj_description(indexrelid), ''), '; ' ORDER BY indexrelid::regclass::text)
           FROM pg_index WHERE indrelid = 't'::regclass)
         || (SELECT string_agg(conname || pg_get_constraintdef(oid) || convalidated, '; ' ORDER BY conname)
           FROM pg_constraint WHERE conrelid = 't'::regclass)
         || (SELECT string_agg(pg_get_triggerdef(oid) || tgenabled::text, '; ' ORDER BY tgname)
           FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal)
         || (SELECT relpersistence::text FROM pg_class WHERE oid = 't'::regclass)",
    )
}

fn file(world: &World) -> String {
    let row = |i: usize| format!("{i},{},some text\n", i % 10);
    world.file("rows.csv", (0..ROWS).map(row).collect::<String>().as_bytes())
}

/// The load's arguments. Its reject file does not exist yet.
fn arguments(world: &World, file: &str, method: &[&str], url: &str) -> Vec<String> {
    let rejects = world.path("rejects");
    let _ = std::fs::remove_file(&rejects);
    let _ = std::fs::remove_file(format!("{rejects}.jsonl"));
    let mut all = vec!["load", file, "--table", "t", "--columns", "id,k,b", "--to", url];
    all.extend(method);
    if method.contains(&"reject") {
        all.extend(["--reject-file", &rejects]);
    }
    all.into_iter().map(str::to_owned).collect()
}

/// Checks that the exit code matches the rows, and that all else is as before after `repair`.
/// Returns whether the rows are loaded.
fn settled(world: &mut World, before: &str, code: Option<i32>, said: &str, what: &str) -> bool {
    // The server may not have noticed yet that the client is gone.
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
        AND backend_type = 'client backend'";
    wait_until(|| format!("{what}: a session stays: {said}"), || world.sql(busy) == "0");
    let repair = world.run(&["repair"]);
    assert_eq!(repair.status.code(), Some(0), "{what}: {repair:?}\n{said}");
    assert_eq!(facts(world), before, "{what}: {said}");
    assert_eq!(world.sql("SELECT count(*) FROM pg_prepared_xacts"), "0", "{what}: {said}");
    let left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'pgsluice\\_%'";
    assert_eq!(world.sql(left), "0", "{what}: {said}");
    let rows: usize = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(rows == 0 || rows == ROWS, "{what}: {rows} rows: {said}");
    assert!(!said.contains("panicked"), "{what}: {said}");
    match code {
        Some(0) => assert_eq!(rows, ROWS, "{what}: {said}"),
        // If a load failed and its rows are there, the message says so, or that the outcome is
        // unknown.
        Some(1 | 7) if rows == ROWS => {
            let told = ["changed: ", "outcome is unknown", "the rows are"];
            assert!(told.iter().any(|t| said.contains(t)), "{what}: loaded, and said: {said}");
        }
        Some(1 | 5 | 7) => {}
        code => panic!("{what}: {code:?}: {said}"),
    }
    rows == ROWS
}

/// Moments that are spread over the time of a load. If all of them come too late on this machine,
/// more follow at its very beginning.
fn moments_of(whole: Duration, moments: u32) -> impl Iterator<Item = (u32, Duration)> {
    let spread = move |m| Duration::from_millis(25) + whole * m / moments;
    (0..).zip((0..moments).map(spread).chain([Duration::ZERO; 50]))
}

/// Stops a load by each method with Ctrl-C, at moments that are spread over its time.
fn interrupted(world: &mut World, moments: u32) {
    let file = file(world);
    for method in METHODS {
        world.sql(TABLE);
        let before = facts(world);
        let url = world.server.url("postgres");
        let mut outcomes = [0, 0];
        let start = Instant::now();
        let whole = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(arguments(world, &file, method, &url))
            .output()
            .unwrap();
        assert!(whole.status.success(), "{method:?}: {whole:?}");
        let whole = start.elapsed();
        for (moment, after) in moments_of(whole, moments) {
            if moment >= moments && outcomes[0] > 0 {
                break;
            }
            world.sql("TRUNCATE t");
            let child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
                .args(arguments(world, &file, method, &url))
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            sleep(after);
            signal(child.id(), Signal::SIGINT);
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            // At the first moment, the program may not handle signals yet.
            let code = output.status.code().or(Some(1));
            let what = format!("{method:?}, moment {moment} of {moments}");
            outcomes[usize::from(settled(world, &before, code, &said, &what))] += 1;
        }
        eprintln!("{method:?}: {outcomes:?} of Ctrl-C before and after the commit");
        assert!(outcomes[0] > 0, "{method:?}: no Ctrl-C came in time");
    }
}

/// What a proxy does with the next statement that it sees.
const PASS: u8 = 0;
const CUT_BEFORE: u8 = 1;
const CUT_AFTER: u8 = 2;

/// A proxy between the program and the server. It cuts all connections on request and accepts new
/// ones.
struct Proxy {
    socket: PathBuf,
    /// both ends of every connection
    open: Arc<Mutex<Vec<UnixStream>>>,
    order: Arc<AtomicU8>,
    closing: Arc<AtomicBool>,
}

impl Proxy {
    /// An order is carried out when `statement` passes.
    fn new(world: &World, statement: &'static [u8]) -> Proxy {
        // In the folder of the server's socket, since a socket's path must not be long.
        let folder = world.server.socket_dir();
        let (socket, server) = (folder.join(".s.PGSQL.5433"), folder.join(".s.PGSQL.5432"));
        let listener = UnixListener::bind(&socket).unwrap();
        let proxy = Proxy {
            socket,
            open: Arc::default(),
            order: Arc::new(AtomicU8::new(PASS)),
            closing: Arc::default(),
        };
        let (open, order, closing) =
            (proxy.open.clone(), proxy.order.clone(), proxy.closing.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if closing.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(upstream) = UnixStream::connect(&server) else { continue };
                let ends = [&client, &upstream, &client, &upstream].map(|s| s.try_clone().unwrap());
                let [from_client, to_server, to_client, from_server] = ends;
                open.lock().unwrap().extend([client, upstream]);
                let (open, order) = (open.clone(), order.clone());
                thread::spawn(move || {
                    forward(
                        from_client,
                        to_server,
                        &|bytes| {
                            let found = bytes.windows(statement.len()).any(|w| w == statement);
                            match order.load(Ordering::SeqCst) {
                                // Only once: the program may try again.
                                order_now if found && order_now != PASS => {
                                    order.store(PASS, Ordering::SeqCst);
                                    order_now
                                }
                                _ => PASS,
                            }
                        },
                        &open,
                    )
                });
                thread::spawn(move || {
                    forward(from_server, to_client, &|_| PASS, &Mutex::default())
                });
            }
        });
        proxy
    }

    fn url(&self) -> String {
        let folder = self.socket.parent().unwrap().display();
        format!("host='{folder}' port=5433 user=postgres dbname=postgres")
    }

    /// Whether there are connections to cut.
    fn is_used(&self) -> bool {
        !self.open.lock().unwrap().is_empty()
    }

    fn cut(&self) {
        cut(&self.open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
        self.cut();
    }
}

fn cut(open: &Mutex<Vec<UnixStream>>) {
    for stream in open.lock().unwrap().drain(..) {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

fn forward(
    mut from: UnixStream,
    mut to: UnixStream,
    order: &dyn Fn(&[u8]) -> u8,
    open: &Mutex<Vec<UnixStream>>,
) {
    let mut block = vec![0; 1 << 16];
    while let Ok(got @ 1..) = from.read(&mut block) {
        let order = order(&block[..got]);
        if order == CUT_BEFORE {
            return cut(open);
        }
        if to.write_all(&block[..got]).is_err() {
            break;
        }
        if order == CUT_AFTER {
            // The server has received it, but its answer does not arrive.
            return cut(open);
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn run(world: &World, file: &str, method: &[&str], url: &str) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(arguments(world, file, method, url))
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The connection is lost just before COMMIT reaches the server, or just after. The loader asks the
/// server over a new connection what became of the transaction.
fn cut_at_the_commit(world: &mut World) {
    let file = file(world);
    for method in METHODS {
        // Two-phase commit has its own statement.
        let lanes = method.contains(&"lanes");
        let commit: &'static [u8] = if lanes { b"COMMIT PREPARED" } else { b"Q\0\0\0\x0bCOMMIT\0" };
        for order in [CUT_BEFORE, CUT_AFTER] {
            world.sql(TABLE);
            let before = facts(world);
            let proxy = Proxy::new(world, commit);
            proxy.order.store(order, Ordering::SeqCst);
            let (code, said) = run(world, &file, method, &proxy.url());
            assert_eq!(proxy.order.load(Ordering::SeqCst), PASS, "{method:?}: no COMMIT seen");
            drop(proxy);
            let what = format!("{method:?}, order {order}");
            let loaded = settled(world, &before, code, &said, &what);
            eprintln!(
                "{what}: code {code:?}, loaded {loaded}: {}",
                said.lines().next().unwrap_or("")
            );
        }
    }
}

/// The connection is lost after all lanes have committed and before a sequence is moved whose keys no
/// index finds. The loader moves it over a new connection.
fn cut_behind_the_commit(world: &mut World) {
    world.sql(TABLE);
    world.sql("DROP INDEX t_k; CREATE SEQUENCE keys OWNED BY t.k");
    let (file, before) = (file(world), facts(world));
    let method = ["--method", "lanes", "--lanes", "2", "--triggers", "off"];
    let proxy = Proxy::new(world, b"trunc(pg_catalog.max(");
    proxy.order.store(CUT_BEFORE, Ordering::SeqCst);
    let (code, said) = run(world, &file, &method, &proxy.url());
    assert_eq!(proxy.order.load(Ordering::SeqCst), PASS, "no keys were looked for");
    drop(proxy);
    assert_eq!(code, Some(0), "{said}");
    assert!(settled(world, &before, code, &said, "behind the commit"));
    assert_eq!(world.sql("SELECT last_value FROM keys"), "9");
}

/// Cuts all connections, at moments that are spread over the load.
fn cut_at_any_moment(world: &mut World, moments: u32) {
    let file = file(world);
    for method in METHODS {
        world.sql(TABLE);
        let before = facts(world);
        let proxy = Proxy::new(world, b"no such statement");
        let start = Instant::now();
        let (code, said) = run(world, &file, method, &proxy.url());
        assert_eq!(code, Some(0), "{method:?}: {said}");
        let whole = start.elapsed();
        let mut outcomes = [0, 0];
        for (moment, after) in moments_of(whole, moments) {
            if moment >= moments && outcomes[0] > 0 {
                break;
            }
            world.sql("TRUNCATE t");
            let (arguments, url) = (arguments(world, &file, method, &proxy.url()), proxy.url());
            let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
                .args(arguments)
                .stderr(Stdio::piped())
                .spawn()
                .unwrap_or_else(|e| panic!("{url}: {e}"));
            sleep(after);
            // Before the program has connected there is nothing to cut.
            while moment >= moments && !proxy.is_used() && child.try_wait().unwrap().is_none() {
                sleep(Duration::from_millis(1));
            }
            proxy.cut();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let what = format!("{method:?} cut at moment {moment} of {moments}");
            let loaded = settled(world, &before, output.status.code(), &said, &what);
            outcomes[usize::from(loaded)] += 1;
        }
        eprintln!("{method:?}: {outcomes:?} of cuts before and after the commit");
        assert!(outcomes[0] > 0, "{method:?}: no cut came in time");
    }
}

fn world() -> World {
    World::new(&each_major().pop().unwrap())
}

/// After Ctrl-C at any moment, all rows are loaded or none, as the exit code says. `repair`
/// restores the table.
#[test]
fn ctrl_c_at_any_moment() {
    interrupted(&mut world(), 3);
}

/// If the connection is lost just before COMMIT, just after it, or before sequences are moved, the
/// exit code says whether the rows are loaded. `repair` restores the table.
#[test]
fn a_connection_cut_at_the_commit() {
    cut_at_the_commit(&mut world());
    cut_behind_the_commit(&mut world());
}

/// If all connections are lost at any moment, all rows are loaded or none, as the exit code says.
/// `repair` restores the table.
#[test]
fn connections_cut_at_any_moment() {
    cut_at_any_moment(&mut world(), 2);
}

/// At more moments, and on the first and the last major version: after Ctrl-C or a lost connection,
/// all rows are loaded or none, as the exit code says. `repair` restores the table.
#[test]
#[ignore = "minutes"]
fn every_moment() {
    let majors = each_major();
    for installation in [majors.first().unwrap(), majors.last().unwrap()] {
        let mut world = World::new(installation);
        interrupted(&mut world, 6);
        cut_at_any_moment(&mut world, 6);
    }
}
