//! `--share`: several machines, here processes, load the same files together.

mod facade;
mod faults;
mod kills;

use super::{counts, exact, lines, start, thrice, world};
use crate::common::{signal, wait_until, Signal, World};
use serde_json::Value;
use std::fs;
use std::process::Child;

/// Starts a machine that writes its summary to a file with this name.
fn machine(world: &World, name: &str, more: &[&str]) -> Child {
    let summary = world.path(name);
    let lease: &[&str] = if more.contains(&"--lease") { &[] } else { &LONG };
    start(world, &[&["--share", "--summary", &summary], lease, more].concat())
}

/// The lease of machines that stay. On a busy computer, a machine may not extend a lease of seconds
/// in time.
const LONG: [&str; 2] = ["--lease", "5min"];

/// The lease of machines that are killed or suspended: others soon take over their parts.
const SHORT: [&str; 2] = ["--lease", "2s"];

/// Whether the table of parts exists. Within a transaction, `to_regclass` may not see new tables.
const BEGUN: &str = "SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'parts')";

/// Waits for a machine, which must succeed; returns its summary.
fn ended(world: &World, name: &str, child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
    serde_json::from_slice(&fs::read(world.path(name)).unwrap()).unwrap()
}

/// Runs `count` machines at the same time; returns their summaries.
fn machines(world: &World, count: usize, more: &[&str]) -> Vec<Value> {
    let name = |i: usize| format!("machine-{i}.json");
    let all: Vec<Child> = (0..count).map(|i| machine(world, &name(i), more)).collect();
    all.into_iter().enumerate().map(|(i, child)| ended(world, &name(i), child)).collect()
}

/// As [`machines`], but no machine loads before each has a part.
fn machines_with_a_part_each(world: &mut World, count: usize, more: &[&str]) -> Vec<Value> {
    let name = |i: usize| format!("machine-{i}.json");
    world.sql("BEGIN; LOCK TABLE t IN SHARE MODE");
    let all: Vec<Child> = (0..count).map(|i| machine(world, &name(i), more)).collect();
    wait_until(|| "nothing begins".into(), || world.sql(BEGUN) == "t");
    let busy = "SELECT count(DISTINCT load) FROM pgsluice_loads.parts";
    wait_until(|| "a machine has no part".into(), || world.sql(busy) == count.to_string());
    world.sql("COMMIT");
    all.into_iter().enumerate().map(|(i, child)| ended(world, &name(i), child)).collect()
}

fn sum(summaries: &[Value], of: &str) -> u64 {
    summaries.iter().map(|summary| summary[of].as_u64().unwrap()).sum()
}

/// Checks that the table has the rows of stock COPY, that the ledger says so, and that no part is
/// left.
fn whole(world: &mut World, what: &str) {
    exact(world, what);
    assert_eq!(world.difference("(SELECT a, b FROM t)", "stock"), "", "{what}");
    let state = "SELECT string_agg(DISTINCT state, ',') FROM pgsluice_loads.sources";
    assert_eq!(world.sql(state), "complete", "{what}");
    // Leases may be left, by machines that were killed without a part.
    let left = "SELECT count(*) FROM pgsluice_loads.parts";
    assert_eq!(world.sql(left), "0", "{what}");
    // The pieces of each file number its records and lines without gaps.
    let gaps = "SELECT count(*) FROM (SELECT first_record, first_line, source, \
          lag(first_record + records) OVER w AS record, lag(first_line + lines) OVER w AS line \
        FROM pgsluice_loads.pieces WINDOW w AS (PARTITION BY source ORDER BY start_byte)) p \
        WHERE first_record <> coalesce(record, 1) OR first_line <> coalesce(line, first_line)";
    assert_eq!(world.sql(gaps), "0", "{what}");
}

/// A world with these files, and a table `stock` with their rows by stock COPY.
fn worlds_files(files: &[(&str, Vec<u8>)], header: bool) -> (World, Vec<String>) {
    let mut world = world();
    world.sql("CREATE TABLE stock (LIKE t)");
    let copy = format!("COPY stock FROM STDIN (FORMAT csv, HEADER {header})");
    let mut paths = Vec::new();
    for (name, bytes) in files {
        world.stock(&copy, bytes).unwrap();
        paths.push(world.file(name, bytes));
    }
    (world, paths)
}

