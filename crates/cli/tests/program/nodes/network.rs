//! The network between the loader and a node is cut. The loader runs in a network namespace, and
//! one of its two links goes down.

use super::servers::{held, on_servers, wait_for_end, Servers, ROWS};
use crate::common::left_out;
use crate::common::proxy::{Fate, Proxy};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// A network namespace with two links to this one.
struct Network {
    name: String,
    subnet: u32,
}

impl Network {
    fn new() -> Option<Network> {
        let number = std::process::id();
        let network = Network { name: format!("pgsluice{number}"), subnet: number % 250 };
        if !ip(&["netns", "add", &network.name]) {
            left_out("a network that is cut: it needs root, network namespaces and iproute2");
            return None;
        }
        for link in 0..2 {
            let (here, there) = (network.link(link), format!("there{link}"));
            let address = |end| format!("10.{}.{link}.{end}/24", network.subnet);
            let made = ip(&[
                "link",
                "add",
                &here,
                "type",
                "veth",
                "peer",
                "name",
                &there,
                "netns",
                &network.name,
            ]) && ip(&["addr", "add", &address(1), "dev", &here])
                && ip(&["link", "set", &here, "up"])
                && ip(&["-n", &network.name, "addr", "add", &address(2), "dev", &there])
                && ip(&["-n", &network.name, "link", "set", &there, "up"]);
            if !made {
                left_out("a network that is cut: no veth links can be made");
                return None;
            }
        }
        Some(network)
    }

    fn link(&self, link: usize) -> String {
        format!("pgs{}l{link}", std::process::id())
    }

    /// The address on this side of the link.
    fn host(&self, link: usize) -> String {
        format!("10.{}.{link}.1", self.subnet)
    }

    fn set(&self, link: usize, state: &str) {
        assert!(ip(&["link", "set", &self.link(link), state]));
    }

    /// The program, run on the other side.
    fn command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, env!("CARGO_BIN_EXE_pgsluice")]);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for link in 0..2 {
            ip(&["link", "del", &self.link(link)]);
        }
        ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let mut command = Command::new("ip");
    let ended = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ended.is_ok_and(|status| status.success())
}

/// Node `n1` is reached over the second link, all else over the first one.
fn cut(servers: &mut Servers, network: &Network) {
    let never = "no statement begins so";
    let proxies: Vec<Proxy> = [&servers.coordinator, &servers.nodes[0], &servers.nodes[2]]
        .iter()
        .map(|world| Proxy::on(&network.host(0), world, never, 0, Fate::Note, false))
        .collect();
    servers.through(0, &proxies[1]);
    servers.through(2, &proxies[2]);
    // With these settings, a short cut does not end the connection, even if it lasts longer on a
    // busy machine.
    servers.coordinator.sql(
        "ALTER SERVER n1 OPTIONS (ADD keepalives_idle '1', ADD keepalives_interval '1',
           ADD keepalives_count '100', ADD tcp_user_timeout '100000', ADD connect_timeout '60')",
    );
    for (statement, for_good) in [
        ("COPY ", false),
        ("COPY ", true),
        ("COMMIT", true),
        ("PREPARE TRANSACTION", true),
        ("COMMIT PREPARED", true),
    ] {
        let what = format!("cut at {statement}, for good: {for_good}");
        if for_good {
            servers.coordinator.sql(
                "ALTER SERVER n1
                   OPTIONS (SET keepalives_count '2', SET tcp_user_timeout '2500', SET connect_timeout '20')",
            );
        }
        let more: &[&str] = if statement.contains("PREPARE") { &["--atomic"] } else { &["--once"] };
        let file = servers.file();
        let proxy = Proxy::on(&network.host(1), &servers.nodes[1], statement, 0, Fate::Note, false);
        servers.through(1, &proxy);
        let mut command = network.command();
        servers.arguments(&mut command, &proxies[0].target(), &file, more);
        let mut load = command.spawn().unwrap();
        held(&proxy, &mut load);
        network.set(1, "down");
        if !for_good {
            sleep(Duration::from_millis(700));
            network.set(1, "up");
        }
        let ended = servers.wait(load);
        network.set(1, "up");
        servers.directly(1);
        // The node would do this by its keepalives. Until then, its session holds locks.
        servers.nodes[1].sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
             AND application_name <> 'postgres_fdw'",
        );
        servers.nodes.iter_mut().for_each(wait_for_end);
        if !for_good {
            assert_eq!(ended.loaded(&what), ROWS);
        } else if more == ["--atomic"] {
            servers.coordinator.repair();
            let none = servers.nodes[0].sql("SELECT count(*) FROM t_0") == "0";
            assert!(!none || ended.code != Some(0), "{what}: {ended:?}");
            servers.has_all_but(if none { &[0, 1, 2] } else { &[] }, &what);
            continue;
        } else if ended.code != Some(0) {
            ended.left_open(5, &["n1"], &what);
            servers.run(&file, more).loaded(&what);
        }
        servers.has_all(&what);
    }
}

/// If the network to a node is cut for a moment, the load only takes longer. If it is cut for good,
/// the node is left open, and the same command, or `repair`, finishes the load.
#[test]
fn a_network_that_is_cut_delays_a_load_or_leaves_a_node_open() {
    if let Some(network) = Network::new() {
        on_servers(|servers| cut(servers, &network));
    }
}
