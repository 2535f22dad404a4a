//! Just enough of the frontend/backend protocol 3.0 to drive COPY with every
//! byte in hand: psql takes `\.` out of what it sends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// A server's error: SQLSTATE, message and CONTEXT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    pub sqlstate: String,
    pub message: String,
    pub context: String,
}

impl Failure {
    /// The number after `line ` in the CONTEXT.
    pub fn line(&self) -> Option<u64> {
        let rest = &self.context[self.context.find("line ")? + 5..];
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }
}

/// One session, in plain text over a Unix socket, trusted by the server.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    pub fn connect(socket: &std::path::Path, user: &str) -> Client {
        let stream = UnixStream::connect(socket).expect("the server listens");
        let mut client = Client { stream };
        let mut body = 196_608_i32.to_be_bytes().to_vec();
        let settings = [("user", user), ("database", "postgres"), ("client_encoding", "UTF8")];
        for (key, value) in settings {
            body.extend_from_slice(format!("{key}\0{value}\0").as_bytes());
        }
        body.push(0);
        let len = (body.len() as i32 + 4).to_be_bytes();
        client.stream.write_all(&[&len[..], &body].concat()).unwrap();
        client.until_ready().expect("the server accepts the session");
        client
    }

    /// Runs statements that neither send nor receive data.
    pub fn run(&mut self, sql: &str) -> Result<(), Failure> {
        self.send(b'Q', format!("{sql}\0").as_bytes());
        self.until_ready().map(|_| ())
    }

    /// Runs `COPY … FROM STDIN` with these bytes.
    pub fn copy_in(&mut self, sql: &str, data: &[u8]) -> Result<(), Failure> {
        self.send(b'Q', format!("{sql}\0").as_bytes());
        loop {
            let (kind, body) = self.receive();
            match kind {
                b'G' => break,
                b'E' => {
                    let failure = failure(&body);
                    let _ = self.until_ready();
                    return Err(failure);
                }
                _ => {}
            }
        }
        self.send(b'd', data);
        self.send(b'c', b"");
        self.until_ready().map(|_| ())
    }

    /// Runs `COPY … TO STDOUT` and gives its bytes.
    pub fn copy_out(&mut self, sql: &str) -> Result<Vec<u8>, Failure> {
        self.send(b'Q', format!("{sql}\0").as_bytes());
        self.until_ready()
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        let len = (body.len() as i32 + 4).to_be_bytes();
        self.stream.write_all(&[&[kind], &len[..], body].concat()).unwrap();
    }

    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).expect("the server answers");
        let len = i32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        let mut body = vec![0; len - 4];
        self.stream.read_exact(&mut body).unwrap();
        (head[0], body)
    }

    /// Reads up to ReadyForQuery; gives the copied data or the first error.
    fn until_ready(&mut self) -> Result<Vec<u8>, Failure> {
        let mut data = Ok(Vec::new());
        loop {
            let (kind, body) = self.receive();
            match kind {
                b'Z' => return data,
                b'E' if data.is_ok() => data = Err(failure(&body)),
                b'd' => {
                    if let Ok(data) = &mut data {
                        data.extend_from_slice(&body);
                    }
                }
                _ => {}
            }
        }
    }
}

fn failure(body: &[u8]) -> Failure {
    let mut failure = Failure::default();
    for field in body.split(|b| *b == 0).filter(|f| !f.is_empty()) {
        let value = String::from_utf8_lossy(&field[1..]).into_owned();
        match field[0] {
            b'C' => failure.sqlstate = value,
            b'M' => failure.message = value,
            b'W' => failure.context = value,
            _ => {}
        }
    }
    failure
}
