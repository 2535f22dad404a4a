//! The indexes, constraints, foreign keys and triggers of a load's table: when they are dropped or
//! disabled and recreated, and in which transactions.

use crate::error::{Error, Kind};
use crate::input::can_be_read_again;
use crate::ledger::{self, State};
use crate::options::{Indexes, Method, Options};
use crate::plan::locks::{locks, Size};
use crate::plan::policy::Course;
use crate::plan::Plan;
use crate::session::conn::Conn;
use crate::session::prepared::refuse_to_wait;
use crate::session::sequences::names;
use crate::session::spare_connection::SpareConnection;
use crate::session::{extension_report, transaction, unchanged};
use crate::text::{text, Text};
use crate::watch::Watch;
use std::sync::Mutex;

mod after;
mod change;
mod committed;
mod objects;
mod settings;

pub use crate::session::sequences::{sequences, Moved};
pub use after::{finish, finish_within, Finished};
pub use change::{put_back, take_down, PutBack, Restored, TakenDown};
pub use committed::{put_back_committed, Connect, Outcome};
pub use settings::for_builds;

/// The report line for the created ledger.
const MADE: &str = "the schema pgsluice_loads is created";

/// Files up to this size are loaded a second time to find the record of a duplicate.
const READ_AGAIN: u64 = 1 << 30;

/// Settings of the session, each with its value.
pub type Settings = Vec<(String, String)>;

/// What is dropped or disabled during a load.
pub struct Maintenance {
    taken: TakenDown,
    /// holds the load's lock as long as a commit has left objects dropped
    guard: Option<Conn>,
    /// the ledger was created for this load
    made: bool,
}

/// One line for each object of the table and what is done with it, and the settings for that; for a
/// plan that is not executed. Needs an open transaction.
///
/// # Errors
///
/// The connection is lost.
pub fn foretell(conn: &mut Conn, plan: &Plan) -> Result<(Vec<Text>, Settings), Error> {
    let decision = &plan.maintenance;
    let mut lines = decision.lines();
    let down: Vec<&str> =
        decision.down().filter(|c| c.kind == "index").map(|c| c.name.as_str()).collect();
    lines.extend(extension_report::planned(conn, plan, &down)?.into_iter().map(Text::from));
    if !decision.any_down() {
        return Ok((lines, Vec::new()));
    }
    if plan.makes_ledger {
        lines.push(text!(
            "{} to record what is dropped or disabled (`ledger` none avoids it)",
            MADE
        ));
    }
    Ok((lines, for_builds(conn)?.into_iter().collect()))
}

/// The state of the ledger. Only lanes commit dropped objects before they are recreated, so only
/// they must record them. In all other loads, one transaction does both.
///
/// # Errors
///
/// The connection is lost.
pub fn ledger_state(conn: &mut Conn, options: &Options) -> Result<State, Error> {
    match options.target.method {
        Method::Lanes if !options.target.ledger => Ok(State::Unusable("not asked for".into())),
        Method::Lanes => ledger::state(conn),
        _ => Ok(State::Unusable("one transaction holds everything together".into())),
    }
}

/// Whether it is worth loading again with all indexes in place, to find the record that a rebuilt
/// index rejected: the files can be read again, and that does not take long.
pub fn could_name_record(error: &Error, options: &Options) -> bool {
    let refused = matches!(error.sqlstate(), "23505" | "23P01") && error.place().is_none();
    // Rows that an earlier commit has kept would be loaded twice.
    refused
        && error.changed().is_none()
        && options.rejects.is_none()
        && options.target.indexes != Indexes::Keep
        && !options.in_pieces()
        && is_soon_read_again(options)
}

/// Whether the files can be read a second time in a short time.
pub fn is_soon_read_again(options: &Options) -> bool {
    let lengths = options.input.sources.iter().map(|source| source.length().ok().flatten());
    let bytes: Option<u64> = lengths.sum();
    can_be_read_again(&options.input) && bytes.is_some_and(|bytes| bytes <= READ_AGAIN)
}

