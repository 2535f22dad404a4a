//! The server's WAL writer, kept awake while a COPY runs.

use super::conn::Conn;
use crossbeam_channel::{bounded, Receiver, Sender};
use std::thread;

const WAKE: &str = "BEGIN READ WRITE; SET LOCAL synchronous_commit = off; \
    SELECT pg_catalog.pg_current_xact_id(); COMMIT";

/// Wakes the WAL writer.
pub struct WalWriter {
    every: usize,
    sent: usize,
    ask: Sender<()>,
}

impl WalWriter {
    /// x
    pub fn new(url: &str) -> Option<WalWriter> {
        let every = std::env::var("PGSLUICE_WAKE").ok()?.parse::<usize>().ok()?;
        let (ask, asked) = bounded(1);
        let url = url.to_owned();
        thread::spawn(move || wake(&url, &asked));
        Some(WalWriter { every, sent: 0, ask })
    }

    /// x
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= self.every {
            self.sent = 0;
            let _ = self.ask.try_send(());
        }
    }
}

fn wake(url: &str, asked: &Receiver<()>) {
    let mut conn = None;
    for () in asked {
        if conn.is_none() {
            let Ok(c) = Conn::open(url) else { return };
            conn = Some(c);
        }
        if let Some(c) = &mut conn {
            if c.exec(WAKE).is_err() {
                return;
            }
        }
    }
}
