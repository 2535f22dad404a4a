//! Notes for the user before the load begins, each with its reason. They are a pure function of
//! facts. The loader changes none of these things.

use crate::facts::InputFacts;
use crate::facts::{AdviceFacts, ColumnWidth};
use crate::facts::{ServerFacts, TableFacts};

/// For input of this size or less, in bytes, the load is over before the server's settings matter.
const SMALL: u64 = 64 << 20;

/// The lowest rate that a load is expected to have, in bytes per second, to estimate its duration.
const SLOW_RATE: u64 = 20 << 20;

/// Rows and their WAL may need about this many times the file's bytes. (Measured for three short
/// columns: 2.8 and 2.4 times; less for longer ones.)
const ROOM: u64 = 4;

/// An index and its WAL may need about this many times the file's bytes. (Measured for three short
/// columns with an index each: 3.6 times all three together.)
const INDEX_ROOM: u64 = 2;

/// If a row would save fewer bytes than this, it is not worth creating the table again.
const WORTH_SAVING: f64 = 4.0;

/// All notes. `fired_by` is the statement that fires triggers, if the load keeps triggers.
pub(crate) fn advice(
    input: &InputFacts,
    server: &ServerFacts,
    table: &TableFacts,
    facts: &AdviceFacts,
    fired_by: Option<&str>,
) -> Vec<String> {
    let mut notes = of_rows(table, fired_by);
    notes.extend(order(table, &facts.columns));
    notes.extend(room(input, table, facts));
    // The size of standard input is unknown.
    if input.bytes > SMALL || input.bytes == 0 {
        notes.extend(slots(server));
        notes.extend(of_server(input, server, table));
    }
    notes
}

/// Notes on triggers and defaults that make the server insert row by row.
fn of_rows(table: &TableFacts, fired_by: Option<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    let triggers = || table.triggers.iter().filter(move |t| fired_by.is_some() && !t.internal);
    for trigger in triggers() {
        let each = if trigger.row { "row" } else { fired_by.unwrap_or_default() };
        notes.push(format!("trigger {} fires for each {each}", trigger.name));
    }
    if triggers().any(|t| t.row && t.before) {
        notes.push("a BEFORE trigger makes the server insert row by row".into());
    }
    for column in table.columns.iter().filter(|c| c.volatile_default) {
        notes.push(format!(
            "the default of column {} is volatile, which makes the server insert row by row where the file lacks it",
            column.name
        ));
    }
    notes
}

fn slots(server: &ServerFacts) -> Option<String> {
    (!server.slots.is_empty()).then(|| {
        format!(
            "replication slots hold back the WAL of the load until it is consumed: {}",
            server.slots.join(", ")
        )
    })
}

/// Notes on settings that would help, which only the server's administrator can change.
fn of_server(input: &InputFacts, server: &ServerFacts, table: &TableFacts) -> Vec<String> {
    let mut notes = Vec::new();
    let megabytes = |bytes: u64| bytes >> 20;
    let logged = server.wal_level != "minimal";
    if logged && server.max_wal_size > 0 && input.bytes > server.max_wal_size / 2 {
        notes.push(format!(
            "max_wal_size is {} MB: the load will force checkpoints, and after each of them every \
             page that is changed again is logged whole; {} MB would not",
            megabytes(server.max_wal_size),
            megabytes(input.bytes * 3)
        ));
    }
    let seconds = input.bytes / SLOW_RATE;
    if server.checkpoint_timeout > 0 && seconds > server.checkpoint_timeout {
        notes.push(format!(
            "checkpoint_timeout is {} s, and at 20 MB/s the load takes {seconds} s: each checkpoint \
             within it writes out what the load has changed, and pages changed again are logged whole",
            server.checkpoint_timeout
        ));
    }
    let kept = !table.indexes.is_empty() && !table.empty;
    if kept && !server.wal_compression {
        notes.push(
            "wal_compression is off: index pages are logged whole at their first change after a \
             checkpoint, and lz4 or pglz would make them smaller"
                .into(),
        );
    }
    if kept && table.bytes > server.shared_buffers {
        notes.push(format!(
            "shared_buffers is {} MB, and the table with its indexes has {} MB: index pages for new keys are read again and again",
            megabytes(server.shared_buffers),
            megabytes(table.bytes)
        ));
    }
    notes
}

