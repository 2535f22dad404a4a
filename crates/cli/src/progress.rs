//! Shows the progress of a load: on a terminal as a line that is redrawn, in a log as a line at
//! intervals.

use crate::output::{logs, say};
use pgsluice_engine::Phase;
use pgsluice_engine::Watch;
use std::fmt::Display;
use std::io::{stderr, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between two updates on a terminal.
const TICK: Duration = Duration::from_millis(200);

/// Interval between two lines in a log.
const LOG: Duration = Duration::from_secs(10);

/// Moves to the start of the line and clears the line.
const CLEAR: &str = "\r\x1b[K";

/// The thread that shows the progress.
pub struct Shown {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Shown {
    /// Starts the thread, unless `quiet` is set.
    pub fn start(watch: &Watch, quiet: bool) -> Shown {
        let ended = Arc::new(AtomicBool::new(false));
        let (seen, watch) = (ended.clone(), watch.clone());
        let thread = (!quiet).then(|| thread::spawn(move || show(&watch, &seen)));
        Shown { ended, thread }
    }

    /// Stops the thread and clears the line.
    pub fn end(self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            // The thread only prints, so its result does not matter.
            let _ = thread.join();
        }
    }
}

/// Prints a line in place of the progress line, which is then redrawn below it.
pub fn say_above(text: impl Display) {
    let clear = if stderr().is_terminal() && !logs() { CLEAR } else { "" };
    say(format_args!("{clear}{text}"));
}

fn show(watch: &Watch, ended: &AtomicBool) {
    let terminal = stderr().is_terminal() && !logs();
    let start = Instant::now();
    let mut next = if terminal { TICK } else { LOG };
    loop {
        thread::park_timeout(TICK);
        if ended.load(Ordering::SeqCst) {
            break;
        }
        if start.elapsed() < next {
            continue;
        }
        next = start.elapsed() + if terminal { TICK } else { LOG };
        let line = line(watch, start.elapsed().as_secs_f64());
        if terminal {
            // Ignore errors: the terminal may be gone.
            let _ = write!(stderr(), "{CLEAR}{line}");
        } else {
            say(line);
        }
    }
    if terminal {
        let _ = write!(stderr(), "{CLEAR}");
    }
}

fn line(watch: &Watch, seconds: f64) -> String {
    let p = &watch.progress;
    let (bytes, total) = (p.bytes.get() as f64, p.total_bytes.get() as f64);
    let phase = p.phase();
    if phase != Phase::Loading {
        return format!("{phase}, {} since the start", time(seconds));
    }
    let rate = bytes / seconds.max(1e-9);
    let mut line = format!(
        "{phase} {:.0} MB, {} records, {:.1} MB/s",
        bytes / 1e6,
        p.records.get(),
        rate / 1e6
    );
    if total > 0.0 && rate > 0.0 {
        let left = (total - bytes).max(0.0) / rate;
        line += &format!(", {:.0} %, {} left", 100.0 * bytes / total, time(left));
    }
    format!("{line}, bottleneck: {}", p.bottleneck(seconds))
}

fn time(seconds: f64) -> String {
    let s = seconds.round() as u64;
    if s >= 3600 {
        format!("{}h{:02}m", s / 3600, s / 60 % 60)
    } else if s >= 60 {
        format!("{}m{:02}s", s / 60, s % 60)
    } else {
        format!("{s}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_bytes_rows_rate_time_and_bottleneck() {
        let watch = Watch::default();
        let p = &watch.progress;
        p.bytes.set(50_000_000);
        p.records.set(1234);
        assert_eq!(line(&watch, 5.0), "opening, 5s since the start");
        p.begin(Phase::Loading);
        p.reading.add(Duration::from_secs(3));
        let expected = "loading 50 MB, 1234 records, 10.0 MB/s";
        // The share and the time left are shown only if the total size is known.
        assert_eq!(line(&watch, 5.0), format!("{expected}, bottleneck: reading"));
        p.total_bytes.set(800_000_000);
        p.sending.add(Duration::from_secs(4));
        assert_eq!(line(&watch, 5.0), format!("{expected}, 6 %, 1m15s left, bottleneck: server"));
        assert_eq!((time(59.4), time(7260.0)), ("59s".into(), "2h01m".into()));
    }
}
