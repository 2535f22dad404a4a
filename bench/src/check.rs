//! Checks that a loaded table is right. Nothing is timed here. A time is kept only after these
//! checks have passed.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{bail, ensure, Context, Result};

use crate::checksum::{self, hash_bytes_extended, Checksum};
use crate::definition::{By, Durability, IndexProbe, MethodDefinition, Question, Suite};
use crate::measure::Case;
use crate::psql::Psql;
use crate::result::{Answer, Run, SuiteResult};
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
        let probes = if thorough { case.method.probe.as_slice() } else { &[] };
        let probed = scope.spawn(|| at_once(probes, |one| probe(psql, one)));
        let found = checksum(psql, case)?;
        ensure!(matches(case, found), "wrong answer: {}", difference(found, expected(case)));
        persistence(psql, case)?;
        partitions(psql, case)?;
        all_hold(psql, case)?;
        if thorough && !case.method.text {
            serials(psql, case)?;
        }
        joined(probed)?;
        let compared = if case.method.values_kept { "values" } else { "count" };
        Ok(Answer {
            checksum: found,
            compared: compared.to_owned(),
            indexes: joined(indexes)?
                .into_iter()
                .map(|(name, how)| match probes.iter().any(|p| p.index == name) {
                    true => (name, format!("{how}, as many rows found as without it")),
                    false => (name, how),
                })
                .collect(),
            questions: joined(answers)?.into_iter().collect(),
            definitions: definitions(psql, &case.method.table)?,
        })
    })
}

