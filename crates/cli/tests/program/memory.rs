//! The program's memory stays within its bound, whatever is in the file. The tests measure the peak
//! of its resident memory, as the kernel accounts it.
//!
//! The quick tests are large enough to show whether data is held in memory or streamed. The ignored
//! tests, which `make soak` runs, have the real sizes.

use crate::common::{each_major, wait_until, World};
use std::fs::{self, File};
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The bound that is promised.
pub(crate) const PROMISED: u64 = 256 * MIB;

/// The bound for ordinary files, without the decoders of compressed files.
const USUAL: u64 = 96 * MIB;

/// How a run of the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    code: Option<i32>,
    said: String,
    /// bytes
    peak: u64,
}

impl Ended {
    pub(crate) fn loaded(self, what: &str, bound: u64) {
        assert!(matches!(self.code, Some(0 | 3)), "{what}: {self:?}");
        self.within(what, bound);
    }

    fn refused(self, what: &str, message: &str) {
        assert!(matches!(self.code, Some(1 | 4)), "{what}: {self:?}");
        assert!(self.said.contains(message), "{what}: {self:?}");
        assert!(!self.said.contains("panicked"), "{what}: {self:?}");
        self.within(what, USUAL);
    }

    fn within(&self, what: &str, bound: u64) {
        // Shown with `--nocapture`.
        eprintln!("{what}: peak {} MiB of {} MiB", self.peak / MIB, bound / MIB);
        assert!(self.peak <= bound, "{what}: {} MiB", self.peak / MIB);
    }
}

/// Watches the peak of a process's resident memory. `ru_maxrss` of an ended process cannot be used:
/// it includes the memory that this process had when it started the other.
struct Watched {
    stop: Arc<AtomicBool>,
    peak: JoinHandle<u64>,
}

impl Watched {
    fn new(child: &Child) -> Watched {
        let status = format!("/proc/{}/status", child.id());
        let seen = move || {
            // An ended process has no such line.
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        // Look before the program has its input: on a busy machine, the thread may start too late
        // for a short run.
        let mut peak = 0;
        wait_until(
            || "the memory of the program is not seen".into(),
            || {
                let now = seen();
                peak = now.unwrap_or(peak);
                now.is_none_or(|now| now > MIB)
            },
        );
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let peak = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                peak = seen().unwrap_or(peak);
                thread::sleep(Duration::from_millis(5));
            }
            peak
        });
        Watched { stop, peak }
    }

    /// The peak in bytes.
    fn peak(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let peak = self.peak.join().unwrap();
        assert!(peak > MIB, "the memory of the program was not seen");
        peak
    }
}

