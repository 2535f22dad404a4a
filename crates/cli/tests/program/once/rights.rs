//! Roles and the tables of the ledger.

use super::{lines, start, world};
use crate::common::{psql, wait_until};
use std::io::Write;
use std::process::{Command, Stdio};

/// If a role may not create the ledger, the hint names `loads init --print`, with which an
/// administrator creates it. Each role then sees and writes only the part of the ledger about its
/// own tables.
#[test]
fn an_administrator_creates_the_tables() {
    let mut world = world();
    world.sql(
        "CREATE ROLE a LOGIN; CREATE ROLE b LOGIN; CREATE ROLE c LOGIN;
         GRANT INSERT ON t TO a, b; CREATE TABLE u (LIKE t); GRANT INSERT ON u TO c;
         REVOKE CREATE ON DATABASE postgres FROM PUBLIC",
    );
    let path = world.file("a.csv", &lines(0, 10));
    let run = |role: &str, table: &str| {
        let url = world.server.url("postgres").replace("postgres@", &format!("{role}@"));
        let all = ["load", &path, "--quiet", "--once", "--table", table, "--to", &url];
        Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(all).output().unwrap()
    };
    let output = run("a", "t");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("pgsluice loads init --print"), "{said}");
    let init = [env!("CARGO_BIN_EXE_pgsluice"), "loads", "init", "--print"];
    let statements = Command::new(init[0]).args(&init[1..]).output().unwrap().stdout;
    let mut child = Command::new(psql())
        .args(["-q", "-v", "ON_ERROR_STOP=1", "-d", &world.server.url("postgres")])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&statements).unwrap();
    assert!(child.wait().unwrap().success());
    for role in ["a", "b", "a"] {
        let output = run(role, "t");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    assert_eq!(run("c", "u").status.code(), Some(0));
    assert_eq!(world.sql("SELECT count(*) FROM t"), "10");
    assert_eq!(world.sql("SELECT count(*) FROM u"), "10");
    // Each role sees and writes only the part of the ledger about its own tables.
    for (role, seen) in [("a", "t"), ("b", "t"), ("c", "u")] {
        world.sql(&format!("SET ROLE {role}"));
        let tables = "SELECT string_agg(DISTINCT target::text, ',') FROM pgsluice_loads.";
        assert_eq!(world.sql(&format!("{tables}sources")), seen);
        assert_eq!(world.sql(&format!("{tables}loads")), seen);
        assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.pieces"), "1");
        assert_eq!(world.sql("SELECT count(*) FROM pgsluice_loads.commits"), "1");
        world.sql("RESET ROLE");
    }
    world.sql("SET ROLE c");
    let forged =
        "INSERT INTO pgsluice_loads.loads (target, target_name, program) VALUES ('t', '', '')";
    assert!(world.conn.exec(forged).unwrap_err().message().contains("row-level security"));
    world.sql("DELETE FROM pgsluice_loads.sources; RESET ROLE");
    assert_eq!(world.sql("SELECT string_agg(target::text, ',') FROM pgsluice_loads.sources"), "t");
}

/// The next load upgrades a ledger of an earlier version and keeps what it records. A ledger of a
/// later version is refused.
#[test]
fn tables_of_an_earlier_version_are_brought_to_this_one_and_later_ones_are_refused() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 10));
    world.load(&[&path, "--table", "t", "--once"]).unwrap();
    let all = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class \
        WHERE relnamespace = 'pgsluice_loads'::regnamespace AND relkind = 'r'";
    let tables = world.sql(all);
    let of_7 = "headers";
    let of_5 = format!("parts, pgsluice_loads.leases, pgsluice_loads.{of_7}");
    let of_4 = format!("slices, pgsluice_loads.{of_5}");
    let of_3 = format!("node_commits, pgsluice_loads.{of_4}");
    let of_2 = format!("reject_files, pgsluice_loads.{of_3}");
    for (version, lacks) in
        [(1, of_2.as_str()), (2, &of_3), (3, &of_4), (4, &of_5), (5, of_7), (6, of_7)]
    {
        world.sql(&format!(
            "DROP TABLE pgsluice_loads.{lacks}; UPDATE pgsluice_loads.version SET version = {version}"
        ));
        let listed = world.run(&["loads", "list"]);
        let said = String::from_utf8_lossy(&listed.stderr).into_owned();
        let words = format!("version {version}");
        assert!(said.contains(&words) && said.contains("the next load"), "{said}");
        assert_eq!(world.load(&[&path, "--table", "t", "--once"]).unwrap()["loaded"], 0);
        assert_eq!(world.sql(all), tables);
        assert!(world.run(&["loads", "list"]).status.success());
    }
    world.sql("UPDATE pgsluice_loads.version SET version = 8");
    let said = world.load(&[&path, "--table", "t", "--once"]).unwrap_err();
    assert!(said.contains("version 8"), "{said}");
}

/// The next load upgrades the ledger while a load of an earlier version is running, and does not
/// wait for its end.
#[test]
fn an_upgrade_does_not_wait_for_a_running_load() {
    let mut world = world();
    let (a, b) = (world.file("a.csv", &lines(0, 10)), world.file("b.csv", &lines(10, 10)));
    world.load(&[&a, "--table", "t", "--once"]).unwrap();
    world.sql("DROP TABLE pgsluice_loads.headers; UPDATE pgsluice_loads.version SET version = 5");
    // The earlier load has read `sources` in the transaction that holds its claims.
    world.sql("BEGIN; SELECT count(*) FROM pgsluice_loads.sources");
    let mut next = start(&world, &[&b]);
    wait_until(|| "the upgrade waits".into(), || next.try_wait().unwrap().is_some());
    let output = next.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    world.sql("COMMIT");
    assert_eq!(world.sql("SELECT version FROM pgsluice_loads.version"), "7");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "20");
}
