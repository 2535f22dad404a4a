//! `check`: parses and converts every value, writes nothing, and reports every bad record.
//!
//! The records are processed as in a load, but into a temporary table. It has the target's types,
//! NOT NULL and CHECK constraints for the columns that the file supplies. It is emptied after each
//! chunk and dropped at the end of the transaction. No sequence is advanced, and no trigger fires.
//! What depends on other rows (unique and foreign keys, exclusion, partitions) is not checked.

use crate::blame::of_condition;
use crate::clue;
use crate::error::{Error, Kind};
use crate::event::Phase;
use crate::facts::Purpose;
use crate::fields::FieldOptions;
use crate::input::Reader;
use crate::inspect::make_plan;
use crate::load::{open_lanes, total};
use crate::options::{Header, Method, Options, RejectOptions};
use crate::pipeline;
use crate::plan::Plan;
use crate::reject::{Amount, Existing, Limit, Listener, Reject, Rejects};
use crate::session::conn::{quote_ident, Conn};
use crate::session::transaction;
use crate::watch::Watch;
use std::path::PathBuf;
use std::sync::Arc;

/// The temporary table, unless a condition names the target.
const SCRATCH: &str = "pgsluice_check";

/// Reads the columns of a table, with a definition and a default for each.
///
/// - The definition is NULL if rows without a value may differ there, so that no sequence is
///   advanced.
/// - The default is what the DEFAULT marker stands for. If that is drawn from a sequence (by
///   `nextval`, whose OID is fixed), it is a number instead.
const COLUMNS: &str = "SELECT a.attname, CASE WHEN a.attgenerated = '' AND a.attidentity = '' \
      AND NOT t.typnotnull AND NOT EXISTS (SELECT FROM \
        pg_catalog.regexp_matches(pg_catalog.concat(d.adbin, t.typdefaultbin), ':funcid ([0-9]+)', 'g') AS m \
        JOIN pg_catalog.pg_proc p ON p.oid = m[1]::oid WHERE p.provolatile = 'v') \
    THEN pg_catalog.concat(pg_catalog.quote_ident(a.attname), ' ', \
      pg_catalog.format_type(a.atttypid, a.atttypmod), \
      ' COLLATE ' || nullif(a.attcollation, t.typcollation)::regcollation::text, \
      ' DEFAULT ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid)) END, \
    CASE WHEN a.attgenerated <> '' THEN NULL \
      WHEN a.attidentity <> '' OR d.adbin::text ~ ':funcid 1574 ' \
        THEN CASE WHEN t.typcategory IN ('N', 'S') THEN '''1''' END \
      ELSE pg_catalog.pg_get_expr(d.adbin, d.adrelid) END \
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
  WHERE a.attrelid = $1::regclass::oid AND a.attnum > 0 AND NOT a.attisdropped";

/// What a check has found: `read = good + bad + skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// records read
    pub read: u64,
    /// records that the types and constraints accept
    pub good: u64,
    /// records that were reported
    pub bad: u64,
    /// number of lines of these records
    pub bad_lines: u64,
    /// lines read
    pub lines: u64,
    /// records skipped by `--skip` or `--where`, and lines that are not records
    pub skipped: u64,
    /// fields with a quote that neither opens nor closes them
    pub stray_quotes: u64,
}

/// Checks the files. Calls `tell` for every bad record, in the order of the file.
///
/// # Errors
///
/// The check cannot be made, or a PGCOPY file cannot be read any further.
pub fn check(options: &Options, watch: &Watch, tell: Listener) -> Result<Checked, Error> {
    let condition = options.target.filter.as_deref();
    run(options, watch, tell)
        .map_err(|e| clue::explained(of_condition(watch.told(e), condition), options))
}

fn run(options: &Options, watch: &Watch, tell: Listener) -> Result<Checked, Error> {
    watch.progress.begin(Phase::Opening);
    let mut reader = Reader::open(&options.input)?;
    let options = &options.reading(&reader)?;
    watch.progress.total_bytes.set(reader.total_bytes());
    let mut conn = watch.connect(&options.target.url)?;
    watch.progress.begin(Phase::Inspecting);
    transaction::begin(&mut conn, options)?;
    let purpose = Purpose::Check { inferred: None };
    let target = make_plan(&mut conn, &reader, options, purpose, false)?;
    let scratch = scratch_name(&target);
    make_scratch(&mut conn, &target, &scratch)?;
    let options = scratch_options(options, &target, &scratch);
    // Values that inferred types would alter end a load.
    let purpose = Purpose::Check { inferred: target.inferred.clone() };
    let plan = make_plan(&mut conn, &reader, &options, purpose, false)?;
    for statement in &plan.before {
        conn.exec(statement)?;
    }
    let passed = plan.read_by(&mut reader);

    watch.progress.begin(Phase::Loading);
    let rejects = Some(Arc::new(Rejects::told(of_target(tell, &scratch, &target.relation))));
    let lanes = open_lanes(conn, &plan, &options, watch, &rejects)?;
    let (through, mut lanes) = pipeline::run(reader, &plan, lanes, &watch.progress, &watch.stop)
        .map_err(|e| without_schema(e, &target))?;
    let good = total(&lanes).rows;
    let read = Amount { records: through.records + through.passed, lines: through.lines };
    let bad = rejects.map_or(Ok(Amount::default()), |rejects| rejects.close(read))?;
    lanes[0].conn.exec("ROLLBACK")?;
    let records = through.records;
    let kept_back =
        records.checked_sub(good + bad.records).filter(|n| *n == 0 || plan.may_drop_rows);
    let Some(kept_back) = kept_back else {
        return Err(Error::new(format!(
            "{records} records were read, {good} were good and {} bad",
            bad.records
        ))
        .of_kind(Kind::Internal)
        .with_hint("this is a defect of the loader"));
    };
    watch.progress.begin(Phase::Done);
    let passed = passed.get().lines();
    Ok(Checked {
        read: read.records + passed,
        good,
        bad: bad.records,
        bad_lines: bad.lines,
        lines: read.lines,
        skipped: through.passed + kept_back + passed,
        stray_quotes: through.stray_quotes,
    })
}

