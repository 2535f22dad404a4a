//! Finds the records of a chunk that the server rejects.
//!
//! Each attempt is one COPY of consecutive records within a savepoint. If the server names the
//! line, three attempts follow: the records before it, the record alone, and the records after it.
//! Records after a rejected one are sent in vain. So the size of an attempt depends on the last
//! runs of good records. This limits the data that is sent again to about three times the chunk,
//! however many records are bad. If the server names no line (foreign keys, triggers), the range is
//! halved.

use std::ops::Range;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRefused {
    /// the index of the record that the server has named, if any
    pub record: Option<usize>,
    /// the column that the server has named
    pub column: Option<String>,
    /// the SQLSTATE of the error
    pub sqlstate: String,
    /// the message of the error
    pub message: String,
    /// the DETAIL of the error
    pub detail: Option<String>,
}

/// Runs the attempts of [`isolate`] and receives its rejects.
pub trait Attempts {
    /// An error that ends the load.
    type Fatal;

    /// Tries to load a range of records: either all of them or none.
    ///
    /// # Errors
    ///
    /// The load cannot continue.
    fn load(&mut self, records: Range<usize>) -> Result<Result<(), AttemptRefused>, Self::Fatal>;

    /// Receives a record that was rejected alone.
    ///
    /// # Errors
    ///
    /// The limit is exceeded or the reject cannot be kept.
    fn reject(&mut self, record: usize, why: AttemptRefused) -> Result<(), Self::Fatal>;
}

/// Loads all records that the server accepts and rejects the others, in order.
///
/// # Errors
///
/// The load cannot continue after an attempt.
pub fn isolate<A: Attempts>(records: Range<usize>, attempts: &mut A) -> Result<(), A::Fatal> {
    // The ranges that are left, the first one at the end.
    let mut stride = records.len().max(1);
    let mut todo = vec![records];
    while let Some(mut range) = todo.pop() {
        if range.is_empty() {
            continue;
        }
        if range.len() > stride {
            todo.push(range.start + stride..range.end);
            range.end = range.start + stride;
        }
        let Err(why) = attempts.load(range.clone())? else {
            if range.len() == stride {
                stride = stride.saturating_mul(2);
            }
            continue;
        };
        if range.len() == 1 {
            attempts.reject(range.start, why)?;
            continue;
        }
        match why.record.filter(|named| range.contains(named)) {
            Some(named) => {
                stride = (2 * (named - range.start)).max(1);
                todo.push(named + 1..range.end);
                todo.push(named..named + 1);
                todo.push(range.start..named);
            }
            None => {
                let middle = range.start + range.len() / 2;
                todo.push(middle..range.end);
                todo.push(range.start..middle);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records with or without a fault: `l` is rejected with its line, `n` without.
    struct Chunk {
        faults: Vec<u8>,
        loaded: Vec<usize>,
        rejected: Vec<usize>,
        sent: usize,
    }

    impl Attempts for Chunk {
        type Fatal = std::convert::Infallible;

        fn load(
            &mut self,
            records: Range<usize>,
        ) -> Result<Result<(), AttemptRefused>, Self::Fatal> {
            let bad = records.clone().find(|i| self.faults[*i] != b'.');
            // The server stops at the record that it rejects, but all of them are sent.
            self.sent += records.len();
            let Some(bad) = bad else {
                self.loaded.extend(records);
                return Ok(Ok(()));
            };
            Ok(Err(AttemptRefused {
                record: (self.faults[bad] == b'l').then_some(bad),
                column: None,
                sqlstate: "22P02".into(),
                message: String::new(),
                detail: None,
            }))
        }

        fn reject(&mut self, record: usize, _: AttemptRefused) -> Result<(), Self::Fatal> {
            self.rejected.push(record);
            Ok(())
        }
    }

    fn run(faults: &[u8]) -> Chunk {
        let mut chunk =
            Chunk { faults: faults.to_vec(), loaded: vec![], rejected: vec![], sent: 0 };
        let Ok(()) = isolate(0..faults.len(), &mut chunk);
        chunk
    }

    #[test]
    fn every_record_is_loaded_or_rejected_once_and_in_order() {
        let mut seed = 1u64;
        for length in 0..200 {
            let faults: Vec<u8> = (0..length)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    b"....ln....."[(seed >> 33) as usize % 11]
                })
                .collect();
            let chunk = run(&faults);
            let is_bad = |i: &usize| faults[*i] != b'.';
            assert_eq!(chunk.rejected, (0..length).filter(is_bad).collect::<Vec<_>>());
            assert_eq!(chunk.loaded, (0..length).filter(|i| !is_bad(i)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn named_records_cost_about_three_times_the_data() {
        for (every, rejected) in [(1, 10_000), (2, 5_000), (10, 1_000), (1_000, 10)] {
            let mut faults = vec![b'.'; 10_000];
            faults.iter_mut().step_by(every).for_each(|f| *f = b'l');
            let chunk = run(&faults);
            assert_eq!((chunk.loaded.len(), chunk.rejected.len()), (10_000 - rejected, rejected));
            // The first attempt sends all records.
            assert!(chunk.sent <= 41_000, "1 of {every}: {} records were sent", chunk.sent);
        }
    }
}
