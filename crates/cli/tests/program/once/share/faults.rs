//! Machines that are suspended for a while, servers that restart, clocks that are wrong.

use super::{ended, machine, machines, quoted, sum, whole, worlds_files, SHORT};
use crate::common::{signal, wait_until, Signal, World};
use crate::once::{exact, lines};
use std::process::{Child, Command};

/// Starts a machine with a short lease, and suspends its process while it has a part and has
/// committed another.
fn held_up(world: &mut World, name: &str, all: &[&str]) -> Child {
    world.shut_gate();
    let lease: &[&str] = if all.contains(&"--lease") { &[] } else { &SHORT };
    let child = machine(world, name, &[all, lease].concat());
    world.suspend_at_gate(&child);
    assert_ne!(world.sql("SELECT count(*) FROM pgsluice_loads.parts WHERE load = 1"), "0");
    child
}

/// Suspends a machine for longer than its lease, and lets others complete the load. `table` is run
/// before.
fn comes_back(table: &str) {
    let (mut world, paths) = worlds_files(&[("big.csv", quoted(150_000))], true);
    world.sql(table);
    let all = [paths[0].as_str(), "--header", "--commit-every", "256kB", "--lock-timeout", "2min"];
    let child = held_up(&mut world, "0.json", &all);
    let done = machines(&world, 2, &all);
    let lost: u64 = done.iter().map(|s| s["share"]["machines_lost"].as_u64().unwrap_or(0)).sum();
    assert_eq!(lost, 1, "{done:?}");
    whole(&mut world, "without the first machine");
    assert!(signal(child.id(), Signal::SIGCONT));
    let back = ended(&world, "0.json", child);
    assert_eq!(back["read"], back["loaded"], "{back}");
    whole(&mut world, "with the first machine");
    let stopped = "SELECT state || ' ' || (error LIKE 'its lease expired%') \
        FROM pgsluice_loads.loads WHERE number = 1";
    assert_eq!(world.sql(stopped), "stopped true");
}

const KEY: &str = "ALTER TABLE t ADD PRIMARY KEY (a)";

/// A machine is suspended for longer than its lease. Its rows have the same keys as those of the
/// machines that take over, which complete the load. When it continues, it finds that it has lost
/// its part, and joins again.
#[test]
fn a_machine_that_comes_back_doubles_nothing() {
    comes_back("");
    comes_back(KEY);
}

/// The same, if the machines have set another role than the one that has logged in.
#[test]
fn sessions_that_have_set_a_role_are_ended() {
    comes_back(&format!(
        "{KEY}; CREATE ROLE keeper; ALTER TABLE t OWNER TO keeper; \
         GRANT CREATE ON DATABASE postgres TO keeper; ALTER ROLE postgres SET role = keeper"
    ));
}

/// A machine was suspended for longer than its lease and continues while others are still loading.
/// Each row is loaded once.
#[test]
fn a_machine_comes_back_among_others() {
    let (mut world, paths) = worlds_files(&[("big.csv", quoted(300_000))], true);
    let all = [paths[0].as_str(), "--header", "--commit-every", "128kB"];
    let child = held_up(&mut world, "0.json", &all);
    let other = machine(&world, "1.json", &all);
    let stopped = "SELECT state FROM pgsluice_loads.loads WHERE number = 1";
    wait_until(|| "the lease does not expire".into(), || world.sql(stopped) == "stopped");
    assert!(signal(child.id(), Signal::SIGCONT));
    let done = [ended(&world, "0.json", child), ended(&world, "1.json", other)];
    // Its summary counts the rows that it has committed, before and after.
    assert!(sum(&done, "loaded") <= 300_000, "{done:?}");
    whole(&mut world, "together");
}

