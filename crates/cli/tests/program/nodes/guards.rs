//! What is refused since the coordinator would refuse it.

use super::{on_one_major, refuse, Cluster, HASH};
use std::process::Command;

const NODES: [&str; 4] = ["--table", "t", "--route", "nodes"];

fn of_the_coordinator(cluster: &mut Cluster) {
    cluster.twins("a int, b text", "HASH (a)", &HASH);
    let file = cluster.world.file("rows.csv", b"1,x\n2,x\n3,x\n4,x\n");
    let plain = [&[&file[..]], &NODES[..]].concat();
    let truncate = [&plain[..], &["--truncate"]].concat();
    cluster.world.sql("ALTER FOREIGN TABLE t_1 OPTIONS (updatable 'FALSE')");
    refuse(cluster, &plain, 1, &["\"t_1\"", "option updatable is false", "can change the option"]);
    cluster.world.sql(
        "ALTER SERVER n1 OPTIONS (updatable 'off'); ALTER FOREIGN TABLE t_1 OPTIONS (DROP updatable)",
    );
    refuse(cluster, &plain, 1, &["\"t_1\"", "option updatable is false"]);
    cluster.world.sql(
        "ALTER FOREIGN TABLE t_1 OPTIONS (updatable 'true', truncatable 'true');
         ALTER SERVER n1 OPTIONS (truncatable 'false'); ALTER SERVER n0 OPTIONS (truncatable 'false')",
    );
    refuse(cluster, &truncate, 1, &["\"t_0\"", "option truncatable is false"]);
    cluster.world.sql("ALTER SERVER n0 OPTIONS (SET truncatable 'true')");
    cluster.world.load(&plain).unwrap();
    cluster.world.load(&truncate).unwrap();
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "4");

    cluster.world.sql(
        "DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN;
         GRANT SELECT, INSERT, DELETE ON t TO clerk;
         GRANT USAGE ON FOREIGN SERVER n0, n1 TO clerk;
         CREATE USER MAPPING FOR clerk SERVER n0 OPTIONS (user 'postgres', password_required 'false');
         CREATE USER MAPPING FOR clerk SERVER n1 OPTIONS (user 'postgres', password_required 'false')",
    );
    let url = cluster.world.server.url("postgres").replace("postgres@", "clerk@");
    let run = |command: &str, arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        let output = program.arg(command).args(arguments).args(["--to", &url]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for command in ["plan", "load"] {
        let (code, said) = run(command, &truncate);
        assert_eq!(code, Some(1), "{command}: {said}");
        assert!(said.contains("the role may not truncate \"public\".\"t\""), "{command}: {said}");
    }
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "4");
    let (code, said) = run("load", &plain);
    assert_eq!(code, Some(0), "{said}");
    cluster.world.sql("GRANT TRUNCATE ON t TO clerk");
    let (code, said) = run("load", &truncate);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(cluster.world.sql("SELECT count(*) FROM t"), "4");
}

#[test]
fn what_the_coordinator_would_not_write_to_or_truncate_is_refused() {
    on_one_major(of_the_coordinator);
}
