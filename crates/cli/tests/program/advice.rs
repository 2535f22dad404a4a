//! `plan` gives advice before a load: each note appears where it applies, with its reason, and
//! nowhere else.

use crate::common::{on_first_and_last_major, World};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const MB: u64 = 1 << 20;

/// A server whose settings are too small for a large load.
fn world(installation: &pgsluice_pgserver::Installation) -> World {
    let settings = [
        ("max_wal_size", "64MB"),
        ("checkpoint_timeout", "30s"),
        ("wal_compression", "off"),
        ("shared_buffers", "16MB"),
    ];
    let mut world = World::with(installation, None, &settings);
    world.sql("CREATE TABLE t (a bigint, b bigint, c text)");
    world
}

/// Creates a sparse file of this length that begins with this record.
fn file(world: &World, name: &str, record: &[u8], length: u64) -> String {
    let path = world.file(name, record);
    File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
    path
}

/// Runs `plan`, which must succeed; returns its notes.
fn notes(world: &World, arguments: &[&str]) -> Vec<String> {
    let output = world.run(&[&["plan"], arguments].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    said.lines().filter_map(|l| l.strip_prefix("note      ").map(str::to_owned)).collect()
}

/// Returns the only note with this beginning, or `None`.
fn note<'n>(notes: &'n [String], start: &str) -> Option<&'n str> {
    let mut found = notes.iter().filter(|n| n.starts_with(start));
    let note = found.next();
    assert!(found.next().is_none(), "twice: {notes:?}");
    note.map(String::as_str)
}

fn settings(world: &mut World) {
    let large = file(world, "large.csv", b"1,2,x\n", 4000 * MB);
    let small = file(world, "small.csv", b"1,2,x\n", MB);
    let of_large = notes(world, &[&large, "--table", "t"]);
    let said = note(&of_large, "max_wal_size is 64 MB").unwrap();
    assert!(said.contains("force checkpoints") && said.contains("12000 MB would not"), "{said}");
    let said = note(&of_large, "checkpoint_timeout is 30 s").unwrap();
    assert!(said.contains("the load takes 200 s"), "{said}");
    // No note is about settings that matter only if indexes stay during the load.
    let about_indexes = ["wal_compression", "shared_buffers"];
    assert!(about_indexes.iter().all(|s| note(&of_large, s).is_none()), "{of_large:?}");
    assert_eq!(notes(world, &[&small, "--table", "t"]), [""; 0]);

    world.sql(
        "CREATE TABLE i (a bigint PRIMARY KEY, b bigint, c text);
         INSERT INTO i SELECT i, i, repeat('x', 100) FROM generate_series(1, 200000) i",
    );
    let of_indexed = notes(world, &[&large, "--table", "i"]);
    let said = note(&of_indexed, "wal_compression is off").unwrap();
    assert!(said.contains("logged whole at their first change after a checkpoint"), "{said}");
    let said = note(&of_indexed, "shared_buffers is 16 MB").unwrap();
    assert!(said.contains("read again and again"), "{said}");
    assert_eq!(notes(world, &[&small, "--table", "i"]), [""; 0]);
    // The database's own setting overrides that of the server.
    world.sql("ALTER DATABASE postgres SET wal_compression = on");
    assert!(note(&notes(world, &[&large, "--table", "i"]), "wal_compression").is_none());
}

fn slots(world: &mut World) {
    let large = file(world, "large.csv", b"1,2,x\n", 100 * MB);
    assert!(note(&notes(world, &[&large, "--table", "t"]), "replication slots").is_none());
    world.sql("SELECT pg_create_physical_replication_slot('standby', true)");
    for input in [large.as_str(), "-"] {
        let notes = notes(world, &[input, "--table", "t"]);
        let said = note(&notes, "replication slots").unwrap();
        assert!(said.contains("hold back the WAL") && said.ends_with(": standby"), "{said}");
    }
    world.sql("SELECT pg_drop_replication_slot('standby')");
}

fn disk(world: &mut World) {
    // Larger than any disk. The file is sparse and takes no space.
    let huge = file(world, "huge.csv", b"1,2,x\n", 2_000_000 * MB);
    let all = notes(world, &[&huge, "--table", "t"]);
    let data = world.server.data().to_str().unwrap().to_owned();
    let said = note(&all, &format!("the disk under {data} has ")).unwrap();
    assert!(said.contains("may need up to 8000000 MB"), "{said}");
    // Each index takes room, too.
    let indexes = world.sql("SELECT count(*) FROM pg_index WHERE indrelid = 'i'::regclass");
    let needed = (4 + 2 * indexes.parse::<u64>().unwrap()) * 2_000_000;
    let all = notes(world, &[&huge, "--table", "i"]);
    let said = note(&all, &format!("the disk under {data} has ")).unwrap();
    assert!(indexes != "0" && said.contains(&format!("may need up to {needed} MB")), "{said}");
    // A role that may not read `data_directory` gets no note.
    world.sql("CREATE ROLE plain LOGIN; GRANT INSERT ON t TO plain");
    let url = world.server.url("postgres").replace("postgres@", "plain@");
    let output = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["plan", &huge, "--table", "t", "--to", &url])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("max_wal_size"), "{output:?}");
    assert!(!said.contains("the disk under"), "{said}");
    let small = file(world, "small.csv", b"1,2,x\n", MB);
    assert!(note(&notes(world, &[&small, "--table", "t"]), "the disk").is_none());
}

