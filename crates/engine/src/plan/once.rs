//! The effects of `once` on the plan.

use crate::error::Error;
use crate::facts::TableFacts;
use crate::options::{Method, Options};
use crate::text::{text, Text};

/// Rejects tables and methods for which the record of a load could be wrong.
pub(super) fn refuse_once(
    method: Method,
    table: &TableFacts,
    options: &Options,
) -> Result<(), Error> {
    let Some(once) = &options.once else { return Ok(()) };
    let sql = &table.sql;
    if !matches!(table.kind, 'r' | 'p') {
        return Err(Error::new(text!("`once` does not work on {}: its rows are elsewhere", sql))
            .with_hint("load into the table that holds the rows"));
    }
    if !once.force_unlogged && (table.persistence == 'u' || method == Method::Unlogged) {
        let what = if table.persistence == 'u' { "is" } else { "would become" };
        return Err(Error::new(text!(
            "`once` does not work on {}, which {} UNLOGGED: a crash of the server empties it, and \
             what was loaded stays recorded",
            sql,
            what
        ))
        .with_hint("ALTER TABLE ... SET LOGGED, or accept that with `force-unlogged`"));
    }
    let whole = [Method::Staged, Method::CopyFresh, Method::Unlogged, Method::UnloggedLogged];
    let one = once.commits_every().is_some() && whole.contains(&method);
    if method == Method::Insert || one {
        let pieces = if once.share.is_some() { "share" } else { "commit-every" };
        let option = Text::setting(if one { pieces } else { "once" });
        let why = if one { "it needs one transaction" } else { "it commits each row" };
        let by = Text::from(match options.target.method {
            Method::Auto => " (needed for `expr` or row-level security)",
            _ => "",
        });
        return Err(Error::new(text!("{}{} cannot be used with {}: {}", method, by, option, why))
            .with_hint(match pieces {
                "commit-every" if one => "leave out `commit-every`",
                _ => "use another method",
            }));
    }
    Ok(())
}

/// The notes for the user.
pub(super) fn once_notes(options: &Options) -> Vec<Text> {
    let Some(once) = &options.once else { return Vec::new() };
    let recorded = "what is loaded is recorded in the schema pgsluice_loads, and loaded once";
    let mut notes = vec![recorded.into()];
    if let (Some(share), Some(bytes)) = (once.share, once.commits_every()) {
        notes.push(text!(
            "machines that run the same command share the files, in parts of {}; one of which \
             nothing is seen for {} s is taken for dead",
            amount(bytes),
            share.lease.as_secs_f64()
        ));
    }
    if once.commits_every().is_some() {
        notes.push(
            "each connection commits several times: others see a part of the rows before the end, \
             and now() differs between the transactions"
                .into(),
        );
    }
    notes
}

/// A number of bytes that an option has given.
pub(super) fn amount(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{} MB", bytes >> 20),
        _ => format!("{} kB", bytes >> 10),
    }
}
