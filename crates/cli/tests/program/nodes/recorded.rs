//! What nodes have recorded of files: it survives a crash of the node, is never taken for nothing, and
//! is not that of other files with the same records.

use super::servers::{on_servers, Servers, ROWS};

const ONCE: &[&str] = &["--once"];

/// A node whose role does not wait for the disk; its WAL is written at other occasions only.
fn unflushed(servers: &mut Servers) {
    servers.nodes[1].sql("ALTER ROLE postgres SET synchronous_commit = off");
    servers.nodes[1].restart_with(&[("wal_writer_delay", "10s")]);
    for only_forgotten in [false, true] {
        let file = servers.file();
        if only_forgotten {
            servers.run(&file, ONCE).loaded("before it is forgotten");
            servers.expect(&file);
        }
        servers.nodes[1].sql("CHECKPOINT");
        if only_forgotten {
            let forget = ["loads", "forget", &file, "--table", "t"];
            assert_eq!(servers.coordinator.run(&forget).status.code(), Some(0));
        } else {
            assert_eq!(servers.run(&file, ONCE).loaded("no crash yet"), ROWS);
        }
        servers.kill(1, true);
        servers.nodes[1].restart_with(&[("wal_writer_delay", "10s")]);
        let expected = if only_forgotten { ROWS } else { 0 };
        assert_eq!(servers.run(&file, ONCE).loaded("after the crash"), expected);
        servers.has_all(&format!("only forgotten: {only_forgotten}"));
    }
}

#[test]
fn a_node_that_does_not_wait_for_its_disk_keeps_what_it_has_recorded() {
    on_servers(unflushed);
}
