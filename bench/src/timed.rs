//! Times, reports and resources of the steps of one run.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::Deserialize;

use crate::proc::ClientUsage;
use crate::psql::{Psql, Told};
use crate::result::PhaseTime;

/// Times, reports and resources of the steps.
#[derive(Debug, Default)]
pub struct Timed {
    /// Wall-clock seconds of all steps.
    pub seconds: f64,
    /// Seconds of each phase, in order.
    pub phases: Vec<PhaseTime>,
    /// What the clients reported.
    pub told: Told,
    /// The resources that the clients used.
    pub usage: ClientUsage,
}

impl Timed {
    /// Adds a client that ran alone.
    pub fn add(&mut self, seconds: f64, usage: ClientUsage) {
        self.seconds += seconds;
        self.usage = self.usage.plus(usage, false);
    }

    /// Records the seconds of a phase.
    pub fn phase(&mut self, name: &str, seconds: f64) {
        self.phases.push(PhaseTime { name: name.to_owned(), seconds });
    }

    /// Runs one session through several phases.
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

    /// Runs several sessions at the same time. The phase lasts until the last session has ended.
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
        // Wait for all of them, even if one has failed, so that none outlives the run.
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

    /// Reads the loader's summary: the method chosen and why, what it gives up, its bottleneck and
    /// its phases. The summary's count of loaded rows must be `rows`.
    pub fn read_summary(&mut self, path: &Path, rows: u64) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let summary: Summary =
            serde_json::from_slice(&fs::read(path)?).context("its summary cannot be read")?;
        if let Some(loaded) = summary.loaded {
            ensure!(loaded == rows, "its summary says {loaded} rows loaded, where {rows} are due");
        }
        let words = [
            ("method", summary.method),
            ("reason", summary.reason),
            ("gives up", summary.gives_up),
            ("bottleneck", summary.bottleneck),
        ];
        let said = words.iter().filter(|(_, text)| !text.is_empty());
        self.told.notes.extend(said.map(|(key, text)| format!("{key}: {text}")));
        let own = summary.seconds.0.into_iter().filter(|phase| phase.name != "total");
        let own: Vec<PhaseTime> = own.collect();
        if !own.is_empty() {
            self.phases = own;
        }
        Ok(())
    }
}

/// The parts of the loader's JSON summary that are used.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Summary {
    loaded: Option<u64>,
    method: String,
    reason: String,
    gives_up: String,
    bottleneck: String,
    seconds: Phases,
}

/// The members of an object, in the order in which they are written.
#[derive(Default)]
struct Phases(Vec<PhaseTime>);

impl<'de> Deserialize<'de> for Phases {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Phases;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds by phase")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Phases, M::Error> {
                let mut phases = Vec::new();
                while let Some((name, seconds)) = members.next_entry()? {
                    phases.push(PhaseTime { name, seconds });
                }
                Ok(Phases(phases))
            }
        }
        input.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_taken_over_in_its_order_and_held_to_the_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("summary.json");
        let mut timed = Timed::default();
        timed.read_summary(&path, 7).unwrap();
        let text = r#"{"loaded": 7, "table": "t", "reason": "", "gives_up": "order",
            "seconds": {"open": 0.5, "load": 2, "finish": 1.5, "analyze": 0.25, "total": 4.25}}"#;
        fs::write(&path, text).unwrap();
        timed.read_summary(&path, 7).unwrap();
        let names: Vec<&str> = timed.phases.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["open", "load", "finish", "analyze"]);
        assert_eq!(timed.told.notes, ["gives up: order"]);
        assert!(timed.read_summary(&path, 8).unwrap_err().to_string().contains("7 rows"));
        fs::write(&path, "{").unwrap();
        assert!(timed.read_summary(&path, 7).is_err(), "half a summary");
    }
}