/// Runs the program; `feed` writes its standard input.
fn run(
    world: &World,
    arguments: &[&str],
    feed: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Ended {
    let said = world.path("said");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let watched = Watched::new(&child);
    // The program may end before it has read everything.
    let _ = feed(&mut io::BufWriter::new(child.stdin.take().unwrap()));
    let code = child.wait().unwrap().code();
    Ended { code, said: fs::read_to_string(&said).unwrap(), peak: watched.peak() }
}

/// Loads what `feed` writes into the table `t`.
pub(crate) fn load(
    world: &World,
    more: &[&str],
    feed: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Ended {
    let url = world.server.url("postgres");
    let first = ["load", "-", "--table", "t", "--quiet", "--to", &url];
    run(world, &[&first[..], more].concat(), feed)
}

/// Writes `length` bytes, by repeating `unit`.
fn repeat(out: &mut dyn Write, unit: &[u8], length: u64) -> io::Result<()> {
    let block = unit.repeat((MIB as usize / unit.len()).max(1));
    let mut left = length;
    while left > 0 {
        let n = left.min(block.len() as u64);
        out.write_all(&block[..n as usize])?;
        left -= n;
    }
    Ok(())
}

fn world() -> World {
    World::new(&each_major().pop().unwrap())
}

fn table(world: &mut World, columns: &str) {
    world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t ({columns})"));
}

/// Loads a field of `length` bytes between two small records, in each of these ways.
fn one_field(length: u64, ways: &[&[&str]]) {
    let mut world = world();
    for way in ways {
        table(&mut world, "a int, b text");
        let rejects = world.path("rejects");
        let mut more = way.to_vec();
        if way.contains(&"reject") {
            more.extend(["--reject-file", &rejects]);
        }
        let ended = load(&world, &more, |out| {
            out.write_all(b"1,small\n2,\"")?;
            repeat(out, b"a field of many words, and\n", length)?;
            out.write_all(b"\"\n3,small\n")
        });
        ended.loaded(&format!("a field of {length} bytes, {way:?}"), USUAL);
        let lengths = world.sql("SELECT string_agg(length(b)::text, ' ' ORDER BY a) FROM t");
        assert_eq!(lengths, format!("5 {length} 5"), "{way:?}");
    }
}

const WAYS: [&[&str]; 4] = [
    &["--method", "copy-csv"],
    &["--method", "copy-binary"],
    &["--method", "lanes", "--lanes", "2"],
    &["--on-error", "reject"],
];

/// A field of 130 MB loads within the usual bound of memory.
#[test]
fn a_long_field() {
    one_field(130_000_000, &WAYS[1..3]);
}

/// A field of 1 GB loads within the usual bound of memory.
#[test]
#[ignore = "a minute, and the server takes 4 GB of memory"]
fn a_field_of_a_gigabyte() {
    one_field(1_000_000_000, &WAYS);
}

/// Records whose quote or line never ends are refused with these messages by `load`, `check` and
/// `convert`, within the bound of memory.
fn endless(length: u64, quote: &str, no_newline: &str) {
    let mut world = world();
    table(&mut world, "a int, b text");
    for method in ["copy-csv", "copy-binary"] {
        let ended = load(&world, &["--method", method], |out| {
            out.write_all(b"1,small\n2,\"")?;
            repeat(out, b"no quote ends this\n", length)
        });
        ended.refused(&format!("{length} bytes behind a quote by {method}"), quote);
        let ended =
            load(&world, &["--method", method], |out| repeat(out, b"no line ends, ", length));
        ended.refused(&format!("{length} bytes without a line end by {method}"), no_newline);
    }
    let ended = load(&world, &["--header"], |out| repeat(out, b"a name, ", length));
    ended.refused("a header without a line end", "the header line has no end");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    world.sql("DROP TABLE t");
    let ended = load(&world, &["--create"], |out| {
        out.write_all(b"\"")?;
        repeat(out, b"no quote ends this\n", length)
    });
    ended.refused("a table to be made from it", "");
    let url = world.server.url("postgres");
    let check = ["check", "-", "--table", "t", "--to", &url];
    table(&mut world, "a int, b text");
    let ended = run(&world, &check, |out| {
        out.write_all(b"2,\"")?;
        repeat(out, b"no quote ends this\n", length)
    });
    assert_eq!(ended.code, Some(4), "{ended:?}");
    ended.within("check", USUAL);
    let convert = ["convert", "-", "--types", "int, text"];
    let ended = run(&world, &convert, |out| repeat(out, b"no line ends, ", length));
    ended.refused("convert", "too long to be converted");
}

/// A record of 120 MB whose quote or line never ends is refused with the error that it has, within
/// the usual bound of memory.
#[test]
fn records_without_an_end() {
    let quote = "record 2, byte offset 8, column b: quoted field is not closed";
    endless(120_000_000, quote, "record 1, byte offset 0: extra data after last expected column");
}

/// A record that is longer than the server's limit of 1 GB is refused with a message that says so
/// or names the stray quote, within the usual bound of memory.
#[test]
#[ignore = "a minute"]
fn records_beyond_every_limit() {
    let quote = "a record that does not fit in memory has a stray quote";
    endless(1_200_000_000, quote, "a record is longer than the server's limit of 1 GB");
}

/// A column that is not in the file gets a long value in each of many short records. They load
/// within the usual bound of memory.
#[test]
fn a_long_value_for_each_short_record() {
    let mut world = world();
    table(&mut world, "a int, b text");
    let set = format!("b={}", "x".repeat(4096));
    for method in ["auto", "copy-csv"] {
        let more = ["--columns", "a", "--set", &set, "--method", method, "--truncate"];
        let ended = load(&world, &more, |out| repeat(out, b"1\n", 400_000));
        ended.loaded(&format!("a long value, {method}"), USUAL);
        let sums = "SELECT count(*) || ' ' || min(length(b)) || ' ' || max(length(b)) FROM t";
        assert_eq!(world.sql(sums), "200000 4096 4096");
    }
}

/// Thousands of small files, half of them compressed, need no more memory than one large file.
#[test]
fn many_small_files() {
    let mut world = world();
    let folder = world.path("many");
    fs::create_dir(&folder).unwrap();
    for i in 0..1500 {
        fs::write(format!("{folder}/{i}.csv"), format!("{i},1\n{i},2\n")).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(format!("{i},3\n").as_bytes()).unwrap();
        fs::write(format!("{folder}/{i}.csv.gz"), gzip.finish().unwrap()).unwrap();
    }
    let (url, pattern) = (world.server.url("postgres"), format!("{folder}/*"));
    for columns in ["a int, b int", "a text, b text"] {
        table(&mut world, columns);
        let all = ["load", &pattern, "--table", "t", "--once", "--quiet", "--to", &url];
        run(&world, &all, |_| Ok(())).loaded(&format!("3000 files, {columns}"), USUAL);
        assert_eq!(world.sql("SELECT count(*) FROM t"), "4500");
    }
}

/// A sparse file of 10 GB, with an open quote or without a line end, is refused within the usual
/// bound of memory.
#[test]
fn a_file_that_is_a_hole() {
    let mut world = world();
    table(&mut world, "a int, b text");
    let url = world.server.url("postgres");
    let quote = "byte offset 0: a record that does not fit in memory has a stray quote";
    let limit = "byte offset 0: a record is longer than the server's limit of 1 GB";
    for (head, command, message) in [(&b"1,\""[..], "load", quote), (b"1,x", "check", limit)] {
        let path = world.file("hole.csv", head);
        File::options().write(true).open(&path).unwrap().set_len(10_000_000_000).unwrap();
        let arguments = [command, &path, "--table", "t", "--to", &url];
        let ended = run(&world, &arguments, |_| Ok(()));
        ended.refused(&format!("{command} of a hole"), message);
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    }
}

/// In a column of `char(n)`, one character may take kilobytes. Rows that would outgrow their chunk
/// are not collected in memory; the server pads them.
#[test]
fn padding() {
    const ROWS: u32 = 70_000;
    let mut world = world();
    table(&mut world, "a int, b char(9000)");
    let feed = |out: &mut dyn Write| (0..ROWS).try_for_each(|i| writeln!(out, "{i},x"));
    let ended = load(&world, &["--method", "copy-binary"], feed);
    ended.loaded("short values of char(9000)", USUAL);
    let found = world.sql("SELECT count(*) || ' of ' || max(octet_length(b)) FROM t");
    assert_eq!(found, format!("{ROWS} of 9000"));
    let convert = ["convert", "-", "--types", "int, char(9000)"];
    run(&world, &convert, feed).loaded("the same by convert", USUAL);
    let many = ["char(10000000)"; 10].join(", ");
    let convert = ["convert", "-", "--types", &many];
    let ended = run(&world, &convert, |out| writeln!(out, "a,b,c,d,e,f,g,h,i,j"));
    ended.refused("a row of 100 MB by convert", "too long to be converted");
}

/// Records with far more fields than a table can have columns are refused or rejected within the
/// usual bound of memory.
#[test]
fn a_hundred_thousand_columns() {
    let mut world = world();
    table(&mut world, "a int, b text");
    let record = "1,".repeat(100_000);
    let rejects = world.path("rejects");
    for method in ["copy-csv", "copy-binary", "staged"] {
        let ended = load(&world, &["--method", method], |out| {
            out.write_all(b"1,x\n")?;
            (0..50).try_for_each(|_| writeln!(out, "{record}"))
        });
        let what = format!("100,000 columns by {method}");
        ended.refused(&what, "line 2, record 2, byte offset 4: extra data after last expected");
    }
    let more = ["--on-error", "reject", "--reject-file", &rejects];
    let ended = load(&world, &more, |out| {
        out.write_all(b"1,x\n")?;
        (0..50).try_for_each(|_| writeln!(out, "{record}"))?;
        // As many fields as fit into a chunk, all of them empty.
        repeat(out, b",", 4 * MIB)?;
        out.write_all(b"\n")
    });
    ended.loaded("100,000 columns, rejected", USUAL);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
    world.sql("DROP TABLE t");
    for more in [&["--create"][..], &["--create", "--header"]] {
        let ended = load(&world, more, |out| (0..5).try_for_each(|_| writeln!(out, "{record}")));
        let what = format!("100,000 columns by {more:?}");
        ended.refused(&what, "has 100001 fields, and a table at most 1600 columns");
    }
}

/// A million records are rejected, each with its message, within the promised bound of memory.
#[test]
fn a_million_rejects() {
    let mut world = world();
    table(&mut world, "a int");
    let rejects = world.path("rejects");
    let more = ["--on-error", "reject", "--reject-limit", "none", "--reject-file", &rejects];
    let ended = load(&world, &more, |out| repeat(out, b"x,\n", 3_000_000));
    ended.loaded("a million rejects", PROMISED);
    let side = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
    assert_eq!(side.lines().count(), 1_000_000);
}

/// Millions of empty lines are rejected up to the limit, within the promised bound of memory.
#[test]
fn millions_of_empty_lines() {
    let mut world = world();
    table(&mut world, "a int, b text");
    let rejects = world.path("rejects");
    let ended = load(&world, &["--on-error", "reject", "--reject-file", &rejects], |out| {
        out.write_all(b"1,a\n")?;
        repeat(out, b"\n", 9 * MIB)
    });
    assert!(ended.said.contains("more than the limit of"), "{ended:?}");
    ended.within("millions of empty lines", PROMISED);
}

/// These bytes, compressed in each format.
fn members(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(bytes).unwrap();
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    bzip2.write_all(bytes).unwrap();
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(bytes).unwrap();
    vec![
        ("gzip", gzip.finish().unwrap()),
        ("bzip2", bzip2.finish().unwrap()),
        ("lz4", lz4.finish().unwrap()),
        ("zstd", zstd::encode_all(bytes, 3).unwrap()),
        ("xz", liblzma::encode_all(bytes, 6).unwrap()),
    ]
}

/// Loads compressed files whose content is up to a thousand times as long.
fn bombs(megabytes: usize, zeros: &str) {
    let mut world = world();
    table(&mut world, "a int, b text");
    for (name, member) in members(&vec![0; MIB as usize]) {
        let ended =
            load(&world, &[], |out| (0..megabytes).try_for_each(|_| out.write_all(&member)));
        ended.refused(&format!("{megabytes} MiB of zeros in {name}"), zeros);
    }
    for (name, member) in members(&b"1,x\n".repeat(MIB as usize / 4)) {
        table(&mut world, "a int, b text");
        let ended = load(&world, &[], |out| (0..4).try_for_each(|_| out.write_all(&member)));
        ended.loaded(&format!("1 M equal rows in {name}"), USUAL);
        assert_eq!(world.sql("SELECT count(*) FROM t"), MIB.to_string());
    }
}

/// Compressed files of 150 MiB of zeros are refused, and files of a million equal rows are loaded,
/// within the usual bound of memory.
#[test]
fn decompression_bombs() {
    bombs(150, "invalid byte sequence for encoding \"UTF8\": 0x00");
}

/// Compressed files of 4 GB of zeros are refused, and files of a million equal rows are loaded,
/// within the usual bound of memory.
#[test]
#[ignore = "minutes"]
fn decompression_bombs_of_gigabytes() {
    bombs(4000, "a record is longer than the server's limit of 1 GB");
}

/// A zstd file with a window of 128 MiB loads within the promised bound of memory. A file with a
/// larger window is refused.
#[test]
fn the_largest_windows() {
    let mut world = world();
    let words = "words ".repeat(100);
    let rows: Vec<u8> = (0..230_000).flat_map(|i| format!("{i},{words}\n").into_bytes()).collect();
    let zstd = |window: u32| {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(window).unwrap();
        encoder.write_all(&rows).unwrap();
        encoder.finish().unwrap()
    };
    table(&mut world, "a int, b text");
    let (usual, beyond) = (zstd(27), zstd(28));
    let ended = load(&world, &[], |out| out.write_all(&usual));
    ended.loaded("a zstd window of 128 MiB", PROMISED);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "230000");
    let ended = load(&world, &[], |out| out.write_all(&beyond));
    ended.refused("a zstd window of 256 MiB", "cannot read");
}

/// Loads rows of `sample votes`. Both programs need the same memory, whatever the number of rows.
fn many_rows(counts: &[u64]) {
    let mut world = world();
    let program = env!("CARGO_BIN_EXE_pgsluice");
    let url = world.server.url("postgres");
    for rows in counts {
        table(&mut world, "username text, link text, score int");
        let count = rows.to_string();
        let mut sample = Command::new(program)
            .args(["sample", "votes", "--rows", &count])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = world.path("said");
        let mut loading = Command::new(program)
            .args(["load", "-", "--table", "t", "--quiet", "--no-analyze", "--to", &url])
            .stdin(sample.stdout.take().unwrap())
            .stderr(File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let watched = [Watched::new(&loading), Watched::new(&sample)];
        let loaded = loading.wait().unwrap();
        assert!(sample.wait().unwrap().success());
        assert!(loaded.success(), "{}", fs::read_to_string(&said).unwrap());
        let peaks = watched.map(Watched::peak);
        eprintln!("{rows} rows: peaks {:?} MiB of load and sample", peaks.map(|p| p / MIB));
        assert!(peaks.iter().all(|p| *p <= USUAL), "{rows} rows: {peaks:?}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), count);
    }
}

/// A million rows and four million are generated and loaded within the usual bound of memory.
#[test]
fn a_million_rows_and_four() {
    many_rows(&[1_000_000, 4_000_000]);
}

/// A hundred million rows are generated and loaded within the usual bound of memory.
#[test]
#[ignore = "minutes, and 6 GB of disk"]
fn a_hundred_million_rows() {
    many_rows(&[1_000_000, 100_000_000]);
}
