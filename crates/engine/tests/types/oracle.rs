//! A live server as the judge of values.

use pgsluice_core::shape::{ArrayOf, DateOrder, EnumLabels, Env, Type};
use pgsluice_engine::server::{find_all, Installation, Options, Server};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What the core makes of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Takes,
    Asks,
    /// with one of these SQLSTATEs
    Refuses(&'static [&'static str]),
}

/// A session's settings, and what they mean to the core.
pub struct Settings {
    pub sql: &'static str,
    pub env: Env,
}

impl Settings {
    pub fn plain() -> Self {
        let env = Env { utc: true, money_c: true, ..Env::default() };
        Settings { sql: "SET timezone = 'UTC'; SET lc_monetary = 'C';", env }
    }

    /// Everything that could change the meaning of a value is set otherwise.
    pub fn contrary() -> Self {
        Settings {
            sql: "SET timezone = 'America/New_York'; SET lc_monetary = 'C';
                  SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard';
                  SET bytea_output = 'escape'; SET extra_float_digits = -15;",
            env: Env { utc: false, date_order: DateOrder::Dmy, money_c: true },
        }
    }
}

const SETUP: &str = r#"
CREATE TYPE mood AS ENUM ('sad', 'ok', 'Happy "x"', '', 'NULL', 'größer');
CREATE FUNCTION judge(fn text, args int, v text, io oid, typmod int) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF args = 1 THEN EXECUTE format('SELECT %s(textout($1))', fn) USING v;
    ELSIF args = 2 THEN EXECUTE format('SELECT %s(textout($1), $2)', fn) USING v, io;
    ELSE EXECUTE format('SELECT %s(textout($1), $2, $3)', fn) USING v, io, typmod;
    END IF;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE;
END $$;
"#;

pub struct Oracle {
    server: Server,
    major: u32,
    dir: PathBuf,
}

/// One server for each major version that is here. Without any, nothing would be tested.
pub fn each_major() -> Vec<Oracle> {
    let mut all = find_all();
    let mut seen = Vec::new();
    all.retain(|i| !seen.contains(&i.version.major) && (seen.push(i.version.major), true).1);
    assert!(!all.is_empty(), "no PostgreSQL server here: run scripts/servers");
    all.iter().map(Oracle::start).collect()
}

impl Oracle {
    fn start(installation: &Installation) -> Oracle {
        let options = Options {
            pg_bin: Some(installation.bin.clone()),
            settings: vec![("fsync".into(), "off".into())],
            ..Options::default()
        };
        let server = Server::start(options).expect("the server starts");
        let major = installation.version.major;
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("pgsluice-types-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).expect("a folder for the files");
        let oracle = Oracle { server, major, dir };
        oracle.psql(SETUP);
        oracle
    }

    pub fn name(&self) -> String {
        format!("PostgreSQL {}", self.major)
    }

    /// Runs a script; `COPY` and `\copy` in it may fail, which shows in what they leave out.
    fn psql(&self, script: &str) -> String {
        let file = self.dir.join("script.sql");
        std::fs::write(&file, script).expect("the script is written");
        let own = find_all().into_iter().map(|i| i.program("psql")).find(|p| p.is_file());
        let output = Command::new(own.unwrap_or("psql".into()))
            .args(["-X", "-q", "-A", "-t", "-d", &self.server.url("postgres"), "-f"])
            .arg(&file)
            .env("PGCLIENTENCODING", "UTF8")
            .output()
            .expect("psql runs");
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "psql failed: {talk}");
        let errors: Vec<&str> = talk.lines().filter(|l| l.contains("ERROR")).collect();
        String::from_utf8_lossy(&output.stdout).into_owned() + &errors.join("\n")
    }

    /// The core's type for a column of the SQL type, from what the catalog says of it.
    pub fn column_type(&self, sql: &str) -> Type {
        let facts = self.psql(&format!(
            "CREATE TEMP TABLE x (v {sql});
             SELECT atttypid, atttypmod, typtype, typelem, typcategory,
                    (SELECT typtype FROM pg_type e WHERE e.oid = t.typelem)
             FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
             WHERE attrelid = 'x'::regclass AND attnum = 1;"
        ));
        let facts: Vec<&str> = facts.trim().split('|').collect();
        let number = |i: usize| facts[i].parse::<i64>().expect("a number");
        if facts[2] == "e" {
            return self.enum_type(number(0));
        }
        if facts[4] == "A" && facts[5] == "e" {
            return Type::Array(Box::new(ArrayOf {
                element: self.enum_type(number(3)),
                element_oid: number(3) as u32,
                delimiter: b',',
            }));
        }
        let ty = Type::from_oid(number(0) as u32, number(1) as i32);
        assert_ne!(ty, Type::Server, "{sql} is not known");
        ty
    }

