//! Lines of a file that are no records: before the header, after the last record, comments, Excel's
//! first line, empty lines at the end. The reference is stock COPY of the same file, cleaned by
//! hand.

use crate::common::{each_major, on_first_and_last_major, World};
use std::fs;
use std::io::Write;
use std::process::Output;

const METHODS: [&str; 8] = [
    "auto",
    "copy-csv",
    "copy-text",
    "copy-binary",
    "lanes",
    "staged",
    "copy-fresh",
    "insert-batch",
];

const OPTIONS: [&str; 6] = ["--skip-lines", "3", "--skip-footer", "2", "--comment", "#"];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// An export with all kinds of lines around its records, the header and records alone, and the
/// number of other lines.
fn export(rows: usize, text: bool, eol: &str) -> (Vec<u8>, Vec<u8>, u64) {
    let (mut all, mut clean, mut lines) = (String::new(), String::new(), 5);
    // Quotes and delimiters in these mean nothing.
    all += &format!("Report of \"today{eol},,,\\{eol}{eol}# it's \"a comment{eol}");
    lines += 1;
    let header = if text { "id\ta" } else { "id,a" };
    all += &format!("{header}{eol}");
    clean += &format!("{header}{eol}");
    for i in 0..rows {
        if i % 9_000 == 7 {
            all += &format!("#\"{i}{eol}# and, \"more{eol}");
            lines += 2;
        }
        let record = match (i % 7, text) {
            (3, false) => format!("{i},\"two{eol}# lines\"{eol}"),
            (3, true) => format!("{i}\ttwo\\{eol}# lines{eol}"),
            (5, false) => format!("{i},\"a \"\"quote\"\"\"{eol}"),
            (_, false) => format!("{i},#{i} of a longer text{eol}"),
            (_, true) => format!("{i}\t#{i} of a longer text{eol}"),
        };
        all += &record;
        clean += &record;
    }
    // Empty lines before the footer.
    all += &format!("# end{eol}{eol}{eol}Total \"{rows}{eol}(c) somebody");
    (all.into_bytes(), clean.into_bytes(), lines + 3)
}

/// With `--skip-lines`, `--skip-footer` and `--comment`, every method loads an export as if it had
/// been cleaned by hand. The summary counts the lines as skipped.
#[test]
fn an_export_loads_as_if_cleaned_by_hand() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE s (id int, a text); CREATE TABLE t (LIKE s)");
        for (turn, (text, eol)) in
            [(false, "\n"), (false, "\r\n"), (false, "\r"), (true, "\n")].into_iter().enumerate()
        {
            let (all, clean, lines) = export(60_000, text, eol);
            assert!(all.len() > 3 << 19, "{}", all.len());
            let format = if text { "text" } else { "csv" };
            world.sql("TRUNCATE s");
            let stock = format!("COPY s FROM STDIN (FORMAT {format}, HEADER)");
            assert_eq!(world.stock(&stock, &clean).unwrap(), 60_000);
            let plain = world.file("export.txt", &all);
            let packed = world.file("export.gz", &gzip(&all));
            for (i, method) in METHODS.iter().enumerate() {
                world.sql("TRUNCATE t");
                let path = if (i + turn) % 2 == 0 { &plain } else { &packed };
                let more = ["--table", "t", "--format", format, "--header", "--method", method];
                let label = format!("{method}, {format}, {eol:?}");
                let summary = world.load(&[&[path.as_str()], &more[..], &OPTIONS].concat());
                let summary = summary.unwrap_or_else(|e| panic!("{label}: {e}"));
                assert_eq!(world.difference("s", "t"), "", "{label}");
                let counts = [&summary["read"], &summary["loaded"], &summary["skipped"]];
                assert_eq!(counts, [60_000 + lines, 60_000, lines], "{label}");
                assert!(summary["notes"].to_string().contains("2 by --skip-footer"), "{summary}");
            }
        }
    });
}

