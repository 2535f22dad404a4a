//! `--route leaf` over several connections, and in several transactions.

use super::{difference, load, twins};
use crate::common::{on_first_and_last_major, on_last_major, wait_until, World};
use pgsluice_engine::internals::Conn;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

/// Four hash partitions.
fn hashed(world: &mut World) {
    let mut ddl = String::from("CREATE TABLE @ (a int, b text) PARTITION BY HASH (a);");
    for i in 0..4 {
        ddl += &format!(
            "CREATE TABLE @_{i} (a int, b text, CHECK (a < 1000000));
             ALTER TABLE @ ATTACH PARTITION @_{i} FOR VALUES WITH (MODULUS 4, REMAINDER {i});"
        );
    }
    twins(world, &ddl);
}

/// Rows for many chunks.
fn rows(range: std::ops::Range<u32>) -> String {
    let words = "words to fill the row ".repeat(5);
    range.map(|a| format!("{a},{words}{a}\n")).collect()
}

/// Rows, rejects and errors are those of COPY into the root. The lanes are committed together.
fn several(world: &mut World) {
    hashed(world);
    let lanes = ["--method", "lanes", "--lanes", "3"];
    let good = rows(0..60_000);
    let summary = load(world, good.as_bytes(), &lanes);
    assert_eq!((&summary["to_partitions"], &summary["lanes"]), (&60_000.into(), &3.into()));
    assert!(summary["notes"].to_string().contains("by two-phase commit"), "{summary}");

    let bad = good.replace("\n30000,", "\n3000000,").replace("\n50000,", "\n5000000,");
    let file = world.file("bad.csv", bad.as_bytes());
    let all = |route| [&[&*file, "--table", "t", "--route", route], &lanes[..]].concat();
    let rejected = |world: &mut World, route| {
        world.sql("TRUNCATE t");
        let kept = world.path(&format!("kept-{route}"));
        let more = ["--on-error", "reject", "--reject-file", &kept];
        let summary = world.load(&[&all(route)[..], &more].concat()).unwrap();
        let told = std::fs::read_to_string(format!("{kept}.jsonl")).unwrap();
        let mut told: Vec<String> = told.lines().map(str::to_owned).collect();
        told.sort();
        (summary["loaded"].clone(), summary["rejected"].clone(), told)
    };
    let by_root = rejected(world, "root");
    assert_eq!((&by_root.0, &by_root.1), (&59_998.into(), &2.into()));
    assert_eq!(rejected(world, "leaf"), by_root);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "59998");

    world.sql("TRUNCATE t");
    let one = world.file("one.csv", good.replace("\n30000,", "\n3000000,").as_bytes());
    let said = |route| {
        let all = [&[&*one, "--table", "t", "--route", route], &lanes[..]].concat();
        world.load(&all).unwrap_err()
    };
    let by_root = said("root");
    assert!(by_root.contains("line 30001"), "{by_root}");
    assert_eq!(said("leaf"), by_root);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    assert_eq!(world.sql("SELECT count(*) FROM pg_prepared_xacts"), "0");
}

/// With lanes and `--route leaf`, rows, rejects and errors are those of COPY into the root. The
/// lanes are committed together.
#[test]
fn lanes_send_rows_to_partitions() {
    on_first_and_last_major(|installation| several(&mut World::new(installation)));
}

/// A load in pieces that exceeds its reject limit is continued. Ledger and rejects are those of a
/// plain table.
fn in_pieces(world: &mut World) {
    hashed(world);
    let good = rows(0..60_000);
    let bad = good.replace("\n20000,", "\n2000000,").replace("\n30000,", "\n3000000,");
    let file = world.file("pieces.csv", bad.as_bytes());
    let kept = world.path("rejects");
    for lanes in [1, 3] {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let count = lanes.to_string();
        let mut all = vec![&*file, "--table", "t", "--route", "leaf", "--once"];
        all.extend(["--commit-every", "1MB"]);
        match lanes {
            1 => all.extend(["--method", "copy-binary"]),
            _ => all.extend(["--method", "lanes", "--lanes", &count]),
        }
        let rejecting = |limit| {
            let more = ["--on-error", "reject", "--reject-file", &kept, "--reject-limit", limit];
            [&all[..], &more].concat()
        };
        world.load(&rejecting("1")).unwrap_err();
        let some = world.sql("SELECT count(*) FROM t").parse::<u32>().unwrap();
        assert!(some > 0 && some < 59_998, "{some}");
        let summary = world.load(&rejecting("none")).unwrap();
        assert!(summary["to_partitions"].as_u64() > Some(0), "{summary}");
        let found = world.sql("SELECT count(*) || ' ' || count(DISTINCT a) FROM t");
        assert_eq!(found, "59998 59998", "{summary}");
        let recorded = world.sql(
            "SELECT concat_ws(' ', sum(read), sum(loaded), sum(rejected)) FROM pgsluice_loads.commits",
        );
        assert_eq!(recorded, "60000 59998 2", "{summary}");
        let mut lines: Vec<String> =
            std::fs::read_to_string(&kept).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        let ends: Vec<&str> = lines.iter().filter_map(|line| line.split(',').next()).collect();
        assert_eq!(ends, ["2000000", "3000000"]);
        std::fs::remove_file(&kept).unwrap();
        std::fs::remove_file(format!("{kept}.jsonl")).unwrap();
    }
}