fn room(input: &InputFacts, table: &TableFacts, facts: &AdviceFacts) -> Option<String> {
    let (folder, free) = facts.room.as_ref()?;
    let times = ROOM + INDEX_ROOM * table.indexes.len() as u64;
    let needed = input.bytes.saturating_mul(times);
    (*free < needed && input.bytes > 0).then(|| {
        format!(
            "the disk under {folder} has {} MB free: rows, indexes and WAL of {} MB of input may \
             need up to {} MB{}",
            free >> 20,
            input.bytes >> 20,
            needed >> 20,
            if input.compressed { ", and more since it is compressed" } else { "" }
        )
    })
}

/// A note if another order of the columns would need less space.
fn order(table: &TableFacts, columns: &[ColumnWidth]) -> Option<String> {
    // With `create`, the order has been chosen already.
    if table.created || table.kind != 'r' {
        return None;
    }
    let kept: Vec<&ColumnWidth> = columns.iter().collect();
    let mut best = kept.clone();
    best.sort_by_key(|c| (c.length.is_none(), std::cmp::Reverse(c.align)));
    let saved = padding(&kept) - padding(&best);
    let names: Vec<&str> = best.iter().map(|c| c.name.as_str()).collect();
    (saved >= WORTH_SAVING).then(|| {
        format!(
            "the order of columns wastes about {saved:.0} bytes in each row on alignment: a table \
             with the order {} would not",
            names.join(", ")
        )
    })
}

/// The bytes in a row that alignment is expected to waste. After a value of variable length
/// (assumed to be short, and so not aligned itself), every position is equally likely. A row ends
/// at a multiple of 8.
fn padding(columns: &[&ColumnWidth]) -> f64 {
    let mut at = [0.0; 8];
    at[0] = 1.0;
    let mut wasted = 0.0;
    let mut align = |at: &mut [f64; 8], to: usize| {
        let mut aligned = [0.0; 8];
        for (i, likely) in at.iter().enumerate() {
            let next = i.next_multiple_of(to);
            wasted += likely * (next - i) as f64;
            aligned[next % 8] += likely;
        }
        *at = aligned;
    };
    for column in columns {
        let Some(length) = column.length else {
            at = [0.125; 8];
            continue;
        };
        align(&mut at, column.align);
        at.rotate_right(length % 8);
    }
    align(&mut at, 8);
    wasted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid(name: &str, length: Option<usize>, align: usize) -> ColumnWidth {
        ColumnWidth { name: name.into(), length, align }
    }

    #[test]
    fn padding_is_what_heap_compute_data_size_adds() {
        let (flag, key) = (laid("flag", Some(1), 1), laid("key", Some(8), 8));
        let small = laid("small", Some(2), 2);
        assert_eq!(padding(&[&flag, &key, &small]), 7.0 + 6.0);
        assert_eq!(padding(&[&key, &small, &flag]), 5.0);
        let text = laid("text", None, 4);
        // 3.5 bytes on average before the key, none after it.
        assert_eq!(padding(&[&text, &key]), 3.5);
        assert_eq!(padding(&[&key, &text]), 3.5);
    }

    #[test]
    fn a_small_gain_is_not_told() {
        let table = TableFacts { kind: 'r', ..TableFacts::default() };
        let (flag, key) = (laid("flag", Some(1), 1), laid("key", Some(8), 8));
        assert_eq!(order(&table, &[flag.clone(), key.clone()]), None);
        let waste = [flag.clone(), key.clone(), laid("b", Some(1), 1), laid("k", Some(8), 8)];
        let said = order(&table, &waste).unwrap();
        assert!(said.contains("about 8 bytes") && said.contains("key, k, flag, b"), "{said}");
        let made = TableFacts { created: true, ..table };
        assert_eq!(order(&made, &waste), None);
    }
}
