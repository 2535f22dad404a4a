//! The arguments of a load that is recorded.

use clap::{Args, ValueEnum};
use pgsluice_engine::options::{OnceOptions, ShareOptions};
use std::time::Duration;

/// What to do with a file that has grown since it was loaded
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnChange {
    /// fail
    Error,
    /// load what follows, if the beginning is as it was
    Append,
}

/// Loading each file once.
#[derive(Args, Debug)]
#[command(next_help_heading = "Load once")]
pub struct OnceArguments {
    /// Load each file once: record in the database, in the transaction of the rows, which files
    /// are loaded, and skip them next time. A file is recognised by its content
    #[arg(long)]
    once: bool,
    /// Commit after each SIZE of input on each connection, for example 256MB. After a failure,
    /// the same command continues after the last commit
    #[arg(long, requires = "once", value_name = "SIZE", value_parser = size)]
    commit_every: Option<u64>,
    /// What to do with a file that has grown since it was loaded [default: error]
    #[arg(long, requires = "once", value_enum, value_name = "HOW")]
    on_change: Option<OnChange>,
    /// The name under which a stream (standard input, a pipe) is recorded, for example that of its
    /// file without the folder. The same name must have the same bytes each time
    #[arg(long, requires = "once", value_name = "NAME")]
    source_name: Option<String>,
    /// Accept an UNLOGGED table with --once: a crash of the server empties the table, and its
    /// files stay recorded as loaded
    #[arg(long, requires = "once")]
    force_unlogged: bool,
    /// Share the load: the same command may run on any number of machines that can read the files
    /// under the same paths. Each takes parts of them (of SIZE as in --commit-every, or 64MB)
    #[arg(long, requires = "once")]
    share: bool,
    /// With --share: take over the parts of a machine of which nothing was seen for TIME,
    /// for example 2min [default: 30s]
    #[arg(long, requires = "share", value_name = "TIME", value_parser = time)]
    lease: Option<Duration>,
}

impl OnceArguments {
    /// The options of the engine for these arguments.
    pub fn options(&self) -> Option<OnceOptions> {
        let OnceArguments { once, commit_every, on_change, force_unlogged, share, lease, .. } =
            *self;
        let append = on_change == Some(OnChange::Append);
        let source_name = self.source_name.clone();
        let share = share.then(|| lease.map_or_else(ShareOptions::default, ShareOptions::new));
        once.then_some(OnceOptions { commit_every, append, force_unlogged, source_name, share })
    }
}

/// Parses a number of bytes with a unit, as in PostgreSQL's settings.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "kB" => 10,
        "MB" => 20,
        "GB" => 30,
        "TB" => 40,
        _ => return Err("a size is a number with a unit: kB, MB, GB or TB".into()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "the number is out of range".into())
}

/// Parses a time with a unit, as in PostgreSQL's settings. The minimum is one second.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        _ => return Err("a time is a number with a unit: s, min or h".into()),
    };
    let all = number.parse::<u32>().ok().and_then(|n| n.checked_mul(seconds));
    let all = all.filter(|all| *all > 0).ok_or("the number is out of range")?;
    Ok(Duration::from_secs(all.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_server_reads_them() {
        for (text, seconds) in [("2s", 2), ("5min", 300), ("1 h", 3600)] {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "30", "0s", "500ms", "-1s", "99999999h"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_read_as_the_server_reads_them() {
        for (text, bytes) in [("64kB", 64 << 10), ("256MB", 256 << 20), ("1 GB", 1 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "256", "MB", "0MB", "-1MB", "256mb", "1.5GB", "99999999999TB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
