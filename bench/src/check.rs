//! Is the answer right? Nothing is timed here, and no time is kept before this has passed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{ensure, Context, Result};

use crate::checksum::{self, hash_bytes_extended, Checksum};
use crate::definition::Question;
use crate::measure::Case;
use crate::psql::Psql;
use crate::result::Answer;
use crate::server::USER;

/// Checks a loaded table: count, checksum and every index; thoroughly, also that each index
/// has every row, and the questions' answers.
pub fn table(
    psql: &Psql,
    case: Case<'_>,
    questions: &[Question],
    thorough: bool,
) -> Result<Answer> {
    let found = checksum(psql, case)?;
    ensure!(matches(case, found), "wrong answer: {}", difference(found, expected(case)));
    let indexes = indexes(psql, case, thorough)?;
    let compared = if case.method.values_kept { "values" } else { "count" };
    let mut answers = BTreeMap::new();
    if thorough && case.method.values_kept && !case.method.text {
        for question in questions {
            let rows = psql.query(&question.sql, USER)?;
            let mut lines: Vec<&str> = rows.lines().collect();
            lines.sort_unstable();
            let print = hash_bytes_extended(lines.join("\n").as_bytes());
            answers.insert(question.name.clone(), format!("{} rows {print:016x}", lines.len()));
        }
    }
    Ok(Answer { checksum: found, compared: compared.to_owned(), indexes, questions: answers })
}

/// Checks the CSV that a program without a server wrote from its own store.
pub fn csv(path: &Path, case: Case<'_>) -> Result<Answer> {
    let found = checksum::of_csv(path, case.data.columns.len())?;
    let due = case.set.text.times(case.method.copies);
    ensure!(found == due, "wrong answer: {}", difference(found, due));
    Ok(Answer {
        checksum: found,
        compared: "values".to_owned(),
        indexes: BTreeMap::new(),
        questions: BTreeMap::new(),
    })
}

/// Count and checksum of the method's table as it is now.
pub fn checksum(psql: &Psql, case: Case<'_>) -> Result<Checksum> {
    let expressions = if case.method.text {
        case.data.names().into_iter().map(str::to_owned).collect()
    } else {
        case.data.expressions()
    };
    let sql = checksum::server_sql(&case.method.table, &expressions);
    Checksum::parse(&psql.query(&sql, USER)?).context("checksum of the table")
}

/// Whether a checksum is the one the source file demands.
pub fn matches(case: Case<'_>, found: Checksum) -> bool {
    let due = expected(case);
    found == due || (!case.method.values_kept && found.rows == due.rows)
}

fn expected(case: Case<'_>) -> Checksum {
    let one = if case.method.text { case.set.text } else { case.set.typed };
    let loaded = one.times(case.method.copies);
    case.base.map_or(loaded, |base| loaded.plus(base.typed))
}

fn difference(found: Checksum, due: Checksum) -> String {
    if found.rows == due.rows {
        format!(
            "{} rows as in the file, but values differ (checksum {found}, file {due})",
            due.rows
        )
    } else {
        format!(
            "{} rows where the file has {} (checksum {found}, file {due})",
            found.rows, due.rows
        )
    }
}

/// Checks that the table has the indexes it should have, each valid; thoroughly, that each
/// holds every row.
fn indexes(psql: &Psql, case: Case<'_>, thorough: bool) -> Result<BTreeMap<String, String>> {
    let table = &case.method.table;
    let sql = format!(
        "SELECT c.relname, i.indisvalid AND i.indisready AND i.indislive, m.amname, \
         pg_get_indexdef(c.oid, 1, true) \
         FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam \
         WHERE i.indrelid = '{table}'::regclass ORDER BY 1"
    );
    let mut found = BTreeMap::new();
    for line in psql.query(&sql, USER)?.lines() {
        let fields: Vec<&str> = line.splitn(4, '|').collect();
        ensure!(fields.len() == 4, "unexpected answer about indexes: {line}");
        ensure!(fields[1] == "t", "index {} is not valid", fields[0]);
        found.insert(fields[0].to_owned(), (fields[2].to_owned(), fields[3].to_owned()));
    }
    let mut due = case.method.indexes.clone();
    due.sort();
    let names: Vec<String> = found.keys().cloned().collect();
    ensure!(names == due, "indexes {names:?} where {due:?} are due");
    let amcheck = !found.is_empty() && psql.query("CREATE EXTENSION amcheck", USER).is_ok();
    let rows = expected(case).rows;
    let mut checked = BTreeMap::new();
    for (name, (method, key)) in found {
        let how = if amcheck && method == "btree" {
            let sql = format!("SELECT bt_index_check('{name}', heapallindexed => {thorough})");
            psql.query(&sql, USER).with_context(|| format!("index {name}"))?;
            if thorough {
                "amcheck, every row indexed"
            } else {
                "amcheck"
            }
        } else if thorough {
            walk(psql, table, &name, &key, rows).with_context(|| format!("index {name}"))?;
            "walked in order, every row found"
        } else {
            "valid"
        };
        checked.insert(name, how.to_owned());
    }
    Ok(checked)
}

/// Without amcheck: reads the table through the index and counts rows and disorder.
fn walk(psql: &Psql, table: &str, index: &str, key: &str, rows: u64) -> Result<()> {
    let only = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;";
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE k < before) FROM \
         (SELECT {key} AS k, lag({key}) OVER (ORDER BY {key}) AS before FROM {table}) AS walked"
    );
    let plan = psql.query(&format!("{only} EXPLAIN {sql}"), USER)?;
    ensure!(plan.contains(&format!("using {index} ")), "the server does not use it:\n{plan}");
    let found = psql.query(&format!("{only} {sql}"), USER)?;
    ensure!(found == format!("{rows}|0"), "rows and disorder {found} where {rows}|0 is due");
    Ok(())
}