/// Returns the name of the temporary table. It is that of the target if a condition may name it, as
/// with COPY.
fn scratch_name(target: &Plan) -> String {
    let condition = target.filter.as_deref().unwrap_or_default().to_lowercase();
    match condition.contains(&target.relation.to_lowercase()) {
        true => target.relation.clone(),
        false => SCRATCH.to_owned(),
    }
}

/// Adds a hint to the error for a condition that names the target with its schema, in which the
/// temporary table is not. The server's own hint misleads.
fn without_schema(error: Error, target: &Plan) -> Error {
    let plain = |sql: &str| sql.replace('"', "").to_lowercase();
    let condition = target.filter.as_deref().map(plain).unwrap_or_default();
    match error.sqlstate() {
        "42P01" if condition.contains(&plain(&target.table)) => error.with_hint(
            "check reads the records into a temporary table: name the table without its schema in \
             `where`",
        ),
        _ => error,
    }
}

/// Replaces the name of the temporary table in the server's messages by that of the target.
fn of_target(mut tell: Listener, scratch: &str, relation: &str) -> Listener {
    let (scratch, target) = (format!("\"{scratch}\""), format!("\"{relation}\""));
    Box::new(move |reject: &Reject| {
        let mut reject = reject.clone();
        reject.message = reject.message.replace(&scratch, &target);
        tell(&reject);
    })
}

/// Creates a table with the target's columns that the file supplies, and their constraints. If the
/// file has a marker for defaults, these columns get their defaults. If a condition leaves out
/// rows, it may name any column. Then the other columns are added without constraints.
fn make_scratch(conn: &mut Conn, target: &Plan, scratch: &str) -> Result<(), Error> {
    // If the user's SQL names the target without a schema, it must not find the temporary table.
    let path = transaction::search_path(conn, "pg_temp")?;
    if !path.is_empty() {
        transaction::search_path(conn, &format!("{path}, pg_temp"))?;
    }
    let scratch = format!("pg_temp.{}", quote_ident(scratch));
    conn.exec(&format!(
        "CREATE TEMPORARY TABLE {scratch} (LIKE {} INCLUDING CONSTRAINTS) ON COMMIT DROP",
        target.table
    ))
    .map_err(|e| e.with_hint("check needs SELECT on the table and TEMPORARY on the database"))?;
    let marks = target.dialect().is_some_and(|dialect| dialect.default.is_some());
    for row in conn.query(COLUMNS, &[Some(&target.table)])? {
        let name = row[0].as_deref().unwrap_or_default();
        let column = quote_ident(name);
        if target.columns.iter().any(|c| c == name) {
            if let (Some(default), true) = (&row[2], marks) {
                conn.exec(&format!(
                    "ALTER TABLE {scratch} ALTER COLUMN {column} SET DEFAULT {default}"
                ))?;
            }
            continue;
        }
        // This also drops the CHECK constraints that name the column.
        conn.exec(&format!("ALTER TABLE {scratch} DROP COLUMN {column}"))?;
        if let (Some(definition), true) = (&row[1], target.filter.is_some()) {
            conn.exec(&format!("ALTER TABLE {scratch} ADD COLUMN {definition}"))?;
        }
    }
    Ok(())
}

/// Returns the options of the same load into the temporary table.
fn scratch_options(options: &Options, target: &Plan, scratch: &str) -> Options {
    let mut options = options.clone();
    let into = &mut options.target;
    into.table = format!("pg_temp.{}", quote_ident(scratch));
    into.columns = Some(target.fields.clone());
    let FieldOptions { map, ignore_unknown, all_columns, .. } = &mut into.fields;
    (*map, *ignore_unknown, *all_columns) = (Vec::new(), false, false);
    // COPY may not support the marker of defaults, so a load by INSERT is checked by INSERT.
    let marks = target.dialect().is_some_and(|dialect| dialect.default.is_some());
    into.method = match target.method {
        Method::Insert | Method::InsertBatch if marks => Method::InsertBatch,
        _ => Method::Auto,
    };
    into.truncate = false;
    into.create = crate::options::Create::No;
    if options.input.header != Header::None {
        options.input.header = Header::Ignore;
    }
    options.rejects =
        Some(RejectOptions { file: PathBuf::new(), existing: Existing::Error, limit: Limit::None });
    options
}