/// The indexes and constraints of the table by name, as the server describes them. What is not
/// valid is not there.
fn definitions(psql: &Psql, table: &str) -> Result<BTreeMap<String, String>> {
    let sql = format!(
        "SELECT json_build_array(c.relname, pg_get_indexdef(i.indexrelid)) \
           FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
           WHERE i.indrelid = '{table}'::regclass AND i.indisvalid \
         UNION ALL SELECT json_build_array('constraint ' || conname, pg_get_constraintdef(oid)) \
           FROM pg_constraint WHERE conrelid = '{table}'::regclass AND convalidated"
    );
    let lines = psql.query(&sql, USER)?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Checks that a table which one of our methods has loaded has every index and constraint that
/// its counterpart's has, where both are to have the same indexes.
pub fn counterpart(
    suite: &Suite,
    result: &SuiteResult,
    method: &MethodDefinition,
    rows: u64,
    run: &Run,
) -> Result<()> {
    for other in &suite.method {
        let (ours, theirs) = match (&method.against, &other.against) {
            (Some(name), _) if *name == other.name => (method, other),
            (_, Some(name)) if *name == method.name => (other, method),
            _ => continue,
        };
        let alike = ours.table == theirs.table && ours.indexes == theirs.indexes;
        if !alike || ours.by != By::Pgsluice {
            continue;
        }
        let definitions = |of: &MethodDefinition| match of.name == method.name {
            true => Some(&run.answer.definitions),
            false => result.method(&of.name, rows)?.runs.last().map(|r| &r.answer.definitions),
        };
        let Some((has, due)) = definitions(ours).zip(definitions(theirs)) else { continue };
        // A kept result that is older than this field has none.
        if has.is_empty() && ours.name != method.name {
            continue;
        }
        let missing = due.iter().find(|(name, text)| has.get(*name) != Some(*text));
        if let Some((name, text)) = missing {
            bail!("{}: {name} is not as in {}: {text}", ours.name, theirs.name);
        }
    }
    Ok(())
}

/// Checks that each row is in the partition where it belongs. Foreign partitions are left out: all of
/// their rows would have to come back from the nodes.
fn partitions(psql: &Psql, case: Case<'_>) -> Result<()> {
    let table = &case.method.table;
    let sql = format!(
        "DO $$ DECLARE leaf record; wrong bigint; BEGIN \
         FOR leaf IN SELECT relid, pg_get_partition_constraintdef(relid) AS rule \
             FROM pg_partition_tree('{table}') JOIN pg_class c ON c.oid = relid \
             WHERE isleaf AND level > 0 AND c.relkind = 'r' LOOP \
           EXECUTE format('SELECT count(*) FROM %s WHERE (%s) IS NOT TRUE', leaf.relid::regclass, \
             coalesce(leaf.rule, 'true')) INTO wrong; \
           IF wrong > 0 THEN RAISE EXCEPTION '% rows of % belong elsewhere', wrong, \
             leaf.relid::regclass; END IF; \
         END LOOP; END $$"
    );
    psql.query(&sql, USER).map(|_| ()).context("partitions")
}

/// Checks that every row fulfils the method's conditions.
fn all_hold(psql: &Psql, case: Case<'_>) -> Result<()> {
    for condition in &case.method.holds {
        let table = &case.method.table;
        let sql = format!("SELECT count(*) FROM {table} WHERE ({condition}) IS NOT TRUE");
        let wrong = psql.query(&sql, USER)?;
        ensure!(wrong == "0", "{wrong} rows do not fulfil {condition}");
    }
    Ok(())
}

/// Checks columns that are filled from a sequence: no number occurs twice, and the sequence is past
/// the highest one.
fn serials(psql: &Psql, case: Case<'_>) -> Result<()> {
    let table = &case.method.table;
    let sql = format!(
        "SELECT json_build_array(attname, quote_ident(attname), sequence) FROM pg_attribute, \
         pg_get_serial_sequence('{table}', attname) AS sequence \
         WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped \
         AND sequence IS NOT NULL"
    );
    for line in psql.query(&sql, USER)?.lines() {
        let (name, column, sequence): (String, String, String) = serde_json::from_str(line)?;
        if case.data.names().iter().any(|in_file| in_file.eq_ignore_ascii_case(&name)) {
            continue;
        }
        let again = format!("SELECT count(*) - count(DISTINCT {column}) FROM {table}");
        let again = psql.query(&again, USER)?;
        ensure!(again == "0", "{again} rows have a number in {name} that another row has");
        let above = format!(
            "SELECT count(*) FROM {table} WHERE {column} > (SELECT last_value FROM {sequence})"
        );
        let above = psql.query(&above, USER)?;
        ensure!(
            above == "0",
            "{above} rows have a number in {name} that {sequence} will give again"
        );
    }
    Ok(())
}

/// Compares the count of a probe by its index with the count without any index.
fn probe(psql: &Psql, IndexProbe { index, count }: &IndexProbe) -> Result<()> {
    let by_index =
        "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;";
    let without = "SET enable_indexscan = off; SET enable_indexonlyscan = off; \
                   SET enable_bitmapscan = off; SET work_mem = '512MB';";
    let plan = psql.query(&format!("{by_index} EXPLAIN {count}"), USER)?;
    ensure!(plan.contains(index.as_str()), "the server does not use {index}:\n{plan}");
    let found = psql.query(&format!("{by_index} {count}"), USER)?;
    let due = psql.query(&format!("{without} {count}"), USER)?;
    ensure!(found == due && due != "0", "{found} rows found by {index} where {due} are due");
    Ok(())
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
        definitions: BTreeMap::new(),
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

/// Checks that only a method with the durability `whole-table` has an unlogged table or partition,
/// which a crash empties. This check also runs when the suite has no crash.
fn persistence(psql: &Psql, case: Case<'_>) -> Result<()> {
    let (table, claimed) = (&case.method.table, case.method.durability);
    let sql = format!(
        "SELECT bool_and(relpersistence = 'p') FROM pg_class WHERE oid IN \
         (SELECT relid FROM pg_partition_tree('{table}') UNION SELECT '{table}'::regclass)"
    );
    let logged = psql.query(&sql, USER)? == "t";
    ensure!(
        logged || claimed == Durability::WholeTable,
        "the table is not logged, or a partition of it is not, but durability is said to be `{}`",
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
