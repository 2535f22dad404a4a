//! The main path: open → inspect → plan → execute → finish.

use crate::blame::of_condition;
use crate::clue::explained;
use crate::error::{Error, Kind};
use crate::event::{Event, Phase};
use crate::facts::Purpose;
use crate::input::Reader;
use crate::inspect::make_plan;
use crate::maintenance::{self, Maintenance};
use crate::once::{self, record::Recording, Begun, Once};
use crate::options::{Indexes, Method, Options, Route};
use crate::pipeline::Through;
use crate::plan::Plan;
use crate::reject::Amount;
use crate::repair::{end_earlier, end_nothing, put_back_on};
use crate::report::Summary;
use crate::session::conn::Conn;
use crate::session::lane::{Lane, LaneCounts};
use crate::session::spare_connection::SpareConnection;
use crate::session::{create, emptied, extension_report, staged, transaction, unchanged};
use crate::text::Text;
use crate::watch::Watch;
use std::sync::Arc;
use std::time::Instant;

mod checks;
mod commit;
mod rows;
mod summary;

use checks::not_emptied;
use commit::{commit, commit_recorded, complete};
pub(crate) use rows::{open_lanes, total};
use rows::{open_spare, send_rows, Sent};
use summary::{summarise, Done, Stopwatch};

/// A load: its options, and where it reports its progress.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub options: &'a Options,
    pub watch: &'a Watch,
    pub on_event: &'a dyn Fn(Event<'_>),
    /// where the load is recorded, if it is
    pub recording: Option<&'a Arc<Recording>>,
}

impl Job<'_> {
    fn begin(&self, phase: Phase) {
        self.watch.progress.begin(phase);
        (self.on_event)(Event::Phase(phase));
    }
}

/// Loads the files into the table.
///
/// # Errors
///
/// Nothing has changed, or the error says what has changed.
pub(crate) fn load(job: &Job<'_>) -> Result<Summary, Error> {
    let Job { options, watch, .. } = *job;
    let mut result = run(job);
    let of_index = result.as_ref().is_err_and(|e| maintenance::could_name_record(e, options));
    let of_leaf = result.as_ref().is_err_and(Error::is_of_leaf);
    if of_index || of_leaf && maintenance::is_soon_read_again(options) {
        // Everything is rolled back. If the indexes are kept, the server rejects the same duplicate
        // as COPY does, with its line. In the same way, the parent rejects a row that a partition
        // has rejected.
        let mut options = options.clone();
        if of_index {
            options.target.indexes = Indexes::Keep;
        }
        if of_leaf {
            options.target.route = Route::Root;
        }
        watch.progress.bytes.set(0);
        watch.progress.records.set(0);
        let again = run(&Job { options: &options, watch, on_event: &|_| (), recording: None });
        // Another error would hide the first one: of a refused connection, or of a lock that another
        // session has got meanwhile.
        let of_rows = |e: &Error| e.server().is_some() || e.place().is_some();
        let passes =
            |e: &Error| matches!(e.kind(), Kind::Connection | Kind::Busy | Kind::Cancelled);
        let counts = |e: &Error| e.changed().is_some() || of_rows(e) && !passes(e);
        if again.is_ok() || again.as_ref().is_err_and(counts) {
            result = again;
        }
    }
    // Before there was a connection, the error need not say that nothing is loaded.
    let begun = watch.progress.phase() > Phase::Opening;
    let left = |e: Error| if begun { e.nothing_loaded() } else { e };
    result.map_err(|e| left(told(e, options, watch)))
}

/// Completes an error: replaces it if the user has stopped the load, and adds known causes.
pub(crate) fn told(error: Error, options: &Options, watch: &Watch) -> Error {
    explained(of_condition(watch.told(error), options.target.filter.as_deref()), options)
}

fn run(job: &Job<'_>) -> Result<Summary, Error> {
    let ended = match job.options.target.atomic {
        true => end_earlier(job.options)?,
        false => Vec::new(),
    };
    let mut summary = run_once(job)?;
    summary.notes.extend(ended.into_iter().map(Text::from));
    Ok(summary)
}

