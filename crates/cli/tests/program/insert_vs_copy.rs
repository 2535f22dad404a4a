//! Cases in which INSERT differs from COPY: rules, row-level security, types whose input differs
//! from a cast. Every method loads what COPY would load, or is refused.

use crate::common::{each_major, on_each_major, on_first_and_last_major, World};
use std::process::{Command, Output};

const BY_INSERT: [&str; 3] = ["insert", "insert-batch", "staged"];

/// Runs the program as the role `loader`.
fn as_loader(world: &World, arguments: &[&str]) -> Output {
    let url = world.server.url("postgres").replace("postgres@", "loader@");
    let mut program = Command::new(env!("CARGO_BIN_EXE_pgsluice"));
    program.args(arguments).args(["--to", &url]).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A rule would duplicate or drop the rows of an INSERT; COPY ignores rules. Methods that use
/// INSERT are refused on a table with such a rule.
#[test]
fn rules_are_not_for_loads() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE t (a int, b text); CREATE TABLE u (LIKE t)");
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        for rule in ["ALSO INSERT INTO u VALUES (new.*)", "INSTEAD NOTHING"] {
            world.sql(&format!("CREATE OR REPLACE RULE \"my rule\" AS ON INSERT TO t DO {rule}"));
            for method in BY_INSERT {
                let arguments = [&file, "--table", "t", "--method", method];
                let said = world.load(&arguments).unwrap_err();
                assert!(said.contains("rules of \"public\".\"t\" rewrite: my rule"), "{said}");
                assert!(said.contains("hint:"), "{said}");
                let planned = world.run(&[&["plan"], &arguments[..]].concat());
                assert_eq!(planned.status.code(), Some(1), "{planned:?}");
            }
            for method in ["auto", "copy-csv"] {
                let arguments = [&file, "--table", "t", "--method", method];
                let loaded = world.load(&arguments).unwrap();
                assert_eq!(loaded["loaded"], 2);
                assert!(loaded["notes"].to_string().contains("ignores rules"), "{loaded}");
            }
            let rows = "SELECT (SELECT count(*) FROM t) || ' ' || (SELECT count(*) FROM u)";
            assert_eq!(world.sql(rows), "4 0");
            world.sql("TRUNCATE t");
        }
        world.sql("ALTER TABLE t DISABLE RULE \"my rule\"");
        for method in BY_INSERT {
            assert_eq!(
                world.load(&[&file, "--table", "t", "--method", method]).unwrap()["loaded"],
                2
            );
        }
    });
}

const POLICIES: &str = "
    CREATE ROLE loader LOGIN;
    CREATE TABLE t (a int, b text DEFAULT 'd');
    ALTER TABLE t ENABLE ROW LEVEL SECURITY;
    CREATE POLICY p ON t USING (true) WITH CHECK (a <> 5);
    GRANT SELECT, INSERT ON t TO loader;";

/// Under row-level security, the server refuses COPY. `auto` chooses a method that the server
/// accepts, and the COPY methods are refused with a hint.
#[test]
fn policies_hold() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(POLICIES);
        let file = world.file("rows.csv", b"1,x\n2,y\n");
        let planned = as_loader(&world, &["plan", &file, "--table", "t"]);
        assert!(stdout(&planned).contains("staged: row-level security applies"), "{planned:?}");
        for method in ["auto", "staged", "insert-batch", "insert"] {
            let output = as_loader(&world, &["load", &file, "--table", "t", "--method", method]);
            assert_eq!(output.status.code(), Some(0), "{method}: {output:?}");
            assert_eq!(world.sql("SELECT count(*) FROM t"), "2", "{method}");
            world.sql("TRUNCATE t");
        }
        for method in ["copy-csv", "copy-text", "copy-binary", "lanes"] {
            for command in ["plan", "load"] {
                let arguments = [command, &file, "--table", "t", "--method", method];
                let output = as_loader(&world, &arguments);
                let said = stderr(&output);
                assert_eq!(output.status.code(), Some(1), "{method}: {said}");
                assert!(
                    said.contains("the server does not accept COPY") && said.contains("hint: "),
                    "{said}"
                );
            }
        }
        let marked = world.file("marked.csv", b"1,\\D\n");
        let output = as_loader(&world, &["load", &marked, "--table", "t", "--default", "\\D"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(world.sql("SELECT b FROM t"), "d");
        world.sql("TRUNCATE t");
        let binary = world.path("rows.bin");
        assert!(world.run(&["convert", &file, "--table", "t", "--out", &binary]).status.success());
        let output = as_loader(&world, &["load", &binary, "--table", "t", "--format", "binary"]);
        assert!(stderr(&output).contains("hint: a binary file needs COPY"), "{output:?}");
        // Table owners and superusers bypass row-level security.
        assert_eq!(world.load(&[&file, "--table", "t"]).unwrap()["method"], "copy-binary");
    });
}

