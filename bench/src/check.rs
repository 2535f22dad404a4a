//! Checks that a loaded table is right. Nothing is timed here. A time is kept only after these
//! checks have passed.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{ensure, Context, Result};

use crate::checksum::{self, hash_bytes_extended, Checksum};
use crate::definition::{Durability, Question};
use crate::measure::Case;
use crate::psql::Psql;
use crate::result::Answer;
use crate::server::USER;

/// Checks a loaded table: the count, the checksum and every index. A thorough check also covers
/// that each index has every row, and the answers to the questions. Nothing is timed any more, so
/// all checks run at once.
pub fn table(
    psql: &Psql,
    case: Case<'_>,
    questions: &[Question],
    thorough: bool,
) -> Result<Answer> {
    let asked = thorough && case.method.values_kept && !case.method.text;
    let questions = if asked { questions } else { &[] };
    thread::scope(|scope| {
        let indexes = scope.spawn(|| indexes(psql, case, thorough));
        let answers = scope.spawn(|| at_once(questions, |question| ask(psql, question)));
        let found = checksum(psql, case)?;
        ensure!(matches(case, found), "wrong answer: {}", difference(found, expected(case)));
        persistence(psql, case)?;
        let compared = if case.method.values_kept { "values" } else { "count" };
        Ok(Answer {
            checksum: found,
            compared: compared.to_owned(),
            indexes: joined(indexes)?.into_iter().collect(),
            questions: joined(answers)?.into_iter().collect(),
        })
    })
}

/// The result of a scoped thread. A panic in the thread continues here.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Calls `one` for every item at the same time. Each call has its own session.
fn at_once<T: Sync, R: Send>(all: &[T], one: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|item| scope.spawn(|| one(item))).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// The name of a question, and the fingerprint of its answer. The query is not timed, so it may
/// group in memory.
fn ask(psql: &Psql, question: &Question) -> Result<(String, String)> {
    let rows = psql.query(&format!("SET work_mem = '512MB'; {}", question.sql), USER)?;
    let mut lines: Vec<&str> = rows.lines().collect();
    lines.sort_unstable();
    let print = hash_bytes_extended(lines.join("\n").as_bytes());
    Ok((question.name.clone(), format!("{} rows {print:016x}", lines.len())))
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

/// Count and checksum of the method's table in its present state.
pub fn checksum(psql: &Psql, case: Case<'_>) -> Result<Checksum> {
    let expressions = if case.method.text {
        case.data.names().into_iter().map(str::to_owned).collect()
    } else {
        case.data.expressions()
    };
    let sql = checksum::server_sql(&case.method.table, &expressions);
    Checksum::parse(&psql.query(&sql, USER)?).context("checksum of the table")
}

/// Checks that only a method with the durability `whole-table` has an unlogged table, which a crash
/// empties. This check also runs when the suite has no crash.
fn persistence(psql: &Psql, case: Case<'_>) -> Result<()> {
    let (table, claimed) = (&case.method.table, case.method.durability);
    let sql = format!("SELECT relpersistence FROM pg_class WHERE oid = '{table}'::regclass");
    let logged = psql.query(&sql, USER)? == "p";
    ensure!(
        logged || claimed == Durability::WholeTable,
        "the table is not logged, but durability is said to be `{}`",
        claimed.word()
    );
    Ok(())
}

/// Whether a checksum is the expected one of the source file.
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

/// An index of the checked table as the catalogs describe it.
struct Index {
    name: String,
    method: String,
    /// Its first column.
    key: String,
    /// Its columns, if no two rows may have the same values in all of them.
    unique: Option<String>,
}

/// Checks that the table has the expected indexes and that each is valid. A thorough check also
/// covers that each index holds every row. Returns how each index was checked, by name.
fn indexes(psql: &Psql, case: Case<'_>, thorough: bool) -> Result<Vec<(String, String)>> {
    let table = &case.method.table;
    let sql = format!(
        "SELECT json_build_array(c.relname, i.indisvalid AND i.indisready AND i.indislive, m.amname, \
         pg_get_indexdef(c.oid, 1, true), CASE WHEN i.indisunique AND i.indpred IS NULL THEN \
         (SELECT string_agg(pg_get_indexdef(c.oid, n, true), ', ') \
         FROM generate_series(1, i.indnkeyatts) AS n) END) \
         FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam \
         WHERE i.indrelid = '{table}'::regclass ORDER BY c.relname"
    );
    let mut found = Vec::new();
    for line in psql.query(&sql, USER)?.lines() {
        let (name, valid, method, key, unique): (String, bool, String, String, Option<String>) =
            serde_json::from_str(line).with_context(|| format!("about indexes: {line}"))?;
        ensure!(valid, "index {name} is not valid");
        found.push(Index { name, method, key, unique });
    }
    let mut due = case.method.indexes.clone();
    due.sort();
    let names: Vec<&String> = found.iter().map(|index| &index.name).collect();
    ensure!(names.iter().copied().eq(&due), "indexes {names:?} where {due:?} are due");
    let amcheck = !found.is_empty() && psql.query("CREATE EXTENSION amcheck", USER).is_ok();
    at_once(&found, |index| {
        let how = check_index(psql, case, index, amcheck, thorough);
        Ok((index.name.clone(), how.with_context(|| format!("index {}", index.name))?))
    })
}

/// Checks one index by the best method that the server has. Returns the name of that method.
fn check_index(
    psql: &Psql,
    case: Case<'_>,
    Index { name, method, key, unique }: &Index,
    amcheck: bool,
    thorough: bool,
) -> Result<String> {
    if let Some(columns) = unique.as_ref().filter(|_| thorough) {
        unique_rows(psql, &case.method.table, columns)?;
    }
    let how = if amcheck && method == "btree" {
        // For a partitioned index, check the indexes of its partitions.
        let sql = format!(
            "SELECT bt_index_check(c.oid, heapallindexed => {thorough}) FROM pg_class c WHERE c.relkind = 'i' AND \
             (c.oid = '{name}'::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree('{name}')))"
        );
        psql.query(&sql, USER)?;
        if thorough {
            "amcheck, every row indexed"
        } else {
            "amcheck"
        }
    } else if method == "gin"
        && amcheck
        && psql.query("SELECT to_regproc('gin_index_check') IS NOT NULL", USER)? == "t"
    {
        psql.query(&format!("SELECT gin_index_check('{name}')"), USER)?;
        "amcheck"
    } else if thorough && method == "btree" {
        walk(psql, &case.method.table, name, key, expected(case).rows)?;
        "walked in order, every row found"
    } else {
        "valid"
    };
    Ok(how.to_owned())
}

/// Checks that no key occurs twice. It reads the table, not the index: amcheck accepts a unique
/// index that has a key twice.
fn unique_rows(psql: &Psql, table: &str, columns: &str) -> Result<()> {
    let twice = psql.query(
        &format!(
            "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; \
             SET work_mem = '512MB'; SELECT count(*) FROM (SELECT FROM {table} \
             WHERE ROW({columns}) IS NOT NULL GROUP BY {columns} HAVING count(*) > 1) AS twice"
        ),
        USER,
    )?;
    ensure!(twice == "0", "it is unique, and {twice} keys are in the table more than once");
    Ok(())
}

/// Checks an index without amcheck: reads the table through the index and counts the rows and those
/// out of order.
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
