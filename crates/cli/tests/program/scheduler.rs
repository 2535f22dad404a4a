//! What a scheduler reads from the program, and what it sends: summaries, exit codes, logs,
//! signals.

use crate::common::{each_major, signal, wait_until, Signal, World};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn world() -> World {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    world
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Starts a load of standard input, which stays open.
fn waiting(to: &str, more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "--table", "t", "--to", to])
        .args(more)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The summary has the status and exit code of each load. After a failure, it has the error with
/// its kind, SQLSTATE, position and hint.
#[test]
fn the_summary_says_how_a_load_failed() {
    let world = world();
    let good = world.file("good.csv", b"1,x\n");
    let bad = world.file("bad.csv", b"1,x\nq,y\n");
    let summary = world.path("summary.json");
    let load = |file: &str, more: &[&str]| {
        let base = ["load", file, "--table", "t", "--summary", &summary];
        world.run(&[&base[..], more].concat()).status.code()
    };
    assert_eq!(load(&good, &[]), Some(0));
    let told = json(&summary);
    assert_eq!((&told["status"], &told["exit_code"]), (&"loaded".into(), &0.into()));
    assert!(told["error"].is_null() && told["reject_file"].is_null(), "{told}");
    let first = told["id"].clone();

    assert_eq!(load(&bad, &[]), Some(4));
    let told = json(&summary);
    assert_eq!((&told["status"], &told["exit_code"]), (&"failed".into(), &4.into()));
    assert_eq!((&told["table"], &told["files"][0]), (&"t".into(), &bad.clone().into()));
    let error = &told["error"];
    assert_eq!((&error["kind"], &error["sqlstate"]), (&"data".into(), &"22P02".into()), "{told}");
    let place = &error["place"];
    assert_eq!(
        (&place["line"], &place["column"], &place["value"]),
        (&2.into(), &"a".into(), &"q".into())
    );
    assert!(error["message"].as_str().unwrap().starts_with("invalid input syntax"), "{told}");
    assert_ne!(told["id"], first);
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    let (started, ended) = (told["started"].as_str().unwrap(), told["ended"].as_str().unwrap());
    assert!(started <= ended && started.ends_with('Z') && started.len() == 24, "{told}");
    assert!(told["loaded"].is_null(), "{told}");

    let rejects = world.path("r-{id}");
    assert_eq!(load(&bad, &["--on-error", "reject", "--reject-file", &rejects]), Some(3));
    let told = json(&summary);
    assert_eq!(told["status"], "loaded_with_rejects");
    let named = told["reject_file"].as_str().unwrap().to_owned();
    assert_eq!(named, rejects.replace("{id}", told["id"].as_str().unwrap()));
    assert_eq!(fs::read(named).unwrap(), b"q,y\n");

    let nowhere = ["load", &good, "--table", "t", "--summary", &summary, "--to", "host=/nowhere"];
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(nowhere).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let told = json(&summary);
    assert_eq!((&told["status"], &told["error"]["kind"]), (&"failed".into(), &"connection".into()));
    assert!(told["error"]["hint"].is_string(), "{told}");
    // No temporary file is left beside it.
    let left = fs::read_dir(world.path(".")).unwrap().map(|e| e.unwrap().file_name());
    assert!(!left.into_iter().any(|n| n.to_string_lossy().starts_with(".summary")));
}

