//! Which objects are dropped or disabled, and which are kept: a pure rule over facts.

use crate::facts::{ForeignKey, Index, Steps, TableObjects, Trigger};
use crate::options::{ForeignKeys, Indexes, Triggers};
use crate::text::{text, Text};
use serde::{Deserialize, Serialize};

/// From this ratio of new rows to existing rows on, rebuilding the indexes takes less time than
/// adding to them (decision 0008 has the measurement). It also locks all other sessions out of the
/// table until the commit, so the user must request it.
pub const PAYS: f64 = 1.0;

/// The transactions in which the load runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// one: dropping, rows and recreating become visible together or not at all
    OneTransaction,
    /// several connections: objects are dropped and committed before them, and recreated after
    /// their commits. `recorded`: the ledger can be written; without it, a crash must not leave
    /// anything dropped
    Lanes {
        /// the ledger can be written
        recorded: bool,
    },
    /// several for each connection, one after another: none of them could recreate what the first
    /// one drops
    InPieces,
    /// each row is committed by itself
    RowByRow,
}

/// The user's options, and the facts about the load.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// `--indexes`
    pub indexes: Indexes,
    /// `--triggers`
    pub triggers: Triggers,
    /// `--foreign-keys`
    pub foreign_keys: ForeignKeys,
    /// bad records are rejected singly, including duplicates
    pub rejects: bool,
    /// the transactions
    pub course: Course,
    /// the table is emptied first
    pub truncates: bool,
    /// the load has locked the table against all other sessions already
    pub locked: bool,
    /// nothing may lock out readers or writers
    pub no_lock_out: bool,
    /// the extension's COPY builds plain B-trees after all rows
    pub private: bool,
    /// estimated number of new rows, if known
    pub new_rows: Option<f64>,
}

/// The decision for one object, with its reason.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Choice {
    /// the object, in words: `primary key public.t_pkey`
    pub object: String,
    /// `index`, `foreign key` or `trigger`, for finding it again
    pub kind: String,
    /// its name for queries to the catalogs; for a trigger, with its table
    pub name: String,
    /// it is dropped or disabled
    pub down: bool,
    /// why
    pub reason: Text,
    /// how it is dropped and recreated
    pub steps: Steps,
    /// names of an index's columns
    pub columns: Vec<String>,
    /// numbers of the table's columns that an index is on
    #[serde(default)]
    pub attnums: Vec<i16>,
    /// for a trigger of a partitioned table: `pg_trigger.oid` of its copies on the partitions
    #[serde(default)]
    pub copies: Option<Vec<u32>>,
}

/// The decisions for all objects of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// one for each object that is worth a line
    pub choices: Vec<Choice>,
}

impl Policy {
    /// The objects to drop or disable.
    pub fn down(&self) -> impl Iterator<Item = &Choice> {
        self.choices.iter().filter(|c| c.down)
    }

    /// Whether any object is dropped or disabled.
    pub fn any_down(&self) -> bool {
        self.down().next().is_some()
    }

    /// Changes the decision for all indexes: they are kept.
    pub(crate) fn keep_indexes(&mut self, reason: &Text) {
        for choice in self.choices.iter_mut().filter(|c| c.down && c.kind == "index") {
            choice.down = false;
            choice.reason = reason.clone();
        }
    }

    /// One line for each object, for the plan.
    pub fn lines(&self) -> Vec<Text> {
        let line = |c: &Choice| {
            let verb = match (c.down, c.kind.as_str()) {
                (false, _) => "keep",
                (true, "index") => "rebuild",
                (true, "trigger") => "turn off",
                (true, _) => "revalidate",
            };
            text!("{} {}: {}", verb, c.object, c.reason)
        };
        self.choices.iter().map(line).collect()
    }
}

/// Decides for every index, foreign key and trigger.
pub fn decide(objects: &TableObjects, request: &Request) -> Policy {
    let mut choices = Vec::new();
    for key in &objects.foreign_keys {
        let verdict = foreign_key(objects, key, request);
        if request.foreign_keys == ForeignKeys::Revalidate || verdict.is_ok() {
            let object = format!("foreign key {} to {}", key.name, key.referenced);
            choices.push(choice("foreign key", object, key.name.clone(), verdict, &key.steps));
        }
    }
    for trigger in objects.triggers.iter().filter(|t| t.enabled != 'D') {
        if request.triggers == Triggers::Off {
            let name = trigger.full_name();
            let (object, verdict) = (format!("trigger {name}"), turn_off(trigger, request));
            let mut choice = choice("trigger", object, name, verdict, &trigger.steps);
            choice.copies.clone_from(&trigger.copies);
            choices.push(choice);
        }
    }
    for index in &objects.indexes {
        let object = format!("{} {}", index.kind, index.name);
        let verdict = rebuild(objects, index, request);
        let mut choice = choice("index", object, index.name.clone(), verdict, &index.steps);
        choice.columns.clone_from(&index.columns);
        choice.attnums.clone_from(&index.attnums);
        choices.push(choice);
    }
    Policy { choices }
}

/// `Ok` drops or disables, `Err` keeps; each has the reason.
type Verdict = Result<Text, Text>;

fn choice(kind: &str, object: String, name: String, verdict: Verdict, steps: &Steps) -> Choice {
    let (down, reason) = match verdict {
        Ok(reason) => (true, reason),
        Err(reason) => (false, reason),
    };
    let (kind, steps) = (kind.into(), steps.clone());
    let (columns, attnums) = (Vec::new(), Vec::new());
    Choice { object, kind, name, down, reason, steps, columns, attnums, copies: None }
}