impl Maintenance {
    /// Drops or disables what the rule and the options say, in the open transaction. Continue with
    /// [`Maintenance::let_others_in`].
    ///
    /// # Errors
    ///
    /// The connection is lost, or the server rejects what the user has requested.
    pub fn take_down(
        conn: &mut Conn,
        plan: &Plan,
        options: &Options,
        watch: &Watch,
    ) -> Result<Maintenance, Error> {
        // The plan was made in this transaction. An object that has come up since then could as
        // well have come up after a second look.
        if !plan.maintenance.any_down() {
            let taken = TakenDown::nothing(plan.oid, &plan.table, plan.maintenance.clone());
            return Ok(Maintenance { taken, guard: None, made: false });
        }
        let mut state = match plan.lanes {
            1 => State::Unusable("one transaction holds everything together".into()),
            _ => ledger_state(conn, options)?,
        };
        let made = state == State::Missing && plan.makes_ledger;
        if made {
            // Use a second connection: other sessions would wait for this transaction.
            state = match watch.connect(&options.target.url) {
                Ok(mut other) => ledger::ensure(&mut other)?,
                // There may be no free connection, for this role or at all.
                Err(error) => State::Unusable(error.message().to_string()),
            };
        }
        let made = made && state == State::Ready;
        let wanted = plan.request(options, state == State::Ready);
        let taken = take_down(conn, plan.oid, &wanted, &state)?;
        let mut guard = None;
        if matches!(wanted.course, Course::Lanes { .. }) && !taken.entry.choices.is_empty() {
            let mut other = Conn::open(&options.target.url)?;
            other.exec(&format!("{}; {}", transaction::BEGIN, transaction::NO_TIMEOUTS))?;
            ledger::lock(&mut other, &taken.entry.load)?;
            guard = Some(other);
        }
        Ok(Maintenance { taken, guard, made })
    }

    /// The steps before the rows, other than the plan's statements.
    pub fn steps_before(&self) -> Vec<String> {
        self.made.then(|| MADE.to_owned()).into_iter().collect()
    }

    /// The locks that made other sessions wait, with the longest possible wait.
    pub fn locks(&self, plan: &Plan, options: &Options, seconds: f64) -> Vec<String> {
        let held = locks(plan, options, &self.taken.decision, Size::default());
        held.iter().map(|lock| format!("{lock}, up to {seconds:.2} s")).collect()
    }

    /// Around lanes, commits what is dropped and begins another transaction. After that,
    /// [`Maintenance::settle`] must be called, whatever the result.
    ///
    /// # Errors
    ///
    /// The connection is lost, the server reports an error, or another session has altered the table
    /// between the two transactions.
    pub fn let_others_in(
        &self,
        conn: &mut Conn,
        plan: &Plan,
        options: &Options,
        watch: &Watch,
    ) -> Result<(), Error> {
        if self.guard.is_none() {
            return Ok(());
        }
        transaction::commit(conn, &options.target.url, watch)?;
        transaction::begin(conn, options)?;
        unchanged::hold(conn, plan)
    }

    /// Recreates all objects in the load's transaction, before its commit. Returns the steps.
    /// Around lanes, there is nothing to do yet.
    ///
    /// # Errors
    ///
    /// The rows violate a constraint that was dropped, or the connection is lost.
    pub fn after_rows(&self, conn: &mut Conn) -> Result<Vec<String>, Error> {
        if self.guard.is_some() || self.taken.entry.choices.is_empty() {
            return Ok(Vec::new());
        }
        let done = put_back(conn, &self.taken)?;
        Ok(done.setting.into_iter().chain(done.restored.iter().map(told)).collect())
    }

