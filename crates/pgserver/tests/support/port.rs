//! Ports for servers whose port must be set before they start.

use std::net::{TcpListener, TcpStream};

/// A port of the loopback interface, kept for one server while this lives.
///
/// A port that was merely found to be free may be taken by another process before the server
/// listens. The system gives a port that has a connection to no process that asks for a free one.
/// But a server that names it can listen there (SO_REUSEADDR), as often as it is started.
pub struct Port {
    /// its number
    pub number: u16,
    _ends: [TcpStream; 2],
}

impl Port {
    /// Reserves a free port.
    pub fn keep() -> Port {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let client = TcpStream::connect(there).unwrap();
        let (server, _) = listener.accept().unwrap();
        Port { number: there.port(), _ends: [server, client] }
    }
}