/// A file with a header, and with line ends, quotes and delimiters within quotes.
fn quoted(count: usize) -> Vec<u8> {
    let mut bytes = b"a,b\n".to_vec();
    for i in 0..count {
        let more = "\n\"\"1,2\"\"\n".repeat(i % 7);
        bytes.extend_from_slice(format!("{i},\"line {i}{more}\"\n").as_bytes());
    }
    bytes
}

/// Several machines load 20 files together, one of them compressed. Each machine loads a part of
/// the rows, each row is loaded once, and the table is analyzed at the end.
#[test]
fn machines_share_many_files() {
    let files: Vec<(String, Vec<u8>)> =
        (0..20).map(|i| (format!("{i}.csv"), lines(i * 10_000, 10_000))).collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let (mut world, mut paths) = worlds_files(&files, false);
    let gzip = std::process::Command::new("gzip").arg(&paths[3]).status();
    assert!(gzip.unwrap().success());
    paths[3].push_str(".gz");
    let all: Vec<&str> = paths.iter().map(String::as_str).collect();
    for count in [2, 4] {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let done = machines_with_a_part_each(&mut world, count, &all);
        assert_eq!(sum(&done, "loaded"), 200_000, "{done:?}");
        assert_eq!(sum(&done, "read"), 200_000, "{done:?}");
        let busy = done.iter().filter(|summary| summary["loaded"] != 0).count();
        assert_eq!(busy, count, "{done:?}");
        let last = done.iter().filter(|summary| summary["share"]["last"] == true).count();
        assert!(last <= 1, "{done:?}");
        whole(&mut world, &format!("{count} machines"));
        // The last machine has analyzed the table.
        assert_eq!(world.sql("SELECT reltuples FROM pg_class WHERE relname = 't'"), "200000");
        let again = world.load(&[&all[..], &["--table", "t", "--once", "--share"]].concat());
        assert_eq!(again.unwrap()["files_known"], 20);
    }
}

/// One, two or four machines load one large file in parts. Each row is loaded once, and record and
/// line numbers have no gaps.
#[test]
fn machines_share_one_large_file() {
    // A byte order mark precedes the header.
    let bytes = [b"\xef\xbb\xbf", quoted(150_000).as_slice()].concat();
    let (mut world, paths) = worlds_files(&[("big.csv", bytes)], true);
    let all = [paths[0].as_str(), "--header", "--commit-every", "512kB"];
    for count in [1, 2, 4] {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let done = machines(&world, count, &all);
        assert_eq!(sum(&done, "loaded"), 150_000, "{done:?}");
        assert_eq!(sum(&done, "read"), 150_000, "{done:?}");
        assert_eq!(sum(&done, "records_known"), 0, "{done:?}");
        let parts: u64 = done.iter().map(|s| s["share"]["parts"].as_u64().unwrap_or(0)).sum();
        assert!(parts >= 6, "{done:?}");
        whole(&mut world, &format!("{count} machines"));
        let verified = world.run(&["loads", "verify", "1"]);
        assert!(verified.status.success(), "{verified:?}");
    }
    // Lanes within each machine, and parts that end elsewhere.
    world.sql("TRUNCATE t; DROP SCHEMA pgsluice_loads CASCADE");
    let lanes = [paths[0].as_str(), "--header", "--commit-every", "1MB", "--method", "lanes"];
    machines(&world, 2, &[&lanes[..], &["--lanes", "2"]].concat());
    whole(&mut world, "lanes");
}

