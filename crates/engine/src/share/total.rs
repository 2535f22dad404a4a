//! The sum of what a machine has loaded in all its parts.

use crate::report::{Committed, Summary};

/// Adds the summary of some parts. Texts that are the same for every part are kept once.
pub(super) fn add(total: &mut Summary, part: Summary) {
    let sums = [
        (&mut total.read, part.read),
        (&mut total.loaded, part.loaded),
        (&mut total.rejected, part.rejected),
        (&mut total.rejected_lines, part.rejected_lines),
        (&mut total.skipped, part.skipped),
        (&mut total.records_known, part.records_known),
        (&mut total.stray_quotes, part.stray_quotes),
        (&mut total.bytes, part.bytes),
        (&mut total.statements, part.statements),
        (&mut total.transactions, part.transactions),
        (&mut total.chunks_encoded, part.chunks_encoded),
        (&mut total.to_partitions, part.to_partitions),
        (&mut total.chunks_as_is, part.chunks_as_is),
    ];
    for (sum, one) in sums {
        *sum += one;
    }
    let (to, of) = (&mut total.seconds, &part.seconds);
    to.open += of.open;
    to.inspect += of.inspect;
    to.load += of.load;
    to.finish += of.finish;
    if let Some(bytes) = part.wal_bytes {
        *total.wal_bytes.get_or_insert(0) += bytes;
    }
    total.lanes = total.lanes.max(part.lanes);
    (total.method, total.reason, total.gives_up) = (part.method, part.reason, part.gives_up);
    total.bottleneck = part.bottleneck;
    total.settings = part.settings;
    total.indexes = part.indexes;
    unite(&mut total.locks, part.locks);
    unite(&mut total.steps, part.steps);
    unite(&mut total.notes, part.notes);
}

/// Adds what is committed of parts that have failed. A shared load rejects no records.
pub(super) fn add_committed(total: &mut Summary, committed: &Committed) {
    let (read, rows) = (committed.read.get(), committed.rows.get());
    total.read += read;
    total.loaded += rows;
    total.skipped += read.saturating_sub(rows);
    total.transactions += committed.transactions.get();
}

fn unite<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}
