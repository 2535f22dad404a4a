//! Nodes and coordinators are killed, full or out of reach at each phase of a load. No row is lost,
//! duplicated or on the wrong node, and the same command, or `repair`, finishes the load. Each node
//! is a separate server.

use super::servers::{held, kill, on_servers, wait_for_end, Servers, ROWS};
use crate::common::disk::SmallDisk;
use crate::common::proxy::{Fate, Proxy};
use crate::common::{signal, Signal};

const ONCE: &[&str] = &["--once"];
const ATOMIC: &[&str] = &["--atomic"];

/// A node is down before the load, or is killed while it receives its rows, before its commit or
/// during it.
fn nodes_killed(servers: &mut Servers) {
    let file = servers.file();
    assert_eq!(servers.run(&file, ONCE).loaded("nothing fails"), ROWS);
    servers.has_all("nothing fails");
    // The first BEGIN is that of the plan.
    let phases = [
        ("", 0, true),
        ("BEGIN", 0, true),
        ("BEGIN", 1, false),
        ("COPY ", 0, true),
        ("SET CONSTRAINTS", 0, false),
        ("SELECT pg_current_xact_id_if_assigned", 0, true),
        ("COMMIT", 0, false),
    ];
    for (statement, pass, at_once) in phases {
        let what = format!("n1 is killed at {statement:?}");
        let file = servers.file();
        let ended = if statement.is_empty() {
            servers.kill(1, at_once);
            servers.run(&file, ONCE)
        } else {
            let proxy = Proxy::start(&servers.nodes[1], statement, pass, Fate::Hold, false);
            servers.through(1, &proxy);
            let mut load = servers.start(&file, ONCE);
            held(&proxy, &mut load);
            servers.kill(1, at_once);
            servers.wait(load)
        };
        ended.left_open(5, &["n1"], &what);
        assert!(ended.said.contains("slices of the nodes n0, n2 are committed"), "{ended:?}");
        servers.nodes[1].restart_with(&[]);
        servers.directly(1);
        servers.has_all_but(&[1], &what);
        let on_1: usize = servers.nodes[1].sql("SELECT count(*) FROM s_1").parse().unwrap();
        let again = servers.run(&file, ONCE);
        assert_eq!(again.loaded(&what), on_1, "{again:?}");
        assert_eq!(again.summary["records_known"], ROWS - on_1, "{again:?}");
        servers.has_all(&what);
        let third = servers.run(&file, ONCE);
        assert_eq!((third.loaded(&what), &third.summary["files_known"]), (0, &1.into()));
    }
    // All nodes are down: nothing is loaded, and the message says so.
    let file = servers.file();
    (0..3).for_each(|node| servers.kill(node, false));
    let ended = servers.run(&file, ONCE);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.said.contains("nothing was loaded"), "{ended:?}");
    (0..3).for_each(|node| servers.nodes[node].restart_with(&[]));
    assert_eq!(servers.run(&file, ONCE).loaded("all were down"), ROWS);
    servers.has_all("all were down");
}

/// The acknowledgement of a commit is lost, or the loader or the coordinator is killed.
fn others_lost(servers: &mut Servers) {
    let file = servers.file();
    servers.run(&file, ONCE).loaded("nothing fails");
    let url = servers.coordinator.server.url("postgres");

    let file = servers.file();
    let proxy = Proxy::start(&servers.nodes[1], "COMMIT", 0, Fate::CutAfter, true);
    servers.through(1, &proxy);
    servers.run(&file, ONCE).left_open(5, &["n1"], "a lost acknowledgement");
    servers.directly(1);
    servers.has_all("a lost acknowledgement");
    assert_eq!(servers.run(&file, ONCE).loaded("a lost acknowledgement"), 0);
    servers.has_all("after a lost acknowledgement");

    for statement in ["COPY ", "SET CONSTRAINTS", "COMMIT"] {
        let file = servers.file();
        let proxy = Proxy::start(&servers.nodes[1], statement, 0, Fate::Hold, false);
        servers.through(1, &proxy);
        let mut load = servers.start(&file, ONCE);
        held(&proxy, &mut load);
        let detach = "SET lock_timeout = '50ms'; ALTER TABLE t DETACH PARTITION t_1";
        let refused = servers.coordinator.conn.exec(detach).unwrap_err();
        assert_eq!(refused.sqlstate(), "55P03", "{statement}: {refused}");
        assert!(signal(load.id(), Signal::SIGKILL));
        load.wait().unwrap();
        servers.directly(1);
        let open: &[usize] = if statement == "COMMIT" { &[1, 2] } else { &[0, 1, 2] };
        servers.nodes.iter_mut().for_each(wait_for_end);
        servers.has_all_but(open, statement);
        servers.run(&file, ONCE).loaded(statement);
        servers.has_all(statement);
    }

    // The coordinator records the load after the commits of the nodes.
    for fate in [Fate::Hold, Fate::CutBefore, Fate::CutAfter] {
        let file = servers.file();
        let proxy = Proxy::start(&servers.coordinator, "COMMIT\0", 1, fate, false);
        let mut load = servers.load(&proxy.target(), &file, ONCE).spawn().unwrap();
        held(&proxy, &mut load);
        if fate == Fate::Hold {
            kill(&mut servers.coordinator, true);
        }
        let ended = servers.wait(load);
        let code = if fate == Fate::CutAfter { 0 } else { 5 };
        assert_eq!(ended.code, Some(code), "{fate:?}: {ended:?}");
        if fate == Fate::Hold {
            servers.coordinator.restart_with(&[]);
        }
        servers.has_all(&format!("{fate:?}"));
        assert_eq!(servers.run(&file, ONCE).loaded("the coordinator was killed"), 0);
        servers.has_all(&format!("after {fate:?}"));
        let complete = "SELECT count(*) FROM pgsluice_loads.sources WHERE state <> 'complete'";
        assert_eq!(servers.coordinator.sql(complete), "0", "{fate:?}");
    }
    let file = servers.file();
    assert_eq!(servers.load(&url, &file, ONCE).spawn().unwrap().wait().unwrap().code(), Some(0));
    servers.has_all("at the end");
}

