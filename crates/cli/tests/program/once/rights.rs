//! Roles and the tables of the ledger.

use super::{lines, start, world};
use crate::common::{psql, wait_until, World};
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// The program as this role.
fn command_as(world: &World, role: &str, arguments: &[&str]) -> Command {
    let url = world.server.url("postgres").replace("postgres@", &format!("{role}@"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    command.args(arguments).args(["--to", &url]);
    command
}

/// Runs the program as this role.
fn run_as(world: &World, role: &str, arguments: &[&str]) -> Output {
    command_as(world, role, arguments).output().unwrap()
}

/// Loads a file as this role.
fn load_as(world: &World, role: &str, path: &str, table: &str) -> Output {
    run_as(world, role, &["load", path, "--quiet", "--once", "--table", table])
}

/// A role that may not create the ledger can load after an administrator has run the statements of
/// `loads init --print`. Each role then sees and writes only the part of the ledger about its own
/// tables.
#[test]
fn an_administrator_creates_the_tables() {
    let mut world = world();
    world.sql(
        "CREATE ROLE a LOGIN; CREATE ROLE b LOGIN; CREATE ROLE c LOGIN;
         GRANT INSERT ON t TO a, b; CREATE TABLE u (LIKE t); GRANT INSERT ON u TO c;
         REVOKE CREATE ON DATABASE postgres FROM PUBLIC",
    );
    let path = world.file("a.csv", &lines(0, 10));
    let output = load_as(&world, "a", &path, "t");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("hint: pgsluice loads init"), "{said}");
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
        let output = load_as(&world, role, &path, "t");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    assert_eq!(load_as(&world, "c", &path, "u").status.code(), Some(0));
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

/// A role may not add what is missing: in a ledger of an earlier version, and in a schema that only
/// records dropped objects. The hint names `loads init`, and the load works after an administrator
/// has run it.
#[test]
fn an_administrator_upgrades_or_completes_the_tables() {
    let mut world = world();
    world.sql(
        "CREATE ROLE a LOGIN; GRANT INSERT ON t TO a; CREATE INDEX i ON t (a);
         REVOKE CREATE ON DATABASE postgres FROM PUBLIC",
    );
    let (first, second) = (world.file("a.csv", &lines(0, 10)), world.file("b.csv", &lines(10, 10)));
    let init = |world: &World, path: &str| {
        let output = load_as(world, "a", path, "t");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("hint: pgsluice loads init"), "{said}");
        let output = world.run(&["loads", "init"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let output = load_as(world, "a", path, "t");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    let lanes = ["--method", "lanes", "--lanes", "2", "--indexes", "rebuild"];
    world.load(&[&[first.as_str(), "--table", "t"], &lanes[..]].concat()).unwrap();
    let tables = "SELECT string_agg(relname, ' ') FROM pg_class \
        WHERE relnamespace = 'pgsluice_loads'::regnamespace AND relkind = 'r'";
    assert_eq!(world.sql(tables), "taken_down");
    init(&world, &first);
    world.sql("DROP TABLE pgsluice_loads.headers; UPDATE pgsluice_loads.version SET version = 5");
    init(&world, &second);
    assert_eq!(world.sql("SELECT count(*) FROM t"), "30");
}

/// Tables that a member of the owner creates belong to the member, and other roles do not use them.
/// So `loads init` refuses that and says how to run it as the owner.
#[test]
fn the_tables_are_made_as_the_owner_of_the_database() {
    let mut world = world();
    world.sql(
        "CREATE ROLE dba; CREATE ROLE admin LOGIN IN ROLE dba; CREATE ROLE a LOGIN;
         GRANT INSERT ON t TO a; ALTER DATABASE postgres OWNER TO dba",
    );
    let init = ["loads", "init"];
    let output = run_as(&world, "admin", &init);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("would belong to admin"), "{said}");
    assert!(said.contains("PGOPTIONS='-c role=dba'"), "{said}");
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice_loads'";
    assert_eq!(world.sql(left), "0");
    let output = command_as(&world, "admin", &init).env("PGOPTIONS", "-c role=dba").output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    let path = world.file("a.csv", &lines(0, 10));
    let output = load_as(&world, "a", &path, "t");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // Nothing is left to do.
    assert_eq!(run_as(&world, "admin", &init).status.code(), Some(0));
}

/// With the grants of the reference in place of those to PUBLIC, a role uses everything that writes
/// to the ledger. `loads forget` needs those that the reference names for it.
#[test]
fn the_grants_of_the_reference_are_enough() {
    let mut world = world();
    world.sql("CREATE ROLE loader LOGIN; GRANT INSERT ON t TO loader");
    assert!(world.run(&["loads", "init"]).status.success());
    let reference = include_str!("../../../../../docs/load-once-tables.md");
    let (_, section) = reference.split_once("\n## Privileges\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let grants = section.lines().filter_map(|line| line.strip_prefix("    "));
    world.sql(&grants.collect::<Vec<_>>().join(" "));
    let bytes = [&b"a,b\n"[..], &lines(0, 60_000), b"x,y\n"].concat();
    let [a, b, copy] = ["a.csv", "b.csv", "copy.csv"].map(|name| match name {
        "b.csv" => world.file(name, &lines(60_000, 60_000)),
        _ => world.file(name, &bytes),
    });
    let rejects = world.path("bad");
    let reject = ["--commit-every", "256kB", "--on-error", "reject", "--reject-file", &rejects];
    let loads: [(&[&str], i32); 5] = [
        (&[&a, "--header", "--commit-every", "256kB"], 4),
        (&[&[&a, "--header"], &reject[..]].concat(), 3),
        (&[&copy, "--header"], 0),
        (&[&b, "--share"], 0),
        (&[&a, &copy, "--header", "--share"], 0),
    ];
    for (arguments, code) in loads {
        let all = [&["load", "--quiet", "--once", "--table", "t"], arguments].concat();
        let output = run_as(&world, "loader", &all);
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {output:?}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), "120000");
    let forget = ["loads", "forget", "1"];
    assert_eq!(run_as(&world, "loader", &forget).status.code(), Some(1));
    world.sql("GRANT DELETE ON pgsluice_loads.commits, pgsluice_loads.pieces TO loader");
    assert_eq!(run_as(&world, "loader", &forget).status.code(), Some(0));
}

/// With row_security = off, the server refuses a query that would hide rows. A role that does not
/// own the tables continues a file that it has begun.
#[test]
fn what_was_begun_goes_on_without_row_security() {
    let mut world = world();
    world.sql("CREATE ROLE a LOGIN; ALTER ROLE a SET row_security = off; GRANT INSERT ON t TO a");
    assert!(world.run(&["loads", "init"]).status.success());
    let path = world.file("a.csv", &[&lines(0, 60_000)[..], b"x,y\n"].concat());
    let load = ["load", &path, "--quiet", "--once", "--table", "t", "--commit-every", "256kB"];
    let output = run_as(&world, "a", &load);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_ne!(world.sql("SELECT count(*) FROM pgsluice_loads.pieces"), "0");
    world.file("a.csv", &lines(0, 60_000));
    let output = run_as(&world, "a", &load);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "60000");
}

/// Any role may record that it has dropped objects of any table. This stops loads of other roles
/// only if that role may load into the table.
#[test]
fn rows_of_roles_that_may_not_load_stop_no_load() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 10));
    let load = |world: &World| world.load(&[&path, "--table", "t", "--once"]);
    load(&world).unwrap();
    world.sql("CREATE ROLE clerk; SET ROLE clerk");
    world.sql(
        "INSERT INTO pgsluice_loads.taken_down \
           (load, relation, relation_name, object, choice, search_path) \
         VALUES (gen_random_uuid(), 't'::regclass, 't', 'index i', '{}', '')",
    );
    world.sql("RESET ROLE");
    assert_eq!(load(&world).unwrap()["loaded"], 0);
    world.sql("GRANT INSERT (b) ON t TO clerk");
    let said = load(&world).unwrap_err();
    assert!(said.contains("index i of t (taken down by clerk)"), "{said}");
}

