//! A load must neither empty a table nor reject most of a file by mistake.

use crate::common::{each_major, World};
use std::fs;

fn world() -> World {
    World::new(each_major().last().unwrap())
}

/// A load with `--truncate` that would load no row fails and leaves the table unchanged, by every
/// method. Cases: an empty pipe, a filter that keeps nothing, only bad values, all records skipped.
/// `--allow-empty` permits it.
#[test]
fn a_load_that_would_leave_the_emptied_table_empty_changes_nothing() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let wrong = world.file("wrong.csv", b"p,x\nq,y\n");
    let good = world.file("good.csv", b"1,x\n2,y\n");
    let rejects = world.path("rejects");
    let reject = ["--on-error", "reject", "--reject-file", &rejects];
    let reject = [wrong.as_str(), reject[0], reject[1], reject[2], reject[3]];
    let cases: [(&[&str], &str); 4] = [
        (&["-"], "the input has no records"),
        (&[&good, "--where", "a > 5"], "none of the 2 records read was loaded"),
        (&reject, "of 2 records read, 2 records were rejected and none was loaded"),
        (&[&good, "--skip", "2"], "none of the 2 records read was loaded"),
    ];
    for method in ["auto", "copy-csv", "copy-fresh", "lanes", "staged", "insert-batch", "insert"] {
        for (more, why) in &cases {
            let inserts = method.starts_with("insert");
            if inserts && (more.contains(&"--where") || method == "insert" && more.len() > 1) {
                continue;
            }
            let _ = fs::remove_file(&rejects);
            let _ = fs::remove_file(format!("{rejects}.jsonl"));
            world.sql("TRUNCATE t; INSERT INTO t VALUES (7, 'old')");
            let base = ["load", "--quiet", "--table", "t", "--truncate", "--method", method];
            let output = world.run(&[&base[..], more].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(4), "{method} {more:?}: {said}");
            assert!(said.contains(why) && said.contains("--allow-empty"), "{method}: {said}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), "1", "{method} {more:?}");
        }
        let base = ["load", "-", "--table", "t", "--truncate", "--allow-empty", "--method", method];
        let output = world.run(&base);
        assert_eq!(output.status.code(), Some(0), "{method}: {output:?}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0", "{method}");
    }
}

/// If the input has no records, `--create` fails and creates no table, unless `--allow-empty` is
/// given.
#[test]
fn a_new_table_without_a_row_is_not_created() {
    let mut world = world();
    let file = world.file("t.csv", b"a,b\n");
    let base = ["load", &file, "--table", "n", "--header", "--create"];
    for more in [&[][..], &["--method", "lanes"]] {
        let output = world.run(&[&base[..], more].concat());
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert_eq!(world.sql("SELECT to_regclass('n')"), "", "{more:?}");
    }
    let output = world.run(&[&base[..], &["--allow-empty"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) FROM n"), "0");
}

/// A record may span many lines. The reject limit counts these lines as well as records, and the
/// summary has both numbers.
#[test]
fn the_reject_limit_counts_lines_too() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int, b text)");
    let mut bytes = b"x,\"".to_vec();
    bytes.extend_from_slice(&b"line\n".repeat(300));
    bytes.extend_from_slice(b"\"\n");
    (0..900).for_each(|i| bytes.extend_from_slice(format!("{i},y\n").as_bytes()));
    let file = world.file("t.csv", &bytes);
    let rejects = world.path("rejects");
    let base = ["load", &file, "--table", "t", "--on-error", "reject", "--reject-file", &rejects];
    for (limit, passes) in [
        (None, false),
        (Some("10%"), false),
        (Some("300"), false),
        (Some("301"), true),
        (Some("26%"), true),
        (Some("none"), true),
        (Some("100%"), true),
    ] {
        let _ = fs::remove_file(&rejects);
        let _ = fs::remove_file(format!("{rejects}.jsonl"));
        let more = limit.map_or(vec![], |limit| vec!["--reject-limit", limit]);
        let output = world.run(&[&base[..], &more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(if passes { 3 } else { 4 }), "{limit:?}: {said}");
        let both = if passes { "rejected 1 (301 lines)" } else { "1 record (301 lines)" };
        assert!(said.contains(both), "{limit:?}: {said}");
        let side = fs::read_to_string(format!("{rejects}.jsonl")).unwrap();
        assert!(side.contains("\"lines\":301"), "{side}");
    }
}

/// Without `--reject-limit`, at most 10 % of what was read may be rejected, but 100 records always
/// may be. A load that exceeds this stops before the end of a long file.
#[test]
fn the_default_limit_stops_a_load_whose_dialect_is_wrong() {
    let mut world = world();
    world.sql("CREATE TABLE t (a int)");
    let rejects = world.path("rejects");
    let some = |bad: usize, good: usize| [b"x\n".repeat(bad), b"1\n".repeat(good)].concat();
    for (bad, good, passes) in
        [(100, 0, false), (100, 1, true), (101, 908, false), (101, 909, true)]
    {
        let file = world.file("t.csv", &some(bad, good));
        let _ = fs::remove_file(&rejects);
        let _ = fs::remove_file(format!("{rejects}.jsonl"));
        let base = ["load", &file, "--table", "t", "--truncate", "--on-error", "reject"];
        let output = world.run(&[&base[..], &["--reject-file", &rejects]].concat());
        let code = if passes { 3 } else { 4 };
        assert_eq!(output.status.code(), Some(code), "{bad} {good}: {output:?}");
    }
    // The load stops before the end of a long file.
    world.sql("DROP TABLE t; CREATE TABLE t (a int, b int)");
    let file = world.file("long.csv", &some(400_000, 0));
    let _ = fs::remove_file(&rejects);
    let _ = fs::remove_file(format!("{rejects}.jsonl"));
    let base = ["load", &file, "--table", "t", "--on-error", "reject", "--reject-file", &rejects];
    let output = world.run(&base);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(
        said.contains("check the delimiter") && said.contains("10% of what was read"),
        "{said}"
    );
    let lines = fs::read_to_string(&rejects).unwrap().lines().count();
    assert!(lines < 300_000, "{lines}");
}
