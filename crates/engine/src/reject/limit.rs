//! How many rejects a load accepts.

use std::fmt;

/// The default limit as a share of what was read, in per cent. A load that exceeds it most likely
/// has the wrong dialect or the wrong table.
const DEFAULT_SHARE: f64 = 10.0;

/// With this number of rejects or fewer, a load never exceeds the default limit.
const DEFAULT_FLOOR: u64 = 100;

/// With more rejects than this, a share below half does not wait for the end of the input if more
/// than half of the records are rejected.
const HOPELESS: u64 = 10_000;

/// Numbers of records and of their lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// records
    pub records: u64,
    /// their lines: a record may have many of them
    pub lines: u64,
}

impl std::ops::Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        Amount { records: self.records + other.records, lines: self.lines + other.lines }
    }
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Amount) {
        *self = *self + other;
    }
}

/// How many rejects a load accepts. It applies to records and to lines: a stray quote can make one
/// record of a thousand lines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Limit {
    /// 10 % of what was read, but at least 100 records or lines
    #[default]
    Default,
    /// any number
    None,
    /// this number; with one more, the load fails at once
    Count(u64),
    /// this share of what was read, in per cent, checked at the end of the input; below 50 % also
    /// before it, as the default is, if most records are rejected
    Percent(f64),
}

impl Limit {
    /// Parses `N`, `P%` or `none`.
    ///
    /// # Errors
    ///
    /// The text has another form; the error says which forms are valid.
    pub fn parse(text: &str) -> Result<Limit, String> {
        let wrong = || {
            format!("\"{text}\" is not a number (100), a percentage (0.5%) or none (any number)")
        };
        match text.strip_suffix('%') {
            None if text == "none" => Ok(Limit::None),
            None => text.parse().map(Limit::Count).map_err(|_| wrong()),
            Some(share) => match share.trim().parse::<f64>() {
                Ok(share) if (0.0..=100.0).contains(&share) => Ok(Limit::Percent(share)),
                _ => Err(wrong()),
            },
        }
    }

    /// Whether a running load that has read `read` records already exceeds the limit.
    pub fn exceeded(&self, rejected: Amount, read: u64) -> bool {
        let most = rejected.records.max(rejected.lines);
        let hopeless = rejected.records > HOPELESS && rejected.records > read / 2;
        match self {
            Limit::Count(limit) => most > *limit,
            Limit::Default => hopeless,
            Limit::Percent(share) => hopeless && *share < 50.0,
            Limit::None => false,
        }
    }

    /// Whether a load that has read everything exceeds the limit.
    pub fn exceeded_at_end(&self, rejected: Amount, read: Amount) -> bool {
        // Lines are not counted within a first record of several lines, before their line end is
        // known. Each record that was not rejected has at least one line.
        let accepted = read.records.saturating_sub(rejected.records);
        let lines = read.lines.max(accepted + rejected.lines);
        let beyond = |share: f64| {
            let more = |part: u64, whole: u64| part as f64 * 100.0 > share * whole as f64;
            more(rejected.records, read.records) || more(rejected.lines, lines)
        };
        match self {
            // With 100 % or more, all records may be rejected.
            Limit::Percent(share) if *share >= 100.0 => false,
            Limit::Percent(share) => beyond(*share),
            Limit::Default => {
                rejected.records.max(rejected.lines) > DEFAULT_FLOOR && beyond(DEFAULT_SHARE)
            }
            _ => self.exceeded(rejected, read.records),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Default => {
                write!(f, "{DEFAULT_SHARE}% of what was read, at least {DEFAULT_FLOOR}")
            }
            Limit::None => f.write_str("none"),
            Limit::Count(most) => write!(f, "{most}"),
            Limit::Percent(share) => write!(f, "{share}%"),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |n: u64, one: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") };
        f.write_str(&of(self.records, "record"))?;
        if self.lines != self.records {
            write!(f, " ({})", of(self.lines, "line"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(records: u64, lines: u64) -> Amount {
        Amount { records, lines }
    }

    #[test]
    fn limits_are_read() {
        assert_eq!(Limit::parse("3"), Ok(Limit::Count(3)));
        assert_eq!(Limit::parse("0.5%"), Ok(Limit::Percent(0.5)));
        assert_eq!(Limit::parse("none"), Ok(Limit::None));
        for wrong in ["", "x", "-1", "1.5", "%", "-1%", "101%", "x%", "nan%"] {
            assert!(Limit::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn records_and_lines_are_held_to_the_limit() {
        assert!(!Limit::Count(3).exceeded(of(3, 3), 9));
        assert!(Limit::Count(3).exceeded(of(4, 4), 9));
        assert!(Limit::Count(3).exceeded(of(1, 4), 9));
        assert!(!Limit::Percent(1.0).exceeded(of(50, 50), 50));
        assert!(!Limit::Percent(1.0).exceeded_at_end(of(1, 1), of(100, 100)));
        assert!(Limit::Percent(1.0).exceeded_at_end(of(2, 2), of(100, 100)));
        assert!(Limit::Percent(1.0).exceeded_at_end(of(1, 801), of(200, 1000)));
        assert!(!Limit::Percent(0.0).exceeded_at_end(of(0, 0), of(0, 0)));
        assert!(!Limit::Percent(100.0).exceeded_at_end(of(9, 9), of(9, 9)));
        assert!(!Limit::None.exceeded_at_end(of(9, 9), of(9, 9)));
    }

    #[test]
    fn the_default_stops_what_is_mostly_rejected() {
        let limit = Limit::default();
        assert!(!limit.exceeded_at_end(of(100, 100), of(100, 100)));
        assert!(limit.exceeded_at_end(of(101, 101), of(1000, 1000)));
        assert!(!limit.exceeded_at_end(of(101, 101), of(1010, 1010)));
        assert!(limit.exceeded_at_end(of(1, 101), of(900, 1000)));
        assert!(!limit.exceeded(of(10_000, 10_000), 10_000));
        assert!(!limit.exceeded(of(10_001, 10_001), 100_000));
        assert!(limit.exceeded(of(10_001, 10_001), 12_000));
    }

    #[test]
    fn a_percentage_below_half_stops_what_is_mostly_rejected() {
        let stops = |share| Limit::Percent(share).exceeded(of(10_001, 10_001), 12_000);
        assert!(stops(0.1) && stops(49.9));
        assert!(!stops(50.0) && !stops(100.0));
        assert!(!Limit::Percent(0.1).exceeded(of(10_000, 10_000), 10_000));
        assert!(!Limit::Percent(0.1).exceeded(of(10_001, 10_001), 100_000));
    }
}