/// With `--stray-quotes copy`, a stray quote in a skipped line changes nothing: the file loads as if
/// it had been cleaned by hand.
#[test]
fn a_stray_quote_in_a_skipped_line_means_nothing() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE s (id int, a text); CREATE TABLE t (LIKE s)");
    for (eol, other) in [("\n", "\r"), ("\r\n", "\r"), ("\r", "\n")] {
        let clean = format!("1,\"a{other}b\"{eol}2,5\" pipe\"{eol}3,\"c{other}d\"{eol}");
        world.sql("TRUNCATE s");
        assert_eq!(world.stock("COPY s FROM STDIN CSV", clean.as_bytes()).unwrap(), 3);
        for (head, footer, options) in [
            ("5\" tubes", "", &["--skip-lines", "1"][..]),
            ("5\" tubes", "Total", &["--skip-lines", "1", "--skip-footer", "1"]),
            ("# 5\" tubes", "", &["--comment", "#"]),
            ("# 5\" tubes", "Total", &["--comment", "#", "--skip-footer", "1"]),
        ] {
            world.sql("TRUNCATE t");
            let path = world.file("t.csv", format!("{head}{eol}{clean}{footer}").as_bytes());
            let base = [path.as_str(), "--table", "t", "--stray-quotes", "copy"];
            let label = format!("{options:?}, {eol:?}");
            world.load(&[&base[..], options].concat()).unwrap_or_else(|e| panic!("{label}: {e}"));
            assert_eq!(world.difference("s", "t"), "", "{label}");
        }
    }
}

/// `--skip-lines`, `--skip-footer` and `--comment` apply to each file by itself: on standard input,
/// over several connections, with rejects, and with records that are too long to be held in memory.
#[test]
fn each_file_has_its_own_lines_around_its_records() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE s (id int, a text); CREATE TABLE t (LIKE s)");
    let (small, clean, lines) = export(50, false, "\n");
    let (large, clean_large, lines_large) = export(30_000, false, "\r\n");
    let long = "long \"\"value\"\"\n# of\n".repeat(400_000);
    let clean_giant = format!("id,a\n1,x\n2,\"{long}\"\n3,y\n").into_bytes();
    let giant = format!("\n\n\nid,a\n1,x\n# \"\n2,\"{long}\"\n# \"\"\"\n3,y\n\nTotal,\"\n1\n");
    for bytes in [&clean, &clean_large, &clean_giant] {
        world.stock("COPY s FROM STDIN (FORMAT csv, HEADER)", bytes).unwrap();
    }
    let a = world.file("a.csv", &small);
    let b = world.file("b.csv.gz", &gzip(&large));
    let c = world.file("c.csv", giant.as_bytes());
    let rejects = world.path("rejects.csv");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    for (more, stdin) in [
        (&["--method", "copy-csv"][..], false),
        (&["--method", "lanes", "--lanes", "3"], true),
        (&["--method", "copy-binary"], true),
        (&reject, false),
    ] {
        world.sql("TRUNCATE t");
        let files = [a.as_str(), &b, if stdin { "-" } else { &c }];
        let summary = world.path("summary.json");
        let base = ["load", "--table", "t", "--header", "--quiet", "--summary", &summary];
        let output =
            world.run_with(&[&base[..], &files, more, &OPTIONS].concat(), giant.as_bytes());
        assert!(output.status.success(), "{more:?}: {output:?}");
        assert_eq!(world.difference("s", "t"), "", "{more:?}");
        let summary: serde_json::Value =
            serde_json::from_slice(&fs::read(summary).unwrap()).unwrap();
        let passed = lines + lines_large + 8;
        let counts = [&summary["read"], &summary["loaded"], &summary["skipped"]];
        assert_eq!(counts, [30_053 + passed, 30_053, passed], "{more:?}");
    }
}