/// A record that a policy refuses is reported and rejected like any other bad record.
#[test]
fn what_policies_refuse_is_named_and_rejected() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(POLICIES);
        let refused = world.file("refused.csv", b"1,x\n5,y\n3,z\n");
        let bad = world.file("bad.csv", b"1,x\nq,y\n3,z\n");
        let rejects = world.path("rejects.csv");
        for method in ["auto", "insert-batch", "insert"] {
            for (file, message, code, record) in [
                (&refused, "violates row-level security policy", "42501", "5,y\n"),
                (&bad, "invalid input syntax for type integer: \"q\"", "22P02", "q,y\n"),
            ] {
                let load = ["load", file, "--table", "t", "--quiet", "--method", method];
                let said = stderr(&as_loader(&world, &load));
                assert!(said.contains(message), "{method}: {said}");
                assert!(said.contains("line 2, record 2, byte offset 4"), "{method}: {said}");
                world.sql("TRUNCATE t");
                let reject = ["--on-error", "reject", "--reject-file", &rejects];
                let output = as_loader(&world, &[&load[..], &reject[..]].concat());
                assert_eq!(output.status.code(), Some(3), "{method}: {output:?}");
                assert_eq!(world.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t"), "1 3");
                assert_eq!(std::fs::read_to_string(&rejects).unwrap(), record, "{method}");
                let side = format!("{rejects}.jsonl");
                assert!(std::fs::read_to_string(&side).unwrap().contains(code), "{method}");
                std::fs::remove_file(&rejects).unwrap();
                std::fs::remove_file(&side).unwrap();
                world.sql("TRUNCATE t");
            }
        }
        // A missing privilege has the same SQLSTATE, but it is not the fault of a record.
        world.sql("CREATE TABLE u (a int, n serial); GRANT INSERT ON u TO loader");
        let file = world.file("one.csv", b"1\n");
        let load = ["load", &file, "--table", "u", "--columns", "a", "--method", "staged"];
        let reject = ["--on-error", "reject", "--reject-file", &rejects];
        let output = as_loader(&world, &[&load[..], &reject[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains("permission denied for sequence"), "{output:?}");
        assert!(!std::fs::exists(&rejects).unwrap());
    });
}

/// `interval hour` reads `5` as five hours, a cast reads it as five seconds. `regclass` reads
/// `1259` as an OID, a cast reads it as a name. Every method gives the same values as stock COPY.
#[test]
fn values_that_a_cast_would_read_otherwise() {
    on_each_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE DOMAIN hours AS interval hour; CREATE DOMAIN more AS hours;
             CREATE TYPE pair AS (x interval hour, y int);
             CREATE TABLE s (a interval hour, b interval day to minute, c interval hour[], d more,
                 e interval(0), f interval, g pair, h regclass, i regclass[], j char(3), k \"char\",
                 l bit(3), m timestamp(0), n numeric(3,1)[]);
             CREATE TABLE t (LIKE s)",
        );
        let rows = b"5,1:30,\"{7,NULL}\",9,1.7,5,\"(5,1)\",1259,{1259},a,xy,101,\
            2024-01-01 23:59:59.5,{1.25}\n,,,,,,,-,,,,,,\n";
        world.stock("COPY s FROM STDIN CSV", rows).unwrap();
        let file = world.file("rows.csv", rows);
        for method in ["auto", "copy-binary", "copy-text", "insert", "insert-batch", "staged"] {
            world.sql("TRUNCATE t");
            let loaded = world.load(&[&file, "--table", "t", "--method", method]);
            loaded.unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!(world.difference("s", "t"), "", "{method}");
        }
    });
}

