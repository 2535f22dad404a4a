//! A role that does not own the table may do at least what stock COPY lets it do.

use crate::common::{on_first_and_last_major, wait_until, World};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program as the role `loader`.
fn as_loader(world: &World, arguments: &[&str]) -> Output {
    let url = world.server.url("postgres").replace("postgres@", "loader@");
    let mut program = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    program.args(arguments).args(["--to", &url]).output().unwrap()
}

/// The right to insert into the loaded columns is enough, as for COPY. LOCK TABLE would need rights
/// on the whole table.
#[test]
fn rights_on_columns_are_enough() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE ROLE loader LOGIN; CREATE TABLE t (a int, b text, c int DEFAULT 5);
             CREATE TABLE p (a int, b text, c int DEFAULT 5) PARTITION BY RANGE (a);
             CREATE TABLE p1 PARTITION OF p DEFAULT;
             GRANT INSERT (a, b) ON t, p TO loader",
        );
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        for table in ["t", "p"] {
            for method in ["auto", "copy-csv", "copy-binary", "staged", "insert-batch", "lanes"] {
                let load = ["load", &file, "--table", table, "--method", method];
                let output = as_loader(&world, &[&load[..], &["--columns", "a,b"]].concat());
                assert_eq!(output.status.code(), Some(0), "{table} {method}: {output:?}");
                let rows = format!("SELECT string_agg(x::text, ' ' ORDER BY a) FROM {table} x");
                assert_eq!(world.sql(&rows), "(1,x,5) (2,y,5)", "{table} {method}");
                world.sql(&format!("TRUNCATE {table}"));
            }
            // A column that the role may not write is still refused.
            let output = as_loader(&world, &["load", &file, "--table", table, "--columns", "a,c"]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("permission denied for table"), "{said}");
        }
    });
}

/// Whatever the options say, a load by another role than the table's owner takes nothing down, and
/// the plan says so.
#[test]
fn around_another_roles_table_everything_stays() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE ROLE loader LOGIN; CREATE TABLE t (a int PRIMARY KEY, b text);
             GRANT SELECT, INSERT ON t TO loader",
        );
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        for method in ["auto", "staged", "lanes", "insert"] {
            let of_table = [
                file.as_str(),
                "--table=t",
                "--indexes=rebuild",
                "--triggers=off",
                "--foreign-keys=revalidate",
                "--method",
                method,
            ];
            let plan = as_loader(&world, &[&["plan"], &of_table[..]].concat());
            let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
            assert!(plan.contains("objects   keep primary key public.t_pkey"), "{method}: {plan}");
            let output = as_loader(&world, &[&["load"], &of_table[..]].concat());
            assert_eq!(output.status.code(), Some(0), "{method}: {output:?}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), "2", "{method}");
            world.sql("TRUNCATE t");
        }
    });
}

/// If the role may not move a sequence, or cannot see all keys, the load succeeds and says that the
/// sequence was not moved, also with `--quiet`.
#[test]
fn sequences_that_may_not_be_moved_are_reported() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE ROLE loader LOGIN; CREATE TABLE t (a serial, b text); CREATE TABLE u (LIKE t);
             CREATE SEQUENCE u_s OWNED BY u.a; ALTER TABLE u ALTER a SET DEFAULT nextval('u_s');
             GRANT SELECT, INSERT ON t TO loader; GRANT INSERT ON u TO loader;
             CREATE SCHEMA app; CREATE SEQUENCE app.s; GRANT ALL ON SEQUENCE app.s TO loader;
             CREATE TABLE v (a int DEFAULT nextval('app.s'), b text);
             GRANT SELECT, INSERT ON v TO loader",
        );
        let file = world.file("rows.csv", b"7,x\n");
        for (table, told) in [
            ("t", "step: sequence public.t_a_seq not moved past 7: the role may not move it"),
            ("u", "step: sequence public.u_s not moved: the role cannot see all keys"),
            ("v", "step: sequence app.s not moved past 7: the role may not move it"),
        ] {
            for more in [&[][..], &["--quiet"], &["--method", "insert"]] {
                let all = [&["load", &file, "--table", table], more].concat();
                let output = as_loader(&world, &all);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success() && said.contains(told), "{more:?} {said}");
            }
        }
    });
}

