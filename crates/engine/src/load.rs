//! The main path: open → inspect → plan → execute → finish.

use crate::blame::of_condition;
use crate::error::Error;
use crate::facts::Purpose;
use crate::input::Reader;
use crate::inspect::make_plan;
use crate::maintenance::{self, Maintenance, Settings};
use crate::options::{Indexes, Method, Options};
use crate::pipeline::{self, Through};
use crate::plan::Plan;
use crate::reject::{Amount, RejectFile, RejectForm, Rejects};
use crate::report::{Seconds, Summary};
use crate::session::conn::Conn;
use crate::session::deadlock_watch::DeadlockWatch;
use crate::session::lane::{Lane, LaneCounts};
use crate::session::{create, extension_report, staged, transaction};
use crate::watch::Watch;
use std::sync::Arc;
use std::time::Instant;

mod checks;
mod rights;

use checks::{check_counts, check_deferred, not_emptied};

/// A plan that is not carried out, with what only the server can add to it.
pub struct Foretold {
    /// what a load would do
    pub plan: Arc<Plan>,
    /// what it would do with indexes, foreign keys and triggers, one line for each
    pub maintenance: Vec<String>,
    /// what it would set to build indexes
    pub settings: Settings,
}

/// Says what a load would do, and does nothing.
///
/// # Errors
///
/// As [`load`], as far as it shows before the first row.
pub fn plan_only(options: &Options) -> Result<Foretold, Error> {
    let reader = Reader::open(&options.input)?;
    let options = &options.reading(&reader);
    let mut conn = Conn::open(&options.target.url)?;
    transaction::begin(&mut conn, options)?;
    let plan = make_plan(&mut conn, &reader, options, Purpose::Load, false)?;
    rights::check(&mut conn, &plan)?;
    let (maintenance, settings) = maintenance::foretell(&mut conn, &plan)?;
    conn.exec("ROLLBACK")?;
    Ok(Foretold { plan, maintenance, settings })
}

/// Loads the files into the table. What will be done is told by `planned`, once,
/// before anything of it is done.
///
/// # Errors
///
/// Nothing has changed, or the error says what has.
pub fn load(options: &Options, watch: &Watch, planned: &dyn Fn(&Plan)) -> Result<Summary, Error> {
    let mut result = run(options, watch, planned);
    if result.as_ref().is_err_and(|e| maintenance::could_name_record(e, options)) {
        // Everything is rolled back. With the indexes in place, the same
        // duplicate is refused as stock COPY would refuse it, by line.
        let mut options = options.clone();
        options.target.indexes = Indexes::Keep;
        watch.progress.bytes.set(0);
        watch.progress.records.set(0);
        result = run(&options, watch, &|_| ());
    }
    // That nothing is loaded goes without saying before there was a connection.
    let begun = watch.progress.phase.get() > 0;
    let left = |e: Error| if begun { e.nothing_loaded() } else { e };
    let told = |e| of_condition(watch.told(e), options.target.filter.as_deref());
    result.map_err(|e| left(crate::clue::explained(told(e), options)))
}