/// A cast from text that a user has created is not the type's input function. Without an
/// expression for the column, `staged` loads and refuses the same texts as stock COPY. The value of
/// an expression is cast.
#[test]
fn casts_that_users_have_created() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE DOMAIN temper AS mood;
             CREATE TYPE pair AS (x int, y int);
             CREATE FUNCTION to_mood(text) RETURNS mood LANGUAGE sql AS
               $$ SELECT CASE WHEN lower($1) = 'ok' THEN 'ok'::mood ELSE 'sad'::mood END $$;
             CREATE FUNCTION to_pair(text) RETURNS pair LANGUAGE sql AS
               $$ SELECT ROW(0, length($1))::pair $$;
             CREATE CAST (text AS mood) WITH FUNCTION to_mood(text);
             CREATE CAST (text AS pair) WITH FUNCTION to_pair(text);
             CREATE TABLE s (a mood, b temper, c pair, d text); CREATE TABLE t (LIKE s)",
        );
        let rows = b"ok,sad,\"(1,2)\",x\n,,,\n";
        world.stock("COPY s FROM STDIN CSV", rows).unwrap();
        let (good, bad) = (world.file("good.csv", rows), world.file("bad.csv", b"OK,ok,,\n"));
        for way in [["--method", "staged"], ["--expr", "d=trim(?)"]] {
            world.sql("TRUNCATE t");
            let load = |file: &str| world.load(&[&[file, "--table", "t"], &way[..]].concat());
            assert_eq!(load(&good).unwrap()["method"], "staged");
            let said = load(&bad).unwrap_err();
            assert!(said.contains("invalid input value for enum mood: \"OK\""), "{way:?}: {said}");
            assert_eq!(world.difference("s", "t"), "", "{way:?}");
        }
        world.sql("TRUNCATE t");
        world.load(&[&bad, "--table", "t", "--expr", "a=trim(?)"]).unwrap();
        assert_eq!(world.sql("SELECT a FROM t"), "ok");
    });
}

/// The marker of `--default` stands for the default of its column or type. A record with a marker
/// for a column without a default is refused as by COPY: DEFAULT of an INSERT would be NULL.
#[test]
fn markers_for_columns_without_a_default() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql(
            "CREATE TYPE own;
             CREATE FUNCTION own_in(cstring) RETURNS own
               LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
             CREATE FUNCTION own_out(own) RETURNS cstring
               LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
             CREATE TYPE own (INPUT = own_in, OUTPUT = own_out, LIKE = int4, DEFAULT = '7');
             CREATE DOMAIN word AS text DEFAULT 'w';
             CREATE TABLE t (a int DEFAULT 1, b text, c own, d word,
               e int GENERATED ALWAYS AS IDENTITY)",
        );
        let rows = b"D,x,D,D,D\nD,D,D,D,D\nD,,D,D,D\n";
        let why = "unexpected default marker in COPY data";
        if world.major() >= 16 {
            let copy = "COPY t FROM STDIN (FORMAT csv, DEFAULT 'D')";
            assert_eq!(world.stock(copy, rows).unwrap_err().0, why);
        }
        let file = world.file("marks.csv", rows);
        for method in ["insert", "insert-batch"] {
            world.sql("TRUNCATE t");
            let load = [file.as_str(), "--table", "t", "--default", "D", "--method", method];
            let said = world.load(&load).unwrap_err();
            assert!(said.contains("line 2, record 2, byte offset 10, column b: "), "{said}");
            assert!(said.contains(why), "{method}: {said}");
            assert!(said.contains("Column \"b\" has no default value."), "{method}: {said}");
            world.sql("TRUNCATE t");
            let rejects = world.path(&format!("{method}.rejects"));
            let reject = ["--on-error", "reject", "--reject-file", &rejects];
            let summary = world.load(&[&load[..], &reject].concat()).unwrap();
            assert_eq!((&summary["loaded"], &summary["rejected"]), (&2.into(), &1.into()));
            assert_eq!(std::fs::read(&rejects).unwrap(), b"D,D,D,D,D\n", "{method}");
            let found = "SELECT string_agg(concat_ws('|', a, b, c, d), ' ' ORDER BY e) FROM t";
            assert_eq!(world.sql(found), "1|x|7|w 1|7|w", "{method}");
        }
    });
}

