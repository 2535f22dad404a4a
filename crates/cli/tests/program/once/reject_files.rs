//! Reject files of loads that commit in pieces: long records, trailers, names that are in use, and
//! names from other roles.

use super::rejects::{load, mixed};
use super::{lines, world};
use crate::common::World;
use std::fs;
use std::os::unix::fs::symlink;

/// A record that is too long to be held in memory is read in pieces, and its COPY stays open until
/// the last one. No commit comes before that, whether the record is loaded or rejected.
#[test]
fn long_records_are_loaded_or_rejected_whole() {
    let mut world = world();
    let (mut bytes, mut bad) = mixed(0, 20_000);
    let text = "long, \n".repeat(900_000);
    for i in 0..4 {
        let key = if i == 2 { "x2".into() } else { format!("{}", 100_000 + i) };
        let long = format!("{key},\"{text}\"\n");
        let (more, worse) = mixed(30_000 + i * 10_000, 10_000);
        bytes.extend([long.as_bytes(), more.as_slice()].concat());
        bad.extend((i == 2).then_some(long));
        bad.extend(worse);
    }
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let summary = load(&world, &path, &rejects, "none", &["--commit-every", "1MB"]).unwrap();
    assert!(summary["transactions"].as_u64().unwrap() > 4, "{summary}");
    assert_eq!(summary["rejected"], bad.len(), "{summary}");
    let records = fs::read_to_string(&rejects).unwrap();
    assert!(records == bad.concat(), "{} of {} bytes", records.len(), bad.concat().len());
    let long = "SELECT count(*) || ' ' || sum(length(b)) FROM t WHERE length(b) > 1000";
    assert_eq!(world.sql(long), format!("3 {}", 3 * text.len()));
    let rows = 60_004 - bad.len();
    let sums = "SELECT sum(read) || ' ' || sum(loaded) || ' ' || sum(rejected) \
        FROM pgsluice_loads.commits";
    assert_eq!(world.sql(sums), format!("60004 {rows} {}", bad.len()));
    assert_eq!(world.sql("SELECT count(*) FROM t"), rows.to_string());
}

/// A continued load rejects a record that is too long for memory. It is appended to the reject file:
/// under rules by which no reject leaves a quote open, no second file is needed.
#[test]
fn a_long_record_of_a_continued_load_needs_no_second_file() {
    let mut world = world();
    let (mut bytes, mut bad) = mixed(0, 60_000);
    let long = format!("x2,\"{}\"\n", "long, \n".repeat(1_300_000));
    bytes.extend_from_slice(long.as_bytes());
    bad.push(long);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    load(&world, &path, &rejects, "100", &["--commit-every", "64kB"]).unwrap_err();
    let before = world.sql("SELECT sum(records) FROM pgsluice_loads.reject_files");
    assert_ne!(before, "0");
    let summary = load(&world, &path, &rejects, "none", &["--commit-every", "64kB"]).unwrap();
    assert_eq!(summary["rejected_before"], before.parse::<u64>().unwrap(), "{summary}");
    let records = fs::read_to_string(&rejects).unwrap();
    assert!(records == bad.concat(), "{} of {} bytes", records.len(), bad.concat().len());
    assert!(!fs::exists(world.path("bad.2")).unwrap(), "{summary}");
}

