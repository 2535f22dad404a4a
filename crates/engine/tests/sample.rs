//! Sample data load into a real server, and are the same in both formats.

mod support;

use pgsluice_engine::sample::{Format, Kind, Sample};
use pgsluice_engine::server::{Options, Server};
use std::io::Write;
use std::process::{Command, Stdio};

/// Rows of each kind: more than a block of the wide table, less than one of the others.
const ROWS: u64 = 3_000;

/// Runs a statement with data on standard input, and gives its output.
fn run(url: &str, sql: &str, data: &[u8]) -> String {
    let mut child = Command::new(support::psql())
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(data).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{sql}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn every_kind_loads_in_both_formats_to_the_same_rows() {
    let settings = vec![("fsync".into(), "off".into())];
    let server = Server::start(Options { settings, ..Options::default() }).unwrap();
    let url = server.url("postgres");
    let names = [
        (Kind::Votes, "votes", "username, link, score"),
        (Kind::Events, "events", "*"),
        (Kind::Lineitem, "lineitem", "*"),
        (Kind::Wide, "wide", "*"),
    ];
    for (kind, name, columns) in names {
        let list = if columns == "*" { String::new() } else { format!("({columns})") };
        run(&url, &kind.ddl(), b"");
        for (format, option) in [(Format::Csv, "csv"), (Format::Text, "text")] {
            let mut data = Vec::new();
            Sample { kind, rows: ROWS, seed: 1, format }.write(2, &mut data).unwrap();
            run(&url, &format!("COPY {name}{list} FROM STDIN (FORMAT {option})"), &data);
            run(
                &url,
                &format!("CREATE TABLE {name}_{option} AS SELECT {columns} FROM {name}"),
                b"",
            );
            run(&url, &format!("TRUNCATE {name}"), b"");
        }
        let (csv, text) = (format!("TABLE {name}_csv"), format!("TABLE {name}_text"));
        let sql = format!(
            "SELECT (SELECT count(*) FROM {name}_csv), \
             (SELECT count(*) FROM ({csv} EXCEPT ALL {text}) d), \
             (SELECT count(*) FROM ({text} EXCEPT ALL {csv}) d)"
        );
        assert_eq!(run(&url, &sql, b""), format!("{ROWS}|0|0"), "{name}");
    }
    let sql = "SELECT count(*) > 50 FROM events_csv WHERE payload ? 'commits'";
    assert_eq!(run(&url, sql, b""), "t", "payloads are JSON that can be asked");
}
