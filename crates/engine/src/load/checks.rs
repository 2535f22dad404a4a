//! Checks after all rows are sent and before any lane commits.

use crate::error::{Error, Kind, Place};
use crate::input::{locate, Layout};
use crate::options::{Create, Method, Options};
use crate::pipeline::Through;
use crate::plan::Plan;
use crate::reject::Amount;
use crate::session::lane::Lane;
use crate::session::lane::LaneCounts;
use crate::session::transaction;

/// Checks deferred constraints before any lane commits, if other statements or lanes follow. The
/// server alters no table while such checks are pending. If one of several lanes failed, others
/// could already be committed.
pub(super) fn check_deferred(mut lanes: Vec<Lane>, plan: &Plan) -> Result<Vec<Lane>, Error> {
    if lanes.len() > 1 || !plan.after.is_empty() {
        for lane in &mut lanes {
            transaction::check_deferred(&mut lane.conn)?;
        }
    }
    Ok(lanes)
}

/// Checks before the commit that a load does not silently leave a table empty that it has truncated
/// or created. If a program before a pipe has failed, the input has no records. With a wrong
/// dialect, all records may be rejected.
pub(super) fn not_emptied(
    plan: &Plan,
    options: &Options,
    through: &Through,
    counts: &LaneCounts,
    rejected: Amount,
) -> Result<(), Error> {
    let target = &options.target;
    let fresh = target.truncate || target.create != Create::No;
    if counts.rows > 0 || !fresh || target.allow_empty {
        return Ok(());
    }
    let read = through.records + through.passed;
    let why = match rejected.records {
        _ if read == 0 => "the input has no records".to_owned(),
        0 => format!("none of the {read} records read was loaded"),
        _ => format!("of {read} records read, {rejected} were rejected and none was loaded"),
    };
    let left = if target.truncate { "the emptied table" } else { "the new table" };
    let all = if plan.method == Method::Insert { "" } else { ", so nothing was changed" };
    Err(Error::data(format!("{why}: {left} would stay empty{all}"))
        .with_hint("if an empty table is what you want, add `allow-empty`"))
}

/// Checks before the commit that the server has loaded as many rows as there were records.
pub(super) fn check_counts(
    plan: &Plan,
    through: &Through,
    counts: &LaneCounts,
    rejected: u64,
) -> Result<(), Error> {
    let accounted = counts.rows + counts.there + counts.open + rejected;
    let lost = through.records != accounted && !plan.may_drop_rows;
    if lost || accounted > through.records {
        return Err(Error::new(format!(
            "{} records were read, {} rows loaded and {rejected} rejected; rolled back",
            through.records, counts.rows
        ))
        .of_kind(Kind::Internal)
        .with_hint("this is a defect of the loader, or of a trigger on the table"));
    }
    Ok(())
}

impl Through {
    /// The place of the record with this number (from 1, over all files).
    pub(super) fn place(&self, mut record: u64, options: &Options, layout: &Layout) -> Place {
        for (source, (passed, records)) in self.by_file.iter().enumerate() {
            if record <= *records {
                let record = passed + record;
                let file = options.input.sources.get(source).map_or(String::new(), |s| s.name());
                let found = locate(&options.input, layout, source, record);
                let (line, offset) = found.unzip();
                return Place { file, record: Some(record), line, offset, ..Place::default() };
            }
            record -= records;
        }
        Place { record: Some(record), ..Place::default() }
    }
}
