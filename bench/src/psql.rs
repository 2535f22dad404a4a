//! All access to the server is through psql. The timed command is therefore the one a user would
//! type, and the kernel accounts for it as for any other client.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Result};

use crate::proc::{self, Client, ClientUsage};
use crate::server::USER;

/// Address of a server and the program to reach it.
#[derive(Clone, Debug)]
pub struct Psql {
    /// The program.
    pub program: PathBuf,
    /// Folder of the socket.
    pub host: PathBuf,
    /// Port, of the socket and on 127.0.0.1.
    pub port: u16,
}

/// The result of a timed session.
#[derive(Debug, Default)]
pub struct Session {
    /// Seconds of each marked phase, by psql's own timing.
    pub phases: Vec<(String, f64)>,
    /// What the session reported in marked lines.
    pub told: Told,
    /// CPU and memory of psql.
    pub usage: ClientUsage,
}

/// What a client reports to the runner in lines `@@note TEXT` and `@@figure NAME VALUE`.
#[derive(Debug, Default)]
pub struct Told {
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Figures by name.
    pub figures: BTreeMap<String, f64>,
}

impl Told {
    /// Reads a line. A line without a mark is ignored.
    fn hear(&mut self, line: &str) {
        if let Some(note) = line.strip_prefix("@@note ") {
            self.notes.push(note.to_owned());
        } else if let Some((name, value)) =
            line.strip_prefix("@@figure ").and_then(|f| f.split_once(' '))
        {
            self.figures.extend(value.trim().parse().map(|value| (name.to_owned(), value)));
        }
    }

    /// Adds what another client reported.
    pub fn add(&mut self, other: Self) {
        self.notes.extend(other.notes);
        self.figures.extend(other.figures);
    }
}

impl Psql {
    /// The address as a URL that uses the socket.
    pub fn url(&self) -> String {
        let host = self.host.display().to_string().replace('/', "%2F");
        format!("postgresql://{USER}@{host}:{}/{USER}", self.port)
    }

    /// A psql command that stops at the first error and reads no configuration.
    fn command(&self, database: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", database]);
        command.arg("-h").arg(&self.host).arg("-p").arg(self.port.to_string());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PG")) {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    /// Runs SQL that is not timed and returns its rows, with fields separated by `|`.
    pub fn query(&self, sql: &str, database: &str) -> Result<String> {
        let output = proc::output(self.command(database).args(["-c", sql]))?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}\nin: {}", message.trim(), first_line(sql));
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// Runs a script that is not timed. It may have several statements and psql's own commands.
    pub fn script(&self, sql: &str, scratch: &Path) -> Result<()> {
        self.timed(&[("setup", sql)], scratch, "setup").map(|_| ())
    }

    /// Starts a session that runs the phases one after another.
    pub fn start(&self, phases: &[(&str, &str)], scratch: &Path, name: &str) -> Result<Running> {
        let script = scratch.join(format!("{name}.sql"));
        let mut text = String::from("\\timing on\n");
        for (phase, sql) in phases {
            text.push_str(&format!("\\echo @@phase {phase}\n{}\n", sql.trim()));
        }
        fs::write(&script, text)?;
        let files = Captured::new(scratch, name);
        let mut command = self.command(USER);
        command.arg("-f").arg(&script);
        let client = files.spawn(&mut command)?;
        Ok(Running { client, files })
    }

    /// Runs the phases in one session and waits for the end.
    pub fn timed(&self, phases: &[(&str, &str)], scratch: &Path, name: &str) -> Result<Session> {
        self.start(phases, scratch, name)?.wait()
    }
}

/// Files that capture the output of a client.
#[derive(Debug)]
pub struct Captured {
    out: PathBuf,
    err: PathBuf,
}

impl Captured {
    /// Files in the scratch folder, named after the client.
    pub fn new(scratch: &Path, name: &str) -> Self {
        Self { out: scratch.join(format!("{name}.out")), err: scratch.join(format!("{name}.err")) }
    }

    /// Starts a command that prints into them.
    pub fn spawn(&self, command: &mut Command) -> Result<Client> {
        command.stdout(File::create(&self.out)?).stderr(File::create(&self.err)?);
        Client::spawn(command)
    }

    /// Waits for the client. A client that fails is an error with the last lines of its output.
    pub fn wait(&self, client: Client, what: &str) -> Result<ClientUsage> {
        let (status, usage) = client.wait()?;
        if proc::interrupted() {
            bail!("interrupted");
        }
        if !status.success() {
            bail!("{what} failed ({status}): {}", self.last_words());
        }
        Ok(usage)
    }

    /// The captured standard output.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// What the client reported in marked lines.
    pub fn told(&self) -> Told {
        let mut told = Told::default();
        self.out().lines().for_each(|line| told.hear(line));
        told
    }

    /// The last lines of the output: of standard error if it has any.
    fn last_words(&self) -> String {
        let err = String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned();
        let text = if err.trim().is_empty() { self.out() } else { err };
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(6)..].join("; ")
    }
}

/// A running psql session.
#[derive(Debug)]
pub struct Running {
    client: Client,
    files: Captured,
}

impl Running {
    /// Waits for its end and reads the timings that it printed.
    pub fn wait(self) -> Result<Session> {
        let usage = self.files.wait(self.client, "psql")?;
        let mut session = Session { usage, told: self.files.told(), ..Session::default() };
        for line in self.files.out().lines() {
            if let Some(phase) = line.strip_prefix("@@phase ") {
                session.phases.push((phase.to_owned(), 0.0));
            } else if let Some(ms) = timing_of(line) {
                if let Some((_, seconds)) = session.phases.last_mut() {
                    *seconds += ms / 1000.0;
                }
            }
        }
        Ok(session)
    }
}

/// The milliseconds of psql's line `Time: 12.345 ms (…)`.
fn timing_of(line: &str) -> Option<f64> {
    line.strip_prefix("Time: ")?.split_once(" ms")?.0.parse().ok()
}

fn first_line(sql: &str) -> &str {
    sql.trim().lines().next().unwrap_or_default()
}
