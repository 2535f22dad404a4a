//! A proxy between the program and the server. It cuts or holds a connection when a given statement
//! passes.

use super::{wait_until, World};
use pgsluice_pgserver::Server;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

/// What the proxy does with the connection that sends the statement.
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
    /// held until [`Proxy::let_through`]
    Pause,
    /// let through; the proxy only records that it has come
    Note,
}

/// The statement that the proxy waits for.
struct Trap {
    /// how the statement begins
    statement: &'static [u8],
    /// how many times the proxy lets it through before
    pass: usize,
    fate: Fate,
    /// refuse all connections afterwards
    shut: bool,
    /// wait for it only on connections that have sent rows
    after_rows: bool,
    /// pass on requests to cancel
    cancels: bool,
    /// the socket of the server for later connections
    other: Option<String>,
}

/// A proxy on a port of the loopback interface.
pub struct Proxy {
    address: SocketAddr,
    sprung: Arc<AtomicBool>,
    trap: Arc<Mutex<Trap>>,
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
        let socket = socket(world.conn.host());
        let listener = TcpListener::bind((address, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let statement = statement.as_bytes();
        let (after_rows, cancels, other) = (false, true, None);
        let trap = Trap { statement, pass, fate, shut, after_rows, cancels, other };
        let trap = Arc::new(Mutex::new(trap));
        let sprung = Arc::new(AtomicBool::new(false));
        let proxy = Proxy { address, sprung: sprung.clone(), trap: trap.clone() };
        spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if sprung.load(Ordering::SeqCst) && trap.lock().unwrap().shut {
                    let _ = client.shutdown(Shutdown::Both);
                    continue;
                }
                let other = trap.lock().unwrap().other.clone();
                let other = other.filter(|_| sprung.load(Ordering::SeqCst));
                let to = other.as_ref().unwrap_or(&socket);
                let Ok(server) = UnixStream::connect(to) else { continue };
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

    /// Cuts the connection before the server has the COMMIT of the first transaction with rows.
    /// Later connections go to the server that [`Proxy::fail_over_to`] names, as if it had taken
    /// over the address.
    pub fn failover(world: &World) -> Proxy {
        Proxy::start(world, "COMMIT", 0, Fate::CutBefore, false).after_rows()
    }

    /// The same proxy, which waits for its statement only on connections that have sent rows.
    pub fn after_rows(self) -> Proxy {
        self.trap.lock().unwrap().after_rows = true;
        self
    }

    /// The same proxy, which drops requests to cancel.
    pub fn without_cancels(self) -> Proxy {
        self.trap.lock().unwrap().cancels = false;
        self
    }

    /// Accepts connections again.
    pub fn reopen(&self) {
        self.trap.lock().unwrap().shut = false;
    }

    /// Lets the server get the statement that is held by [`Fate::Pause`].
    pub fn let_through(&self) {
        self.trap.lock().unwrap().fate = Fate::Note;
    }

    /// Sets the server that takes over the address.
    pub fn fail_over_to(&self, server: &Server) {
        let host = server.socket_dir().to_str().unwrap().to_owned();
        self.trap.lock().unwrap().other = Some(socket(host));
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address.
    pub fn host(&self) -> String {
        self.address.ip().to_string()
    }

    /// The connection string for libpq.
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

    /// Waits until the statement has come.
    pub fn wait(&self) {
        wait_until(|| "the statement never came".into(), || self.sprung());
    }
}

/// A request to cancel has this code after its length.
const CANCEL: [u8; 4] = 80_877_102_u32.to_be_bytes();

fn socket(folder: String) -> String {
    format!("{folder}/.s.PGSQL.5432")
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
    let mut rows = false;
    while let Ok(n @ 1..) = client.read(&mut buffer) {
        let bytes = &buffer[..n];
        if bytes.get(4..8) == Some(&CANCEL[..]) && !trap.lock().unwrap().cancels {
            break;
        }
        rows |= is_query(bytes, b"COPY ");
        match springs(bytes, rows, trap, sprung) {
            None | Some(Fate::Note) => {}
            Some(Fate::Pause) => {
                let is_over = || trap.lock().unwrap().fate != Fate::Pause;
                wait_until(|| "the statement is not let through".into(), is_over);
            }
            Some(Fate::Hold) => {
                // Wait until the client is gone.
                while let Ok(1..) = client.read(&mut buffer) {}
                break;
            }
            Some(fate) => {
                cut.store(true, Ordering::SeqCst);
                if fate != Fate::CutBefore {
                    let _ = server.write_all(bytes);
                }
                if fate == Fate::CutAfter {
                    // The thread that forwards answers closes the connection when the answer has
                    // come.
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

/// Whether these bytes are a separate Query or Parse message that begins with this statement.
fn is_query(bytes: &[u8], statement: &[u8]) -> bool {
    let sql = match bytes.first() {
        Some(b'Q') => bytes.get(5..),
        // The statement has an empty name.
        Some(b'P') => bytes.get(6..),
        _ => None,
    };
    sql.is_some_and(|sql| sql.starts_with(statement))
}

/// Checks whether these bytes are a message with the awaited statement; returns what to do with its
/// connection. `rows`: the connection has sent rows.
fn springs(bytes: &[u8], rows: bool, trap: &Mutex<Trap>, sprung: &AtomicBool) -> Option<Fate> {
    let mut trap = trap.lock().unwrap();
    let is_it = is_query(bytes, trap.statement) && (rows || !trap.after_rows);
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
