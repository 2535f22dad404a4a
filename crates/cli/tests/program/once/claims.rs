//! Loads that have lost the session with their claims, and loads of the same bytes under another
//! name. Each row is loaded once.

use super::{counts, exact, lines, start, thrice, world};
use crate::common::{signal, wait_until, Signal, World};

/// Ends the only session that holds claims.
fn end_claims(world: &mut World) {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM pg_locks \
        WHERE locktype = 'advisory' AND granted) l";
    assert_eq!(world.sql(end), "1");
}

/// A world with a ledger, a file of some lines, and a copy of the file.
fn world_with_copy(count: usize) -> (World, String, String) {
    let world = world();
    let bytes = lines(0, count);
    let (path, copy) = (world.file("a.csv", &bytes), world.file("copy.csv", &bytes));
    let small = world.file("small.csv", b"1000000,x\n");
    world.load(&[&small, "--table", "t", "--once"]).unwrap();
    (world, path, copy)
}

/// A load loses its claims and is suspended before it has committed anything. The next load, of a
/// copy under another name, takes over, and the first one fails.
#[test]
fn a_load_that_lost_its_claims_is_stopped_by_that_of_a_copy() {
    let (mut world, path, copy) = world_with_copy(300_000);
    world.shut_gate();
    let first = start(&world, &[&path]);
    world.suspend_at_gate(&first);
    end_claims(&mut world);
    let all = [&copy, "--table", "t", "--once", "--lock-timeout", "1min"];
    assert_eq!(world.load(&all).unwrap()["loaded"], 300_000);
    assert!(signal(first.id(), Signal::SIGCONT));
    let output = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("load 2 was stopped") && said.contains("hint:"), "{said}");
    exact(&mut world, "after the first load");
    assert_eq!(counts(&mut world), thrice(300_001));
    for file in [&path, &copy] {
        assert_eq!(world.load(&[file, "--table", "t", "--once"]).unwrap()["read"], 0);
    }
}

/// A load loses its claims before it is registered, so the load of a copy does not find it. The
/// first load fails before its first row.
#[test]
fn a_load_that_lost_its_claims_before_it_is_registered_fails() {
    let (mut world, path, copy) = world_with_copy(1000);
    world.sql("BEGIN; LOCK TABLE pgsluice_loads.loads IN SHARE MODE");
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted \
        AND relation = 'pgsluice_loads.loads'::regclass";
    let first = start(&world, &[&path]);
    wait_until(|| "nothing is claimed".into(), || world.sql(waiting) == "1");
    end_claims(&mut world);
    let second = start(&world, &[&copy]);
    wait_until(|| "the copy is not claimed".into(), || world.sql(waiting) == "2");
    world.sql("COMMIT");
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let output = second.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    exact(&mut world, "after both");
    assert_eq!(counts(&mut world), thrice(1001));
    for file in [&path, &copy] {
        assert_eq!(world.load(&[file, "--table", "t", "--once"]).unwrap()["read"], 0);
    }
}
