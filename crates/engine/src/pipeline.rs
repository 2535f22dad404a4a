//! The threads between the files and the server:
//!
//! ```text
//! reader ─▶ encoders (N) ─▶ collector (in order) ─▶ lanes (N connections)
//! ```
//!
//! Every queue is bounded, and the reader takes a permit for each chunk in progress. So the memory
//! does not depend on the size of the input.

use crate::buffer_pool::BufferPool;
use crate::encode::{Encoder, Prepared};
use crate::error::{Error, Kind};
use crate::input::{Chunk, Counts, Part, Reader};
use crate::plan::Plan;
use crate::report::Progress;
use crate::session::lane::{Lane, Placed};
use crate::watch::Stop;
use crossbeam_channel::{bounded, Receiver, RecvTimeoutError, Select, Sender};
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The maximum number of chunks that wait for each lane.
const LANE_QUEUE: usize = 2;

/// The same for all lanes together if they gather rows: while they send rows, the next chunks are
/// prepared.
const GATHERED_QUEUE: usize = 32;

/// What has passed through the pipeline.
#[derive(Clone, Debug, Default)]
pub struct Through {
    /// for each file, the records that were skipped and those that were sent
    pub by_file: Vec<(u64, u64)>,
    /// records that were sent
    pub records: u64,
    /// records skipped by `--skip`
    pub passed: u64,
    /// records skipped because an earlier load has loaded them
    pub known: u64,
    /// the lines of all of these records and of the headers
    pub lines: u64,
    /// fields with stray quotes
    pub stray_quotes: u64,
}

/// Runs everything until the input ends or something fails. Returns the lanes. Lanes that failed
/// are closed, and their transactions are rolled back.
///
/// # Errors
///
/// The first error in the order of the input, as far as that order is known.
pub fn run(
    reader: Reader,
    plan: &Arc<Plan>,
    lanes: Vec<Lane>,
    progress: &Arc<Progress>,
    user_stop: &Stop,
) -> Result<(Through, Vec<Lane>), Error> {
    progress.encoders.set(plan.encoders as u64);
    progress.lanes.set(lanes.len() as u64);
    let stop = Stop::default();
    let gathered = (GATHERED_QUEUE / lanes.len()).max(LANE_QUEUE);
    let queue = if plan.router.is_some() { gathered } else { LANE_QUEUE };
    let depth = plan.encoders + lanes.len() * queue + 2;
    let (permit, permits) = bounded(depth);
    let pool = BufferPool::default();
    for _ in 0..depth {
        let _ = permit.send(());
    }
    let (chunk_in, chunks) = bounded(depth);
    let (done_in, done) = bounded(depth);
    // If the load fails, this thread is not joined: it may be waiting for standard input.
    let reading = {
        let (pool, progress, stop) = (pool.clone(), progress.clone(), stop.clone());
        thread::spawn(move || read(reader, &permits, &chunk_in, &pool, &progress, &stop))
    };
    for _ in 0..plan.encoders {
        let mut encoder = Encoder::new(plan.clone(), pool.clone());
        let (chunks, done_in, progress) = (chunks.clone(), done_in.clone(), progress.clone());
        let prepare = move |chunk| encoder.prepare(chunk);
        thread::spawn(move || encode(prepare, &chunks, &done_in, &progress));
    }
    drop((chunks, done_in));
    let ended = Arc::<AtomicBool>::default();
    let start = |lane| spawn_lane(lane, queue, pool.clone(), stop.clone(), ended.clone());
    let (lane_in, running): (Vec<_>, Vec<_>) = lanes.into_iter().map(start).unzip();
    let mut collector = Collector {
        lane_in,
        at: 0,
        before: Counts::default(),
        file: 0,
        through: Through::default(),
    };
    let collected = collector.collect(&done, &permit, &[&stop, user_stop]);
    drop(permit);
    // If reading the input has failed, or a part of it is lost, the lanes must not finish as if it
    // had ended.
    let (collected, read) = match collected {
        Ok(true) => (true, reading.join().unwrap_or_else(|_| Err(panicked()))),
        Ok(false) => (false, Ok(())),
        Err(error) => (false, Err(error)),
    };
    ended.store(collected && read.is_ok(), Ordering::SeqCst);
    let through = std::mem::take(&mut collector.through);
    drop(collector);
    finish(running, collected, read, through, user_stop, &stop)
}

type Running = JoinHandle<Result<Lane, Error>>;