/// Errors, rejects and `check` give lines and offsets in the whole file, including lines that are
/// no records.
#[test]
fn errors_and_rejects_name_the_lines_of_the_file() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text)");
    let bytes = b"x\n\"\ny\nid,a\n1,a\n# \"\n\n# c\n2,\"two\nlines\"\nq,b\n3,c\nTotal\n1\n";
    let whole = String::from_utf8(bytes.to_vec()).unwrap();
    // The empty line is in the middle, so it is a bad record.
    let file = world.file("t.csv", bytes);
    let base = [&[file.as_str(), "--table", "t", "--header"], &OPTIONS[..]].concat();
    let said_of = |place: &str| format!("byte offset {}", whole.find(place).unwrap());
    let error = world.load(&base).unwrap_err();
    assert!(error.contains("line 7, record 2") && error.contains(&said_of("\n# c")), "{error}");
    let rejects = world.path("rejects.csv");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    for method in METHODS {
        let _ = fs::remove_file(&rejects);
        let _ = fs::remove_file(format!("{rejects}.jsonl"));
        world.sql("TRUNCATE t");
        let more = ["--method", method];
        let summary = world.load(&[&base[..], &reject, &more].concat()).unwrap();
        assert_eq!(summary["rejected"], 2, "{method}");
        assert_eq!(summary["skipped"], 7, "{method}");
        let mut kept = fs::read_to_string(&rejects).unwrap();
        // Lanes reject records in any order.
        if method == "lanes" && kept == "id,a\nq,b\n\n" {
            kept = "id,a\n\nq,b\n".into();
        }
        assert_eq!(kept, "id,a\n\nq,b\n", "{method}");
        let side = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
        let told: Vec<serde_json::Value> =
            side.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
        let mut places: Vec<(usize, usize)> =
            told.iter().map(|t| (number(&t["line"]), number(&t["offset"]))).collect();
        places.sort_unstable();
        let offset = |of: &str| whole.find(of).unwrap();
        assert_eq!(places, [(7, offset("\n# c")), (11, offset("q,b"))], "{method}");
    }
    let output = world.run(&[&["check"], &base[..]].concat());
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(listed.contains("t.csv:7:") && listed.contains("t.csv:11:"), "{listed}");
    let header = world.file("header.csv", b"x\n\"\ny\nid,nope\n1,a\nTotal\n1\n");
    let error = world.load(&[&[header.as_str()], &base[1..]].concat()).unwrap_err();
    assert!(error.contains("line 4") && error.contains("nope"), "{error}");
}

/// A first line such as `sep=;` sets the delimiter and is no record. It is copied to the reject
/// file, and a `--delimiter` that differs is an error.
#[test]
fn excels_first_line_names_the_delimiter() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text)");
    let excel = world.file("excel.csv", b"\xef\xbb\xbfsep=;\r\nid;a\r\n1;x\r\n2;y,z\r\nq;v\r\n");
    let same = world.file("same.csv", b"\"SEP=;\"\nid;a\n3;w\n");
    let none = world.file("none.csv", b"id;a\n4;u\n");
    let rejects = world.path("rejects.csv");
    let base = ["--table", "t", "--header"];
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    for method in METHODS {
        let _ = fs::remove_file(&rejects);
        let _ = fs::remove_file(format!("{rejects}.jsonl"));
        world.sql("TRUNCATE t");
        let files = [excel.as_str(), &same, &none, "--method", method];
        let summary = world.load(&[&files[..], &base, &reject].concat()).unwrap();
        assert_eq!((&summary["loaded"], &summary["skipped"]), (&4.into(), &0.into()), "{method}");
        assert!(summary["notes"].to_string().contains("names the delimiter: sep=;"), "{summary}");
        let rows = "SELECT string_agg(t::text, ' ' ORDER BY id) FROM t";
        assert_eq!(world.sql(rows), "(1,x) (2,\"y,z\") (3,w) (4,u)", "{method}");
        // The reject file can be read like the input.
        assert_eq!(fs::read_to_string(&rejects).unwrap(), "sep=;\r\nid;a\r\nq;v\r\n", "{method}");
    }
    let stopped = world.load(&[&[excel.as_str()], &base[..]].concat()).unwrap_err();
    assert!(stopped.contains("line 5, record 3"), "{stopped}");
    // The line may be one of those that are skipped. With `--delimiter`, it need not be right then.
    for (file, more, code) in [
        (&same, &["--delimiter", ";"][..], 0),
        (&same, &["--skip-lines", "1"], 0),
        (&same, &["--delimiter", "|"], 4),
        (&same, &["--delimiter", "|", "--skip-lines", "1"], 4),
        (&none, &["--delimiter", ";", "--skip-lines", "0"], 0),
    ] {
        let output = world.run(&[&["load", file, "-q"], &base[..], more].concat());
        assert_eq!(output.status.code(), Some(code), "{more:?}: {output:?}");
    }
    let output = world.run(&[&["load", &same, "--delimiter", "|"], &base[..]].concat());
    let told = said(&output);
    assert!(told.contains("line 1: the line names the delimiter ';'"), "{told}");
    let output = world.run(&["load", &none, &same, "--delimiter", "|", "--table", "t"]);
    assert!(!output.status.success());
    // `--create` takes types and names from what follows the line.
    let create = ["load", &same, "--table", "made", "--header", "--create", "-q"];
    assert!(world.run(&create).status.success());
    assert_eq!(world.sql("SELECT id + 1 || a FROM made"), "4w");
}