/// With `--route leaf`, a load in pieces that exceeds its reject limit can be continued. Ledger and
/// rejects are those of a plain table.
#[test]
fn pieces_sent_to_partitions_are_recorded_as_any_others() {
    on_last_major(|installation| in_pieces(&mut World::new(installation)));
}

/// A partition that is detached between two transactions of a load gets no row from then on.
fn detached_between(world: &mut World) {
    twins(
        world,
        "CREATE TABLE @ (a int, b text) PARTITION BY LIST (a);
         CREATE TABLE @_1 PARTITION OF @ FOR VALUES IN (1);
         CREATE TABLE @_2 PARTITION OF @ FOR VALUES IN (2);
         CREATE TABLE @_rest PARTITION OF @ DEFAULT",
    );
    let words = "words to fill the row ".repeat(20);
    let some: String = (0..5_000).map(|i| format!("{},{words}{i}\n", 1 + i % 3)).collect();
    let to = world.server.url("postgres");
    let arguments = ["load", "-", "--table", "t", "--route", "leaf", "--method", "copy-binary"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(arguments)
        .args(["--once", "--source-name", "rows", "--commit-every", "1MB", "--to", &to])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(some.as_bytes()).unwrap();
    let mut sent = 1;
    wait_until(|| "nothing is committed".into(), || world.sql("SELECT count(*) FROM t") != "0");
    let mut other = Conn::open(&to).unwrap();
    let detach = thread::spawn(move || other.exec("ALTER TABLE t DETACH PARTITION t_2").map(drop));
    while !detach.is_finished() {
        input.write_all(some.as_bytes()).unwrap();
        sent += 1;
    }
    detach.join().unwrap().unwrap();
    let before = world.sql("SELECT count(*) FROM t_2");
    for _ in 0..3 {
        input.write_all(some.as_bytes()).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("partitions were changed during the load"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t_2"), before);
    let all = world.sql("SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM t_2)");
    assert_eq!(all, ((sent + 3) * 5_000).to_string());
    assert_ne!(world.sql("SELECT count(*) FROM t_rest WHERE a = 2"), "0");
    world.sql("DROP TABLE t_2");
}

/// A partition that is detached between two transactions of a load gets no row from then on. The
/// next rows go where the changed table has them, and a note says so.
#[test]
fn a_partition_detached_between_two_transactions_gets_no_more_rows() {
    on_last_major(|installation| detached_between(&mut World::new(installation)));
}

/// With `--once`, lanes and pieces, the rows are those of stock COPY, and a second load loads
/// nothing.
fn alike(world: &mut World) {
    hashed(world);
    let good = rows(0..40_000);
    let more = ["--method", "lanes", "--lanes", "2", "--once", "--commit-every", "512kB"];
    let summary = load(world, good.as_bytes(), &more);
    assert_eq!(summary["to_partitions"], 40_000, "{summary}");
    let file = world.path("rows.csv");
    let again = [&[&*file, "--table", "t", "--route", "leaf"], &more[..]].concat();
    let summary = world.load(&again).unwrap();
    assert_eq!((&summary["loaded"], &summary["files_known"]), (&0.into(), &1.into()));
    assert_eq!(difference(world), "");
}

/// With `--route leaf`, `--once`, lanes and pieces, the rows are those of stock COPY, and a second
/// load loads nothing.
#[test]
fn pieces_of_lanes_are_the_rows_of_stock_copy() {
    on_first_and_last_major(|installation| alike(&mut World::new(installation)));
}
