//! A bad record is found after other lanes or machines have committed later ones. The tests show
//! how to correct it, and that no row is loaded twice.

use super::{counts, exact, lines, start, thrice, world};
use crate::common::World;
use std::fs;

const ROWS: usize = 60_000;

/// A file whose load has failed.
struct Failed {
    world: World,
    path: String,
    /// the file
    bytes: Vec<u8>,
    /// where its bad record begins
    at: usize,
    /// rows that are committed
    rows: usize,
    /// what the load said
    said: String,
}

const LANES: [&str; 6] = ["--header", "--commit-every", "64kB", "--method", "lanes", "--lanes=2"];
const SHARE: [&str; 6] = ["--header", "--commit-every", "64kB", "--share", "--lease", "5min"];

/// Loads a file by lanes or machines. The first record waits until another lane or machine has
/// committed something, so the bad record after it is found later than that.
fn failed(options: &[&str]) -> Failed {
    let mut world = world();
    world.sql(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           WHILE NOT EXISTS (SELECT FROM pgsluice_loads.commits) LOOP PERFORM pg_sleep(0.01); \
           END LOOP; RETURN new; END $$; \
         CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW WHEN (new.a = 0) EXECUTE FUNCTION f()",
    );
    let mut bytes = [b"a,b\n", lines(0, ROWS).as_slice()].concat();
    let at = bytes.windows(3).position(|w| w == b"\n7,").unwrap() + 1;
    bytes[at] = b'x';
    let path = world.file("a.csv", &bytes);
    let all = [&[path.as_str()], options].concat();
    let children = match options.contains(&"--share") {
        true => vec![start(&world, &all), start(&world, &all)],
        false => vec![start(&world, &all)],
    };
    let mut said = String::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        said += &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
    }
    world.sql("DROP TRIGGER f ON t");
    exact(&mut world, "after the bad record");
    let rows = world.sql("SELECT count(*) FROM t").parse().unwrap();
    assert!(rows > 0 && rows < ROWS, "{rows}");
    Failed { world, path, bytes, at, rows, said }
}

/// If a correction changes the length of a record, later ranges move, and the load is refused. The
/// hint says what works: with `--on-error reject`, all else is loaded, and the bad record is in the
/// reject file.
#[test]
fn a_record_before_committed_ones_can_be_rejected() {
    for options in [&LANES, &SHARE] {
        let Failed { mut world, path, bytes, at, rows, said } = failed(options);
        assert!(said.contains("line 9, record 8"), "{said}");
        let hint =
            "correct the record without changing its length and run the same command again, \
            or use --on-error reject without --share";
        assert!(said.contains(hint), "{said}");
        let all = [&[path.as_str(), "--table", "t", "--once"], &options[..]].concat();
        fs::write(&path, [&bytes[..at], b"70", &bytes[at + 1..]].concat()).unwrap();
        let said = world.load(&all).unwrap_err();
        let hint = "hint: undo the change; then correct bad records without changing their length, or use \
            --on-error reject without --share; under another name";
        assert!(said.contains("has changed since it was loaded") && said.contains(hint), "{said}");
        assert!(said.contains("pgsluice loads show "), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), rows.to_string());
        // Do what the hint says.
        fs::write(&path, &bytes).unwrap();
        let rejects = world.path("bad.csv");
        let alone: Vec<&str> = match options.contains(&"--share") {
            true => all[..all.len() - 3].to_vec(),
            false => all,
        };
        let all = [&alone[..], &["--on-error", "reject", "--reject-file", &rejects]].concat();
        let summary = world.load(&all).unwrap();
        assert_eq!((&summary["rejected"], &summary["records_known"]), (&1.into(), &rows.into()));
        assert_eq!(fs::read_to_string(&rejects).unwrap(), "a,b\nx,\"some text, of line 7\"\n");
        assert_eq!(counts(&mut world), thrice(ROWS - 1));
        assert_eq!(world.load(&all).unwrap()["files_known"], 1);
        // Correct the record in the reject file and load that.
        fs::write(&rejects, "a,b\n70,\"some text, of line 7\"\n").unwrap();
        world.load(&[&rejects, "--table", "t", "--header", "--once"]).unwrap();
        assert_eq!(world.sql("SELECT count(*) FROM t"), ROWS.to_string());
    }
}

/// A correction that keeps the length works, wherever the record is, while a changed header is an
/// error.
#[test]
fn a_record_near_the_header_can_be_corrected() {
    for options in [&LANES, &SHARE] {
        let Failed { mut world, path, mut bytes, at, rows, .. } = failed(options);
        let all = [&[path.as_str(), "--table", "t", "--once"], &options[..]].concat();
        bytes[at] = b'7';
        let other = [b"b,a\n", &bytes[4..]].concat();
        fs::write(&path, other).unwrap();
        let said = world.load(&all).unwrap_err();
        assert!(said.contains("has changed since it was loaded: bytes 0 to "), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), rows.to_string());
        fs::write(&path, &bytes).unwrap();
        assert_eq!(world.load(&all).unwrap()["loaded"], ROWS - rows);
        assert_eq!(counts(&mut world), thrice(ROWS));
        exact(&mut world, "corrected");
    }
}