/// Files in the text format, with CR LF and with each rule on stray quotes are divided into parts.
/// With `--comment`, a file is one part. Each row is loaded once.
#[test]
fn other_forms_are_divided_or_not() {
    let mut world = world();
    world.sql("CREATE TABLE stock (LIKE t)");
    let (mut text, mut crlf) = (Vec::new(), Vec::new());
    for i in 0..60_000 {
        text.extend_from_slice(format!("{i}\ttext \\\nof {i} \\\\\n").as_bytes());
        crlf.extend_from_slice(format!("{i},\"text\r\nof {i}\"\r\n").as_bytes());
    }
    let (text, crlf) = ((world.file("text", &text), text), (world.file("crlf", &crlf), crlf));
    let copies = ["COPY stock FROM STDIN (FORMAT text)", "COPY stock FROM STDIN (FORMAT csv)"];
    type Form<'f> = (&'f [&'f str], &'f (String, Vec<u8>), &'f str, bool);
    let forms: [Form<'_>; 6] = [
        (&["--format", "text"], &text, copies[0], true),
        (&["--format", "text", "--method", "insert-batch"], &text, copies[0], true),
        (&["--format", "text", "--comment", "#"], &text, copies[0], false),
        (&[], &crlf, copies[1], true),
        (&["--stray-quotes", "error"], &crlf, copies[1], true),
        (&["--stray-quotes", "copy"], &crlf, copies[1], true),
    ];
    for (form, (path, bytes), copy, divided) in forms {
        world.sql("TRUNCATE t, stock; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        world.stock(copy, bytes).unwrap();
        let done = machines(&world, 2, &[form, &[path, "--commit-every", "256kB"]].concat());
        whole(&mut world, &format!("{form:?}"));
        let parts: u64 = done.iter().map(|s| s["share"]["parts"].as_u64().unwrap_or(0)).sum();
        assert_eq!(parts > 1, divided, "{form:?} {done:?}");
    }
}

/// A bad record is reported with its line in the whole file. All other parts are loaded, and the
/// same command loads the rest after a correction.
#[test]
fn a_bad_record_stops_its_part() {
    let mut bytes = quoted(60_000);
    let good = bytes.clone();
    let at = bytes.windows(8).position(|w| w == b"\n41234,\"").unwrap() + 1;
    bytes[at] = b'x';
    let line = bytes[..at].iter().filter(|b| **b == b'\n').count() + 1;
    let end = line + 41_234 % 7 * 2;
    let (mut world, paths) = worlds_files(&[("big.csv", good.clone())], true);
    fs::write(&paths[0], &bytes).unwrap();
    let all = [paths[0].as_str(), "--header", "--commit-every", "256kB"];
    let children: Vec<Child> =
        (0..3).map(|i| machine(&world, &format!("{i}.json"), &all)).collect();
    let mut named = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(&format!("line {end}")), "{said} {line}");
        assert!(said.contains("x1234"), "{said}");
        named += usize::from(!said.contains("another machine could not load"));
    }
    assert!(named >= 1);
    exact(&mut world, "after a bad record");
    let rows: u64 = world.sql("SELECT count(*) FROM t").parse().unwrap();
    // All lanes of a part commit, or none.
    assert!((40_000..60_000).contains(&rows), "{rows}");
    // With the same bytes, the part is tried again.
    let said =
        world.load(&[&all[..], &["--table", "t", "--once", "--share"]].concat()).unwrap_err();
    assert!(said.contains(&format!("line {end}")) && !said.contains("another machine"), "{said}");
    fs::write(&paths[0], &good).unwrap();
    let done = machines(&world, 2, &all);
    assert_eq!(sum(&done, "loaded"), 60_000 - rows, "{done:?}");
    whole(&mut world, "corrected");
}

/// A file that cannot be read to its end is reported when it is divided into parts. All other files
/// are loaded.
#[test]
fn a_damaged_file_stops_its_part() {
    let files = [("b.csv", lines(0, 2000)), ("c.csv", lines(2000, 2000))];
    let (mut world, paths) = worlds_files(&files, false);
    // Random numbers: even compressed, they are more than two parts.
    let mut random = 1_u64;
    let text: String = (0..60_000)
        .map(|i| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("{i},{random}\n")
        })
        .collect();
    let plain = world.file("a.csv", text.as_bytes());
    assert!(std::process::Command::new("gzip").arg(&plain).status().unwrap().success());
    let damaged = format!("{plain}.gz");
    let mut bytes = fs::read(&damaged).unwrap();
    // The first block, after the header with the name, gets a type that no block has.
    bytes[10 + "a.csv\0".len()] = 0xff;
    fs::write(&damaged, &bytes).unwrap();
    let all = [&paths[0], &damaged, &paths[1], "--commit-every", "64kB"];
    world.sql("BEGIN; LOCK TABLE t IN SHARE MODE");
    let first = machine(&world, "0.json", &all);
    wait_until(|| "nothing begins".into(), || world.sql(BEGUN) == "t");
    let taken = "SELECT count(*) FROM pgsluice_loads.parts WHERE load = 1";
    wait_until(|| "no part is taken".into(), || world.sql(taken) != "0");
    // The next part is the damaged file.
    let output = machine(&world, "1.json", &all).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("a.csv.gz") && said.contains("is it whole?"), "{said}");
    world.sql("COMMIT");
    let output = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("another machine could not load") && said.contains("a.csv.gz"), "{said}");
    exact(&mut world, "without the damaged file");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "4000");
}

