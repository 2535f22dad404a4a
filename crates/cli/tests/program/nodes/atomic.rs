//! `--atomic`: all nodes commit or none, by two-phase commit, even if a connection is cut or a
//! process killed at any step, or a node refuses.

use super::{on_one_major, Cluster, HASH};
use crate::common::disk::SmallDisk;
use crate::common::proxy::{Fate, Proxy};
use crate::common::{signal, wait_until, Signal};
use pgsluice_engine::internals::Conn;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROWS: usize = 3_000;

/// All rows are on the nodes, no transaction is prepared, and no commit is open.
const ALL: (usize, usize, usize) = (ROWS, 0, 0);
const NONE: (usize, usize, usize) = (0, 0, 0);

impl Cluster {
    /// Creates empty tables and a file of rows for them. A first load has created the ledger.
    fn atomic(&mut self) -> String {
        self.twins("a int, b text", "HASH (a)", &HASH);
        let rows: String = (0..ROWS).map(|i| format!("{i},some words\n")).collect();
        let file = self.world.file("rows.csv", rows.as_bytes());
        self.world.load(&[&file, "--table", "t", "--route", "nodes", "--atomic"]).unwrap();
        assert_eq!(self.left(), ALL);
        self.empty();
        file
    }

    fn empty(&mut self) {
        self.node(0, "TRUNCATE t_0, t_2");
        self.node(1, "TRUNCATE t_1");
    }

    /// The number of rows on the nodes, of prepared transactions, and of commits that have not
    /// ended.
    fn left(&mut self) -> (usize, usize, usize) {
        let mut count = |node, sql| self.node(node, sql).parse::<usize>().unwrap();
        let on_0 = count(0, "SELECT (SELECT count(*) FROM t_0) + (SELECT count(*) FROM t_2)");
        let on_1 = count(1, "SELECT count(*) FROM t_1");
        let prepared = count(0, "SELECT count(*) FROM pg_prepared_xacts");
        if prepared == 0 {
            assert_eq!(on_0 > 0, on_1 > 0, "{on_0} rows on one node, {on_1} on the other");
        }
        let open = "SELECT count(*) FROM pgsluice_loads.node_commits WHERE ended IS NULL";
        (on_0 + on_1, prepared, self.world.sql(open).parse().unwrap())
    }

    /// From now on, node `n1` is reached through this proxy.
    fn through(&mut self, proxy: &Proxy) {
        let port = proxy.port();
        self.world
            .sql(&format!("ALTER SERVER n1 OPTIONS (SET host '127.0.0.1', SET port '{port}')"));
    }

    /// The plan of the next load reports what is left, and `repair` ends it.
    fn is_repaired(&mut self, file: &str, at: &str, expected: (usize, usize, usize)) {
        let plan = ["plan", file, "--table", "t", "--route", "nodes", "--atomic"];
        wait_until(
            || format!("{at}: the plan does not tell"),
            || {
                let said = self.world.run(&plan);
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                said.contains("left nodes with prepared transactions")
            },
        );
        let said = self.world.repair();
        let verb = if expected == ALL { "committed, as" } else { "rolled back, as" };
        assert!(said.contains(verb), "{at}: {said}");
        assert_eq!(self.left(), expected, "{at}: {said}");
        self.directly();
        assert!(self.world.repair().contains("nothing is missing"));
    }

    fn directly(&mut self) {
        let host = self.world.server.socket_dir().to_str().unwrap().to_owned();
        self.world.sql(&format!("ALTER SERVER n1 OPTIONS (SET host '{host}', SET port '5432')"));
    }
}