/// The conditions for dropping an object of any kind.
fn allowed(objects: &TableObjects, request: &Request) -> Result<(), Text> {
    if request.course == Course::RowByRow {
        return Err("each row is committed by itself".into());
    }
    if request.course == (Course::Lanes { recorded: false }) {
        return Err("the schema pgsluice_loads cannot be written, and without it a crash \
                    between the lanes' commits would leave it down"
            .into());
    }
    if request.no_lock_out {
        return Err("`no-lock-out`".into());
    }
    if !objects.relation.owner {
        return Err("the role does not own the table".into());
    }
    Ok(())
}

/// Checks that nothing would be lost if the object were dropped.
fn restorable(
    partitioned: bool,
    extension: Option<&str>,
    dependents: &[String],
    odd: Option<&str>,
) -> Result<(), Text> {
    if partitioned {
        return Err("it belongs to a partitioned table".into());
    }
    if let Some(extension) = extension {
        return Err(text!("it belongs to the extension {}", extension));
    }
    if let Some(dependent) = dependents.first() {
        let more = dependents.len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        return Err(text!("{} depends on it{}", dependent, more));
    }
    odd.map_or(Ok(()), |odd| Err(text!("{}", odd)))
}

fn rebuild(objects: &TableObjects, index: &Index, request: &Request) -> Verdict {
    let relation = &objects.relation;
    if request.course == Course::InPieces {
        return Err("with `commit-every`, no transaction has all rows".into());
    }
    if request.indexes == Indexes::Keep {
        return Err("asked for".into());
    }
    if !index.valid {
        return Err("it was not valid before the load and is left as it is".into());
    }
    allowed(objects, request)?;
    if !relation.may_create {
        return Err("the role may not create objects in the table's schema".into());
    }
    if index.foreign_tablespace {
        return Err("the role may not create objects in its tablespace".into());
    }
    restorable(
        index.partitioned,
        index.extension.as_deref(),
        &index.dependents,
        index.odd.as_deref(),
    )?;
    if index.published {
        return Err("a publication identifies rows by it".into());
    }
    if request.rejects && index.refuses() {
        return Err("with `on-error` reject, duplicates are rejected by record".into());
    }
    // An error in its build would fail the whole load without naming a record.
    if request.rejects && !index.certain && request.indexes == Indexes::Auto {
        return Err("with `on-error` reject, rows that it refuses are rejected by record".into());
    }
    if !index.certain && matches!(request.course, Course::Lanes { .. }) {
        return Err("an error of its build would appear only after the lanes have committed".into());
    }
    let fires = |trigger: &&Trigger| trigger.on_conflict && matches!(trigger.enabled, 'O' | 'A');
    let trigger = objects.triggers.iter().find(fires).filter(|_| index.refuses());
    match (request.indexes, trigger) {
        (Indexes::Rebuild, _) => Ok("asked for".into()),
        (_, Some(trigger)) if request.triggers != Triggers::Off => {
            Err(text!("the trigger {} may need it for ON CONFLICT", trigger.name))
        }
        _ if request.private && index.plain => Err("COPY builds it after the rows".into()),
        // Its build might fail after the last row, where COPY would not.
        _ if index.by_path => {
            Err("the server builds it without the search_path, which its function may need".into())
        }
        _ if relation.empty || request.truncates => Ok("the table is empty".into()),
        _ => Err(kept(relation.rows, request.new_rows)),
    }
}

/// Why the indexes of a table with rows are kept: other sessions may use it.
fn kept(rows: f64, new_rows: Option<f64>) -> Text {
    match new_rows {
        Some(new) if rows > 0.0 && new >= PAYS * rows => text!(
            "the table has rows, and others may be using it; about {} rows are added to {}: `indexes` rebuild would take less time, but locks the table until the commit",
            new.round(),
            rows.round()
        ),
        Some(new) if rows > 0.0 => text!(
            "about {} rows are added to {}: adding them to the index is cheaper",
            new.round(),
            rows.round()
        ),
        _ => "the table has rows, and others may be using it".into(),
    }
}

fn foreign_key(objects: &TableObjects, key: &ForeignKey, request: &Request) -> Verdict {
    if request.foreign_keys == ForeignKeys::Keep {
        return Err("each row is checked as it comes".into());
    }
    if !key.enforced {
        return Err("it is not enforced".into());
    }
    if !key.validated {
        // Recreated as NOT VALID, it would never check the loaded rows.
        return Err("it is NOT VALID, so only a check of each row covers the new rows".into());
    }
    allowed(objects, request)?;
    if !key.may_refer {
        return Err(text!("the role may not refer to {}", key.referenced));
    }
    restorable(key.partitioned, key.extension.as_deref(), &key.dependents, key.odd.as_deref())?;
    if matches!(request.course, Course::Lanes { .. }) {
        return Err("a missing row would be found only after the lanes have committed".into());
    }
    if request.rejects {
        return Err("with `on-error` reject, violations are rejected by record".into());
    }
    Ok("all rows are checked at once after the load".into())
}

fn turn_off(trigger: &Trigger, request: &Request) -> Verdict {
    match request.course {
        _ if request.no_lock_out => return Err("`no-lock-out`".into()),
        Course::RowByRow => return Err("each row is committed by itself".into()),
        Course::Lanes { recorded: false } => {
            return Err("the schema pgsluice_loads cannot be written".into())
        }
        _ => {}
    }
    if !trigger.owner {
        return Err(text!("the role does not own {}", trigger.relation));
    }
    if let Some(extension) = &trigger.extension {
        return Err(text!("it belongs to the extension {}", extension));
    }
    Ok(match request.course {
        Course::Lanes { .. } => {
            "requested; until the load ends it does not fire for other sessions either".into()
        }
        _ => "asked for".into(),
    })
}
