//! A live server as the reference for values.

use crate::support;
use pgsluice_core::shape::{ArrayOf, DateOrder, EnumLabels, Env, Type};
use pgsluice_core::sink::{HeapColumn, HEADER, TRAILER};
use pgsluice_pgserver::{find, Installation, Server, ServerOptions};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// What the core does with a value.
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

    /// Every setting that could change the meaning of a value has another value.
    pub fn contrary() -> Self {
        Settings {
            sql: "SET timezone = 'America/New_York'; SET lc_monetary = 'C';
                  SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard';
                  SET bytea_output = 'escape'; SET extra_float_digits = -15;",
            env: Env { utc: false, date_order: DateOrder::Dmy, money_c: true, single_byte: false },
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

/// Runs the test with a server of each installed major version, two at a time.
pub fn on_each_major(test: impl Fn(&Oracle) + Sync) {
    support::on_each_major(|installation| test(&Oracle::start(installation)));
}

impl Oracle {
    /// Starts the best available server.
    pub fn any() -> Oracle {
        Oracle::start(&find(None, None).expect("a PostgreSQL server: run scripts/servers"))
    }

    fn start(installation: &Installation) -> Oracle {
        let options = ServerOptions {
            pg_bin: Some(installation.bin.clone()),
            settings: vec![("fsync".into(), "off".into())],
            ..ServerOptions::default()
        };
        let server = Server::start(options).expect("the server starts");
        let major = installation.version.major;
        // It is removed together with the server.
        let dir = server.dir().join("files");
        std::fs::create_dir(&dir).expect("a folder for the files");
        let oracle = Oracle { server, major, dir };
        oracle.psql(SETUP);
        oracle
    }

    pub fn name(&self) -> String {
        format!("PostgreSQL {}", self.major)
    }

    /// Whether the server has pageinspect. If not, reports what is left out.
    pub fn shows_pages(&self) -> bool {
        let there =
            self.psql("SELECT name FROM pg_available_extensions WHERE name = 'pageinspect'");
        if there.is_empty() {
            support::left_out(&format!(
                "what lies in the pages of {}: no pageinspect",
                self.name()
            ));
        }
        !there.is_empty()
    }

    /// Runs a script. `COPY` and `\copy` in it may fail; then rows are missing.
    pub fn psql(&self, script: &str) -> String {
        let file = self.dir.join("script.sql");
        std::fs::write(&file, script).expect("the script is written");
        let output = Command::new(support::psql())
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

    /// What the catalog says about a column of each SQL type.
    pub fn columns(&self, types: &[&str]) -> Vec<Column> {
        let tables = types.iter().enumerate().fold(String::new(), |mut sql, (i, ty)| {
            let _ = writeln!(sql, "CREATE TEMP TABLE x{i} (v {ty});");
            sql
        });
        let facts = self.psql(&format!(
            "{tables}
             SELECT atttypid, atttypmod, t.typtype, typelem, typcategory, typsend::regproc,
                    (SELECT typtype FROM pg_type e WHERE e.oid = t.typelem), attlen, attalign,
                    (SELECT typalign FROM pg_type e WHERE e.oid = t.typelem)
             FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
             JOIN pg_class c ON c.oid = attrelid
             WHERE relname ~ '^x[0-9]+$' AND attnum = 1 ORDER BY substr(relname, 2)::int;"
        ));
        let enums = self.psql("SELECT enumtypid, oid, enumlabel FROM pg_enum;");
        let columns: Vec<_> = facts.lines().map(|line| Column::new(line, &enums)).collect();
        assert_eq!(columns.len(), types.len());
        columns
    }

    /// Returns the values on which the server and the core disagree.
    pub fn compare(&self, settings: &Settings, trials: &[Trial]) -> Vec<String> {
        let mut script = settings.sql.to_owned();
        for (i, trial) in trials.iter().enumerate() {
            self.write_files(i, trial);
            let files = ["all", "taken", "rows"].map(|f| self.dir.join(format!("{f}{i}")));
            let [all, taken, binary] = files.each_ref().map(|f| f.display());
            let taking = trial.verdicts.iter().filter(|v| **v == Verdict::Takes).count();
            let (sql, send) = (trial.sql, &trial.send);
            let _ = write!(
                script,
                r"
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
                SELECT {i}, 'the core says ' || expected || ', the server ' || found || ': ' || v
                FROM judged WHERE NOT found = ANY (string_to_array(expected, ' '));
                SELECT {i}, 'stored otherwise: ' || id FROM (
                    (SELECT id, {send}(v) FROM t EXCEPT ALL SELECT id, {send}(v) FROM b)
                    UNION ALL
                    (SELECT id, {send}(v) FROM b EXCEPT ALL SELECT id, {send}(v) FROM t)) AS d;
                SELECT {i}, 'rows: ' || count(*) || ' of {taking}' FROM b
                HAVING count(*) <> {taking};
                DROP TABLE j, t, b;"
            );
        }
        let said = self.psql(&script);
        said.lines().map(|line| complaint(line, trials)).collect()
    }

    /// Writes a file for this server's scripts to read.
    pub fn write(&self, name: &str, data: &[u8]) -> PathBuf {
        let file = self.dir.join(name);
        std::fs::write(&file, data).expect("a file is written");
        file
    }

    fn write_files(&self, i: usize, trial: &Trial) {
        let mut taken = String::new();
        let mut all = String::new();
        for (id, (value, verdict)) in trial.values.iter().zip(&trial.verdicts).enumerate() {
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
        let binary = [HEADER.as_slice(), &trial.rows, TRAILER].concat();
        let files = [("all", all.as_bytes()), ("taken", taken.as_bytes()), ("rows", &binary)];
        for (file, data) in files {
            self.write(&format!("{file}{i}"), data);
        }
    }
}

/// A column, as described for the core and for the server.
pub struct Column {
    pub ty: Type,
    /// the function that gives a value's bytes
    pub send: String,
    /// how its values are stored in a tuple, if `attstorage` is external
    pub heap: HeapColumn,
}

impl Column {
    /// From a line of facts, and lines of all enums' labels.
    fn new(facts: &str, enums: &str) -> Column {
        let facts: Vec<&str> = facts.split('|').collect();
        let number = |i: usize| facts[i].parse::<i64>().expect("a number");
        let (oid, typmod, element) = (number(0) as u32, number(1) as i32, number(3) as u32);
        let ty = match (facts[2], facts[4], facts[6]) {
            ("e", ..) => enum_type(oid, enums),
            (_, "A", "e") => Type::Array(Box::new(ArrayOf {
                element: enum_type(element, enums),
                element_oid: element,
                delimiter: b',',
            })),
            _ => Type::from_oid(oid, typmod),
        };
        assert_ne!(ty, Type::Server, "type {oid} is not known");
        let align = |of: &str| match of {
            "s" => 2,
            "i" => 4,
            "d" => 8,
            _ => 1,
        };
        let heap = HeapColumn {
            len: number(7) as i16,
            align: align(facts[8]),
            packable: number(7) == -1,
            element_align: align(facts[9]),
            given: None,
        };
        Column { ty, send: facts[5].to_owned(), heap }
    }
}

fn enum_type(oid: u32, enums: &str) -> Type {
    let prefix = format!("{oid}|");
    let labels = enums.lines().filter_map(|line| {
        let (oid, label) = line.strip_prefix(&prefix)?.split_once('|')?;
        Some((label.as_bytes().to_vec(), oid.parse().ok()?))
    });
    Type::Enum(EnumLabels::new(labels.collect()))
}

/// Values of one type, and what the core made of them.
pub struct Trial<'t> {
    pub sql: &'t str,
    pub send: String,
    pub values: Vec<String>,
    pub verdicts: Vec<Verdict>,
    /// the accepted rows `(id, value)` in PGCOPY form
    pub rows: Vec<u8>,
}

/// The complaint with its type's name, and with the value if it gives only its number.
fn complaint(line: &str, trials: &[Trial]) -> String {
    let trial = line
        .split_once('|')
        .and_then(|(i, said)| Some((trials.get(i.parse::<usize>().ok()?)?, said)));
    let Some((trial, said)) = trial else {
        return line.to_owned();
    };
    match said.strip_prefix("stored otherwise: ").and_then(|id| id.parse::<usize>().ok()) {
        Some(id) => format!("{}: stored otherwise: {:?}", trial.sql, trial.values[id]),
        None => format!("{}: {said}", trial.sql),
    }
}

/// A value as a field of COPY's text format.
pub fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}
