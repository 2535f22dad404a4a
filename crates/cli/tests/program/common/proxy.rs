//! A proxy before the server that cuts or holds a connection when a given statement passes.

use super::{wait_until, World};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

/// What happens to the connection on which the statement comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// cut before the server has the statement
    CutBefore,
    /// cut when the server has the statement, without waiting for its answer
    CutDuring,
    /// cut when the server has answered, before the client has the answer
    CutAfter,
    /// held for ever: the server does not get it
    Hold,
    /// let through; the proxy says that it has come
    Note,
}

/// The statement that the proxy waits for.
struct Trap {
    /// how the statement begins
    statement: &'static [u8],
    /// how often it passes before
    pass: usize,
    fate: Fate,
    /// no connection is let through afterwards
    shut: bool,
}

/// A proxy on a port of the loopback interface.
pub struct Proxy {
    address: SocketAddr,
    sprung: Arc<AtomicBool>,
}

impl Proxy {
    /// Listens for the server of this world.
    pub fn start(
        world: &World,
        statement: &'static str,
        pass: usize,
        fate: Fate,
        shut: bool,
    ) -> Proxy {
        Proxy::on("127.0.0.1", world, statement, pass, fate, shut)
    }

    /// As [`Proxy::start`], on this address of the machine.
    pub fn on(
        address: &str,
        world: &World,
        statement: &'static str,
        pass: usize,
        fate: Fate,
        shut: bool,
    ) -> Proxy {
        let socket = format!("{}/.s.PGSQL.5432", world.conn.host());
        let listener = TcpListener::bind((address, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let trap = Arc::new(Mutex::new(Trap { statement: statement.as_bytes(), pass, fate, shut }));
        let sprung = Arc::new(AtomicBool::new(false));
        let proxy = Proxy { address, sprung: sprung.clone() };
        spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if sprung.load(Ordering::SeqCst) && trap.lock().unwrap().shut {
                    let _ = client.shutdown(Shutdown::Both);
                    continue;
                }
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                let (trap, sprung) = (trap.clone(), sprung.clone());
                let cut = Arc::new(AtomicBool::new(false));
                let (from, to, seen) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap(), cut.clone());
                spawn(move || answers(from, to, &seen));
                spawn(move || requests(client, server, &trap, &sprung, &cut));
            }
        });
        proxy
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address.
    pub fn host(&self) -> String {
        self.address.ip().to_string()
    }

    /// For libpq.
    pub fn target(&self) -> String {
        format!(
            "host={} port={} dbname=postgres user=postgres sslmode=disable gssencmode=disable",
            self.host(),
            self.port()
        )
    }

    /// Whether the statement has come.
    pub fn sprung(&self) -> bool {
        self.sprung.load(Ordering::SeqCst)
    }

    /// Waits until it has.
    pub fn wait(&self) {
        wait_until(|| "the statement never came".into(), || self.sprung());
    }
}

fn answers(mut server: UnixStream, mut client: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 1 << 16];
    while let Ok(n @ 1..) = server.read(&mut buffer) {
        if cut.load(Ordering::SeqCst) || client.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

fn requests(
    mut client: TcpStream,
    mut server: UnixStream,
    trap: &Mutex<Trap>,
    sprung: &AtomicBool,
    cut: &AtomicBool,
) {
    let mut buffer = [0; 1 << 16];
    while let Ok(n @ 1..) = client.read(&mut buffer) {
        let bytes = &buffer[..n];
        match springs(bytes, trap, sprung) {
            None | Some(Fate::Note) => {}
            Some(Fate::Hold) => {
                // Until the client is gone.
                while let Ok(1..) = client.read(&mut buffer) {}
                break;
            }
            Some(fate) => {
                cut.store(true, Ordering::SeqCst);
                if fate != Fate::CutBefore {
                    let _ = server.write_all(bytes);
                }
                if fate == Fate::CutAfter {
                    // The answering thread ends the client when the answer is there.
                    while let Ok(1..) = client.read(&mut buffer) {}
                }
                break;
            }
        }
        if server.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
    let _ = client.shutdown(Shutdown::Both);
}

/// Whether these bytes are the statement waited for: a Query message of its own.
fn springs(bytes: &[u8], trap: &Mutex<Trap>, sprung: &AtomicBool) -> Option<Fate> {
    let mut trap = trap.lock().unwrap();
    let is_it = bytes.first() == Some(&b'Q')
        && bytes.get(5..).is_some_and(|sql| sql.starts_with(trap.statement));
    if !is_it || sprung.load(Ordering::SeqCst) {
        return None;
    }
    if trap.pass > 0 {
        trap.pass -= 1;
        return None;
    }
    sprung.store(true, Ordering::SeqCst);
    Some(trap.fate)
}
