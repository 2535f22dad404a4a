//! The statements of a method before and after the rows.

use super::once::refuse_once;
use super::refuse::{refuse_delete, refuse_truncate};
use super::Plan;
use crate::error::Error;
use crate::facts::TableFacts;
use crate::options::{Method, Options};
use crate::text::text;

/// Adds the statements of the method before and after the rows.
pub(super) fn steps(plan: &mut Plan, table: &TableFacts, options: &Options) -> Result<(), Error> {
    let method = plan.method;
    refuse_once(method, table, options)?;
    let alters = matches!(method, Method::Unlogged | Method::UnloggedLogged);
    let whole = alters || method == Method::CopyFresh;
    if whole && !table.is_plain() {
        // Older servers accept SET UNLOGGED for a partitioned table and do nothing.
        let error = Error::new(format!("{method} does not work on {}", table.sql));
        return Err(match table.rows_kept_by {
            Some(extension) => error.with_hint(format!(
                "it needs a plain table; {extension} keeps the rows of this one in other tables"
            )),
            None => error.with_hint("it needs a plain table; load the partitions one by one"),
        });
    }
    if whole && !table.empty && !options.target.truncate {
        return Err(Error::new(format!(
            "{method} needs an empty table, and {} has rows",
            table.sql
        ))
        .with_hint("`truncate` empties it in the same transaction"));
    }
    if alters && table.persistence == 'p' && table.published {
        return Err(Error::new(format!(
            "{method} sends no rows to subscribers, and a publication has {}",
            table.sql
        ))
        .with_hint("another method, such as copy-text, writes them to the WAL"));
    }
    let lands = method == Method::Staged && options.target.logged_landing;
    if lands && table.schema_open && table.persistence != 't' && table.publishes_new {
        return Err(Error::new(
            "a publication would send the landing table to subscribers, which do not have it",
        )
        .with_hint("`landing` unlogged, the default, writes it to no WAL"));
    }
    // Tables that inherit from this one are not loaded, so they are not emptied either, unless they
    // have its rows.
    let only = if table.kind == 'p' || table.rows_kept_by.is_some() { "" } else { "ONLY " };
    if options.target.truncate && method == Method::Lanes {
        refuse_delete(table)?;
        plan.before.push(format!("DELETE FROM {only}{}", plan.table));
        plan.notes.push(
            "the rows are deleted one by one, and triggers on DELETE fire: TRUNCATE would block the lanes"
                .into(),
        );
    } else if !table.created && (options.target.truncate || method == Method::CopyFresh) {
        plan.before.push(format!("TRUNCATE TABLE {only}{}", plan.table));
    }
    if plan.private {
        plan.before.push(format!("TRUNCATE TABLE ONLY {}", plan.table));
        plan.notes.push(text!(
            "{} is empty: the load locks it and builds its indexes after the rows (`indexes` keep avoids the lock)",
            plan.table
        ));
    }
    if alters && table.persistence == 'p' {
        plan.before.push(format!("ALTER TABLE {} SET UNLOGGED", plan.table));
        if method == Method::UnloggedLogged {
            plan.after.push(format!("ALTER TABLE {} SET LOGGED", plan.table));
        } else {
            plan.notes.push(text!(
                "{} stays UNLOGGED: a crash of the server empties it; ALTER TABLE ... SET LOGGED ends that",
                plan.table
            ));
        }
    }
    refuse_truncate(&plan.before, table)
}
