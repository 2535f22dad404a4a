//! Deterministic sample data: the tables of the field's published benchmarks, of any length.
//!
//! Kind, seed, format and number of rows determine a file. A longer file begins with the shorter
//! one. Data are made in blocks of a fixed number of rows. Each block has its own stream of random
//! numbers, so that threads can make blocks in any order.

mod events;
mod lineitem;
mod rng;
mod row;
mod votes;
mod wide;

use clap::ValueEnum;
use rng::Rng;
use row::RowWriter;
use std::io::{self, Write};
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread;

/// Blocks that each thread may be ahead of the writer. Together with the blocks being made, this
/// limits the memory to about 8 MB for each thread.
const BLOCKS_AHEAD: usize = 2;

/// The tables there are data for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SampleTable {
    /// username, link, score: narrow text rows, 21 bytes each
    Votes,
    /// typed events with a JSON payload, 250 bytes each
    Events,
    /// TPC-H order lines in seven columns, 62 bytes each
    Lineitem,
    /// 105 columns of mixed types, 740 bytes each
    Wide,
}

/// How rows are written; both load with COPY's defaults for the format, without a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SampleFormat {
    Csv,
    Text,
}

/// Which data to make.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The table.
    pub kind: SampleTable,
    /// How many rows.
    pub rows: u64,
    /// Another seed gives other data of the same shape.
    pub seed: u64,
    /// How rows are written.
    pub format: SampleFormat,
}

impl SampleTable {
    /// The statement that makes the table, ending in a semicolon and a newline.
    pub fn ddl(self) -> String {
        match self {
            SampleTable::Votes => votes::DDL.to_owned(),
            SampleTable::Events => events::DDL.to_owned(),
            SampleTable::Lineitem => lineitem::DDL.to_owned(),
            SampleTable::Wide => wide::ddl(),
        }
    }

    fn block_rows(self) -> u64 {
        match self {
            SampleTable::Votes => votes::BLOCK_ROWS,
            SampleTable::Events => events::BLOCK_ROWS,
            SampleTable::Lineitem => lineitem::BLOCK_ROWS,
            SampleTable::Wide => wide::BLOCK_ROWS,
        }
    }
}

impl Sample {
    /// Writes the data in order with this many threads, and returns the number of bytes.
    ///
    /// The bytes do not depend on the number of threads.
    pub fn write(&self, threads: usize, out: &mut dyn Write) -> io::Result<u64> {
        let blocks = self.rows.div_ceil(self.kind.block_rows());
        let threads = (threads.max(1) as u64).min(blocks) as usize;
        thread::scope(|scope| {
            let queues: Vec<Receiver<Vec<u8>>> = (0..threads)
                .map(|first| {
                    let (send, receive) = sync_channel(BLOCKS_AHEAD);
                    scope.spawn(move || {
                        for block in (first as u64..blocks).step_by(threads) {
                            // The writer has ended because a write failed.
                            if send.send(self.block(block)).is_err() {
                                return;
                            }
                        }
                    });
                    receive
                })
                .collect();
            let mut bytes = 0;
            for block in 0..blocks {
                let data = queues[(block % threads as u64) as usize]
                    .recv()
                    .map_err(|_| io::Error::other("a thread that makes sample data ended early"))?;
                out.write_all(&data)?;
                bytes += data.len() as u64;
            }
            out.flush()?;
            Ok(bytes)
        })
    }

    /// The bytes of one block.
    fn block(&self, block: u64) -> Vec<u8> {
        let before = block * self.kind.block_rows();
        let rows = (self.rows - before).min(self.kind.block_rows());
        let mut out = Vec::with_capacity(5 << 19);
        let row = &mut RowWriter::new(&mut out, self.format);
        let rng = &mut Rng::of_block(self.seed, self.kind as u64, block);
        match self.kind {
            SampleTable::Votes => votes::block(rng, block, rows, row),
            SampleTable::Events => events::block(rng, block, rows, row),
            SampleTable::Lineitem => lineitem::block(rng, block, rows, row),
            SampleTable::Wide => wide::block(rng, block, rows, row),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [SampleTable; 4] =
        [SampleTable::Votes, SampleTable::Events, SampleTable::Lineitem, SampleTable::Wide];

    pub(super) fn sample(kind: SampleTable, rows: u64) -> Vec<u8> {
        make(Sample { kind, rows, seed: 1, format: SampleFormat::Csv }, 1)
    }

    fn make(sample: Sample, threads: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let bytes = sample.write(threads, &mut out).unwrap();
        assert_eq!(bytes, out.len() as u64);
        out
    }

    /// FNV-1a with 64 bits, which is enough to detect a change.
    fn hash(data: &[u8]) -> u64 {
        data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    #[test]
    fn the_data_never_change() {
        let found = KINDS.map(|kind| hash(&sample(kind, 70_000)));
        let pinned =
            [0xaece65486f2fae38, 0x262782bd0761076e, 0x7fb38be77917f6f0, 0x516b2104d3b657cb];
        assert_eq!(found, pinned, "{found:#018x?}: kept benchmark runs would no longer compare");
    }

    #[test]
    fn a_longer_file_begins_with_the_shorter() {
        for kind in KINDS {
            let long = sample(kind, 2 * kind.block_rows() + 77);
            for rows in [0, 1, 2, 500, kind.block_rows(), kind.block_rows() + 1] {
                let short = sample(kind, rows);
                assert!(long.starts_with(&short), "{kind:?} {rows}");
                let lines = short.iter().filter(|b| **b == b'\n').count();
                assert_eq!(lines as u64, rows, "{kind:?}");
            }
        }
    }

    #[test]
    fn threads_do_not_show() {
        for kind in KINDS {
            let sample = Sample { kind, rows: 66_000, seed: 7, format: SampleFormat::Text };
            assert!(make(sample, 1) == make(sample, 3), "{kind:?}");
        }
    }

    #[test]
    fn another_seed_gives_other_data() {
        for kind in KINDS {
            let with = |seed| make(Sample { kind, rows: 100, seed, format: SampleFormat::Csv }, 1);
            assert!(with(1) != with(2), "{kind:?}");
        }
    }

    #[test]
    fn a_full_disk_is_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let sample =
            Sample { kind: SampleTable::Votes, rows: 1 << 20, seed: 1, format: SampleFormat::Csv };
        assert_eq!(sample.write(2, &mut Full).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