/// A machine is suspended between its COMMIT and the server's answer. No machine takes its part
/// until the outcome is known. A deferred trigger delays the COMMIT of rows only: a wait for a
/// standby could delay the renewal of a lease instead.
#[test]
fn a_commit_is_waited_for() {
    let (mut world, paths) = worlds_files(&[("big.csv", quoted(150_000))], true);
    world.sql("CREATE TABLE gate (closed boolean)");
    world.sql(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           WHILE EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP; \
           RETURN NULL; END $$",
    );
    world.sql(
        "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW WHEN (new.a % 100 = 0) EXECUTE FUNCTION wait()",
    );
    let all = [paths[0].as_str(), "--header", "--commit-every", "256kB"];
    let mut child = held_up(&mut world, "0.json", &all);
    world.sql("INSERT INTO gate VALUES (true)");
    assert!(signal(child.id(), Signal::SIGCONT));
    let commits = "SELECT count(*) > 0 FROM pg_stat_activity \
        WHERE query ILIKE 'commit%' AND wait_event = 'PgSleep'";
    wait_until(|| "no commit waits".into(), || world.sql(commits) == "t");
    assert!(signal(child.id(), Signal::SIGSTOP));
    let expired = "SELECT clock_timestamp() > expires + interval '1 s' FROM pgsluice_loads.leases \
        WHERE load = 1";
    wait_until(|| "the lease stays".into(), || world.sql(expired) == "t");
    let others = machine(&world, "1.json", &all);
    let joined = "SELECT count(*) > 1 FROM pgsluice_loads.leases";
    wait_until(|| "nobody joins".into(), || world.sql(joined) == "t");
    let state = "SELECT state FROM pgsluice_loads.loads WHERE number = 1";
    assert_eq!(world.sql(state), "running");
    child.kill().unwrap();
    child.wait().unwrap();
    world.sql("DELETE FROM gate");
    let other = ended(&world, "1.json", others);
    assert_eq!(other["share"]["machines_lost"], 1, "{other}");
    whole(&mut world, "after the commit");
}

/// A machine is suspended after it has locked its load's row and before its COMMIT. The server ends
/// its session, so that the others do not wait forever.
#[test]
fn a_machine_that_holds_locks_is_not_waited_for() {
    let (mut world, paths) = worlds_files(&[("big.csv", quoted(150_000))], true);
    let all = [paths[0].as_str(), "--header", "--commit-every", "64kB"];
    let child = held_up(&mut world, "0.json", &all);
    // The machine locks the row before it writes to this table.
    world.sql("BEGIN; LOCK TABLE pgsluice_loads.pieces IN SHARE MODE");
    assert!(signal(child.id(), Signal::SIGCONT));
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted \
        AND relation = 'pgsluice_loads.pieces'::regclass";
    wait_until(|| "it records nothing".into(), || world.sql(waits) == "1");
    assert!(signal(child.id(), Signal::SIGSTOP));
    let free = "SELECT count(*) FROM (SELECT FROM pgsluice_loads.loads WHERE number = 1 \
        FOR UPDATE SKIP LOCKED) l";
    assert_eq!(world.sql(free), "0");
    world.sql("COMMIT");
    machines(&world, 2, &all);
    whole(&mut world, "without the first machine");
    assert!(signal(child.id(), Signal::SIGCONT));
    let back = ended(&world, "0.json", child);
    assert_eq!(back["read"], back["loaded"], "{back}");
    whole(&mut world, "with the first machine");
}

/// A machine is suspended while it joins and has the lock under which machines plan. The server
/// ends its session, so that others can join.
#[test]
fn a_machine_that_joins_is_not_waited_for() {
    let (mut world, paths) = worlds_files(&[("a.csv", lines(0, 10_000))], false);
    world.load(&[&world.file("b.csv", b"-1,x\n"), "--table", "t", "--once"]).unwrap();
    world.sql(
        "DELETE FROM t; DELETE FROM pgsluice_loads.pieces; DELETE FROM pgsluice_loads.sources",
    );
    world.sql("DELETE FROM pgsluice_loads.commits");
    let all = [paths[0].as_str(), "--commit-every", "64kB"];
    world.sql("BEGIN; LOCK TABLE pgsluice_loads.parts");
    let child = machine(&world, "0.json", &[&all[..], &SHORT].concat());
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted \
        AND relation = 'pgsluice_loads.parts'::regclass";
    wait_until(|| "it never joins".into(), || world.sql(waits) == "1");
    assert!(signal(child.id(), Signal::SIGSTOP));
    world.sql("COMMIT");
    let other = machine(&world, "1.json", &all);
    assert_eq!(ended(&world, "1.json", other)["loaded"], 10_000);
    whole(&mut world, "without the first machine");
    assert!(signal(child.id(), Signal::SIGCONT));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(5 | 6)), "{said}");
    whole(&mut world, "with the first machine");
}