fn run(options: &Options, watch: &Watch, planned: &dyn Fn(&Plan)) -> Result<Summary, Error> {
    let mut clock = Clock::start();
    watch.phase(0);
    let mut reader = Reader::open(&options.input)?;
    let options = &options.reading(&reader);
    watch.progress.total_bytes.set(reader.total_bytes());
    let mut conn = watch.connect(&options.target.url)?;
    clock.seconds.open = clock.lap();

    watch.phase(1);
    let wal_start = transaction::wal_position(&mut conn);
    transaction::begin(&mut conn, options)?;
    let plan = make_plan(&mut conn, &reader, options, Purpose::Load, true)?;
    let locked = Instant::now();
    let passed = plan.read_by(&mut reader);
    planned(&plan);
    if plan.method == Method::Insert && reader.has_none() {
        // This method commits the TRUNCATE before the first row.
        let (counts, none) = (LaneCounts::default(), Amount::default());
        not_emptied(&plan, options, &Through::default(), &counts, none)?;
    }
    let maintenance = Maintenance::take_down(&mut conn, &plan, options, watch)?;
    let rows = execute(conn, reader, &plan, &maintenance, options, watch, &mut clock)
        .map_err(|e| create::take_back(plan.causes.explain(e, &plan, options), &plan, options));
    // What lanes have found down is down whatever became of the rows.
    let (mut done, mut steps) = maintenance.settle(rows, &options.target.url, plan.lanes)?;
    let locks = maintenance.locks(&plan, options, locked.elapsed().as_secs_f64());
    steps.splice(0..0, maintenance.steps_before());
    let conn = &mut done.lanes[0].conn;
    let wal_end = transaction::wal_position(conn);
    clock.seconds.finish += clock.lap();

    watch.phase(4);
    if options.target.analyze && !done.analyzed {
        steps.push(maintenance.analyze(conn, &plan, watch));
    }
    clock.seconds.analyze += clock.lap();

    watch.phase(5);
    let mut summary = summarise(options, &plan, &done, watch, &clock);
    summary.locks = locks;
    if summary.locks.is_empty() {
        summary.gives_up = plan.method.cost().into();
    }
    summary.steps.extend(steps);
    summary.wal_bytes = wal_start.zip(wal_end).map(|(a, b)| b.saturating_sub(a));
    summary.pass_over(passed.get());
    summary.notes.extend(done.lanes[0].more_rejects());
    for lane in &done.lanes {
        summary.notes.extend(lane.conn.take_notices());
    }
    Ok(summary)
}

/// Rows that are committed.
struct Done {
    through: Through,
    counts: LaneCounts,
    rejected: Amount,
    lanes: Vec<Lane>,
    transactions: u64,
    /// how each index's entries went in
    indexes: Vec<String>,
    /// what was done after the rows
    steps: Vec<String>,
    /// the rows were committed with their statistics
    analyzed: bool,
}

/// From the first statement to the last commit.
fn execute(
    mut conn: Conn,
    reader: Reader,
    plan: &Arc<Plan>,
    maintenance: &Maintenance,
    options: &Options,
    watch: &Watch,
    clock: &mut Clock,
) -> Result<Done, Error> {
    maintenance.let_others_in(&mut conn, plan, options)?;
    for statement in &plan.before {
        conn.exec(statement)?;
    }
    clock.seconds.inspect = clock.lap();

    watch.phase(2);
    let rows = rows(conn, reader, options, watch, plan, clock);
    let (through, counts, mut lanes, rejected) = rows?;
    not_emptied(plan, options, &through, &counts, rejected).map_err(|e| lanes[0].stayed(e))?;

    watch.phase(3);
    let indexes = extension_report::taken(&mut lanes[0].conn, plan, counts.statements)?;
    for statement in &plan.after {
        lanes[0].conn.exec(statement)?;
    }
    let mut steps = maintenance.after_rows(&mut lanes[0].conn)?;
    clock.seconds.finish = clock.lap();
    watch.phase(4);
    let statistics = match options.target.analyze {
        true => maintenance.analyze_within(&mut lanes[0].conn, plan, watch)?,
        false => None,
    };
    let analyzed = statistics.is_some();
    steps.extend(statistics);
    clock.seconds.analyze = clock.lap();

    watch.phase(3);
    if !plan.commits_first() {
        steps.extend(maintenance.move_sequences(&mut lanes[0].conn, plan)?);
    }
    let transactions = commit(&mut lanes, plan, options)?;
    if plan.commits_first() {
        // Only now one connection sees the keys of all lanes.
        steps.extend(maintenance.move_sequences_at_last(&mut lanes[0].conn, plan, options)?);
    }
    Ok(Done { through, counts, rejected, lanes, transactions, indexes, steps, analyzed })
}