/// The note says how many bytes the better order of columns saves in each row; check that number.
fn order_of_columns(world: &mut World) {
    world.sql("CREATE TABLE o (f bool, a bigint, g bool, b bigint, h smallint, c bigint)");
    let file = world.file("o.csv", b"t,1,f,2,3,4\n");
    let all = notes(world, &[&file, "--table", "o"]);
    let said = note(&all, "the order of columns wastes about ").unwrap();
    assert!(said.contains(" 16 bytes in each row") && said.contains("a, b, c, h, f, g"), "{said}");
    world.sql("CREATE TABLE better (a bigint, b bigint, c bigint, h smallint, f bool, g bool)");
    assert!(notes(world, &[&file, "--table", "better"]).is_empty());
    let width = |world: &mut World, table: &str, row: &str| {
        world.sql(&format!("INSERT INTO {table} VALUES {row}"));
        let size = format!("SELECT (pg_column_size({table}.*) + 7) / 8 * 8 FROM {table}");
        world.sql(&size).parse::<u64>().unwrap()
    };
    let saved = width(world, "o", "(true, 1, true, 2, 3, 4)")
        - width(world, "better", "(1, 2, 4, 3, true, true)");
    assert_eq!(saved, 16);
}

fn triggers(world: &mut World) {
    world.sql(
        "CREATE TABLE g (a int);
         CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER first BEFORE INSERT ON g FOR EACH ROW EXECUTE FUNCTION fire();
         CREATE TRIGGER last AFTER INSERT ON g EXECUTE FUNCTION fire();
         CREATE TRIGGER never AFTER DELETE ON g EXECUTE FUNCTION fire();
         CREATE TABLE w (a text);
         CREATE TRIGGER first BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION fire()",
    );
    let file = world.file("g.csv", b"1\n");
    let said = notes(world, &[&file, "--table", "g"]);
    let expected = |statement: &str| {
        let each = format!("trigger last fires for each {statement}");
        let slow = "a BEFORE trigger makes the server insert row by row".to_owned();
        ["trigger first fires for each row".to_owned(), each, slow]
    };
    assert_eq!(said, expected("COPY"));
    // With `--triggers off` there is no note, except by `insert`, which leaves the triggers on.
    let off = [&file, "--table", "g", "--triggers", "off"];
    assert_eq!(notes(world, &off), [""; 0]);
    let said = notes(world, &[&off[..], &["--method", "insert"]].concat());
    assert_eq!(said[..3], expected("INSERT"));
    let said = notes(world, &[&file, "--table", "g", "--method", "staged"]);
    assert_eq!(said, expected("INSERT"));
}

/// `load` prints the notes of `plan` before it has read all rows.
fn before_the_load(world: &mut World) {
    // Longer than the part that is examined before the load. The test sends the rest later.
    let wide = [vec![b'x'; 4 << 20], b"\n".to_vec()].concat();
    let start = world.file("wide.csv", &wide);
    let planned = notes(world, &[&start, "--table", "w"]);
    assert_eq!(planned.len(), 2, "{planned:?}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["load", "-", "--table", "w", "--to", &world.server.url("postgres")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rows = child.stdin.take().unwrap();
    rows.write_all(&wide).unwrap();
    let said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // On a slow machine, progress lines may come in between.
    let mut said = said.filter(|l| {
        let progress = l.contains(", bottleneck: ") && !l.contains(" rows loaded ");
        l.starts_with(' ') || !progress && !l.contains(" since the start")
    });
    let first = said.next().unwrap();
    assert!(first.starts_with("\"public\".\"w\": loading by copy-text ("), "{first}");
    let told: Vec<String> = said.by_ref().take(planned.len()).collect();
    assert_eq!(told, planned.iter().map(|n| format!("  note: {n}")).collect::<Vec<_>>());
    assert_eq!(world.sql("SELECT count(*) FROM w"), "0");
    rows.write_all(b"2\n").unwrap();
    drop(rows);
    let rest: Vec<String> = said.collect();
    assert!(child.wait().unwrap().success());
    // The notes are not repeated at the end of the load.
    assert!(rest.iter().any(|l| l.contains("2 rows loaded by copy-text")), "{rest:?}");
    assert!(!rest.iter().any(|l| told.contains(l)), "{rest:?}");
    assert_eq!(world.sql("SELECT count(*) FROM w"), "2");

    let file = world.file("g.csv", b"3\n");
    let quiet = world.run(&["load", &file, "--table", "g", "--quiet"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
    let given_up = "  gives up durability: a crash empties the table, and replicas do not have it";
    let unlogged =
        world.run(&["load", &file, "--table", "g", "--method", "unlogged", "--truncate"]);
    let said = String::from_utf8_lossy(&unlogged.stderr).into_owned();
    assert!(unlogged.status.success() && said.lines().any(|l| l == given_up), "{said}");
}

/// `plan` and `load` give advice before the first row: on settings, replication slots, disk space,
/// the order of columns and triggers. They do so only where it applies.
#[test]
fn advice() {
    on_first_and_last_major(|installation| {
        let mut world = world(installation);
        settings(&mut world);
        slots(&mut world);
        disk(&mut world);
        order_of_columns(&mut world);
        triggers(&mut world);
        before_the_load(&mut world);
    });
}