/// One of several small files that a machine takes together is cut off. That machine reports it, and
/// the others load all other files. After it is replaced, the same command loads it.
#[test]
fn a_damaged_file_stops_none_of_those_that_are_taken_with_it() {
    let mut world = world();
    let mut paths: Vec<String> =
        (0..16).map(|i| world.file(&format!("{i:02}.csv"), &lines(i * 2000, 2000))).collect();
    assert!(std::process::Command::new("gzip").arg(&paths[1]).status().unwrap().success());
    paths[1] += ".gz";
    let packed = fs::read(&paths[1]).unwrap();
    fs::write(&paths[1], &packed[..packed.len() / 2]).unwrap();
    let all: Vec<&str> = paths.iter().map(String::as_str).collect();
    world.sql("BEGIN; LOCK TABLE t IN SHARE MODE");
    let first = machine(&world, "0.json", &all);
    wait_until(|| "nothing begins".into(), || world.sql(BEGUN) == "t");
    let taken = |load: u32| {
        format!("SELECT count(*) FROM pgsluice_loads.parts WHERE load = {load} AND source <= 2")
    };
    wait_until(|| "the two files are not taken".into(), || world.sql(&taken(1)) == "2");
    let second = machine(&world, "1.json", &all);
    let leased = "SELECT count(*) FROM pgsluice_loads.leases";
    wait_until(|| "the second machine does not join".into(), || world.sql(leased) == "2");
    world.sql("COMMIT");
    for (child, what) in [(first, "is it whole?"), (second, "another machine could not load")] {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(what) && said.contains("01.csv.gz"), "{said}");
    }
    exact(&mut world, "without the damaged file");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "30000");
    fs::write(&paths[1], &packed).unwrap();
    assert_eq!(sum(&machines(&world, 1, &all), "loaded"), 2000);
    assert_eq!(counts(&mut world), thrice(32_000));
}

/// A compressed file is one part. A machine has committed some of its transactions when it finds a
/// bad record: the message counts their rows.
#[test]
fn rows_of_a_part_that_fails_are_counted() {
    let mut world = world();
    let bytes = [lines(0, 50_000), b"x,bad\n".to_vec(), lines(50_000, 10_000)].concat();
    let plain = world.file("a.csv", &bytes);
    assert!(std::process::Command::new("gzip").arg(&plain).status().unwrap().success());
    let packed = format!("{plain}.gz");
    let all = [&packed, "--table", "t", "--once", "--share", "--commit-every", "64kB"];
    let said = world.load(&all).unwrap_err();
    assert!(said.contains("line 50001"), "{said}");
    let rows = world.sql("SELECT count(*) FROM t");
    assert_ne!(rows, "0", "{said}");
    let counted = format!("{rows} rows of this machine are committed and recorded as load 1");
    assert!(said.contains(&counted), "{rows}: {said}");
    exact(&mut world, "before the bad record");
}

/// A load without `--share` waits for loads with it, and they wait for it. If it is killed,
/// machines continue it together.
#[test]
fn loads_that_are_not_shared_wait() {
    let (mut world, paths) = worlds_files(&[("a.csv", lines(0, 300_000))], false);
    let all = [paths[0].as_str(), "--commit-every", "256kB"];
    // The first load does not end before the others start.
    world.sql("BEGIN; LOCK TABLE t IN SHARE MODE");
    let first = machine(&world, "first.json", &all);
    wait_until(|| "nothing begins".into(), || world.sql(BEGUN) == "t");
    let leased = "SELECT count(*) FROM pgsluice_loads.leases";
    wait_until(|| "nothing is leased".into(), || world.sql(leased) == "1");
    let alone = start(&world, &all);
    let shared = machine(&world, "shared.json", &all);
    world.sql("COMMIT");
    ended(&world, "first.json", first);
    assert!(alone.wait_with_output().unwrap().status.success());
    ended(&world, "shared.json", shared);
    whole(&mut world, "all three");
    // The other way round: a load without `--share` is killed, and machines continue it together.
    world.sql("TRUNCATE t; DROP SCHEMA pgsluice_loads CASCADE");
    world.shut_gate();
    let mut child = start(&world, &all);
    let commits = "SELECT to_regclass('pgsluice_loads.commits') IS NOT NULL";
    wait_until(|| "nothing begins".into(), || world.sql(commits) == "t");
    let commits = "SELECT count(*) > 2 FROM pgsluice_loads.commits";
    wait_until(|| "nothing is committed".into(), || world.sql(commits) == "t");
    child.kill().unwrap();
    child.wait().unwrap();
    world.open_gate();
    let done = machines(&world, 2, &all);
    assert!(sum(&done, "records_known") > 0, "{done:?}");
    whole(&mut world, "continued together");
}

