//! Ports for servers whose port must be set before they start.

use std::net::{TcpListener, TcpStream};

/// A port of the loopback interface, kept for one server while this lives.
///
/// A port that has merely been free may be given to somebody else before the server has it. Of
/// one that has a connection the system gives no second to anybody who asks for a free one, and
/// yet a server that names it may listen there (SO_REUSEADDR), as often as it is started.
pub struct Port {
    /// its number
    pub number: u16,
    _ends: [TcpStream; 2],
}

impl Port {
    /// A port that nobody had.
    pub fn keep() -> Port {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let client = TcpStream::connect(there).unwrap();
        let (server, _) = listener.accept().unwrap();
        Port { number: there.port(), _ends: [server, client] }
    }
}