fn run_once(job: &Job<'_>) -> Result<Summary, Error> {
    if job.options.once.is_none() {
        return load_sources(job);
    }
    job.begin(Phase::Opening);
    let waiting = || (job.on_event)(Event::Waiting);
    match once::begin(job.options, job.watch, &waiting)? {
        Begun::Nothing(nothing) => end_nothing(*nothing, job.options, job.watch, Some(&waiting)),
        Begun::Load(mut once) => {
            let done = load_begun(job, &mut once);
            once.end(done)
        }
    }
}

/// Loads the sources that are not complete. Before that, recreates what earlier loads have left
/// dropped or disabled, because the rows need the complete table. Does the same after it, for loads
/// whose end the server had not detected before.
fn load_begun(job: &Job<'_>, once: &mut Once) -> Result<Summary, Error> {
    let Job { watch, on_event, .. } = *job;
    let recording = once.recording.clone();
    let (target, options) = (&recording.target, &recording.options);
    let mut put_back = put_back_on(&mut once.guard, target, options, watch, None)?;
    let job = Job { options, watch, on_event, recording: Some(&recording) };
    let mut summary = load_sources(&job)?;
    put_back.extend(put_back_on(once.guard_again(watch)?, target, options, watch, None)?);
    summary.notes.extend(put_back.into_iter().map(Text::from));
    Ok(summary)
}

/// Loads the sources of the recording, or all sources.
///
/// # Errors
///
/// As for [`load`].
pub(crate) fn load_sources(job: &Job<'_>) -> Result<Summary, Error> {
    let Job { options, watch, on_event, recording } = *job;
    let mut clock = Stopwatch::start();
    job.begin(Phase::Opening);
    let input = options.input.clone();
    let mut reader = watch.until_stopped(move || Reader::open(&input))?;
    if let Some(recording) = recording {
        reader.know(&recording.known, &recording.whole(), &recording.compared)?;
    }
    let options = &options.reading(&reader)?;
    options.check_reject_files()?;
    let job = &Job { options, watch, on_event, recording };
    watch.progress.total_bytes.set(reader.total_bytes());
    let mut conn = connect(job, &reader)?;
    clock.seconds.open = clock.lap();

    job.begin(Phase::Inspecting);
    let wal_start = transaction::wal_position(&mut conn);
    let plan = lock_and_plan(job, &mut conn, &reader)?;
    let locked = Instant::now();
    let passed = plan.read_by(&mut reader);
    on_event(Event::Planned(&plan));
    if plan.method == Method::Insert && reader.has_none() {
        // This method commits the TRUNCATE before the first row.
        let (counts, none) = (LaneCounts::default(), Amount::default());
        not_emptied(&plan, options, &Through::default(), &counts, none)?;
    }
    let mut spare = open_spare(&plan, options, watch)?;
    let maintenance = watch.interruptible(conn.canceller(), || {
        Maintenance::take_down(&mut conn, &plan, options, watch)
    })?;
    let rows = execute(job, conn, reader, &plan, &maintenance, &mut spare, &mut clock);
    let rows = rows.map_err(|e| {
        create::take_back(plan.causes.explain(e, &plan, options), &plan, options, &mut spare)
    });
    // What was committed as dropped for lanes must be recreated, even if the rows have failed.
    let (mut done, mut steps) = maintenance.settle(rows, &options.target.url, plan.lanes, spare)?;
    let locks = maintenance.locks(&plan, options, locked.elapsed().as_secs_f64());
    steps.splice(0..0, maintenance.steps_before());
    let conn = &mut done.lanes[0].conn;
    let wal_end = transaction::wal_position(conn);
    clock.seconds.finish += clock.lap();

    job.begin(Phase::Analyzing);
    let to_nodes = plan.nodes.is_some();
    if options.target.analyze && !done.analyzed && !to_nodes {
        steps.push(maintenance.analyze(conn, &plan, watch));
    }
    if options.target.analyze && to_nodes {
        steps.extend(done.lanes[0].analyze_nodes());
    }
    clock.seconds.analyze += clock.lap();

    job.begin(Phase::Done);
    let mut summary = summarise(job, &plan, &done, &clock);
    summary.gives_up = plan.gives_up(!locks.is_empty());
    summary.locks = locks;
    summary.steps.extend(steps);
    summary.wal_bytes = wal_start.zip(wal_end).map(|(a, b)| b.saturating_sub(a));
    summary.pass_over(passed.get());
    summary.notes.extend(done.lanes[0].more_rejects().map(Text::from));
    for lane in &done.lanes {
        summary.notes.extend(lane.conn.take_notices().into_iter().map(Text::from));
    }
    Ok(summary)
}

