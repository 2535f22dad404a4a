//! Machines are killed at random moments; the remaining ones complete the load.

use super::{ended, machine, machines, quoted, sum, whole, worlds_files, LONG, SHORT};
use crate::common::{wait_until, World};
use crate::once::lines;
use std::thread::sleep;
use std::time::Duration;

/// Whether something is loaded, and something is left to be loaded.
fn is_in_the_middle(world: &mut World) -> bool {
    let begun = "SELECT to_regclass('pgsluice_loads.parts') IS NOT NULL";
    let left = "SELECT count(*) > 0 AND (SELECT count(*) > 0 FROM pgsluice_loads.pieces) \
        FROM pgsluice_loads.parts";
    world.sql(begun) == "t" && world.sql(left) == "t"
}

/// Two of three machines are killed in each round. The third one takes over their parts and
/// completes the load.
#[test]
fn killed_machines_are_replaced() {
    let most = if std::env::var_os("PGSLUICE_SOAK").is_some() { 200 } else { 30 };
    let mut files = vec![("big.csv".to_owned(), quoted(60_000))];
    files.extend((1..6).map(|i| {
        let mut bytes = b"a,b\n".to_vec();
        bytes.extend(lines(i * 100_000, 10_000));
        (format!("{i}.csv"), bytes)
    }));
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let (mut world, paths) = worlds_files(&files, true);
    world.sql("ALTER TABLE t ADD PRIMARY KEY (a)");
    let mut all: Vec<&str> = paths.iter().map(String::as_str).collect();
    all.extend(["--header", "--commit-every", "128kB"]);
    let lanes = [&all[..], &["--method", "lanes", "--lanes", "2"]].concat();
    let (mut done, mut in_the_middle, mut random) = (0, 0, 20_u64);
    // Milliseconds within which a machine is killed: more if nothing is committed by then, as on a
    // slow or busy computer.
    let mut within = 700;
    let mut below = |end: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    while done < most || in_the_middle < 4 && done < 10 * most {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        let all = if done % 4 < 2 { &all } else { &lanes };
        let last = below(3) as usize;
        let start = |i: usize| {
            let lease = if i == last { LONG } else { ["--lease", "1s"] };
            machine(&world, &format!("{i}.json"), &[&all[..], &lease].concat())
        };
        let mut children: Vec<_> = (0..3).map(start).collect();
        let last = children.remove(last);
        for mut child in children {
            sleep(Duration::from_millis(20 + below(within)));
            if child.try_wait().unwrap().is_none() {
                child.kill().unwrap();
                done += 1;
            }
            child.wait().unwrap();
            in_the_middle += usize::from(is_in_the_middle(&mut world));
        }
        if world.sql("SELECT count(*) FROM t") == "0" {
            within += within / 5;
        }
        let output = last.wait_with_output().unwrap();
        assert!(output.status.success(), "after {done} kills: {output:?}");
        whole(&mut world, &format!("after {done} kills"));
    }
    eprintln!("{done} kills, {in_the_middle} in the middle");
    assert!(in_the_middle > 3, "no kill came in the middle");
}

/// After all machines are killed, other machines continue the load with the same command, and so
/// does a load without `--share`.
#[test]
fn all_machines_are_killed() {
    let (mut world, paths) = worlds_files(&[("big.csv", quoted(150_000))], true);
    let all = [paths[0].as_str(), "--header", "--commit-every", "256kB"];
    let killed = [&all[..], &SHORT].concat();
    for shared in [true, false] {
        world.sql("TRUNCATE t; DROP SCHEMA IF EXISTS pgsluice_loads CASCADE");
        world.shut_gate();
        let children: Vec<_> =
            (0..2).map(|i| machine(&world, &format!("{i}.json"), &killed)).collect();
        let begun = "SELECT to_regclass('pgsluice_loads.pieces') IS NOT NULL";
        wait_until(|| "nothing begins".into(), || world.sql(begun) == "t");
        let some = "SELECT count(*) > 2 FROM pgsluice_loads.commits";
        wait_until(|| "nothing is committed".into(), || world.sql(some) == "t");
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        world.open_gate();
        world.wait_until_alone();
        let rows: u64 = world.sql("SELECT count(*) FROM t").parse().unwrap();
        assert!(rows > 0 && rows < 150_000, "{rows}");
        let loaded = match shared {
            true => sum(&machines(&world, 2, &all), "loaded"),
            false => {
                let alone = [&all[..], &["--table", "t", "--once"]].concat();
                world.load(&alone).unwrap()["loaded"].as_u64().unwrap()
            }
        };
        assert_eq!(loaded, 150_000 - rows);
        world.sql("DELETE FROM pgsluice_loads.leases");
        whole(&mut world, &format!("shared: {shared}"));
    }
    let more = machine(&world, "more.json", &all);
    assert_eq!(ended(&world, "more.json", more)["read"], 0);
}