/// Waits for the lanes and chooses the error to report.
fn finish(
    running: Vec<Running>,
    collected: bool,
    read: Result<(), Error>,
    through: Through,
    user_stop: &Stop,
    stop: &Stop,
) -> Result<(Through, Vec<Lane>), Error> {
    // An error that the reader has found in a record comes after errors of the server for earlier
    // records.
    let of_a_record = read.as_ref().is_err_and(|e| e.place().is_some());
    if user_stop.is_set() || (read.is_err() && !of_a_record) {
        stop.set();
    }
    let mut lanes = Vec::new();
    let mut failed = Vec::new();
    for lane in running {
        match lane.join().unwrap_or_else(|_| Err(panicked())) {
            Ok(mut lane) => {
                if of_a_record && !lane.in_piece() {
                    failed.extend(lane.finish().err());
                }
                lanes.push(lane);
            }
            Err(error) => failed.push(error),
        }
    }
    // Of the errors of several lanes, choose the first one in the input. A lane that only stopped
    // because another one has failed comes last.
    let offset = |e: &Error| e.place().and_then(|p| p.offset).unwrap_or(u64::MAX);
    failed.sort_by_key(|e| (e.kind() == Kind::Cancelled, offset(e)));
    let first = failed.into_iter().next();
    let error = match (read, first) {
        (_, first) if user_stop.is_set() => Some(first.unwrap_or_else(Error::cancelled)),
        (Err(_), Some(first)) if of_a_record => Some(first),
        (Err(error), _) => Some(error),
        (_, None) if !collected => Some(Error::new("the load stopped before the end of the input")),
        (_, first) => first,
    };
    if let Some(error) = error {
        lanes.iter_mut().for_each(Lane::show_rejects);
        return Err(lanes.iter_mut().fold(error, |error, lane| lane.stayed(error)));
    }
    lanes.iter_mut().try_for_each(Lane::finish)?;
    Ok((through, lanes))
}

fn panicked() -> Error {
    Error::defect("a thread of the loader failed")
}

/// The work of the reader's thread: reads one chunk for each permit.
fn read(
    mut reader: Reader,
    permits: &Receiver<()>,
    out: &Sender<Chunk>,
    pool: &BufferPool,
    progress: &Progress,
    stop: &Stop,
) -> Result<(), Error> {
    for () in permits {
        if stop.is_set() {
            break;
        }
        let chunk = progress.read(|| reader.next(pool.take_used()))?;
        progress.bytes.set(reader.raw_bytes());
        let Some(chunk) = chunk else { break };
        // The encoders end before the reader only if the load stops, or if they have failed.
        out.send(chunk).map_err(|_| panicked())?;
    }
    Ok(())
}

/// The work of an encoder's thread. If `prepare` panics, `None` reports that its chunk is lost: the
/// other threads could take the gap for the end of the input, or wait for the chunk forever.
fn encode(
    mut prepare: impl FnMut(Chunk) -> Prepared,
    chunks: &Receiver<Chunk>,
    done: &Sender<Option<Prepared>>,
    progress: &Progress,
) {
    for chunk in chunks {
        let started = Instant::now();
        let prepared = catch_unwind(AssertUnwindSafe(|| prepare(chunk))).ok();
        progress.encoding.add(started.elapsed());
        let lost = prepared.is_none();
        if done.send(prepared).is_err() || lost {
            break;
        }
    }
}

/// Starts the thread of a lane. It ends with its COPY still open, because the load may have stopped
/// before the end of the input. If all of it was read (`ended`) and lanes commit several times, it
/// commits what it has sent.
fn spawn_lane(
    mut lane: Lane,
    queue: usize,
    pool: BufferPool,
    stop: Stop,
    ended: Arc<AtomicBool>,
) -> (Sender<Placed>, Running) {
    let (sender, receiver) = bounded::<Placed>(queue);
    let run = thread::spawn(move || {
        let mut work = || {
            for placed in &receiver {
                if stop.is_set() {
                    break;
                }
                lane.feed(placed, &pool)?;
            }
            match ended.load(Ordering::SeqCst) && !stop.is_set() {
                true => lane.commit_rest(),
                false => Ok(()),
            }
        };
        let fed: Result<(), Error> = work();
        if fed.is_err() {
            stop.set();
            lane.show_rejects();
        }
        fed?;
        Ok(lane)
    });
    (sender, run)
}

/// Puts chunks in order, adds their places in the files, and passes them to the lanes.
struct Collector {
    lane_in: Vec<Sender<Placed>>,
    /// the lane for the next chunk
    at: usize,
    before: Counts,
    file: usize,
    through: Through,
}

impl Collector {
    /// Returns whether the end of the input was reached.
    ///
    /// # Errors
    ///
    /// An encoder has failed, and its chunk is lost.
    fn collect(
        &mut self,
        done: &Receiver<Option<Prepared>>,
        permit: &Sender<()>,
        stops: &[&Stop],
    ) -> Result<bool, Error> {
        let mut waiting = BTreeMap::new();
        let mut next = 0;
        loop {
            if stops.iter().any(|s| s.is_set()) {
                return Ok(false);
            }
            match done.recv_timeout(Duration::from_millis(100)) {
                Ok(Some(prepared)) => {
                    waiting.insert(prepared.chunk.sequence, prepared);
                }
                Ok(None) => return Err(panicked()),
                Err(RecvTimeoutError::Timeout) => continue,
                // A chunk that waits for an earlier one shows that the earlier one is lost.
                Err(RecvTimeoutError::Disconnected) => return Ok(waiting.is_empty()),
            }
            while let Some(prepared) = waiting.remove(&next) {
                next += 1;
                if !self.hand_over(prepared) {
                    return Ok(false);
                }
                let _ = permit.try_send(());
            }
        }
    }