    fn enum_type(&self, oid: i64) -> Type {
        let labels = self.psql(&format!(
            "SELECT oid, enumlabel FROM pg_enum WHERE enumtypid = {oid} ORDER BY enumsortorder;"
        ));
        let labels = labels.lines().map(|line| {
            let (oid, label) = line.split_once('|').expect("two columns");
            (label.as_bytes().to_vec(), oid.parse().expect("an oid"))
        });
        Type::Enum(EnumLabels::new(labels.collect()))
    }

    /// Where the server does not agree with the core.
    pub fn compare(
        &self,
        sql: &str,
        settings: &Settings,
        values: &[String],
        verdicts: &[Verdict],
        rows: &[u8],
    ) -> Vec<String> {
        let mut taken = String::new();
        let mut all = String::new();
        for (id, (value, verdict)) in values.iter().zip(verdicts).enumerate() {
            let value = escaped(value);
            let expected = match verdict {
                Verdict::Takes => "ok".to_owned(),
                Verdict::Asks => continue,
                Verdict::Refuses(states) => states.join(" "),
            };
            let _ = writeln!(all, "{id}\t{expected}\t{value}");
            if *verdict == Verdict::Takes {
                let _ = writeln!(taken, "{id}\t{value}");
            }
        }
        let mut binary = pgsluice_core::sink::HEADER.to_vec();
        binary.extend_from_slice(rows);
        binary.extend_from_slice(pgsluice_core::sink::TRAILER);
        let files = ["all.txt", "taken.txt", "rows.bin"].map(|f| self.dir.join(f));
        for (file, data) in files.iter().zip([all.as_bytes(), taken.as_bytes(), &binary]) {
            std::fs::write(file, data).expect("a file is written");
        }
        let [all, taken, binary] = files.each_ref().map(|f| f.display());
        let said = self.psql(&format!(
            r"{settings}
            CREATE TEMP TABLE j (id int, expected text, v text);
            \copy j FROM '{all}'
            CREATE TEMP TABLE t (id int, v {sql});
            CREATE TEMP TABLE b (id int, v {sql});
            \copy t FROM '{taken}'
            \copy b FROM '{binary}' (FORMAT binary)
            WITH type AS (
                SELECT typinput::regproc::text AS fn, pronargs AS args, atttypmod AS typmod,
                       CASE WHEN typelem <> 0 THEN typelem ELSE t.oid END AS io
                FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
                JOIN pg_proc p ON p.oid = typinput
                WHERE attrelid = 't'::regclass AND attname = 'v'
            ), judged AS MATERIALIZED (
                SELECT j.*, judge(fn, args, v, io, typmod) AS found FROM j, type
            )
            SELECT 'the core says ' || expected || ', the server ' || found || ': ' || v
            FROM judged WHERE NOT found = ANY (string_to_array(expected, ' '));
            SELECT 'stored otherwise: ' || id FROM (
                (SELECT id, {send}(v) FROM t EXCEPT ALL SELECT id, {send}(v) FROM b)
                UNION ALL
                (SELECT id, {send}(v) FROM b EXCEPT ALL SELECT id, {send}(v) FROM t)) AS d;
            SELECT 'rows: ' || count(*) || ' of ' || {expected} FROM b
            HAVING count(*) <> {expected};",
            settings = settings.sql,
            send = self.send_function(sql),
            expected = verdicts.iter().filter(|v| **v == Verdict::Takes).count(),
        ));
        said.lines().map(|line| with_value(sql, line, values)).collect()
    }

    fn send_function(&self, sql: &str) -> String {
        let name = self.psql(&format!(
            "CREATE TEMP TABLE x (v {sql});
             SELECT typsend::regproc FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
             WHERE attrelid = 'x'::regclass AND attnum = 1;"
        ));
        name.trim().to_owned()
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The complaint, with the value where it gives only its number.
fn with_value(sql: &str, line: &str, values: &[String]) -> String {
    let id = line.strip_prefix("stored otherwise: ").and_then(|id| id.parse::<usize>().ok());
    match id {
        Some(id) => format!("{sql}: stored otherwise: {:?}", values[id]),
        None => format!("{sql}: {line}"),
    }
}

/// A value as a field of COPY's text format.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}
