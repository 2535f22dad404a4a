//! Loads the rows: opens lanes and rejects, runs the pipeline, and counts the rows.

use super::checks::{check_counts, check_deferred};
use super::Job;
use crate::error::Error;
use crate::input::Reader;
use crate::options::{Header, Method, Options};
use crate::pipeline::{self, Through};
use crate::plan::Plan;
use crate::reject::{not_created, Amount, RejectFile, RejectForm, Rejects};
use crate::session::conn::Conn;
use crate::session::deadlock_watch::DeadlockWatch;
use crate::session::lane::{Lane, LaneCounts};
use crate::session::spare_connection::SpareConnection;
use crate::session::{staged, transaction, unchanged};
use crate::text::{text, Text};
use crate::watch::Watch;
use std::io;
use std::sync::Arc;

/// Rows that are in the table but not committed.
pub(super) struct Sent {
    pub through: Through,
    pub counts: LaneCounts,
    pub lanes: Vec<Lane>,
    pub rejected: Amount,
}

/// Sends the rows. When this returns, they are in the table but not committed.
///
/// # Errors
///
/// The first failure in the order of the input. Nothing is committed, except by `insert`.
pub(super) fn send_rows(
    job: &Job<'_>,
    conn: Conn,
    reader: Reader,
    plan: &Arc<Plan>,
    spare: &mut SpareConnection,
) -> Result<Sent, Error> {
    let options = job.options;
    let rejects = rejects(&reader, job)?;
    // The reject files exist now: whatever fails from here on, they are closed.
    let run = through_lanes(job, conn, reader, plan, &rejects, spare);
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
    Ok(Sent { through, counts, lanes, rejected })
}

/// Opens the lanes, and sends the rows through them.
fn through_lanes(
    job: &Job<'_>,
    conn: Conn,
    reader: Reader,
    plan: &Arc<Plan>,
    rejects: &Option<Arc<Rejects>>,
    spare: &mut SpareConnection,
) -> Ran {
    let Job { options, watch, .. } = job;
    let mut lanes = open_lanes(conn, plan, options, watch, rejects)?;
    if let Some(recording) = job.recording {
        lanes.iter_mut().for_each(|lane| lane.record_for(recording));
    }
    // Rejects of nodes are kept together with those of the lane.
    lanes[0].open_nodes(watch, options, job.recording)?;
    let deadlocks = DeadlockWatch::watch(&mut lanes, spare, options, &watch.progress)?;
    let run = pipeline::run(reader, plan, lanes, &watch.progress, &watch.stop)
        .and_then(|(through, lanes)| Ok((through, check_deferred(lanes, plan)?)));
    match deadlocks {
        Some(deadlocks) => deadlocks.end(run, spare),
        None => run,
    }
}

/// Opens the connection that several lanes need besides their own, before anything is committed.
///
/// # Errors
///
/// As for [`SpareConnection::open`].
pub(super) fn open_spare(
    plan: &Plan,
    options: &Options,
    watch: &Watch,
) -> Result<SpareConnection, Error> {
    if plan.lanes == 1 {
        return Ok(SpareConnection::default());
    }
    let after_rows = plan.two_phase || plan.maintenance.any_down() || plan.made.is_some();
    SpareConnection::open(&options.target.url, watch, after_rows)
        .map_err(|e| e.with_hint(fewer_lanes(plan)))
}

/// The hint if a connection is refused. The first lane has connected, so connections in general
/// work.
fn fewer_lanes(plan: &Plan) -> Text {
    text!("{} lanes need one connection each, and one more; use fewer with `lanes` N", plan.lanes)
}

/// Opens the lanes and begins their transactions. `first` is the connection that read the facts.
pub(crate) fn open_lanes(
    mut first: Conn,
    plan: &Arc<Plan>,
    options: &Options,
    watch: &Watch,
    rejects: &Option<Arc<Rejects>>,
) -> Result<Vec<Lane>, Error> {
    let names = Arc::new(options.input.sources.iter().map(|s| s.name()).collect::<Vec<_>>());
    let lane = |conn| Lane::new(conn, plan.clone(), names.clone(), watch, rejects.clone());
    if plan.made.is_some() && plan.lanes > 1 {
        // Commit, so that the other connections can see the table.
        first.exec("COMMIT")?;
        transaction::begin(&mut first, options)?;
        unchanged::hold(&mut first, plan)?;
    }
    let mut lanes = vec![lane(first)];
    for _ in 1..plan.lanes {
        let mut conn =
            watch.connect(&options.target.url).map_err(|e| e.with_hint(fewer_lanes(plan)))?;
        transaction::begin(&mut conn, options)?;
        lanes.push(lane(conn));
    }
    if plan.router.is_none() || plan.lanes == 1 {
        lanes[0].holds_table();
    }
    if plan.method == Method::Insert {
        lanes[0].find_keys()?;
        // Each INSERT of a row is a separate transaction.
        transaction::leave(&mut lanes[0].conn)?;
    }
    Ok(lanes)
}

/// Creates the reject files before a row is sent. `Options::check_reject_files` has checked earlier
/// that this is possible.
fn rejects(reader: &Reader, job: &Job<'_>) -> Result<Option<Arc<Rejects>>, Error> {
    let Job { options, watch, recording, .. } = job;
    let Some(wanted) = &options.rejects else { return Ok(None) };
    let failed = |e: io::Error| not_created(&wanted.file, &e);
    let (dialect, head) = (options.input.dialect(), reader.head());
    let form = match &dialect {
        Some(dialect) => RejectForm::Lines(dialect, head.as_deref()),
        None => RejectForm::Tuples,
    };
    // If the header is ignored, fields are assigned by position.
    let named = |file: &mut RejectFile| match options.input.header {
        Header::Ignore => Ok(()),
        _ => file.check_header().map_err(failed),
    };
    let (limit, progress) = (wanted.limit, &watch.progress);
    let reserved = recording.map(|recording| (recording.reserved(), recording.earlier));
    Ok(Some(Arc::new(match reserved {
        Some((Some(reserved), earlier)) => {
            let mut file = RejectFile::reserved(reserved, wanted.existing, form).map_err(failed)?;
            named(&mut file)?;
            Rejects::recorded(file, limit, progress, earlier)
        }
        Some((None, _)) => return Err(Error::defect("no reject file is reserved")),
        None => {
            let created = RejectFile::create(&wanted.file, wanted.existing, form);
            let mut file = created.map_err(failed)?;
            named(&mut file)?;
            Rejects::new(file, limit, progress)
        }
    })))
}

type Ran = Result<(Through, Vec<Lane>), Error>;

/// Checks the limit after the rows, and makes the reject files durable before anything is
/// committed. Reject files without a reject are removed, even if the load has failed.
fn close_rejects(
    rejects: Option<Arc<Rejects>>,
    run: Ran,
) -> Result<(Through, Vec<Lane>, Amount), Error> {
    let Some(rejects) = rejects else {
        return run.map(|(through, lanes)| (through, lanes, Amount::default()));
    };
    let closed = run.and_then(|(through, mut lanes)| {
        let records = through.records + through.passed;
        let rejected = rejects.close(Amount { records, lines: through.lines }).map_err(|e| {
            lanes.iter_mut().for_each(Lane::show_rejects);
            lanes[0].stayed(e)
        })?;
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
        to_leaves: sum.to_leaves + lane.counts.to_leaves,
        there: sum.there + lane.counts.there,
        open: sum.open + lane.counts.open,
        windows_by_root: sum.windows_by_root + lane.counts.windows_by_root,
        stale_transactions: sum.stale_transactions + lane.counts.stale_transactions,
    })
}