/// What a load of another role has left on nodes is named with that role by `repair` and by the next
/// plan, and not ended. That role must be one that may load into the table.
#[test]
fn commits_on_nodes_of_another_role_are_reported() {
    let mut world = world();
    let path = world.file("a.csv", &lines(0, 10));
    assert!(world.run(&["loads", "init"]).status.success());
    world.sql("CREATE ROLE clerk; SET ROLE clerk");
    world.sql(
        "INSERT INTO pgsluice_loads.node_commits (load, target, nodes) \
         VALUES (gen_random_uuid(), 't'::regclass, '{n1,n2}')",
    );
    world.sql("RESET ROLE");
    assert!(world.repair().contains("nothing is missing"));
    world.sql("GRANT INSERT (b) ON t TO clerk");
    let repair = |world: &World| {
        let output = world.run(&["repair"]);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let (code, said) = repair(&world);
    let told = "on n1, n2 may still be there: they belong to the role clerk";
    assert!(code == Some(1) && said.contains(told), "{said}");
    assert!(said.contains("hint: run pgsluice repair as the role clerk"), "{said}");
    let plan = world.run(&["plan", &path, "--table", "t"]);
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains("on n1, n2 of the role clerk; pgsluice repair as that role"), "{plan}");
    world.sql("BEGIN; SELECT FROM pgsluice_loads.node_commits FOR UPDATE");
    let (code, said) = repair(&world);
    assert!(code == Some(0) && said.contains("on nodes: a load is running; left alone"), "{said}");
    world.sql("COMMIT");
    let state = "SELECT state FROM pgsluice_loads.node_commits WHERE ended IS NULL";
    assert_eq!(world.sql(state), "preparing");
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