    /// Moves the sequences of the columns that the file supplies past the loaded keys. Returns the
    /// steps.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the server reports an error.
    pub fn move_sequences(&self, conn: &mut Conn, plan: &Plan) -> Result<Vec<String>, Error> {
        if plan.nodes.is_some() {
            // A query of the keys would go to the nodes over other connections, which wait for the
            // locks of the load and do not see its rows.
            let names = names(conn, self.taken.entry.relation, &plan.columns)?;
            let told = |name: &String| format!("sequence {name} not moved: the keys are on nodes");
            return Ok(names.iter().map(told).collect());
        }
        let moved = sequences(conn, self.taken.entry.relation, &plan.table, &plan.columns)?;
        Ok(moved.iter().map(Moved::told).collect())
    }

    /// The same after the rows are committed, in a separate transaction. If the connection is lost
    /// by then, another one is opened. Returns the steps.
    ///
    /// # Errors
    ///
    /// Those of [`Maintenance::move_sequences`]. The error says that the rows are committed.
    pub fn move_sequences_at_last(
        &self,
        conn: &mut Conn,
        plan: &Plan,
        options: &Options,
    ) -> Result<Vec<String>, Error> {
        let in_one = |conn: &mut Conn| {
            conn.exec(&format!("{}; {}", transaction::BEGIN, transaction::NO_TIMEOUTS))?;
            let moved = self.move_sequences(conn, plan)?;
            conn.exec("COMMIT")?;
            Ok(moved)
        };
        let moved = in_one(conn).or_else(|error: Error| {
            if error.kind() != Kind::Connection {
                return Err(error);
            }
            *conn = Conn::open(&options.target.url)?;
            in_one(conn)
        });
        moved.map_err(|e| {
            e.with_changed("all rows are committed; the sequences were not moved past their keys")
                .with_hint("move them by setval before the next row is inserted")
        })
    }

    /// The same after a load by `insert` has failed, for the rows that stay. Returns its error,
    /// which then also names the sequences that are not moved.
    pub fn move_sequences_of_stayed(&self, error: Error, plan: &Plan, options: &Options) -> Error {
        let Some(changed) = error.changed().map(str::to_owned) else { return error };
        if plan.method != Method::Insert {
            return error;
        }
        let moved = Conn::open(&options.target.url)
            .and_then(|mut conn| self.move_sequences_at_last(&mut conn, plan, options));
        let left = match moved {
            Ok(mut steps) => {
                steps.retain(|step| step.contains(" not moved"));
                steps.join("; ")
            }
            Err(e) => format!("no sequence was moved past their keys: {}", e.message().plain()),
        };
        if left.is_empty() {
            return error;
        }
        error.with_changed(format!("{changed}; {left}"))
    }

    /// Runs `ANALYZE` in the load's transaction, if there is only one and no lock is in the way.
    /// Returns the statement.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the user has stopped the load before its commit.
    pub fn analyze_within(
        &self,
        conn: &mut Conn,
        plan: &Plan,
        watch: &Watch,
    ) -> Result<Option<String>, Error> {
        if plan.commits_first() {
            return Ok(None);
        }
        let done = finish_within(conn, self.taken.entry.relation, &plan.table, plan.freeze)?;
        if watch.stop.is_set() {
            return Err(Error::cancelled());
        }
        Ok(done)
    }

    /// Runs `ANALYZE`, or more, after the commit. A failure changes no row and is not a failure of
    /// the load, because autovacuum will do it later. Returns the step.
    pub fn analyze(&self, conn: &mut Conn, plan: &Plan, watch: &Watch) -> String {
        let stopped = || watch.stop.is_set();
        match finish(conn, self.taken.entry.relation, &plan.table, plan.freeze, &stopped) {
            Ok(Finished { statement: Some(statement), .. }) => statement,
            Ok(Finished { left, .. }) => format!("no ANALYZE: {}", left.unwrap_or_default()),
            Err(error) => format!("no ANALYZE: {}", error.message().plain()),
        }
    }