/// Values that `--skip-lines`, `--skip-footer` and `--comment` cannot have are usage errors. If a
/// file has fewer lines than they say, all are skipped.
#[test]
fn options_on_lines_have_limits() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text)");
    let file = world.file("t.csv", b"1,a\n2,b\n");
    let run = |world: &World, more: &[&str]| {
        world.run(&[&["load", &file, "--table", "t", "-q"], more].concat())
    };
    for more in [
        &["--comment", ","][..],
        &["--comment", "\""],
        &["--comment", "1"],
        &["--comment", "//"],
        &["--comment", "#", "--null", "#N/A"],
        &["--comment", "#", "--null", "id=#N/A"],
        &["--skip-footer", "1001"],
        &["--skip-lines", "-1"],
        &["--format", "binary", "--skip-lines", "1"],
        &["--format", "binary", "--skip-footer", "1"],
        &["--format", "binary", "--comment", "#"],
        &["--format", "text", "--comment", "\\"],
    ] {
        let output = run(&world, more);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {output:?}");
    }
    for more in [&["--skip-lines", "9"][..], &["--skip-footer", "9"], &["--skip-lines", "2"]] {
        let summary = world.load(&[&[file.as_str(), "--table", "t"], more].concat()).unwrap();
        assert_eq!((&summary["read"], &summary["skipped"]), (&2.into(), &2.into()), "{more:?}");
        let output = run(&world, &[more, &["--truncate"]].concat());
        assert_eq!(output.status.code(), Some(4), "{more:?}: {output:?}");
    }
    let long = format!("1,a\n2,{}\n", "x".repeat(9 << 20));
    let file = world.file("long.csv", long.as_bytes());
    let said = world.load(&[&file, "--table", "t", "--skip-footer", "1"]).unwrap_err();
    assert!(said.contains("have more than 4 MB"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    // --skip counts records after the header, --limit ends before the footer.
    let (bytes, _, _) = export(20, false, "\n");
    let file = world.file("export.csv", &bytes);
    let part = [&file, "--table", "t", "--header", "--skip", "4", "--limit", "3"];
    let summary = world.load(&[&part[..], &OPTIONS].concat()).unwrap();
    assert_eq!((&summary["read"], &summary["skipped"]), (&11.into(), &8.into()), "{summary}");
    assert_eq!(world.sql("SELECT string_agg(id::text, ',') FROM t"), "4,5,6");
}

/// Empty lines at the end are counted as skipped. In the middle they are an error, and in a table
/// of one column they are records, as for COPY.
#[test]
fn empty_lines_at_the_end_are_counted_as_skipped() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (id int, a text); CREATE TABLE one (a text)");
    let csv = world.file("t.csv", b"1,a\n2,b\n\n\n\n");
    let text = world.file("t.txt", b"1\ta\n2\tb\\\n\n\n");
    for (file, format, blank) in [(&csv, "csv", 3), (&text, "text", 0)] {
        world.sql("TRUNCATE t");
        let loaded = world.load(&[file, "--table", "t", "--format", format]);
        if blank == 0 {
            // The line end after the backslash is a part of the value: one empty line is left.
            assert!(loaded.unwrap_err().contains("record 3"));
            continue;
        }
        let summary = loaded.unwrap();
        assert_eq!((&summary["read"], &summary["skipped"]), (&(2 + blank).into(), &blank.into()));
    }
    let text = world.file("t.txt", b"1\ta\n2\tb\n\n\n");
    let summary = world.load(&[&text, "--table", "t", "--format", "text"]).unwrap();
    assert_eq!((&summary["read"], &summary["skipped"]), (&4.into(), &2.into()));
    let middle = world.file("middle.csv", b"1,a\n\n2,b\n");
    let said = world.load(&[&middle, "--table", "t"]).unwrap_err();
    assert!(said.contains("line 2"), "{said}");
    // In a table of one column an empty line is a record.
    let one = world.file("one.csv", b"x\n\n\n");
    let summary = world.load(&[&one, "--table", "one"]).unwrap();
    assert_eq!((&summary["loaded"], &summary["skipped"]), (&3.into(), &0.into()));
}