/// If the server restarts, all machines end, and the same command continues the load.
#[test]
fn the_server_restarts() {
    let (mut world, paths) = worlds_files(&[("big.csv", quoted(150_000))], true);
    let all = [paths[0].as_str(), "--header", "--commit-every", "256kB"];
    let killed = [&all[..], &SHORT].concat();
    world.shut_gate();
    let children: Vec<_> = (0..3).map(|i| machine(&world, &format!("{i}.json"), &killed)).collect();
    let begun = "SELECT to_regclass('pgsluice_loads.commits') IS NOT NULL";
    wait_until(|| "nothing begins".into(), || world.sql(begun) == "t");
    let some = "SELECT count(*) > 2 FROM pgsluice_loads.commits";
    wait_until(|| "nothing is committed".into(), || world.sql(some) == "t");
    world.server.kill9().unwrap();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{output:?}");
    }
    world.restart_with(&[]);
    exact(&mut world, "after a restart");
    let rows: u64 = world.sql("SELECT count(*) FROM t").parse().unwrap();
    let done = machines(&world, 2, &all);
    assert_eq!(sum(&done, "loaded"), 150_000 - rows);
    world.sql("DELETE FROM pgsluice_loads.leases");
    whole(&mut world, "after a restart");
}

/// The clocks of machines differ by years. No machine is taken for dead, since only the server's
/// clock decides when a lease expires.
#[test]
fn clocks_of_machines_decide_nothing() {
    let (mut world, paths) = worlds_files(&[("big.csv", quoted(100_000))], true);
    let source = world.file(
        "clock.c",
        b"#define _GNU_SOURCE\n#include <stdlib.h>\n#include <sys/syscall.h>\n#include <time.h>\n\
          #include <unistd.h>\n\
          int clock_gettime(clockid_t id, struct timespec *t) {\n\
            int done = syscall(SYS_clock_gettime, id, t);\n\
            if (id == CLOCK_REALTIME) t->tv_sec += atol(getenv(\"CLOCK_AHEAD\"));\n\
            return done;\n}\n\
          time_t time(time_t *to) {\n\
            struct timespec t; clock_gettime(CLOCK_REALTIME, &t);\n\
            if (to) *to = t.tv_sec;\n            return t.tv_sec;\n}\n",
    );
    let library = world.path("clock.so");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status();
    assert!(made.unwrap().success());
    let load = |name: &str, ahead: &str| {
        Command::new(env!("CARGO_BIN_EXE_pgsluice"))
            .args(["load", "--quiet", "--table", "t", "--once", "--share", "--lease", "5min"])
            .args([&paths[0], "--header", "--commit-every", "256kB"])
            .args(["--to", &world.server.url("postgres"), "--summary", &world.path(name)])
            .env("LD_PRELOAD", &library)
            .env("CLOCK_AHEAD", ahead)
            .spawn()
            .unwrap()
    };
    let children = [load("0.json", "300000000"), load("1.json", "-300000000"), load("2.json", "0")];
    let names = ["0.json", "1.json", "2.json"];
    let done: Vec<_> =
        children.into_iter().zip(names).map(|(child, name)| ended(&world, name, child)).collect();
    let years: Vec<&str> = done.iter().map(|s| &s["started"].as_str().unwrap()[..4]).collect();
    assert!(years[0] > years[2] && years[2] > years[1], "{years:?}");
    assert_eq!(sum(&done, "loaded"), 100_000, "{done:?}");
    let lost: u64 = done.iter().map(|s| s["share"]["machines_lost"].as_u64().unwrap_or(0)).sum();
    assert_eq!(lost, 0, "{done:?}");
    whole(&mut world, "with other clocks");
}

/// After SIGTERM, the parts of a machine are free at once, and others need not wait until its lease
/// expires.
#[test]
fn a_machine_that_is_stopped_leaves_its_parts() {
    let (mut world, paths) = worlds_files(&[("a.csv", lines(0, 400_000))], false);
    let all = [paths[0].as_str(), "--commit-every", "256kB"];
    let child = held_up(&mut world, "0.json", &[&all[..], &["--lease", "1h"]].concat());
    assert!(signal(child.id(), Signal::SIGTERM));
    assert!(signal(child.id(), Signal::SIGCONT));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("of this machine are committed and recorded as load 1"), "{said}");
    let left = "SELECT count(*) FILTER (WHERE load IS NOT NULL) || ' ' || \
        (SELECT count(*) FROM pgsluice_loads.leases) FROM pgsluice_loads.parts";
    assert_eq!(world.sql(left), "0 0");
    machines(&world, 2, &all);
    whole(&mut world, "stopped and continued");
}
