//! The statements that a load sends. Each is a round trip, and over a distance these take longer
//! than the work of the server.

use crate::common::{each_major, World};

/// The first line of each statement that the server has logged since the last call.
fn statements(world: &World, from: &mut usize) -> Vec<String> {
    let sent = |line: &str| {
        let found = line.split_once("statement: ");
        found.or_else(|| line.split_once("execute <unnamed>: ")).map(|(_, sql)| sql.to_owned())
    };
    world.log(from).lines().filter_map(sent).collect()
}

/// A load of two rows into a table with rows sends few statements.
#[test]
fn a_small_load_sends_few_statements() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (0, 'x')");
    let file = world.file("rows.csv", b"1,x\n2,y\n");
    let mut log = 0;
    world.log(&mut log);
    assert_eq!(world.load(&[&file, "--table", "t"]).unwrap()["loaded"], 2);
    let sent = statements(&world, &mut log);
    // This grows only if a load has to know or to do more.
    assert!(sent.len() <= 34, "{}: {sent:#?}", sent.len());
}

/// A load that locks its table first looks only then for prepared lanes of a load that is gone, and
/// not again when it drops indexes.
#[test]
fn prepared_lanes_are_looked_for_once() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (0, 'x')");
    let file = world.file("rows.csv", b"1,x\n2,y\n");
    let mut log = 0;
    world.log(&mut log);
    world.load(&[&file, "--table", "t", "--indexes", "rebuild"]).unwrap();
    let sent = statements(&world, &mut log);
    let looked = sent.iter().filter(|s| s.contains("DISTINCT ON (load) load")).count();
    assert_eq!(looked, 1, "{sent:#?}");
    assert!(sent.iter().any(|s| s.contains("DROP CONSTRAINT t_pkey")), "{sent:#?}");
}

/// With rejects, the savepoint of a chunk and its release are sent together with other statements.
/// The condition of `--where` may end with a comment.
#[test]
fn savepoints_of_chunks_take_no_round_trip() {
    let mut world = World::new(each_major().last().unwrap());
    let rows: String = (0..200_000).map(|i| format!("{i},some text\n")).collect();
    let file = world.file("rows.csv", rows.as_bytes());
    let rejects = world.path("rejects");
    for (method, condition, loaded) in [
        ("copy-csv", "a >= 0", 200_000),
        ("copy-csv", "a < 150000 -- not all", 150_000),
        ("copy-binary", "a >= 0", 200_000),
        ("staged", "a >= 0", 200_000),
    ] {
        let label = format!("{method} where {condition}");
        world.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text)");
        let mut log = 0;
        world.log(&mut log);
        let reject = ["--on-error", "reject", "--reject-file", &rejects, "--where", condition];
        let load = [&file, "--table", "t", "--method", method];
        let summary = world.load(&[&load[..], &reject[..]].concat()).unwrap();
        assert_eq!(summary["loaded"], loaded, "{label}");
        let mut sent = statements(&world, &mut log);
        sent.retain(|s| s.contains("SAVEPOINT pgsluice") && !s.contains("SAVEPOINT pgsluice_"));
        let together = |s: &String| s.contains("; COPY ") || s.contains("; TRUNCATE ");
        assert!(sent.len() >= 4 && sent.iter().all(together), "{label}: {sent:#?}");
    }
}