/// Several loads run at the same time, and a node has a full disk.
fn beside_each_other(servers: &mut Servers) {
    let (one, two) = (servers.file(), servers.more());
    servers.expect(&two);
    let loads: Vec<_> =
        [&one, &two, &one, &two].iter().map(|file| servers.start(file, ONCE)).collect();
    for load in loads {
        assert_eq!(load.wait_with_output().unwrap().status.code(), Some(0));
    }
    servers.has_all("four loads of two files");

    if let Some(disk) = SmallDisk::new(&servers.nodes[1], "64k") {
        let file = servers.file();
        let node = &mut servers.nodes[1];
        node.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.path()));
        node.sql("ALTER TABLE t_1 SET TABLESPACE small");
        let ended = servers.run(&file, ONCE);
        ended.left_open(1, &["n1"], "a full node");
        assert!(ended.said.contains("No space left"), "{ended:?}");
        disk.resize("64M");
        servers.has_all_but(&[1], "a full node");
        servers.run(&file, ONCE).loaded("there is room");
        servers.has_all("there is room");
        servers.nodes[1].sql("ALTER TABLE t_1 SET TABLESPACE pg_default");
        servers.nodes[1].sql("DROP TABLESPACE small");
    }
}

/// A node lacks its slice of a file. The slice is loaded even if the file was renamed, but not if
/// the file, the options or the bound of the partition have changed.
fn recognised(servers: &mut Servers) {
    // The file has changed, was loaded with other options, is renamed, or is forgotten.
    let file = servers.file();
    servers.kill(1, false);
    servers.run(&file, ONCE).left_open(5, &["n1"], "down");
    let bytes = std::fs::read(&file).unwrap();
    let mut changed = bytes.clone();
    let middle = changed.len() / 2;
    let digit = changed[middle..].iter().position(|b| b"12345678".contains(b)).unwrap() + middle;
    changed[digit] += 1;
    std::fs::write(&file, &changed).unwrap();
    servers.nodes[1].restart_with(&[]);
    let ended = servers.run(&file, ONCE);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.said.contains("has changed since it was loaded"), "{ended:?}");
    servers.has_all_but(&[1], "changed");
    std::fs::write(&file, &bytes).unwrap();
    let ended = servers.run(&file, &["--once", "--null", "none"]);
    assert!(ended.said.contains("was loaded with other options"), "{ended:?}");
    servers.has_all_but(&[1], "other options");
    let moved = format!("{file}.moved");
    std::fs::rename(&file, &moved).unwrap();
    servers.run(&moved, ONCE).loaded("moved");
    servers.has_all("moved");
    servers.kill(1, false);
    let forget = ["loads", "forget", &moved, "--table", "t"];
    assert_eq!(servers.coordinator.run(&forget).status.code(), Some(5), "a node is down");
    servers.nodes[1].restart_with(&[]);
    let slices =
        |servers: &mut Servers| servers.nodes[1].sql("SELECT count(*) FROM pgsluice_loads.slices");
    let before: usize = slices(servers).parse().unwrap();
    assert_eq!(servers.coordinator.run(&forget).status.code(), Some(0));
    assert_eq!(slices(servers), (before - 1).to_string());
    servers.expect(&moved);
    assert_eq!(servers.run(&moved, ONCE).loaded("forgotten"), ROWS);
    servers.has_all("forgotten");

    // A load with `--atomic` does not load again what a node has.
    let file = servers.file();
    servers.kill(2, false);
    servers.run(&file, ONCE).left_open(5, &["n2"], "down");
    servers.nodes[2].restart_with(&[]);
    servers.run(&file, &["--once", "--atomic"]).loaded("both ways");
    servers.has_all("both ways");
    assert_eq!(servers.run(&file, ONCE).loaded("both ways"), 0);

    // With a different bound of the partition, rows would go to another node.
    let file = servers.file();
    servers.kill(1, false);
    servers.run(&file, ONCE).left_open(5, &["n1"], "down");
    servers.nodes[1].restart_with(&[]);
    servers.coordinator.sql(
        "ALTER TABLE t DETACH PARTITION t_0; ALTER TABLE t DETACH PARTITION t_2;
        ALTER TABLE t ATTACH PARTITION t_0 FOR VALUES WITH (MODULUS 4, REMAINDER 2);
        ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES WITH (MODULUS 4, REMAINDER 0)",
    );
    let ended = servers.run(&file, ONCE);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.said.contains("the bound of its partition was another one"), "{ended:?}");
    servers.has_all_but(&[1], "another bound");
}