/// Files with the same bytes are loaded once, even if different machines load them.
#[test]
fn the_same_bytes_are_loaded_once() {
    let bytes = lines(0, 100_000);
    let (mut world, paths) = worlds_files(&[("a.csv", bytes.clone())], false);
    let copy = world.file("copy.csv", &bytes);
    let all = ["--commit-every", "256kB"];
    let both = machine(&world, "0.json", &[&[paths[0].as_str(), &copy], &all[..]].concat());
    let one = machine(&world, "1.json", &[&[copy.as_str()], &all[..]].concat());
    let done = [ended(&world, "0.json", both), ended(&world, "1.json", one)];
    assert_eq!(sum(&done, "loaded"), 100_000, "{done:?}");
    whole(&mut world, "a copy");
    let names = "SELECT count(*) || ' ' || count(same_as) FROM pgsluice_loads.sources";
    assert_eq!(world.sql(names), "2 1");
}

/// If a machine's file has the same name as that of the others but other bytes, that machine is
/// refused. After the bytes are restored, the load is completed.
#[test]
fn another_file_of_the_name_is_refused() {
    let (mut world, paths) = worlds_files(&[("a.csv", lines(0, 300_000))], false);
    let all = [paths[0].as_str(), "--commit-every", "256kB"];
    world.shut_gate();
    let child = machine(&world, "0.json", &all);
    world.suspend_at_gate(&child);
    assert_eq!(world.sql("SELECT count(*) > 3 FROM pgsluice_loads.parts"), "t");
    fs::write(&paths[0], lines(1, 300_000)).unwrap();
    let said =
        world.load(&[&all[..], &["--table", "t", "--once", "--share"]].concat()).unwrap_err();
    assert!(said.contains("is not the file that other machines are loading"), "{said}");
    assert!(signal(child.id(), Signal::SIGCONT));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("changed while it was"), "{said}");
    // With its old bytes, the load continues.
    fs::write(&paths[0], lines(0, 300_000)).unwrap();
    machines(&world, 2, &all);
    whole(&mut world, "as it was");
}

/// Options and methods that do not work with `--share` are refused, with the reason. The plan says
/// how large parts are and after how long a machine is taken for dead.
#[test]
fn what_cannot_be_shared_is_refused() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 10));
    let wrong: [(&[&str], &str); 6] = [
        (&["--once", "--share", "--on-error", "reject"], "--on-error reject"),
        (&["--once", "--share", "--source-name", "x"], "--source-name"),
        (&["--once", "--share", "--triggers", "off"], "--triggers off"),
        (&["--once", "--share", "--lease", "10ms"], "s, min or h"),
        (&["--share"], "--once"),
        (&["--once", "--lease", "3s"], "--share"),
    ];
    for (wrong, why) in wrong {
        let output = world.run(&[&["load", &path, "--table", "t"], wrong].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{wrong:?} {said}");
        assert!(said.contains(why), "{wrong:?} {said}");
    }
    // The message says why there are no rejects and what to do, before anything is read.
    for command in ["plan", "load"] {
        let all = [command, "none.csv", "--table", "t", "--once", "--share"];
        let output = world.run(&[&all[..], &["--on-error", "reject"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("those of a machine that is lost would be lost with it"), "{said}");
        assert!(said.contains("hint: load on one machine, without --share; or mend"), "{said}");
    }
    let staged = ["--table", "t", "--once", "--share", "--method", "staged"];
    let said = world.load(&[&[path.as_str()], &staged[..]].concat()).unwrap_err();
    assert!(
        said.contains("staged cannot be used with --share: it needs one transaction"),
        "{said}"
    );
    let plan = world.run(&["plan", &path, "--table", "t", "--once", "--share", "--lease", "5s"]);
    let said = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(said.contains("share the files, in parts of 64 MB"), "{said}");
    assert!(said.contains("for 5 s is taken for dead"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}