/// A command with wrong usage writes its own summary, so that an earlier success is not taken for
/// it. It does not overwrite the input.
#[test]
fn the_summary_has_wrong_usage_too() {
    let world = world();
    let good = world.file("good.csv", b"1,x\n");
    let summary = world.path("summary.json");
    let attached = format!("--summary={summary}");
    let wrong: [(&[&str], i32, &str); 6] = [
        (&["load", &good, "--table", "t", "--nonsense", "--summary", &summary], 2, "--nonsense"),
        (&["load", &good, &attached], 2, "--table"),
        (&["check", &good, "--table", "t", "--summary", &summary, "--lanes", "x"], 2, "--lanes"),
        (&["load", &good, "--table", "t", "--delimiter", "ab", &attached], 2, "delimiter must be"),
        (&["check", &good, "--table", "t", "--reject-limit", "3", &attached], 2, "--on-error"),
        (&["load", "nothing-*.csv", "--table", "t", &attached], 1, "no file matches"),
    ];
    for (arguments, code, message) in wrong {
        assert!(world.run(&["load", &good, "--table", "t", &attached]).status.success());
        assert_eq!(json(&summary)["status"], "loaded");
        let output = world.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let told = json(&summary);
        assert_eq!((&told["status"], &told["exit_code"]), (&"failed".into(), &code.into()));
        let kind = if code == 2 { "usage" } else { "failed" };
        assert_eq!(told["error"]["kind"], kind, "{told}");
        assert!(told["error"]["message"].as_str().unwrap().contains(message), "{told}");
    }
    let output = world.run(&["load", &good, "--nonsense", "--summary", "-"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["error"]["kind"], "usage");
    // A file that is not a summary is kept.
    for more in [&["--table", "t"][..], &["--table", "t", "--nonsense"]] {
        let output = world.run(&[&["load", &good, "--summary", &good], more].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(fs::read(&good).unwrap(), b"1,x\n");
    }
    // An invalid target is found before the other arguments are.
    let target = ["load", &good, "--table", "t", &attached, "--to", "mysql://u:s3cr3t@h/d"];
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(target).output().unwrap();
    assert_eq!((output.status.code(), &json(&summary)["exit_code"]), (Some(2), &2.into()));
    assert!(!fs::read_to_string(&summary).unwrap().contains("s3cr3t"));
}

/// The summary of a load would replace its rejects if both had one file: that is wrong usage, and
/// nothing is loaded or written.
#[test]
fn the_summary_is_no_reject_file() {
    let mut world = world();
    let bad = world.file("bad.csv", b"1,x\nq,y\n");
    let rejects = world.path("rejects.csv");
    let beside = format!("{}/./rejects.csv", world.path("."));
    std::os::unix::fs::symlink(&rejects, world.path("link")).unwrap();
    let base = ["--table", "t", "--on-error", "reject", "--reject-file", &rejects, "--summary"];
    for (before, summary) in [
        (None, rejects.clone()),
        (None, beside),
        (None, format!("{rejects}.jsonl")),
        (None, format!("{rejects}.2")),
        (None, format!("{rejects}.3.jsonl")),
        (Some("kept"), world.path("link")),
    ] {
        before.iter().for_each(|bytes| fs::write(&rejects, bytes).unwrap());
        let output = world.run(&[&["load", &bad], &base[..], &[&summary]].concat());
        assert_eq!(output.status.code(), Some(2), "{summary}: {output:?}");
        assert!(said(&output).contains("is a reject file and cannot be the summary"), "{output:?}");
        let left = fs::read_to_string(&summary).ok();
        assert_eq!(left.as_deref(), before, "{summary}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    fs::remove_file(&rejects).unwrap();
    let summary = format!("{rejects}.json");
    let output = world.run(&[&["load", &bad], &base[..], &[&summary]].concat());
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// A file whose content does not match the options is bad data: exit code 4 and a hint.
#[test]
fn wrong_content_is_bad_data() {
    let world = world();
    for (bytes, more, hint) in [
        (&b"1;x\n2;y\n"[..], &[][..], "--delimiter ';'"),
        (b"\"1\";\"x\"\n\"2\";\"y\"\n", &[], "--delimiter ';'"),
        (b"\"a\"|\"b\"\n\"1\"|\"x\"\n", &["--header"], "--delimiter '|'"),
        (b"1,5\" pipe;x\n2,6;y\n", &[], "a quote within quotes is written"),
        (b"PAR1\x15\x04\x15\x10", &[], "convert it to CSV first"),
        (b"\xff\xfe1\0,\0x\0\n\0", &[], "iconv -f UTF-16"),
        (b"1,x\n", &["--format", "binary"], "is it --format csv or text?"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x33\xd4", &[], "the file is gzip; is it whole?"),
    ] {
        let file = world.file("wrong.csv", bytes);
        for command in ["load", "check"] {
            let output = world.run(&[&[command, &file, "--table", "t", "-q"], more].concat());
            let said = said(&output);
            // `check` lists stray quotes instead.
            if command == "load" || output.stdout.is_empty() {
                assert!(said.contains(hint), "{}: {said}", bytes.escape_ascii());
            }
            assert_eq!(output.status.code(), Some(4), "{command} {}: {said}", bytes.escape_ascii());
        }
    }
}

/// A binary reject file ends with a trailer, so `--reject-existing append` is wrong usage.
#[test]
fn binary_rejects_are_not_appended() {
    let world = world();
    let file = world.file("t.bin", b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\xff\xff");
    let rejects = world.file("rejects.bin", b"kept");
    let base = ["load", &file, "--table", "t", "--format", "binary", "--on-error", "reject"];
    let append =
        ["--reject-file", &rejects, "--reject-existing", "append", "--to", "host=/nowhere"];
    let load = [&base[..], &append].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(load).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("cannot be appended"), "{output:?}");
    assert_eq!(fs::read(&rejects).unwrap(), b"kept");
}

/// The summary of a load that is killed still says `running`, and an earlier success is not taken
/// for it.
#[test]
fn a_killed_load_says_that_it_runs() {
    let mut world = world();
    let summary = world.file("summary.json", b"{\"status\": \"loaded\"}");
    let mut load = waiting(&world.server.url("postgres"), &["-", "--summary", &summary]);
    wait_until(|| "no summary".into(), || json(&summary)["status"] == "running");
    assert!(json(&summary)["ended"].is_null());
    load.kill().unwrap();
    load.wait().unwrap();
    assert_eq!(json(&summary)["status"], "running");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// With `--log-format json`, each message is an object with its time; with `text`, each line begins
/// with the time.
#[test]
fn messages_can_be_a_log() {
    let world = world();
    let bad = world.file("bad.csv", b"1,x\nq,y\n");
    let good = world.file("good.csv", b"1,x\n");
    for (file, code) in [(&good, 0), (&bad, 4)] {
        let output = world.run(&["load", file, "--table", "t", "--log-format", "json", "-v"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let lines: Vec<Value> =
            said(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().all(|l| l["time"].is_string() && l["message"].is_string()));
        let last = lines.last().unwrap();
        assert_eq!(last["level"] == "error", code == 4, "{last}");
        if code == 4 {
            assert_eq!((&last["sqlstate"], &last["kind"]), (&"22P02".into(), &"data".into()));
            assert_eq!(last["place"]["line"], 2, "{last}");
        }
        let output = world.run(&["load", file, "--table", "t", "--log-format", "text"]);
        for line in said(&output).lines() {
            let (time, rest) = line.split_once(' ').unwrap();
            assert!(time.len() == 24 && time.ends_with('Z') && !rest.is_empty(), "{line}");
        }
    }
}

/// A load of five rows prints at most four lines and no rates.
#[test]
fn a_small_load_says_little() {
    let world = world();
    let file = world.file("five.csv", b"1,a\n2,b\n3,c\n4,d\n5,e\n");
    let output = world.run(&["load", &file, "--table", "t"]);
    let brief = said(&output);
    assert!(brief.lines().count() <= 4, "{brief}");
    assert!(brief.contains("read 5 = loaded 5 + rejected 0 + skipped 0"), "{brief}");
    assert!(!brief.contains("0.0 MB") && !brief.contains("rows/s"), "{brief}");
    let output = world.run(&["load", &file, "--table", "t", "--verbose"]);
    assert!(said(&output).contains("20 bytes read"), "{output:?}");
    // The same is true for common options.
    let named = world.file("named.csv", b"id,name\n1,a\n2,b\n3,c\n4,d\n5,e\n");
    let bad = world.file("bad.csv", b"1,a\n2,b\n3,c\n4,d\nx,e\n");
    let rejects = world.path("rejects");
    let reject = ["--table", "t", "--on-error", "reject", "--reject-file", &rejects];
    for (file, more) in [
        (&named, &["--table", "made", "--create", "--header"][..]),
        (&file, &["--table", "t", "--truncate"]),
        (&bad, &reject),
        (&named, &["--table", "auto", "--dialect", "auto", "--create"]),
    ] {
        let output = world.run(&[&["load", file], more].concat());
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        let brief = said(&output);
        assert!(brief.lines().count() <= 4, "{more:?}: {brief}");
    }
}

/// If the reject file exists, the load fails unless `--reject-existing` is `append` or `replace`.
/// The input is never overwritten.
#[test]
fn rejects_of_repeated_loads_find_a_place() {
    let world = world();
    let bad = world.file("bad.csv", b"a,b\n1,x\nq,y\n");
    let rejects = world.path("rejects.csv");
    let load = |how: &[&str]| {
        let base = ["load", &bad, "--table", "t", "--header", "--on-error", "reject"];
        let output = world.run(&[&base[..], &["--reject-file", &rejects], how].concat());
        (output.status.code(), said(&output))
    };
    assert_eq!(load(&[]).0, Some(3));
    let (code, message) = load(&[]);
    assert!(code == Some(1) && message.contains("--reject-existing"), "{code:?} {message}");
    assert_eq!(fs::read(&rejects).unwrap(), b"a,b\nq,y\n");
    assert_eq!(load(&["--reject-existing", "append"]).0, Some(3));
    assert_eq!(fs::read(&rejects).unwrap(), b"a,b\nq,y\nq,y\n");
    let side = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
    assert_eq!(side.lines().count(), 2);
    assert_eq!(load(&["--reject-existing", "replace"]).0, Some(3));
    assert_eq!(fs::read(&rejects).unwrap(), b"a,b\nq,y\n");
    // The input is not overwritten.
    let base = ["load", &rejects, "--table", "t", "--header", "--on-error", "reject"];
    let same = ["--reject-file", &rejects, "--reject-existing", "replace"];
    assert_eq!(world.run(&[&base[..], &same[..]].concat()).status.code(), Some(2));
    assert_eq!(fs::read(&rejects).unwrap(), b"a,b\nq,y\n");
    // A load without rejects keeps the file of an earlier one.
    let good = world.file("good.csv", b"a,b\n1,x\n");
    let base = ["load", &good, "--table", "t", "--header", "--on-error", "reject"];
    let kept = ["--reject-file", &rejects, "--reject-existing", "append"];
    assert_eq!(world.run(&[&base[..], &kept[..]].concat()).status.code(), Some(0));
    assert_eq!(fs::read(&rejects).unwrap(), b"a,b\nq,y\n");
    // It keeps the reasons, too, also if the user has removed the records.
    let reasons = fs::read(format!("{rejects}.jsonl")).unwrap();
    fs::remove_file(&rejects).unwrap();
    assert_eq!(world.run(&[&base[..], &kept[..]].concat()).status.code(), Some(0));
    assert!(!fs::exists(&rejects).unwrap());
    assert_eq!(fs::read(format!("{rejects}.jsonl")).unwrap(), reasons);
}

/// Appended rejects end as those in the file do. If its last line was cut off, as by a load that was
/// killed, they do not continue that line.
#[test]
fn appended_rejects_are_lines_of_the_file() {
    let world = world();
    let rejects = world.path("rejects.csv");
    let reasons = format!("{rejects}.jsonl");
    let append = ["--on-error", "reject", "--reject-file", &rejects, "--reject-existing", "append"];
    for (i, (before, after)) in [
        ("a,b\r\nq,y\r\n", "a,b\r\nq,y\r\nz,1\r\n"),
        ("a,b\r\nq,y", "a,b\r\nq,y\r\nz,1\r\n"),
        ("a,b\nq,y", "a,b\nq,y\nz,1\n"),
        ("a,b", "a,b\nz,1\n"),
    ]
    .into_iter()
    .enumerate()
    {
        for more in [&[][..], &["--once"]] {
            fs::write(&rejects, before).unwrap();
            fs::write(&reasons, "{\"file\":\"cut o").unwrap();
            let records = format!("a,b\n{i},x\nz,1\n");
            let bad = world.file(&format!("bad-{i}.csv"), records.as_bytes());
            let load = ["load", &bad, "--table", "t", "--header"];
            let output = world.run(&[&load[..], &append, more].concat());
            assert_eq!(output.status.code(), Some(3), "{more:?}: {output:?}");
            assert_eq!(fs::read_to_string(&rejects).unwrap(), after, "{more:?}");
            let told = fs::read_to_string(&reasons).unwrap();
            let (cut, reason) = told.split_once('\n').unwrap();
            assert_eq!(cut, "{\"file\":\"cut o", "{more:?}");
            let reason: Value = serde_json::from_str(reason).unwrap();
            assert_eq!((&reason["record"], &reason["column"]), (&2.into(), &"a".into()));
        }
    }
}

/// Whether a signal is in a mask of a process: `SigCgt:` has those with a handler.
pub fn has(mask: &str, pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask)).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() >> (signal as i32 - 1) & 1 == 1
}

/// SIGTERM ends a load that waits for a server that does not answer, or for its first row. The exit
/// code is 7, and the summary says `cancelled`.
#[test]
fn a_signal_ends_what_has_not_begun() {
    let world = world();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let nowhere = format!("host=127.0.0.1 port={port} user=u dbname=d connect_timeout=600");
    let file = world.file("t.csv", b"1,x\n");
    let summary = world.path("summary.json");
    for (to, input) in [(nowhere.as_str(), file.as_str()), (&world.server.url("postgres"), "-")] {
        let load = waiting(to, &[input, "--summary", &summary]);
        wait_until(|| "no handler".into(), || has("SigCgt:", load.id(), Signal::SIGTERM));
        assert_eq!(json(&summary)["status"], "running");
        let asked = Instant::now();
        assert!(signal(load.id(), Signal::SIGTERM));
        let mut load = load;
        let stdin = load.stdin.take();
        let output = load.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert!(asked.elapsed() < Duration::from_secs(60));
        assert!(said(&output).contains("stopped before the load began"), "{output:?}");
        assert_eq!(json(&summary)["status"], "cancelled");
        fs::remove_file(&summary).unwrap();
    }
}

/// If a server does not answer, the load ends with exit code 5 after PGCONNECT_TIMEOUT, or without
/// it after a default time.
#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let world = world();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let file = world.file("t.csv", b"1,x\n");
    let to = format!("host=127.0.0.1 port={port} user=u dbname=d sslmode=disable");
    for (timeout, seconds) in [(Some("2"), 2..15), (None, 15..90)] {
        let mut load = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        load.args(["load", &file, "--table", "t", "--to", &to]).env_remove("PGCONNECT_TIMEOUT");
        let asked = Instant::now();
        let output = load.envs(timeout.map(|t| ("PGCONNECT_TIMEOUT", t))).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        // libpq counts whole seconds.
        assert!(seconds.contains(&(asked.elapsed().as_secs() + 1)), "{:?}", asked.elapsed());
        let said = said(&output);
        assert!(said.contains("timeout expired") && said.contains("connect_timeout="), "{said}");
        assert!(!said.contains("reading"), "{said}");
    }
}

/// Each reason for which a connection fails has its own hint, and no message shows the password.
#[test]
fn each_way_not_to_connect_has_its_own_hint() {
    let world = world();
    let file = world.file("t.csv", b"1,x\n");
    let there = world.server.url("postgres");
    let database = there.replace("/postgres?", "/nowhere?");
    let role = there.replace("postgres@", "nobody@");
    for (to, code, hint) in [
        ("mysql://u:s3cr3t@h/d", 2, "URLs begin with postgresql://"),
        ("jdbc:postgresql://u:s3cr3t@h/d", 2, "URLs begin with postgresql://"),
        ("postgresql://u@127.0.0.1:1/d", 5, "no server listens there"),
        ("postgresql://u@no-such-host.invalid/d", 5, "cannot be resolved"),
        ("host=/nowhere", 5, "Unix socket"),
        (&database, 1, "psql -l"),
        (&role, 1, "the role does not exist"),
    ] {
        let load = ["load", &file, "--table", "t", "--to", to];
        let output = Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(load).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{to}: {said}");
        assert!(said.contains(hint) && !said.contains("s3cr3t"), "{to}: {said}");
        assert!(!said.contains("Is the server running"), "{to}: {said}");
    }
}

/// If another session cancels the query or ends the session of a load, the message says so and
/// blames no line of the input.
#[test]
fn a_cancelled_query_is_not_blamed_on_a_line() {
    let mut world = world();
    for (ends, code, why) in [
        ("pg_cancel_backend", 7, "canceling statement"),
        ("pg_terminate_backend", 5, "connection lost: the server said: terminating connection"),
    ] {
        let to = world.server.url("postgres");
        let mut load = waiting(&to, &["-", "--method", "copy-csv", "--quiet"]);
        let mut input = load.stdin.take().unwrap();
        let rows = b"1,some text\n".repeat(100_000);
        input.write_all(&rows).unwrap();
        let copies = "FROM pg_stat_activity WHERE query LIKE 'COPY %' AND state = 'active'";
        let under_way = format!("SELECT count(*) {copies} AND backend_xid IS NOT NULL");
        wait_until(|| "no COPY".into(), || world.sql(&under_way) == "1");
        world.sql(&format!("SELECT {ends}(pid) {copies}"));
        while input.write_all(&rows).is_ok() {}
        drop(input);
        let output = load.wait_with_output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(why) && !said.contains("line "), "{said}");
        assert_eq!(said.contains("nothing was loaded"), code == 5, "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    }
}

/// Rejects are not appended below another header: there, their fields would be those of other
/// columns.
#[test]
fn rejects_are_not_appended_below_another_header() {
    let world = world();
    let rejects = world.path("rejects.csv");
    let bad = world.file("bad.csv", b"a,b\nz,1\n");
    let load = ["load", &bad, "--table", "t", "--header", "--on-error", "reject"];
    let append = ["--reject-file", &rejects, "--reject-existing", "append"];
    for header in ["b,a\n", "a,bc\n", "1,x\n"] {
        for more in [&[][..], &["--once"]] {
            fs::write(&rejects, header).unwrap();
            let output = world.run(&[&load[..], &append, more].concat());
            let message = said(&output);
            assert_eq!(output.status.code(), Some(1), "{header} {message}");
            assert!(message.contains("it begins with another header than the input"), "{message}");
            assert_eq!(fs::read_to_string(&rejects).unwrap(), header);
        }
    }
    // The same names, written in another way; a first line that is ignored.
    for (header, how) in [("\"a\",\"b\"\n", "--header"), ("rows of yesterday\n", "--header=ignore")]
    {
        fs::write(&rejects, header).unwrap();
        let load = ["load", &bad, "--table", "t", how, "--on-error", "reject"];
        let output = world.run(&[&load[..], &append].concat());
        assert_eq!(output.status.code(), Some(3), "{how} {}", said(&output));
        assert_eq!(fs::read_to_string(&rejects).unwrap(), format!("{header}z,1\n"));
    }
}
