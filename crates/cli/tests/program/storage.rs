//! Files that change while they are read, and disks that are full. The error says so, and no row is
//! loaded without being reported.

use crate::common::disk::SmallDisk;
use crate::common::{each_major, wait_until, World};
use pgsluice_engine::options::Create;
use pgsluice_engine::{FileSource, Loader, Opened, Source, TargetOptions};
use std::fs::{self, File};
use std::io::{self, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

fn world() -> World {
    let mut world = World::new(&each_major().pop().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    world
}

fn rows(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| format!("{i},some words\n").into_bytes()).collect()
}

/// Starts a load that has opened its file and waits for the table, which the world's own connection
/// has locked.
fn start_waiting(world: &mut World, arguments: &[&str]) -> Child {
    world.sql("BEGIN; LOCK TABLE t");
    let child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .arg("load")
        .args(arguments)
        .args(["--table", "t", "--to", &world.server.url("postgres")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    wait_until(|| "the load does not come to the table".into(), || world.sql(waiting) != "0");
    child
}

fn end(world: &mut World, child: Child) -> (Option<i32>, String) {
    world.sql("COMMIT");
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A file that reports no size, as those of /proc do, is loaded. `--once` refuses it: it could not
/// tell whether such a file has grown.
#[test]
fn a_file_without_a_size() {
    let mut world = world();
    world.sql("CREATE TABLE words (word text)");
    let file = "/proc/sys/kernel/ostype";
    assert_eq!(fs::metadata(file).unwrap().len(), 0);
    assert_eq!(world.load(&[file, "--table", "words"]).unwrap()["loaded"], 1);
    assert_eq!(world.sql("SELECT word FROM words"), "Linux");
    let refused = world.run(&["load", file, "--table", "words", "--once"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("reports no size, by which --once recognises a file"), "{said}");
}

/// If a file grows, shrinks or is overwritten while it is read, the load fails and no row stays. A
/// new file with the same name does not matter.
#[test]
fn a_file_that_changes_while_it_is_read() {
    let mut world = world();
    let bytes = rows(100_000);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&bytes).unwrap();
    let packed = gzip.finish().unwrap();
    type Change = fn(&File, u64);
    let changes: [(&str, Change); 4] = [
        ("grows", |mut file, _| file.write_all(b"1,late\n").unwrap()),
        ("shrinks", |file, length| file.set_len(length / 2).unwrap()),
        ("shrinks to nothing", |file, _| file.set_len(0).unwrap()),
        ("is overwritten", |file, length| {
            // Other rows of the same length.
            use std::os::unix::fs::FileExt;
            file.write_all_at(b"7,x\n", length - 4).unwrap();
        }),
    ];
    for (kind, bytes) in [("plain", &bytes), ("gzip", &packed)] {
        for method in ["copy-csv", "copy-binary", "lanes", "staged"] {
            for (what, change) in changes {
                let label = format!("{kind} {what} by {method}");
                let path = world.file("t.csv", bytes);
                let child = start_waiting(&mut world, &[&path, "--method", method]);
                let file = File::options().append(what == "grows").write(true).open(&path).unwrap();
                change(&file, bytes.len() as u64);
                let (code, said) = end(&mut world, child);
                let told = said.contains("changed while it was read") && said.contains("hint:");
                // A stream that is cut off may be reported as damaged first.
                let cut = kind == "gzip" && said.contains("is it whole?");
                assert!(told || cut, "{label}: {said}");
                assert_eq!(code, Some(if told { 1 } else { 4 }), "{label}: {said}");
                assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{label}");
            }
        }
    }
    // A new file with the same name is not the one that is read.
    let path = world.file("t.csv", &bytes);
    let child = start_waiting(&mut world, &[&path]);
    fs::rename(world.file("new.csv", b"1,new\n"), &path).unwrap();
    let (code, said) = end(&mut world, child);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "100000");
}

/// A file that another program writes to before it is opened again.
#[derive(Debug)]
struct GrowingFile {
    path: String,
    opened: AtomicBool,
}

impl Source for GrowingFile {
    fn name(&self) -> String {
        self.path.clone()
    }

    fn length(&self) -> io::Result<Option<u64>> {
        FileSource::new(&self.path).length()
    }

    fn can_be_read_again(&self) -> bool {
        true
    }

    fn open(&self) -> io::Result<Opened> {
        if self.opened.swap(true, Ordering::SeqCst) {
            File::options().append(true).open(&self.path)?.write_all(b"007\n")?;
        }
        FileSource::new(&self.path).open()
    }
}

/// With `--create`, the types are inferred before the rows are loaded. If one of several files is
/// written to after that, its new values are not altered: the load fails.
#[test]
fn what_is_written_after_the_types_were_inferred_is_not_altered() {
    let mut world = world();
    let url = world.server.url("postgres");
    for create in [Create::Typed, Create::TextOnDoubt] {
        let (first, path) = (world.file("1.csv", b"1\n"), world.file("2.csv", b"2\n"));
        let target = TargetOptions { create, ..TargetOptions::new(&url, "made") };
        let growing = GrowingFile { path, opened: AtomicBool::new(false) };
        let load = Loader::new(target).input(FileSource::new(&first)).input(growing);
        let error = load.run().unwrap_err();
        assert!(error.to_string().contains("would change the value"), "{error}");
        let hint = error.hint().map(|hint| hint.to_string()).unwrap_or_default();
        assert!(hint.contains("when nothing writes to it"), "{hint}");
        assert_eq!(world.sql("SELECT to_regclass('made')"), "");
    }
}

/// In a load of several files with `--create`, a record with too few fields is rejected, whatever
/// its values are: it was not examined for types.
#[test]
fn short_records_of_several_files_are_rejected() {
    let mut world = world();
    let (first, second) = (world.file("1.csv", b"1,2\n"), world.file("2.csv", b"01\n3,4\n"));
    let rejects = world.path("short.rejects");
    for create in ["--create", "--create=text-on-doubt"] {
        let to = ["--table", "made", create, "--on-error", "reject", "--reject-file", &rejects];
        let summary = world.load(&[&[first.as_str(), &second], &to[..]].concat()).unwrap();
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &1.into()));
        assert_eq!(world.sql("SELECT sum(c1) || ' ' || sum(c2) FROM made"), "4 6");
        world.sql("DROP TABLE made");
        fs::remove_file(&rejects).unwrap();
        fs::remove_file(format!("{rejects}.jsonl")).unwrap();
    }
}

/// Runs the program with a limit of 8 kB for the files that it writes. Writing fails as on a full
/// disk, and any user can do this.
fn with_little_room(world: &World, arguments: &[&str]) -> Output {
    let script = "ulimit -f 8; trap '' XFSZ; exec \"$0\" \"$@\"";
    Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_pgsluice")])
        .args(arguments)
        .args(["--to", &world.server.url("postgres")])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn refused(world: &mut World, output: &Output, what: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{what}: {said}");
    assert!(!said.contains("panicked"), "{what}: {said}");
    let told = ["File too large", "No space left on device"].iter().any(|e| said.contains(e));
    assert!(told && said.contains("reject"), "{what}: {said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{what}");
}

/// If the disk is full when rejects are written, the load fails, the message says so, and no row
/// stays.
#[test]
fn a_disk_that_fills_while_rejects_are_written() {
    let mut world = world();
    // Bad records that the loader finds, that the server finds, and one that is too long to be held
    // in memory.
    let ragged = "1,x\n1\n".repeat(800).into_bytes();
    let refused_by_server = "1,x\nz,x\n".repeat(800).into_bytes();
    let mut long = b"1,x\nz,".to_vec();
    long.resize(long.len() + (6 << 20), b'x');
    long.extend_from_slice(b"\n2,x\n");
    let room = SmallDisk::new(&world, "64k");
    let files = [("ragged", ragged), ("bad values", refused_by_server), ("long", long)];
    for (name, bytes) in files {
        for method in ["auto", "copy-binary", "insert-batch"] {
            if name == "long" && method == "insert-batch" {
                continue; // refused for its length
            }
            let file = world.file("t.csv", &bytes);
            let what = format!("{name} by {method}");
            let rejects = world.path("rejects");
            let _ = fs::remove_file(&rejects);
            let _ = fs::remove_file(format!("{rejects}.jsonl"));
            let load = ["load", &file, "--table", "t", "--method", method, "--on-error", "reject"];
            let arguments = [&load[..], &["--reject-file", &rejects]].concat();
            let output = with_little_room(&world, &arguments);
            refused(&mut world, &output, &what);
            let Some(room) = &room else { continue };
            let rejects = room.file("rejects");
            let output = world.run(&[&load[..], &["--reject-file", &rejects]].concat());
            refused(&mut world, &output, &format!("{what} on a full disk"));
            room.empty();
        }
    }
}

/// A summary that cannot be opened is found before anything is loaded. If its disk is full, the
/// message says that the rows are loaded. A load that fails replaces an earlier summary.
#[test]
fn output_that_cannot_be_written() {
    let mut world = world();
    let file = world.file("t.csv", &rows(100_000));
    // A file that cannot be opened is found before anything is loaded.
    let nowhere = world.path("no/such/folder/summary.json");
    let output = world.run(&["load", &file, "--table", "t", "--summary", &nowhere]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("summary.json") && said.contains("nothing was loaded"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    // A disk that fills up later is reported with what was loaded.
    let output = world.run(&["load", &file, "--table", "t", "--summary", "/dev/full"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: the rows are loaded, but /dev/full"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "100000");
    // A load that fails says so in its summary; an earlier one does not stay.
    let bad = world.file("bad.csv", b"z,x\n");
    let kept = world.file("kept.json", b"{}");
    let new = world.path("new.json");
    for summary in [&kept, &new] {
        let output = world.run(&["load", &bad, "--table", "t", "--summary", summary]);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let summary = fs::read_to_string(summary).unwrap();
        assert!(summary.contains("\"status\": \"failed\""), "{summary}");
    }

    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let url = world.server.url("postgres");
    let many_bad = world.file("many.csv", &"z,x\n".repeat(2_000).into_bytes());
    for arguments in [
        &["convert", &file, "--types", "int, text"][..],
        &["sample", "votes", "--rows", "100000"],
        &["check", &many_bad, "--table", "t", "--to", &url],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(arguments)
            .stdout(full())
            .stderr(Stdio::piped())
            .spawn()
            .and_then(Child::wait_with_output)
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("No space left on device"), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
}

/// `check` keeps no rejects, so it needs no temporary file for a record that is too long to be held
/// in memory.
#[test]
fn a_check_needs_no_disk() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text)");
    let long = vec![b'x'; 5 << 20];
    let bytes = [b"a,1\n1,", &long[..], b"\n", &long[..], b",2\n"].concat();
    let file = world.file("long.csv", &bytes);
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["check", &file, "--table", "t", "--to", &world.server.url("postgres")])
        .env("TMPDIR", world.path("nowhere"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("read 3 = good 1 + bad 2"), "{said}");
}

/// The bytes after a long quoted value are kept in the folder for temporary files. If that is not
/// possible, the message names the folder, and does not say that the input cannot be read.
#[test]
fn a_folder_for_temporary_files_that_is_missing_is_named() {
    let mut world = world();
    let long = vec![b'x'; 5 << 20];
    let file = world.file("long.csv", &[b"1,\"", &long[..], b"\"\n"].concat());
    let nowhere = world.path("nowhere");
    let load = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["load", &file, "--table", "t", "--to", &world.server.url("postgres")])
            .args(more)
            .env("TMPDIR", &nowhere)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = load(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("long.csv in {nowhere}: no such file")), "{said}");
    assert!(said.contains("hint: set TMPDIR") && !said.contains("cannot read"), "{said}");
    // As the hint says, this needs no such file.
    let (code, said) = load(&["--stray-quotes", "copy"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
}
