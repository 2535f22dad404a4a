//! Connections to a server that does nothing but accept them.

use super::*;
use std::io::{Read, Write};
use std::mem::size_of;
use std::net::TcpListener;
use std::thread;

/// Accepts one client as a server does, and waits until it leaves.
fn serve(listener: &TcpListener) {
    let (mut client, _) = listener.accept().unwrap();
    let mut length = [0; 4];
    client.read_exact(&mut length).unwrap();
    let mut startup = vec![0; u32::from_be_bytes(length) as usize - length.len()];
    client.read_exact(&mut startup).unwrap();
    // AuthenticationOk, BackendKeyData and ReadyForQuery.
    client.write_all(b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c\0\0\0\x01\0\0\0\x02Z\0\0\0\x05I").unwrap();
    let _ = client.read_to_end(&mut Vec::new());
}

/// A TCP option of the connection's socket.
fn option(conn: &Conn, name: c_int) -> c_int {
    let (mut value, mut length) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the connection is open. Both pointers are those of live variables, and the length is
    // that of the int.
    let done = unsafe {
        let value = ptr::from_mut::<c_int>(&mut value).cast();
        libc::getsockopt(PQsocket(conn.raw), libc::IPPROTO_TCP, name, value, &mut length)
    };
    assert_eq!(done, 0);
    value
}

/// An idle connection is probed after a minute, or as the target says.
#[test]
fn idle_connections_are_probed() {
    let own = " keepalives_idle=7 keepalives_count=3";
    for (more, expected) in [("", [60, 30, 10]), (own, [7, 30, 3])] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || serve(&listener));
        let to = format!("host=127.0.0.1 port={port} user=u dbname=d sslmode=disable{more}");
        let conn = Conn::open(&format!("{to} gssencmode=disable")).unwrap();
        let options = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
        assert_eq!(options.map(|name| option(&conn, name)), expected, "{more}");
        drop(conn);
        server.join().unwrap();
    }
}