    /// Recreates what was committed as dropped, after lanes have committed or failed. The spare
    /// connection is enough for that, and others may be refused. Returns the load's result and the
    /// steps. If prepared transactions are left, of this load or of another, so are the objects, to
    /// `repair`.
    ///
    /// # Errors
    ///
    /// That of the load, or some objects are still missing.
    pub(crate) fn settle<T>(
        &self,
        rows: Result<T, Error>,
        url: &str,
        workers: usize,
        mut spare: SpareConnection,
    ) -> Result<(T, Vec<String>), Error> {
        if self.guard.is_none() {
            return rows.map(|rows| (rows, Vec::new()));
        }
        let entry = &self.taken.entry;
        let (done, down) = if rows.as_ref().is_err_and(Error::leaves_prepared) {
            // These transactions hold locks of the table, for which this load would wait forever.
            let why = Error::new("prepared transactions hold locks of the table");
            (Vec::new(), vec![(entry.objects(), why)])
        } else {
            // The same holds for those of another load, which has died meanwhile.
            let first = spare.take(url).and_then(|mut conn| {
                refuse_to_wait(&mut conn, entry.relation, &entry.relation_name)?;
                Ok(conn)
            });
            let first = Mutex::new(Some(first));
            let open = || {
                let first = first.lock().unwrap_or_else(|e| e.into_inner()).take();
                first.unwrap_or_else(|| Conn::open(url))
            };
            match put_back_committed(&open, workers, entry, None, &|| false) {
                Ok(outcomes) => sorted(outcomes),
                Err(error) => (Vec::new(), vec![(entry.objects(), error)]),
            }
        };
        if down.is_empty() {
            return rows.map(|rows| (rows, done));
        }
        let error = rows.err().unwrap_or_else(|| {
            let lost = down.iter().all(|(_, error)| error.kind() == Kind::Connection);
            Error::new("the rows are committed, but not everything was recreated")
                .of_kind(if lost { Kind::Connection } else { Kind::Failed })
        });
        Err(still_down(error, &down))
    }
}

/// Adds to an error the objects that are still missing, besides what else the load has changed.
fn still_down(error: Error, down: &[(String, Error)]) -> Error {
    let why = |(object, error): &(String, Error)| format!("{object}: {}", error.message().plain());
    let down = format!("still missing: {}", down.iter().map(why).collect::<Vec<_>>().join("; "));
    let changed = match error.changed() {
        Some(before) => format!("{before}; {down}"),
        None => down,
    };
    let hint = match error.leaves_prepared() {
        true => "pgsluice repair ends the prepared transactions and recreates it",
        false => "pgsluice repair recreates it",
    };
    error.with_changed(changed).with_hint(hint)
}

fn told(restored: &Restored) -> String {
    if restored.was_back {
        return format!("{}: nothing to do", restored.object);
    }
    format!("{} recreated in {:.2} s", restored.object, restored.seconds)
}

/// The steps that were done, and those that failed.
fn sorted(outcomes: Vec<Outcome>) -> (Vec<String>, Vec<(String, Error)>) {
    let (mut done, mut down) = (Vec::new(), Vec::new());
    for (object, outcome) in outcomes {
        match outcome {
            Ok(restored) => done.push(told(&restored)),
            Err(error) => down.push((object, error)),
        }
    }
    (done, down)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_changed_before_is_told_beside_what_is_down() {
        let down = [("index i", "no room"), ("trigger g", "gone")];
        let down = down.map(|(object, why)| (object.to_owned(), Error::new(why)));
        let all = "still missing: index i: no room; trigger g: gone";
        assert_eq!(still_down(Error::new("x"), &down).changed(), Some(all));
        let before = Error::new("x").with_changed("5 rows, which 1 lane had committed before");
        let told = still_down(before, &down);
        let both = format!("5 rows, which 1 lane had committed before; {all}");
        assert_eq!(told.changed(), Some(both.as_str()));
    }
}