/// Sends the rows; they are in the table when this returns, and not committed.
fn rows(
    conn: Conn,
    reader: Reader,
    options: &Options,
    watch: &Watch,
    plan: &Arc<Plan>,
    clock: &mut Clock,
) -> Result<(Through, LaneCounts, Vec<Lane>, Amount), Error> {
    let rejects = rejects(&reader, options, watch)?;
    let mut lanes = open_lanes(conn, plan, options, watch, &rejects)?;
    let deadlocks = DeadlockWatch::watch(&mut lanes, &options.target.url)?;
    let run = pipeline::run(reader, plan, lanes, &watch.progress, &watch.stop)
        .and_then(|(through, lanes)| Ok((through, check_deferred(lanes, plan)?)));
    let run = match deadlocks {
        Some(deadlocks) => deadlocks.end(run),
        None => run,
    };
    let (through, mut lanes, rejected) = close_rejects(rejects, run)?;
    let mut counts = total(&lanes);
    check_counts(plan, &through, &counts, rejected.records)?;
    if let Some(landing) = &plan.landing {
        if options.rejects.is_none() && !plan.lands_by_chunk {
            let place = |record| through.place(record, options, &plan.layout);
            let conn = &mut lanes[0].conn;
            counts.rows = staged::convert(conn, plan, landing, counts.rows, &place)?;
        }
        lanes[0].conn.exec(&format!("DROP TABLE {}", landing.table))?;
    }
    clock.seconds.load = clock.lap();
    Ok((through, counts, lanes, rejected))
}

/// The lanes, each with its transaction begun; the first has done the inspection.
pub(crate) fn open_lanes(
    mut first: Conn,
    plan: &Arc<Plan>,
    options: &Options,
    watch: &Watch,
    rejects: &Option<Arc<Rejects>>,
) -> Result<Vec<Lane>, Error> {
    let names = Arc::new(options.input.sources.iter().map(|s| s.name()).collect::<Vec<_>>());
    let lane = |conn| {
        let progress = watch.progress.clone();
        Lane::new(conn, plan.clone(), names.clone(), progress, rejects.clone())
    };
    if plan.made.is_some() && plan.lanes > 1 {
        // The other connections must see the table.
        first.exec("COMMIT")?;
        transaction::begin(&mut first, options)?;
    }
    let mut lanes = vec![lane(first)];
    for _ in 1..plan.lanes {
        // The first one came through.
        let fewer =
            format!("{} lanes need one connection each; use fewer with `lanes` N", plan.lanes);
        let mut conn = watch.connect(&options.target.url).map_err(|e| e.with_hint(fewer))?;
        transaction::begin(&mut conn, options)?;
        lanes.push(lane(conn));
    }
    if plan.method == Method::Insert {
        // Row by row: each INSERT is a transaction of its own.
        transaction::leave(&mut lanes[0].conn)?;
    }
    Ok(lanes)
}

/// Creates the reject files before anything is loaded: whether they can be
/// written should not come out after hours.
fn rejects(
    reader: &Reader,
    options: &Options,
    watch: &Watch,
) -> Result<Option<Arc<Rejects>>, Error> {
    let Some(wanted) = &options.rejects else { return Ok(None) };
    let name = wanted.file.display().to_string();
    let (dialect, head) = (options.input.dialect(), reader.head());
    let form = match &dialect {
        Some(dialect) => RejectForm::Lines(dialect, head.as_deref()),
        None => RejectForm::Tuples,
    };
    let file = RejectFile::create(&wanted.file, wanted.existing, form).map_err(|e| {
        let error = Error::io("create the reject file", &name, &e);
        match e.kind() {
            std::io::ErrorKind::AlreadyExists => error
                .with_hint("the file and its .jsonl contain the rejects of an earlier load: use `reject-existing` append or replace, or {time} in the name"),
            _ => error,
        }
    })?;
    Ok(Some(Arc::new(Rejects::new(file, wanted.limit, &watch.progress))))
}

type Ran = Result<(Through, Vec<Lane>), Error>;

/// After the rows: the limit is judged, and the reject files are on disk, before
/// anything is committed. Files without a reject are taken away, however it ended.
fn close_rejects(
    rejects: Option<Arc<Rejects>>,
    run: Ran,
) -> Result<(Through, Vec<Lane>, Amount), Error> {
    let Some(rejects) = rejects else {
        return run.map(|(through, lanes)| (through, lanes, Amount::default()));
    };
    let closed = run.and_then(|(through, mut lanes)| {
        let records = through.records + through.passed;
        let rejected = rejects
            .close(Amount { records, lines: through.lines })
            .map_err(|e| lanes[0].stayed(e))?;
        Ok((through, lanes, rejected))
    });
    rejects.remove_if_empty()?;
    closed
}