    fn hand_over(&mut self, prepared: Prepared) -> bool {
        let chunk = &prepared.chunk;
        if chunk.file != self.file {
            self.file = chunk.file;
            self.before = Counts::default();
        }
        self.before += chunk.passed;
        self.before += chunk.known;
        self.through.passed += chunk.passed.records;
        self.through.known += chunk.known.records;
        self.through.lines += chunk.passed.lines + prepared.counts.lines;
        let before = self.before;
        self.before += prepared.counts;
        self.through.records += prepared.counts.records;
        self.through.stray_quotes += prepared.stray_quotes;
        self.through.by_file.resize(chunk.file + 1, (0, 0));
        self.through.by_file[chunk.file].0 += chunk.passed.records + chunk.known.records;
        self.through.by_file[chunk.file].1 += prepared.counts.records;
        let stays = chunk.part != Part::Whole;
        let ends = chunk.part == Part::LastPiece;
        let mut placed = Placed { prepared, before };
        // All pieces of a record go to one lane. Other chunks go to the first lane that has space.
        if !stays {
            for _ in 0..self.lane_in.len() {
                match self.lane_in[self.at].try_send(placed) {
                    Ok(()) => {
                        self.at = (self.at + 1) % self.lane_in.len();
                        return true;
                    }
                    Err(back) => placed = back.into_inner(),
                }
                self.at = (self.at + 1) % self.lane_in.len();
            }
            let mut room = Select::new();
            self.lane_in.iter().for_each(|lane| {
                room.send(lane);
            });
            let found = room.select();
            let lane = found.index();
            self.at = (lane + 1) % self.lane_in.len();
            return found.send(&self.lane_in[lane], placed).is_ok();
        }
        let sent = self.lane_in[self.at].send(placed).is_ok();
        if ends {
            self.at = (self.at + 1) % self.lane_in.len();
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::Body;
    use pgsluice_core::scan::Eol;

    fn chunk(sequence: u64) -> Chunk {
        let none = Counts::default();
        Chunk {
            sequence,
            file: 0,
            offset: 2 * sequence,
            start: 2 * sequence,
            eol: Eol::Nl,
            part: Part::Whole,
            stray: false,
            damaged: None,
            last: sequence == 2,
            line: sequence,
            passed: none,
            known: none,
            bytes: b"1\n".to_vec(),
        }
    }

    fn prepared(chunk: Chunk) -> Prepared {
        Prepared {
            chunk: Arc::new(chunk),
            recast: None,
            body: Body::AsIs,
            counts: Counts { records: 1, lines: 1 },
            sent_lines: 1,
            stray_quotes: 0,
            hash: None,
            fault: None,
        }
    }

    /// Returns what the collector makes of these chunks, and how many of them a lane gets.
    fn collected(done: &Receiver<Option<Prepared>>) -> (Result<bool, Error>, usize) {
        let ((lane_in, lane), (permit, _permits)) = (bounded(3), bounded(3));
        let through = Through::default();
        let before = Counts::default();
        let mut collector = Collector { lane_in: vec![lane_in], at: 0, before, file: 0, through };
        (collector.collect(done, &permit, &[]), lane.len())
    }

    /// If an encoder fails at any chunk, also the last one, that is an error and not the end of the
    /// input.
    #[test]
    fn a_chunk_that_is_lost_is_an_error() {
        for lost in 0..4 {
            let ((chunk_in, chunks), (done_in, done)) = (bounded(3), bounded(3));
            (0..3).for_each(|sequence| chunk_in.send(chunk(sequence)).unwrap());
            drop(chunk_in);
            let prepare = move |chunk: Chunk| {
                assert_ne!(chunk.sequence, lost, "a test of a thread that panics");
                prepared(chunk)
            };
            let encoder =
                thread::spawn(move || encode(prepare, &chunks, &done_in, &Progress::default()));
            let (ended, count) = collected(&done);
            encoder.join().unwrap();
            assert_eq!(ended.map_err(|e| e.kind()).err(), (lost < 3).then_some(Kind::Internal));
            assert_eq!(count, lost as usize);
        }
        // Whatever ends the encoders: a gap is not the end of the input.
        let (done_in, done) = bounded(1);
        done_in.send(Some(prepared(chunk(1)))).unwrap();
        drop(done_in);
        assert!(!collected(&done).0.unwrap());
    }
}
