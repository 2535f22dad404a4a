//! The time and the identifier of this run, for logs, summaries and file names.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment in UTC.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// seconds since 1970
    seconds: u64,
    /// and milliseconds
    millis: u32,
}

impl Moment {
    /// The present moment.
    pub fn now() -> Moment {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { seconds: since.as_secs(), millis: since.subsec_millis() }
    }

    /// The moment as in RFC 3339: `2026-11-23T04:17:59.123Z`.
    pub fn written(self) -> String {
        let (y, mo, d) = date(self.seconds / 86_400);
        let (h, mi, s) = time(self.seconds);
        format!("{y:04}-{mo:02}-{d:02}T{h:02}:{mi:02}:{s:02}.{:03}Z", self.millis)
    }

    /// The moment for a file name: `20261123T041759Z`.
    fn in_name(self) -> String {
        let (y, mo, d) = date(self.seconds / 86_400);
        let (h, mi, s) = time(self.seconds);
        format!("{y:04}{mo:02}{d:02}T{h:02}{mi:02}{s:02}Z")
    }
}

fn time(seconds: u64) -> (u64, u64, u64) {
    (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Year, month and day from a number of days since 1970, computed in eras of 400 years that begin
/// in March.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// The start of the program, and the identifier of this run.
fn run() -> &'static (Moment, String) {
    static RUN: OnceLock<(Moment, String)> = OnceLock::new();
    RUN.get_or_init(|| {
        // The standard library uses a random seed in each process.
        let random = RandomState::new().build_hasher().finish();
        (Moment::now(), format!("{:012x}", random >> 16))
    })
}

/// The start of the program: the time of the first call.
pub fn started() -> Moment {
    run().0
}

/// The identifier of this run: twelve random hexadecimal digits.
pub fn id() -> &'static str {
    &run().1
}

/// A file name with `{time}` and `{id}` replaced.
pub fn named(pattern: &str) -> String {
    pattern.replace("{time}", &started().in_name()).replace("{id}", id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_the_calendar_has_them() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_795_407_479, "2026-11-23T04:17:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(Moment { seconds, millis: 7 }.written(), written);
        }
        assert_eq!(named("a-{id}-{id}"), format!("a-{0}-{0}", id()));
        assert_eq!(named("{time}").len(), "20261123T041759Z".len());
    }
}