/// The first connection: the one that has registered the load, if it is recorded.
fn connect(job: &Job<'_>, reader: &Reader) -> Result<Conn, Error> {
    let Job { options, watch, recording, .. } = *job;
    let mut conn = match recording.and_then(|recording| recording.connection()) {
        Some(conn) => conn,
        None => watch.connect(&options.target.url)?,
    };
    if let Some(recording) = recording {
        recording.check_head(&mut conn, reader.head().as_deref())?;
    }
    Ok(conn)
}

/// Begins the load's transaction, locks the table and makes the plan.
fn lock_and_plan(job: &Job<'_>, conn: &mut Conn, reader: &Reader) -> Result<Arc<Plan>, Error> {
    let Job { options, watch, recording, .. } = *job;
    let plan = watch.interruptible(conn.canceller(), || {
        transaction::begin(conn, options)?;
        make_plan(conn, reader, options, Purpose::Load, true)
    })?;
    if recording.is_some_and(|recording| recording.target.oid != plan.oid) {
        return Err(unchanged::changed(&plan.table));
    }
    Ok(plan)
}

/// Runs the load from the first statement to the last commit.
fn execute(
    job: &Job<'_>,
    mut conn: Conn,
    reader: Reader,
    plan: &Arc<Plan>,
    maintenance: &Maintenance,
    spare: &mut SpareConnection,
    clock: &mut Stopwatch,
) -> Result<Done, Error> {
    let Job { options, watch, .. } = *job;
    maintenance.let_others_in(&mut conn, plan, options, watch)?;
    watch.interruptible(conn.canceller(), || {
        for statement in &plan.before {
            conn.exec(statement)?;
        }
        staged::read_condition(&mut conn, plan)?;
        emptied::check(&mut conn, plan)
    })?;
    clock.seconds.inspect = clock.lap();

    job.begin(Phase::Loading);
    let stayed = |e: Error| maintenance.move_sequences_of_stayed(e, plan, options);
    let sent = send_rows(job, conn, reader, plan, spare).map_err(stayed)?;
    let Sent { through, counts, mut lanes, rejected } = sent;
    clock.seconds.load = clock.lap();
    not_emptied(plan, options, &through, &counts, rejected).map_err(|e| lanes[0].stayed(e))?;

    job.begin(Phase::Finishing);
    let indexes = extension_report::taken(&mut lanes[0].conn, plan, counts.statements)?;
    let mut steps = after_rows(&mut lanes[0], plan, maintenance, watch).map_err(stayed)?;
    clock.seconds.finish = clock.lap();
    job.begin(Phase::Analyzing);
    let statistics = match options.target.analyze && plan.nodes.is_none() {
        true => maintenance.analyze_within(&mut lanes[0].conn, plan, watch)?,
        false => None,
    };
    let analyzed = statistics.is_some();
    steps.extend(statistics);
    clock.seconds.analyze = clock.lap();

    job.begin(Phase::Finishing);
    if !plan.commits_first() {
        steps.extend(maintenance.move_sequences(&mut lanes[0].conn, plan)?);
    }
    let transactions = match job.recording {
        Some(recording) => commit_recorded(recording, &mut lanes, &counts).map(|()| 0)?,
        None => commit(job, &mut lanes, plan, spare, &mut steps).map_err(stayed)?,
    };
    if plan.commits_first() {
        // Only now can one connection see the keys of all lanes. Many are passed already.
        steps.extend(maintenance.move_sequences_at_last(&mut lanes[0].conn, plan, options)?);
    }
    if let Some(recording) = job.recording {
        complete(recording, &mut lanes)?;
    }
    Ok(Done { through, counts, rejected, lanes, transactions, indexes, steps, analyzed })
}

/// Runs the plan's statements after the rows, and recreates what was dropped. Returns the steps.
fn after_rows(
    lane: &mut Lane,
    plan: &Plan,
    maintenance: &Maintenance,
    watch: &Watch,
) -> Result<Vec<String>, Error> {
    let done = watch.interruptible(lane.conn.canceller(), || {
        for statement in &plan.after {
            lane.conn.exec(statement)?;
        }
        maintenance.after_rows(&mut lane.conn)
    });
    done.map_err(|error| lane.stayed(error))
}