/// A role with CONNECTION LIMIT 1 can load and rebuild indexes. A load in one transaction records
/// nothing and needs no other connection.
#[test]
fn one_connection_is_enough() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE ROLE loader LOGIN CONNECTION LIMIT 1; CREATE TABLE t (a int PRIMARY KEY, b text);
             ALTER TABLE t OWNER TO loader; GRANT CREATE ON SCHEMA public TO loader;
             GRANT CREATE ON DATABASE postgres TO loader",
        );
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        let output = as_loader(&world, &["load", &file, "--table", "t", "--verbose"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("t_pkey recreated"), "{said}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
    });
}

/// A load that gets too few connections leaves no reject file, so the same command loads once there
/// are enough.
#[test]
fn too_few_connections_leave_no_reject_file() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE ROLE loader LOGIN; CREATE TABLE t (a int, b text); \
             ALTER TABLE t OWNER TO loader",
        );
        let file = world.file("rows.csv", b"1,x\nbad,y\n2,z\n");
        let rejects = world.path("bad.csv");
        let lanes = ["load", &file, "--table", "t", "--method", "lanes", "--lanes", "4"];
        let load = [&lanes[..], &["--on-error", "reject", "--reject-file", &rejects]].concat();
        // The connection that looks for waiting lanes gets none, then lane 2, then the last one.
        for limit in [1, 2, 4] {
            world.sql(&format!("ALTER ROLE loader CONNECTION LIMIT {limit}"));
            let output = as_loader(&world, &load);
            assert_eq!(output.status.code(), Some(5), "{limit}: {output:?}");
            let left = [rejects.clone(), format!("{rejects}.jsonl")];
            assert!(!left.iter().any(|path| Path::new(path).exists()), "{limit}: {output:?}");
            let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'loader'";
            wait_until(|| "sessions stay".into(), || world.sql(sessions) == "0");
        }
        world.sql("ALTER ROLE loader CONNECTION LIMIT -1");
        let output = as_loader(&world, &load);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
    });
}

/// With row_security = off, the server refuses a query that would hide rows, and a role sees only
/// its own rows of the ledger. Loads and `repair` work all the same.
#[test]
fn the_ledger_is_there_without_row_security() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE mine (a int); CREATE INDEX ON mine (a)");
        let one = world.file("one.csv", b"1\n");
        world.load(&[&one, "--table", "mine", "--method", "lanes", "--lanes", "2"]).unwrap();
        world.sql(
            "CREATE ROLE loader LOGIN; ALTER ROLE loader SET row_security = off;
             CREATE TABLE t (a int, b text); CREATE INDEX t_a ON t (a);
             ALTER TABLE t OWNER TO loader; GRANT CREATE ON SCHEMA public TO loader",
        );
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        for method in ["auto", "lanes"] {
            world.sql("TRUNCATE t");
            let load = ["load", &file, "--table", "t", "--method", method, "--verbose"];
            let output = as_loader(&world, &load);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.contains("t_a recreated"), "{said}");
        }
        let output = as_loader(&world, &["repair"]);
        assert!(output.status.success(), "{output:?}");
    });
}

/// If transactions of the role are read-only by default, a method with one transaction loads all the
/// same. `insert`, which has one for each row, is refused before the table is emptied.
#[test]
fn a_role_whose_transactions_are_read_only() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE ROLE loader LOGIN; CREATE TABLE t (a int, b text); \
             ALTER TABLE t OWNER TO loader; INSERT INTO t VALUES (0, 'old'); \
             ALTER ROLE loader SET default_transaction_read_only = on",
        );
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        let load = |world: &World, more: &[&str]| {
            as_loader(world, &[&["load", &file, "--table", "t", "--truncate"], more].concat())
        };
        let output = load(&world, &["--method", "insert"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("read-only by default"), "{said}");
        assert_eq!(world.sql("SELECT b FROM t"), "old");
        let output = load(&world, &[]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
    });
}