/// With `--once`, a node, the loader or the coordinator dies at any phase of a load. The same
/// command then loads exactly the missing rows.
#[test]
fn a_node_a_loader_or_a_coordinator_that_dies_at_any_phase_is_finished_by_the_same_command() {
    on_servers(|servers| {
        nodes_killed(servers);
        others_lost(servers);
    });
}

/// With `--atomic`, all rows are loaded or none, and `repair` ends what is prepared.
fn atomic(servers: &mut Servers) {
    let file = servers.file();
    servers.run(&file, ATOMIC).loaded("nothing fails");
    servers.has_all("nothing fails");
    let phases = [
        ("COPY ", true, false),
        ("SET CONSTRAINTS", false, false),
        ("PREPARE TRANSACTION", true, false),
        ("COMMIT PREPARED", false, true),
    ];
    for (statement, at_once, committed) in phases {
        let what = format!("n1 is killed at {statement:?}");
        let file = servers.file();
        let proxy = Proxy::start(&servers.nodes[1], statement, 0, Fate::Hold, false);
        servers.through(1, &proxy);
        let mut load = servers.start(&file, ATOMIC);
        held(&proxy, &mut load);
        servers.kill(1, at_once);
        let ended = servers.wait(load);
        assert!(matches!(ended.code, Some(1 | 5)), "{what}: {ended:?}");
        assert_eq!(ended.said.contains("the load is committed"), committed, "{what}: {ended:?}");
        servers.nodes[1].restart_with(&[]);
        servers.directly(1);
        let said = servers.coordinator.repair();
        assert_eq!(said.contains("committed, as the load was"), committed, "{what}: {said}");
        servers.has_all_but(if committed { &[] } else { &[0, 1, 2] }, &what);
    }
    // The coordinator dies between the last PREPARE and its own COMMIT, which is the decision.
    for loader_too in [false, true] {
        let what = format!("the coordinator is killed, the loader too: {loader_too}");
        let file = servers.file();
        let proxy = Proxy::start(&servers.coordinator, "COMMIT\0", 2, Fate::Hold, false);
        let mut load = servers.load(&proxy.target(), &file, ATOMIC).spawn().unwrap();
        held(&proxy, &mut load);
        assert_eq!(servers.prepared(), 3, "{what}");
        if loader_too {
            assert!(signal(load.id(), Signal::SIGKILL));
        }
        kill(&mut servers.coordinator, true);
        let code = load.wait().unwrap().code();
        assert!(loader_too || matches!(code, Some(1 | 5)), "{what}: {code:?}");
        assert_eq!(servers.prepared(), 3, "{what}");
        servers.coordinator.restart_with(&[]);
        let said = servers.coordinator.repair();
        assert_eq!(said.matches("rolled back, as the load was not").count(), 3, "{what}: {said}");
        servers.has_all_but(&[0, 1, 2], &what);
    }
}

/// If a node is read-only by default, no node gets rows.
fn read_only(servers: &mut Servers) {
    let file = servers.file();
    servers.nodes[1].restart_with(&[("default_transaction_read_only", "on")]);
    let ended = servers.run(&file, ONCE);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.said.contains("node n1: the server is read-only by default"), "{ended:?}");
    servers.nodes[1].restart_with(&[]);
    servers.has_all_but(&[0, 1, 2], "n1 is read-only");
    assert_eq!(servers.run(&file, ONCE).loaded("n1 is not read-only any more"), ROWS);
    servers.has_all("n1 is not read-only any more");
}

/// With `--atomic`, if a node or the coordinator dies, all rows are loaded or none after `repair`.
/// With `--once`, a slice that a node lacks is loaded even if the file was renamed, and is refused
/// if the file or the bound of the partition has changed. Several loads at the same time and a full
/// node lose and duplicate no row. A node that is read-only by default gets none.
#[test]
fn slices_are_known_by_content_and_with_atomic_nothing_stays_of_a_node_that_dies() {
    on_servers(|servers| {
        atomic(servers);
        beside_each_other(servers);
        read_only(servers);
        recognised(servers);
    });
}