/// The last COMMIT fails, and its transaction has no rejects. By then, the binary reject file has
/// its trailer, which the next load writes again. Other bytes after the recorded ones are an error.
#[test]
fn a_trailer_without_its_commit_is_written_again() {
    let mut world = world();
    let bytes = lines(0, 60_000);
    let plain = world.file("plain.csv", &bytes);
    let binary = world.path("rows.bin");
    let out = world.run(&["convert", &plain, "--table", "t", "--out", &binary]);
    assert!(out.status.success(), "{out:?}");
    world.load(&[&world.file("b.csv", b"-1,x\n"), "--table", "t", "--once"]).unwrap();
    world.sql("ALTER TABLE t ADD CHECK (a NOT BETWEEN 100 AND 110)");
    world.sql(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS \
           $$ BEGIN RAISE 'not yet'; END $$; \
         CREATE CONSTRAINT TRIGGER f AFTER UPDATE ON pgsluice_loads.loads DEFERRABLE \
           INITIALLY DEFERRED FOR EACH ROW WHEN (new.state = 'complete') EXECUTE FUNCTION f()",
    );
    let rejects = world.path("bad.bin");
    // Lanes complete the load in a transaction that checks deferred triggers at its end.
    let more = ["--format", "binary", "--commit-every", "256kB", "--method", "lanes", "--lanes=2"];
    let load = |world: &World| load(world, &binary, &rejects, "none", &more);
    for _ in 0..2 {
        let said = load(&world).unwrap_err();
        assert!(said.contains("not yet"), "{said}");
    }
    let recorded = world.sql("SELECT bytes FROM pgsluice_loads.reject_files");
    let whole = fs::read(&rejects).unwrap();
    assert_eq!(whole.len() as u64, recorded.parse::<u64>().unwrap() + 2);
    // Other bytes after the recorded ones are not from this load.
    fs::write(&rejects, [whole.as_slice(), b"\xff"].concat()).unwrap();
    let said = load(&world).unwrap_err();
    assert!(said.contains("has more than this load has written"), "{said}");
    fs::write(&rejects, &whole).unwrap();
    world.sql("DROP TRIGGER f ON pgsluice_loads.loads");
    assert_eq!(load(&world).unwrap()["rejected_before"], 11);
    assert_eq!(fs::read(&rejects).unwrap(), whole);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "59990");
}

/// The loader briefly needs a second file next to the reject file. If a file with that name is not
/// empty, it is kept and the load is refused. If it is empty, a killed load has left it, and it is
/// removed.
#[test]
fn a_file_with_the_name_of_the_loaders_own_is_kept() {
    let mut world = world();
    let (bytes, bad) = mixed(0, 10_000);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let own = world.file("bad.part", b"of somebody else");
    let said = load(&world, &path, &rejects, "none", &[]).unwrap_err();
    assert!(said.contains("bad.part") && said.contains("hint: "), "{said}");
    assert_eq!(fs::read_to_string(&own).unwrap(), "of somebody else");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    fs::write(&own, b"").unwrap();
    assert_eq!(load(&world, &path, &rejects, "none", &[]).unwrap()["rejected"], bad.len());
    assert!(!fs::exists(&own).unwrap());
}

/// Any role that may insert into the table may write rows about reject files. The files that they
/// name are not changed, not removed, and not reached through a symbolic link.
#[test]
fn rows_of_other_roles_lead_to_no_file() {
    let mut world = world();
    let (bytes, bad) = mixed(0, 100_000);
    let path = world.file("a.csv", &bytes);
    let rejects = world.path("bad");
    let size = ["--commit-every", "256kB"];
    load(&world, &path, &rejects, "100", &size).unwrap_err();
    let before = world.sql("SELECT sum(records) FROM pgsluice_loads.reject_files");
    let (empty, other) = (world.file("empty", b""), world.file("other", b"1,x\n"));
    world.sql("CREATE ROLE clerk; GRANT INSERT (a) ON t TO clerk; SET ROLE clerk");
    for (name, records) in [("empty", 0), ("link", 0), ("more", 1)] {
        let file = world.path(name);
        if name != "empty" {
            symlink(&other, &file).unwrap();
            world.file(&format!("{name}.jsonl"), b"{\"file\":\"a.csv\"}\n");
        }
        world.sql(&format!(
            "INSERT INTO pgsluice_loads.reject_files \
             VALUES (1, '{file}', 0, '', 0, '', {records}, {records})"
        ));
    }
    world.sql("RESET ROLE");
    let summary = load(&world, &path, &rejects, "none", &size).unwrap();
    assert_eq!(summary["rejected_before"], before.parse::<u64>().unwrap(), "{summary}");
    assert_eq!(fs::read_to_string(&rejects).unwrap(), bad.concat());
    assert!(fs::exists(&empty).unwrap());
    assert_eq!(fs::read_to_string(&other).unwrap(), "1,x\n");
    // The name of the load's own reject file is not followed, either.
    let own = world.path("own");
    symlink(&empty, &own).unwrap();
    let next = world.file("b.csv", &mixed(100_000, 1000).0);
    let said = load(&world, &next, &own, "none", &[]).unwrap_err();
    assert!(said.contains("own: it is a symbolic link"), "{said}");
}