/// `int2vector` and `oidvector` are written as `1 2`, although they have the subscripts of an array.
/// The program loads and refuses the same texts as stock COPY.
#[test]
fn vectors_are_not_read_as_arrays() {
    on_first_and_last_major(|installation| {
        let mut world = World::new(installation);
        world.sql("CREATE TABLE s (a int, b int2vector, c oidvector); CREATE TABLE t (LIKE s)");
        let good = b"1,1 2,3 4\n2,7,\n3,,5\n";
        world.stock("COPY s FROM STDIN CSV", good).unwrap();
        let file = world.file("good.csv", good);
        for method in ["auto", "copy-binary", "copy-text"] {
            world.sql("TRUNCATE t");
            let loaded = world.load(&[&file, "--table", "t", "--method", method]);
            loaded.unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_eq!(world.difference("s", "t"), "", "{method}");
        }
        world.sql("TRUNCATE t");
        for bad in [&b"1,\"{1,2}\",3\n"[..], b"1,\"[0:1]={1,2}\",3\n", b"1,2,\"[0:1]={1,2}\"\n"] {
            let (message, _) = world.stock("COPY s FROM STDIN CSV", bad).unwrap_err();
            let file = world.file("bad.csv", bad);
            for method in ["auto", "copy-binary", "copy-text"] {
                let said = world.load(&[&file, "--table", "t", "--method", method]).unwrap_err();
                assert!(said.contains(&message), "{method}: {said}");
            }
        }
        assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
    });
}

/// The names of a landing table and its columns conflict neither with names of the user nor with
/// those of other loads.
#[test]
fn names_of_the_landing() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql(
        "CREATE TABLE \"t$1\" (pgsluice_record int, \"c$2\" text, pgsluice_record_ int);
         CREATE TABLE t (a int, b text)",
    );
    let file = world.file("rows.csv", b"1,x,2\n2,y,3\n");
    let mut log = 0;
    world.log(&mut log);
    let staged = [&file, "--table", "\"t$1\"", "--method", "staged"];
    assert_eq!(world.load(&staged).unwrap()["loaded"], 2);
    // The name has the process ID of the session, which is unique; those of loaders in containers
    // are not.
    let said = world.log(&mut log);
    let created = said.lines().find(|line| line.contains("CREATE UNLOGGED TABLE")).unwrap();
    let session = created.split(['[', ']']).nth(1).unwrap();
    assert!(created.contains(&format!("pgsluice_landing_{session}\"")), "{created}");
    let bad = world.file("bad.csv", b"1,x,2\n2,y,z\n");
    let staged = [&bad, "--table", "\"t$1\"", "--method", "staged"];
    let said = world.load(&staged).unwrap_err();
    assert!(said.contains("record 2") && said.contains("column pgsluice_record_"), "{said}");
    // `--where` may name the table, as COPY's WHERE may.
    let file = world.file("two.csv", b"1,x\n2,y\n");
    for method in ["copy-csv", "staged"] {
        let condition = ["--where", "t.a > 1 AND b <> '$1'", "--method", method];
        let loaded = world.load(&[&[file.as_str(), "--table", "t"], &condition[..]].concat());
        assert_eq!(loaded.unwrap()["loaded"], 1, "{method}");
    }
}