/// A load through `to`, or through the server's own socket.
fn command(cluster: &Cluster, file: &str, to: Option<&Proxy>) -> Command {
    let target = to.map_or_else(|| cluster.world.server.url("postgres"), Proxy::target);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    command.args(["load", file, "--table", "t", "--route", "nodes", "--atomic", "--quiet"]);
    command.args(["--to", &target]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn load(cluster: &Cluster, file: &str, to: Option<&Proxy>) -> (Option<i32>, String) {
    let output = command(cluster, file, to).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn together(cluster: &mut Cluster) {
    let mut log = 0;
    let file = cluster.atomic();
    let said = cluster.world.log(&mut log);
    for step in ["PREPARE TRANSACTION 'pgsluice_nodes_", "COMMIT PREPARED 'pgsluice_nodes_"] {
        assert_eq!(said.matches(&format!("statement: {step}")).count(), 2, "{step}");
    }
    let summary =
        cluster.world.load(&[&file, "--table", "t", "--route", "nodes", "--atomic"]).unwrap();
    assert_eq!((&summary["loaded"], &summary["transactions"]), (&ROWS.into(), &2.into()));
    let decided = "SELECT string_agg(DISTINCT state, ' ') FROM pgsluice_loads.node_commits";
    assert_eq!(cluster.world.sql(decided), "committed");
    let plan = ["plan", &file, "--table", "t", "--route", "nodes", "--atomic"];
    let said = String::from_utf8(cluster.world.run(&plan).stdout).unwrap();
    assert!(said.contains("the nodes commit together, by two-phase commit"), "{said}");
    assert!(said.contains("the decision to commit is recorded"), "{said}");
    let sessions = "sessions  4: 2 for rows, one on each node; 1 to lock the partitioned table; \
        1 to record the commit of the nodes\n";
    assert!(said.contains(sessions), "{said}");
    for wrong in [&["--atomic"][..], &["--atomic", "--route", "nodes", "--ledger", "none"]] {
        let output = cluster.world.run(&[&["load", &file, "--table", "t"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    // A role does not see the rows of others, and cannot write rows in another role's name.
    cluster.world.sql("DROP ROLE IF EXISTS other; CREATE ROLE other; SET ROLE other");
    assert_eq!(cluster.world.sql("SELECT count(*) FROM pgsluice_loads.node_commits"), "0");
    let forged = "INSERT INTO pgsluice_loads.node_commits (load, target, nodes, role) \
        VALUES (gen_random_uuid(), 't', '{n0}', 'postgres')";
    let refused = cluster.world.conn.exec(forged).unwrap_err();
    assert!(refused.message().contains("row-level security"), "{refused}");
    cluster.world.sql("RESET ROLE");
}

/// With `--atomic`, each node prepares and then commits, and the coordinator records the decision.
/// A role sees only its own rows of that ledger and cannot forge others.
#[test]
fn nodes_commit_together() {
    on_one_major(together);
}

fn refused(cluster: &mut Cluster) {
    let file = cluster.atomic();
    cluster.node(
        1,
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY x; RETURN NULL; END';
        CREATE TRIGGER tell AFTER INSERT ON t_1 EXECUTE FUNCTION tell()",
    );
    let (code, said) = load(cluster, &file, None);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("node n1: cannot PREPARE") && !said.contains("changed:"), "{said}");
    assert_eq!(cluster.left(), NONE);
    let last = "SELECT state FROM pgsluice_loads.node_commits ORDER BY started DESC LIMIT 1";
    assert_eq!(cluster.world.sql(last), "aborted");
    cluster.node(1, "DROP TRIGGER tell ON t_1");
    cluster.world.restart_with(&[("max_prepared_transactions", "0")]);
    cluster.connect();
    let (code, said) = load(cluster, &file, None);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("node n0: its max_prepared_transactions is 0"), "{said}");
    assert_eq!(cluster.left(), NONE);
}

/// If a node cannot prepare its transaction, the load fails, no node keeps a row, and the ledger
/// says `aborted`.
#[test]
fn a_node_that_cannot_prepare_leaves_no_row_on_any() {
    on_one_major(refused);
}

fn at_once(cluster: &mut Cluster) {
    let file = cluster.atomic();
    let mut loads =
        [0, 1].map(|_| command(cluster, &file, None).stderr(Stdio::null()).spawn().unwrap());
    for load in &mut loads {
        assert!(load.wait().unwrap().success());
    }
    assert_eq!(cluster.left(), (2 * ROWS, 0, 0));
    cluster.empty();
    let Some(disk) = SmallDisk::new(&cluster.world, "8M") else { return };
    cluster.node(1, &format!("CREATE TABLESPACE small LOCATION '{}'", disk.path()));
    cluster.node(1, "ALTER TABLE t_1 SET TABLESPACE small");
    let text = "x".repeat(1_000);
    let rows: String = (0..40_000).map(|i| format!("{i},{text}\n")).collect();
    let large = cluster.world.file("large.csv", rows.as_bytes());
    let (code, said) = load(cluster, &large, None);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("node n1") && said.contains("No space left"), "{said}");
    assert_eq!(cluster.left(), NONE);
    cluster.node(1, "ALTER TABLE t_1 SET TABLESPACE pg_default");
    cluster.node(1, "DROP TABLESPACE small");
}

/// Two loads with `--atomic` at the same time load all of their rows. If the disk of a node is
/// full, no node keeps a row.
#[test]
fn two_loads_at_once_have_all_rows_and_a_full_node_leaves_none() {
    on_one_major(at_once);
}

fn cuts(cluster: &mut Cluster) {
    let file = cluster.atomic();
    for fate in [Fate::CutBefore, Fate::CutDuring, Fate::CutAfter] {
        for (statement, expected) in [("PREPARE TRANSACTION", NONE), ("COMMIT PREPARED", ALL)] {
            cluster.empty();
            let proxy = Proxy::start(&cluster.world, statement, 0, fate, false);
            cluster.through(&proxy);
            let (code, said) = load(cluster, &file, None);
            let label = format!("{statement} {fate:?}: {said}");
            assert!(proxy.sprung(), "{label}");
            assert_eq!(code, Some(if expected == ALL { 0 } else { 5 }), "{label}");
            assert!(!said.contains("changed:"), "{label}");
            assert_eq!(cluster.left(), expected, "{label}");
        }
        cluster.directly();
        // The first COMMIT ends the search for earlier loads, and the second records that this load
        // begins to commit. The third is the decision.
        let expected = if fate == Fate::CutBefore { NONE } else { ALL };
        cluster.empty();
        let proxy = Proxy::start(&cluster.world, "COMMIT\0", 2, fate, false);
        let (code, said) = load(cluster, &file, Some(&proxy));
        assert!(proxy.sprung(), "{fate:?}: {said}");
        assert_eq!(code, Some(if expected == ALL { 0 } else { 5 }), "{fate:?}: {said}");
        assert_eq!(cluster.left(), expected, "{fate:?}: {said}");
    }
}

/// If a connection is lost at any step of the two-phase commit, the load still ends: all rows are
/// on the nodes and the exit code is 0, or none are and it is 5.
#[test]
fn a_cut_at_any_step_of_the_commit_leaves_all_rows_or_none() {
    on_one_major(cuts);
}

fn kills(cluster: &mut Cluster) {
    let file = cluster.atomic();
    for (statement, pass, of_node, expected) in [
        ("PREPARE TRANSACTION", 0, true, NONE),
        ("COMMIT\0", 2, false, NONE),
        ("COMMIT PREPARED", 0, true, ALL),
    ] {
        for servers_too in [false, true] {
            cluster.empty();
            let proxy = Proxy::start(&cluster.world, statement, pass, Fate::Hold, false);
            if of_node {
                cluster.through(&proxy);
            }
            let to = (!of_node).then_some(&proxy);
            let mut child = command(cluster, &file, to).stderr(Stdio::null()).spawn().unwrap();
            proxy.wait();
            if expected == NONE {
                let said = cluster.world.run(&["repair"]);
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                assert!(said.contains("a load is running; left alone"), "{statement}: {said}");
                let detach = "SET lock_timeout = '50ms'; ALTER TABLE t DETACH PARTITION t_1";
                let refused = cluster.world.conn.exec(detach).unwrap_err();
                assert_eq!(refused.sqlstate(), "55P03", "{statement}: {refused}");
            }
            assert!(signal(child.id(), Signal::SIGKILL));
            child.wait().unwrap();
            if servers_too {
                cluster.world.server.kill9().unwrap();
                cluster.world.restart_with(&[]);
                cluster.connect();
            }
            assert!(cluster.left().1 > 0, "{statement}: nothing is prepared");
            cluster.is_repaired(&file, statement, expected);
        }
    }
}

/// The loader, and perhaps its servers, are killed during the two-phase commit. `plan` reports what
/// is left, and `repair` commits or rolls back as it was decided. It leaves a running load alone.
#[test]
fn repair_ends_what_a_loader_left_that_was_killed_alone_or_with_the_servers() {
    on_one_major(kills);
}

/// While a load has recorded its commit but not its decision, neither `repair` nor another load
/// takes it for dead.
fn undecided(cluster: &mut Cluster) {
    let file = cluster.atomic();
    let statement = "SELECT pg_catalog.set_config('synchronous_commit'";
    let proxy = Proxy::start(&cluster.world, statement, 0, Fate::Hold, false);
    let mut child = command(cluster, &file, Some(&proxy)).stderr(Stdio::null()).spawn().unwrap();
    proxy.wait();
    let state = "SELECT state FROM pgsluice_loads.node_commits WHERE ended IS NULL";
    assert_eq!(cluster.world.sql(state), "preparing");
    let said = cluster.world.run(&["repair"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("a load is running; left alone"), "{said}");
    let plan = ["plan", &file, "--table", "t", "--route", "nodes", "--atomic"];
    let said = String::from_utf8(cluster.world.run(&plan).stdout).unwrap();
    assert!(!said.contains("an earlier load left"), "{said}");
    assert_eq!(load(cluster, &file, None).0, Some(0));
    assert_eq!(cluster.world.sql(state), "preparing");
    assert!(signal(child.id(), Signal::SIGKILL));
    child.wait().unwrap();
    cluster.world.repair();
    assert_eq!(cluster.left(), ALL);
}

/// While a load has recorded its commit but not its decision, neither `repair` nor another load
/// takes it for dead. After it is killed, `repair` rolls it back.
#[test]
fn repair_and_other_loads_leave_a_load_alone_that_is_about_to_decide() {
    on_one_major(undecided);
}

fn out_of_reach(cluster: &mut Cluster) {
    let file = cluster.atomic();
    let proxy = Proxy::start(&cluster.world, "COMMIT PREPARED", 0, Fate::CutBefore, true);
    cluster.through(&proxy);
    let (code, said) = load(cluster, &file, None);
    assert_eq!(code, Some(1), "{said}");
    for words in ["node n1", "changed: the load is committed", "nodes n1 are", "pgsluice repair"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let output = cluster.world.run(&["repair"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: node n1: prepared transaction"), "{said}");
    assert!(said.contains("may still be there"), "{said}");
    let (rows, prepared, open) = cluster.left();
    assert!(rows < ROWS && (prepared, open) == (1, 1), "{rows} {prepared} {open}");
    cluster.directly();
    assert!(cluster.world.repair().contains("committed, as the load was"));
    assert_eq!(cluster.left(), ALL);
}

/// If a node is out of reach after the decision, the load fails and names the node, and `repair`
/// fails as well. As soon as the node is back, `repair` commits its rows.
#[test]
fn a_node_out_of_reach_after_the_decision_is_reported_by_repair() {
    on_one_major(out_of_reach);
}

fn no_new_connection(cluster: &mut Cluster) {
    cluster.atomic();
    let mut child =
        command(cluster, "-", None).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = "x".repeat(300);
    let rows: String = (0..ROWS).map(|i| format!("{i},{text}\n")).collect();
    input.write_all(rows.as_bytes()).unwrap();
    // The transaction of each node has a lock from before its first row.
    let begun = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
        WHERE l.locktype = 'advisory' AND d.datname IN ('n0', 'n1')";
    wait_until(|| "no node has begun".into(), || cluster.world.sql(begun) == "2");
    let mut other = Conn::open(&cluster.world.server.url("template1")).unwrap();
    other.exec("ALTER DATABASE postgres ALLOW_CONNECTIONS false").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    other.exec("ALTER DATABASE postgres ALLOW_CONNECTIONS true").unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(cluster.left(), ALL);
}

/// Once rows are under way, the coordinator accepts no new connection, as with a password that is
/// valid for minutes only. The nodes still commit.
#[test]
fn nodes_commit_where_the_coordinator_accepts_no_new_connection() {
    on_one_major(no_new_connection);
}

/// With `--once` and `--atomic`, the same command finishes whatever a load has left, and loads
/// nothing twice.
fn once(cluster: &mut Cluster) {
    let file = cluster.atomic();
    let run = |cluster: &Cluster, file: &str| {
        let output = command(cluster, file, None).arg("--once").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let proxy = Proxy::start(&cluster.world, "COMMIT PREPARED", 0, Fate::CutBefore, true);
    cluster.through(&proxy);
    let (code, said) = run(cluster, &file);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("the load is committed"), "{said}");
    let (code, said) = run(cluster, &file);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("an earlier load is not ended: node n1"), "{said}");
    cluster.directly();
    let again = [&file[..], "--table", "t", "--route", "nodes", "--atomic", "--once"];
    let summary = cluster.world.load(&again).unwrap();
    assert_eq!(summary["loaded"], 0, "{summary}");
    assert!(summary["notes"].to_string().contains("committed, as the load was"), "{summary}");
    assert_eq!(cluster.left(), ALL);

    // The load is killed at random moments and started again.
    cluster.empty();
    let rows: String = (0..ROWS).map(|i| format!("{i},other words\n")).collect();
    let other = cluster.world.file("other.csv", rows.as_bytes());
    for kill in 1..=12 {
        let mut child =
            command(cluster, &other, None).arg("--once").stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(25 * kill));
        signal(child.id(), Signal::SIGKILL);
        child.wait().unwrap();
    }
    wait_until(|| "the load does not end".into(), || run(cluster, &other).0 == Some(0));
    assert_eq!(cluster.left(), ALL);
    let refused = ["--route", "nodes", "--atomic", "--once", "--commit-every", "1MB"];
    let all = [&["load", &file, "--table", "t"], &refused[..]].concat();
    assert_eq!(cluster.world.run(&all).status.code(), Some(2), "{refused:?}");
    cluster.node(1, "ALTER TABLE t_1 SET UNLOGGED");
    let said = cluster.world.load(&again[..]).unwrap();
    assert_eq!(said["loaded"], 0, "nothing new");
    let file = cluster.world.file("more.csv", b"1,x\n");
    let more = [&file[..], "--table", "t", "--route", "nodes", "--atomic", "--once"];
    let said = cluster.world.load(&more).unwrap_err();
    assert!(said.contains("of node n1 is UNLOGGED"), "{said}");
}

/// With `--once` and `--atomic`, the same command finishes a load that lost a node or was killed.
/// It loads nothing twice.
#[test]
fn once_on_nodes_is_finished_by_the_same_command_and_loads_nothing_twice() {
    on_one_major(once);
}

fn killed_at_random(cluster: &mut Cluster) {
    let file = cluster.atomic();
    let start = Instant::now();
    assert_eq!(load(cluster, &file, None).0, Some(0));
    let whole = start.elapsed();
    let kills = 12;
    for kill in 1..=kills {
        cluster.empty();
        let mut child = command(cluster, &file, None).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * kill / kills + Duration::from_micros(u64::from(137 * kill)));
        // The load may have ended already.
        signal(child.id(), Signal::SIGKILL);
        child.wait().unwrap();
        cluster.world.repair();
        let left = cluster.left();
        assert!(left == ALL || left == NONE, "kill {kill}: {left:?}");
    }
}

/// A load with `--atomic` is killed at several moments. After `repair`, all rows are on the nodes
/// or none.
#[test]
fn a_load_killed_at_any_moment_leaves_all_rows_or_none_after_repair() {
    on_one_major(killed_at_random);
}
