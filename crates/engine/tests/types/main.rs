//! The core reads values of every type as live servers do.
//!
//! For hostile values of every type: if the core encodes a value, the stored value must equal the
//! one that the server's input function makes of the text. If the core says that the server refuses
//! a value, the server must refuse it with that SQLSTATE. The core must not leave plain forms to
//! the server.

#[rustfmt::skip] // many values on a line
mod cases;
mod disk;
mod hostile;
mod oracle;
#[path = "../../../pgserver/tests/support/mod.rs"]
mod support;

use cases::{Case, CASES};
use oracle::{Column, Oracle, Settings, Trial, Verdict};
use pgsluice_core::error::Refusal;
use pgsluice_core::shape::Type;
use pgsluice_core::sink::{PgCopySink, RowSink};
use pgsluice_core::types;
use std::sync::Mutex;

/// The number of mutations of each type's seeds; `PGSLUICE_VALUES` sets another one.
fn mutations() -> usize {
    std::env::var("PGSLUICE_VALUES").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

/// The core's verdicts on `values`, and the accepted rows `(id, value)` in PGCOPY form.
fn judge(ty: &Type, settings: &Settings, values: &[String]) -> (Vec<Verdict>, Vec<u8>) {
    let mut sink = PgCopySink::new(2);
    let verdicts = values.iter().enumerate().map(|(id, value)| {
        sink.begin();
        sink.put_i32(id as i32);
        match types::put(ty, value.as_bytes(), &settings.env, &mut sink) {
            Ok(()) => {
                sink.end();
                Verdict::Takes
            }
            Err(refusal) => {
                sink.undo();
                match refusal {
                    Refusal::Ask => Verdict::Asks,
                    Refusal::Syntax => Verdict::Refuses(&["22P02"]),
                    Refusal::Range => Verdict::Refuses(&["22003", "22008"]),
                    Refusal::TooLong => Verdict::Refuses(&["22001"]),
                    Refusal::Null => unreachable!("no NULL was given"),
                    Refusal::OutOfMemory => panic!("{refusal:?}"),
                }
            }
        }
    });
    let verdicts = verdicts.collect();
    (verdicts, sink.bytes().to_vec())
}

/// The values to try for a case: plain ones, then seeds, then mutations of both.
fn values(case: &Case) -> Vec<String> {
    let seeds: Vec<&str> = case.plain.iter().chain(case.seeds).copied().collect();
    let mut values: Vec<String> = seeds.iter().map(|s| (*s).to_owned()).collect();
    let mut random = hostile::Random::new(case.sql);
    values.extend((0..mutations()).map(|_| hostile::mutate(&seeds, &mut random)));
    values
}

/// Plain values that the core does not accept.
fn plain_but_not_taken(case: &Case, settings: &Settings, trial: &Trial) -> Vec<String> {
    let needs_utc = case.sql.contains("tz") && !settings.env.utc;
    let plain = trial.values.iter().zip(&trial.verdicts).take(case.plain.len());
    plain
        .filter(|(_, verdict)| **verdict != Verdict::Takes && !needs_utc)
        .map(|(value, verdict)| format!("{}: plain {value:?} gives {verdict:?}", case.sql))
        .collect()
}

fn differ(oracle: &Oracle, settings: &Settings, columns: &[Column]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut trials = Vec::new();
    for (case, column) in CASES.iter().zip(columns) {
        let values = values(case);
        let (verdicts, rows) = judge(&column.ty, settings, &values);
        let trial = Trial { sql: case.sql, send: column.send.clone(), values, verdicts, rows };
        complaints.extend(plain_but_not_taken(case, settings, &trial));
        trials.push(trial);
    }
    complaints.extend(oracle.compare(settings, &trials));
    complaints
}

/// The core and each server agree on plain and hostile values of every type, in two sets of session
/// settings.
#[test]
fn every_type_is_read_as_each_server_reads_it() {
    let complaints = Mutex::new(Vec::new());
    oracle::on_each_major(|oracle| {
        let columns = oracle.columns(&CASES.iter().map(|c| c.sql).collect::<Vec<_>>());
        for settings in [Settings::plain(), Settings::contrary()] {
            let found = differ(oracle, &settings, &columns);
            let found = found.into_iter().map(|c| format!("{}: {c}", oracle.name()));
            complaints.lock().unwrap().extend(found);
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// The comparison itself reports wrong verdicts and wrong encoded values.
#[test]
fn the_oracle_notices_what_is_wrong() {
    let oracle = Oracle::any();
    let values = ["1", "x", "2147483648", "7"].map(String::from);
    let wrong = [
        Verdict::Refuses(&["22P02"]),
        Verdict::Refuses(&["22003"]),
        Verdict::Refuses(&["22P02"]),
        Verdict::Takes,
    ];
    let mut sink = PgCopySink::new(2);
    sink.begin();
    sink.put_i32(3);
    sink.put_i32(8);
    sink.end();
    let trial = Trial {
        sql: "int4",
        send: "int4send".into(),
        values: values.to_vec(),
        verdicts: wrong.to_vec(),
        rows: sink.bytes().to_vec(),
    };
    let found = oracle.compare(&Settings::plain(), &[trial]);
    let expected = [
        "int4: the core says 22P02, the server ok: 1",
        "int4: the core says 22003, the server 22P02: x",
        "int4: the core says 22P02, the server 22003: 2147483648",
        "int4: stored otherwise: \"7\"",
        "int4: stored otherwise: \"7\"",
    ];
    assert_eq!(found, expected);
}