/// If the server is read-only by default, as a service makes it when the disk is nearly full, a
/// load, its plan, `repair`, `loads init` and `loads forget` are refused before anything is touched.
/// The target or the role overrides it.
#[test]
fn a_server_that_is_read_only() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE ROLE loader LOGIN; CREATE TABLE t (a int, b text)");
        world.sql("GRANT ALL ON t TO loader");
        world.sql("ALTER SYSTEM SET default_transaction_read_only = on");
        world.sql("SELECT pg_reload_conf()");
        let setting = "SHOW default_transaction_read_only";
        wait_until(|| "the server does not read it".into(), || world.sql(setting) == "on");
        world.sql("SET default_transaction_read_only = off");
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        let load = ["load", &file, "--table", "t"];
        let lanes = [&load[..], &["--method", "lanes", "--lanes", "2"]].concat();
        for arguments in [
            &load[..],
            &[&load[..], &["--method", "insert"]].concat(),
            &lanes,
            &[&load[..], &["--once"]].concat(),
            &["load", &file, "--table", "u", "--create"],
            &["plan", &file, "--table", "t"],
            &["repair"],
            &["loads", "init"],
            &["loads", "forget", "1"],
            &["loads", "forget", &file, "--table", "t"],
        ] {
            let output = world.run(arguments);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
            assert!(said.contains("the server is read-only by default"), "{arguments:?}: {said}");
            assert!(said.contains("'-c default_transaction_read_only=off'"), "{said}");
        }
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
        let ledger = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice_loads'";
        assert_eq!(world.sql(ledger), "0");
        // These write no rows.
        for arguments in [&["check", &file, "--table", "t"][..], &["loads", "list"]] {
            let output = world.run(arguments);
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        }

        let over = "&options=-c%20default_transaction_read_only%3Doff";
        let to = world.server.url("postgres") + over;
        let mut program = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
        let output = program.args(lanes).args(["--to", &to]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        world.sql("ALTER ROLE loader SET default_transaction_read_only = off");
        let output = as_loader(&world, &load);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(world.sql("SELECT count(*) FROM t"), "4");
    });
}

/// A function, an aggregate and operators that fit the types in the program's own queries better
/// than those of pg_catalog. Each of them fails.
const PLANTED: &str = r#"
    CREATE FUNCTION planted(text, name, text) RETURNS text LANGUAGE sql AS 'SELECT $1';
    CREATE FUNCTION planted(text) RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
    CREATE AGGREGATE string_agg(name, text) (SFUNC = planted, STYPE = text, FINALFUNC = planted);
    CREATE FUNCTION pg_get_expr(pg_node_tree, integer) RETURNS text LANGUAGE plpgsql
      AS $$BEGIN RAISE 'planted'; END$$;
    DO $do$ DECLARE o record; BEGIN
      FOR o IN SELECT *, row_number() OVER () AS n FROM (VALUES
        ('=', 'oid', 'regclass', 'boolean'), ('=', 'regclass', 'oid', 'boolean'),
        ('=', 'regclass', 'regclass', 'boolean'), ('=', 'oid', 'integer', 'boolean'),
        ('=', 'regproc', 'regproc', 'boolean'), ('<>', 'oid', 'regprocedure', 'boolean'),
        ('&', 'smallint', 'integer', 'integer'), ('&&', 'integer[]', 'integer[]', 'boolean'),
        ('||', 'text', 'name', 'text'), ('||', 'text', 'oid', 'text'),
        ('||', 'text', 'integer', 'text'), ('||', 'bigint', 'bigint', 'text'),
        ('->>', 'jsonb', 'jsonb', 'text'), ('#>>', 'json', 'json', 'text'),
        ('+', 'numeric', 'bigint', 'numeric'), ('-', 'numeric', 'bigint', 'numeric'),
        ('*', 'numeric', 'integer', 'numeric'),
        ('<=', 'numeric', 'integer', 'boolean'), ('>', 'numeric', 'integer', 'boolean')
      ) AS v(name, a, b, result) LOOP
        EXECUTE format('CREATE FUNCTION planted_%5$s(%2$s, %3$s) RETURNS %4$s LANGUAGE plpgsql
            AS $f$BEGIN RAISE ''planted''; END$f$;
          CREATE OPERATOR %1$s (LEFTARG = %2$s, RIGHTARG = %3$s, FUNCTION = planted_%5$s)',
          o.name, o.a, o.b, o.result, o.n);
      END LOOP;
    END $do$"#;