/// The records that `--skip` leaves out determine the line end of the file, as a header does.
#[test]
fn skipped_records_have_the_line_end_of_the_file() {
    let mut world = World::new(&each_major().remove(0));
    world.sql("CREATE TABLE t (a text, b text)");
    let file = world.file("rows.csv", b"h,x\n1,a\rb\n2,c\n3,d\n");
    let rejects = world.path("rejects.csv");
    let to = ["--table", "t", "--on-error", "reject", "--reject-file", &rejects];
    let to = [&to[..], &["--reject-existing", "replace"]].concat();
    for more in [&["--skip", "1"][..], &["--header=ignore"]] {
        world.sql("TRUNCATE t");
        let summary = world.load(&[&[file.as_str()][..], &to, more].concat()).unwrap();
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &1.into()), "{more:?}");
        assert_eq!(std::fs::read(&rejects).unwrap().last(), Some(&b'\n'));
        assert_eq!(world.sql("SELECT string_agg(a, ' ' ORDER BY a) FROM t"), "2 3");
    }
}

/// A header may have several lines, and lines may end with CR. Values, rejects and errors name the
/// lines of the file.
#[test]
fn lines_are_counted_behind_a_header_of_several() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (n int, a int)");
    // A line end of another kind within quotes ends no line.
    let headers = [
        ("\"x\ny\"", "\n", 1),
        ("\"x\r\ny\"", "\r\n", 1),
        ("\"x\ry\"", "\r", 1),
        ("\"x\ny\"", "\r", 0),
    ];
    for (name, eol, more) in headers {
        let file = world.file("t.csv", format!("{name}{eol}1{eol}2{eol}x{eol}").as_bytes());
        let to = ["--table", "t", "--header=ignore", "--columns", "a", "--set", "n={line}"];
        world.sql("TRUNCATE t");
        let kept = world.path("rejects.csv");
        let rejects =
            ["--on-error", "reject", "--reject-file", &kept, "--reject-existing", "replace"];
        let summary = world.load(&[&[file.as_str()][..], &to, &rejects].concat()).unwrap();
        assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &1.into()));
        let lines = world.sql("SELECT string_agg(n || ':' || a, ' ' ORDER BY a) FROM t");
        assert_eq!(lines, format!("{}:1 {}:2", 2 + more, 3 + more), "{name:?}{eol:?}");
        let said = world.load(&[&[file.as_str()][..], &to].concat()).unwrap_err();
        assert!(said.contains(&format!("line {}, record 3", 4 + more)), "{name:?}{eol:?}: {said}");
    }
    let bytes = b"1,a\r2,b\r3,\"c\nd\"\r4,e\xff\r5,f\r";
    let file = world.file("bad.csv", bytes);
    let output = world.run(&["convert", &file, "--types", "int4,text", "--out", &world.path("o")]);
    assert!(said(&output).contains("line 4, record 4, byte offset 16"), "{}", said(&output));
}

/// A record has as many lines in the limit of rejects as among the lines that were read. If lines
/// end with CR LF, a bare LF in a cell ends none.
#[test]
fn lines_within_cells_count_alike_for_rejects() {
    let mut world = World::new(&each_major().remove(0));
    world.sql("CREATE TABLE t (a int, b text)");
    let cell = "x\n".repeat(20);
    for eol in ["\r\n", "\n"] {
        let record = |i: usize| {
            let first = if i % 100 == 50 { "bad".into() } else { i.to_string() };
            // Until a line has ended, COPY does not count the lines within quotes.
            let cell = if i == 0 { "x" } else { &cell };
            format!("{first},\"{cell}\"{eol}")
        };
        let file = world.file("cells.csv", (0..10_000).map(record).collect::<String>().as_bytes());
        let rejects = world.path("rejects.csv");
        let to = ["--table", "t", "--truncate", "--on-error", "reject", "--reject-file", &rejects];
        let to = [&to[..], &["--reject-existing", "replace"]].concat();
        let summary = world.load(&[&[file.as_str()][..], &to].concat()).unwrap();
        let counts = (&summary["loaded"], &summary["rejected"]);
        assert_eq!(counts, (&9_900.into(), &100.into()), "{eol:?}");
        let reasons = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
        let first: serde_json::Value =
            serde_json::from_str(reasons.lines().next().unwrap()).unwrap();
        let lines = if eol == "\n" { (1 + 49 * 21 + 1, 21) } else { (51, 1) };
        assert_eq!((&first["line"], &first["lines"]), (&lines.0.into(), &lines.1.into()));
    }
}