/// The condition of `check` may name the table, as that of a load may. SQL that reads the table
/// finds the table itself, not the one that `check` creates.
#[test]
fn a_condition_of_a_check_may_name_the_table() {
    let mut world = World::new(each_major().last().unwrap());
    world.sql("CREATE TABLE t (a int, b text); INSERT INTO t VALUES (0, 'y')");
    let file = world.file("rows.csv", b"1,x\n2,x\n3,x\n");
    for (condition, more) in [
        ("t.a > 1", &[][..]),
        ("t.a > 1 AND t.b = 'y'", &["--expr", "b=(SELECT max(b) FROM t WHERE ? = 'x')"]),
    ] {
        let check = ["check", &file, "--table", "t", "--where", condition];
        let output = world.run(&[&check[..], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{condition}: {said}");
        assert!(said.contains("read 3 = good 2 + bad 0 + skipped 1"), "{condition}: {said}");
    }
    // The schema is that of the table itself, into which `check` writes nothing.
    let output = world.run(&["check", &file, "--table", "t", "--where", "public.t.a > 1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("name the table without its schema in --where"), "{said}");
    assert_eq!(world.sql("SELECT count(*) FROM t"), "1");
}

/// A load by INSERT takes the marker of defaults also where COPY does not, and so does its check.
#[test]
fn markers_of_defaults_are_checked_by_insert() {
    let oldest = each_major().into_iter().min_by_key(|i| i.version.major);
    let mut world = World::new(&oldest.unwrap());
    world.sql("CREATE TABLE t (a int, b int DEFAULT 7 CHECK (b < 9), c int)");
    let file = world.file("rows.csv", b"1,D,1\n2,9,1\n3,8,D\n");
    for method in ["insert", "insert-batch"] {
        let check = ["check", &file, "--table", "t", "--default", "D", "--method", method];
        let output = world.run(&check);
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(4), "{method}: {output:?}");
        assert_eq!(listed.lines().count(), 2, "{method}: {listed}");
        assert!(listed.contains("record 2") && listed.contains("violates check"), "{listed}");
        assert!(listed.contains("record 3") && listed.contains("default marker"), "{listed}");
    }
    assert_eq!(world.sql("SELECT count(*) FROM t"), "0");
}

/// If a table has no column to fill, COPY takes an empty line as a row, but INSERT has no list of
/// values for it. COPY methods load such rows, INSERT methods are refused.
#[test]
fn tables_without_a_column_to_fill() {
    let mut world = World::new(each_major().last().unwrap());
    world
        .sql("CREATE TABLE none (); CREATE TABLE generated (a int GENERATED ALWAYS AS (1) STORED)");
    let file = world.file("rows.csv", b"\n\n");
    for table in ["none", "generated"] {
        for method in ["auto", "copy-csv", "copy-text", "copy-binary", "lanes"] {
            let loaded = world.load(&[&file, "--table", table, "--method", method]);
            assert_eq!(loaded.unwrap()["loaded"], 2, "{table} {method}");
        }
        let rows = world.sql(&format!("SELECT count(*) FROM {table}"));
        for method in ["insert", "insert-batch", "staged"] {
            let said = world.load(&[&file, "--table", table, "--method", method]).unwrap_err();
            assert!(said.contains("has no column to insert into"), "{method}: {said}");
            assert!(said.contains("hint: the COPY methods"), "{method}: {said}");
        }
        assert_eq!(world.sql(&format!("SELECT count(*) FROM {table}")), rows);
    }
}