pub(crate) fn total(lanes: &[Lane]) -> LaneCounts {
    lanes.iter().fold(LaneCounts::default(), |sum, lane| LaneCounts {
        rows: sum.rows + lane.counts.rows,
        statements: sum.statements + lane.counts.statements,
        chunks_as_is: sum.chunks_as_is + lane.counts.chunks_as_is,
        chunks_encoded: sum.chunks_encoded + lane.counts.chunks_encoded,
    })
}

/// Commits the lanes one after another; gives the number of transactions.
fn commit(lanes: &mut [Lane], plan: &Plan, options: &Options) -> Result<u64, Error> {
    if plan.method == Method::Insert {
        // Each row is committed; only now all of them are waited for.
        transaction::await_disk(&mut lanes[0].conn).map_err(|e| lanes[0].stayed(e))?;
        return Ok(lanes[0].counts.rows);
    }
    if plan.two_phase {
        let mut conns: Vec<&mut Conn> = lanes.iter_mut().map(|lane| &mut lane.conn).collect();
        transaction::commit_prepared(&mut conns, &options.target.url)?;
        return Ok(lanes.len() as u64);
    }
    let mut committed = 0;
    for (i, lane) in lanes.iter_mut().enumerate() {
        transaction::commit(&mut lane.conn, &options.target.url).map_err(|e| {
            let changed = format!("{committed} rows, which {i} lanes had committed before");
            if i == 0 {
                e
            } else {
                e.with_changed(changed)
            }
        })?;
        committed += lane.counts.rows;
    }
    Ok(lanes.len() as u64)
}

fn summarise(options: &Options, plan: &Plan, done: &Done, watch: &Watch, clock: &Clock) -> Summary {
    let (through, counts, records) = (&done.through, &done.counts, done.through.records);
    let (bytes, total) = (watch.progress.bytes.get(), clock.start.elapsed().as_secs_f64());
    let stray = crate::stray::note(through.stray_quotes, plan.dialect());
    let steps = plan.made.iter().chain(&plan.before).chain(&plan.after).chain(&done.steps);
    Summary {
        read: records + through.passed,
        loaded: counts.rows,
        rejected: done.rejected.records,
        rejected_lines: done.rejected.lines,
        skipped: through.passed + (records - counts.rows - done.rejected.records),
        stray_quotes: through.stray_quotes,
        table: plan.table.clone(),
        files: options.input.sources.iter().map(|s| s.name()).collect(),
        method: plan.method.name().into(),
        reason: plan.reason.clone(),
        gives_up: plan.cost.clone(),
        bytes,
        seconds: Seconds { total, ..clock.seconds.clone() },
        rows_per_second: counts.rows as f64 / total.max(1e-9),
        megabytes_per_second: bytes as f64 / 1e6 / total.max(1e-9),
        bottleneck: watch.progress.bottleneck(clock.seconds.load).into(),
        lanes: plan.lanes as u64,
        statements: counts.statements,
        chunks_encoded: counts.chunks_encoded,
        chunks_as_is: counts.chunks_as_is,
        transactions: done.transactions,
        indexes: done.indexes.clone(),
        steps: steps.cloned().collect(),
        settings: plan.settings.iter().map(|(name, value)| format!("{name} = {value}")).collect(),
        notes: plan.notes.iter().cloned().chain(stray).collect(),
        ..Summary::default()
    }
}

/// Takes the time of each phase.
struct Clock {
    start: Instant,
    lap: Instant,
    seconds: Seconds,
}

impl Clock {
    fn start() -> Clock {
        let now = Instant::now();
        Clock { start: now, lap: now, seconds: Seconds::default() }
    }

    /// Seconds since the last call.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        (now - std::mem::replace(&mut self.lap, now)).as_secs_f64()
    }
}
