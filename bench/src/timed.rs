//! What the steps of one run took, told and used.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Result};

use crate::proc::ClientUsage;
use crate::psql::{Psql, Told};
use crate::result::Phase;

/// What the steps took.
#[derive(Debug, Default)]
pub struct Timed {
    /// Wall-clock seconds of all steps.
    pub seconds: f64,
    /// Seconds of each phase, in order.
    pub phases: Vec<Phase>,
    /// What the clients told.
    pub told: Told,
    /// What the clients used.
    pub usage: ClientUsage,
}

impl Timed {
    /// Adds a client that ran alone.
    pub fn add(&mut self, seconds: f64, usage: ClientUsage) {
        self.seconds += seconds;
        self.usage = self.usage.plus(usage, false);
    }

    /// Notes what a phase took.
    pub fn phase(&mut self, name: &str, seconds: f64) {
        self.phases.push(Phase { name: name.to_owned(), seconds });
    }

    /// One session through several phases.
    pub fn session(
        &mut self,
        psql: &Psql,
        phases: &[(&str, &str)],
        scratch: &Path,
        name: &str,
    ) -> Result<()> {
        let start = Instant::now();
        let session = psql.timed(phases, scratch, name)?;
        self.add(start.elapsed().as_secs_f64(), session.usage);
        for (phase, seconds) in session.phases {
            self.phase(&phase, seconds);
        }
        self.told.add(session.told);
        Ok(())
    }

    /// Several sessions at once: the phase lasts until the last has ended.
    pub fn at_once(
        &mut self,
        psql: &Psql,
        phase: &str,
        statements: &[String],
        scratch: &Path,
        name: &str,
    ) -> Result<()> {
        let start = Instant::now();
        let begin = |(i, sql): (usize, &String)| {
            psql.start(&[(phase, sql)], scratch, &format!("{name}-{i}"))
        };
        let running: Vec<_> = statements.iter().enumerate().map(begin).collect::<Result<_>>()?;
        // All are waited for, also when one has failed: none may outlive the run.
        let ended: Vec<_> = running.into_iter().map(|r| r.wait()).collect();
        let seconds = start.elapsed().as_secs_f64();
        let mut usage = ClientUsage::default();
        for session in ended {
            let session = session?;
            usage = usage.plus(session.usage, true);
            self.told.add(session.told);
        }
        self.add(seconds, usage);
        self.phase(phase, seconds);
        Ok(())
    }

    /// Takes over what the loader wrote about itself: method chosen and why, what held it up, its
    /// phases. Its count must be the table's.
    pub fn read_summary(&mut self, path: &Path, rows: u64) -> Result<()> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let Ok(summary) = serde_json::from_str::<serde_json::Value>(&text) else { return Ok(()) };
        if let Some(loaded) = summary.get("loaded").and_then(serde_json::Value::as_u64) {
            ensure!(loaded == rows, "its summary says {loaded} rows loaded, where {rows} are due");
        }
        for key in ["method", "reason", "bottleneck"] {
            if let Some(value) = summary.get(key).and_then(|v| v.as_str()) {
                self.told.notes.push(format!("{key}: {value}"));
            }
        }
        let seconds = summary.get("seconds").and_then(|s| s.as_object());
        let phase = |(name, value): (&String, &serde_json::Value)| {
            Some(Phase { name: name.clone(), seconds: value.as_f64()? })
        };
        let own = seconds.into_iter().flatten().filter(|(name, _)| *name != "total");
        let own: Vec<Phase> = own.filter_map(phase).collect();
        if !own.is_empty() {
            self.phases = own;
        }
        Ok(())
    }
}