/// The program's own queries call nothing that somebody else has created in a schema of the search
/// path. The names in the user's functions are still looked up along that path.
#[test]
fn nothing_of_another_schema_is_called() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(PLANTED);
        for called in [
            "SELECT string_agg(relname, ',') FROM pg_class",
            "SELECT FROM pg_class WHERE oid = 'pg_class'::regclass",
        ] {
            let error = world.conn.exec(called).unwrap_err();
            assert!(error.to_string().contains("planted"), "{error}");
        }
        world.sql(
            "CREATE TABLE log (a int);
             CREATE FUNCTION logs() RETURNS trigger LANGUAGE plpgsql
               AS 'BEGIN INSERT INTO log VALUES (NEW.a); RETURN NULL; END';
             CREATE TABLE t (a serial, b text DEFAULT 'none'); CREATE INDEX t_b ON t (b);
             CREATE TABLE p (a int, b text) PARTITION BY RANGE (a);
             CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
             CREATE TRIGGER at_once AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION logs();
             CREATE CONSTRAINT TRIGGER at_last AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION logs()",
        );
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        let succeeds = |arguments: &[&str]| {
            let output = world.run(arguments);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && !said.contains("planted"), "{arguments:?}: {said}");
        };
        for table in ["t", "p"] {
            for more in [
                &["plan"][..],
                &["check"],
                &["load"],
                &["load", "--truncate", "--method", "staged"],
                &["load", "--truncate", "--method", "insert"],
                &["load", "--truncate", "--on-error", "reject", "--reject-file", "rejects.csv"],
                &["load", "--method", "lanes", "--lanes", "2", "--indexes", "rebuild"],
                &["load", "--once"],
                &["load", "--once"],
            ] {
                succeeds(&[more, &[file.as_str(), "--table", table]].concat());
            }
        }
        for loads in [
            &["list"][..],
            &["show", "1"],
            &["verify", "1"],
            &["forget", &file, "--table", "t"],
            &["forget", "2"],
            &["init"],
        ] {
            succeeds(&[&["loads"], loads].concat());
        }
        succeeds(&["repair"]);
        assert_eq!(world.sql("SELECT count(*) FROM log"), "24");
    });
}

/// A method whose rows subscribers would not get is refused if a publication has the table.
#[test]
fn a_published_table_is_not_loaded_without_wal() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE t (a int, b text); CREATE PUBLICATION p FOR ALL TABLES");
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        for publication in ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public", "FOR TABLE t"] {
            world.sql(&format!("DROP PUBLICATION p; CREATE PUBLICATION p {publication}"));
            for method in ["unlogged", "unlogged-logged"] {
                let load = world.load(&[&file, "--table", "t", "--method", method]);
                let said = load.unwrap_err();
                assert!(said.contains("sends no rows to subscribers"), "{publication}: {said}");
            }
        }
        world.sql("DROP PUBLICATION p");
        world.load(&[&file, "--table", "t", "--method", "unlogged-logged"]).unwrap();
        assert_eq!(world.sql("SELECT count(*) FROM t"), "2");
    });
}

/// The landing table of `staged` is not sent to subscribers, who would stop at a table that they do
/// not have.
#[test]
fn a_logged_landing_table_is_not_published() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE t (a int, b text); CREATE PUBLICATION p FOR ALL TABLES");
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        let staged = [&file, "--table", "t", "--method", "staged"];
        let logged = [&staged[..], &["--landing", "logged"]].concat();
        for publication in ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"] {
            world.sql(&format!("DROP PUBLICATION p; CREATE PUBLICATION p {publication}"));
            let said = world.load(&logged).unwrap_err();
            assert!(said.contains("would send the landing table"), "{publication}: {said}");
            assert!(said.contains("--landing"), "{said}");
        }
        world.load(&staged).unwrap();
        world.sql("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t");
        world.load(&logged).unwrap();
        assert_eq!(world.sql("SELECT count(*) FROM t"), "4");
    });
}
